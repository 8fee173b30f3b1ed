"""Refuses a start with less than was acknowledged, unless the user accepts the loss.

Compares what the database and its log hold with the record of the newest acknowledged revision. Called by `sqlite` before the
database is opened, when nothing has been modified."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from outfitter.errors import StartupRefused
from outfitter.store.disk import database_file, revision_record
from outfitter.store.disk.database_file import DatabaseState
from outfitter.store.disk.revision_record import RecordedRevision, UnreadableRecord

log = logging.getLogger(__name__)
OPTION = "--accept-lost-writes"


@dataclass(frozen=True, slots=True)
class AcceptedState:
    """The revision to start from, and the id of the database."""

    revision: int  # no lower than any that was acknowledged, as far as it is known
    id: str  # "": the database has none yet


def record_path(path: Path) -> Path:
    return path.with_name(path.name + revision_record.SUFFIX)


def check(path: Path, state: DatabaseState, *, accept: bool) -> AcceptedState:
    """StartupRefused when acknowledged writes are missing, or when it cannot be known. With `accept` that is logged, and what
    is left of the log is kept in a copy."""
    recorded, problem = None, ""
    try:
        recorded = revision_record.read(record_path(path))
    except UnreadableRecord as error:
        problem = f"{record_path(path)}, the record of the newest acknowledged revision, cannot be read: {error}"
    problem = problem or _missing(path, state, recorded)
    if problem:
        if not accept:
            raise StartupRefused(
                f"{problem}. Nothing was modified. Restore what is missing, or a backup of the whole folder {path.parent}; "
                f"outfit up {OPTION} starts with what is there and gives up the rest")
        log.warning("%s; started with what is there (%s)", problem, OPTION)
        _keep_log(path, state)
    elif not recorded and state.id and state.revision:
        log.warning("%s is missing: %s was closed at revision %s and is taken as complete", record_path(path), path,
                    state.revision)
    revision = max(state.revision, recorded.revision if recorded else 0)
    return AcceptedState(revision, state.id or (recorded.database if recorded and state.exists else ""))


def _missing(path: Path, state: DatabaseState, recorded: RecordedRevision | None) -> str:
    """What is missing, "" when nothing is."""
    wal = database_file.wal_path(path)
    newest = recorded.revision if recorded else 0
    if not state.exists:
        if newest:
            return f"{path} is missing or empty, but revision {newest} was acknowledged"
        return f"{path} is missing or empty, but its log {wal.name} holds writes" if state.wal_bytes else ""
    if recorded is None:
        if state.id and not state.closed:
            return (f"{record_path(path)} is missing, and {path} was not closed in order: it has revision {state.revision}, "
                    "and whether later ones were acknowledged is not known")
    elif state.id and state.id != recorded.database:
        return (f"{path} was replaced: it is not the database for which {record_path(path).name} records revision "
                f"{newest}; it has revision {state.revision}")
    elif state.revision < newest:
        log_state = (f"{wal} is damaged" if state.wal_bytes else f"{wal} is missing or empty")
        return (f"{path} lacks acknowledged writes: revision {newest} was acknowledged, the database has revision "
                f"{state.revision} ({log_state}, or {path.name} is older than that)")
    if state.wal_damage:
        return (f"{wal} is damaged ({state.wal_damage}): revision {state.revision} can be read, and writes after it may be in "
                "the log")
    return ""


def _keep_log(path: Path, state: DatabaseState) -> None:
    """Keep the log before SQLite discards what it cannot read. It is moved away when the database without it is not older, as
    its pages would hide newer ones, and when there is no database, as it must not be applied to a new one."""
    if not state.wal_bytes:
        return
    wal, number = database_file.wal_path(path), 1
    while (kept := wal.with_name(f"{wal.name}.lost-{number}")).exists():
        number += 1
    if state.exists and state.wal_fits and _revision_without_log(path) < state.revision:
        shutil.copy2(wal, kept)
    else:
        os.replace(wal, kept)
    kept.chmod(database_file.FILE_MODE)
    log.warning("what was in %s is kept in %s", wal, kept)


def _revision_without_log(path: Path) -> int:
    try:
        return database_file.inspect(path, with_log=False).revision
    except StartupRefused:  # the database needs the log
        return -1
