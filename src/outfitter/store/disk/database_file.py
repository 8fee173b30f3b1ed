"""The database file of the SQLite backend: created whole, checked before it is opened, migrated, locked by SQLite itself.

`inspect` reads the file and its log without modifying either; `open_exclusive` opens it for this process alone. A database of
another program (application_id), of a newer version, or a damaged one is refused and left as it is. Called by `sqlite`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outfitter.errors import StartupRefused
from outfitter.store.disk import data_folder, wal_file
from outfitter.store.disk.revision_record import sync_folder

log = logging.getLogger(__name__)
APPLICATION_ID = 0x6F757466  # "outf"
FILE = "outfitter.db"
FILE_MODE = 0o600
HEADER = b"SQLite format 3\x00"
CACHED_STATEMENTS = 128
CHECK_SECONDS = 20.0  # for which the pages of the database are checked at start
CHECK_STEPS = 10_000  # of SQLite's virtual machine between two looks at the clock
WAL_PAGES = 1000  # 4 MB: a transaction that makes the log longer copies it into the database
WAL_LIMIT = 8 << 20  # bytes of the log that are kept: to overwrite them is twice as fast as to extend the file again
INCREMENTAL = 2  # auto_vacuum
SPARSE, SMALL = 2.5, 1 << 20  # a larger database than this multiple of its objects, and than these bytes, is rewritten at start
COLUMNS = {"meta": "key, value", "objects": "grp, plural, namespace, name, revision, data"}
# The newest revision is the highest of all objects, or that of the last deletion, which is in `meta`.
NEWEST = ("select value from meta where key = 'revision' and typeof(value) = 'integer' "
          "union all select max(revision) from objects where typeof(revision) = 'integer'")


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


@functools.cache
def upsert(count: int) -> str:
    """The upsert for `count` rows; SQLite compiles each statement once."""
    return f"""insert into objects values {', '.join(["(?, ?, ?, ?, ?, ?)"] * count)}
        on conflict (grp, plural, namespace, name) do update set revision = excluded.revision, data = excluded.data"""


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """What the file and its log hold, read without modifying them."""

    exists: bool  # False: missing or empty
    revision: int = 0
    id: str = ""  # "": not opened yet by a version that keeps a record of revisions
    closed: bool = False  # the last process closed it in order
    wal_bytes: int = 0
    wal_damage: str = ""
    wal_fits: bool = True  # False: the database can be read without the log only, and `revision` is that of the database alone


def wal_path(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def inspect(path: Path, *, seconds: float = CHECK_SECONDS, with_log: bool = True) -> DatabaseState:
    """Check the file without modifying it. StartupRefused when it is foreign, damaged or newer. Pages are checked for at most
    `seconds`."""
    logged = size(wal_path(path)) if with_log else 0
    if not size(path):
        return DatabaseState(exists=False, wal_bytes=logged)
    with path.open("rb") as handle:
        header = handle.read(100)
    if not header.startswith(HEADER) or len(header) < 100:
        raise StartupRefused(f"{path} is not a database of outfitter: it was not modified; choose another folder with --data")
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise StartupRefused(f"{path} is the database of another program: it was not modified; choose another folder with "
                             "--data")
    try:
        return _read_state(path, logged, seconds)
    except DamagedDatabase as error:
        if not logged:
            raise
        # Pages of a damaged log may hide newer ones of the database, which is whole without them.
        with contextlib.suppress(StartupRefused):
            alone = _read_state(path, 0, seconds)
            return dataclasses.replace(alone, closed=False, wal_bytes=logged, wal_damage=f"with it: {error.what}",
                                       wal_fits=False)
        raise


def _read_state(path: Path, logged: int, seconds: float) -> DatabaseState:
    with _read_only(path, with_log=logged > 0) as db:
        _check_pages(db, path, seconds)
        _check_format(db, path)
        known = dict(db.execute("select key, value from meta where key in ('id', 'closed')"))
        revision = newest(db)
        damage = wal_file.damage(wal_path(path), _index_path(path)) if logged else ""
    closed = not logged and known.get("closed") == revision
    return DatabaseState(True, revision, str(known.get("id") or ""), closed, logged, damage)


def newest(db: sqlite3.Connection) -> int:
    return max(value or 0 for value, in db.execute(NEWEST))


def _index_path(path: Path) -> Path:
    return path.with_name(path.name + "-shm")


@contextlib.contextmanager
def _read_only(path: Path, *, with_log: bool) -> Iterator[sqlite3.Connection]:
    """A connection that modifies nothing. To read the log SQLite writes an index of it, which is removed again."""
    index = _index_path(path)
    had_index = index.exists()
    db = sqlite3.connect(path.as_uri() + ("?mode=ro" if with_log else "?mode=ro&immutable=1"), uri=True, timeout=0)
    try:
        yield db
    except sqlite3.DatabaseError as error:
        raise refused(path, error) from error
    finally:
        db.close()
        if with_log and not had_index:
            index.unlink(missing_ok=True)


def refused(path: Path, error: sqlite3.DatabaseError) -> StartupRefused:
    """What an error of SQLite at the start means."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # Python's own errors have none
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return data_folder.in_use(path.parent)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return DamagedDatabase(path, str(error))
    return StartupRefused(f"{path} cannot be opened: {error}")


