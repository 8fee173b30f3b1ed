"""Read-only access to a host's files: of a real host, a captured folder or a simulated one. A missing or unreadable path is
None or empty, never an error: on a running host entries vanish between two calls.

Links are resolved inside the tree only, as with chroot: an absolute target starts at the root of the tree, and ".." stops
there. So a captured folder of unknown origin exposes no other files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outfitter import errors

MAX_LINKS = 40  # as Linux, before it reports ELOOP
MAX_BYTES = 1 << 20  # larger than any text file of sysfs; a captured folder may contain anything


class Tree(Protocol):
    """A folder of small files and links, with paths such as "/sys/bus/pci/devices"."""

    def read(self, path: str) -> str | None:
        """The text of a file; None if it does not exist, is no file or cannot be read."""
        ...

    def read_bytes(self, path: str, length: int, offset: int = 0) -> bytes | None:
        """At most `length` bytes of a binary file, fewer at its end; None as for `read`."""
        ...

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted, including broken links. Empty if there is no such folder."""
        ...

    def link(self, path: str) -> str | None:
        """The resolved target of a link, as an absolute path in the tree; the target itself may be missing. None if the path is
        no link, or a loop."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder, with links resolved."""
        ...


def resolve(path: str, target_of: Callable[[str], str | None]) -> str | None:
    """The path with all links resolved inside the tree; None for a loop. `target_of` returns the target of a path whose parents
    are no links, or None if it is no link."""
    todo = path.split("/")[::-1]
    here, followed = "", 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = here.rpartition("/")[0]
            continue
        step = f"{here}/{name}"
        target = target_of(step)
        if target is None:
            here = step
            continue
        followed += 1
        if followed > MAX_LINKS:
            return None
        if target.startswith("/"):
            here = ""
        todo.extend(target.split("/")[::-1])
    return here or "/"


def follow(path: str, target_of: Callable[[str], str | None]) -> str | None:
    """The common implementation of `Tree.link`."""
    parent, _, name = path.rstrip("/").rpartition("/")
    folder = resolve(parent, target_of)
    if folder is None or target_of(f"{folder.rstrip('/')}/{name}") is None:
        return None
    return resolve(path, target_of)


class FolderTree:
    """A tree below a folder: "/" for this host, or a captured copy. With `at`, the folder is that path of the tree, which has
    nothing else."""

    def __init__(self, root: Path, at: str = "") -> None:
        self._root = os.path.realpath(root).rstrip("/")
        self._at = at

    def read(self, path: str) -> str | None:
        data = self.read_bytes(path, MAX_BYTES)
        return None if data is None else data.decode("utf-8", "replace")

    def read_bytes(self, path: str, length: int, offset: int = 0) -> bytes | None:
        real_path = self._real_path(path)
        if real_path is None:
            return None
        try:
            # O_NOFOLLOW and O_NONBLOCK: the entry may have become a link or a pipe since it was resolved.
            handle = os.open(real_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            return os.pread(handle, min(length, MAX_BYTES), offset)
        except OSError:
            return None
        finally:
            os.close(handle)

    def names(self, path: str) -> list[str]:
        real_path = self._real_path(path)
        if real_path is None:
            return []
        try:
            return sorted(os.listdir(real_path))
        except (OSError, ValueError):
            return []

    def link(self, path: str) -> str | None:
        return follow(path, self._target)

    def exists(self, path: str) -> bool:
        real_path = self._real_path(path)
        return real_path is not None and os.path.lexists(real_path)

    def _real_path(self, path: str) -> str | None:
        inside = resolve(path, self._target)
        return None if inside is None else self._outside(inside)

    def _outside(self, inside: str) -> str | None:
        if self._at and inside != self._at and not inside.startswith(f"{self._at}/"):
            return None
        return self._root + inside[len(self._at):]

    def _target(self, inside: str) -> str | None:
        real_path = self._outside(inside)
        try:
            return None if real_path is None else os.readlink(real_path)
        except (OSError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link in a `MemoryTree`."""

    target: str  # relative to the folder of the link, or absolute in the tree


# The content of a path: a file's text or bytes, a link, or None for a folder that may be empty.
Entry = str | bytes | Link | None


class MemoryTree:
    """A tree from a dict of absolute paths; the folders above them are implied."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = dict(entries)
        self._folders: dict[str, set[str]] = {"/": set()}
        for path, entry in self._entries.items():
            if not path.startswith("/") or path != "/" + "/".join(p for p in path.split("/") if p not in ("", ".", "..")):
                raise errors.Invalid(f"{path!r} is not an absolute path without '.', '..' and empty parts")
            if entry is None:
                self._folders.setdefault(path, set())
            self._imply(path)
        for path in self._folders:
            if self._entries.get(path) is not None:
                raise errors.Invalid(f"{path!r} is a file or link and a folder at once")

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The entries that the tree was built from."""
        return self._entries

    def read(self, path: str) -> str | None:
        entry = self._file(path)
        return entry.decode("utf-8", "replace") if isinstance(entry, bytes) else entry

    def read_bytes(self, path: str, length: int, offset: int = 0) -> bytes | None:
        entry = self._file(path)
        data = entry.encode("utf-8", "surrogateescape") if isinstance(entry, str) else entry
        return None if data is None else data[offset:offset + length]

    def names(self, path: str) -> list[str]:
        inside = self._resolve(path)
        return [] if inside is None else sorted(self._folders.get(inside, ()))

    def link(self, path: str) -> str | None:
        entry = self._entries.get(path)
        if not isinstance(entry, Link):
            return follow(path, self._target) if entry is None and path not in self._folders else None
        # The folders above an entry are no links, so ".." can be resolved textually.
        folder, target = path.rpartition("/")[0], entry.target
        while target.startswith("../") and folder:
            folder, target = folder.rpartition("/")[0], target[3:]
        end = f"{folder}/{target}"
        return end if self._is_end(end) else follow(path, self._target)

    def exists(self, path: str) -> bool:
        inside = self._resolve(path)
        return inside is not None and (inside in self._folders or isinstance(self._entries.get(inside), str | bytes))

    def _file(self, path: str) -> str | bytes | None:
        entry = self._entries.get(path)
        if entry is None or isinstance(entry, Link):
            inside = self._resolve(path)
            entry = None if inside is None else self._entries.get(inside)
        return entry if isinstance(entry, str | bytes) else None

    def _resolve(self, path: str) -> str | None:
        return path if self._is_end(path) else resolve(path, self._target)

    def _is_end(self, path: str) -> bool:
        """Whether the path needs no resolving: it is an entry and no link, so no folder above it is one."""
        return path in self._folders or isinstance(self._entries.get(path), str | bytes)

    def _target(self, inside: str) -> str | None:
        entry = self._entries.get(inside)
        return entry.target if isinstance(entry, Link) else None

    def _imply(self, path: str) -> None:
        """Add the path to its folder, and that folder to its own, up to one that is known."""
        while path != "/":
            parent, _, name = path.rpartition("/")
            parent = parent or "/"
            known = parent in self._folders
            self._folders.setdefault(parent, set()).add(name)
            if known:
                return
            path = parent
