"""The newest acknowledged revision, in a file beside the database: `outfitter.db-revision`.

Neither the database nor its log can tell that the log was deleted, emptied or cut: what is left is a valid, older database.
This file can. It is written after a transaction is on disk and before it is acknowledged, so that it never names a revision
that was not stored. It is mapped into memory and synced at intervals only: every acknowledged revision is in it after the end
of the process, all but those of the last seconds after a power cut. Its two lines are written in turn, as the process may be
killed in the midst of one. Called by `lost_writes` and `database`."""

from __future__ import annotations

import mmap
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

SUFFIX = "-revision"
LINE = re.compile(rb"outfitter-revision 1 ([0-9a-f]{32}) (\d{20}) ([0-9a-f]{8})\n")
LINE_BYTES = len("outfitter-revision 1 ") + 32 + 1 + 20 + 1 + 8 + 1
LINES = 2


class UnreadableRecord(Exception):
    """The file exists and is not a record: what was acknowledged is not known."""


@dataclass(frozen=True, slots=True)
class RecordedRevision:
    database: str  # the id of the database, which is in its table `meta` too
    revision: int


def read(path: Path) -> RecordedRevision | None:
    """The record, None when there is none. UnreadableRecord when it is damaged."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableRecord(str(error)) from error
    with os.fdopen(handle, "rb") as file:
        content = file.read(LINES * LINE_BYTES + 1)
    lines = [LINE.fullmatch(content, start, start + LINE_BYTES) for start in range(0, LINES * LINE_BYTES, LINE_BYTES)]
    valid = [RecordedRevision(line[1].decode(), int(line[2]))
             for line in lines if line and _checksum(line[1], line[2]) == line[3]]
    if not valid or len(content) != LINES * LINE_BYTES or len({found.database for found in valid}) > 1:
        raise UnreadableRecord("its content is damaged")
    return max(valid, key=lambda found: found.revision)


def _checksum(database: bytes, revision: bytes) -> bytes:
    return b"%08x" % zlib.crc32(database + b" " + revision)


def _line(database: str, revision: int) -> bytes:
    words = database.encode(), b"%020d" % revision
    return b"outfitter-revision 1 %s %s %s\n" % (*words, _checksum(*words))


class RevisionRecord:
    """The record of a running process; created durably, then overwritten in memory. Used by one thread at a time."""

    def __init__(self, path: Path, database: str, revision: int) -> None:
        self._path, self._database, self._revision = path, database, revision
        self._line = 0  # the next to be written
        self._handle, self._lines = self._create()

    def _create(self) -> tuple[int, mmap.mmap]:
        temporary = self._path.with_name(self._path.name + ".new")
        temporary.unlink(missing_ok=True)
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(handle, _line(self._database, self._revision) * LINES, 0)
            os.fsync(handle)
            os.replace(temporary, self._path)
            sync_folder(self._path.parent)
            return handle, mmap.mmap(handle, LINES * LINE_BYTES)
        except BaseException:
            os.close(handle)
            raise

    def write(self, revision: int) -> None:
        """Record a revision that is on disk. Outlives the process at once, a power cut after `sync`. No system call: it would
        make the next sync of the log slower."""
        self._revision = revision
        start = self._line * LINE_BYTES
        self._lines[start:start + LINE_BYTES] = _line(self._database, revision)
        self._line = (self._line + 1) % LINES

    def ensure(self) -> None:
        """Create the file again when it was deleted, replaced or cut. Often called: a write to a file that was cut ends the
        process."""
        try:
            status = os.lstat(self._path)
            if os.path.samestat(status, os.fstat(self._handle)) and status.st_size == LINES * LINE_BYTES:
                return
        except FileNotFoundError:
            pass
        created = self._create()
        self.close()
        self._handle, self._lines = created

    def sync(self) -> None:
        self.ensure()
        self._lines.flush()

    def close(self) -> None:
        self._lines.close()
        os.close(self._handle)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
