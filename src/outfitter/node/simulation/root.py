"""The root of a simulated host: its description, and what was written since. Only the writes are kept, in a file when the
host has a folder: so they survive this process, as a kernel does, and thousands of hosts are small."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from outfitter.inventory.host_tree import Entry, Link, MemoryTree
from outfitter.node.atomic_files import Files
from outfitter.node.simulation.kernel import KernelChanges, SimulatedKernel

FILE = "kernel.json"
RECENT = 512  # hosts whose trees are cached


class SimulatedRoot:
    def __init__(self, first: Callable[[], MemoryTree], files: Files, recent: OrderedDict[int, SimulatedRoot]) -> None:
        self._first, self._files, self._recent = first, files, recent
        self._kernel: SimulatedKernel | None = None

    @property
    def kernel(self) -> SimulatedKernel:
        """The live tree."""
        if self._kernel is None:
            self._files.tidy()
            text = self._files.read(FILE)
            self._kernel = SimulatedKernel(self._first(), None if text is None else _changes(json.loads(text)))
        self._recent[id(self)] = self
        self._recent.move_to_end(id(self))
        while len(self._recent) > RECENT:
            self._recent.popitem(last=False)[1]._kernel = None
        return self._kernel

    def look(self) -> MemoryTree:
        """The tree at this moment, for a reader of all of it: not cached."""
        return self._first() if self._kernel is None and self._files.read(FILE) is None else self.kernel

    def write(self, path: str, text: str) -> None:
        kernel = self.kernel
        kernel.write(path, text)
        if changes := kernel.changes():
            self._files.write(FILE, json.dumps(_object(changes)))
        else:
            self._files.remove(FILE)

    def read(self, path: str) -> str | None:
        return self.kernel.read(path)

    def read_bytes(self, path: str, length: int, offset: int = 0) -> bytes | None:
        return self.kernel.read_bytes(path, length, offset)

    def names(self, path: str) -> list[str]:
        return self.kernel.names(path)

    def link(self, path: str) -> str | None:
        return self.kernel.link(path)

    def exists(self, path: str) -> bool:
        return self.kernel.exists(path)


def _object(changes: KernelChanges) -> dict[str, Any]:
    def wire(entry: Entry) -> dict[str, str] | None:
        if isinstance(entry, Link):
            return {"l": entry.target}
        return {"f": entry} if isinstance(entry, str) else None  # bytes are never written

    return {"new": {path: wire(entry) for path, entry in changes.new.items()}, "gone": list(changes.gone)}


def _changes(raw: dict[str, Any]) -> KernelChanges:
    return KernelChanges({path: None if entry is None else Link(entry["l"]) if "l" in entry else entry["f"]
                    for path, entry in raw["new"].items()}, tuple(raw["gone"]))
