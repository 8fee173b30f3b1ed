"""The data folder of the embedded product: one process at a time.

Locks the folder itself and the file `lock` in it, which earlier versions lock too and which holds the process id. The database
has a lock of its own (`database_file.open_exclusive`), so that neither a deleted `lock` nor a second name of the folder lets
another process in. Files of others are neither followed nor written. Called by `sqlite`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from pathlib import Path

from outfitter.errors import StartupRefused

log = logging.getLogger(__name__)
LOCK = "lock"
LONGEST_PID = 32  # characters: a longer file is not ours
ATTEMPTS = 10  # to lock a file that others delete at the same time


def in_use(folder: Path, holder: str = "") -> StartupRefused:
    by = f"process {holder}" if holder else "another process"
    return StartupRefused(f"{folder} is in use by {by}: stop it first, or choose another folder with --data")


def lock(folder: Path) -> contextlib.ExitStack:
    """Lock the folder for this process until the result is closed. StartupRefused, with the holder's process id, when it is in
    use."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_mode & stat.S_IWOTH and not folder.stat().st_mode & stat.S_ISVTX:
        log.warning("%s can be written by every user: chmod o-w %s", folder, folder)
    with contextlib.ExitStack() as held:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        held.callback(os.close, directory)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise in_use(folder, _holder(folder / LOCK)) from error
        except OSError as error:  # NFS does not lock folders: the locks of the files remain
            log.info("%s cannot be locked as a folder: %s", folder, error)
        held.callback(os.close, _lock_file(folder / LOCK))
        return held.pop_all()


def _lock_file(path: Path) -> int:
    for _ in range(ATTEMPTS):
        handle = _open(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, handle):
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
                return handle
        except BlockingIOError as error:
            holder = os.pread(handle, LONGEST_PID, 0).decode().strip()
            os.close(handle)
            raise in_use(path.parent, holder) from error
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # deleted or replaced since it was opened
    raise StartupRefused(f"{path} is deleted again and again while outfitter starts: find the program that deletes it")


def _open(path: Path) -> int:
    """Open the lock file. A link, or a file that holds anything but a process id, is another's: it is left as it is."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise _foreign(path, "a symbolic link" if error.errno == errno.ELOOP else "not a regular file") from error
        raise
    status = os.fstat(handle)
    problem = ("not a regular file" if not stat.S_ISREG(status.st_mode) else
               "a hard link to another file" if status.st_nlink > 1 else
               "" if _is_pid(os.pread(handle, LONGEST_PID + 1, 0)) else "a file with other content than a process id")
    if problem:
        os.close(handle)
        raise _foreign(path, problem)
    return handle


def _is_pid(content: bytes) -> bool:
    return len(content) <= LONGEST_PID and (not content.strip() or content.strip().isdigit())


def _foreign(path: Path, problem: str) -> StartupRefused:
    return StartupRefused(f"{path} is {problem}: it was not modified; move it away, outfitter creates its own")


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """The process id in the lock file, "" when there is none to read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as file:
        content = file.read(LONGEST_PID + 1)
    return content.decode().strip() if _is_pid(content) else ""
