"""Reads the objects of a database at start. A row that cannot be read is never skipped in silence: it may be a ledger page, and
without it devices in use would be free. Called by `database`."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from outfitter.api.kinds import Kind
from outfitter.errors import StartupRefused
from outfitter.store.disk.lost_writes import OPTION
from outfitter.store.watch_cache import Record

log = logging.getLogger(__name__)
SHOWN = 5  # unreadable rows in the message
QUERY = "select rowid, grp, plural, namespace, name, revision, data from objects order by grp, plural, namespace, name"
SET_ASIDE = "create table if not exists unreadable (grp, plural, namespace, name, revision, data, reason)"


class UnreadableRow(NamedTuple):
    number: int  # SQLite's rowid
    name: str
    reason: str


def read(db: sqlite3.Connection, path: Path, kinds: Mapping[tuple[str, str], Kind]) -> tuple[list[Record], list[UnreadableRow]]:
    """The records of the kinds that are known, and the rows that cannot be read."""
    decode = msgspec.json.Decoder().decode
    records: list[Record] = []
    unreadable: list[UnreadableRow] = []
    with contextlib.closing(db.execute(QUERY)) as rows:
        for number, group, plural, namespace, name, revision, data in rows:
            kind = kinds.get((group, plural))
            if kind is None:
                log.warning("%s: %s.%s %s/%s is of a kind that this program does not know; it is kept in the file and not "
                            "served", path, plural, group, namespace, name)
                continue
            try:
                records.append(_record(kind, (namespace, name), revision, data, decode(data)))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                reason = f"{type(error).__name__} {error}" if isinstance(error, KeyError | AttributeError) else str(error)
                unreadable.append(UnreadableRow(number, f"{kind.resource} {namespace}/{name}", reason))
    return records, unreadable


def _record(kind: Kind, key: tuple[str, str], revision: object, data: object, obj: Any) -> Record:
    if not isinstance(data, bytes) or not isinstance(revision, int) or revision < 0:
        raise ValueError(f"revision {revision!r} and {type(data).__name__}: must be a number and bytes")
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
        raise TypeError("it is not an object with metadata")
    record = Record(kind, obj, revision, data)
    if record.key != key:
        raise ValueError(f"its metadata is that of {'/'.join(map(str, record.key))}")
    return record


def set_aside(db: sqlite3.Connection, path: Path, rows: Sequence[UnreadableRow], *, accept: bool) -> None:
    """StartupRefused when rows cannot be read. With `accept` they are moved to the table `unreadable`."""
    if not rows:
        return
    listed = "; ".join(f"{row.name} ({row.reason})" for row in rows[:SHOWN])
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    problem = f"{path}: {len(rows)} stored object{'s' * (len(rows) > 1)} cannot be read: {listed}{more}"
    if not accept:
        raise StartupRefused(
            f"{problem}. Nothing was modified. Restore a backup of the whole folder {path.parent}; outfit up {OPTION} "
            "starts without them and moves them to the table `unreadable` of the file")
    log.warning("%s; moved to the table `unreadable` (%s)", problem, OPTION)
    db.execute("begin immediate")
    db.execute(SET_ASIDE)
    for row in rows:
        db.execute("insert into unreadable select grp, plural, namespace, name, revision, data, ? from objects where rowid = ?",
                   (row.reason, row.number))
        db.execute("delete from objects where rowid = ?", (row.number,))
    db.execute("commit")
