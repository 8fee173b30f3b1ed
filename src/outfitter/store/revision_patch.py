"""Merge patches at the revision that was read: a conclusion drawn from an old state is not written over a newer one, and
another object of the same name does not get what was meant for one that is gone. Controllers and the node agent write status
this way; actions on a VM write several patches in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt.action_patches import Read
from outfitter.api.kubevirt.vm_actions import ObjectPatch
from outfitter.errors import Conflict, NotFound
from outfitter.store.base import Store

ATTEMPTS = 5  # of `patch_decided`


async def patch_at_revision(
    store: Store, kind: Kind, obj: Mapping[str, Any], change: Mapping[str, Any], subresource: Literal["", "status"] = "", *,
    dry_run: bool = False,
) -> Object:
    """The object after the patch. Conflict: it was written since `obj` was read."""
    meta = obj["metadata"]
    body = {**change, "metadata": {**change.get("metadata", {}), "resourceVersion": meta["resourceVersion"]}}
    return await store.patch(kind, meta["name"], body, meta.get("namespace", ""), subresource=subresource, dry_run=dry_run)


async def patch_decided(
    store: Store, name: str, namespace: str, read: Sequence[Kind], decide: Callable[[Read], Iterable[ObjectPatch]], *,
    dry_run: bool = False,
) -> None:
    """Read the objects of these kinds with this name, and write the patches that `decide` returns for them, in order. Begins
    again when one was written since it was read, or between two patches of it; Conflict after several attempts."""
    for attempt in range(1, ATTEMPTS + 1):
        newest = {kind: obj for kind in read if (obj := await _found(store, kind, name, namespace)) is not None}
        patches = decide(newest.get)
        try:
            for change in patches:
                if change.creates:
                    await store.create(change.kind, change.patch, dry_run=dry_run)
                    continue
                written = await patch_at_revision(store, change.kind, newest[change.kind], change.patch, change.subresource,
                                                  dry_run=dry_run)
                if not dry_run:
                    newest[change.kind] = written
        except Conflict:
            if attempt == ATTEMPTS:
                raise
        else:
            return


async def _found(store: Store, kind: Kind, name: str, namespace: str) -> Object | None:
    try:
        return await store.get(kind, name, namespace)
    except NotFound:
        return None


async def patch_status(store: Store, kind: Kind, obj: Mapping[str, Any], status: Mapping[str, Any]) -> Object:
    """Merges the fields into the object's status."""
    return await patch_at_revision(store, kind, obj, {"status": status}, "status")
