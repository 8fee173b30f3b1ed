"""A host's tree as one file, for those who have the host to send to those who have not. It holds what a scan asks for, and
no more, so that scanning it gives what scanning the host gave.

The file is JSON: each path with what stands there, {"f": text}, {"b": bytes in base64}, {"l": where a link leads} or
{"d": [names]} for a folder. A name in a folder that has no entry is there, but could not be read or was not asked for."""

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

MAX_BYTES = 256 << 20  # a file beyond that is no capture
# Left out when serial numbers are. The folder of an NVMe controller has nothing else that a scan asks for.
SECRET = frozenset({"serial_number", "config", "vpd", "nvme"})

Captured = dict[str, dict[str, Any]]


class _Recorder:
    """A tree that remembers its answers, and gives the same one twice."""

    def __init__(self, tree: Tree, *, serials: bool) -> None:
        self.tree, self.serials = tree, serials
        self.files: dict[str, str | None] = {}
        self.parts: dict[str, dict[tuple[int, int], bytes | None]] = {}  # path -> length and offset -> what was there
        self.folders: dict[str, list[str]] = {}
        self.links: dict[str, str | None] = {}
        self.there: dict[str, bool] = {}

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
        if path not in self.there:
            self.there[path] = self.tree.exists(path)
        return self.there[path]

    def captured(self) -> Captured:
        found: Captured = {path: {"d": []} for path, there in self.there.items() if there}
        found |= {path: {"d": names} for path, names in self.folders.items() if names}
        found |= {path: {"f": text} for path, text in self.files.items() if text is not None}
        for path, parts in self.parts.items():
            if (data := _joined(parts)) is not None:
                found[path] = {"b": base64.b64encode(data).decode()}
        for path, end in self.links.items():
            if end is not None:
                found[path] = {"l": posixpath.relpath(end, posixpath.dirname(path))}
        for path, there in self.there.items():
            folder, _, name = path.rpartition("/")
            if not there and path not in found and name in self.folders.get(folder, ()):
                found[path] = {"l": name}  # there is a name and nothing behind it, as of a link to itself
        return dict(sorted(found.items()))


def _joined(parts: Mapping[tuple[int, int], bytes | None]) -> bytes | None:
    """What was read of a file, with zeros where nobody looked."""
    whole = bytearray()
    for (_, offset), data in parts.items():
        if data:
            whole.extend(bytes(max(0, offset + len(data) - len(whole))))
            whole[offset:offset + len(data)] = data
    return bytes(whole) if any(data is not None for data in parts.values()) else None


def record(tree: Tree, *, serials: bool = True) -> tuple[Scan, Captured]:
    """What a scan finds, and all that it asked for on the way. Without serial numbers it finds none."""
    recorder = _Recorder(tree, serials=serials)
    result = scan(recorder)
    return result, recorder.captured()


def save(captured: Captured, path: Path) -> None:
    """Write a file, whole or not at all: whoever reads it meanwhile sees what was there before."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in captured.items())
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        raise errors.CommandFailed(f"the capture cannot be written to {path}: it is no file")
    beside = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        try:
            with beside.open("x", encoding="ascii") as file:
                file.write(f"{{\n{lines}\n}}\n")
                file.flush()
                os.fsync(file.fileno())
            beside.replace(place)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise errors.CommandFailed(f"the capture cannot be written to {path}: {error.strerror or error}") from error


def load(path: Path) -> MemoryTree:
    """The tree in a file; Invalid says what is wrong with it."""
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
            # What could not be read answers like an empty folder: no text, no names, no link, but there.
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
