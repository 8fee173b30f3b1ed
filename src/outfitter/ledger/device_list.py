"""ListedDevice: ResourceSlices (what is published), LedgerPages (bookings, reservations, quarantine) and HostInventories (what
is withheld and why), joined per device. Pure. Used by `outfit devices`, `device` and `history`, and by `pool_status`."""

from __future__ import annotations

import difflib
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outfitter.api.device import ADDRESS_NAMES, DRIVER, MDEV_NAMES, MDEV_PRODUCT_NAMES, DeviceId, hardware_of, newest_pools
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import OUT_OF_SERVICE_STATES, Booking, OutOfServiceRecord, Page, is_pool_page, pool_page
from outfitter.api.ledger_page.page_entries import MalformedEntry
from outfitter.api.natural_order import natural
from outfitter.cel.library import quantity
from outfitter.errors import BadRequest, NotFound
from outfitter.inventory import pci
from outfitter.ledger.out_of_service import HEALTH

OURS = "outfitter.dev/"  # key prefix of our taints
LEFTOVER = ("unlisted", "vanished")  # states of a device that stays published only because it is held
# Every state, most important first; a device can be in several.
STATES = ("held", *LEFTOVER, "withheld", "unhealthy", "quarantined", "reserved", "unclean", "blocked", "free")
FREE = ("free",)
SHOWN = 8  # names in one error message

Counters = Mapping[tuple[str, str], str]  # (counter set, counter) -> quantity


@dataclass(slots=True)
class ListedDevice:
    """One device with its attributes, bookings, records and taints."""

    node: str  # "" for a device that is not tied to a host
    id: DeviceId
    attributes: Mapping[str, Any]  # names without the driver's domain
    consumes: Counters = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()  # of its driver and of DeviceTaintRules; ours in slices repeat the page
    published: bool = True
    bookings: list[Booking] = field(default_factory=list)
    records: list[tuple[str, OutOfServiceRecord]] = field(default_factory=list)
    leftover: str = ""  # "unlisted", "vanished"
    reason: str = ""  # why it is not offered
    blocked_by: Sequence[ListedDevice] = ()  # held devices that use up the counters that this one needs
    page: str = ""  # the LedgerPage that it is recorded on; "" for its host's page
    hardware: frozenset[str] = frozenset()  # PCI addresses or the UUID that it is on its node; empty: not known
    same_as: Sequence[DeviceId] = ()  # other names of the same hardware: only one of them can be held

    @property
    def host(self) -> str:
        """The name of the LedgerPage that it is recorded on."""
        return self.page or self.node or self.id.pool

    @property
    def short(self) -> str:
        """node/device, as users type it."""
        return f"{self.node or self.id.pool}/{self.id.device}"

    @property
    def states(self) -> tuple[str, ...]:
        """All states of the device, most important first."""
        if not (self.bookings or self.records or self.leftover or self.reason or self.blocked_by or self.taints):
            return FREE  # shortcut for the most frequent case
        true = {self.leftover, *(record_type for record_type, _ in self.records)}
        if any(taint.get("key") == f"{OURS}unhealthy" for taint in self.taints):
            true.add("unhealthy")
        if self.bookings:
            true.add("held")
        elif self.blocked_by:
            true.add("blocked")
        if self.reason and not self.published:
            true.add("withheld")
        return tuple(state for state in STATES if state in true) or FREE

    @property
    def state(self) -> str:
        return self.states[0]

    @property
    def offered(self) -> bool:
        return self.state != "withheld"

    def text(self, *names: str) -> str:
        """The first of these attributes that the device has, as text."""
        for name in names:
            value = self.attributes.get(name)
            if value is not None and value != "":
                return str(value)
        return ""

    def number(self, name: str) -> int | None:
        value = self.attributes.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def words(self, name: str) -> list[str]:
        """The list that is split over the attributes `name`, `name2` and so on."""
        out: list[str] = []
        while part := self.attributes.get(name if not out else f"{name}{len(out) + 1}"):
            out.append(str(part))
        return ",".join(out).split(",") if out else []

    @property
    def address(self) -> str:
        """PCI address; "" if it has none."""
        return self.text(*ADDRESS_NAMES)

    @property
    def uuid(self) -> str:
        """UUID of a mediated device; "" for others."""
        return self.text(*MDEV_NAMES)

    @property
    def numa(self) -> int | None:
        standard = self.number("resource.kubernetes.io/numaNode")
        return self.number("numaNode") if standard is None else standard

    @property
    def kind(self) -> str:
        return self.text("kind", "type")

    @property
    def is_of_plugin(self) -> bool:
        """A device of a device plugin: no ResourceSlice has it, and its driver is an extended resource."""
        return "/" in self.id.driver

    @property
    def product(self) -> str:
        """Vendor and product names if they are known, else ids; the resource of a device plugin's device."""
        if self.is_of_plugin:
            return self.id.driver
        vendor, product = self.text("vendorName"), self.text(*MDEV_PRODUCT_NAMES, "productName", "model")
        if vendor or product:
            return " ".join(filter(None, (vendor, product or self.text("product"))))
        return ":".join(filter(None, (self.text("vendor"), self.text("product"))))


