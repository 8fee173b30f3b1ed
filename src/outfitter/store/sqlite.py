"""The backend on disk: SQLite in WAL mode with full syncs, one writer thread, group commit.

Reads and watches are served from memory (`memory.Memory`); the file is read once, at start. A write is visible and acknowledged
only after its transaction is on disk. Writes that arrive while a transaction is running share the next one. A database of
another program (application_id) is never modified. Used by the embedded product."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import logging
import os
import queue
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from outfitter.api.kinds import Kind, Object
from outfitter.errors import StartupRefused, Unavailable
from outfitter.store import base
from outfitter.store.clock import Clock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from outfitter.store.transaction import Transaction
from outfitter.store.watch_cache import Key, ObjectChange, Record

log = logging.getLogger(__name__)
APPLICATION_ID = 0x6F757466  # "outf"
FILE = "outfitter.db"
FILE_MODE = 0o600
HEADER = b"SQLite format 3\x00"
ROWS = 64  # per statement
RowKey = tuple[str, str, str, str]  # group, plural, namespace, name
# The newest revision is the highest of all objects, or that of the last deletion, which is in `meta`.
NEWEST = "select value from meta where key = 'revision' union all select coalesce(max(revision), 0) from objects"


def _create_tables(db: sqlite3.Connection) -> None:
    db.execute("create table meta (key text primary key, value) without rowid")
    db.execute("insert into meta values ('revision', 0)")
    db.execute(
        "create table objects (grp text not null, plural text not null, namespace text not null, name text not null, "
        "revision integer not null, data blob not null, primary key (grp, plural, namespace, name))"
    )


def _revision_of_deletions(db: sqlite3.Connection) -> None:
    """The same tables. Since this format `meta` holds the revision of the last deletion only. A program for the first format
    would take it for the newest revision and issue numbers again, so the version is raised."""


# MIGRATIONS[n] takes a file from version n to n + 1; a new file runs all of them. Never change one that was released.
MIGRATIONS: Sequence[Callable[[sqlite3.Connection], None]] = (_create_tables, _revision_of_deletions)


def lock(folder: Path) -> Any:
    """Lock the folder for this process. StartupRefused, with the holder's process id, when it is in use."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = (folder / "lock").open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.seek(0)
        holder = handle.read().strip() or "unknown"
        handle.close()
        raise StartupRefused(f"{folder} is in use by process {holder}: stop it first, or choose another folder with "
                             "--data") from error
    handle.seek(0)
    handle.truncate()
    handle.write(str(os.getpid()))
    handle.flush()
    return handle


def connect(path: Path, *, synchronous: str = "FULL") -> sqlite3.Connection:
    """Open the database, creating it if there is none. StartupRefused for a foreign, newer or damaged file, which is
    not modified."""
    temporary = path.with_name(path.name + ".new")
    for leftover in (temporary, temporary.with_name(temporary.name + "-journal")):
        leftover.unlink(missing_ok=True)
    if _size(path):
        _check_file(path)
        _restrict_permissions(path)
    elif _size(path.with_name(path.name + "-wal")):
        raise StartupRefused(f"{path} is missing or empty, but its log {path.name}-wal holds writes: neither was modified; "
                      "restore a backup of both, or move the log away to start empty")
    else:
        _create_file(temporary)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=2 * ROWS)
    try:
        db.execute(f"pragma synchronous = {synchronous}")
        db.execute("pragma journal_mode = wal")
        _migrate(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _restrict_permissions(path: Path) -> None:
    """Remove group and world permissions: the file holds Secrets. SQLite gives a new log the mode of the file, and keeps that
    of an existing one."""
    for file in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # does not exist; a file system without permissions
            stat = file.stat()
            if stat.st_uid == os.geteuid() and stat.st_mode & 0o077:
                file.chmod(stat.st_mode & 0o700)


def _create_file(path: Path) -> None:
    os.close(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    )  # created here, as SQLite would apply the umask only
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"pragma application_id = {APPLICATION_ID}")
    db.execute("begin")
    for migration in MIGRATIONS:
        migration(db)
    db.execute(f"pragma user_version = {len(MIGRATIONS)}")
    db.execute("commit")
    db.close()
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_file(path: Path) -> None:
    """Check the file without modifying it. StartupRefused when it is foreign, damaged or newer."""
    with path.open("rb") as handle:
        header = handle.read(100)
    if not header.startswith(HEADER) or len(header) < 100:
        raise StartupRefused(f"{path} is not a database of outfitter: it was not modified; choose another folder with --data")
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise StartupRefused(f"{path} is the database of another program: it was not modified; choose another folder with "
                             "--data")
    with _read_only_url(path) as url:
        try:
            db = sqlite3.connect(url, uri=True)
            try:
                version = db.execute("pragma user_version").fetchone()[0]
                faults = [row[0] for row in db.execute("pragma quick_check(3)")]
            finally:
                db.close()
        except sqlite3.DatabaseError as error:
            faults, version = [str(error)], 0
    if faults != ["ok"]:
        raise StartupRefused(f"{path} is damaged ({'; '.join(faults)}): it was not modified; restore a backup of it, or "
                             "move it away to start empty")
    if version > len(MIGRATIONS):
        raise StartupRefused(f"{path} was written by a newer outfitter (its format is {version}, this program supports up to "
                      f"{len(MIGRATIONS)}): it was not modified; run the newer program")


