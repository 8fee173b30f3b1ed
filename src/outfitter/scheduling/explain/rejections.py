"""A failed search as rejections: what the node lacks, and for each request what is wrong with each device. Values, no text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.scheduling.dra import bounds
from outfitter.scheduling.explain import selector_terms
from outfitter.scheduling.filter import taints

if TYPE_CHECKING:
    from outfitter.scheduling.dra.candidates import RequestCandidates
    from outfitter.scheduling.dra.search import Search

VALUES = 4  # of an attribute, that are named


def of_node(search: Search) -> tuple[Rejection, ...]:
    """The node as a whole: every request that no device matches, else the first reason that explains it."""
    site = search.site
    if site.invalid:
        return tuple(Rejection.of(RejectionCode.POOL_INVALID, pool=str(pool), message=pool.invalid) for pool in site.invalid)
    if not site.devices:
        return (_updating(site.incomplete[0]) if site.incomplete else Rejection(RejectionCode.NO_DEVICES),)
    if unlike := [bounds.nothing_like([want.ask for want in step.wants], len(site.devices)) for step in search.steps
                  if not any(want.fit or not (want.need or want.ask.everything) for want in step.wants)]:
        return tuple(unlike)
    return bounds.why_not(search, search.start()) or (
        _drained(search) or _same_hardware(search) or Rejection(RejectionCode.NO_COMBINATION),)


def _updating(pool: object) -> Rejection:
    return Rejection.of(RejectionCode.POOL_UPDATING, pool=str(pool))


def lacking(search: Search) -> tuple[int, int]:
    """How far a host is from serving: devices that match none of the requests' needs, and then those that are not free."""
    unmatched = unfree = 0
    for step in search.steps:
        unmatched += min(max(want.need - want.fit.bit_count(), 0) for want in step.wants)
        unfree += min(max(want.need - want.ready.bit_count(), 0) for want in step.wants)
        unmatched += all(want.ask.everything and not want.need for want in step.wants)
    return unmatched, unfree


def _drained(search: Search) -> Rejection | None:
    for step in search.steps if search.counters is not None else ():
        if not any(want.ask.everything or bounds.packs(search, search.start(), want) for want in step.wants):
            want = step.wants[-1]
            return Rejection(RejectionCode.COUNTER_EXHAUSTED, detail={**want.ask.named, "wanted": want.need})
    return None


def _same_hardware(search: Search) -> Rejection | None:
    """The requests match devices that are one and the same hardware."""
    site, fit = search.site, 0
    for want in (want for step in search.steps for want in step.wants if not want.ask.admin):
        fit |= want.ready
    several = {key: tuple(str(device.id) for index, device in enumerate(site.devices) if (mask & fit) >> index & 1)
               for key, mask in sorted(site.hardware.items()) if site.twins and (mask & fit).bit_count() > 1}
    return Rejection.of(RejectionCode.SAME_HARDWARE, hardware=several) if several else None


def of_devices(search: Search, *, deep: bool = True) -> tuple[Rejection, ...]:
    """Of each request and each device. Without `deep` the devices that are not what is asked for are skipped: which part of a
    selector they fail takes long to find out."""
    out = [_updating(pool) for pool in search.site.incomplete]
    for step in search.steps:
        for want in step.wants:
            out += _apart(search, want)
            for index in range(len(search.site.devices)):
                if (deep or want.fit >> index & 1) and (rejection := _of_device(search, want, index)) is not None:
                    out.append(rejection)
    return tuple(dict.fromkeys(out))


def _apart(search: Search, want: RequestCandidates) -> Iterator[Rejection]:
    """Enough is free, but not with one value of what it must have in common."""
    for which, table, distinct in want.tables:
        together = [(value, (mask & want.ready).bit_count()) for value, mask in table.by.items()]
        if distinct or want.need < 2 or want.ready.bit_count() < want.need or any(free >= want.need for _, free in together):
            continue
        most = sorted(together, key=lambda one: (-one[1], str(one[0])))[:VALUES]
        yield Rejection(RejectionCode.CONSTRAINT_UNMET, detail={
            **want.ask.named, "attribute": search.demands[want.claim].constraints[which].attribute, "distinct": False,
            "wanted": want.need, "free": {str(value[1]): free for value, free in most}, "more": len(together) > VALUES})


