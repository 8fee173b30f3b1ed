"""A failed search in words: the sentence that says what is missing, and for each request what is wrong with each device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outfitter.scheduling import limits
from outfitter.scheduling.tolerations import unbearable

if TYPE_CHECKING:
    from outfitter.scheduling.search import Search, Want


def summary(search: Search) -> str:
    site = search.site
    if site.invalid:
        return f"invalid resource pools were encountered: {'; '.join(f'{pool}: {pool.invalid}' for pool in site.invalid)}"
    why = limits.why_not(search, search.start())
    if not site.devices:
        why = f"pool {site.incomplete[0]} is being updated" if site.incomplete else "it publishes no devices"
    return why or _drained(search) or "devices match each request, but no choice of them serves all requests together"


def _drained(search: Search) -> str | None:
    for step in search.steps if search.counters is not None else ():
        if not any(want.ask.everything or limits.packs(search, search.start(), want) for want in step.wants):
            want = step.wants[-1]
            return f"request {want.ask.name} wants {want.need}: too little is left of the counters that its devices share"
    return None


def details(search: Search) -> tuple[str, ...]:
    out = [f"pool {pool} is being updated: not all of its slices are there" for pool in search.site.incomplete]
    for step in search.steps:
        for want in step.wants:
            for index, device in enumerate(search.site.devices):
                if why := _why(search, want, index):
                    out.append(f"{device.id.device}: {why}")
    return tuple(dict.fromkeys(out))


def _excluded(search: Search, index: int) -> str:
    """Who has what a device shares with others."""
    mine = search.site.devices[index]
    sets = {use.set for use in mine.uses}
    others = [device for device in search.site.devices if device is not mine and device.id.pool == mine.id.pool
              and search.held.touches(device.id) and sets & {use.set for use in device.uses}]
    who = [f"{device.id.device}{f' ({why})' if (why := search.held.whole.get(device.id)) else ''}" for device in others]
    words = ", ".join(who[:3]) + (" and more" if len(who) > 3 else "")
    return f"excluded by {words or 'others'}, with which it shares {', '.join(sorted(sets))}"


def _why(search: Search, want: Want, index: int) -> str | None:
    """Why a request cannot have a device, or None if it can by itself."""
    device, bit = search.site.devices[index], 1 << index
    if index in want.wrong:
        return f"request {want.ask.name} cannot be told of it: {want.wrong[index]}"
    if not want.fit & bit:
        selected = search.site.fits(want.ask.selectors).mask & bit
        if not selected:
            return f"is not what request {want.ask.name} asks for"
        if search.site.binding & bit and not search.features.device_binding_and_status:
            return "has binding conditions, which are switched off"
        if search.site.lazy & bit and search.features.optional_node_operations:
            return "leaves out operations that the node cannot leave out"
        return f"has too little capacity for request {want.ask.name}"
    if search.blocked & bit and not want.ask.admin:
        return search.held.whole.get(device.id) or "is held already"
    taint = unbearable(device.taints, want.ask.tolerations) if search.features.device_taints else None
    if taint is not None:
        words = f"{taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}"
        return f"tainted {words}, which request {want.ask.name} does not tolerate"
    if search.site.counted & bit and not search.features.partitionable_devices:
        return "shares counters, which is switched off"
    if search.counters is not None and search.counters.take(*search.counters.nothing, index) is None and not (
            device.shared and search.held.parted(device.id)):
        return _excluded(search, index)
    for which, table, _ in want.tables:
        if not table.has & bit:
            return f"has no {search.demands[want.claim].constraints[which].attribute}"
    return None
