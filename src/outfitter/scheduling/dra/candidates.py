"""What each request of some claims can have on one node, before anything is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from outfitter.api import rejection_text
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.cel import Quantity, Selector, optional_spelling
from outfitter.errors import Unsatisfiable
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra import constraints, consumable_capacity, selector_cache
from outfitter.scheduling.dra.allocated_devices import AllocatedDevices
from outfitter.scheduling.dra.claim_request import MOST, ClaimDeviceRequest, CompiledClaim
from outfitter.scheduling.dra.constraints import Table
from outfitter.scheduling.dra.node_devices import NodeDevices
from outfitter.scheduling.dra.selector_cache import SelectorResult
from outfitter.scheduling.dra.slices import Shares
from outfitter.scheduling.filter.taints import untolerated_taint

Tables = tuple[tuple[int, Table, bool], ...]
NO_SHARES = Shares({}, {}, 0)


@dataclass(slots=True)
class RequestCandidates:
    """An ask, on one node: which devices it can have."""

    ask: ClaimDeviceRequest
    claim: int
    need: int
    fit: int  # devices that are what it asks for
    ready: int  # and that it can have
    wrong: dict[int, Rejection]  # devices for which a selector has no result: reaching one is an error
    bad: int  # the same, as a mask
    shares: Mapping[int, Mapping[str, Quantity]]  # what it takes of a device's capacity
    tables: Tables  # the constraints that are for it: which, the values, distinct or not
    order: tuple[int, ...] = ()  # the devices, when it is for all of them


@dataclass(slots=True)
class RequestStep:
    """One request of one claim."""

    claim: int
    wants: list[RequestCandidates]
    later: int = 0  # devices that requests after this one could take
    live: frozenset[int] = frozenset()  # constraints of the claim that this request or a later one of it is under


@dataclass(slots=True, frozen=True)
class CandidateSet:
    site: NodeDevices
    demands: Sequence[CompiledClaim]
    held: AllocatedDevices
    features: Features
    blocked: int  # devices that are held
    now: datetime | None  # None: what is tolerated for a time is tolerated

    def steps(self) -> list[RequestStep]:
        """The requests in their order. Unsatisfiable when one of them cannot be served whatever is free."""
        steps: list[RequestStep] = []
        for claim, demand in enumerate(self.demands):
            least = 0
            for request in demand.requests:
                wants = [self._want(ask, claim) for ask in request]
                least += min(want.need for want in wants)
                steps.append(RequestStep(claim, wants))
            if least > MOST:
                raise rejection_text.error(Unsatisfiable, Rejection.of(
                    RejectionCode.TOO_MANY_DEVICES, where=demand.title, wanted=least, limit=MOST))
        later, live, claim = 0, frozenset[int](), -1
        for step in reversed(steps):
            step.later = later
            live = live if step.claim == claim else frozenset()
            live |= {which for want in step.wants for which, _, _ in want.tables}
            step.live, claim = live, step.claim
            for want in step.wants:
                later |= want.fit | want.bad
        return steps

    def _want(self, ask: ClaimDeviceRequest, claim: int) -> RequestCandidates:
        site, features = self.site, self.features
        if ask.everything:
            self._whole(ask, claim)
        usable = site.everything
        if not features.device_binding_and_status:
            usable &= ~site.binding
        if features.optional_node_operations:
            usable &= ~site.lazy
        mask, unclear = site.fits(ask.selectors)
        if ask.only is not None:
            usable &= sum(1 << index for index, device in enumerate(site.devices) if device.id in ask.only)
        fit = mask & usable
        wrong = {index: self._unclear(index, ask, result) for index, result in unclear.items() if usable >> index & 1}
        where = f"{self.demands[claim].title}, request {ask.name}"
        shares, ready = NO_SHARES, fit
        if features.consumable_capacity:
            shares, fit, ready = self._capacity(ask, fit, wrong, where)
        if not ask.admin:
            ready &= ~self.blocked
        if not features.partitionable_devices:
            ready &= ~site.counted
        if features.device_taints:
            for index in site.tainted:
                if untolerated_taint(site.devices[index].taints, ask.tolerations, self.now) is not None:
                    ready &= ~(1 << index)
        tables = self._tables(ask, claim, ready, wrong, where)
        if ask.everything:
            order = tuple(bits(fit))
            return RequestCandidates(ask, claim, len(order), fit, ready, wrong, 0, shares.of, tables, order)
        bad = 0
        for index in wrong:
            if ask.admin or not self.blocked >> index & 1:
                bad |= 1 << index
        return RequestCandidates(ask, claim, ask.count, fit, ready & ~bad, wrong, bad, shares.of, tables)

    def _unclear(self, index: int, ask: ClaimDeviceRequest, result: SelectorResult) -> Rejection:
        """A selector that has no answer for a device, and how it would have to be written to have one."""
        rejection = self._no_result(index, ask.owners[result.position].title, result.why)
        selector = selector_cache.compiled(ask.selectors[result.position])
        spelling = optional_spelling(selector, result.missing) if result.missing and isinstance(selector, Selector) else None
        return rejection.with_detail(missing=result.missing, optional=spelling) if spelling else rejection

    def _no_result(self, index: int, where: str, error: str) -> Rejection:
        return Rejection.of(RejectionCode.SELECTOR_ERROR, self.site.devices[index].id, where=where, error=error)

    def _whole(self, ask: ClaimDeviceRequest, claim: int) -> None:
        """All devices can only be had when all are known."""
        for pool in self.site.pools:
            if pool.incomplete or pool.invalid:
                code = RejectionCode.POOL_UPDATING if pool.incomplete else RejectionCode.POOL_INVALID
                raise rejection_text.error(Unsatisfiable, Rejection.of(
                    code, where=f"{self.demands[claim].title}, request {ask.name}", pool=str(pool), message=pool.invalid))

    def _capacity(self, ask: ClaimDeviceRequest, fit: int, wrong: dict[int, Rejection], where: str) -> tuple[Shares, int, int]:
        """What is taken of each device; those of the devices that can give it, and those that can give it now."""
        found, consumed = self.site.shares(ask.capacity, self.features.fractional_capacity_range), self.held.consumed
        wrong |= {index: self._no_result(index, where, why) for index, why in found.wrong.items() if fit >> index & 1}
        ready = fit = fit & found.mask
        for index in bits(fit) if consumed else ():
            device = self.site.devices[index]
            if (used := consumed.get(device.id)) and not consumable_capacity.room(found.of[index], used, (), device.capacity):
                ready &= ~(1 << index)
        return found, fit, ready

    def _tables(self, ask: ClaimDeviceRequest, claim: int, ready: int, wrong: dict[int, Rejection], where: str) -> Tables:
        out, lists = [], self.features.list_type_attributes
        for which in ask.constraints:
            constraint = self.demands[claim].constraints[which]
            if expression := ask.derived.get(constraint.attribute):
                table = constraints.derived(self.site, expression, lists)
                wrong |= {index: self._no_result(index, f"{where}, derived attribute {constraint.attribute}", why)
                          for index, why in table.wrong.items() if ready >> index & 1 and index not in wrong}
            else:
                table = constraints.published(self.site, constraint.attribute, lists)
            out.append((which, table, constraint.distinct))
        return tuple(out)


def bits(mask: int) -> Iterator[int]:
    """The numbers of the devices in a mask."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
