"""The open database of the SQLite backend: all objects as rows, the log that is copied into it, the record of revisions.

Opened by one process at a time, which holds everything in memory and reads it once. Its methods are called by the writer thread
of `sqlite`, and before and after it runs."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from outfitter.api.kinds import Kind
from outfitter.errors import Unavailable
from outfitter.store.clock import Clock
from outfitter.store.disk import data_folder, database_file, lost_writes, stored_objects
from outfitter.store.disk.revision_record import RevisionRecord
from outfitter.store.watch_cache import Record

ROWS = 64  # per statement
VACUUM_PAGES = 256  # 1 MB: moved in one transaction when the database is compacted
FREE_PAGES = 16  # free pages that are not worth a transaction
FREE_SHARE = 8  # an eighth of the pages may be free
WAL_SHARE = 4  # the log may be a quarter as long as the database,
LEAST_WAL_PAGES = 256  # but 1 MB in any case
CHECK_SECONDS = 0.1  # between two looks at the paths of the files
RowKey = tuple[str, str, str, str]  # group, plural, namespace, name
Row = tuple[str, str, str, str, int, bytes]


class Database:
    """Everything on disk, open and locked. `close` marks it as complete."""

    def __init__(self, folder: Path, *, synchronous: str, accept_lost_writes: bool, clock: Clock) -> None:
        self._clock, self._check_due = clock, 0.0
        with contextlib.ExitStack() as undo:
            undo.enter_context(data_folder.lock(folder))
            self.path = path = (folder / database_file.FILE).resolve()
            self._accept = accept_lost_writes
            self._start = lost_writes.check(path, state := database_file.inspect(path), accept=accept_lost_writes)
            if not state.exists:
                database_file.create(path)
            self.connection = undo.enter_context(
                contextlib.closing(database_file.open_exclusive(path, synchronous=synchronous)))
            self._held = undo.pop_all()

    def load(self, kinds: Mapping[tuple[str, str], Kind]) -> tuple[int, list[Record]]:
        """The revision to start from, and all objects. From here on the database is in use. When it fails, it is closed."""
        try:
            records, unreadable = stored_objects.read(self.connection, self.path, kinds)
            stored_objects.set_aside(self.connection, self.path, unreadable, accept=self._accept)
            revision = max(self._start.revision, database_file.newest(self.connection))
            database_file.compact(self.connection, self.path, sum(len(record.data) for record in records))
            self._begin(revision)
        except sqlite3.DatabaseError as error:
            self._held.close()
            raise database_file.refused(self.path, error) from error
        except BaseException:
            self._held.close()
            raise
        return revision, records

    def _begin(self, revision: int) -> None:
        """Record the revision, then mark the database as open, and copy that into the file: without its log it must not look
        closed."""
        id_ = self._start.id or _id(self.connection) or secrets.token_hex(16)
        self._record = RevisionRecord(lost_writes.record_path(self.path), id_, revision)
        self._held.callback(self._record.close)
        self.connection.execute(
            "insert or replace into meta values ('id', ?), ('closed', null), ('revision', ?)", (id_, revision))
        self.connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        self._files = {file: os.stat(file) for file in (self.path, database_file.wal_path(self.path))}

    # -- writing

    def write(self, rows: Sequence[Row], gone: Sequence[RowKey], revision: int) -> None:
        """One transaction, and the record of its revision. Unavailable when the files were moved away."""
        if self._clock.monotonic() >= self._check_due:
            self.check_place()
            self._record.ensure()
            self._check_due = self._clock.monotonic() + CHECK_SECONDS
        self._transact(rows, gone, revision)
        self._record.write(revision)

    def _transact(self, rows: Sequence[Row], gone: Sequence[RowKey], revision: int) -> None:
        """As few statements as possible, mostly one: after each of them this thread waits for the GIL."""
        db = self.connection
        if not gone and len(rows) <= ROWS:
            self._insert(rows)
            return
        db.execute("begin immediate")
        try:
            for row_key in gone:
                db.execute("delete from objects where grp = ? and plural = ? and namespace = ? and name = ?", row_key)
            for start in range(0, len(rows), ROWS):
                self._insert(rows[start:start + ROWS])
            if gone:
                db.execute("update meta set value = ? where key = 'revision'", (revision,))
            db.execute("commit")
        except BaseException:
            if db.in_transaction:
                db.execute("rollback")
            raise

    def _insert(self, rows: Sequence[Row]) -> None:
        self.connection.execute(database_file.upsert(len(rows)), [value for row in rows for value in row])

    def check_place(self) -> None:
        """Unavailable when the files that are open are not those at their paths any more: what is written to them would be gone
        at the end of the process."""
        for file, status in self._files.items():
            try:
                if os.path.samestat(os.stat(file), status):
                    continue
                problem = "was replaced"
            except OSError as error:
                problem = f"is not there any more ({error.strerror})"
            raise Unavailable(f"{file} {problem} while outfitter uses it: put it back, or stop outfitter and start it again",
                              retry_after=30)

    # -- maintenance

    def maintain(self, *, idle: bool) -> bool:
        """Sync the record, return a piece of the free space to the file system, copy the log into the database. Whether there
        is more to compact. The log is cut to nothing when `idle` or when it is too long for the database: it is faster to
        overwrite than to extend."""
        self.check_place()  # at these paths there may be the files of another process now
        self._record.sync()
        if self._vacuum():
            return True
        limit = min(database_file.WAL_PAGES, max(LEAST_WAL_PAGES, self._pragma("page_count") // WAL_SHARE))
        self._pragma("wal_autocheckpoint", limit)
        too_long = database_file.size(database_file.wal_path(self.path)) > 2 * limit * self._pragma("page_size")
        self.connection.execute(f"pragma wal_checkpoint({'truncate' if idle or too_long else 'passive'})").fetchone()
        return False

    def _pragma(self, name: str, value: int | None = None) -> int:
        return int(self.connection.execute(f"pragma {name}" if value is None else f"pragma {name} = {value}").fetchone()[0])

    def _vacuum(self) -> bool:
        free = self._pragma("freelist_count")
        if free <= max(FREE_PAGES, self._pragma("page_count") // FREE_SHARE):
            return False
        self.connection.execute(f"pragma incremental_vacuum({VACUUM_PAGES})").fetchall()
        return self._pragma("freelist_count") < free

    def close(self, revision: int) -> None:
        """`revision` is the newest that was written. A database that cannot be marked as closed is checked more strictly at the
        next start. SQLite leaves the log where it is when the database was moved."""
        with contextlib.suppress(sqlite3.Error, OSError, Unavailable), self._held:
            self.check_place()
            self._record.sync()
            self.connection.execute("update meta set value = ? where key = 'closed'", (revision,))


def _id(db: sqlite3.Connection) -> str:
    row = db.execute("select value from meta where key = 'id'").fetchone()
    return row[0] if row else ""
