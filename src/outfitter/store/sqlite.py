"""The backend on disk: SQLite in WAL mode with full syncs, one writer thread, group commit.

Reads and watches are served from memory (`memory.Memory`); the file is read once, at start. A write is visible and acknowledged
only after its transaction is on disk. Writes that arrive while a transaction is running share the next one. A database of
another program (application_id) is never modified. Files, locks and checks at start: `disk`. Used by the embedded product."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outfitter.api.kinds import Kind, Object
from outfitter.errors import Unavailable
from outfitter.store import base
from outfitter.store.clock import Clock, SystemClock
from outfitter.store.disk.database import Database, RowKey
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from outfitter.store.transaction import Transaction
from outfitter.store.watch_cache import Key, ObjectChange, Record

log = logging.getLogger(__name__)
MAINTAIN_SECONDS = 5.0  # after a write until the log is copied into the database and the record of the revision is synced


class Batch(NamedTuple):
    """The changes of one write, and the future that is resolved when they are durable. Without changes it waits for earlier
    ones."""

    changes: Sequence[ObjectChange]
    done: asyncio.Future[None]


class SQLite(Memory):
    """The memory backend, with every change written to SQLite before it is committed."""

    def __init__(
        self,
        folder: Path,
        kinds: Iterable[Kind],
        *,
        clock: Clock | None = None,
        names: IdGenerator | None = None,
        rules: base.Rules | None = None,
        synchronous: str = "FULL",
        keep: int = 8192,
        accept_lost_writes: bool = False,
    ) -> None:
        clock = clock or SystemClock()
        self._disk = Database(folder, synchronous=synchronous, accept_lost_writes=accept_lost_writes, clock=clock)
        revision, records = self._disk.load({(kind.group, kind.plural): kind for kind in kinds})
        super().__init__(clock=clock, names=names, rules=rules, keep=keep, revision=revision)
        for record in records:
            self.watch_cache(record.kind).load(record)
        self._pending: dict[RowKey, tuple[int, Record | None]] = {}
        self._queued: list[Batch] = []  # waiting for the next transaction
        self._busy = False  # a transaction is running or scheduled
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # for the writer thread; None ends it
        self._thread: threading.Thread | None = None
        self._transactions = 0  # written since the last maintenance
        self._maintenance: asyncio.Task[None] | None = None

    # -- accepted writes that are not durable yet

    def latest_record(self, kind: Kind, name: str, namespace: str = "") -> Record | None:
        row_key = (kind.group, kind.plural, namespace if kind.namespaced else "", name)
        if row_key in self._pending:
            return self._pending[row_key][1]
        return self.committed_record(kind, name, namespace)

    def latest_records(self, kind: Kind) -> dict[Key, Record]:
        records = {**super().latest_records(kind), **self._pending_records(kind)}
        return {key: record for key, record in records.items() if record is not None}

    def latest_indexed(self, kind: Kind, value: str) -> dict[Key, Record]:
        records = {**super().latest_indexed(kind, value), **self._pending_records(kind)}
        return {key: record for key, record in records.items() if record is not None and record.indexed == value}

    def _pending_records(self, kind: Kind) -> dict[Key, Record | None]:
        return {(namespace, name): record for (group, plural, namespace, name), (_, record) in self._pending.items()
                if plural == kind.plural and group == kind.group}

    async def _wait_durable(self) -> None:
        if self._busy:
            await self._enqueue(())

    async def create_unsynced(self, kind: Kind, obj: Object) -> None:
        transaction = Transaction(self, self._issued)
        transaction.create(kind, obj)
        self._accept(transaction)

    @property
    def busy(self) -> bool:
        return self._busy

    def _persist(self, changes: Sequence[ObjectChange]) -> asyncio.Future[None]:
        if self._closed:
            raise Unavailable("the store is closing")
        for change in changes:
            self._pending[_row_key(change)] = (change.revision, change.next)
        return self._enqueue(changes)

    def _enqueue(self, changes: Sequence[ObjectChange]) -> asyncio.Future[None]:
        """Queue changes for the next transaction. It starts after every task that is ready now has run, so that their writes
        join."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queued.append(Batch(changes, done))
        if not self._busy:
            self._busy = True
            loop.call_soon(self._start_transaction, loop)
        return done

    def _start_transaction(self, loop: asyncio.AbstractEventLoop) -> None:
        batches, self._queued = self._queued, []
        if not any(batch.changes for batch in batches):
            self._resolve(batches)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()
        self._queue.put(functools.partial(self._write, loop, batches))

    def _written(self, batches: Sequence[Batch]) -> None:
        self._transactions += 1
        if self._maintenance is None:
            self._maintenance = asyncio.create_task(self._maintain_later(), name="database maintenance")
        for batch in batches:
            self._publish(batch.changes)
            for change in batch.changes:
                row_key = _row_key(change)
                if self._pending[row_key][0] == change.revision:
                    del self._pending[row_key]
        self._resolve(batches)

    def _lost(self, batches: Sequence[Batch], error: Exception) -> None:
        """A transaction failed. All accepted writes are discarded, as they may depend on those that were lost."""
        self._pending.clear()
        dependent, self._queued = self._queued, []
        self._resolve(batches, str(error))
        self._resolve(dependent, "an earlier write was not stored")

    def _resolve(self, batches: Sequence[Batch], error: str = "") -> None:
        for batch in batches:
            if batch.done.done():
                continue  # the caller was cancelled
            if not error:
                batch.done.set_result(None)
            else:
                batch.done.set_exception(Unavailable(f"the write was not stored: {error}", retry_after=5))
                batch.done.exception()  # mark it as retrieved: the caller may be cancelled before it awaits
        self._busy = bool(self._queued)
        if self._queued:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._start_transaction, loop)  # after the callers that were just resumed

    # -- maintenance

    async def _maintain_later(self) -> None:
        """Some seconds after the last write everything is in the database itself. The writer thread does it, between
        transactions."""
        loop = asyncio.get_running_loop()
        idle = False
        while not idle or self._transactions:
            await self.clock.sleep(MAINTAIN_SECONDS)
            idle, self._transactions = not self._transactions, 0
            more = True
            while more:
                done: asyncio.Future[bool] = loop.create_future()
                self._queue.put(functools.partial(self._maintain, loop, done, idle=idle))
                more = await done
        self._maintenance = None

    def _maintain(self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[bool], *, idle: bool) -> None:
        more = False
        try:
            more = self._disk.maintain(idle=idle)
        except (sqlite3.Error, OSError, Unavailable) as error:  # disk full, removed or moved: tried again after the next write
            log.error("the log was not copied into the database: %s", error)
        _call_in_loop(loop, _resolve_maintenance, done, more)

    # -- the writer thread

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()

    def _write(self, loop: asyncio.AbstractEventLoop, batches: Sequence[Batch]) -> None:
        try:
            self._transact(batches)
        except Exception as error:  # any error: the waiting callers must be resumed
            expected = isinstance(error, sqlite3.OperationalError | Unavailable)  # disk full, removed or moved
            log.error("the transaction was not written: %s", error, exc_info=not expected)
            _call_in_loop(loop, self._lost, batches, error)
        else:
            _call_in_loop(loop, self._written, batches)

    def _transact(self, batches: Sequence[Batch]) -> None:
        changes = [change for batch in batches for change in batch.changes]
        last = {_row_key(change): change for change in changes}  # of several changes of one object only the last is stored
        self._disk.write(
            [(*row_key, change.revision, change.next.data) for row_key, change in last.items() if change.next is not None],
            [row_key for row_key, change in last.items() if change.next is None],
            changes[-1].revision,
        )

    async def close(self) -> None:
        if self._closed:
            return
        await super().close()
        while self._busy:
            with contextlib.suppress(Unavailable):  # raised to the caller of the write
                await self._wait_durable()
        if self._maintenance is not None:
            self._maintenance.cancel()
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._disk.close, self.revision)


def _row_key(change: ObjectChange) -> RowKey:
    record = change.next or change.previous
    assert record is not None
    return (record.kind.group, record.kind.plural, *record.key)


def _call_in_loop(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop is closed
        loop.call_soon_threadsafe(what, *args)


def _resolve_maintenance(done: asyncio.Future[bool], more: bool) -> None:
    if not done.done():  # cancelled by a close
        done.set_result(more)
