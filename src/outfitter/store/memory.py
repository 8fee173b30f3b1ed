"""The backend in memory: reads, lists, watches and writes with the semantics of a Kubernetes API server; nothing on disk.

A write is computed as a `Transaction` against the newest state, which includes accepted writes that are not durable yet.
Readers and watchers see it when it is durable: here at once, in the subclass `sqlite.SQLite` after its transaction is on disk.
Used by the embedded product through `sqlite`, by simulations and by tests."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from outfitter.api import write_request
from outfitter.api.kinds import Kind, Object
from outfitter.errors import BadRequest, Expired, OutfitterError, shortened
from outfitter.store import base
from outfitter.store.clock import Clock, SystemClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.transaction import Transaction, apply_patch, missing
from outfitter.store.watch_cache import Key, ObjectChange, Record, Selection, WatchCache, Watcher

T = TypeVar("T")
GroupResource = tuple[str, str]  # group, plural


class OpenRules:
    """No rules: every write is admitted, deleted objects are removed at once."""

    def admit(self, change: write_request.WriteRequest) -> Object:
        return change.new

    def fills_in(self, kind: Kind) -> bool:
        return False

    def grace(self, kind: Kind, obj: Object, asked: int | None) -> int:
        return 0

    def blocks_deletion(self, kind: Kind, obj: Object) -> bool:
        return False


class Memory:
    """Objects in memory. Reads return committed objects; every write goes through `write`."""

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
        self.revision = revision  # of the newest committed change
        self._issued = revision  # the highest revision given to a write
        self._keep, self._keep_bytes = keep, keep_bytes
        self._floor = revision  # changes before this revision are not in any log
        self._caches: dict[GroupResource, WatchCache] = {}
        self._closed = False

    # -- reading

    def watch_cache(self, kind: Kind) -> WatchCache:
        name = (kind.group, kind.plural)
        if name not in self._caches:
            self._caches[name] = WatchCache(kind, self._floor, self._keep, self._keep_bytes)
        return self._caches[name]

    def committed_record(self, kind: Kind, name: str, namespace: str = "") -> Record | None:
        """The committed record, not copied."""
        return self.watch_cache(kind).records.get((namespace if kind.namespaced else "", name))

    def latest_record(self, kind: Kind, name: str, namespace: str = "") -> Record | None:
        """The newest record, including accepted writes that are not durable yet."""
        return self.committed_record(kind, name, namespace)

    def latest_records(self, kind: Kind) -> dict[Key, Record]:
        """The newest records of a kind, including accepted writes that are not durable yet."""
        return dict(self.watch_cache(kind).records)

    def latest_indexed(self, kind: Kind, value: str) -> dict[Key, Record]:
        """The newest records with this value in the kind's indexed field, including accepted writes that are not durable
        yet."""
        return dict(self.watch_cache(kind).index.get(value, ()))

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
        records, revision, token, remaining = self.list_records(kind, selection, limit=limit, continue_=continue_)
        return base.Listing([record.object() for record in records], str(revision), token, remaining)

    def list_records(
        self, kind: Kind, selection: Selection, *, limit: int = 0, continue_: str = "", at: int | None = None
    ) -> tuple[Sequence[Record], int, str, int | None]:
        """One page of a list: the records, the revision of the list, the continue token and the number of records on later
        pages (None on the last page). `at` lists the state at an earlier revision."""
        cache, start = self.watch_cache(kind), None
        if continue_:
            at, start = _continued(continue_)
        if at is not None and (at < cache.compacted or at > self.revision):
            raise Expired(
                "The provided continue parameter is too old to display a consistent list result: list again without it"
                if continue_
                else f"too old resource version: {at} ({cache.compacted})"
            )
        revision = self.revision if at is None else at
        matching = [record for record in cache.at(revision, selection.namespace, start) if record in selection]
        if not limit or len(matching) <= limit:
            return matching, revision, "", None
        page = matching[:limit]
        token = msgspec.json.encode({"rv": revision, "start": page[-1].key})
        return page, revision, base64.urlsafe_b64encode(token).decode(), len(matching) - limit

    def open_watch(self, kind: Kind, selection: Selection, since: int) -> Watcher:
        """A watcher that starts after revision `since`. Expired when the log no longer reaches back to it, or when it is newer
        than the newest change (a backup was restored that is older than what the caller saw)."""
        cache = self.watch_cache(kind)
        if since < cache.compacted or since > self.revision:
            raise Expired(f"too old resource version: {since} ({max(cache.compacted, self.revision)})")
        return Watcher(cache, selection, since)

    async def watch(
        self, kind: Kind, namespace: str = "", *, since: str, labels: str = "", fields: str = "", bookmarks: bool = False
    ) -> AsyncIterator[base.Event]:
        watcher = self.open_watch(kind, Selection(kind, namespace, labels, fields), revision_number(since))
        due = asyncio.Event()
        bookmark_task = asyncio.create_task(self._wake_for_bookmarks(watcher, due)) if bookmarks else None
        try:
            while not watcher.ended:
                changes = await watcher.next()
                if watcher.lost:
                    raise Expired("the watcher was too slow and its position was compacted: list again")
                sent = max(
                    watcher.revision, self.revision
                )  # read now: more may be committed while the consumer handles the events
                for type_, change in changes:
                    yield base.Event(type_, change.object(type_))
                if due.is_set() and not watcher.ended:
                    due.clear()
                    yield base.Event("BOOKMARK", bookmark(kind, sent))
        finally:
            watcher.close()
            if bookmark_task is not None:
                bookmark_task.cancel()

    async def _wake_for_bookmarks(self, watcher: Watcher, due: asyncio.Event, every: float = 60.0) -> None:
        while True:
            await self.clock.sleep(every)
            due.set()
            watcher.wake()

    # -- writing

    async def write(
        self, work: Callable[[Transaction], T], *, dry_run: bool = False, by: write_request.Writer = write_request.OURSELVES
    ) -> T:
        """Let `work` compute changes against the newest state, then commit all of them together. When `work` raises, nothing is
        written. `work` must not await anything."""
        transaction = Transaction(self, self._issued, dry_run=dry_run, by=by)
        try:
            result = work(transaction)
        except OutfitterError:
            await self._wait_durable()  # the error may be due to a write that is not durable yet
            raise
        if dry_run or not transaction.changes:
            await self._wait_durable()
            return result
        if (durable := self._accept(transaction)) is not None:
            await durable
        return result

    async def _wait_durable(self) -> None:
        """Wait until everything that `latest_record` shows is durable."""

    def _accept(self, transaction: Transaction) -> asyncio.Future[None] | None:
        """Accept the changes of a transaction; returns what to await until they are durable, None when they are."""
        self._issued = transaction.revision
        return self._persist(transaction.changes)

    def _persist(self, changes: Sequence[ObjectChange]) -> asyncio.Future[None] | None:
        self._publish(changes)
        return None

    @property
    def closed(self) -> bool:
        """Whether nothing is written any more."""
        return self._closed

    @property
    def busy(self) -> bool:
        """Whether accepted writes are not durable yet."""
        return False

    def _publish(self, changes: Sequence[ObjectChange]) -> None:
        touched: dict[GroupResource, None] = {}
        for change in changes:
            record = change.next or change.previous
            assert record is not None
            self.watch_cache(record.kind).publish(change)
            touched[record.kind.group, record.kind.plural] = None
            self.revision = change.revision
        for name in touched:
            for watcher in self._caches[name].watchers:
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
        for cache in self._caches.values():
            for watcher in list(cache.watchers):
                watcher.end()


def revision_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise BadRequest(f"resourceVersion: Invalid value: {text!r}: must be the number from an earlier answer")
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
        raise BadRequest(f"continue key is not valid: {shortened(token)!r} is not the token of an earlier list") from error
