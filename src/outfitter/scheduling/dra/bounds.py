"""Counting before searching: what cannot be, however one picks. Every bound here is safe: it never rules out what could be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.scheduling.dra.constraints import State, Table
from outfitter.scheduling.filter import taints

if TYPE_CHECKING:
    from outfitter.scheduling.dra.candidates import RequestCandidates, RequestStep
    from outfitter.scheduling.dra.claim_request import ClaimDeviceRequest
    from outfitter.scheduling.dra.search import Point, Search

# A request; its alternatives with what they can have; the least.
Options = list[tuple["RequestStep", list[tuple["RequestCandidates", int]], int]]


def why_not(search: Search, point: Point) -> tuple[Rejection, ...]:
    """Why the requests from here on cannot all be served; empty if counting does not tell."""
    options: Options = []
    for step in search.steps[point.at:]:
        having = [(want, want.ready if want.ask.admin else want.ready & ~point.used) for want in step.wants]
        possible = [(want, mask) for want, mask in having if _enough(want, mask)]
        if not possible:
            return _short(search, having)
        options.append((step, possible, min(want.need for want, _ in possible)))
    if len(options) > 1 and (crowded := _crowded(search, options)):
        return (crowded,)
    claim = search.steps[point.at].claim
    for number, demand in enumerate(search.demands):
        if not demand.constraints or number < claim:
            continue
        mine = [one for one in options if one[0].claim == number]
        for which, constraint in enumerate(demand.constraints):
            state = point.states[which] if number == claim else None
            under = _under(mine, which)
            if under and not (_distinct(under, state) if constraint.distinct else _match(search, under, state)):
                total = sum(least for *_, least in under)
                return (Rejection.of(RejectionCode.CONSTRAINT_UNMET, wanted=total, attribute=constraint.attribute,
                                     distinct=constraint.distinct),)
    drained = _drained(search, point, options) if search.counters is not None else None
    return () if drained is None else (drained,)


def _enough(want: RequestCandidates, mask: int) -> bool:
    if want.ask.everything:
        return want.need > 0 and want.fit & ~mask == 0
    return mask.bit_count() >= want.need


def _short(search: Search, having: Sequence[tuple[RequestCandidates, int]]) -> tuple[Rejection, ...]:
    if not any(want.fit for want, _ in having):
        return (nothing_like([want.ask for want, _ in having], len(search.site.devices)),)
    return tuple(too_few(want.ask, want.fit.bit_count(), mask.bit_count(), _rules(search, want)) for want, mask in having)


def _rules(search: Search, want: RequestCandidates) -> tuple[str, ...]:
    """The DeviceTaintRules that keep devices back which match and are not held."""
    kept = want.fit & ~search.blocked if search.features.device_taints else 0
    return taints.rules(taints.untolerated_taint(search.site.devices[index].taints, want.ask.tolerations, search.now)
                        for index in search.site.tainted if kept >> index & 1)


def nothing_like(asks: Sequence[ClaimDeviceRequest], count: int) -> Rejection:
    """No device is what a request asks for, whichever alternative is taken."""
    wanted = tuple({**ask.named, "class": ask.class_["metadata"]["name"]} for ask in asks)
    return Rejection.of(RejectionCode.NO_MATCH, devices=count, alternatives=wanted)


def too_few(ask: ClaimDeviceRequest, match: int, free: int, rules: tuple[str, ...] = ()) -> Rejection:
    """`rules`: the DeviceTaintRules that keep others back; hosts are told apart by them."""
    wanted = {"all": True} if ask.everything else {"wanted": ask.count}
    ruled = {"rules": rules} if rules else {}
    return Rejection(RejectionCode.TOO_FEW_FREE, detail={**ask.named, **wanted, "match": match, "free": free, **ruled})


def _crowded(search: Search, options: Options) -> Rejection | None:
    """Requests that must share fewer devices than they need together."""
    sharing = search.site.shared if search.features.consumable_capacity else 0
    needs = []
    for _, possible, least in options:
        union = 0
        for _, mask in possible:
            union |= mask
        if not union & sharing and not any(want.ask.admin for want, _ in possible):
            needs.append((union, least))
    for union in dict.fromkeys(union for union, _ in needs):
        total = sum(least for inner, least in needs if inner & ~union == 0)
        if total > union.bit_count():
            return Rejection.of(RejectionCode.TOO_FEW_TOGETHER, wanted=total, free=union.bit_count())
    return None


def _under(options: Options, which: int) -> list[tuple[list[tuple[RequestCandidates, int, Table]], int]]:
    """The requests that a constraint is for, whichever alternative is taken."""
    out = []
    for _, possible, least in options:
        tables = [(want, mask, table) for want, mask in possible for index, table, _ in want.tables if index == which]
        if least and len(tables) == len(possible):
            out.append((tables, least))
    return out


def _match(search: Search, under: list[tuple[list[tuple[RequestCandidates, int, Table]], int]], state: State) -> bool:
    """One value of which every request has enough devices, and all together too."""
    sharing = search.site.shared if search.features.consumable_capacity else 0
    values: Iterable[object] = state if state is not None else dict.fromkeys(
        value for _, _, table in under[0][0] for value in table.by)
    total = sum(least for _, least in under)
    if total == 1 and state is None:
        return any(mask & table.has for want, mask, table in under[0][0])
    for value in values:
        union = 0
        for tables, _ in under:
            found = [(want, mask & table.by.get(value, 0)) for want, mask, table in tables]  # type: ignore[call-overload]
            if not any(mask.bit_count() >= want.need for want, mask in found):
                break
            for want, mask in found:
                union |= -1 if want.ask.admin else mask
        else:
            if union < 0 or union & sharing or union.bit_count() >= total:
                return True
    return False


def _distinct(under: list[tuple[list[tuple[RequestCandidates, int, Table]], int]], state: State) -> bool:
    """As many values as devices, for each request and for all that choose from the same values."""
    needs = []
    for tables, least in under:
        values = {value for _, mask, table in tables for value, there in table.by.items()
                  if there & mask & table.open(state, distinct=True)}
        needs.append((frozenset(values), least))
    whole = frozenset[object]().union(*(values for values, _ in needs))
    return all(sum(least for inner, least in needs if inner <= values) <= len(values)
               for values in {whole, *(values for values, _ in needs)})


def _drained(search: Search, point: Point, options: Options) -> Rejection | None:
    """A counter of which all requests together take more than is left, even if each takes the most modest devices."""
    counters = search.counters
    assert counters is not None
    sharing = search.site.shared if search.features.consumable_capacity else 0
    wanted = [0] * len(counters.left)
    for _, possible, least in options:
        modest: dict[int, int] | None = None
        for _, having in possible:
            mask = having
            while mask:
                low = mask & -mask
                mask ^= low
                draw = counters.draws[low.bit_length() - 1]
                if draw is None or low & sharing:
                    modest = {}
                    break
                amounts: dict[int, int] = {}
                for counter, amount in draw.amounts:
                    amounts[counter] = amounts.get(counter, 0) + amount
                modest = amounts if modest is None else {
                    counter: min(amount, amounts[counter]) for counter, amount in modest.items() if counter in amounts}
            if modest == {}:
                break
        for counter, amount in (modest or {}).items():
            wanted[counter] += least * amount
    for counter, amount in enumerate(wanted):
        if amount and amount + point.counters[counter] > counters.left[counter]:
            return Rejection.of(RejectionCode.COUNTER_EXHAUSTED, counter=counters.names[counter])
    return None


def packs(search: Search, point: Point, want: RequestCandidates) -> bool:
    """Enough devices are left for a request if, of each counter, the most modest ones are taken. A device that takes of several
    counters is counted with the scarcest alone, so this is never too strict."""
    counters = search.counters
    assert counters is not None
    missing, left = want.need - point.taken, [all_ - taken for all_, taken in zip(counters.left, point.counters, strict=True)]
    free = want.ready & ~(point.mine if want.ask.admin else point.used) >> point.start << point.start
    for amount, counter, bit in search.modest(want):
        if free & bit:
            if counter < 0:
                missing -= 1
            elif amount <= left[counter]:
                left[counter] -= amount
                missing -= 1
            if missing <= 0:
                return True
    return missing <= 0