@dataclass(frozen=True, slots=True)
class DeviceList:
    """All devices of all hosts, or of one, sorted by node and address."""

    devices: tuple[ListedDevice, ...]
    nodes: tuple[str, ...]  # known hosts, with or without devices
    unfinished: tuple[str, ...]  # sentences about pools whose slices are incomplete
    warnings: Mapping[str, Sequence[str]]  # host -> its warnings
    malformed: tuple[MalformedEntry, ...] = ()  # of pages

    def find(self, word: str) -> ListedDevice:
        """The device of a typed NODE/DEVICE, or DEVICE if that is unambiguous. DEVICE is a name, an address, a UUID, or the
        address of a function that is assigned together with it. BadRequest: ambiguous. NotFound: there is none."""
        *place, name = word.split("/")
        here = [device for device in self.devices if not place or place[-1] in (device.node, device.id.pool)
                or device.id.pool == "/".join(place)]
        if len(place) == 2 and not any(device.id.pool == "/".join(place) for device in here):  # driver/pool/device
            here = [device for device in here if device.id.driver == place[0]]
        asked = f"0000:{name}" if pci.ADDRESS.fullmatch(f"0000:{name}".lower()) else name
        for fits in (lambda device: device.id.device == name, lambda device: asked.lower() in (device.address, device.uuid),
                     lambda device: asked.lower() in device.words("members")):
            matches = [device for device in here if fits(device)]
            if len(matches) == 1:
                return matches[0]
            if matches:
                same = len({device.short for device in matches}) == 1
                raise BadRequest(f"{word!r} matches {len(matches)} devices; write one of: "
                                 + abbreviated([str(device.id) if same else device.short for device in matches]))
        raise NotFound(self._not_found(word, place[-1] if place else "", asked, here))

    def _not_found(self, word: str, node: str, name: str, here: Sequence[ListedDevice]) -> str:
        if node and not here:
            return self.no_node(node)
        names = {called: device.short for device in here for called in (device.id.device, device.address) if called}
        near = list(dict.fromkeys(names[match] for match in difflib.get_close_matches(name, names, n=3, cutoff=0.7)))
        known = f"similar: {', '.join(near)}" if near else f"outfit devices{f' --node {node}' if node else ''} lists them"
        return f"there is no device {word!r}; {known}"

    def no_node(self, node: str) -> str:
        return f"there is no node {node!r} with devices; there are {abbreviated(self.nodes) if self.nodes else 'none'}"