def _excluded(search: Search, index: int, request: dict[str, str]) -> Rejection:
    """The devices that have what a device shares with them."""
    mine = search.site.devices[index]
    sets = {use.set for use in mine.uses}
    others = [device for device in search.site.devices if device is not mine and device.id.pool == mine.id.pool
              and search.held.touches(device.id) and sets & {use.set for use in device.uses}]
    causes = tuple(search.held.why_taken(device.id) or Rejection(RejectionCode.HELD, device.id) for device in others)
    return Rejection(RejectionCode.COUNTER_EXHAUSTED, mine.id, detail={**request, "sets": tuple(sorted(sets))}, causes=causes)


def _of_device(search: Search, want: RequestCandidates, index: int) -> Rejection | None:
    """Why a request cannot have a device, or None if it can by itself."""
    device, bit = search.site.devices[index], 1 << index
    request = want.ask.named
    if index in want.wrong:
        return want.wrong[index].with_detail(**request)
    if not want.fit & bit:
        if want.ask.only is not None and device.id not in want.ask.only:
            return None  # other devices were pre-assigned, and that is all there is to say
        return _unlike(search, want, index, request)
    if search.blocked & bit and not want.ask.admin:
        taken = search.held.why_blocked(search.site, index) or Rejection(RejectionCode.HELD, device.id)
        return taken.about(device.id).with_detail(**request)
    taint = taints.untolerated_taint(device.taints, want.ask.tolerations, search.now) if search.features.device_taints else None
    if taint is not None:
        expired = taints.untolerated_taint([taint], want.ask.tolerations) is None
        return Rejection(RejectionCode.TAINTED, device.id, detail={**request, **taints.detail([taint]), "expired": expired})
    if search.site.counted & bit and not search.features.partitionable_devices:
        return _disabled(search, index, request, "shares counters", "DRAPartitionableDevices")
    if search.counters is not None and search.counters.take(*search.counters.nothing, index) is None and not (
            device.shared and search.held.parted(device.id)):
        return _excluded(search, index, request)
    if not want.ready & bit and device.shared:
        return Rejection(RejectionCode.CAPACITY_USED, device.id, detail=request)
    for which, table, _ in want.tables:
        if not table.has & bit:
            attribute = search.demands[want.claim].constraints[which].attribute
            return Rejection(RejectionCode.ATTRIBUTE_MISSING, device.id, detail={**request, "attribute": attribute})
    return None


def _unlike(search: Search, want: RequestCandidates, index: int, request: dict[str, str]) -> Rejection:
    """Why a device is not what a request asks for."""
    device, bit = search.site.devices[index], 1 << index
    if not search.site.fits(want.ask.selectors).mask & bit:
        term = selector_terms.failing(device, want.ask.selectors, want.ask.owners)
        if term is None:
            return Rejection(RejectionCode.NOT_REACHABLE, device.id, detail=request)
        return Rejection(RejectionCode.SELECTOR_FALSE, device.id, detail={**request, **term.detail})
    if search.site.binding & bit and not search.features.device_binding_and_status:
        return _disabled(search, index, request, "has binding conditions", "DRADeviceBindingConditions")
    if search.site.lazy & bit and search.features.optional_node_operations:
        return _disabled(search, index, request, "skips operations that the node must do", "DRAOptionalNodeOperations")
    return Rejection(RejectionCode.CAPACITY_TOO_SMALL, device.id, detail=request)


def _disabled(search: Search, index: int, request: dict[str, str], what: str, feature: str) -> Rejection:
    return Rejection(RejectionCode.FEATURE_DISABLED, search.site.devices[index].id,
                     detail={**request, "what": what, "feature": feature})
