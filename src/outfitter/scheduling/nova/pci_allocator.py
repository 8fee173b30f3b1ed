"""Chooses the host cells and devices of a VM with a flavor, or explains why there are none. Pure.

On a host the devices are limited first to what may be had at all (class, traits, ids, kind, it is free, it is not kept
back), then by the NUMA policy; so a far device with the right trait is not lost to a near one without it. All ways to choose
are looked at together (`flow.py`), and the nearest devices win. Hosts are tried in a fixed order, so the same state gives the
same answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from outfitter.api.device import DeviceId
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.cel.library import quantity
from outfitter.inventory import pci
from outfitter.inventory.pci import FunctionKind
from outfitter.scheduling.nova import min_cost_flow, numa_topology
from outfitter.scheduling.nova.alias import Spec
from outfitter.scheduling.nova.extra_specs import AliasRequest, FlavorRequest
from outfitter.scheduling.nova.host_state import (
    AssignedPciDevice,
    HostState,
    PciAllocation,
    PciDevice,
    PciRejection,
)
from outfitter.scheduling.nova.numa_topology import Seat

TYPES: Mapping[FunctionKind, str] = {
    FunctionKind.PCI: "type-PCI",
    FunctionKind.PF: "type-PF",
    FunctionKind.VF: "type-VF",
    FunctionKind.VENDOR_VF: "type-VF",
    FunctionKind.VDPA: "vdpa",
}


def matches(host: HostState, request: AliasRequest, device: PciDevice) -> bool:
    """Whether a device is what a request asks for, free or not."""
    return any(next(_mismatches(host, request, spec, device), None) is None for spec in request.specs)


def why_not(host: HostState, request: AliasRequest, device: PciDevice) -> Rejection | None:
    """Why a device is not what a request asks for, free or not; None if it is. One cause for each spec of the alias."""
    causes: list[Rejection] = []
    for spec in request.specs:
        mismatches = list(_mismatches(host, request, spec, device))
        if not mismatches:
            return None
        cause = Rejection(RejectionCode.ALIAS_MISMATCH, device.id, detail={
            "alias": request.alias, **mismatches[0], "failed": _distance(spec, device, mismatches)})
        causes += [cause] if cause not in causes else []
    if len(causes) == 1:
        return causes[0]
    nearest = min(cause["failed"] for cause in causes)
    return Rejection(RejectionCode.ALIAS_MISMATCH, device.id, detail={"alias": request.alias, "failed": nearest},
                     causes=tuple(causes))


def mismatch_count(host: HostState, request: AliasRequest, device: PciDevice) -> int:
    """How far a device is from what a request asks for: of the spec that it is nearest to."""
    return min(_distance(spec, device, list(_mismatches(host, request, spec, device))) for spec in request.specs)


def _distance(spec: Spec, device: PciDevice, mismatches: Sequence[object]) -> int:
    """Another product of the vendor is nearer than a device of another vendor."""
    return len(mismatches) + (spec.vendor not in (None, device.vendor))


def _mismatches(host: HostState, request: AliasRequest, spec: Spec, device: PciDevice) -> Iterator[Mapping[str, object]]:
    """What of an alias' spec is not true of a device: the field, what the device has and what is wanted."""
    if request.in_placement:
        row = host.rows.get(device.provider)
        if row is None:
            yield {"field": "provider"}
        if row is None or spec.resource_class not in row.inventories:
            yield {"field": "resource_class", "has": tuple(row.inventories) if row else (), "wanted": spec.resource_class}
        if lacking := spec.traits.lacks(row.provider.traits if row else frozenset()):
            yield {"field": "traits", "lacks": tuple(lacking)}
    if spec.vendor not in (None, device.vendor) or spec.product not in (None, device.product):
        yield {"field": "ids", "has": f"{device.vendor}:{device.product}",
               "wanted": f"{spec.vendor or '*'}:{spec.product or '*'}"}
    if device.kind is FunctionKind.VDPA:
        yield {"field": "ports", "has": "a vdpa device"}
    if spec.device_type is None and device.kind is FunctionKind.PF:
        yield {"field": "device_type", "has": TYPES[device.kind], "wanted": None}
    if spec.device_type not in (None, TYPES[device.kind]):
        yield {"field": "device_type", "has": TYPES[device.kind], "wanted": spec.device_type}
    if device.remote_managed:
        yield {"field": "ports", "has": "managed remotely"}
    if spec.live_migratable is not None and device.live_migratable is not spec.live_migratable:
        yield {"field": "live_migratable", "has": device.live_migratable, "wanted": spec.live_migratable}


