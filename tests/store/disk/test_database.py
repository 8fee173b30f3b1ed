"""The open database: the log is copied into it on a schedule, free space is returned, and what is moved away is noticed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import CONFIG_MAP
from outfitter.store.base import Create, Delete
from outfitter.store.clock import ManualClock
from outfitter.store.disk.database import CHECK_SECONDS
from outfitter.store.disk.database_file import FILE
from outfitter.store.sqlite import MAINTAIN_SECONDS, SQLite
from tests.store.backends import PATIENCE, config, names, settle
from tests.store.disk.images import content, expected, fingerprints, record, wal

POLL = 0.002  # seconds


async def until(check: Callable[[], bool]) -> None:
    """Wait for the writer thread."""
    for _ in range(int(PATIENCE / POLL)):
        if check():
            return
        await asyncio.sleep(POLL)
    raise TimeoutError


async def maintained(store: SQLite, clock: ManualClock) -> None:
    """Let the time pass until nothing is left to be done."""
    while store._maintenance is not None:
        clock.advance(MAINTAIN_SECONDS)
        await asyncio.sleep(POLL)


def rows_without_log(folder: Path) -> int:
    """How many objects the database file alone holds."""
    copy = folder.with_name("without-log.db")
    shutil.copyfile(folder / FILE, copy)
    with contextlib.closing(sqlite3.connect(copy)) as db:
        return int(db.execute("select count(*) from objects").fetchone()[0])


# -- the log


async def test_some_seconds_after_a_write_it_is_in_the_database_itself(tmp_path: Path) -> None:
    folder, clock = tmp_path / "data", ManualClock()
    store = SQLite(folder, kinds.ALL, clock=clock)
    await store.create(CONFIG_MAP, config("m000"))
    await settle()
    clock.advance(MAINTAIN_SECONDS - 0.1)
    assert rows_without_log(folder) == 0
    clock.advance(0.2)
    await until(lambda: rows_without_log(folder) == 1)
    assert wal(folder).stat().st_size > 0  # it is overwritten from its beginning while there are writes
    await maintained(store, clock)
    assert wal(folder).stat().st_size == 0
    await store.create(CONFIG_MAP, config("m001"))
    await maintained(store, clock)
    assert (rows_without_log(folder), wal(folder).stat().st_size) == (2, 0)
    await store.close()
    assert not wal(folder).exists()


async def test_many_writes_are_copied_without_waiting(tmp_path: Path) -> None:
    """The clock stands still: the size of the log is enough."""
    store = SQLite(tmp_path / "data", kinds.ALL, clock=ManualClock())
    for number in range(4):
        await store.commit([Create(CONFIG_MAP, config(f"m{number}-{n}", "x" * 3000)) for n in range(500)])
    assert rows_without_log(tmp_path / "data") >= 1000
    await store.close()


# -- free space


def live_bytes(folder: Path) -> int:
    """Bytes of the objects in a database."""
    with contextlib.closing(sqlite3.connect(folder / FILE)) as db:
        return int(db.execute("select coalesce(sum(length(data)), 0) from objects").fetchone()[0])


async def test_free_space_is_returned_after_deletions(tmp_path: Path) -> None:
    folder, clock = tmp_path / "data", ManualClock()
    store = SQLite(folder, kinds.ALL, clock=clock)
    await store.commit([Create(CONFIG_MAP, config(f"m{n:04}", "x" * 800)) for n in range(1000)])
    await maintained(store, clock)
    full = (folder / FILE).stat().st_size
    kept = set(range(0, 1000, 10))
    await store.commit([Delete(CONFIG_MAP, f"m{n:04}", "default") for n in range(1000) if n not in kept])
    await store.create(CONFIG_MAP, config("n", "written while it is compacted"))
    await maintained(store, clock)
    there = names(await store.list(CONFIG_MAP))
    size = (folder / FILE).stat().st_size + wal(folder).stat().st_size
    await store.close()
    assert size < full / 3
    assert size <= 3 * live_bytes(folder)
    assert there == [*(f"m{n:04}" for n in sorted(kept)), "n"]
    assert (await content(folder))[0] == there


async def test_a_database_of_nearly_empty_pages_is_rewritten_at_start(tmp_path: Path) -> None:
    """Each page has one object left, so that none is free."""
    folder = tmp_path / "data"
    store = SQLite(folder, kinds.ALL, clock=ManualClock())
    await store.commit([Create(CONFIG_MAP, config(f"m{n:04}", "x" * (1100 if n % 3 else 10))) for n in range(1500)])
    await store.commit([Delete(CONFIG_MAP, f"m{n:04}", "default") for n in range(1500) if n % 3])
    await store.close()
    before = (folder / FILE).stat().st_size
    there, revision = await content(folder)
    assert (len(there), revision) == (500, 2500)
    assert (folder / FILE).stat().st_size < before / 3


# -- files that are moved away under a running process


def rename_folder(folder: Path) -> Callable[[], object]:
    away = folder.rename(folder.with_name("away"))
    return lambda: away.rename(folder)


def rename_file(name: str) -> Callable[[Path], Callable[[], object]]:
    def rename(folder: Path) -> Callable[[], object]:
        away = (folder / name).rename(folder / "away")
        return lambda: away.rename(folder / name)

    return rename


def replace_database(folder: Path) -> Callable[[], object]:
    away = (folder / FILE).rename(folder / "away")
    shutil.copyfile(away, folder / FILE)
    return lambda: away.replace(folder / FILE)


MOVED: dict[str, tuple[Callable[[Path], Callable[[], object]], str]] = {
    "the folder is renamed": (rename_folder, f"{FILE} is not there any more"),
    "the database is renamed": (rename_file(FILE), f"{FILE} is not there any more"),
    "the database is replaced": (replace_database, f"{FILE} was replaced"),
    "the log is renamed": (rename_file(f"{FILE}-wal"), f"{FILE}-wal is not there any more"),
}


@pytest.mark.parametrize("case", MOVED)
async def test_nothing_is_acknowledged_that_would_be_gone(tmp_path: Path, case: str) -> None:
    move, words = MOVED[case]
    folder = tmp_path / "data"
    clock = ManualClock()
    store = SQLite(folder, kinds.ALL, clock=clock)
    await store.create(CONFIG_MAP, config("m000"))
    move_back = move(folder)
    clock.advance(CHECK_SECONDS)
    for _ in range(2):
        with pytest.raises(errors.Unavailable, match=words):
            await store.create(CONFIG_MAP, config("m001"))
    assert names(await store.list(CONFIG_MAP)) == ["m000"]
    move_back()
    await store.create(CONFIG_MAP, config("m001"))
    await store.close()
    assert (await content(folder))[0] == expected(2)


async def test_who_was_moved_away_leaves_the_next_user_alone(tmp_path: Path) -> None:
    """It neither writes to nor deletes files that have its paths now."""
    folder, clock = tmp_path / "data", ManualClock()
    moved = SQLite(folder, kinds.ALL, clock=clock)
    await moved.create(CONFIG_MAP, config("before"))
    folder.rename(tmp_path / "away")
    following = SQLite(folder, kinds.ALL, clock=ManualClock())
    await following.create(CONFIG_MAP, config("m000"))
    before = fingerprints(folder)
    await maintained(moved, clock)
    await moved.close()
    assert fingerprints(folder) == before
    await following.create(CONFIG_MAP, config("m001"))
    await following.close()
    assert (await content(folder))[0] == expected(2)
    assert (await content(tmp_path / "away"))[0] == ["before"]


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["deleted", "emptied"])
async def test_a_record_that_is_lost_is_written_again(tmp_path: Path, lose: Callable[[Path], object]) -> None:
    clock = ManualClock()
    store = SQLite(tmp_path / "data", kinds.ALL, clock=clock)
    lose(record(tmp_path / "data"))
    await store.create(CONFIG_MAP, config("m000"))
    clock.advance(CHECK_SECONDS)
    lose(record(tmp_path / "data"))
    await store.create(CONFIG_MAP, config("m001"))
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    await store.close()
    assert await content(tmp_path / "copy") == (expected(2), 2)


# -- a full disk

FULL = """
import asyncio, os, pathlib, resource, signal, sys
from outfitter import errors
from outfitter.api import kinds
from outfitter.store.sqlite import SQLite

def config(number):
    return {"metadata": {"name": f"m{number:03}", "namespace": "default"}, "data": {"v": "x" * 3000}}

async def run():
    store, numbers = SQLite(pathlib.Path(sys.argv[1]), kinds.ALL), iter(range(1000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))  # no file can grow beyond it
    failed = 0
    while failed < 3:
        number = next(numbers)
        try:
            await store.create(kinds.CONFIG_MAP, config(number))
        except errors.Unavailable:
            failed += 1
        else:
            print(f"m{number:03}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)  # there is space again
    number = next(numbers)
    await store.create(kinds.CONFIG_MAP, config(number))
    print(f"m{number:03}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(run())
"""


async def test_on_a_full_disk_only_what_is_stored_is_acknowledged(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, text=True, check=False)
    acknowledged = done.stdout.split()
    assert len(acknowledged) > 5
    assert (await content(tmp_path))[0] == acknowledged
