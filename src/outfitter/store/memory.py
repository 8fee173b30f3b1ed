"""The home in memory: all the manners of an API server's storage, and nothing on disk.

A write is worked out as a `Transaction` against the newest state, including writes that are still on their way to the disk; it
is seen by readers and watchers only when it is safe. Here that is at once; `sqlite` waits for its journal."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from outfitter.api import write_request
from outfitter.api.kinds import Kind, Object
from outfitter.errors import BadRequest, Expired, OutfitterError
from outfitter.store import base
from outfitter.store.clock import Clock, SystemClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.transaction import Transaction, apply_patch, missing
from outfitter.store.watch_cache import Key, ObjectChange, Record, Selection, WatchCache, Watcher

T = TypeVar("T")
ShelfName = tuple[str, str]  # group, plural


class OpenRules:
    """No rules: everything is admitted, nothing lingers."""

    def admit(self, change: write_request.WriteRequest) -> Object:
        return change.new

    def grace(self, kind: Kind, obj: Object, asked: int | None) -> int:
        return 0

    def blocks_deletion(self, kind: Kind, obj: Object) -> bool:
        return False


class Memory:
    """Objects in memory. Reads give what is committed; every write goes through `write`."""

    atomic = True

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        names: IdGenerator | None = None,
        rules: base.Rules | None = None,
        keep: int = 8192,
        keep_bytes: int = 64 << 20,
        revision: int = 0,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.names = names or IdGenerator()
        self.rules: base.Rules = rules or OpenRules()
        self.revision = revision  # of the newest change that readers can see
        self._issued = revision  # the highest revision given to a write
        self._keep, self._keep_bytes = keep, keep_bytes
        self._floor = revision  # nothing before this is known
        self._shelves: dict[ShelfName, WatchCache] = {}
        self._closed = False

    # -- reading

    def watch_cache(self, kind: Kind) -> WatchCache:
        name = (kind.group, kind.plural)
        if name not in self._shelves:
            self._shelves[name] = WatchCache(kind, self._floor, self._keep, self._keep_bytes)
        return self._shelves[name]

    def committed_record(self, kind: Kind, name: str, namespace: str = "") -> Record | None:
        """The committed record, without waiting and without a copy."""
        return self.watch_cache(kind).records.get((namespace if kind.namespaced else "", name))

    def latest_record(self, kind: Kind, name: str, namespace: str = "") -> Record | None:
        """The newest record, committed or on its way."""
        return self.committed_record(kind, name, namespace)

    def latest_records(self, kind: Kind) -> dict[Key, Record]:
        """Every newest record of a kind, committed or on its way."""
        return dict(self.watch_cache(kind).records)

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        return self.record(kind, name, namespace).object()

    def record(self, kind: Kind, name: str, namespace: str = "") -> Record:
        record = self.committed_record(kind, name, namespace)
        if record is None:
            raise missing(kind, name)
        return record

    async def list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0, continue_: str = ""
    ) -> base.Listing:
        selection = Selection(kind, namespace, labels, fields)
        records, revision, more, left = self.list_records(kind, selection, limit=limit, continue_=continue_)
        return base.Listing([record.object() for record in records], str(revision), more, left)

    def list_records(
        self, kind: Kind, selection: Selection, *, limit: int = 0, continue_: str = "", at: int | None = None
    ) -> tuple[Sequence[Record], int, str, int | None]:
        """Part of a list as records: the records, the revision of the whole, the token for the rest, how many are left."""
        shelf, start = self.watch_cache(kind), None
        if continue_:
            at, start = _continued(continue_)
        if at is not None and (at < shelf.compacted or at > self.revision):
            raise Expired(
                "The provided continue parameter is too old to display a consistent list result: list again without it"
                if continue_
                else f"too old resource version: {at} ({shelf.compacted})"
            )
        revision = self.revision if at is None else at
        found = [record for record in shelf.at(revision, selection.namespace, start) if record in selection]
        if not limit or len(found) <= limit:
            return found, revision, "", None
        page = found[:limit]
        token = msgspec.json.encode({"rv": revision, "start": page[-1].key})
        return page, revision, base64.urlsafe_b64encode(token).decode(), len(found) - limit

    def open_watch(self, kind: Kind, selection: Selection, since: int) -> Watcher:
        """A watch as a position to read from. Expired when the log does not reach back that far, or when `since` lies in the
        future (the data is older than what the caller saw: a restored backup)."""
        shelf = self.watch_cache(kind)
        if since < shelf.compacted or since > self.revision:
            raise Expired(f"too old resource version: {since} ({max(shelf.compacted, self.revision)})")
        return Watcher(shelf, selection, since)

    async def watch(
        self, kind: Kind, namespace: str = "", *, since: str, labels: str = "", fields: str = "", bookmarks: bool = False
    ) -> AsyncIterator[base.Event]:
        watcher = self.open_watch(kind, Selection(kind, namespace, labels, fields), revision_number(since))
        due = asyncio.Event()
        bell = asyncio.create_task(self._ring(watcher, due)) if bookmarks else None
        try:
            while not watcher.ended:
                steps = await watcher.next()
                if watcher.lost:
                    raise Expired("the watcher was too slow and lost its place: list again")
                told = max(watcher.revision, self.revision)  # now: while the steps are handed out, more may happen
                for type_, step in steps:
                    yield base.Event(type_, step.object(type_))
                if due.is_set() and not watcher.ended:
                    due.clear()
                    yield base.Event("BOOKMARK", bookmark(kind, told))
        finally:
            watcher.close()
            if bell is not None:
                bell.cancel()

    async def _ring(self, watcher: Watcher, due: asyncio.Event, every: float = 60.0) -> None:
        while True:
            await self.clock.sleep(every)
            due.set()
            watcher.wake()

    # -- writing

    async def write(
        self, work: Callable[[Transaction], T], *, dry_run: bool = False, by: write_request.Writer = write_request.OURSELVES
    ) -> T:
        """Work out changes against the newest state, then make all of them at once. Whatever `work` raises, nothing
        happened. `work` must not wait."""
        transaction = Transaction(self, self._issued, dry_run=dry_run, by=by)
        try:
            result = work(transaction)
        except OutfitterError:
            await self._settled()  # it may stand on a write that is not safe yet
            raise
        if dry_run or not transaction.changes:
            await self._settled()
            return result
        if (safe := self._begin(transaction)) is not None:
            await safe
        return result

    async def _settled(self) -> None:
        """Wait until all that `latest` shows is safe."""

    def _begin(self, transaction: Transaction) -> asyncio.Future[None] | None:
        """Make its changes; what to wait for until they are safe."""
        self._issued = transaction.revision
        return self._persist(transaction.changes)

    def _persist(self, steps: Sequence[ObjectChange]) -> asyncio.Future[None] | None:
        self._publish(steps)
        return None

    @property
    def busy(self) -> bool:
        """Something is not safe yet."""
        return False

    def _publish(self, steps: Sequence[ObjectChange]) -> None:
        touched: dict[ShelfName, None] = {}
        for step in steps:
            record = step.next or step.previous
            assert record is not None
            self.watch_cache(record.kind).publish(step)
            touched[record.kind.group, record.kind.plural] = None
            self.revision = step.revision
        for name in touched:
            for watcher in self._shelves[name].watchers:
                watcher.wake()

    async def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
        return (await self.write(lambda transaction: transaction.create(kind, obj), dry_run=dry_run)).object()

    async def create_unsynced(self, kind: Kind, obj: Object) -> None:
        await self.create(kind, obj)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        return (await self.write(lambda transaction: transaction.replace(kind, obj, subresource), dry_run=dry_run)).object()

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Any,
        namespace: str = "",
        *,
        how: base.PatchType = "merge",
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        record = await self.write(
            lambda transaction: transaction.change(
                kind, name, namespace, lambda old: apply_patch(kind, old, patch, how), subresource
            ),
            dry_run=dry_run,
        )
        return record.object()

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str = "",
        *,
        uid: str | None = None,
        revision: str | None = None,
        propagation: base.Propagation | None = None,
        grace: int | None = None,
        dry_run: bool = False,
    ) -> Object:
        record, _ = await self.write(
            lambda transaction: transaction.delete(
                kind, name, namespace, uid=uid, revision=revision, propagation=propagation, grace=grace
            ),
            dry_run=dry_run,
        )
        return record.object()

    async def commit(self, writes: Sequence[base.Write], *, dry_run: bool = False) -> Sequence[Object | None]:
        def work(transaction: Transaction) -> Sequence[Record | None]:
            return [transaction.apply(write) for write in writes]

        return [record.object() if record else None for record in await self.write(work, dry_run=dry_run)]

    async def close(self) -> None:
        self._closed = True
        for shelf in self._shelves.values():
            for watcher in list(shelf.watchers):
                watcher.end()


def revision_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise BadRequest(f"resourceVersion: Invalid value: {text!r}: it is the number that an earlier answer carried")
    return int(text)


def bookmark(kind: Kind, revision: int) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind,
            "metadata": {"resourceVersion": str(revision), "creationTimestamp": None}}


def _continued(token: str) -> tuple[int, tuple[str, str]]:
    try:
        value = msgspec.json.decode(base64.urlsafe_b64decode(token.encode()))
        namespace, name = value["start"]
        return int(value["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"continue key is not valid: {token!r} did not come from a list") from error
