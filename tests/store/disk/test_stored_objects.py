"""Rows that cannot be read: refused by name, nothing modified; set aside and kept when the user accepts it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import CONFIG_MAP
from outfitter.store.base import Create
from outfitter.store.disk.database_file import FILE
from outfitter.store.sqlite import SQLite
from tests.store.backends import config
from tests.store.disk.images import content, damaged_copy, expected, fingerprints

GOOD = '{"metadata":{"name":"m001","namespace":"default"}}'
# What is set in the row of m001, and what is said of it.
UNREADABLE: dict[str, tuple[str, object, str]] = {
    "no JSON": ("data", b"\xa5\xa5", "JSON is malformed"),
    "nothing": ("data", b"", "truncated"),
    "a list": ("data", b"[]", "it is not an object with metadata"),
    "metadata is a text": ("data", b'{"metadata": "m001"}', "it is not an object with metadata"),
    "no name": ("data", b'{"metadata": {"namespace": "default"}}', "KeyError 'name'"),
    "another name": ("data", GOOD.replace("m001", "m002").encode(), "its metadata is that of default/m002"),
    "a name that is a list": ("data", GOOD.replace('"m001"', '["m001"]').encode(), "its metadata is that of"),
    "another namespace": ("data", GOOD.replace("default", "other").encode(), "its metadata is that of other/m001"),
    "text instead of bytes": ("data", GOOD, "must be a number and bytes"),
    "a number instead of bytes": ("data", 5, "int"),
    "nested without end": ("data", b'{"metadata":' * 20_000, "ecursion"),
    "a revision that is a text": ("revision", "new", "must be a number and bytes"),
    "a negative revision": ("revision", -1, "must be a number and bytes"),
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three objects."""
    folder = tmp_path_factory.mktemp("image") / "data"

    async def fill() -> None:
        store = SQLite(folder, kinds.ALL)
        await store.commit([Create(CONFIG_MAP, config(name)) for name in expected(3)])
        await store.close()

    asyncio.run(fill())
    return folder


def spoil(folder: Path, column: str, value: object) -> object:
    """Set the value, and how it is stored."""
    with contextlib.closing(sqlite3.connect(folder / FILE)) as db, db:
        db.execute("pragma synchronous = off")
        db.execute(f"update objects set {column} = ? where name = 'm001'", (value,))
        return db.execute(f"select {column} from objects where name = 'm001'").fetchone()


@pytest.mark.parametrize("case", UNREADABLE)
async def test_a_row_that_cannot_be_read_is_named(image: Path, tmp_path: Path, case: str) -> None:
    column, value, words = UNREADABLE[case]
    folder = damaged_copy(image, tmp_path / "data")
    spoil(folder, column, value)
    before = fingerprints(folder)
    with pytest.raises(errors.StartupRefused, match=words) as caught:
        await content(folder)
    assert f"{folder / FILE}: 1 stored object cannot be read: configmaps default/m001" in str(caught.value)
    assert "--accept-lost-writes" in str(caught.value)
    assert fingerprints(folder) == before


async def test_a_row_that_cannot_be_read_is_kept_aside_when_its_loss_is_accepted(image: Path, tmp_path: Path) -> None:
    folder = damaged_copy(image, tmp_path / "data")
    stored = spoil(folder, "data", b"\xa5\xa5")
    assert await content(folder, accept=True) == (["m000", "m002"], 3)
    assert await content(folder) == (["m000", "m002"], 3)
    with contextlib.closing(sqlite3.connect(folder / FILE)) as db:
        assert db.execute("select data from unreadable where name = 'm001'").fetchone() == stored


async def test_many_rows_are_counted(tmp_path: Path) -> None:
    store = SQLite(tmp_path, kinds.ALL)
    await store.commit([Create(CONFIG_MAP, config(f"m{number:03}")) for number in range(8)])
    await store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute("update objects set data = x'00'")
    with pytest.raises(errors.StartupRefused, match=r"8 stored objects cannot be read: .*m004 .* and 3 more\."):
        await content(tmp_path)
