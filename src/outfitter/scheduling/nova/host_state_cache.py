"""What hosts offer to machines with flavors, kept up to date by events, and what such a machine gets on one of them.

A host is put together from its slices, provider tree, inventory and page when somebody asks, and again only when one of these
changed. Whether its node takes anybody is asked elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outfitter.api import providers
from outfitter.api.device import DRIVER, DeviceId
from outfitter.api.kinds import Object
from outfitter.api.page import MARKS, Page
from outfitter.inventory import numa_cells
from outfitter.scheduling.explain.rejections import DeviceObstacle
from outfitter.scheduling.nova import flavor_claim, host_state, pci_allocator
from outfitter.scheduling.nova.extra_specs import AliasRequest, FlavorRequest
from outfitter.scheduling.nova.host_state import HostState, PciAllocation, PciDevice, PublishedHost
from outfitter.scheduling.nova.numa_topology import NumaCell

NOTHING: Mapping[DeviceId, str] = {}
# The first word of why a device is not to be had -> the word for programs; any other says that somebody has it.
CODES: Mapping[str, str] = {**{word: word for word in (*MARKS, "tainted")}, "needs": "counters"}


@dataclass(frozen=True, slots=True)
class Unmet:
    """Why a host cannot give what a flavor asks for; told as the refusal of a search by selectors is."""

    summary: str
    host: HostState
    ask: FlavorRequest

    @property
    def lacking(self) -> tuple[int, int]:
        """How many devices are missing: those that no device matches, and those of which none is free."""
        unmatched = unfree = 0
        for request in self.ask.requests:
            like = [device for device in self.host.devices if pci_allocator.why_not(self.host, request, device) is None]
            unmatched += max(request.count - len(like), 0)
            unfree += max(request.count - sum(not device.blocked for device in like), 0)
        return unmatched, unfree

    @property
    def obstacles(self) -> tuple[DeviceObstacle, ...]:
        """What is wrong with each device, for each alias."""
        return tuple(dict.fromkeys(
            DeviceObstacle(device.id.device, request.request_id, *found) for request in self.ask.requests
            for device in self.host.devices if (found := self._obstacle(request, device)) is not None))

    @property
    def blocking(self) -> tuple[DeviceObstacle, ...]:
        """The same of those devices alone that are what is asked for."""
        return tuple(one for one in self.obstacles if one.code != "selector")

    def _obstacle(self, request: AliasRequest, device: PciDevice) -> tuple[str, str] | None:
        if why := pci_allocator.why_not(self.host, request, device):
            return "selector", why
        if device.blocked:
            said = device.blocked.removeprefix("is ")
            return CODES.get(said.partition(" ")[0], "held"), said
        if self.ask.guest.cells is None:
            return None
        return "numa", f"is on {'an unknown NUMA cell' if device.numa is None else f'NUMA cell {device.numa}'}"


class HostStateCache:
    """Fed with objects by name; None takes one out."""

    def __init__(self) -> None:
        self._slices: dict[str, dict[str, Object]] = {}  # host -> slices by name
        self._owners: dict[str, str] = {}  # slice -> host
        self._trees: dict[str, Object] = {}
        self._inventories: dict[str, Object] = {}
        self._published: dict[str, PublishedHost] = {}
        self._hosts: dict[str, tuple[PublishedHost, Page, HostState]] = {}
        self._unsaid: dict[str, bool] = {}  # host -> some device has traits that selectors do not see

    @classmethod
    def of(cls, slices: Iterable[Object], trees: Iterable[Object], inventories: Iterable[Object]) -> HostStateCache:
        """All at once."""
        made = cls()
        for put, objects in ((made.put_slice, slices), (made.put_tree, trees), (made.put_inventory, inventories)):
            for obj in objects:
                put(obj["metadata"]["name"], obj)
        return made

    def put_tree(self, name: str, obj: Object | None) -> None:
        self._put(self._trees, name, obj)

    def put_inventory(self, name: str, obj: Object | None) -> None:
        self._put(self._inventories, name, obj)

    def put_slice(self, name: str, obj: Object | None) -> None:
        if (host := self._owners.pop(name, None)) is not None:
            self._slices[host].pop(name, None)
            self._forget(host)
        if obj is not None and obj["spec"]["driver"] == DRIVER and obj["spec"].get("nodeName"):
            host = self._owners[name] = obj["spec"]["nodeName"]
            self._slices.setdefault(host, {})[name] = obj
            self._forget(host)

    def _put(self, table: dict[str, Object], name: str, obj: Object | None) -> None:
        if obj is None:
            table.pop(name, None)
        else:
            table[name] = obj
        self._forget(name)

    def _forget(self, host: str) -> None:
        self._published.pop(host, None)
        self._unsaid.pop(host, None)

    def published(self, name: str) -> PublishedHost:
        if name not in self._published:
            told = numa_cells.read(self._inventories.get(name) or {})
            own = [NumaCell(each.id, each.count, each.socket, each.ids) for each in told]
            (found,) = host_state.published([{"metadata": {"name": name}}], {name: providers.read(self._trees.get(name))},
                                       (self._slices.get(name) or {}).values(), {name: own})
            self._published[name] = found
        return self._published[name]

    def host(self, name: str, page: Page) -> HostState:
        """A host at the moment of a page."""
        offer, known = self.published(name), self._hosts.get(name)
        if known is None or known[0] is not offer or known[1] is not page:
            known = self._hosts[name] = (offer, page, offer.at(page))
        return known[2]

    def unsaid(self, name: str) -> bool:
        """Whether selectors may leave out a device of this host that would do."""
        if name not in self._unsaid:
            self._unsaid[name] = any("unsaid" in (device.get("attributes") or {}) for part in
                                     (self._slices.get(name) or {}).values() for device in part["spec"].get("devices") or ())
        return self._unsaid[name]

    def give(
        self,
        name: str,
        page: Page,
        wanted: Sequence[tuple[Mapping[str, Any], FlavorRequest]],
        barred: Mapping[DeviceId, str] = NOTHING,
    ) -> list[Object] | Unmet:
        """An allocation for each claim on a host, all or none. `barred`: devices that are kept from them, and why."""
        host = self.host(name, page)
        if barred:
            host = replace(host, devices=tuple(replace(one, blocked=one.blocked or barred.get(one.id, ""))
                                               for one in host.devices))
        out: list[Object] = []
        for claim, ask in wanted:
            verdict = pci_allocator.choose(host, ask)
            if not isinstance(verdict, PciAllocation):
                return Unmet(verdict.summary, host, ask)
            host = host.taking(verdict)
            out.append(flavor_claim.allocation(claim, verdict))
        return out
