"""`outfit up` on a data folder that was damaged after a kill -9: refused, with what is wrong and how to go on."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.process import ForkedUp, typed

OBJECT = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}}'


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a server that was killed after it acknowledged a write, which is in the log alone."""
    for _ in range(100):
        data = tmp_path_factory.mktemp("killed") / "data"
        with ForkedUp(data) as up:
            up.ok("apply", "-f", "-", stdin=OBJECT)
            up.kill()
        if b'"kept"' not in (data / "outfitter.db").read_bytes():  # else this host was so slow that the log was copied before
            break
    return data


def without_log(data: Path) -> None:
    (data / "outfitter.db-wal").unlink()


def flipped_bit(data: Path) -> None:
    log = data / "outfitter.db-wal"
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)


def linked_lock(data: Path) -> None:
    (data / "lock").unlink()
    (data / "lock").symlink_to("notes")
    (data / "notes").write_text("of another user")


def readable(name: str) -> Callable[[Path], None]:
    return lambda data: (data / "pki" / name).chmod(0o644)


def linked_key(data: Path) -> None:
    (data / "pki" / "ca.key").rename(data / "ca.key")
    (data / "pki" / "ca.key").symlink_to(data / "ca.key")


def execute(statement: str) -> Callable[[Path], None]:
    def work(data: Path) -> None:
        with contextlib.closing(sqlite3.connect(data / "outfitter.db")) as db, db:
            db.execute(statement)

    return work


# What is done to the folder, and what the command says.
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "log deleted": (without_log, "was acknowledged, the database has revision "),
    "a bit of the log": (flipped_bit, "was acknowledged, the database has revision"),
    "lock is a link": (linked_lock, "lock is a symbolic link"),
    "a readable token": (readable("token"), "chmod 600"),
    "a readable key": (readable("server.key"), "chmod 600"),
    "a readable key of the authority": (readable("ca.key"), "chmod 600"),
    "a key that is a link": (linked_key, "ca.key is a symbolic link"),
    "a table is gone": (execute("drop table objects"), "no such table: objects"),
    "a malformed row": (execute("update objects set data = x'00' where name = 'kept'"), "configmaps default/kept"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_folder_is_refused(killed: Path, tmp_path: Path, case: str) -> None:
    damage, words = DAMAGES[case]
    data = tmp_path / "data"
    shutil.copytree(killed, data)
    damage(data)
    done = typed("up", "--data", str(data), "--port", "0", "--simulate", "1x1")
    assert done.code == 1
    assert words in done.err
    assert str(data) in done.err
    assert "Traceback" not in done.err
    assert not (data / "notes").exists() or (data / "notes").read_text() == "of another user"


def test_the_loss_can_be_accepted(killed: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(killed, data)
    os.truncate(data / "outfitter.db-wal", 0)
    with ForkedUp(data, "--accept-lost-writes") as up:
        assert typed("get", "configmap", "kept", kubeconfig=up.kubeconfig).code == 1
        up.ok("apply", "-f", "-", stdin=OBJECT)
        assert "--accept-lost-writes" in up.log()
