"""The ResourceSlices in which devices of a host stand, whichever driver publishes them. Read-only."""

from __future__ import annotations

from collections.abc import Collection

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.store.base import Store

Pool = tuple[str, str]  # driver and pool name


async def slices_of(store: Store, host: str, pools: Collection[Pool]) -> list[Object]:
    """The slices of a host; and for pools that are not tied to it, those of their drivers that are tied to no host."""
    slices = (await store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={host}")).items
    local = {(part["spec"]["driver"], part["spec"]["pool"]["name"]) for part in slices}
    for driver in sorted({driver for driver, _ in set(pools) - local}):
        slices += (await store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName=,spec.driver={driver}")).items
    return slices