@contextlib.contextmanager
def _read_only_url(path: Path) -> Iterator[str]:
    """A URL to read the file without creating files beside it. When a crash left a log, the URL of a copy."""
    wal = path.with_name(path.name + "-wal")
    if not _size(wal):
        yield f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        return
    with tempfile.TemporaryDirectory(prefix="outfitter-check-") as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        shutil.copyfile(wal, copy.with_name(wal.name))
        yield copy.as_uri()


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    version = db.execute("pragma user_version").fetchone()[0]
    for number in range(version, len(MIGRATIONS)):
        log.info("%s: format %s -> %s", path, number, number + 1)
        db.execute("begin immediate")
        try:
            MIGRATIONS[number](db)
            db.execute(f"pragma user_version = {number + 1}")
        except BaseException:
            db.execute("rollback")
            raise
        db.execute("commit")


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
    ) -> None:
        with contextlib.ExitStack() as undo:
            self._lock = undo.enter_context(lock(folder))
            self._db = undo.enter_context(contextlib.closing(connect(folder / FILE, synchronous=synchronous)))
            revision = max(value for value, in self._db.execute(NEWEST))
            super().__init__(clock=clock, names=names, rules=rules, keep=keep, revision=revision)
            self._load(folder / FILE, {(kind.group, kind.plural): kind for kind in kinds})
            undo.pop_all()
        self._pending: dict[RowKey, tuple[int, Record | None]] = {}
        self._queued: list[Batch] = []  # waiting for the next transaction
        self._busy = False  # a transaction is running or scheduled
        self._queue: queue.SimpleQueue[Sequence[Batch] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def _load(self, path: Path, kinds: dict[tuple[str, str], Kind]) -> None:
        decode = msgspec.json.Decoder().decode
        query = "select grp, plural, namespace, name, revision, data from objects order by grp, plural, namespace, name"
        with contextlib.closing(self._db.execute(query)) as rows:
            for group, plural, namespace, name, revision, data in rows:
                kind = kinds.get((group, plural))
                if kind is None:
                    log.warning(
                        "%s: %s.%s %s/%s is of a kind that this program does not know; it is kept in the file and not served",
                        path,
                        plural,
                        group,
                        namespace,
                        name,
                    )
                    continue
                try:
                    self.watch_cache(kind).load(Record(kind, decode(data), revision, data))
                except (msgspec.DecodeError, KeyError, TypeError) as error:
                    raise StartupRefused(
                        f"{path}: {kind.resource} {namespace}/{name} cannot be read ({error}): the file was not modified; "
                        "restore a backup of it"
                    ) from error

    # -- accepted writes that are not durable yet

    def latest_record(self, kind: Kind, name: str, namespace: str = "") -> Record | None:
        row_key = (kind.group, kind.plural, namespace if kind.namespaced else "", name)
        if row_key in self._pending:
            return self._pending[row_key][1]
        return self.committed_record(kind, name, namespace)

    def latest_records(self, kind: Kind) -> dict[Key, Record]:
        records: dict[Key, Record | None] = {**super().latest_records(kind)}
        for (group, plural, namespace, name), (_, record) in self._pending.items():
            if (group, plural) == (kind.group, kind.plural):
                records[namespace, name] = record
        return {key: record for key, record in records.items() if record is not None}

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
            self._thread = threading.Thread(target=self._run, args=(loop,), name="journal", daemon=True)
            self._thread.start()
        self._queue.put(batches)

    def _written(self, batches: Sequence[Batch]) -> None:
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

    # -- the writer thread

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (batches := self._queue.get()) is not None:
            try:
                self._transact(batches)
            except Exception as error:  # any error: the waiting callers must be resumed
                expected = isinstance(error, sqlite3.OperationalError)  # disk full or removed
                log.error("the transaction was not written: %s", error, exc_info=not expected)
                _call_in_loop(loop, self._lost, batches, error)
            else:
                _call_in_loop(loop, self._written, batches)

    def _transact(self, batches: Sequence[Batch]) -> None:
        """As few statements as possible, mostly one: after each of them this thread waits for the GIL."""
        changes = [change for batch in batches for change in batch.changes]
        last = {_row_key(change): change for change in changes}  # of several changes of one object only the last is stored
        rows = [(*row_key, change.revision, change.next.data) for row_key, change in last.items() if change.next is not None]
        gone = [row_key for row_key, change in last.items() if change.next is None]
        if not gone and len(rows) <= ROWS:
            self._insert(rows)
            return
        self._db.execute("begin immediate")
        try:
            for row_key in gone:
                self._db.execute("delete from objects where grp = ? and plural = ? and namespace = ? and name = ?", row_key)
            for start in range(0, len(rows), ROWS):
                self._insert(rows[start:start + ROWS])
            if gone:
                self._db.execute("update meta set value = ? where key = 'revision'", (changes[-1].revision,))
            self._db.execute("commit")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise

    def _insert(self, rows: Sequence[tuple[str | int | bytes, ...]]) -> None:
        self._db.execute(_upsert(len(rows)), [value for row in rows for value in row])

    async def close(self) -> None:
        if self._closed:
            return
        await super().close()
        while self._busy:
            with contextlib.suppress(Unavailable):  # raised to the caller of the write
                await self._wait_durable()
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        self._db.close()
        self._lock.close()


@functools.cache
def _upsert(count: int) -> str:
    """The upsert for `count` rows; SQLite compiles each statement once."""
    return f"""insert into objects values {', '.join(["(?, ?, ?, ?, ?, ?)"] * count)}
        on conflict (grp, plural, namespace, name) do update set revision = excluded.revision, data = excluded.data"""


def _row_key(change: ObjectChange) -> RowKey:
    record = change.next or change.previous
    assert record is not None
    return (record.kind.group, record.kind.plural, *record.key)


def _call_in_loop(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop is closed
        loop.call_soon_threadsafe(what, *args)
