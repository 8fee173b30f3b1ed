"""A host for a pod and devices for its claims, or why it waits: rejections of the pod, of each host and of each device.

Values in, values out; `explain.summary` and `explain.grouping` render them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outfitter.api import allocation
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, pod_claims
from outfitter.api.rejection import Rejection, RejectionCode, of_error
from outfitter.errors import Invalid, Unreadable, Unsatisfiable
from outfitter.scheduling.claim_users import of_another, other_users
from outfitter.scheduling.dra import (
    allocator,
    assigned_devices,
    binding_conditions,
    bounds,
    extended_resources,
    prioritized_list,
)
from outfitter.scheduling.dra.claim_request import CompiledClaim, compile_claim
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.dra.search import EXPLAIN_EFFORT, SearchEffort
from outfitter.scheduling.filter import node_affinity
from outfitter.scheduling.filter import taints as taints_filter
from outfitter.scheduling.filter.node_fit import NodeInfoCache, PodRequirements
from outfitter.scheduling.filter.node_usage import NodeUsage, nominated
from outfitter.scheduling.filter.taints import untolerated_taint
from outfitter.scheduling.nova import flavor_claim
from outfitter.scheduling.nova.extra_specs import FlavorRequest
from outfitter.scheduling.nova.host_state_cache import HostStateCache, Unmet, has_incomplete_traits
from outfitter.scheduling.placement import HostRejection, Placement, Waiting, results
from outfitter.scheduling.plugins import NO_PLUGINS, GivenDevice, SchedulerPlugins
from outfitter.scheduling.score import STEP, HostCandidate, Spot, rank, spot
from outfitter.scheduling.snapshot import SchedulingSnapshot

NAMED_HOSTS = 3  # hosts whose reasons are in the one sentence
LOOKED_AT = 8  # hosts that can take a pod and are compared
MOST_LOOKED_AT = 100  # the same, while a better alternative of firstAvailable may be on another host
NOWHERE: Mapping[str, Rejection] = {}
SAME_VM = Rejection.of(RejectionCode.HELD, same="the flavor")  # a device that the same VM gets by its flavor
FEWEST = "of those that can take it, it has the fewest free devices"  # why a VM with a flavor goes to a host


def place(
    snapshot: SchedulingSnapshot, pod: Object, *, avoid: Mapping[str, Rejection] = NOWHERE, every_host: bool = False
) -> Placement | Waiting:
    """A host for a pod and devices for its claims that have none, or the reason why it waits; with `every_host` the reason of
    each host, which takes its time. `avoid`: hosts that are not tried, and why."""
    try:
        verdict = _place(snapshot, pod, avoid, every_host)
    except Unreadable as error:  # a claim or class of it
        verdict = Waiting((of_error(error, RejectionCode.OBJECT_UNREADABLE),))
    if isinstance(verdict, Waiting) and (unreadable := snapshot.devices.unreadable):
        said = [each for _, host in verdict.hosts for each in host.rejections]
        return replace(verdict, skipped=tuple(unreadable[key] for key in sorted(unreadable) if unreadable[key] not in said))
    return verdict


def _place(
    snapshot: SchedulingSnapshot, pod: Object, avoid: Mapping[str, Rejection], every_host: bool
) -> Placement | Waiting:
    wanted: list[Object] = []
    fixed: set[str] | None = None  # the hosts that claims allocated earlier leave
    given_already = False  # extended resources, by a claim that was made earlier
    index = snapshot.devices
    for name, claim_name in pod_claims.claim_names(pod):
        claim = snapshot.claim(pod["metadata"]["namespace"], claim_name) if claim_name else None
        if name == device_refs.EXTENDED:
            if claim is None:
                continue  # it went, and another one is made
            given_already = True
        if claim is None:
            return Waiting((_no_claim(pod, name, claim_name),))
        if claim["metadata"].get("deletionTimestamp"):
            return Waiting((Rejection.of(RejectionCode.CLAIM_DELETING, claim=claim_name),))
        if _by_template(pod, name) and (whose := of_another(claim, pod)):
            return Waiting((whose,))
        if unnamed := pod_claims.missing_request(pod, name, claim):
            return Waiting((unnamed,))  # before anything is booked that the VM could never start with
        if any(claim is earlier for earlier in wanted):
            continue  # two entries of the pod name the same claim
        given = (claim.get("status") or {}).get("allocation")
        if given:
            there = _reached(given, index)
            fixed = there if fixed is None else fixed & there
            if users := other_users(claim, pod):
                return Waiting((Rejection.of(RejectionCode.CLAIM_IN_USE, claim=claim_name, pods=tuple(users)),))
            if out := driven_out(snapshot, given):
                return Waiting((out.with_detail(claim=claim_name),))
            if prepared := _prepared_under_another_name(given, index):
                return Waiting((prepared.with_detail(claim=claim_name),))  # its start would fail, again and again
            continue
        wanted.append(claim)
    if fixed is not None and nominated(pod) in fixed:
        fixed = {nominated(pod)}  # its devices were made ready there
    class_of = snapshot.extended_resource if index.features.extended_resources else extended_resources.nothing
    try:
        demands = [compile_claim(claim, snapshot.device_class, index.features) for claim in wanted]
        from_devices = extended_resources.names(pod, class_of)
        need = PodRequirements.of(pod, from_devices)
        flavors = [flavor_claim.read(claim) for claim in wanted]
        index.check_selector_cost(demands)
    except Invalid as error:
        return Waiting((error.rejection or Rejection.of(RejectionCode.POD_INVALID, message=error.message),))
    if not given_already and (mistakes := assigned_devices.wrong(pod, index, class_of)):
        return Waiting(tuple(mistakes))
    skipped = binding_conditions.skipped_hosts(pod, snapshot.now) if snapshot.now is not None else {}
    placer = _Placer(snapshot, pod, wanted=wanted, demands=demands, fixed=fixed, need=need, flavors=flavors,
                     avoid={**binding_conditions.skipped_host_rejections(skipped), **index.withheld_hosts, **avoid},
                     from_devices=frozenset() if given_already else from_devices,
                     preset=None if given_already else assigned_devices.hosts(pod, index, class_of))
    try:
        return placer.place() or placer.waiting(every_host)
    except Unsatisfiable as error:  # of a class that gives an extended resource
        if error.rejection is None or error.rejection.code is not RejectionCode.SELECTOR_BUDGET:
            raise
        return Waiting((error.rejection,))


def driven_out(snapshot: SchedulingSnapshot, given: Mapping[str, Any]) -> Rejection | None:
    """A device of an allocation from which its user is evicted at once, and the taint; None: there is none."""
    for device, result in results(given):
        taints = [taint for taint in snapshot.taints(device) if taint.get("effect") == "NoExecute"]
        if (taint := untolerated_taint(taints, result.get("tolerations") or (), snapshot.now)) is not None:
            return Rejection(RejectionCode.CLAIM_DEVICE_TAINTED, device, detail=taints_filter.detail([taint]))
    return None


def _prepared_under_another_name(given: Mapping[str, Any], index: DeviceIndex) -> Rejection | None:
    """A device of an allocation whose hardware another claim has in use; None: there is none, or no one host to look at."""
    host = allocation.named_host(given)
    if host not in index.hosts:
        return None
    return next((why for device, result in results(given) if not result.get("adminAccess")
                 and (why := index.prepared_under_another_name(device, host)) is not None), None)


def _reached(given: Mapping[str, Any], index: DeviceIndex) -> set[str]:
    """The hosts on which everything that a claim was given can be used."""
    if allocation.named_host(given) or not all(index.pools.roams(device.driver, device.pool) for device, _ in results(given)):
        return allocation.hosts(given)
    selector = given.get("nodeSelector")
    return {name for name in index.hosts if selector is None or node_affinity.matches(
        selector, name, index.node(name)["metadata"].get("labels") or {})}


@dataclass(frozen=True, slots=True)
class _Extra:
    """A claim for extended resources, as one host would have to serve it."""

    claim: Object
    demand: CompiledClaim
    mappings: tuple[Mapping[str, str], ...]


@dataclass(slots=True)
class _Placer:
    """The placement of one pod."""

    snapshot: SchedulingSnapshot
    pod: Object
    wanted: Sequence[Object] = field(kw_only=True)  # claims that have no devices yet
    demands: Sequence[CompiledClaim] = field(kw_only=True)  # the same, compiled
    fixed: set[str] | None = field(kw_only=True)
    need: PodRequirements = field(kw_only=True)
    avoid: Mapping[str, Rejection] = field(kw_only=True)
    from_devices: frozenset[str] = field(kw_only=True)  # extended resources that devices give where the host itself has none
    preset: set[str] | None = field(kw_only=True)  # the hosts that have the pre-assigned devices
    flavors: Sequence[FlavorRequest | None] = field(kw_only=True)  # what those of the claims ask for that are a flavor's
    index: DeviceIndex = field(init=False)
    used: NodeUsage = field(init=False)
    rooms: NodeInfoCache = field(init=False)
    roster: HostStateCache = field(init=False)
    plugins: SchedulerPlugins = field(init=False)
    _extras: dict[frozenset[str], _Extra] = field(default_factory=dict)
    _effort: SearchEffort | None = field(default_factory=SearchEffort)  # None: each host has its own

    def __post_init__(self) -> None:
        self.index, self.used, self.rooms = self.snapshot.devices, self.snapshot.usage, self.snapshot.node_infos
        self.roster, self.plugins = self.snapshot.host_states, self.snapshot.plugins

    def _extra(self, host: str) -> _Extra | None:
        """The claim for what a host does not offer itself: for each host its own, and of few kinds."""
        names = frozenset(name for name in self.from_devices if not self.rooms.at(self.index.node(host)).amounts.get(name))
        if not names:
            return None
        if names not in self._extras:
            asks = extended_resources.wanted(self.pod, names, self.snapshot.extended_resource)
            claim = extended_resources.claim(self.pod, asks)
            compiled = compile_claim(claim, self.snapshot.device_class, self.index.features)
            for request, those in assigned_devices.only(asks, self.index).items():
                for ask in (ask for alternatives in compiled.requests for ask in alternatives if ask.name == request):
                    ask.only = those
            self._extras[names] = _Extra(claim, compiled, asks.mappings)
        return self._extras[names]

    def _asks(self, host: str) -> list[CompiledClaim]:
        """All that a host would have to serve."""
        extra = self._extra(host)
        return [*self.demands, extra.demand] if extra else list(self.demands)

    def _counted(self) -> list[int]:
        """The hosts that counting does not rule out. One that offers an extended resource itself is not counted for it."""
        if not self.from_devices:
            return self.index.candidates(self.demands)
        out: set[int] = set()
        rows: dict[frozenset[str], set[int]] = {}
        for row, host in enumerate(self.index.hosts):
            extra = self._extra(host)
            names = frozenset(mapping["resourceName"] for mapping in extra.mappings) if extra else frozenset[str]()
            if names not in rows:
                rows[names] = set(self.index.candidates(self._asks(host)))
            if row in rows[names]:
                out.add(row)
        return sorted(out)

    def place(self) -> Placement | None:
        """The best of the first hosts that can take the pod."""
        found: dict[str, tuple[HostCandidate, allocator.Allocated]] = {}
        extra: dict[str, tuple[float, Sequence[str]]] = {}
        rows = self._rows()
        possible = prioritized_list.possible(self.index, self.demands, rows)
        enough = 1 if self._flavored and not self.plugins.scorers else LOOKED_AT
        best_offer = 0
        for row in self._from_where_it_ended(sorted(rows, key=lambda row: -possible[row]) if possible else rows):
            if len(found) >= enough and (best_offer >= possible.get(row, 0) or len(found) >= MOST_LOOKED_AT):
                break
            host = self.index.names[row]
            if self._unfit(host) is not None:
                continue
            given = self._allocate(host)
            if self._effort is not None and self._effort.used_up:
                if not found:
                    self.snapshot.resume[self.pod["metadata"]["uid"]] = host
                break
            if not isinstance(given, allocator.Allocated):
                continue
            devices, node = list(self._given(row, given)), self.index.node(host)
            if self.plugins.rejections(self.pod, node, devices):
                continue
            if self.plugins.scorers:
                points = self.plugins.points(self.pod, node, devices)
                extra[host] = points.value, points.texts
            found[host] = self._offer(row, devices, given), given
            best_offer = max(best_offer, found[host][0].preference)
        if not found:
            return None
        if self._flavored:
            host = max(found, key=lambda name: (  # the first of those
                (extra[name][0] if name in extra else 0.0) + STEP * found[name][0].preference))
            why = "; ".join([*map(str, found[host][0].alternatives), FEWEST, *(extra[host][1] if host in extra else ())])
        else:
            best = rank((offer for offer, _ in found.values()), self.snapshot.policy, extra=extra)[0]
            host, why = best.host, best.why
        more = self._extra(host)
        wanted = [*self.wanted, *([more.claim] if more else ())]
        return Placement(host, tuple(zip(wanted, found[host][1].allocations, strict=True)), why, more.mappings if more else ())

    def _from_where_it_ended(self, rows: Sequence[int]) -> Sequence[int]:
        """The rows without those that an earlier attempt, which took too long, looked at in vain."""
        host = self.snapshot.resume.pop(self.pod["metadata"].get("uid", ""), None)
        if host is None:
            return rows
        place = next((place for place, row in enumerate(rows) if self.index.names[row] == host), 0)
        return rows[place:]

    @property
    def _flavored(self) -> bool:
        return any(ask is not None for ask in self.flavors)

    def _rows(self) -> list[int]:
        """The hosts to try. For flavors those with the fewest free devices first, so that the others stay whole, and with those
        of which selectors do not see everything."""
        rows, roster = self._counted(), self.roster
        if not self._flavored:
            return rows
        names, site = self.index.names, self.index.node_devices
        every = {*rows, *(row for row in range(len(names)) if has_incomplete_traits(site(row)))}
        return sorted(every, key=lambda row: (roster.host(site(row), self.index.page(names[row])).free, names[row]))

    def waiting(self, every_host: bool) -> Waiting:
        self._effort = None if every_host else SearchEffort(EXPLAIN_EFFORT)
        names, matching = self.index.names, self.index.matching(self.demands)
        named = self._named_rows(matching)
        could = set(self.index.candidates(self.demands)) if every_host else set()
        refusals = {row: self._refusal(row, names[row], row in could) for row in (range(len(names)) if every_host else named)}
        unlike = len(names) - len(matching) if len(names) > NAMED_HOSTS and self.demands else 0
        class_of = self.snapshot.extended_resource
        chosen = list(assigned_devices.rejections(self.pod, self.index, class_of)) if self.preset is not None else []
        if self.preset is not None and not self.preset:  # no host has all of them
            chosen += assigned_devices.rejections(self.pod, self.index, class_of, "-")
        if not names:
            chosen.append(Rejection(RejectionCode.NO_HOST))
        return Waiting(tuple(dict.fromkeys(chosen)), tuple((names[row], refusal) for row, refusal in refusals.items()),
                       len(names), tuple(names[row] for row in named), unlike if matching else 0)

    def _named_rows(self, matching: Sequence[int]) -> list[int]:
        """The hosts of which the one sentence tells: those with devices of the kind first, and of these those that would
        take the pod. By what hosts are and not by what is free just now, or the sentence would change all the time."""
        rows = list(matching[:LOOKED_AT * NAMED_HOSTS]) or list(range(min(len(self.index.names), LOOKED_AT * NAMED_HOSTS)))
        if len(self.index.names) <= NAMED_HOSTS:
            return list(range(len(self.index.names)))
        return sorted(sorted(rows, key=lambda row: (self._unfit(self.index.names[row]) is not None, row))[:NAMED_HOSTS])

    def _unfit(self, host: str) -> HostRejection | None:
        """Why a host cannot take the pod whatever devices it has."""
        if host in self.avoid:
            return HostRejection((self.avoid[host],), (1,))
        if self.fixed is not None and host not in self.fixed:
            return HostRejection((Rejection.of(RejectionCode.CLAIM_ELSEWHERE, hosts=tuple(sorted(self.fixed))),), (4,))
        if self.preset is not None:
            if host not in self.preset:
                lacking = tuple(assigned_devices.rejections(self.pod, self.index, self.snapshot.extended_resource, host))
                return HostRejection(lacking or (Rejection(RejectionCode.ASSIGNED_DEVICE_ELSEWHERE),), (4,))
            if own := sorted({name for name, _ in extended_resources.presets(self.pod, self.snapshot.extended_resource)
                              if self.rooms.at(self.index.node(host)).amounts.get(name)}):
                return HostRejection((Rejection.of(RejectionCode.ASSIGNED_RESOURCE_OFFERED, resources=tuple(own)),), (4,))
        unfit = self.need.unfit(self.rooms.at(self.index.node(host)), self.used)
        return HostRejection(unfit, (3, len(unfit))) if unfit else None

    def _allocate(self, host: str) -> allocator.Allocated | allocator.AllocationRejection | Unmet | HostRejection:
        demands = self._asks(host)
        flavors = [*self.flavors, *([None] * (len(demands) - len(self.flavors)))]
        mine = [(one.claim, ask) for one, ask in zip(demands, flavors, strict=True) if ask is not None]
        if not mine:
            return self._search(host, demands)
        site = self.index.pools.at(self.index.node(host), self.index.features)
        chosen = self.roster.give(site, self.index.page(host), mine, self.index.held.barred(site))
        if isinstance(chosen, Unmet):
            return chosen
        others = [one for one, ask in zip(demands, flavors, strict=True) if ask is None]
        if not others:
            return allocator.Allocated(tuple(chosen))
        try:
            for given in chosen:
                self.index.held.add(given, SAME_VM)
            rest = self._search(host, others)
        finally:
            for given in chosen:
                self.index.held.remove(given)
        if not isinstance(rest, allocator.Allocated):
            return rest
        mixed, left = iter(chosen), iter(rest.allocations)
        return allocator.Allocated(tuple(next(left if ask is None else mixed) for ask in flavors))

    def _search(
        self, host: str, demands: Sequence[CompiledClaim]
    ) -> allocator.Allocated | allocator.AllocationRejection | HostRejection:
        try:
            return allocator.allocate(
                [one.claim for one in demands], node=self.index.node(host), pools=self.index.pools,
                classes=self.snapshot.device_class, held=self.index.held, features=self.index.features,
                demands=demands, share_id=self.snapshot.share_id, now=self.snapshot.now, effort=self._effort)
        except Unsatisfiable as error:  # a selector that has no answer for a device of this host
            return HostRejection(
                (error.rejection or Rejection.of(RejectionCode.CLAIM_INVALID, message=error.message),),
                seek=lambda: allocator.inspect(node=self.index.node(host), pools=self.index.pools, held=self.index.held,
                                               features=self.index.features, demands=demands, now=self.snapshot.now))

    def _given(self, row: int, given: allocator.Allocated) -> Iterator[GivenDevice]:
        for one in given.allocations:
            for name, result in results(one):
                device = self.index.device(row, name)
                raw = device.raw if device is not None else {}
                numa, root = device.spot if device is not None else spot(raw)
                attributes = {} if self.plugins is NO_PLUGINS else {  # nothing else reads them
                    key: next(iter(value.values()), None) for key, value in (raw.get("attributes") or {}).items()}
                yield GivenDevice(name.driver, name.pool, name.device, result["request"], numa, root, attributes)

    def _offer(self, row: int, devices: Sequence[GivenDevice], given: allocator.Allocated) -> HostCandidate:
        host = self.index.names[row]
        room = self.rooms.at(self.index.node(host))
        return HostCandidate(host, tuple(Spot(one.numa, one.pcie_root) for one in devices),
                     Counter(device.spot for device in self.index.open(row, self._asks(host))),
                     room.share(self.used, "cpu"), room.share(self.used, "memory"),
                     tuple(prioritized_list.chosen(zip(self.wanted, given.allocations, strict=False))))

    def _refusal(self, row: int, host: str, could: bool) -> HostRejection:
        """`could`: it seems to have the devices."""
        if unfit := self._unfit(host):
            return replace(unfit, far=(1, 1)) if could and len(unfit.far) > 1 else unfit
        if not self._flavored and (counted := self._by_counting(row, host)):
            return counted
        found = self._allocate(host)
        if isinstance(found, allocator.Allocated):
            rejected = self.plugins.rejections(self.pod, self.index.node(host), list(self._given(row, found)))
            return HostRejection(rejected or (Rejection(RejectionCode.FITS_NOW),), (0,))
        if isinstance(found, HostRejection):
            return found
        unmatched, unfree = found.lacking
        return HostRejection(found.rejections, _far(unmatched, unfree), lambda: found)

    def _by_counting(self, row: int, host: str) -> HostRejection | None:
        """What a search would reject it for, where counting shows it: of thousands of hosts few are worth a search."""
        unlike: list[Rejection] = []
        short: Rejection | None = None
        unmatched = unfree = 0
        for request in (request for one in self.demands for request in one.requests):
            counts = [self.index.count(row, ask) for ask in request]
            there = [count for count in counts if count is not None]
            if len(there) < len(counts) or any(ask.everything for ask in request):
                return None
            least = min(max(ask.count - count.match, 0) for ask, count in zip(request, there, strict=True))
            unmatched += least
            if not any(count.match for count in there) and least:
                unlike.append(bounds.nothing_like(request, there[0].devices))
            elif len(request) == 1 and there[0].free is not None and there[0].free < request[0].count:
                unfree += request[0].count - there[0].free
                short = short or bounds.too_few(request[0], there[0].match, there[0].free, there[0].rules)
        counted = tuple(unlike) or ((short,) if short is not None else ())
        if not counted:
            return None
        return HostRejection(counted, _far(unmatched, unfree), functools.cache(lambda: self._allocate(host)))


def _far(unmatched: int, unfree: int) -> tuple[int, ...]:
    """A host is nearer if it has the devices and others have them, than if it never had them."""
    return (2, unmatched, unfree) if unmatched else (1, unfree)


def _by_template(pod: Object, name: str) -> bool:
    return any(entry["name"] == name and entry.get("resourceClaimTemplateName")
               for entry in pod["spec"].get("resourceClaims") or ())


def _no_claim(pod: Object, name: str, claim_name: str | None) -> Rejection:
    if claim_name:
        return Rejection.of(RejectionCode.CLAIM_MISSING, claim=claim_name, entry=name)
    entry = next(entry for entry in pod["spec"]["resourceClaims"] if entry["name"] == name)
    return Rejection.of(RejectionCode.CLAIM_NOT_CREATED, entry=name, template=entry.get("resourceClaimTemplateName"))
