"""What is known of every device: slices say what there is, pages who has it and who took it out of service, inventories what is
not offered and why. `read` asks the server once for each; all else is pure. To see how it is told, begin at `devices.py`."""

from __future__ import annotations

import asyncio
import difflib
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outfitter.api import kinds
from outfitter.api.device import ADDRESS_NAMES, DRIVER, MDEV_NAMES, DeviceId, newest_pools
from outfitter.api.kinds import Kind, Object
from outfitter.api.natural_order import natural
from outfitter.api.page import MARKS, Booking, OutOfServiceRecord, Page, is_pool_page, pool_page
from outfitter.cel.library import quantity
from outfitter.cli.client import Client
from outfitter.errors import BadRequest, NotFound
from outfitter.inventory import pci

OURS = "outfitter.dev/"  # how our taints begin
LEFT = ("unlisted", "vanished")  # of a device that only stays published because somebody has it
# Every state, the one that matters most first; a device can be in several.
STATES = ("held", *LEFT, "withheld", "quarantined", "reserved", "unclean", "blocked", "free")
FREE = ("free",)
SHOWN = 8  # names in one error

Counters = Mapping[tuple[str, str], str]  # (counter set, counter) -> how much


@dataclass(slots=True)
class Known:
    """One device and everything that is known of it."""

    node: str  # "" for a device that is not tied to a host
    id: DeviceId
    said: Mapping[str, Any]  # its attributes, without the domain of its driver
    takes: Counters = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()  # of its driver; ours say only what the page says
    published: bool = True
    bookings: list[Booking] = field(default_factory=list)
    marks: list[tuple[str, OutOfServiceRecord]] = field(default_factory=list)
    left: str = ""  # "unlisted", "vanished"
    reason: str = ""  # why it is not offered
    in_the_way: Sequence[Known] = ()  # devices that somebody has and that leave nothing for this one
    page: str = ""  # on which it stands; "" for that of its host

    @property
    def host(self) -> str:
        """Whose page it stands on."""
        return self.page or self.node or self.id.pool

    @property
    def short(self) -> str:
        """As it may be typed: node/device."""
        return f"{self.node or self.id.pool}/{self.id.device}"

    @property
    def states(self) -> tuple[str, ...]:
        """All that is true of it, what matters most first."""
        if not (self.bookings or self.marks or self.left or self.reason or self.in_the_way):
            return FREE  # most are, and there may be many
        true = {self.left, *(which for which, _ in self.marks)}
        if self.bookings:
            true.add("held")
        elif self.in_the_way:
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
        """The first of these attributes that is there."""
        for name in names:
            value = self.said.get(name)
            if value is not None and value != "":
                return str(value)
        return ""

    def number(self, name: str) -> int | None:
        value = self.said.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def words(self, name: str) -> list[str]:
        """A list that is spread over `name`, `name2` and so on."""
        out: list[str] = []
        while part := self.said.get(name if not out else f"{name}{len(out) + 1}"):
            out.append(str(part))
        return ",".join(out).split(",") if out else []

    @property
    def address(self) -> str:
        """Where it is on the PCI bus."""
        return self.text(*ADDRESS_NAMES)

    @property
    def uuid(self) -> str:
        """Of a mediated device."""
        return self.text(*MDEV_NAMES)

    @property
    def numa(self) -> int | None:
        found = self.number("resource.kubernetes.io/numaNode")
        return self.number("numaNode") if found is None else found

    @property
    def kind(self) -> str:
        return self.text("kind", "type")

    @property
    def product(self) -> str:
        """For a person: names if they are known, else ids."""
        vendor, product = self.text("vendorName"), self.text("productName", "mdevTypeName", "mdevType", "model")
        if vendor or product:
            return " ".join(filter(None, (vendor, product or self.text("product"))))
        return ":".join(filter(None, (self.text("vendor"), self.text("product"))))


