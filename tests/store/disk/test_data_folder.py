"""One process uses a data folder at a time, whatever is deleted, linked or renamed; files of others are left as they are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.store.disk import data_folder
from outfitter.store.disk.database_file import FILE
from outfitter.store.sqlite import SQLite

HOLDER = """
import pathlib, sys
from outfitter.api import kinds
from outfitter.errors import StartupRefused
from outfitter.store.sqlite import SQLite
print("ready", flush=True)
sys.stdin.readline()
try:
    store = SQLite(pathlib.Path(sys.argv[1]), kinds.ALL)
except StartupRefused as error:
    print("refused", error, flush=True)
else:
    print("open", flush=True)
sys.stdin.read()
"""


@contextlib.asynccontextmanager
async def process(folder: Path) -> AsyncIterator[Process]:
    """A process that opens the folder at the first line of its input, and keeps it until it is killed."""
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, str(folder), stdin=PIPE, stdout=PIPE)
    try:
        assert await answer(holder) == "ready"
        yield holder
    finally:
        with contextlib.suppress(ProcessLookupError):
            holder.kill()
        await holder.communicate()


async def answer(holder: Process) -> str:
    assert holder.stdout
    return (await holder.stdout.readline()).decode().strip()


def begin(holder: Process) -> None:
    assert holder.stdin
    holder.stdin.write(b"\n")


@contextlib.asynccontextmanager
async def user_of(folder: Path) -> AsyncIterator[Process]:
    async with process(folder) as holder:
        begin(holder)
        assert await answer(holder) == "open"
        yield holder


def nothing(folder: Path) -> Path:
    return folder


def delete_lock(folder: Path) -> Path:
    (folder / data_folder.LOCK).unlink()
    return folder


def replace_lock(folder: Path) -> Path:
    (folder / "new").write_text("1")
    (folder / "new").replace(folder / data_folder.LOCK)
    return folder


def through_a_link(folder: Path) -> Path:
    link = folder.with_name("link")
    link.symlink_to(folder)
    return link


def hard_link_to_the_database(folder: Path) -> Path:
    """Another folder with the same file in it: SQLite's own lock is on the file."""
    other = folder.with_name("other")
    other.mkdir()
    os.link(folder / FILE, other / FILE)
    os.link(folder / f"{FILE}-revision", other / f"{FILE}-revision")
    return other


def renamed(folder: Path) -> Path:
    return folder.rename(folder.with_name("renamed"))


DISTURBED: dict[str, Callable[[Path], Path]] = {
    "nothing is done": nothing, "lock is deleted": delete_lock, "lock is replaced": replace_lock,
    "a link to the folder": through_a_link, "a hard link to the database": hard_link_to_the_database,
    "the folder is renamed": renamed,  # the last, as the others need it where it was
}


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """One process holds the folder through all of it; while it does not run, too."""
    async with user_of(tmp_path / "data") as holder:
        holder.send_signal(signal.SIGSTOP)
        for case, disturb in DISTURBED.items():
            with pytest.raises(errors.StartupRefused, match=r"is in use by (another )?process") as caught:
                SQLite(disturb(tmp_path / "data"), kinds.ALL)
            assert case != "nothing is done" or f"process {holder.pid}:" in str(caught.value)


async def test_one_of_many_that_start_at_once_gets_the_folder(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        racers = [await stack.enter_async_context(process(tmp_path / "data")) for _ in range(3)]
        for racer in racers:
            begin(racer)
        answers = [await answer(racer) for racer in racers]
    assert sorted(text.split()[0] for text in answers) == ["open", "refused", "refused"]
    assert all("is in use by" in text for text in answers if text != "open")


# -- what is not ours


def symbolic_link(lock: Path, target: Path) -> None:
    lock.symlink_to(target)


def hard_link(lock: Path, target: Path) -> None:
    os.link(target, lock)


def copy(lock: Path, target: Path) -> None:
    lock.write_bytes(target.read_bytes())


def fifo(lock: Path, target: Path) -> None:
    os.mkfifo(lock)


def folder_instead(lock: Path, target: Path) -> None:
    lock.mkdir()


FOREIGN: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "a symbolic link": (symbolic_link, "is a symbolic link"),
    "a hard link": (hard_link, "is a hard link to another file"),
    "another file": (copy, "is a file with other content than a process id"),
    "a pipe": (fifo, "is not a regular file"),
    "a folder": (folder_instead, "is not a regular file"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_lock_that_is_not_ours_is_left_as_it_is(tmp_path: Path, case: str) -> None:
    make, words = FOREIGN[case]
    target = tmp_path / "target"
    target.write_text("the notes of another user")
    (tmp_path / "data").mkdir()
    make(tmp_path / "data" / "lock", target)
    with pytest.raises(errors.StartupRefused, match=f"lock {words}: it was not modified"):
        SQLite(tmp_path / "data", kinds.ALL)
    assert target.read_text() == "the notes of another user"


async def test_the_lock_of_a_process_that_is_gone_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("4194304\n")
    store = SQLite(tmp_path, kinds.ALL)
    assert (tmp_path / "lock").read_text() == str(os.getpid())
    await store.close()


def test_a_folder_that_all_may_write_gets_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o777)
    data_folder.lock(tmp_path).close()
    assert "can be written by every user" in caplog.text
