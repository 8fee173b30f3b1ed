"""The home on disk: SQLite in WAL mode with full syncs, one writer thread, many writes to a sync.

Reads and watches are served from memory (`memory.Memory`); the file is read once, at start. A write becomes visible, and is
acknowledged, only after the transaction that carries it is on the disk. Writes that arrive while the disk is busy share the
next transaction. The file says whose it is (application_id), so that nobody else's is ever touched."""

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
ROWS = 64  # that one statement writes
Place = tuple[str, str, str, str]  # group, plural, namespace, name
# Every object says at which revision it was written, and `meta` of one that was deleted: the higher of the two was the last.
NEWEST = "select value from meta where key = 'revision' union all select coalesce(max(revision), 0) from objects"


def _first(db: sqlite3.Connection) -> None:
    db.execute("create table meta (key text primary key, value) without rowid")
    db.execute("insert into meta values ('revision', 0)")
    db.execute(
        "create table objects (grp text not null, plural text not null, namespace text not null, name text not null, "
        "revision integer not null, data blob not null, primary key (grp, plural, namespace, name))"
    )


def _second(db: sqlite3.Connection) -> None:
    """The same tables. The newest revision is no longer in `meta` alone, where a program that knows the first format would look
    for it, and give numbers that were given before."""


# Each takes a file from the version before it to its own; the newest is what a new file gets. Never change one that shipped.
MIGRATIONS: Sequence[Callable[[sqlite3.Connection], None]] = (_first, _second)


def lock(folder: Path) -> Any:
    """Hold the folder for this process; refuse with the holder's process id when it is in use."""
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
    """Open our file, making it if there is none; refuse a foreign, newer or damaged one and leave it as it is."""
    transaction = path.with_name(path.name + ".new")
    for left in (transaction, transaction.with_name(transaction.name + "-journal")):
        left.unlink(missing_ok=True)
    if _size(path):
        _recognise(path)
        _close_to_others(path)
    elif _size(path.with_name(path.name + "-wal")):
        raise StartupRefused(f"{path} is missing or empty, but its log {path.name}-wal holds writes: both were left as they "
                             "are; restore a copy of both, or move the log away to start empty")
    else:
        _make(transaction)
        os.replace(transaction, path)
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


def _close_to_others(path: Path) -> None:
    """Secrets are in it. SQLite gives its log the rights that the file has, and leaves one that is there as it is."""
    for each in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # not there; a file system that has no such rights
            now = each.stat()
            if now.st_uid == os.geteuid() and now.st_mode & 0o077:
                each.chmod(now.st_mode & 0o700)


def _make(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))  # before SQLite would, which asks the umask alone
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"pragma application_id = {APPLICATION_ID}")
    db.execute("begin")
    for step in MIGRATIONS:
        step(db)
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


def _recognise(path: Path) -> None:
    """Read the file without touching it, and refuse what is not ours or not whole."""
    with path.open("rb") as handle:
        header = handle.read(100)
    if not header.startswith(HEADER) or len(header) < 100:
        raise StartupRefused(f"{path} is not a database of outfitter: it was left as it is; choose another folder with --data")
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise StartupRefused(f"{path} is the database of another program: it was left as it is; choose another folder with "
                             "--data")
    with _readable(path) as url:
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
        raise StartupRefused(f"{path} is damaged ({'; '.join(faults)}): it was left as it is; restore a copy of it, or move it "
                             "away to start empty")
    if version > len(MIGRATIONS):
        raise StartupRefused(f"{path} was written by a newer outfitter (its format is {version}, this program knows up to "
                             f"{len(MIGRATIONS)}): it was left as it is; run the newer program")


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[str]:
    """A way to read the file that writes nothing beside it. With a log left by a crash, a copy is read."""
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
    """Writes that go into one transaction together, and whom to tell; none for who only waits until all before it is safe."""

    steps: Sequence[ObjectChange]
    done: asyncio.Future[None]


