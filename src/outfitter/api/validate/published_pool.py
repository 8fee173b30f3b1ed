"""What drivers publish of a pool at the moment of a write: read from the ResourceSlices that the write finds in the store, for
the rules of LedgerPages (`validate.pages`). Does no I/O; what was read of a slice is kept with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outfitter.api import kinds
from outfitter.api.device import DeviceId, hardware_of, newest
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.booking import Limits
from outfitter.api.ledger_page.page import pool_page
from outfitter.api.write_request import StoredObject, WriteRequest


@dataclass(frozen=True, slots=True)
class SliceContent:
    """What the rules of pages need to know of one ResourceSlice."""

    driver: str
    generation: int
    node: str  # "": devices that are not of one host
    devices: frozenset[str]
    capacity: Mapping[str, Mapping[str, str]]  # of devices that may be shared
    counters: Mapping[str, Mapping[str, str]]  # by counter set


@dataclass(frozen=True, slots=True)
class PoolContent:
    """A pool of one driver as its slices describe it now."""

    driver: str
    name: str
    slices: tuple[SliceContent, ...]  # of all generations

    @property
    def newest(self) -> list[SliceContent]:
        """The slices of its newest generation; the pool may be incomplete."""
        generation = max((content.generation for content in self.slices), default=0)
        return [content for content in self.slices if content.generation == generation]

    @property
    def page(self) -> str:
        """The page on which its devices are booked: that of the only host that has it, else its own."""
        nodes = {content.node for content in self.slices}
        return nodes.pop() if len(nodes) == 1 and "" not in nodes else pool_page(self.driver, self.name)

    def publishes(self, device: str) -> bool:
        return any(device in content.devices for content in self.newest)


def read(change: WriteRequest, driver: str, pool: str) -> PoolContent:
    """The pool as the write finds it."""
    contents = map(_content, change.indexed(kinds.RESOURCE_SLICE, pool))
    return PoolContent(driver, pool, tuple(content for content in contents if content.driver == driver))


def limits(pools: Iterable[PoolContent]) -> Limits:
    """What may be held of shared devices and of counters."""
    capacity: dict[DeviceId, Mapping[str, str]] = {}
    counters: dict[tuple[str, str, str], Mapping[str, str]] = {}
    for pool in pools:
        for content in pool.newest:
            capacity |= {DeviceId(pool.driver, pool.name, device): each for device, each in content.capacity.items()}
            counters |= {(pool.driver, pool.name, name): each for name, each in content.counters.items()}
    return Limits(capacity, counters)


def hardware(change: WriteRequest, wanted: Collection[tuple[DeviceId, str]]) -> dict[tuple[DeviceId, str], tuple[str, ...]]:
    """What devices are on hosts, as their drivers publish it; empty: not known. Each pool is read once."""
    found: dict[tuple[DeviceId, str], set[str]] = {pair: set() for pair in wanted}
    hosts: dict[DeviceId, list[str]] = {}
    for device, host in found:
        hosts.setdefault(device, []).append(host)
    for driver, pool in {(device.driver, device.pool) for device in hosts}:
        slices = change.indexed(kinds.RESOURCE_SLICE, pool)
        for part in newest([stored.object() for stored in slices if _content(stored).driver == driver]):
            for each in part["spec"].get("devices") or ():
                device = DeviceId(driver, pool, each["name"])
                node = each.get("nodeName") or part["spec"].get("nodeName")
                for host in hosts.get(device, ()):
                    if host == (node or host):
                        found[device, host] |= hardware_of(each, driver)
    return {pair: tuple(sorted(names)) for pair, names in found.items()}


def _content(stored: StoredObject) -> SliceContent:
    if not isinstance(stored.derived, SliceContent):
        stored.derived = _read(stored.object())
    return stored.derived


def _read(obj: Object) -> SliceContent:
    try:
        spec: Object = obj["spec"]
        devices: Collection[Mapping[str, Any]] = spec.get("devices") or ()
        return SliceContent(
            spec["driver"], int(spec["pool"].get("generation") or 0), spec.get("nodeName") or "",
            frozenset(device["name"] for device in devices),
            {device["name"]: _values(device.get("capacity")) for device in devices if device.get("allowMultipleAllocations")},
            {entry["name"]: _values(entry.get("counters")) for entry in spec.get("sharedCounters") or ()})
    except (AttributeError, KeyError, TypeError, ValueError):
        return SliceContent("", 0, "", frozenset(), {}, {})  # malformed, stored before it was checked: publishes nothing


def _values(amounts: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(amount["value"]) for name, amount in (amounts or {}).items()}
