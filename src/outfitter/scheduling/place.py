"""A host for a pod and devices for its claims, or why it waits: the short sentence first, then what stands in the way of each
host and each device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api import allocation, machine
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.errors import Invalid, Unsatisfiable
from outfitter.scheduling import allocate as allocator
from outfitter.scheduling.asks import Classes, Demand, demand
from outfitter.scheduling.fit import Need, Rooms, Used
from outfitter.scheduling.index import Index
from outfitter.scheduling.plugins import NOBODY, GivenDevice, Plugins
from outfitter.scheduling.score import Offer, Spot, rank, spot

Claims = Callable[[str, str], Object | None]  # namespace, name -> ResourceClaim
TOLD = 3  # hosts whose reasons stand in the one sentence
LOOKED_AT = 8  # hosts that can take a pod and are compared
NOWHERE: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a host cannot take a pod: a sentence, and one more for each device that was looked at."""

    summary: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing was chosen. `summary` is the one sentence; `hosts` has a refusal for each host that was asked why."""

    summary: str
    hosts: tuple[tuple[str, Refusal], ...] = ()

    def lines(self) -> list[str]:
        """The long answer, for people: what each host says stands below, so the first line need not say it too."""
        out = [f"0/{len(self.hosts)} hosts are available" if self.hosts else self.summary]
        for host, refusal in self.hosts:
            out.append(f"  {host}: {refusal.summary}")
            out += [f"    {detail}" for detail in refusal.details]
        return out


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod goes and what its claims get there."""

    host: str
    claims: tuple[tuple[Object, Mapping[str, Any]], ...]  # claim -> its v1 AllocationResult
    why: str = ""  # it was this host, for people


def results(given: Mapping[str, Any]) -> list[tuple[DeviceId, Mapping[str, Any]]]:
    """The devices of an allocation."""
    found = (given.get("devices") or {}).get("results") or ()
    return [(DeviceId(one["driver"], one["pool"], one["device"]), one) for one in found]


