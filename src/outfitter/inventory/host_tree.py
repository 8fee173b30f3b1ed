"""Where a host's files come from. A tree is read only and every answer may be "not there": on a living host entries vanish
between two calls, so nothing here raises for a missing or unreadable path.

Links are followed inside the tree alone, as if its root were the machine's: an absolute target starts again at the root,
and ".." stops there. So a captured folder, whoever sent it, shows nothing but itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outfitter import errors

MAX_LINKS = 40  # as many as Linux follows before it speaks of a loop
MAX_BYTES = 1 << 20  # more than any text file of sysfs; a captured folder may hold anything


class Tree(Protocol):
    """A folder of small files and links, with paths such as "/sys/bus/pci/devices"."""

    def read(self, path: str) -> str | None:
        """The text of a file; None if it is not there, is no file or cannot be read."""
        ...

    def read_bytes(self, path: str, length: int, offset: int = 0) -> bytes | None:
        """At most so many bytes of a file that is no text, fewer at its end; None as for `read`."""
        ...

    def names(self, path: str) -> list[str]:
        """What stands in a folder, sorted; broken links too. Empty if there is no such folder."""
        ...

    def link(self, path: str) -> str | None:
        """Where a link ends, as an absolute path in the tree without further links; the end itself may be missing.
        None if the path is no link, or one that runs in a circle."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder, links followed."""
        ...


def resolve(path: str, target_of: Callable[[str], str | None]) -> str | None:
    """The path with all links followed, inside the tree; None for a circle. `target_of` tells where a path leads whose
    parents are no links, or None if it is no link."""
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
    """What `Tree.link` promises, for any home."""
    parent, _, name = path.rstrip("/").rpartition("/")
    folder = resolve(parent, target_of)
    if folder is None or target_of(f"{folder.rstrip('/')}/{name}") is None:
        return None
    return resolve(path, target_of)


class FolderTree:
    """A tree below a folder: "/" for this machine, or a captured copy. With `at` the folder is no root, but stands at that
    path of the tree, which has nothing else."""

    def __init__(self, root: Path, at: str = "") -> None:
        self._root = os.path.realpath(root).rstrip("/")
        self._at = at

    def read(self, path: str) -> str | None:
        data = self.read_bytes(path, MAX_BYTES)
        return None if data is None else data.decode("utf-8", "replace")

    def read_bytes(self, path: str, length: int, offset: int = 0) -> bytes | None:
        place = self._place(path)
        if place is None:
            return None
        try:
            # Not following and not blocking: the entry may have become a link or a pipe since it was looked at.
            handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
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
        place = self._place(path)
        if place is None:
            return []
        try:
            return sorted(os.listdir(place))
        except (OSError, ValueError):
            return []

    def link(self, path: str) -> str | None:
        return follow(path, self._target)

    def exists(self, path: str) -> bool:
        place = self._place(path)
        return place is not None and os.path.lexists(place)

    def _place(self, path: str) -> str | None:
        inside = resolve(path, self._target)
        return None if inside is None else self._outside(inside)

    def _outside(self, inside: str) -> str | None:
        if self._at and inside != self._at and not inside.startswith(f"{self._at}/"):
            return None
        return self._root + inside[len(self._at):]

    def _target(self, inside: str) -> str | None:
        place = self._outside(inside)
        try:
            return None if place is None else os.readlink(place)
        except (OSError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Link:
    """An entry of a `MemoryTree` that leads elsewhere."""

    target: str  # relative to the folder of the link, or absolute in the tree


# What may stand at a path: a file's text or bytes, a link, or None for a folder that may be empty.
Entry = str | bytes | Link | None


class MemoryTree:
    """A tree from a dict of absolute paths; the folders above them are implied."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = dict(entries)
        self._folders: dict[str, set[str]] = {"/": set()}
        for path, entry in self._entries.items():
            if not path.startswith("/") or path != "/" + "/".join(p for p in path.split("/") if p not in ("", ".", "..")):
                raise errors.Invalid(f"{path!r} is no absolute path without '.', '..' and empty parts")
            if entry is None:
                self._folders.setdefault(path, set())
            self._imply(path)
        for path in self._folders:
            if self._entries.get(path) is not None:
                raise errors.Invalid(f"{path!r} is a file or link and a folder at once")

    @property
    def entries(self) -> Mapping[str, Entry]:
        """What the tree was made of."""
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
        # The folders above an entry are no links, so that ".." may be taken word by word.
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
        """Whether the path needs no resolving: it stands here and is no link, so that nothing above it is one either."""
        return path in self._folders or isinstance(self._entries.get(path), str | bytes)

    def _target(self, inside: str) -> str | None:
        entry = self._entries.get(inside)
        return entry.target if isinstance(entry, Link) else None

    def _imply(self, path: str) -> None:
        """Note the path in its folder, and that folder in its own, up to one that is known."""
        while path != "/":
            parent, _, name = path.rpartition("/")
            parent = parent or "/"
            known = parent in self._folders
            self._folders.setdefault(parent, set()).add(name)
            if known:
                return
            path = parent
