"""HostState: a host for the PCI allocator, from its published devices and its page. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outfitter.api import rejection
from outfitter.api.device import DRIVER, PCI_BUS_ID, DeviceId
from outfitter.api.ledger_page.page import OUT_OF_SERVICE_STATES, Page
from outfitter.api.providers import Provider
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.cel.library import quantity
from outfitter.inventory import pci, slices
from outfitter.inventory.pci import FunctionKind
from outfitter.ledger import placement_view
from outfitter.ledger.placement_view import Row
from outfitter.scheduling.dra.node_devices import NodeDevices
from outfitter.scheduling.dra.slices import PublishedDevice, quantity_text
from outfitter.scheduling.filter import taints
from outfitter.scheduling.filter.taints import KEEPS_AWAY, RECORDED_ON_PAGE
from outfitter.scheduling.nova.extra_specs import AliasRequest
from outfitter.scheduling.nova.numa_topology import NumaCell

ELSEWHERE = Rejection.of(RejectionCode.HELD, same="another claim")  # of the VM that devices are chosen for


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI function that a host publishes."""

    id: DeviceId
    address: str
    kind: FunctionKind
    vendor: str
    product: str
    provider: str = ""  # on which it is counted; "" if it is not
    numa: int | None = None
    live_migratable: bool | None = None  # None: device_spec does not say
    remote_managed: bool = False  # from elsewhere, by ports alone
    blocked: Rejection | None = None  # why no other VM gets it
    takes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # counter set -> counter -> how much

    @property
    def label(self) -> str:
        return f"{self.address} ({self.id.device})"


@dataclass(frozen=True, slots=True)
class HostState:
    """A host at one moment."""

    name: str
    devices: tuple[PciDevice, ...] = ()  # by address
    rows: Mapping[str, Row] = field(default_factory=dict)  # provider -> what it has and what is used
    cells: tuple[NumaCell, ...] = ()  # empty: not known, and CPUs are no limit
    counters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # counter set -> counter -> what is left

    @property
    def free(self) -> int:
        """How many devices are free."""
        return sum(not device.blocked for device in self.devices)

    def room(self, provider: str) -> int:
        """How many more may be taken of a provider."""
        row = self.rows[provider]
        return min((max(each.total - each.reserved - row.used.get(name, 0), 0) for name, each in row.inventories.items()),
                   default=0)

    def taking(self, choice: PciAllocation) -> HostState:
        """The host without what was chosen on it."""
        gone = {given.device.id for given in choice.given}
        used: dict[str, int] = defaultdict(int)
        left = {name: dict(amounts) for name, amounts in self.counters.items()}
        for given in choice.given:
            used[given.device.provider] += 1
            for name, amounts in given.device.takes.items():
                for counter, amount in amounts.items():
                    left[name][counter] = str(quantity.parse(left[name][counter]) - quantity.parse(amount))
        rows = {name: replace(row, used={class_: row.used.get(class_, 0) + used[name] for class_ in row.inventories})
                if name in used else row for name, row in self.rows.items()}
        devices = tuple(
            replace(device, blocked=ELSEWHERE.about(device.id)) if device.id in gone else
            replace(device, blocked=device.blocked or _exhausted(device, left)) if device.takes else device
            for device in self.devices)
        taken = {cpu for cpus in choice.cpus.values() for cpu in cpus}
        cells = tuple(cell.without(taken, choice.pins.get(cell.id, 0)) for cell in self.cells)
        return replace(self, devices=devices, rows=rows, cells=cells, counters=left)


@dataclass(frozen=True, slots=True)
class AssignedPciDevice:
    """One device for one of a request's groups."""

    request: AliasRequest
    index: int
    device: PciDevice


@dataclass(frozen=True, slots=True)
class PciAllocation:
    """What a VM gets on a host."""

    host: str
    given: tuple[AssignedPciDevice, ...] = ()
    cells: tuple[int, ...] = ()  # of the host, on which the guest's lie; empty without a topology
    pins: Mapping[int, int] = field(default_factory=dict)  # cell -> dedicated CPUs
    cpus: Mapping[int, Sequence[int]] = field(default_factory=dict)  # cell -> which; empty: the host does not tell its CPUs


@dataclass(frozen=True, slots=True)
class PciRejection:
    """Why a host cannot give what a flavor asks for."""

    rejection: Rejection


# -- what is published and held becomes hosts


