"""A host's sysfs tree as one file, to reproduce a scan elsewhere. It holds only what a scan reads, so that scanning the file
gives the same result as scanning the host. Called by `outfit scan` and by tests.

The file is JSON: path -> {"f": text}, {"b": bytes in base64}, {"l": link target} or {"d": [names]} for a folder. A name in a
folder without an entry of its own exists, but could not be read or was not needed."""

from __future__ import annotations

import base64
import binascii
import json
import os
import posixpath
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outfitter import errors
from outfitter.inventory.host_tree import Entry, Link, MemoryTree, Tree
from outfitter.inventory.scan import Scan, scan

MAX_BYTES = 256 << 20  # a larger file is no capture
# Omitted without serial numbers. A scan reads nothing but the serial number in the folder of an NVMe controller.
SECRET = frozenset({"serial_number", "config", "vpd", "nvme"})

Captured = dict[str, dict[str, Any]]


class _Recorder:
    """A tree that records every answer, and repeats it."""

    def __init__(self, tree: Tree, *, serials: bool) -> None:
        self.tree, self.serials = tree, serials
        self.files: dict[str, str | None] = {}
        self.parts: dict[str, dict[tuple[int, int], bytes | None]] = {}  # path -> (length, offset) -> bytes
        self.folders: dict[str, list[str]] = {}
        self.links: dict[str, str | None] = {}
        self.existing: dict[str, bool] = {}

    def read(self, path: str) -> str | None:
        if path not in self.files:
            self.files[path] = self.tree.read(path)
        return self.files[path]

    def read_bytes(self, path: str, length: int, offset: int = 0) -> bytes | None:
        known = self.parts.setdefault(path, {})
        if (length, offset) not in known:
            known[length, offset] = self.tree.read_bytes(path, length, offset)
        return known[length, offset]

    def names(self, path: str) -> list[str]:
        if path not in self.folders:
            self.folders[path] = [name for name in self.tree.names(path) if self.serials or name not in SECRET]
        return self.folders[path]

    def link(self, path: str) -> str | None:
        if path not in self.links:
            self.links[path] = self.tree.link(path)
        return self.links[path]

    def exists(self, path: str) -> bool:
        if path not in self.existing:
            self.existing[path] = self.tree.exists(path)
        return self.existing[path]

    def captured(self) -> Captured:
        captured: Captured = {path: {"d": []} for path, there in self.existing.items() if there}
        captured |= {path: {"d": names} for path, names in self.folders.items() if names}
        captured |= {path: {"f": text} for path, text in self.files.items() if text is not None}
        for path, parts in self.parts.items():
            if (data := _joined(parts)) is not None:
                captured[path] = {"b": base64.b64encode(data).decode()}
        for path, end in self.links.items():
            if end is not None:
                captured[path] = {"l": posixpath.relpath(end, posixpath.dirname(path))}
        for path, there in self.existing.items():
            folder, _, name = path.rpartition("/")
            if not there and path not in captured and name in self.folders.get(folder, ()):
                captured[path] = {"l": name}  # the name exists and its target does not: recorded as a link to itself
        return dict(sorted(captured.items()))


def _joined(parts: Mapping[tuple[int, int], bytes | None]) -> bytes | None:
    """The parts of a file that were read, with zeros in between."""
    whole = bytearray()
    for (_, offset), data in parts.items():
        if data:
            whole.extend(bytes(max(0, offset + len(data) - len(whole))))
            whole[offset:offset + len(data)] = data
    return bytes(whole) if any(data is not None for data in parts.values()) else None


def record(tree: Tree, *, serials: bool = True) -> tuple[Scan, Captured]:
    """The result of a scan, and everything that it read. Without `serials` neither has serial numbers."""
    recorder = _Recorder(tree, serials=serials)
    result = scan(recorder)
    return result, recorder.captured()


def save(captured: Captured, path: Path) -> None:
    """Write the file atomically: a concurrent reader sees the old content."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in captured.items())
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise errors.CommandFailed(f"the capture cannot be written to {path}: it is no file")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        try:
            with temporary.open("x", encoding="ascii") as file:
                file.write(f"{{\n{lines}\n}}\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise errors.CommandFailed(f"the capture cannot be written to {path}: {error.strerror or error}") from error


def load(path: Path) -> MemoryTree:
    """The tree in a capture file; Invalid says what is wrong with it."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise errors.Invalid(f"the capture {path} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise errors.Invalid(f"the capture {path} has more than {MAX_BYTES >> 20} MiB")
    try:
        captured = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise errors.Invalid(f"{path} is no capture: it is no JSON ({error})") from error
    if not isinstance(captured, dict) or not all(isinstance(entry, dict) for entry in captured.values()):
        raise errors.Invalid(f"{path} is no capture: it must be a mapping of paths to entries")
    try:
        return tree(captured)
    except errors.Invalid as error:
        raise errors.Invalid(f"{path} is no capture: {error}") from error


def tree(captured: Mapping[str, Mapping[str, Any]]) -> MemoryTree:
    """The tree that the entries describe."""
    entries = {path: _entry(path, entry) for path, entry in captured.items()}
    for path, entry in captured.items():
        for name in entry.get("d", ()):
            # An unreadable entry behaves like an empty folder: it exists and has no text, names or link.
            entries.setdefault(f"{path.rstrip('/')}/{name}", None)
    return MemoryTree(entries)


def _entry(path: str, entry: Mapping[str, Any]) -> Entry:
    match entry:
        case {"f": str(text)}:
            return text
        case {"l": str(target)}:
            return Link(target)
        case {"b": str(text)}:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise errors.Invalid(f"{path}: b is no base64") from error
        case {"d": [*names]} if all(isinstance(name, str) and name and "/" not in name for name in names):
            return None
        case {"err": _}:  # could not be read when it was captured
            return None
    raise errors.Invalid(f'{path}: write {{"f": text}}, {{"b": base64}}, {{"l": target}} or {{"d": [names]}}')
