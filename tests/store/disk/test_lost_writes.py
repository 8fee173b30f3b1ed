"""A start with less than was acknowledged is refused, whatever happened to the files, and can be had on request."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import CONFIG_MAP
from outfitter.store.clock import ManualClock
from outfitter.store.disk import database_file, revision_record
from outfitter.store.disk.database_file import FILE
from outfitter.store.sqlite import SQLite
from tests.store.backends import config
from tests.store.disk.images import (
    FRAME,
    TRANSACTIONS,
    WAL_HEADER,
    content,
    damaged_copy,
    expected,
    fingerprints,
    flip,
    killed,
    record,
    wal,
)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(killed(tmp_path_factory.mktemp("image") / "data"))


@pytest.fixture
def folder(image: Path, tmp_path: Path) -> Path:
    return damaged_copy(image, tmp_path / "data")


def recorded(folder: Path, revision: int) -> None:
    """The record as a power cut may leave it: older than the log."""
    have = revision_record.read(record(folder))
    assert have is not None
    revision_record.RevisionRecord(record(folder), have.database, revision).close()


async def refused(folder: Path, words: str) -> str:
    before = fingerprints(folder)
    with pytest.raises(errors.StartupRefused, match=words) as caught:
        await content(folder)
    assert fingerprints(folder) == before, "nothing was modified"
    return str(caught.value)


async def test_what_a_killed_process_wrote_is_all_there(folder: Path) -> None:
    assert wal(folder).stat().st_size > TRANSACTIONS * FRAME
    assert await content(folder) == (expected(), TRANSACTIONS)


def without_wal(folder: Path) -> None:
    wal(folder).unlink()


def empty_wal(folder: Path) -> None:
    wal(folder).write_bytes(b"")


def zeroed_wal(folder: Path) -> None:
    wal(folder).write_bytes(bytes(wal(folder).stat().st_size))


def foreign_wal(folder: Path) -> None:
    wal(folder).write_bytes(os.urandom(20_000))


def header_of_wal(folder: Path) -> None:
    flip(wal(folder), 17)


def last_frame(folder: Path) -> None:
    os.truncate(wal(folder), wal(folder).stat().st_size - FRAME)


def without_database(folder: Path) -> None:
    (folder / FILE).unlink()


def without_anything(folder: Path) -> None:
    (folder / FILE).unlink()
    wal(folder).unlink()


def without_record(folder: Path) -> None:
    record(folder).unlink()


def damaged_record(folder: Path) -> None:
    for offset in (60, 160):
        flip(record(folder), offset)


def empty_record(folder: Path) -> None:
    record(folder).write_bytes(b"")


def record_cut_short(folder: Path) -> None:
    os.truncate(record(folder), 50)


def linked_record(folder: Path) -> None:
    record(folder).rename(folder / "elsewhere")
    record(folder).symlink_to("elsewhere")


def without_wal_and_record(folder: Path) -> None:
    without_wal(folder)
    without_record(folder)


def another_database(folder: Path) -> None:
    without_anything(folder)
    database_file.create(folder / FILE)
    with contextlib.closing(sqlite3.connect(folder / FILE)) as db, db:
        db.execute("update meta set value = 1000 where key in ('revision', 'closed')")


LOST = rf"revision {TRANSACTIONS} was acknowledged, the database has revision"
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "the log is deleted": (without_wal, LOST + r" 0 .*outfitter.db-wal is missing or empty"),
    "the log is emptied": (empty_wal, LOST + " 0"),
    "the log is zeroed": (zeroed_wal, LOST + " 0"),
    "the log is another file": (foreign_wal, LOST + r" 0 .*outfitter.db-wal is damaged"),
    "the header of the log": (header_of_wal, LOST + " 0"),
    "the last frame of the log": (last_frame, LOST + f" {TRANSACTIONS - 1}"),
    "the database is deleted": (without_database, f"is missing or empty, but revision {TRANSACTIONS} was acknowledged"),
    "both are deleted": (without_anything, f"is missing or empty, but revision {TRANSACTIONS} was acknowledged"),
    "the record is deleted": (without_record, "outfitter.db-revision is missing, and .* was not closed in order"),
    "log and record are deleted": (without_wal_and_record, "was not closed in order: it has revision 0"),
    "the record is damaged": (damaged_record, "outfitter.db-revision, the record .* cannot be read"),
    "the record is empty": (empty_record, "cannot be read"),
    "the record is cut": (record_cut_short, "cannot be read"),
    "the record is a link": (linked_record, "cannot be read"),
    "another database": (another_database, f"was replaced: .* records revision {TRANSACTIONS}; it has revision 1000"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_start_with_less_is_refused_and_can_be_accepted(folder: Path, case: str) -> None:
    spoil, words = REFUSED[case]
    spoil(folder)
    message = await refused(folder, words)
    assert "--accept-lost-writes" in message
    assert str(folder) in message
    there, revision = await content(folder, accept=True)
    assert there == expected(len(there))
    assert revision >= (len(there) if "record" in case else TRANSACTIONS), "no revision is issued twice"
    assert await content(folder) == (there, revision), "accepted once and for all"


def test_each_acknowledged_revision_is_recorded(image: Path) -> None:
    have = revision_record.read(record(image))
    assert have is not None
    assert have.revision == TRANSACTIONS


FIELDS = (3, 7, 8, 15, 16, 23, 24, 1000, FRAME - 1)  # in a frame: page number, commit size, salts, checksums, content
CHECKED_FIELDS = FIELDS[4:]  # those without which it still looks like a frame of this log


def frames(folder: Path) -> range:
    return range(WAL_HEADER, wal(folder).stat().st_size, FRAME)


async def flipped_bits_are_found(image: Path, folder: Path, offsets: Iterable[int]) -> None:
    for offset in offsets:
        damaged_copy(image, folder)
        flip(wal(folder), offset)
        await refused(folder, LOST)


async def test_a_flipped_bit_in_any_frame_of_the_log_is_found(image: Path, folder: Path) -> None:
    fields = itertools.cycle(FIELDS)
    await flipped_bits_are_found(image, folder, [start + next(fields) for start in frames(image)])


@pytest.mark.long
async def test_a_flipped_bit_anywhere_in_the_log_is_found(image: Path, folder: Path) -> None:
    await flipped_bits_are_found(image, folder, [start + field for start in frames(image) for field in FIELDS])


async def test_a_log_cut_anywhere_is_found(image: Path, tmp_path: Path) -> None:
    size = wal(image).stat().st_size
    for length in (*range(0, size, FRAME * 5 // 2), size - 1):
        folder = damaged_copy(image, tmp_path / "data")
        os.truncate(wal(folder), length)
        await refused(folder, LOST)


async def test_damage_before_the_last_transaction_is_found_without_the_record(image: Path, tmp_path: Path) -> None:
    """After a power cut the record may be older than the log. A transaction that others follow was on the disk."""
    fields = itertools.cycle(CHECKED_FIELDS)
    for start in frames(image)[:-6:2]:  # up to the last transactions
        folder = damaged_copy(image, tmp_path / "data")
        recorded(folder, 0)
        flip(wal(folder), start + next(fields))
        await refused(folder, r"outfitter.db-wal is damaged \(frame")


async def test_a_transaction_that_a_power_cut_interrupted_is_not_missed(folder: Path) -> None:
    recorded(folder, TRANSACTIONS - 1)
    last_frame(folder)
    assert await content(folder) == (expected(TRANSACTIONS - 1), TRANSACTIONS - 1)


async def test_frames_of_an_earlier_round_through_the_log_are_no_damage(tmp_path: Path) -> None:
    """A log that was copied into the database is overwritten from its beginning: behind the newest frames are old ones."""
    store = SQLite(tmp_path / "a", kinds.ALL)
    for number in range(8):
        await store.create(CONFIG_MAP, config(f"m{number:03}", "x" * 3000))
    store._disk.connection.execute("pragma wal_checkpoint(passive)").fetchall()
    await store.create(CONFIG_MAP, config("m008"))
    folder = damaged_copy(tmp_path / "a", tmp_path / "b")
    await store.close()
    assert wal(folder).stat().st_size > 10 * FRAME
    assert await content(folder) == (expected(9), 9)


async def test_a_process_killed_while_it_wrote_the_record(folder: Path) -> None:
    """One of two lines is torn; its revision was not acknowledged yet."""
    flip(record(folder), 60)
    assert await content(folder) == (expected(), TRANSACTIONS)


async def test_a_damaged_log_that_was_copied_before_is_moved_away(tmp_path: Path) -> None:
    """Its older pages must not hide newer ones of the database."""
    store = SQLite(tmp_path / "a", kinds.ALL, clock=ManualClock())
    for number in range(8):
        await store.create(CONFIG_MAP, config(f"m{number:03}", "x" * 3000))
    store._disk.connection.execute("pragma wal_checkpoint(passive)").fetchall()
    folder = damaged_copy(tmp_path / "a", tmp_path / "b")
    await store.close()
    flip(wal(folder), WAL_HEADER + 4 * FRAME + 100)
    with pytest.raises(errors.StartupRefused):
        await content(folder)
    assert await content(folder, accept=True) == (expected(8), 8)
    assert (folder / f"{FILE}-wal.lost-1").exists()


async def test_the_log_is_kept_when_its_loss_is_accepted(folder: Path) -> None:
    flip(wal(folder), WAL_HEADER + 3 * FRAME + 100)
    lost = wal(folder).read_bytes()
    await content(folder, accept=True)
    kept = folder / f"{FILE}-wal.lost-1"
    assert kept.read_bytes() == lost
    assert kept.stat().st_mode & 0o077 == 0


async def test_a_copy_of_the_closed_database_alone_is_complete(
    image: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a backup of the file, taken while outfitter was stopped."""
    stopped = damaged_copy(image, tmp_path / "stopped")
    await content(stopped)
    restored = tmp_path / "restored"
    restored.mkdir()
    (restored / FILE).write_bytes((stopped / FILE).read_bytes())
    assert await content(restored) == (expected(), TRANSACTIONS)
    assert "was closed at revision" in caplog.text