def place(
    pod: Object, claims: Claims, classes: Classes, index: Index, used: Used, *, rooms: Rooms | None = None,
    plugins: Plugins = NOBODY, avoid: Mapping[str, str] = NOWHERE, everybody: bool = False,
) -> Placement | Waiting:
    """A host for a pod and devices for its claims that have none, or the reason why it waits; with `everybody` the reason of
    each host, which takes its time. `used`: what other pods take of the hosts; `rooms` keeps what was read of hosts;
    `avoid`: hosts that are not to be tried again, and why."""
    wanted: list[Object] = []
    fixed: set[str] | None = None  # the hosts that claims allocated earlier leave
    for name, claim_name in machine.claim_names(pod):
        claim = claims(pod["metadata"]["namespace"], claim_name) if claim_name else None
        if claim is None:
            return Waiting(_no_claim(pod, name, claim_name))
        if claim["metadata"].get("deletionTimestamp"):
            return Waiting(f"claim {claim_name} is being deleted")
        if any(claim is earlier for earlier in wanted):
            continue  # two entries of the pod name the same claim
        given = (claim.get("status") or {}).get("allocation")
        if given:
            hosts = allocation.hosts(given)
            fixed = hosts if fixed is None else fixed & hosts
            if users := _strangers(claim, pod):
                return Waiting(f"claim {claim_name} is in use by {', '.join(users)}")
            continue
        wanted.append(claim)
    try:
        demands = [demand(claim, classes, index.features) for claim in wanted]
        need = Need.of(pod)
    except Invalid as error:
        return Waiting(error.message)
    placer = _Placer(pod=pod, wanted=wanted, demands=demands, fixed=fixed, need=need, classes=classes, index=index, used=used,
                     rooms=rooms or Rooms(), plugins=plugins, avoid=avoid)
    return placer.place() or placer.waiting(everybody)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placer:
    pod: Object
    wanted: Sequence[Object]  # claims that have no devices yet
    demands: Sequence[Demand]  # the same, compiled
    fixed: set[str] | None
    need: Need
    classes: Classes
    index: Index
    used: Used
    rooms: Rooms
    plugins: Plugins
    avoid: Mapping[str, str]

    def place(self) -> Placement | None:
        """The best of the first hosts that can take the pod."""
        found: dict[str, tuple[Offer, allocator.Allocated]] = {}
        extra: dict[str, tuple[float, Sequence[str]]] = {}
        for row in self.index.candidates(self.demands):
            host = self.index.names[row]
            if self._unfit(host) is not None:
                continue
            given = self._allocate(host)
            if not isinstance(given, allocator.Allocated):
                continue
            devices, node = list(self._given(row, given)), self.index.node(host)
            if self.plugins.refusals(self.pod, node, devices):
                continue
            if self.plugins.scorers:
                points = self.plugins.points(self.pod, node, devices)
                extra[host] = points.value, points.said
            found[host] = self._offer(row, devices), given
            if len(found) == LOOKED_AT:
                break
        if not found:
            return None
        best = rank((offer for offer, _ in found.values()), extra=extra)[0]
        return Placement(best.host, tuple(zip(self.wanted, found[best.host][1].allocations, strict=True)), best.why)

    def waiting(self, everybody: bool) -> Waiting:
        names = self.index.names
        refusals = [(host, self._refusal(row, host)) for row, host in enumerate(names if everybody else names[:TOLD])]
        return Waiting(_summary(refusals, len(names)), tuple(refusals))

    def _unfit(self, host: str) -> Refusal | None:
        """Why a host cannot take the pod whatever devices it has."""
        if host in self.avoid:
            return Refusal(self.avoid[host])
        if self.fixed is not None and host not in self.fixed:
            return Refusal(f"the devices that the pod's claims hold are on {', '.join(sorted(self.fixed)) or 'no common host'}")
        reasons = self.need.unfit(self.rooms.at(self.index.node(host)), self.used)
        return Refusal("; ".join(reasons)) if reasons else None

    def _allocate(self, host: str) -> allocator.Allocated | allocator.Refusal | Refusal:
        try:
            return allocator.allocate(self.wanted, node=self.index.node(host), pools=self.index.pools, classes=self.classes,
                                      held=self.index.held, features=self.index.features)
        except Unsatisfiable as error:  # a selector that has no answer for a device of this host
            return Refusal(error.message)

    def _given(self, row: int, given: allocator.Allocated) -> Iterator[GivenDevice]:
        for one in given.allocations:
            for name, result in results(one):
                device = self.index.device(row, name)
                raw = device.raw if device is not None else {}
                numa, root = spot(raw)
                said = {key: next(iter(value.values()), None) for key, value in (raw.get("attributes") or {}).items()}
                yield GivenDevice(name.driver, name.pool, name.device, result["request"], numa, root, said)

    def _offer(self, row: int, devices: Sequence[GivenDevice]) -> Offer:
        host = self.index.names[row]
        room = self.rooms.at(self.index.node(host))
        return Offer(host, tuple(Spot(one.numa, one.pcie_root) for one in devices),
                     Counter(spot(device.raw) for device in self.index.open(row, self.demands)),
                     room.share(self.used, "cpu"), room.share(self.used, "memory"))

    def _refusal(self, row: int, host: str) -> Refusal:
        if unfit := self._unfit(host):
            return unfit
        found = self._allocate(host)
        if isinstance(found, allocator.Allocated):
            minds = self.plugins.refusals(self.pod, self.index.node(host), list(self._given(row, found)))
            return Refusal("; ".join(minds) or "it could take the pod by now")
        ordered = sorted(found.details, key=lambda text: "held by" not in text)
        return Refusal(found.summary, tuple(ordered))


def _strangers(claim: Object, pod: Object) -> list[str]:
    """Who uses a claim besides this pod, when it may not be shared by pods of ours: a machine's devices are its own."""
    return [f"{user.get('resource', 'pods')[:-1]}/{user['name']}" for user in claim["status"].get("reservedFor") or ()
            if user.get("resource", "pods") == "pods" and user.get("uid") != pod["metadata"].get("uid")]


def _no_claim(pod: Object, name: str, claim_name: str | None) -> str:
    if claim_name:
        return f'claim "{claim_name}" (resourceClaims entry {name}) does not exist'
    entry = next(entry for entry in pod["spec"]["resourceClaims"] if entry["name"] == name)
    return f'claim {name} has not been made yet: is there a ResourceClaimTemplate "{entry.get("resourceClaimTemplateName")}"?'


def _summary(refusals: Sequence[tuple[str, Refusal]], hosts: int) -> str:
    if not hosts:
        return "0/0 hosts are available: there is no host"
    first = "; ".join(f"{host}: {_short(refusal)}" for host, refusal in refusals[:TOLD])
    more = f"; and {hosts - TOLD} more" if hosts > TOLD else ""
    return f"0/{hosts} hosts are available: {first}{more}"


def _short(refusal: Refusal) -> str:
    holders = [detail for detail in refusal.details if "held by" in detail]
    shown = f" ({'; '.join(holders[:2])}{'; ...' if len(holders) > 2 else ''})" if holders else ""
    return refusal.summary + shown
