"""Files of the backend on disk that are not ours, not whole, too new or too old, and a folder that another process uses."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import CONFIG_MAP
from outfitter.store.base import Create
from outfitter.store.disk import database_file
from outfitter.store.disk.database_file import APPLICATION_ID, FILE, MIGRATIONS
from outfitter.store.sqlite import SQLite
from tests.store.backends import config, names

# -- refused


def fingerprints(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.name != "lock"}


async def filled(folder: Path, count: int = 200) -> None:
    store = SQLite(folder, kinds.ALL)
    await store.commit([Create(CONFIG_MAP, config(f"m{number}", "x" * 500)) for number in range(count)])
    await store.close()


def text_file(path: Path) -> None:
    path.write_text("the diary of somebody else\n" * 100)


def short_file(path: Path) -> None:
    path.write_bytes(database_file.HEADER)


def other_database(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("create table diary (line text)")
        db.commit()


def newer_format(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"pragma user_version = {len(MIGRATIONS) + 1}")
        db.commit()


def statement(*statements: str) -> Callable[[Path], None]:
    def execute(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            for text in statements:
                db.execute(text)

    return execute


def overwritten_page(path: Path) -> None:
    with path.open("r+b") as handle:
        handle.seek(path.stat().st_size // 2)
        handle.write(b"\xa5" * 8192)


def overwritten_object(path: Path) -> None:
    data = path.read_bytes()
    place = data.index(b'"metadata"')
    path.write_bytes(data[:place] + b"\xa5" * 10 + data[place + 10:])


def cut_short(path: Path) -> None:
    with path.open("r+b") as handle:
        handle.truncate(path.stat().st_size // 2)


def with_log(path: Path) -> None:
    """As a crash leaves it: the last writes are in the log alone."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("update meta set value = (select max(revision) + 1 from objects) where key = 'revision'")
        db.commit()
        copies = {name: path.with_name(name).read_bytes() for name in (path.name, f"{path.name}-wal")}
    for name, data in copies.items():
        path.with_name(name).write_bytes(data)


def damaged_beside_a_log(path: Path) -> None:
    with_log(path)
    overwritten_page(path)


def log_without_file(path: Path) -> None:
    with_log(path)
    path.unlink()


def log_beside_an_empty_file(path: Path) -> None:
    with_log(path)
    path.write_bytes(b"")


