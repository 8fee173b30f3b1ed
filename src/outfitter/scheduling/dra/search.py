"""The search for devices: first fit in the order of pool, slice and device, request after request, as Kubernetes does it.

The answer is the one that trying everything in that order would find first. What makes it quick changes no answer: devices that
are alike in all that the claims can see need not be tried twice at one place, a state that failed once is known, and what
counting shows to be impossible (`limits`) is not tried at all. A selector without an answer ends the search when its device is
reached, and only then; while that can happen nothing is pruned by counting."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from outfitter.api import rejection_text
from outfitter.api.device import DeviceId
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.cel import Quantity
from outfitter.errors import Unsatisfiable
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra import bounds, consumable_capacity
from outfitter.scheduling.dra.allocated_devices import AllocatedDevices
from outfitter.scheduling.dra.candidates import CandidateSet, RequestCandidates, RequestStep, bits
from outfitter.scheduling.dra.claim_request import MOST, ClaimDeviceRequest, CompiledClaim
from outfitter.scheduling.dra.constraints import State
from outfitter.scheduling.dra.equivalence import DeviceEquivalence
from outfitter.scheduling.dra.node_devices import NodeDevices
from outfitter.scheduling.dra.shared_counters import Company, SharedCounters, Taken


class Pick(NamedTuple):
    claim: int
    ask: ClaimDeviceRequest
    device: int
    share: Mapping[str, Quantity] | None  # None: the whole device


# After how much work a search gives up on a host, and for a pod in one attempt. A point is 2, and 1 more for each constraint of
# a request: some microseconds each. What a host really holds needs some hundred points.
EFFORT, POD_EFFORT, EXPLAIN_EFFORT = 30_000, 40_000, 10_000  # the last for the reason of a pod that waits


@dataclass(slots=True)
class SearchEffort:
    """How much work may still be done, on all hosts."""

    left: int = POD_EFFORT

    @property
    def used_up(self) -> bool:
        return self.left < 0


Picks = tuple[Pick, "Picks | None"]


@dataclass(slots=True, frozen=True)
class Point:
    """Where the search is. Never changed: going back is forgetting it."""

    at: int  # step
    want: RequestCandidates | None  # the alternative; None: still to be chosen
    taken: int  # devices that it has
    start: int  # where its next device is looked for
    used: int  # devices that are taken in this attempt
    mine: int  # those of the claim at hand
    size: int  # how many results the claim has
    states: tuple[State, ...]  # of the claim's constraints
    counters: Taken
    company: Company
    shares: Mapping[int, tuple[int, ...]]  # device -> what is taken of its capacity in this attempt
    picks: Picks | None  # the last one and those before


class _Dead(enum.Enum):
    """Alternatives that need not be tried."""

    EMPTY = "all devices, and there is none"
    LARGE = "more devices than one allocation can have"
    END = "no further alternative"


@dataclass(slots=True)
class _Frame:
    point: Point
    options: Iterator[Point | _Dead]
    tried: int = 0
    large: int = 0  # how many of those ended in too many devices


@dataclass(slots=True)
class Search:
    site: NodeDevices
    demands: Sequence[CompiledClaim]
    held: AllocatedDevices
    features: Features
    now: datetime | None = None  # None: what is tolerated for a time is tolerated
    steps: list[RequestStep] = field(default_factory=list)
    counters: SharedCounters | None = None
    blocked: int = 0  # devices that are held
    careful: bool = False  # an error can be met on the way: counting must not hide it
    strict: bool = False  # and it depends on which of several like devices is tried
    admins: bool = False
    effort: SearchEffort = field(default_factory=SearchEffort)
    weight: int = 2  # work of one point
    tried: int = 0  # points that were looked at
    _likeness: DeviceEquivalence | None = None
    _failed: set[object] = field(default_factory=set)
    _modest: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kept = self.held.kept
        named = frozenset[DeviceId]().union(*(ask.only or () for one in self.demands for request in one.requests
                                              for ask in request)) if kept else frozenset()
        self.blocked = self.held.blocked(self.site)
        for index, device in enumerate(self.site.devices) if kept else ():
            if device.id in kept and device.id not in named:
                self.blocked |= 1 << index
        if self.site.counted and self.features.partitionable_devices:
            self.counters = SharedCounters(self.site, self.held.touches, groups=self.features.compatibility_groups)
        self.steps = CandidateSet(self.site, self.demands, self.held, self.features, self.blocked, self.now).steps()
        wants = [want for step in self.steps for want in step.wants]
        self.weight += sum(len(want.tables) for want in wants)
        self.strict = any(want.ask.everything and want.tables for want in wants)
        self.careful = self.strict or any(want.bad for want in wants)
        self.admins = any(want.ask.admin for want in wants)

    # -- the search

    def run(self) -> list[Pick] | None:
        """The first answer, or None. Unsatisfiable when something was met that has no answer."""
        for want in (want for step in self.steps for want in step.wants if want.ask.everything and want.wrong):
            raise rejection_text.error(Unsatisfiable, want.wrong[min(want.wrong)])
        first = self.start()
        if first.at == len(self.steps):
            return []
        stack = [] if self._hopeless(first) else [self._frame(first)]
        while stack:
            frame = stack[-1]
            found = next(frame.options, _Dead.END)
            if found is _Dead.END:
                stack.pop()
                if frame.tried and frame.tried == frame.large:
                    self._too_large(stack, self.steps[frame.point.at].claim)
                else:
                    self._failed.add(self._key(frame.point))
                continue
            frame.tried += 1
            self.tried += 1
            self.effort.left -= self.weight
            if self.tried * self.weight > EFFORT or self.effort.used_up:
                titles = ", ".join(demand.title for demand in self.demands)
                raise rejection_text.error(Unsatisfiable, Rejection.of(
                    RejectionCode.SEARCH_LIMIT, where=titles, node=self.site.name, attempts=self.tried - 1))
            if isinstance(found, _Dead):
                frame.large += found is _Dead.LARGE
            elif found.at == len(self.steps):
                return _listed(found)
            elif not self._hopeless(found):
                stack.append(self._frame(found))
        return None

    def start(self) -> Point:
        taken, company = self.counters.nothing if self.counters is not None else ((), ())
        return self._enter(Point(-1, None, 0, 0, 0, 0, 0, (), taken, company, {}, None))

    def _frame(self, point: Point) -> _Frame:
        return _Frame(point, self._choose(point) if point.want is None else self._devices(point))

    def _too_large(self, stack: list[_Frame], claim: int) -> None:
        """The claim would get more devices than an allocation can have, whichever they are: only another alternative of one of
        its requests can help."""
        while stack and self.steps[stack[-1].point.at].claim == claim:
            if stack[-1].point.want is None:
                stack[-1].large += 1
                return
            stack.pop()

    def _hopeless(self, point: Point) -> bool:
        if self._failed and self._key(point) in self._failed:
            return True
        if self.careful:
            return False
        if point.want is None:
            return bool(bounds.why_not(self, point))
        return self.counters is not None and not point.want.ask.everything and not bounds.packs(self, point, point.want)

    def modest(self, want: RequestCandidates) -> list[tuple[int, int, int]]:
        """The devices of a request by how much they take of a shared counter, least first: amount, counter, bit. Of several
        counters the scarcest; -1: of none."""
        known = self._modest.get(id(want))
        if known is None:
            known = self._modest[id(want)] = sorted((*self._scarcest(index), 1 << index) for index in bits(want.ready))
        return known

    def _scarcest(self, index: int) -> tuple[int, int]:
        draw = self.counters.draws[index] if self.counters is not None and not self._shares(index) else None
        if self.counters is None or draw is None or not draw.amounts:
            return 0, -1
        left = self.counters.left
        counter, amount = max(draw.amounts, key=lambda one: one[1] / (left[one[0]] or 1))
        return amount, counter

    def _enter(self, point: Point) -> Point:
        """The next request."""
        at = point.at + 1
        if at < len(self.steps) and (at == 0 or self.steps[at].claim != self.steps[point.at].claim):
            states: tuple[State, ...] = (None,) * len(self.demands[self.steps[at].claim].constraints)
            return Point(at, None, 0, 0, point.used, 0, 0, states, point.counters, point.company, point.shares, point.picks)
        return Point(at, None, 0, 0, point.used, point.mine, point.size, point.states, point.counters, point.company,
                     point.shares, point.picks)

    def _choose(self, point: Point) -> Iterator[Point | _Dead]:
        for want in self.steps[point.at].wants:
            if want.ask.everything and not want.need:
                yield _Dead.EMPTY
            elif want.need and point.size + want.need > MOST:
                yield _Dead.LARGE
            else:
                chosen = Point(point.at, want, 0, 0, point.used, point.mine, point.size, point.states, point.counters,
                               point.company, point.shares, point.picks)
                yield chosen if want.need else self._enter(chosen)

    def _devices(self, point: Point) -> Iterator[Point | _Dead]:
        """With one device more, in order."""
        want = point.want
        assert want is not None
        if want.ask.everything:
            if (child := self._must(point, want, want.order[point.taken])) is not None:
                yield child
            return
        taken = point.mine if want.ask.admin else point.used
        free, missing = (want.ready | want.bad) & ~taken >> point.start << point.start, want.need - point.taken
        for which, table, distinct in want.tables:
            free &= table.open(point.states[which], distinct) | want.bad
        failed: set[tuple[int, tuple[int, ...] | None]] = set()
        while free and (self.careful or free.bit_count() >= missing):
            low = free & -free
            free ^= low
            index = low.bit_length() - 1
            if want.bad & low:
                raise rejection_text.error(Unsatisfiable, want.wrong[index])
            if failed and (self.likeness.of[index], point.shares.get(index)) in failed:
                continue
            child = self._take(point, want, index)
            if child is not None:
                yield child
                if not self.strict:
                    failed.add((self.likeness.of[index], point.shares.get(index)))

    def _must(self, point: Point, want: RequestCandidates, index: int) -> Point | None:
        """The same for one of all devices: a constraint that it breaks is a mistake in the claim."""
        taken = point.mine if want.ask.admin else point.used
        if not want.ready >> index & 1 or taken >> index & 1 or self._counted(point, index) is None:
            return None
        for which, table, distinct in want.tables:
            if not table.open(point.states[which], distinct) >> index & 1:
                demand = self.demands[want.claim]
                constraint = demand.constraints[which]
                raise rejection_text.error(Unsatisfiable, Rejection.of(
                    RejectionCode.CONSTRAINT_UNMET, self.site.devices[index].id,
                    where=f"{demand.title}, request {want.ask.name}", attribute=constraint.attribute,
                    distinct=constraint.distinct))
        return self._take(point, want, index)

    def _counted(self, point: Point, index: int) -> tuple[Taken, Company] | None:
        """The counters with a device, of which only the first share pays."""
        if self.counters is None or not self.site.counted >> index & 1:
            return point.counters, point.company
        if self._shares(index) and (index in point.shares or self.held.parted(self.site.devices[index].id)):
            return point.counters, point.company
        return self.counters.take(point.counters, point.company, index)

    def _shares(self, index: int) -> bool:
        return self.features.consumable_capacity and bool(self.site.shared >> index & 1)

    def _take(self, point: Point, want: RequestCandidates, index: int) -> Point | None:
        """With this device, or None where counters or capacity do not suffice. The constraints hold."""
        counted = self._counted(point, index)
        if counted is None:
            return None
        shared, shares, used, mine = self._shares(index), point.shares, point.used, point.mine
        if shared:
            share, extra = want.shares[index], point.shares.get(index, ())
            device = self.site.devices[index]
            if not consumable_capacity.room(share, self.held.consumed.get(device.id) or {}, extra, device.capacity):
                return None
            amounts = tuple(share[name].nano + before for name, before in zip(share, extra or (0,) * len(share), strict=True))
            shares = {**shares, index: amounts}
        else:
            used, mine = used | 1 << index, mine | 1 << index
        if self.site.twins and not want.ask.admin:  # other names of the same hardware
            used |= self.site.twins.get(index, 0)
        states = point.states
        if want.tables:
            after = list(states)
            for which, table, distinct in want.tables:
                after[which] = table.add(states[which], index, distinct)
            states = tuple(after)
        pick = Pick(want.claim, want.ask, index, want.shares[index] if shared else None)
        child = Point(point.at, want, point.taken + 1, index + 1, used, mine, point.size + 1, states, *counted, shares,
                      (pick, point.picks))
        return self._enter(child) if child.taken == want.need else child

    # -- what failed before

    @property
    def likeness(self) -> DeviceEquivalence:
        if self._likeness is None:
            self._likeness = DeviceEquivalence(self)
        return self._likeness

    def _key(self, point: Point) -> object:
        """Points with the same key fail alike: all that the steps to come can see."""
        step, want, like = self.steps[point.at], point.want, self.likeness
        states = tuple(state if which in step.live else None for which, state in enumerate(point.states))
        mine = point.mine if self.admins else 0
        if self.strict:
            return (point.at, id(want), point.taken, point.start, point.used, mine, point.size, states, point.counters,
                    point.company, tuple(sorted(point.shares.items())))
        if want is not None:
            ahead = (point.used & (want.fit | want.bad)) >> point.start
            return (point.at, id(want), point.taken, point.start, ahead, like.counts(point.used & step.later), mine, point.size,
                    states, point.counters, point.company, tuple(sorted(point.shares.items())))
        relevant = step.later
        for each in step.wants:
            relevant |= each.fit | each.bad
        fresh = not any(states)
        return (point.at, like.counts(point.used & relevant, swap=fresh and not point.shares), mine, point.size, states,
                point.counters, point.company, tuple(sorted((like.of[index], much) for index, much in point.shares.items())))


def _listed(point: Point) -> list[Pick]:
    out: list[Pick] = []
    chain = point.picks
    while chain is not None:
        out.append(chain[0])
        chain = chain[1]
    return out[::-1]
