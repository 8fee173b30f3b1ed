"""A store of which only objects are read that can be read (`api.validate.readable`): `list` leaves the others out, and `get`
raises Unreadable, which is not NotFound: the object exists, and nothing is deleted or released for its sake.

Controllers, agents and the commands that explain read through one; informers check for themselves. Writes are passed on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from outfitter.api.kinds import Kind, Object
from outfitter.api.validate import readable
from outfitter.api.validate.readable import UnreadableObject
from outfitter.store import base


def ignore(found: UnreadableObject) -> None:
    """For readers whose objects an informer reports."""


def never(kind: Kind, obj: Object) -> bool:
    """For readers without informers."""
    return False


class ReadableStore:
    def __init__(
        self, store: base.Store, report: Callable[[UnreadableObject], None] = ignore,
        known: Callable[[Kind, Object], bool] = never,
    ) -> None:
        """`report` is called for each object that a list leaves out; `known` says that this version of an object was found
        readable before."""
        self.raw, self._report, self._known = store, report, known
        self.atomic = store.atomic

    def _unreadable(self, kind: Kind, obj: Object) -> UnreadableObject | None:
        return None if self._known(kind, obj) else readable.unreadable(kind, obj)

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        obj = await self.raw.get(kind, name, namespace)
        if (found := self._unreadable(kind, obj)) is not None:
            raise found.error()
        return obj

    async def list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0, continue_: str = ""
    ) -> base.Listing:
        listing = await self.raw.list(kind, namespace, labels=labels, fields=fields, limit=limit, continue_=continue_)
        items = []
        for obj in listing.items:
            if (found := self._unreadable(kind, obj)) is None:
                items.append(obj)
            else:
                self._report(found)
        return base.Listing(items, listing.revision, listing.continue_, listing.remaining)

    def watch(
        self, kind: Kind, namespace: str = "", *, since: str, labels: str = "", fields: str = "", bookmarks: bool = False
    ) -> AsyncIterator[base.Event]:
        return self.raw.watch(kind, namespace, since=since, labels=labels, fields=fields, bookmarks=bookmarks)

    async def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
        return await self.raw.create(kind, obj, dry_run=dry_run)

    async def create_unsynced(self, kind: Kind, obj: Object) -> None:
        await self.raw.create_unsynced(kind, obj)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        return await self.raw.replace(kind, obj, subresource=subresource, dry_run=dry_run)

    async def patch(
        self, kind: Kind, name: str, patch: Any, namespace: str = "", *, how: base.PatchType = "merge", subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        return await self.raw.patch(kind, name, patch, namespace, how=how, subresource=subresource, dry_run=dry_run)

    async def delete(
        self, kind: Kind, name: str, namespace: str = "", *, uid: str | None = None, revision: str | None = None,
        propagation: base.Propagation | None = None, grace: int | None = None, dry_run: bool = False,
    ) -> Object:
        return await self.raw.delete(kind, name, namespace, uid=uid, revision=revision, propagation=propagation, grace=grace,
                                     dry_run=dry_run)

    async def commit(self, writes: Sequence[base.Write], *, dry_run: bool = False) -> Sequence[Object | None]:
        return await self.raw.commit(writes, dry_run=dry_run)

    async def close(self) -> None:
        await self.raw.close()