@dataclass(frozen=True, slots=True)
class Everything:
    """All devices of all hosts, or of one, in the order in which people look for them."""

    devices: tuple[Known, ...]
    nodes: tuple[str, ...]  # hosts that are known, with devices or without
    unfinished: tuple[str, ...]  # pools that are being written, as sentences
    warnings: Mapping[str, Sequence[str]]  # host -> what is odd there

    def find(self, word: str) -> Known:
        """The device that somebody typed: NODE/DEVICE, or a DEVICE that is the only one of that name. A device is called by its
        name, its address, its UUID, or the address of a function that goes along with it."""
        *place, name = word.split("/")
        here = [device for device in self.devices if not place or place[-1] in (device.node, device.id.pool)
                or device.id.pool == "/".join(place)]
        if len(place) == 2 and not any(device.id.pool == "/".join(place) for device in here):  # driver/pool/device
            here = [device for device in here if device.id.driver == place[0]]
        asked = f"0000:{name}" if pci.ADDRESS.fullmatch(f"0000:{name}".lower()) else name
        for fits in (lambda device: device.id.device == name, lambda device: asked.lower() in (device.address, device.uuid),
                     lambda device: asked.lower() in device.words("members")):
            found = [device for device in here if fits(device)]
            if len(found) == 1:
                return found[0]
            if found:
                same = len({device.short for device in found}) == 1
                raise BadRequest(f"{word!r} may be any of {len(found)} devices; say which: "
                                 + few([str(device.id) if same else device.short for device in found]))
        raise NotFound(self._nobody(word, place[-1] if place else "", asked, here))

    def _nobody(self, word: str, node: str, name: str, here: Sequence[Known]) -> str:
        if node and not here:
            return self.no_node(node)
        spoken = {called: device.short for device in here for called in (device.id.device, device.address) if called}
        near = list(dict.fromkeys(spoken[each] for each in difflib.get_close_matches(name, spoken, n=3, cutoff=0.7)))
        known = f"near to it: {', '.join(near)}" if near else f"outfit devices{f' --node {node}' if node else ''} lists them"
        return f"there is no device {word!r}; {known}"

    def no_node(self, node: str) -> str:
        return f"there is no node {node!r} with devices; there are {few(self.nodes) if self.nodes else 'none'}"


