"""The ResourceSlices in which devices of a host stand, whichever driver publishes them. Read-only."""

from __future__ import annotations

from collections.abc import Collection

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.store.base import Store

Pool = tuple[str, str]  # driver and pool name


async def slices_of(store: Store, host: str, pools: Collection[Pool]) -> list[Object]:
    """The slices of a host; with those of all hosts if one of these pools is not tied to it."""
    slices = (await store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={host}")).items
    local = {(part["spec"]["driver"], part["spec"]["pool"]["name"]) for part in slices}
    return slices if local.issuperset(pools) else (await store.list(kinds.RESOURCE_SLICE)).items