class DamagedDatabase(StartupRefused):
    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} is damaged ({what}): it was not modified; restore a backup of the whole folder "
                         f"{path.parent}, or move the folder away to start empty")
        self.what = what


def _check_pages(db: sqlite3.Connection, path: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    db.set_progress_handler(lambda: int(time.monotonic() > end), CHECK_STEPS)
    try:
        faults = [row[0] for row in db.execute("pragma quick_check(3)")]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        log.warning("%s: its pages were checked for %g s only; sqlite3 %s 'pragma quick_check' checks all of them while "
                    "outfitter is stopped", path, seconds, path)
        return
    finally:
        db.set_progress_handler(None, 0)
    if faults != ["ok"]:
        raise DamagedDatabase(path, "; ".join(faults))


def _check_format(db: sqlite3.Connection, path: Path) -> None:
    version = db.execute("pragma user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise StartupRefused(f"{path} was written by a newer outfitter (its format is {version}, this program supports up to "
                             f"{len(MIGRATIONS)}): it was not modified; run the newer program")
    if version < 1:
        raise DamagedDatabase(path, f"its format is {version}, which no version of outfitter writes")
    for table, columns in COLUMNS.items():
        try:
            db.execute(f"select {columns} from {table} limit 0")
        except sqlite3.OperationalError as error:
            raise DamagedDatabase(path, f"table {table}: {error}") from error
    db.execute(f"explain {upsert(1)}", (None,) * 6)  # only compiled: needs the table's primary key


def create(path: Path) -> None:
    """Create an empty database; after a crash there is a whole one or none."""
    temporary = path.with_name(path.name + ".new")
    for leftover in (temporary, temporary.with_name(temporary.name + "-journal")):
        leftover.unlink(missing_ok=True)
    os.close(
        os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    )  # created here, as SQLite would apply the umask only
    db = sqlite3.connect(temporary, isolation_level=None)
    db.execute(f"pragma application_id = {APPLICATION_ID}")
    db.execute(f"pragma auto_vacuum = {INCREMENTAL}")
    db.execute("begin")
    for migration in MIGRATIONS:
        migration(db)
    db.execute(f"pragma user_version = {len(MIGRATIONS)}")
    db.execute("insert or replace into meta values ('id', ?), ('closed', 0)", (secrets.token_hex(16),))
    db.execute("commit")
    db.close()
    with temporary.open("rb") as handle:
        os.fsync(handle.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def open_exclusive(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """Open a database that `inspect` accepts, migrate it, and lock it until it is closed: no other process can read or write
    it. StartupRefused when another has it open."""
    _restrict_permissions(path)
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=CACHED_STATEMENTS)
    try:
        db.execute(f"pragma synchronous = {synchronous}")
        db.execute("pragma locking_mode = exclusive")  # before the log is read: its index is in memory then, not in a file
        db.execute("pragma journal_mode = wal")
        db.execute(f"pragma wal_autocheckpoint = {WAL_PAGES}")
        db.execute(f"pragma journal_size_limit = {WAL_LIMIT}")
        db.execute("begin immediate")  # takes the lock
        db.execute("commit")
        _migrate(db, path)
    except sqlite3.DatabaseError as error:
        db.close()
        raise refused(path, error) from error
    except BaseException:
        db.close()
        raise
    return db


def _restrict_permissions(path: Path) -> None:
    """Remove group and world permissions: the file holds Secrets. SQLite gives a new log the mode of the file, and keeps that
    of an existing one."""
    for file in (path, wal_path(path), _index_path(path)):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # does not exist; a file system without permissions
            stat = file.stat()
            if stat.st_uid == os.geteuid() and stat.st_mode & 0o077:
                file.chmod(stat.st_mode & 0o700)


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    version = db.execute("pragma user_version").fetchone()[0]
    for number in range(version, len(MIGRATIONS)):
        log.info("%s: format %s -> %s", path, number, number + 1)
        db.execute("begin immediate")
        try:
            MIGRATIONS[number](db)
            db.execute(f"pragma user_version = {number + 1}")
        except sqlite3.Error as error:
            db.execute("rollback")
            raise StartupRefused(f"{path} was not migrated from format {number} to {number + 1} ({error}): it has its earlier "
                                 "format; run the earlier version, or restore a backup") from error
        db.execute("commit")


def compact(db: sqlite3.Connection, path: Path, live: int) -> None:
    """Rewrite a database whose pages are mostly empty, which small steps cannot mend, and one of an earlier version, so that it
    returns free pages in small steps. `live` is the size of its objects."""
    sparse = size(path) > max(SPARSE * live, SMALL)
    if not sparse and db.execute("pragma auto_vacuum").fetchone()[0] == INCREMENTAL:
        return
    try:
        db.execute(f"pragma auto_vacuum = {INCREMENTAL}")
        db.execute("vacuum")
    except sqlite3.OperationalError as error:  # mostly: no space for a copy
        log.warning("%s was not compacted: %s; the next start tries again", path, error)