async def test_an_older_copy_of_the_database_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    store = SQLite(folder, kinds.ALL)
    await store.create(CONFIG_MAP, config("m000"))
    await store.close()
    older = (folder / FILE).read_bytes()
    store = SQLite(folder, kinds.ALL)
    await store.create(CONFIG_MAP, config("m001"))
    await store.close()
    (folder / FILE).write_bytes(older)
    await refused(folder, "revision 2 was acknowledged, the database has revision 1")


# -- folders of earlier versions


def earlier_version(folder: Path) -> None:
    """A database as it was before revisions were recorded."""
    folder.mkdir()
    with contextlib.closing(sqlite3.connect(folder / FILE)) as db, db:
        db.execute(f"pragma application_id = {database_file.APPLICATION_ID}")
        database_file.MIGRATIONS[0](db)
        db.execute("pragma user_version = 2")
        for number in range(3):
            data = f'{{"metadata":{{"name":"m{number:03}","namespace":"default","resourceVersion":"{number + 1}"}}}}'
            db.execute("insert into objects values ('', 'configmaps', 'default', ?, ?, ?)",
                       (f"m{number:03}", number + 1, data.encode()))
    (folder / "lock").write_text("12345")


@pytest.mark.parametrize("log", ["no log", "a log", "a stop between record and database"])
async def test_a_folder_of_an_earlier_version_starts_without_a_word(
    tmp_path: Path, log: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    earlier_version(folder)
    if log == "a log":
        with contextlib.closing(sqlite3.connect(folder / FILE)) as db, db:
            db.execute("pragma journal_mode = wal")
            db.execute("update objects set revision = revision + 10")
            db.commit()
            damaged_copy(folder, tmp_path / "copy")
        damaged_copy(tmp_path / "copy", folder)
    elif log == "a stop between record and database":
        revision_record.RevisionRecord(record(folder), "0" * 32, 3).close()
    there, revision = await content(folder)
    assert (there, revision) == (expected(3), 13 if log == "a log" else 3)
    assert await content(folder) == (there, revision)
    assert not caplog.records
    with contextlib.closing(sqlite3.connect(folder / FILE)) as db:
        assert db.execute("pragma auto_vacuum").fetchone() == (database_file.INCREMENTAL,)
