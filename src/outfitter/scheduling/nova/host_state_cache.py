"""Host states, kept up to date by events, and what a VM with a flavor gets on a host.

A host's state is a view of its NodeDevices, provider tree, inventory and page. Whether its node takes new pods is decided
elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outfitter.api import providers
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Page
from outfitter.api.rejection import UNLIKE, Rejection, RejectionCode
from outfitter.inventory import numa_cells
from outfitter.scheduling.dra.node_devices import NodeDevices
from outfitter.scheduling.nova import flavor_claim, numa_topology, pci_allocator
from outfitter.scheduling.nova.extra_specs import AliasRequest, FlavorRequest
from outfitter.scheduling.nova.host_state import HostState, PciAllocation, PciDevice, PublishedHost
from outfitter.scheduling.nova.numa_topology import NumaCell, Seat

NOTHING: Mapping[DeviceId, Rejection] = {}


@dataclass(frozen=True, slots=True)
class Unmet:
    """Why a host cannot give what a flavor asks for; read as the rejection of a search by selectors is."""

    rejection: Rejection
    host: HostState
    ask: FlavorRequest

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """Of the host as a whole: every alias that no device matches, else what was found first."""
        if self.rejection.code is not RejectionCode.NO_MATCH:
            return (self.rejection,)
        return tuple(Rejection.of(RejectionCode.NO_MATCH, devices=len(self.host.devices), alias=request.alias)
                     for request in self.ask.requests if request.count
                     and not any(pci_allocator.matches(self.host, request, device) for device in self.host.devices))

    @property
    def lacking(self) -> tuple[int, int]:
        """How many devices are missing: those that no device matches, and those of which none is free."""
        unmatched = unfree = 0
        for request in self.ask.requests:
            like = [device for device in self.host.devices if pci_allocator.matches(self.host, request, device)]
            unmatched += max(request.count - len(like), 0)
            unfree += max(request.count - sum(not device.blocked for device in like), 0)
        return unmatched, unfree

    @property
    def obstacles(self) -> tuple[Rejection, ...]:
        """What is wrong with each device, for each alias."""
        guest, cells = self.ask.guest, self.host.cells
        seats = [] if guest.cells is None or guest.spread else list(
            numa_topology.seats(cells, guest, {}, wants_devices=True))
        return tuple(dict.fromkeys(
            rejection.with_detail(request=request.request_id, alias=request.alias) for request in self.ask.requests
            for device in self.host.devices if (rejection := self._obstacle(request, device, seats)) is not None))

    @property
    def blocking(self) -> tuple[Rejection, ...]:
        """The same of those devices alone that are what is asked for."""
        return tuple(rejection for rejection in self.obstacles if rejection.code not in UNLIKE)

    def _obstacle(self, request: AliasRequest, device: PciDevice, seats: Sequence[Seat]) -> Rejection | None:
        """`seats`: the NUMA cells that have the CPUs; a holder whose device is near none of them is not in the way."""
        if (mismatch := pci_allocator.why_not(self.host, request, device)) is not None:
            return mismatch
        if device.blocked is not None:
            far = seats and all(seat.tier(request.numa_policy, device.numa) is None for seat in seats)
            if far and device.blocked.code is RejectionCode.HELD:
                return replace(device.blocked, code=RejectionCode.NUMA_TOO_FAR, detail={"numa": device.numa})
            return device.blocked
        if self.ask.guest.cells is None:
            return None
        return Rejection.of(RejectionCode.NUMA_TOO_FAR, device.id, numa=device.numa)


class HostStateCache:
    """Fed with provider trees and inventories by name; None takes one out. Devices are those of the NodeDevices that it is
    asked with, and a host is put together again only when one of these or its page changed."""

    def __init__(self) -> None:
        self._trees: dict[str, Object] = {}
        self._inventories: dict[str, Object] = {}
        self._published: dict[str, tuple[NodeDevices, PublishedHost]] = {}
        self._hosts: dict[str, tuple[PublishedHost, Page, HostState]] = {}

    @classmethod
    def of(cls, trees: Iterable[Object], inventories: Iterable[Object]) -> HostStateCache:
        """All at once."""
        made = cls()
        for put, objects in ((made.put_tree, trees), (made.put_inventory, inventories)):
            for obj in objects:
                put(obj["metadata"]["name"], obj)
        return made

    def put_tree(self, name: str, obj: Object | None) -> None:
        self._put(self._trees, name, obj)

    def put_inventory(self, name: str, obj: Object | None) -> None:
        self._put(self._inventories, name, obj)

    def _put(self, table: dict[str, Object], name: str, obj: Object | None) -> None:
        if obj is None:
            table.pop(name, None)
        else:
            table[name] = obj
        self._published.pop(name, None)

    def published(self, site: NodeDevices) -> PublishedHost:
        known = self._published.get(site.name)
        if known is None or known[0] is not site:
            cells = [NumaCell(each.id, each.count, each.socket, each.ids)
                     for each in numa_cells.read(self._inventories.get(site.name) or {})]
            known = self._published[site.name] = site, PublishedHost.of(
                site, providers.read(self._trees.get(site.name)), cells)
        return known[1]

    def host(self, site: NodeDevices, page: Page) -> HostState:
        """A host at the moment of a page."""
        offer, known = self.published(site), self._hosts.get(site.name)
        if known is None or known[0] is not offer or known[1] is not page:
            known = self._hosts[site.name] = (offer, page, offer.at(page))
        return known[2]

    def give(
        self,
        site: NodeDevices,
        page: Page,
        wanted: Sequence[tuple[Mapping[str, Any], FlavorRequest]],
        barred: Mapping[DeviceId, Rejection] = NOTHING,
    ) -> list[Object] | Unmet:
        """An allocation for each claim on a host, all or none. `barred`: devices that they cannot have, and why."""
        host = self.host(site, page)
        if barred:
            host = replace(host, devices=tuple(replace(one, blocked=one.blocked or barred.get(one.id))
                                               for one in host.devices))
        out: list[Object] = []
        for claim, ask in wanted:
            verdict = pci_allocator.choose(host, ask)
            if not isinstance(verdict, PciAllocation):
                return Unmet(verdict.rejection, host, ask)
            host = host.taking(verdict)
            out.append(flavor_claim.allocation(claim, verdict))
        return out


def has_incomplete_traits(site: NodeDevices) -> bool:
    """Whether selectors may leave out a device of this host that would do: it has traits that its attributes do not contain."""
    return bool(site.remembered("traitsIncomplete", lambda: any(
        "traitsIncomplete" in (device.raw.get("attributes") or {}) for device in site.devices)))