class SQLite(Memory):
    """Memory with a journal under it."""

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
        self._pending: dict[Place, tuple[int, Record | None]] = {}
        self._gathered: list[Batch] = []  # for the next transaction
        self._busy = False  # a transaction is on its way, or about to be
        self._queue: queue.SimpleQueue[Sequence[Batch] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def _load(self, path: Path, kinds: dict[tuple[str, str], Kind]) -> None:
        decode = msgspec.json.Decoder().decode
        query = "select grp, plural, namespace, name, revision, data from objects order by grp, plural, namespace, name"
        with contextlib.closing(self._db.execute(query)) as rows:
            for group, plural, namespace, name, revision, data in rows:
                kind = kinds.get((group, plural))
                if kind is None:
                    log.warning("%s: %s.%s %s/%s is of a kind this program does not know; it is kept and not shown",
                                path, plural, group, namespace, name)
                    continue
                try:
                    self.watch_cache(kind).load(Record(kind, decode(data), revision, data))
                except (msgspec.DecodeError, KeyError, TypeError) as error:
                    raise StartupRefused(f"{path}: {kind.resource} {namespace}/{name} cannot be read ({error}): it was left as "
                                         "it is; restore a copy of the file") from error

    # -- what is on its way to the disk

    def latest_record(self, kind: Kind, name: str, namespace: str = "") -> Record | None:
        place = (kind.group, kind.plural, namespace if kind.namespaced else "", name)
        if place in self._pending:
            return self._pending[place][1]
        return self.committed_record(kind, name, namespace)

    def latest_records(self, kind: Kind) -> dict[Key, Record]:
        found: dict[Key, Record | None] = {**super().latest_records(kind)}
        for (group, plural, namespace, name), (_, record) in self._pending.items():
            if (group, plural) == (kind.group, kind.plural):
                found[namespace, name] = record
        return {key: record for key, record in found.items() if record is not None}

    async def _settled(self) -> None:
        if self._busy:
            await self._gather(())

    async def create_unsynced(self, kind: Kind, obj: Object) -> None:
        transaction = Transaction(self, self._issued)
        transaction.create(kind, obj)
        self._begin(transaction)

    @property
    def busy(self) -> bool:
        return self._busy

    def _persist(self, steps: Sequence[ObjectChange]) -> asyncio.Future[None]:
        if self._closed:
            raise Unavailable("the store is closing")
        for step in steps:
            self._pending[_place(step)] = (step.revision, step.next)
        return self._gather(steps)

    def _gather(self, steps: Sequence[ObjectChange]) -> asyncio.Future[None]:
        """For the next transaction, which begins when all who can go on now have done so: theirs go along."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._gathered.append(Batch(steps, done))
        if not self._busy:
            self._busy = True
            loop.call_soon(self._hand_over, loop)
        return done

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        batches, self._gathered = self._gathered, []
        if not any(batch.steps for batch in batches):
            self._answer(batches)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(loop,), name="journal", daemon=True)
            self._thread.start()
        self._queue.put(batches)

    def _written(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._publish(batch.steps)
            for step in batch.steps:
                place = _place(step)
                if self._pending[place][0] == step.revision:
                    del self._pending[place]
        self._answer(batches)

    def _lost(self, batches: Sequence[Batch], error: Exception) -> None:
        """The disk said no. Everything on its way is undone: it may stand on what was lost."""
        self._pending.clear()
        late, self._gathered = self._gathered, []
        self._answer(batches, str(error))
        self._answer(late, "an earlier write was not stored")

    def _answer(self, batches: Sequence[Batch], error: str = "") -> None:
        for batch in batches:
            if batch.done.done():
                continue  # whoever asked has gone
            if not error:
                batch.done.set_result(None)
            else:
                batch.done.set_exception(Unavailable(f"the write was not stored: {error}", retry_after=5))
                batch.done.exception()  # whoever asked may go before hearing it
        self._busy = bool(self._gathered)
        if self._gathered:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._hand_over, loop)  # after those who were just answered

    # -- the writer thread

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (batches := self._queue.get()) is not None:
            try:
                self._transact(batches)
            except Exception as error:  # whatever it is: those who wait must hear of it
                expected = isinstance(error, sqlite3.OperationalError)  # the disk is full, or gone
                log.error("the journal could not be written: %s", error, exc_info=not expected)
                _tell(loop, self._lost, batches, error)
            else:
                _tell(loop, self._written, batches)

    def _transact(self, batches: Sequence[Batch]) -> None:
        """In as few statements as can be, most often one: after each this thread waits until the others let it go on."""
        steps = [step for batch in batches for step in batch.steps]
        last = {_place(step): step for step in steps}  # of several of one object only the last is to be found
        rows = [(*place, step.revision, step.next.data) for place, step in last.items() if step.next is not None]
        gone = [place for place, step in last.items() if step.next is None]
        if not gone and len(rows) <= ROWS:
            self._insert(rows)
            return
        self._db.execute("begin immediate")
        try:
            for place in gone:
                self._db.execute("delete from objects where grp = ? and plural = ? and namespace = ? and name = ?", place)
            for start in range(0, len(rows), ROWS):
                self._insert(rows[start:start + ROWS])
            if gone:
                self._db.execute("update meta set value = ? where key = 'revision'", (steps[-1].revision,))
            self._db.execute("commit")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise

    def _insert(self, rows: Sequence[tuple[str | int | bytes, ...]]) -> None:
        self._db.execute(_put(len(rows)), [value for row in rows for value in row])

    async def close(self) -> None:
        if self._closed:
            return
        await super().close()
        while self._busy:
            with contextlib.suppress(Unavailable):  # whoever wrote hears of it
                await self._settled()
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        self._db.close()
        self._lock.close()


@functools.cache
def _put(count: int) -> str:
    """The statement for so many rows; each is compiled once."""
    return f"""insert into objects values {', '.join(["(?, ?, ?, ?, ?, ?)"] * count)}
        on conflict (grp, plural, namespace, name) do update set revision = excluded.revision, data = excluded.data"""


def _place(step: ObjectChange) -> Place:
    record = step.next or step.previous
    assert record is not None
    return (record.kind.group, record.kind.plural, *record.key)


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
        loop.call_soon_threadsafe(what, *args)
