"""Small files that are replaced atomically: the checkpoint, CDI specs, device metadata. A reader, or a start after a crash,
finds the old text or the new one."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from pathlib import Path
from typing import Protocol

DRAFT = ".{}.new"  # the name of a file while it is written


class Files(Protocol):
    """Names are relative and may have folders in them. OSError when something cannot be written."""

    def read(self, name: str) -> str | None:
        """None: there is none. OSError, UnicodeDecodeError: it cannot be read."""
        ...

    def write(self, name: str, text: str) -> None:
        """Create or replace a file; when it returns, the text is durable."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, and the folders that are empty then; nothing happens if there is none."""
        ...

    def tidy(self) -> None:
        """Remove half-written files of a crash; only for a folder that no other process writes to."""
        ...

    def names(self) -> list[str]:
        """All files."""
        ...

    def at(self, name: str) -> str:
        """The path of a file or folder, for other processes that read it."""
        ...


class FolderFiles:
    """Files below a folder. `durable`: they survive a power failure, not only a crash of the process."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self._folder, self._durable = folder, durable

    def read(self, name: str) -> str | None:
        path = self._folder / name
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a named pipe would wait for its writer
        except (FileNotFoundError, NotADirectoryError):
            return None
        with contextlib.closing(io.FileIO(handle)) as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "is no regular file", str(path))
            return file.readall().decode("utf-8")

    def write(self, name: str, text: str) -> None:
        path = self._folder / name
        draft = _draft(path)
        try:
            self._fill(draft, text)
        except FileNotFoundError:  # the first of its folder
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fill(draft, text)
        draft.replace(path)
        self._settle(path.parent)

    def _fill(self, draft: Path, text: str) -> None:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if self._durable:
                os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        path = self._folder / name
        for file in (_draft(path), path):  # a draft was left by a crash
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                file.unlink()
                self._settle(path.parent)
        for folder in path.parents:
            if folder == self._folder or not folder.is_relative_to(self._folder):
                return
            with contextlib.suppress(OSError):  # not empty, or not there
                folder.rmdir()

    def tidy(self) -> None:
        for path in list(self._folder.rglob(DRAFT.format("*"))):
            path.unlink(missing_ok=True)

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self._folder)) for path in self._folder.rglob("*")
                      if path.is_file() and not path.name.startswith("."))

    def at(self, name: str) -> str:
        return str(self._folder / name)

    def _settle(self, folder: Path) -> None:
        if self._durable:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _draft(path: Path) -> Path:
    return path.with_name(DRAFT.format(path.name))


class MemoryFiles:
    """Files of a simulated host without a folder: lost with the process."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def read(self, name: str) -> str | None:
        return self._texts.get(name)

    def write(self, name: str, text: str) -> None:
        self._texts[name] = text

    def remove(self, name: str) -> None:
        self._texts.pop(name, None)

    def tidy(self) -> None:
        pass

    def names(self) -> list[str]:
        return sorted(self._texts)

    def at(self, name: str) -> str:
        return f"/{name}"
