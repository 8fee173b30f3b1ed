"""Reads values from a sysfs tree and validates them: a missing or invalid value becomes a warning, and the result is None.
Called by `scan`, `mdev` and `serial`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from outfitter.inventory.host_tree import Tree

GROUPS = "/sys/kernel/iommu_groups"
NODES = "/sys/devices/system/node"
MAX_SHOWN = 40  # characters of a file's text in a message

_NUMBER = re.compile(r"-?[0-9]{1,9}")
_NODE = re.compile(r"node([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class ScanWarning:
    """A missing or invalid value in the tree."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{plain(self.path)}: {self.message}"


class SysfsReader:
    """One pass over a tree; collects warnings."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.warnings: list[ScanWarning] = []
        self.nodes = {int(node[1]) for name in tree.names(NODES) if (node := _NODE.fullmatch(name))}
        self.listed = self._groups()

    def warn(self, path: str, message: str) -> None:
        self.warnings.append(ScanWarning(path, message))

    def names(self, path: str) -> list[str]:
        """The names in a folder that must exist; it may be empty."""
        names = self.tree.names(path)
        if not names and (not self.tree.exists(path) or self.tree.read(path) is not None):
            self.warn(path, "is not a folder")
        return names

    def _groups(self) -> dict[str, int]:
        """Address of a function or UUID of a mediated device -> IOMMU group, from the folders of the groups."""
        listed: dict[str, int] = {}
        for name in self.tree.names(GROUPS):
            if not _is_group(name):
                self.warn(f"{GROUPS}/{name}", "is not an IOMMU group number; skipped")
                continue
            for member in self.names(f"{GROUPS}/{name}/devices"):
                if member in listed:
                    self.warn(f"{GROUPS}/{name}/devices/{member}", f"is in group {listed[member]} too")
                listed[member] = int(name)
        return listed

    def number(self, path: str, most: int = 999_999_999) -> int | None:
        text = self.tree.read(path)
        if text is not None and _NUMBER.fullmatch(text.strip()) and int(text) <= most:
            return int(text)
        self.warn(path, "cannot be read" if text is None else f"is {short(text)}, which is not a number up to {most}")
        return None

    def text(self, path: str, most: int = 64) -> str | None:
        """A text for people, of printable characters and line breaks."""
        text = self.tree.read(path)
        if text is None:
            self.warn(path, "cannot be read")
            return None
        text = text.strip()
        if not text.replace("\n", "").isprintable():
            self.warn(path, f"is {short(text)}, which is not printable")
            return None
        return text[:most]

    def last(self, base: str, name: str, there: frozenset[str]) -> str | None:
        """The last part of a link's target: the name of a driver, the number of a group, the address of a PF."""
        if name not in there:
            return None
        target = self.tree.link(f"{base}/{name}")
        if target is None or target == "/":
            self.warn(f"{base}/{name}", "is a broken link")
            return None
        return target.rpartition("/")[2]

    def numa(self, base: str, there: frozenset[str], *, must: bool = True) -> int | None:
        # A kernel without NUMA has neither the file nor nodes; a missing file on a host with nodes is reported.
        if "numa_node" not in there and not (self.nodes and must):
            return None
        number = self.number(f"{base}/numa_node")
        if number is None or number < 0:
            return None
        if self.nodes and number not in self.nodes:
            self.warn(f"{base}/numa_node", f"is {number}, which is not a node of the host")
            return None
        return number

    def group(self, member: str, base: str, there: frozenset[str]) -> int | None:
        """The IOMMU group of a function or mediated device: by its own link, otherwise by the group that lists it."""
        path, listed = f"{base}/iommu_group", self.listed.get(member)
        text = self.last(base, "iommu_group", there)
        if text is not None and not _is_group(text):
            self.warn(path, f"links to {short(text)}, which is not an IOMMU group number")
            text = None
        linked = None if text is None else int(text)
        if linked != listed:
            self.warn(path, f"is {_group_text(linked)}, but {GROUPS} has {_group_text(listed)}")
        return listed if linked is None else linked


def _is_group(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _group_text(group: int | None) -> str:
    return "no group" if group is None else f"group {group}"


def plain(text: str) -> str:
    """A file's text, escaped for one line."""
    return text if text.isascii() and text.isprintable() else ascii(text)[1:-1]


def short(text: str) -> str:
    """A file's text, escaped and shortened for a message."""
    shown = ascii(text.strip())
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN - 4]}...'"