def few(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


async def read(client: Client, node: str = "") -> Everything:
    """Ask for all devices, or for those of one node. NotFound names the nodes that there are."""
    name = f"metadata.name={node}" if node else ""
    slices, pages, inventories = await asyncio.gather(
        listed(client, kinds.RESOURCE_SLICE, f"spec.nodeName={node}" if node else ""),
        listed(client, kinds.LEDGER_PAGE, name), listed(client, kinds.HOST_INVENTORY, name))
    found = everything(slices, pages, inventories)
    if node and not found.nodes:
        try:
            await client.store.get(kinds.NODE, node)  # it is there, and has nothing to tell
        except NotFound:
            raise NotFound((await read(client)).no_node(node)) from None
    return found


async def look_for(client: Client, words: Sequence[str]) -> list[Known]:
    """The devices that somebody typed; those of one node are looked for there first."""
    places = {word.rpartition("/")[0] for word in words}
    alone = next(iter(places)).rpartition("/")[2] if len(places) == 1 else ""
    try:
        there = await read(client, alone)
        return [there.find(word) for word in words]
    except NotFound:
        if not alone:
            raise
    there = await read(client)  # what was typed may be a pool without a node; else this names what is near
    return [there.find(word) for word in words]


async def listed(client: Client, kind: Kind, fields: str = "") -> list[Object]:
    """All objects of a kind; none where the server does not know it."""
    try:
        return (await client.store.list(kind, fields=fields)).items
    except NotFound:
        return []


def everything(slices: Sequence[Object], pages: Sequence[Object], inventories: Sequence[Object]) -> Everything:
    whole = newest_pools(slices)
    known = {device.id: device for device in _published(whole)}
    for obj in inventories:
        _take_inventory(known, obj["metadata"]["name"], obj.get("spec") or {})
    for page in map(Page, pages):
        for booking in page.bookings:
            if booking.counted:
                _of_page(known, page.host, booking.device).bookings.append(booking)
        for which in MARKS:
            for mark in page.marks(which):
                _of_page(known, page.host, mark.device).marks.append((which, mark))
    _see_counters(known, whole)
    nodes = {device.node for device in known.values() if device.node}
    nodes |= {obj["metadata"]["name"] for obj in (*pages, *inventories) if not is_pool_page(obj["metadata"]["name"])}
    key = functools.cache(natural)
    return Everything(
        tuple(sorted(known.values(), key=lambda one: (key(one.node), pci.order(one.address), natural(one.id.device), one.id))),
        tuple(sorted(nodes, key=natural)), tuple(_unfinished(slices, whole)),
        {obj["metadata"]["name"]: warnings for obj in inventories if (warnings := (obj.get("spec") or {}).get("warnings"))})


def _published(pools: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> Iterator[Known]:
    for (driver, pool), slices in pools.items():
        tied = {part["spec"].get("nodeName") or "" for part in slices}
        page = pool_page(driver, pool) if len(tied) > 1 or "" in tied else ""
        for part in slices:
            node = part["spec"].get("nodeName") or ""
            for device in part["spec"].get("devices") or ():
                taints = device.get("taints") or ()
                left = next((what for what in LEFT for taint in taints if taint["key"] == OURS + what), "")
                yield Known(
                    device.get("nodeName") or node, DeviceId(driver, pool, device["name"]),
                    {key.removeprefix(f"{driver}/"): value for key, raw in (device.get("attributes") or {}).items()
                     for value in raw.values()},
                    {(each["counterSet"], name): amount["value"] for each in device.get("consumesCounters") or ()
                     for name, amount in each["counters"].items()},
                    tuple(taint for taint in taints if not taint["key"].startswith(OURS)), left=left, page=page)


def _take_inventory(known: dict[DeviceId, Known], host: str, spec: Mapping[str, Any]) -> None:
    for raw in spec.get("withheld") or ():
        device = DeviceId(DRIVER, host, raw["name"])
        if device in known:  # somebody has it, so it is still published
            known[device].reason = raw["reason"]
            continue
        said = {key: value for key, value in raw.items() if key not in ("name", "address", "uuid", "type", "reason")}
        if "uuid" in raw:
            said |= {"kind": "MDEV", "mdevUUID": raw["uuid"], "mdevType": raw.get("type")}
        if "address" in raw:
            said["pciBusID"] = raw["address"]
        known[device] = Known(host, device, said, published=False, reason=raw["reason"])
    for raw in spec.get("left") or ():
        if (device := DeviceId(DRIVER, host, raw["device"])) in known:
            known[device].left = raw["what"]


def _of_page(known: dict[DeviceId, Known], host: str, device: DeviceId) -> Known:
    """A device of a page; one that is not published (a server may not take its taints) is known by its name alone."""
    if device not in known:
        shared = is_pool_page(host)
        known[device] = Known("" if shared else host, device, {}, published=False, page=host if shared else "")
    return known[device]


def _see_counters(known: Mapping[DeviceId, Known], pools: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> None:
    """What is left of counters that devices share: a physical function is not free while one of its virtual ones is held."""
    limits = {(driver, pool, counters["name"], name): _amount(amount["value"])
              for (driver, pool), slices in pools.items() for part in slices
              for counters in part["spec"].get("sharedCounters") or () for name, amount in counters["counters"].items()}
    if not limits:
        return
    left, users = dict(limits), defaultdict[tuple[str, str, str, str], list[Known]](list)
    for device in (device for device in known.values() if device.bookings):
        for (where, name), amount in device.takes.items():
            key = (device.id.driver, device.id.pool, where, name)
            users[key].append(device)
            if key in left:
                left[key] -= _amount(amount)
    for device in (device for device in known.values() if device.takes and not device.bookings):
        for (where, name), amount in device.takes.items():
            key = (device.id.driver, device.id.pool, where, name)
            if key in left and _amount(amount) > left[key]:
                device.in_the_way = users[key]


@functools.cache
def _amount(text: str) -> quantity.Quantity:
    return quantity.parse(text)


def _unfinished(slices: Iterable[Mapping[str, Any]], whole: Mapping[tuple[str, str], object]) -> Iterator[str]:
    pools = {(part["spec"]["driver"], part["spec"]["pool"]["name"]) for part in slices}
    for driver, pool in sorted(pools - whole.keys()):
        yield f"pool {pool} of {driver} is being written: its devices are not shown until it is whole"
