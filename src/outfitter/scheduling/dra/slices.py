"""What is published, made ready to be asked often: slices are read once, pools are put together once for each node, and what a
selector says is remembered for all devices with the same content (`contents`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from outfitter import cel
from outfitter.api.device import DeviceId, hardware_of
from outfitter.cel import device as cel_device
from outfitter.cel.field_usage import Read
from outfitter.errors import Invalid
from outfitter.scheduling.dra import consumable_capacity
from outfitter.scheduling.dra.selector_cache import SelectorError
from outfitter.scheduling.filter import node_affinity
from outfitter.scheduling.filter import taints as device_taints
from outfitter.scheduling.score import Spot, spot

Object = Mapping[str, Any]
CAPACITY = Read("capacity")  # all of it
SKIPS = "DRAOptionalNodeOperations"  # what a node declares whose kubelet can leave out steps for a device
NANO = 1_000_000_000
REMEMBERED = 64  # answers kept for each node; claims are of few kinds


Asked = tuple[tuple[str, cel.Quantity], ...]  # capacity name -> how much of it
Share = dict[str, cel.Quantity] | SelectorError | None  # what is taken of each capacity; None: the device cannot give that


class Shares(NamedTuple):
    of: Mapping[int, Mapping[str, cel.Quantity]]  # device -> how much of each capacity
    wrong: Mapping[int, str]  # device -> why that is unknown
    mask: int  # the devices that can give it while no part of them is held


class Uses(NamedTuple):
    """What a device takes from one set of counters that it shares with others of its pool."""

    set: str
    counters: Mapping[str, int]  # nano-units
    groups: frozenset[str]  # those it can stand beside on the set; empty: only beside others without


class PublishedDevice:
    """One published device. It never changes; what is asked of it again is remembered."""

    __slots__ = ("_capacity", "_spot", "hardware", "id", "raw", "shared", "taints", "uses")

    def __init__(self, driver: str, pool: str, raw: Object, rules: Sequence[Object]) -> None:
        self.id = DeviceId(driver, pool, raw["name"])
        self.raw = raw
        self.hardware = hardware_of(raw, driver)  # PCI addresses or a UUID; empty: not published
        self.shared = bool(raw.get("allowMultipleAllocations"))
        self.taints = [*(raw.get("taints") or ()), *device_taints.ruled(rules, driver, pool, raw["name"])]
        self.uses = tuple(map(_uses, raw.get("consumesCounters") or ()))
        self._capacity: dict[str, consumable_capacity.Capacity] | None = None
        self._spot: Spot | None = None

    @property
    def spot(self) -> Spot:
        if self._spot is None:
            self._spot = spot(self.raw)
        return self._spot

    @property
    def cel(self) -> cel.CelDevice | SelectorError:
        """As a selector sees it. Computed each time: of thousands of equal devices one is evaluated."""
        try:
            return cel.CelDevice.from_slice(self.id.driver, self.raw)
        except Invalid as error:
            return SelectorError(f"unsupported attribute value or capacity of device {self.id}: {error.message}")

    @property
    def capacity(self) -> dict[str, consumable_capacity.Capacity]:
        if self._capacity is None:
            self._capacity = consumable_capacity.read(self.raw.get("capacity") or {})
        return self._capacity

    def share(self, asked: Asked, fractional: bool) -> Share:
        """What a request takes of it; None: it could not give that even if no part of it were held."""
        if not asked and not self.raw.get("capacity"):
            return {}
        try:
            share = consumable_capacity.share(dict(asked), self.capacity, self.id.driver, fractional=fractional)
            return share if share is not None and consumable_capacity.room(share, {}, (), self.capacity) else None
        except Invalid as error:
            return SelectorError(f"checking capacity for device {self.id}: {error.message}")

    def attribute(self, name: str) -> Mapping[str, Any] | None:
        """By its full name; one that was published without a domain has the driver's."""
        attributes = self.raw.get("attributes") or {}
        found = attributes.get(name)
        if found is None:
            domain, _, short = name.rpartition("/")
            found = attributes.get(short) if domain == self.id.driver else None
        return found


def _uses(entry: Object) -> Uses:
    return Uses(entry["counterSet"], _amounts(entry.get("counters")), frozenset(entry.get("compatibilityGroups") or ()))


def _amounts(counters: Object | None) -> dict[str, int]:
    return {name: consumable_capacity.number(entry.get("value"), f"counters[{name}].value").nano
            for name, entry in (counters or {}).items()}


def quantity_text(nano: int) -> str:
    """Nano-units as a quantity."""
    return str(nano // NANO) if nano % NANO == 0 else f"{nano}n"


class ParsedSlice:
    """A ResourceSlice, read."""

    __slots__ = ("counters", "devices", "each", "generation", "groups", "name", "node", "of", "pool", "raw", "readable",
                 "skips", "spec")

    def __init__(self, raw: Object, rules: Sequence[Object]) -> None:
        spec = raw["spec"]
        self.raw, self.spec, self.name = raw, spec, raw["metadata"]["name"]
        self.pool = _pool_of(raw)
        self.generation, self.of = int(spec["pool"].get("generation") or 0), int(spec["pool"].get("resourceSliceCount") or 1)
        self.node: str = spec.get("nodeName") or ""
        self.each = bool(spec.get("perDeviceNodeSelection"))  # its devices say themselves where they can be used
        self.counters = {entry["name"]: _amounts(entry.get("counters")) for entry in spec.get("sharedCounters") or ()}
        self.skips = tuple(spec.get("skipNodeOperations") or ())
        self.devices = [PublishedDevice(*self.pool, device, rules) for device in spec.get("devices") or ()]
        self.readable = all(cel_device.readable(device.raw) for device in self.devices)
        self.groups = any(use.groups for device in self.devices for use in device.uses)

    def without_taints(self, keys: Collection[str], rules: Sequence[Object]) -> ParsedSlice:
        """The same slice without published taints of these keys; itself if it has none."""
        def of(device: Object) -> list[Object]:
            return [taint for taint in device.get("taints") or () if taint.get("key") not in keys]

        if not any(len(of(device.raw)) < len(device.raw.get("taints") or ()) for device in self.devices):
            return self
        devices = [{**device.raw, "taints": of(device.raw)} for device in self.devices]
        return ParsedSlice({**self.raw, "spec": {**self.spec, "devices": devices}}, rules)

    def reaches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Can the node use any device of it?"""
        if self.node or self.spec.get("allNodes") or self.spec.get("nodeSelector"):
            return node_affinity.reaches(self.spec, name, labels)
        return self.each and any(node_affinity.reaches(device.raw, name, labels) for device in self.devices)

    def where(self, device: PublishedDevice) -> node_affinity.Where:
        """Where a device of it can be used."""
        source = device.raw if self.each else self.spec
        if device.raw.get("bindsToNode"):
            return "", None
        return source.get("nodeName") or None, source.get("nodeSelector")


def _pool_of(raw: Object) -> tuple[str, str]:
    return raw["spec"]["driver"], raw["spec"]["pool"]["name"]
