"""Merge patches at the revision that was read: a conclusion drawn from an old state is not written over a newer one, and
another object of the same name does not get what was meant for one that is gone. Controllers and the node agent write status
this
way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from outfitter.api.kinds import Kind, Object
from outfitter.store.base import Store


async def patch_at_revision(
    store: Store, kind: Kind, obj: Mapping[str, Any], change: Mapping[str, Any], subresource: Literal["", "status"] = ""
) -> Object:
    """The object after the patch. Conflict: it was written since `obj` was read."""
    meta = obj["metadata"]
    body = {**change, "metadata": {**change.get("metadata", {}), "resourceVersion": meta["resourceVersion"]}}
    return await store.patch(kind, meta["name"], body, meta.get("namespace", ""), subresource=subresource)


async def patch_status(store: Store, kind: Kind, obj: Mapping[str, Any], status: Mapping[str, Any]) -> Object:
    """Merges the fields into the object's status."""
    return await patch_at_revision(store, kind, obj, {"status": status}, "status")