@dataclass(frozen=True, slots=True)
class PublishedHost:
    """What a host offers to flavors: a view of its NodeDevices with its providers and NUMA cells; with a page it is a
    `HostState`."""

    name: str
    tree: Sequence[Provider] = ()
    devices: Sequence[PublishedDevice] = ()  # of our driver
    counters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cells: Sequence[NumaCell] = ()  # with all CPUs that are for guests

    @classmethod
    def of(cls, site: NodeDevices, tree: Sequence[Provider] = (), cells: Sequence[NumaCell] = ()) -> PublishedHost:
        """Of what a node can reach, the devices of its own pool."""
        own = (DRIVER, site.name)
        devices = [device for device in site.devices if (device.id.driver, device.id.pool) == own]
        counters = {name: {counter: quantity_text(amount) for counter, amount in amounts.items()}
                    for pool in site.pools if pool.id == own for name, amounts in pool.counters.items()}
        return cls(site.name, tree, devices, counters, cells)

    def at(self, page: Page) -> HostState:
        """The host at the moment of a page."""
        provider_of = {device: provider.name for provider in self.tree for device in provider.devices}
        unavailable = {record.device: rejection.out_of_service(state, record)
                       for state in reversed(OUT_OF_SERVICE_STATES) for record in page.records(state)}
        found = [_device(device, provider_of) for device in self.devices]
        devices = [device for device in found if device is not None]
        left = {name: dict(amounts) for name, amounts in self.counters.items()}
        for device in devices:
            if page.on(device.id):
                for name, amounts in device.takes.items():
                    for counter, amount in amounts.items():
                        rest = quantity.parse(left.get(name, {}).get(counter, "0")) - quantity.parse(amount)
                        left.setdefault(name, {})[counter] = str(rest)

        def blocked(device: PciDevice) -> Rejection | None:
            for booking in page.on(device.id):
                return rejection.held(booking)
            return unavailable.get(device.id) or device.blocked or _exhausted(device, left)

        used: dict[int, int] = defaultdict(int)
        taken = {cpu for booking in page.bookings for cpu in booking.cpus}
        for booking in page.bookings:
            for cell, count in (booking.amount.get("cells") or {}).items():
                used[int(cell)] += int(count)
        return HostState(
            self.name, tuple(sorted((replace(device, blocked=blocked(device)) for device in devices),
                                    key=lambda device: pci.order(device.address))),
            {row.provider.name: row for row in placement_view.rows(self.tree, page)},
            tuple(cell.without(taken, used[cell.id]) for cell in self.cells), left)


def _device(device: PublishedDevice, provider_of: Mapping[str, str]) -> PciDevice | None:
    """A published PCI function; None for what is none (a mediated device)."""
    raw = device.raw
    attributes: dict[str, Any] = {key: next(iter(value.values()), None) for key, value in (raw.get("attributes") or {}).items()}
    if attributes.get("kind") not in set(FunctionKind) or not isinstance(attributes.get(PCI_BUS_ID), str):
        return None
    tainted = [taint for taint in device.taints if taint.get("effect") in KEEPS_AWAY
               and taint["key"] not in RECORDED_ON_PAGE]  # the page records these, and sooner
    takes = {entry["counterSet"]: {name: str(each["value"]) for name, each in entry["counters"].items()}
             for entry in raw.get("consumesCounters") or ()}
    return PciDevice(
        device.id, attributes[PCI_BUS_ID], FunctionKind(attributes["kind"]), attributes.get("vendor") or "",
        attributes.get("product") or "", provider_of.get(raw["name"], ""), attributes.get(f"{slices.STANDARD}/numaNode"),
        attributes.get("liveMigratable"), bool(attributes.get("remoteManaged")),
        Rejection(RejectionCode.TAINTED, device.id, detail=taints.detail(tainted)) if tainted else None, takes)


def _exhausted(device: PciDevice, left: Mapping[str, Mapping[str, str]]) -> Rejection | None:
    """The counter that has too little left for a device."""
    for name, amounts in device.takes.items():
        for counter, amount in amounts.items():
            rest = left.get(name, {}).get(counter, "0")
            if quantity.parse(amount) > quantity.parse(rest):
                return Rejection.of(RejectionCode.COUNTER_EXHAUSTED, device.id, amount=amount, counter=counter, set=name,
                                    left=rest)
    return None