def choose(host: HostState, ask: FlavorRequest) -> PciAllocation | PciRejection:
    """Everything that is asked for, on one host, or why not."""
    if ask.guest.spread:
        return _fewest_cells(host, ask)
    requests = [request for request in ask.requests if request.count]
    fits = [frozenset(device.id for device in host.devices if not device.blocked and matches(host, request, device))
            for request in requests]
    if short := [(request, len(found)) for request, found in zip(requests, fits, strict=True) if len(found) < request.count]:
        # One that no device matches says more than one whose devices others have.
        request, free = next((one for one in short if not one[1] and not _any_matches(host, one[0])), short[0])
        return _too_few(host, request, free)
    chooser = _Chooser(host, ask, requests, fits)
    anywhere = chooser.solve(None)
    if anywhere is None:  # no cell could make it better
        return chooser.together()
    return chooser.choice(anywhere, None) if ask.guest.cells is None else chooser.seated()


def _fewest_cells(host: HostState, ask: FlavorRequest) -> PciAllocation | PciRejection:
    """On one cell, else on two, and so on; those that are too few for sure are not tried."""
    verdict: PciAllocation | PciRejection = PciRejection(Rejection(RejectionCode.NO_DEVICES))
    most = max(min(len(host.cells), ask.guest.vcpus), 1)
    rooms = sorted((cell.cpus for cell in host.cells), reverse=True)
    fewest = next((count for count in range(1, most) if sum(rooms[:count]) >= ask.guest.vcpus), most)
    for cells in range(fewest, most + 1):
        verdict = choose(host, replace(ask, guest=replace(ask.guest, cells=cells, spread=False)))
        if isinstance(verdict, PciAllocation):
            break
    return verdict


@dataclass(frozen=True, slots=True)
class _Solution:
    given: tuple[AssignedPciDevice, ...]
    cost: int  # 0: all devices are near