# What is done to a good file, and what is said of it then.
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a text file": (text_file, "is not a database of outfitter"),
    "a file that ends too soon": (short_file, "is not a database of outfitter"),
    "another program's database": (other_database, "is the database of another program"),
    "no table of objects": (statement("drop table objects"), "is damaged .table objects: no such table"),
    "no table meta": (statement("drop table meta"), "is damaged .table meta: no such table"),
    "a missing column": (
        statement("alter table objects rename column data to body"), "is damaged .table objects: no such column"),
    "no format": (statement("pragma user_version = 0"), "is damaged .its format is 0"),
    "a negative format": (statement("pragma user_version = -3"), "is damaged .its format is -3"),
    "a view in place of a table": (
        statement("alter table objects rename to o", "create view objects as select * from o"), "is damaged"),
    "a table without its key": (
        statement("create table o as select * from objects", "drop table objects", "alter table o rename to objects"),
        "is damaged"),
    "a newer format": (newer_format, rf"newer outfitter \(its format is {len(MIGRATIONS) + 1}"),
    "an overwritten page": (overwritten_page, "is damaged"),
    "an overwritten object": (overwritten_object, "cannot be read"),
    "a file cut short": (cut_short, "is damaged"),
    "damage beside a log": (damaged_beside_a_log, "is damaged"),
    "a log without its file": (log_without_file, "is missing or empty, but revision 200 was acknowledged"),
    "a log beside an empty file": (log_beside_an_empty_file, "is missing or empty, but revision 200 was acknowledged"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_refused_and_left_as_it_is(tmp_path: Path, case: str) -> None:
    spoil, words = REFUSED[case]
    path = tmp_path / FILE
    await filled(tmp_path)
    spoil(path)
    before = fingerprints(tmp_path)
    for _ in range(2):
        with pytest.raises(errors.StartupRefused, match=words) as caught:
            SQLite(tmp_path, kinds.ALL)
        assert str(path) in str(caught.value)
        assert fingerprints(tmp_path) == before


async def test_what_a_crash_left_in_the_log_is_read(tmp_path: Path) -> None:
    await filled(tmp_path)
    with_log(tmp_path / FILE)
    store = SQLite(tmp_path, kinds.ALL)
    assert store.revision == 201
    assert len(names(await store.list(CONFIG_MAP))) == 200
    await store.close()


def nothing(path: Path) -> None:
    pass


def half_made(path: Path) -> None:
    path.with_name(f"{FILE}.new").write_bytes(database_file.HEADER + b"half")
    path.with_name(f"{FILE}.new-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\x01" * 600)


@pytest.mark.parametrize("left", [nothing, Path.touch, half_made], ids=["nothing", "an empty file", "a half-made file"])
async def test_a_new_file(tmp_path: Path, left: Callable[[Path], None]) -> None:
    left(tmp_path / FILE)
    store = SQLite(tmp_path, kinds.ALL)
    await store.create(CONFIG_MAP, config("a"))
    await store.close()
    assert not [name for name in fingerprints(tmp_path) if ".new" in name]
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as db:
        assert db.execute("pragma application_id").fetchone() == (APPLICATION_ID,)
        assert db.execute("pragma user_version").fetchone() == (len(MIGRATIONS),)
        assert db.execute("pragma journal_mode").fetchone() == ("wal",)


async def test_a_half_made_file_beside_a_whole_one(tmp_path: Path) -> None:
    await filled(tmp_path, 3)
    (tmp_path / f"{FILE}.new").write_bytes(b"half")
    store = SQLite(tmp_path, kinds.ALL)
    assert names(await store.list(CONFIG_MAP)) == ["m0", "m1", "m2"]
    await store.close()


# -- formats


async def test_a_migration_goes_on_from_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(tmp_path, 3)
    monkeypatch.setattr(database_file, "MIGRATIONS", (*MIGRATIONS, lambda db: db.execute("create table extra (x)")))
    store = SQLite(tmp_path, kinds.ALL)
    assert store._disk.connection.execute("pragma user_version").fetchone() == (len(MIGRATIONS) + 1,)
    assert store._disk.connection.execute("select count(*) from extra").fetchone() == (0,)
    assert len(names(await store.list(CONFIG_MAP))) == 3
    await store.close()


async def test_a_migration_that_fails_leaves_the_old_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(db: sqlite3.Connection) -> None:
        db.execute("create table extra (x)")
        db.execute("delete from objects")
        raise sqlite3.OperationalError("no")

    await filled(tmp_path, 3)
    with monkeypatch.context() as patch:
        patch.setattr(database_file, "MIGRATIONS", (*MIGRATIONS, broken))
        with pytest.raises(errors.StartupRefused, match="was not migrated from format"):
            SQLite(tmp_path, kinds.ALL)
    store = SQLite(tmp_path, kinds.ALL)  # the older program still can
    assert store._disk.connection.execute("pragma user_version").fetchone() == (len(MIGRATIONS),)
    assert store._disk.connection.execute("select name from sqlite_master where name = 'extra'").fetchall() == []
    assert len(names(await store.list(CONFIG_MAP))) == 3
    await store.close()


# -- one process at a time

HOLDER = """
import pathlib, sys
from outfitter.api import kinds
from outfitter.store.sqlite import SQLite
store = SQLite(pathlib.Path(sys.argv[1]), kinds.ALL)
print("open", flush=True)
sys.stdin.read()
"""


async def test_a_folder_in_use_names_its_user(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, str(tmp_path), stdin=pipe, stdout=pipe)
    assert holder.stdout
    try:
        assert await holder.stdout.readline() == b"open\n"
        with pytest.raises(errors.StartupRefused, match=f"is in use by process {holder.pid}:"):
            SQLite(tmp_path, kinds.ALL)
    finally:
        holder.kill()
        await holder.communicate()
    store = SQLite(tmp_path, kinds.ALL)  # its lock went with it
    with pytest.raises(errors.StartupRefused, match="is in use by process"):
        SQLite(tmp_path, kinds.ALL)
    await store.close()


async def test_the_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    store = SQLite(tmp_path / "new" / "data", kinds.ALL)
    assert (tmp_path / "new" / "data").stat().st_mode & 0o077 == 0
    await store.close()


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.name.startswith(FILE)}


@pytest.mark.parametrize("before", ["nothing", "a file for all", "a log for all"])
async def test_the_files_are_for_their_owner_alone_in_a_folder_that_all_may_read(tmp_path: Path, before: str) -> None:
    """The mode of the folder is kept; the files are readable by the owner only."""
    os.chmod(tmp_path, 0o755)
    mask = os.umask(0)
    try:
        if before != "nothing":
            await filled(tmp_path, 1)
            (tmp_path / FILE).chmod(0o644)
        if before == "a log for all":
            for end in ("-wal", "-shm"):
                (tmp_path / (FILE + end)).touch(mode=0o644)
        store = SQLite(tmp_path, kinds.ALL)
        await store.create(CONFIG_MAP, config("a"))
        seen = modes(tmp_path)
        await store.close()
    finally:
        os.umask(mask)
    assert set(seen) >= {FILE, FILE + "-wal", FILE + "-revision"}
    assert set(seen.values()) == {0o600}


async def test_pages_are_checked_for_a_limited_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await filled(tmp_path, 2000)
    assert database_file.inspect(tmp_path / FILE, seconds=0).revision == 2000
    assert "its pages were checked for 0 s only" in caplog.text
    overwritten_page(tmp_path / FILE)
    with pytest.raises(errors.StartupRefused, match="is damaged"):
        database_file.inspect(tmp_path / FILE)