def abbreviated(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def device_list(slices: Sequence[Object], pages: Sequence[Object], inventories: Sequence[Object]) -> DeviceList:
    whole = newest_pools(slices)
    known = {device.id: device for device in _published(whole)}
    for obj in inventories:
        _take_inventory(known, obj["metadata"]["name"], obj.get("spec") or {})
    parsed = [Page(obj) for obj in pages]
    for page in parsed:
        for booking in page.bookings:
            if booking.counted:
                _of_page(known, page.host, booking.device).bookings.append(booking)
        for record_type in OUT_OF_SERVICE_STATES:
            for record in page.records(record_type):
                shown = "unhealthy" if record.origin == HEALTH else record_type
                _of_page(known, page.host, record.device).records.append((shown, record))
    _see_counters(known, whole)
    _see_hardware(known)
    nodes = {device.node for device in known.values() if device.node}
    nodes |= {obj["metadata"]["name"] for obj in (*pages, *inventories) if not is_pool_page(obj["metadata"]["name"])}
    key = functools.cache(natural)
    return DeviceList(
        tuple(
            sorted(known.values(), key=lambda view: (key(view.node), pci.order(view.address), natural(view.id.device), view.id))
        ),
        tuple(sorted(nodes, key=natural)),
        tuple(_unfinished(slices, whole)),
        {obj["metadata"]["name"]: warnings for obj in inventories if (warnings := (obj.get("spec") or {}).get("warnings"))},
        tuple(entry for page in parsed for entry in page.malformed),
    )


def _published(pools: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> Iterator[ListedDevice]:
    for (driver, pool), slices in pools.items():
        tied = {part["spec"].get("nodeName") or "" for part in slices}
        page = pool_page(driver, pool) if len(tied) > 1 or "" in tied else ""
        for part in slices:
            node = part["spec"].get("nodeName") or ""
            for device in part["spec"].get("devices") or ():
                taints = device.get("taints") or ()
                leftover = next((what for what in LEFTOVER for taint in taints if taint["key"] == OURS + what), "")
                yield ListedDevice(
                    device.get("nodeName") or node, DeviceId(driver, pool, device["name"]),
                    {key.removeprefix(f"{driver}/"): value for key, raw in (device.get("attributes") or {}).items()
                     for value in raw.values()},
                    {(counters["counterSet"], name): amount["value"] for counters in device.get("consumesCounters") or ()
                     for name, amount in counters["counters"].items()},
                    tuple(taint for taint in taints if not taint["key"].startswith(OURS)), leftover=leftover, page=page,
                    hardware=hardware_of(device, driver))


def _take_inventory(known: dict[DeviceId, ListedDevice], host: str, spec: Mapping[str, Any]) -> None:
    for raw in spec.get("withheld") or ():
        device = DeviceId(DRIVER, host, raw["name"])
        if device in known:  # held, so it is still published
            known[device].reason = raw["reason"]
            continue
        attributes = {key: value for key, value in raw.items() if key not in ("name", "address", "uuid", "type", "reason")}
        if "uuid" in raw:
            attributes |= {"kind": "MDEV", "mdevUUID": raw["uuid"], "mdevType": raw.get("type")}
        if "address" in raw:
            attributes["pciBusID"] = raw["address"]
        known[device] = ListedDevice(host, device, attributes, published=False, reason=raw["reason"])
    for raw in spec.get("left") or ():
        if (device := DeviceId(DRIVER, host, raw["device"])) in known:
            known[device].leftover = raw["what"]


def _of_page(known: dict[DeviceId, ListedDevice], host: str, device: DeviceId) -> ListedDevice:
    """The view of a device that a page names; of a device that is not published only the name is known."""
    if device not in known:
        shared = is_pool_page(host)
        known[device] = ListedDevice("" if shared else host, device, {}, published=False, page=host if shared else "")
    return known[device]


def _see_counters(known: Mapping[DeviceId, ListedDevice], pools: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> None:
    """Sets `blocked_by` from shared counters: a PF is not free while one of its VFs is held."""
    limits = {(driver, pool, counters["name"], name): _amount(amount["value"])
              for (driver, pool), slices in pools.items() for part in slices
              for counters in part["spec"].get("sharedCounters") or () for name, amount in counters["counters"].items()}
    if not limits:
        return
    left, users = dict(limits), defaultdict[tuple[str, str, str, str], list[ListedDevice]](list)
    for device in (device for device in known.values() if device.bookings):
        for (where, name), amount in device.consumes.items():
            key = (device.id.driver, device.id.pool, where, name)
            users[key].append(device)
            if key in left:
                left[key] -= _amount(amount)
    for device in (device for device in known.values() if device.consumes and not device.bookings):
        for (where, name), amount in device.consumes.items():
            key = (device.id.driver, device.id.pool, where, name)
            if key in left and _amount(amount) > left[key]:
                device.blocked_by = users[key]


def _see_hardware(known: Mapping[DeviceId, ListedDevice]) -> None:
    """Sets `same_as`, and `blocked_by` where another name of the same hardware is held."""
    names = defaultdict[tuple[str, str], dict[DeviceId, ListedDevice]](dict)
    for device in known.values():
        recorded = [key for booking in device.bookings for key in booking.hardware]
        for node in {device.node, *(booking.node for booking in device.bookings)} - {""}:
            for key in (*device.hardware, *recorded):
                names[node, key][device.id] = device
    for several in (devices for devices in names.values() if len(devices) > 1):
        for device in several.values():
            for other in several.values():
                if other is not device and other.id not in device.same_as and not _parts(device, other):
                    device.same_as = [*device.same_as, other.id]
                    if other.bookings and not device.bookings:
                        device.blocked_by = [*device.blocked_by, other]


def _parts(device: ListedDevice, other: ListedDevice) -> bool:
    """Whether both are parts of something that their driver counts: the counters say which of them go together."""
    return (device.id.driver, device.id.pool) == (other.id.driver, other.id.pool) and not {
        counters for counters, _ in device.consumes}.isdisjoint(counters for counters, _ in other.consumes)


@functools.cache
def _amount(text: str) -> quantity.Quantity:
    return quantity.parse(text)


def _unfinished(slices: Iterable[Mapping[str, Any]], whole: Mapping[tuple[str, str], object]) -> Iterator[str]:
    pools = {(part["spec"]["driver"], part["spec"]["pool"]["name"]) for part in slices}
    for driver, pool in sorted(pools - whole.keys()):
        yield f"pool {pool} of {driver} is incomplete: its devices are not shown until all slices are published"
