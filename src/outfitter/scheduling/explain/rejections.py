"""A failed search in words: the sentence that says what is missing, and for each request what is wrong with each device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outfitter.scheduling.dra import bounds
from outfitter.scheduling.explain import selector_terms
from outfitter.scheduling.filter.taints import untolerated_taint

if TYPE_CHECKING:
    from outfitter.scheduling.dra.candidates import RequestCandidates
    from outfitter.scheduling.dra.search import Search


@dataclass(frozen=True, slots=True)
class DeviceObstacle:
    """What stands in the way of a request at one device, or at the host as a whole."""

    device: str  # "" for what is not of one device
    request: str
    code: str  # held, reserved, quarantined, unclean, tainted, selector, capacity, counters, attribute, together, updating, ...
    text: str
    passed: int = 0  # for a selector: parts of it that the device has

    def __str__(self) -> str:
        return f"{self.device}: {self.text}" if self.device else self.text


def summary(search: Search) -> str:
    site = search.site
    if site.invalid:
        return f"invalid resource pools were encountered: {'; '.join(f'{pool}: {pool.invalid}' for pool in site.invalid)}"
    why = bounds.why_not(search, search.start())
    if not site.devices:
        why = f"pool {site.incomplete[0]} is being updated" if site.incomplete else "it publishes no devices"
    return why or _drained(search) or "devices match each request, but no choice of them serves all requests together"


def lacking(search: Search) -> tuple[int, int]:
    """How far a host is from serving: devices that match none of the requests' needs, and then those that are not free."""
    unmatched = unfree = 0
    for step in search.steps:
        unmatched += min(max(want.need - want.fit.bit_count(), 0) for want in step.wants)
        unfree += min(max(want.need - want.ready.bit_count(), 0) for want in step.wants)
        unmatched += all(want.ask.everything and not want.need for want in step.wants)
    return unmatched, unfree


def _drained(search: Search) -> str | None:
    for step in search.steps if search.counters is not None else ():
        if not any(want.ask.everything or bounds.packs(search, search.start(), want) for want in step.wants):
            want = step.wants[-1]
            return f"{want.ask.spoken} wants {want.need}: too little is left of the counters that its devices share"
    return None


def obstacles(search: Search, *, deep: bool = True) -> tuple[DeviceObstacle, ...]:
    """Of each request and each device. Without `deep` those devices that are not what is asked for are left out: to say which
    part of a selector they fail takes its time."""
    out = [DeviceObstacle("", "", "updating", f"pool {pool} is being updated: not all of its slices are there")
           for pool in search.site.incomplete]
    for step in search.steps:
        for want in step.wants:
            out += _apart(search, want)
            for index, device in enumerate(search.site.devices):
                if (deep or want.fit >> index & 1) and (why := _why(search, want, index)):
                    out.append(DeviceObstacle(device.id.device, want.ask.name, *why))
    return tuple(dict.fromkeys(out))


def _apart(search: Search, want: RequestCandidates) -> Iterator[DeviceObstacle]:
    """Enough is free, but not with one value of what it must have in common."""
    for which, table, distinct in want.tables:
        together = [(value, (mask & want.ready).bit_count()) for value, mask in table.by.items()]
        if distinct or want.need < 2 or want.ready.bit_count() < want.need or any(free >= want.need for _, free in together):
            continue
        attribute = search.demands[want.claim].constraints[which].attribute
        short = attribute.rpartition("/")[2]
        said = ", ".join(f"{short} {value[1]} has {free} free"
                         for value, free in sorted(together, key=lambda one: (-one[1], str(one[0])))[:4])
        more = ", ..." if len(together) > 4 else ""
        yield DeviceObstacle("", want.ask.name, "together",
                       f"{said}{more}; {want.need} wanted together (matchAttribute {short})")


def _excluded(search: Search, index: int) -> str:
    """Who has what a device shares with others."""
    mine = search.site.devices[index]
    sets = {use.set for use in mine.uses}
    others = [device for device in search.site.devices if device is not mine and device.id.pool == mine.id.pool
              and search.held.touches(device.id) and sets & {use.set for use in device.uses}]
    who = [f"{device.id.device}{f' ({why})' if (why := search.held.whole.get(device.id)) else ''}" for device in others]
    words = ", ".join(who[:3]) + (" and more" if len(who) > 3 else "")
    return f"excluded by {words or 'others'}, with which it shares {', '.join(sorted(sets))}"


def _why(search: Search, want: RequestCandidates, index: int) -> tuple[str, str] | tuple[str, str, int] | None:
    """Why a request cannot have a device (a word for programs, a sentence for people, for a selector how near it is), or None
    if it can by itself."""
    device, bit = search.site.devices[index], 1 << index
    if index in want.wrong:
        return "unclear", f"{want.ask.spoken} cannot be told of it: {want.wrong[index]}"
    if not want.fit & bit:
        if want.ask.only is not None and device.id not in want.ask.only:
            return None  # others were chosen, and that is all there is to say
        return _unlike(search, want, index)
    if search.blocked & bit and not want.ask.admin:
        why = search.held.whole.get(device.id) or search.held.kept.get(device.id) or "is held already"
        return ("held" if why.startswith(("held", "is held")) else why.partition(" ")[0]), why
    taint = untolerated_taint(device.taints, want.ask.tolerations, search.now) if search.features.device_taints else None
    if taint is not None:
        words = f"{taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}"
        longer = " any longer" if untolerated_taint([taint], want.ask.tolerations) is None else ""
        return "tainted", f"tainted {words}, which {want.ask.spoken} does not tolerate{longer}"
    if search.site.counted & bit and not search.features.partitionable_devices:
        return "off", "shares counters, which is switched off"
    if search.counters is not None and search.counters.take(*search.counters.nothing, index) is None and not (
            device.shared and search.held.parted(device.id)):
        return "counters", _excluded(search, index)
    if not want.ready & bit and device.shared:
        return "capacity", f"has too little capacity left for {want.ask.spoken}"
    for which, table, _ in want.tables:
        if not table.has & bit:
            return "attribute", f"has no {search.demands[want.claim].constraints[which].attribute}"
    return None


def _unlike(search: Search, want: RequestCandidates, index: int) -> tuple[str, str] | tuple[str, str, int]:
    """Why a device is not what a request asks for."""
    device, bit = search.site.devices[index], 1 << index
    if not search.site.fits(want.ask.selectors).mask & bit:
        found = selector_terms.failing(device, want.ask.selectors, want.ask.owners)
        return ("selector", found.text, found.passed) if found else ("elsewhere", "cannot be used on this host")
    if search.site.binding & bit and not search.features.device_binding_and_status:
        return "off", "has binding conditions, which are switched off"
    if search.site.lazy & bit and search.features.optional_node_operations:
        return "off", "leaves out operations that the node cannot leave out"
    return "capacity", f"has too little capacity for {want.ask.spoken}"
