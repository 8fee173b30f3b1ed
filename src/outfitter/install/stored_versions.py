"""Stored versions of CustomResourceDefinitions. After an upgrade etcd may still have objects in a version that is not stored
any more: they are written again, and the version is removed from `status.storedVersions`, without which no later release could
stop serving it. Called by `apply` once the definitions are served; may be interrupted and repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.errors import Invalid, NotFound
from outfitter.install import resources
from outfitter.store.kube import Kube

PAGE = 500  # objects of one list
SHOWN = 5  # names in a report


async def migrate(kube: Kube, definitions: Sequence[Object], report: Callable[[str], None]) -> None:
    """Conflict: a definition was changed meanwhile."""
    for definition in definitions:
        name = definition["metadata"]["name"]
        live = await kube.get(resources.CRD, name)
        storage = next(version["name"] for version in live["spec"]["versions"] if version["storage"])
        older = [version for version in (live.get("status") or {}).get("storedVersions") or () if version != storage]
        kind = next((kind for kind in kinds.ALL if kind.resource == name), None)
        if not older or kind is None:
            continue
        if refused := await _rewrite(kube, kind):
            more = f" and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
            report(f"{name}: {', '.join(refused[:SHOWN])}{more} could not be written as {storage} and may still be stored as "
                   f"{', '.join(older)}: correct or delete them, and repeat the command")
            continue
        revision = {"resourceVersion": live["metadata"]["resourceVersion"]}
        await kube.patch(resources.CRD, name, {"metadata": revision, "status": {"storedVersions": [storage]}},
                         subresource="status")
        report(f"{name}: all objects are stored as {storage}, none as {', '.join(older)}")


async def _rewrite(kube: Kube, kind: Kind) -> list[str]:
    """Write every object as it is, which stores it in the present version; those that are refused."""
    refused, more = [], ""
    while True:
        listing = await kube.list(kind, limit=PAGE, continue_=more)
        for obj in listing.items:
            name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
            try:
                await kube.patch(kind, name, {}, namespace)
            except NotFound:
                pass  # deleted meanwhile
            except Invalid:
                refused.append(f"{namespace}/{name}" if namespace else name)
        more = listing.continue_
        if not more:
            return refused