class _Chooser:
    def __init__(
        self, host: HostState, ask: FlavorRequest, requests: Sequence[AliasRequest], fits: Sequence[frozenset[DeviceId]]
    ) -> None:
        self.host, self.ask, self.requests = host, ask, requests
        self.isolate = ask.group_policy == "isolate" and any(request.in_placement for request in requests)
        kinds: dict[tuple[str, frozenset[int], int | None], list[PciDevice]] = defaultdict(list)
        for device in host.devices:
            who = frozenset(number for number, found in enumerate(fits) if device.id in found)
            if who:
                kinds[self._home(device), who, device.numa].append(device)
        self.kinds = kinds
        free: dict[str, int] = defaultdict(int)
        for (provider, _, _), devices in kinds.items():
            free[provider] += len(devices)
        rooms = {provider: min(count, host.room(provider)) if provider in host.rows else count
                 for provider, count in free.items()}
        # Whole providers are left to others where possible; with isolate those with most room first, so that the last ones
        # of several are not all on one.
        self.providers = sorted(rooms, key=lambda provider: -rooms[provider]) if self.isolate else list(rooms)
        self.rooms = {provider: min(rooms[provider], 1) if self.isolate else rooms[provider] for provider in self.providers}

    def _home(self, device: PciDevice) -> str:
        """Its provider, or itself where providers do not count."""
        return device.provider if device.provider in self.host.rows else device.id.device

    def solve(self, seat: Seat | None, without: frozenset[DeviceId] = frozenset()) -> _Solution | None:
        """The best choice for a guest on these cells."""
        place = {provider: number for number, provider in enumerate(self.providers)}
        bins, members = [], []
        for (provider, who, cell), devices in self.kinds.items():
            left = [device for device in devices if device.id not in without] if without else devices
            costs = {number: tier for number in sorted(who)
                     if (tier := 0 if seat is None else seat.tier(self.requests[number].numa_policy, cell)) is not None}
            if left and costs:
                bins.append(min_cost_flow.Bin(place[provider], len(left), costs))
                members.append(left)
        counts = [request.count for request in self.requests]
        for number, count in enumerate(counts):  # most seats are refused here, where it costs little
            if sum(each.size for each in bins if number in each.costs) < count:
                return None
        amounts, total, cost = min_cost_flow.assign(counts, bins, [self.rooms[provider] for provider in self.providers])
        if total < sum(counts):
            return None
        given = tuple(self._devices(amounts, members))
        if clash := self._clash([each.device for each in given]):
            # A card and its own parts: one of the two, whichever leaves a way.
            card, parts = clash
            found = [self.solve(seat, without | some) for some in ({card}, parts)]
            return min((one for one in found if one is not None), key=lambda one: one.cost, default=None)
        return _Solution(given, cost)

    def _devices(
        self, amounts: Sequence[Mapping[int, int]], members: Sequence[Sequence[PciDevice]]
    ) -> Iterator[AssignedPciDevice]:
        taken = [0] * len(members)
        for request, wanted in zip(self.requests, amounts, strict=True):
            mine: list[PciDevice] = []
            for number, amount in wanted.items():
                mine += members[number][taken[number]:taken[number] + amount]
                taken[number] += amount
            mine.sort(key=lambda device: pci.order(device.address))
            yield from (AssignedPciDevice(request, index, device) for index, device in enumerate(mine))

    def _clash(self, devices: Sequence[PciDevice]) -> tuple[DeviceId, frozenset[DeviceId]] | None:
        """Of a counter that does not suffice: who takes most of it, and the others."""
        takers: dict[tuple[str, str], list[PciDevice]] = defaultdict(list)
        for device in devices:
            for name, amounts in device.takes.items():
                for counter in amounts:
                    takers[name, counter].append(device)
        for (name, counter), some in takers.items():
            amounts_of = {device.id: quantity.parse(device.takes[name][counter]) for device in some}
            if sum(amounts_of.values(), quantity.from_int(0)) > quantity.parse(self.host.counters[name][counter]):
                most = max(amounts_of, key=lambda each: amounts_of[each])
                return most, frozenset(amounts_of) - {most}
        return None

    def seated(self) -> PciAllocation | PciRejection:
        """On the cells with the nearest devices; of these the first."""
        host, guest = self.host, self.ask.guest
        free: dict[int, int] = defaultdict(int)
        for device in host.devices:
            if device.numa is not None and not device.blocked:
                free[device.numa] += 1
        best: tuple[_Solution, Seat] | None = None
        tried = 0
        seats = (
            numa_topology.seats(host.cells, guest, free, wants_devices=bool(self.requests))
            if host.cells
            else [Seat(frozenset())]
        )
        for seat in seats:
            tried += 1
            solution = self.solve(seat)
            if solution is not None and (best is None or solution.cost < best[0].cost):
                best = solution, seat
                if not solution.cost:
                    break
        if best is not None:
            return self.choice(*best)
        return self._no_seat(tried)

    def choice(self, solution: _Solution, seat: Seat | None) -> PciAllocation:
        if seat is None or not seat.cells:
            return PciAllocation(self.host.name, solution.given)
        pins = numa_topology.pins(self.host.cells, seat, self.ask.guest)
        return PciAllocation(
            self.host.name, solution.given, tuple(sorted(seat.cells)), pins, numa_topology.named(self.host.cells, pins)
        )

    # -- why not

    def together(self) -> PciRejection:
        """Each request alone could be met."""
        return PciRejection(Rejection.of(
            RejectionCode.TOO_FEW_TOGETHER, wanted=sum(request.count for request in self.requests),
            aliases=tuple(f"{request.alias}:{request.count}" for request in self.requests), isolate=self.isolate,
            rooms={provider: self.rooms[provider] for provider in self.providers}))

    def _no_seat(self, tried: int) -> PciRejection:
        host, guest = self.host, self.ask.guest
        cells = {cell.id: cell.cpus for cell in host.cells}
        if not tried:
            return PciRejection(Rejection.of(RejectionCode.NUMA_TOO_FEW_CPUS, parts=tuple(numa_topology.share(guest)),
                                             pinned=guest.pinned, wanted=guest.cells, cells=cells))
        return PciRejection(Rejection.of(
            RejectionCode.NUMA_TOO_FAR, cells=cells,
            policies=tuple(f"{request.alias} {request.numa_policy}" for request in self.requests)))


def _any_matches(host: HostState, request: AliasRequest) -> bool:
    return any(matches(host, request, device) for device in host.devices)


def _too_few(host: HostState, request: AliasRequest, free: int) -> PciRejection:
    like = [device for device in host.devices if matches(host, request, device)]
    if like:
        short = Rejection.of(RejectionCode.TOO_FEW_FREE, alias=request.alias, wanted=request.count, match=len(like), free=free)
        rules = sorted({rule for device in like if device.blocked is not None
                        for rule in device.blocked.detail.get("rules") or ()})
        return PciRejection(short.with_detail(rules=tuple(rules)) if rules else short)
    if host.devices:
        return PciRejection(Rejection.of(RejectionCode.NO_MATCH, devices=len(host.devices), alias=request.alias))
    return PciRejection(Rejection(RejectionCode.NO_DEVICES))
