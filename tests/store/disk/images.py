"""Data folders as a killed process leaves them, and what can be done to their files."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from outfitter.api import kinds
from outfitter.api.kinds import CONFIG_MAP
from outfitter.store.clock import ManualClock
from outfitter.store.disk.database_file import FILE
from outfitter.store.sqlite import SQLite
from tests.store.backends import config, names

TRANSACTIONS = 12  # in the log of a killed folder; each writes one object and the last revision is their number
FRAME, WAL_HEADER = 24 + 4096, 32


def wal(folder: Path) -> Path:
    return folder / f"{FILE}-wal"


def record(folder: Path) -> Path:
    return folder / f"{FILE}-revision"


async def killed(folder: Path, *, first: int = 0, copy_from: Path | None = None) -> Path:
    """A folder with all transactions in the log alone: the clock stands still, so that the log is not copied."""
    running = copy_from or folder.with_name(f"{folder.name}-running")
    store = SQLite(running, kinds.ALL, clock=ManualClock())
    for number in range(first, first + TRANSACTIONS):
        await store.create(CONFIG_MAP, config(f"m{number:03}", "x" * 900))
    shutil.copytree(running, folder)  # as after kill -9: what was written is in the files, nothing was tidied up
    await store.close()
    return folder


def expected(count: int = TRANSACTIONS) -> list[str]:
    return [f"m{number:03}" for number in range(count)]


def damaged_copy(image: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(image, target)
    return target


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def fingerprints(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.name != "lock"}


async def content(folder: Path, *, accept: bool = False) -> tuple[list[str], int]:
    """Names of the objects in a folder, and its revision."""
    store = SQLite(folder, kinds.ALL, accept_lost_writes=accept)
    try:
        return names(await store.list(CONFIG_MAP)), store.revision
    finally:
        await store.close()
