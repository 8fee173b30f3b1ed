"""Rows that cannot be read: refused by name, nothing modified; set aside and kept when the user accepts it."""

from __future__ import annotations

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
from tests.store.disk.images import content, expected, fingerprints

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
    "labels are a list": ("data", GOOD.replace("}}", ',"labels":[1]}}').encode(), "its metadata"),
    "text instead of bytes": ("data", GOOD, "must be a number and bytes"),
    "a number instead of bytes": ("data", 5, "int"),
    "nested without end": ("data", b'{"metadata":' * 20_000, "ecursion"),
    "a revision that is a text": ("revision", "new", "must be a number and bytes"),
    "a negative revision": ("revision", -1, "must be a number and bytes"),
}


@pytest.mark.parametrize("case", UNREADABLE)
async def test_a_row_that_cannot_be_read(tmp_path: Path, case: str) -> None:
    column, value, words = UNREADABLE[case]
    store = SQLite(tmp_path, kinds.ALL)
    await store.commit([Create(CONFIG_MAP, config(f"m{number:03}")) for number in range(3)])
    await store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute(f"update objects set {column} = ? where name = 'm001'", (value,))
        before_value = db.execute(f"select {column} from objects where name = 'm001'").fetchone()
    before = fingerprints(tmp_path)
    with pytest.raises(errors.StartupRefused, match=words) as caught:
        await content(tmp_path)
    assert f"{tmp_path / FILE}: 1 stored object cannot be read: configmaps default/m001" in str(caught.value)
    assert "--accept-lost-writes" in str(caught.value)
    assert fingerprints(tmp_path) == before
    rest = [name for name in expected(3) if name != "m001"]
    assert await content(tmp_path, accept=True) == (rest, 3)
    assert await content(tmp_path) == (rest, 3)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as db:
        assert db.execute(f"select {column} from unreadable where name = 'm001'").fetchone() == before_value


async def test_many_rows_are_counted(tmp_path: Path) -> None:
    store = SQLite(tmp_path, kinds.ALL)
    await store.commit([Create(CONFIG_MAP, config(f"m{number:03}")) for number in range(8)])
    await store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute("update objects set data = x'00'")
    with pytest.raises(errors.StartupRefused, match=r"8 stored objects cannot be read: .*m004 .* and 3 more\."):
        await content(tmp_path)
