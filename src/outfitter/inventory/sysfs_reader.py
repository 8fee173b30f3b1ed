"""Reading a tree with open eyes: what is missing or makes no sense is noted as an oddity, and the answer is None."""

from __future__ import annotations

import re
from dataclasses import dataclass

from outfitter.inventory.host_tree import Tree

GROUPS = "/sys/kernel/iommu_groups"
NODES = "/sys/devices/system/node"
MAX_SHOWN = 40  # characters of foreign text in a message

_NUMBER = re.compile(r"-?[0-9]{1,9}")
_NODE = re.compile(r"node([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class ScanWarning:
    """Something in the tree that is not as it should be, and what was made of it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{plain(self.path)}: {self.message}"


class SysfsReader:
    """One pass over a tree; collects warnings on the way."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.warnings: list[ScanWarning] = []
        self.nodes = {int(node[1]) for name in tree.names(NODES) if (node := _NODE.fullmatch(name))}
        self.listed = self._groups()

    def warn(self, path: str, message: str) -> None:
        self.warnings.append(ScanWarning(path, message))

    def names(self, path: str) -> list[str]:
        """What stands in a folder that must be one; it may be empty."""
        found = self.tree.names(path)
        if not found and (not self.tree.exists(path) or self.tree.read(path) is not None):
            self.warn(path, "is no folder")
        return found

    def _groups(self) -> dict[str, int]:
        """Member -> IOMMU group, as the groups list it: the address of a function, or the UUID of a mediated device."""
        listed: dict[str, int] = {}
        for name in self.tree.names(GROUPS):
            if not _is_group(name):
                self.warn(f"{GROUPS}/{name}", "is no IOMMU group number; left out")
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
        self.warn(path, "cannot be read" if text is None else f"says {short(text)}, which is no number up to {most}")
        return None

    def text(self, path: str, most: int = 64) -> str | None:
        """Something for people to read, in printable characters and line ends."""
        text = self.tree.read(path)
        if text is None:
            self.warn(path, "cannot be read")
            return None
        text = text.strip()
        if not text.replace("\n", "").isprintable():
            self.warn(path, f"says {short(text)}, which cannot be printed")
            return None
        return text[:most]

    def last(self, base: str, name: str, there: frozenset[str]) -> str | None:
        """The last part of where a link leads: the name of a driver, the number of a group, the address of a PF."""
        if name not in there:
            return None
        target = self.tree.link(f"{base}/{name}")
        if target is None or target == "/":
            self.warn(f"{base}/{name}", "is no link that leads anywhere")
            return None
        return target.rpartition("/")[2]

    def numa(self, base: str, there: frozenset[str], *, must: bool = True) -> int | None:
        # A kernel without NUMA has neither the file nor nodes; only the file's absence beside nodes is strange.
        if "numa_node" not in there and not (self.nodes and must):
            return None
        number = self.number(f"{base}/numa_node")
        if number is None or number < 0:
            return None
        if self.nodes and number not in self.nodes:
            self.warn(f"{base}/numa_node", f"says {number}, which is no node of the host")
            return None
        return number

    def group(self, member: str, base: str, there: frozenset[str]) -> int | None:
        """Its IOMMU group: by its own link, else by the group that lists it."""
        path, listed = f"{base}/iommu_group", self.listed.get(member)
        text = self.last(base, "iommu_group", there)
        if text is not None and not _is_group(text):
            self.warn(path, f"leads to {short(text)}, which is no IOMMU group number")
            text = None
        linked = None if text is None else int(text)
        if linked != listed:
            self.warn(path, f"says {_group_text(linked)}, but {GROUPS} says {_group_text(listed)}")
        return listed if linked is None else linked


def _is_group(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _group_text(group: int | None) -> str:
    return "no group" if group is None else f"group {group}"


def plain(text: str) -> str:
    """Foreign text that may stand in a line."""
    return text if text.isascii() and text.isprintable() else ascii(text)[1:-1]


def short(text: str) -> str:
    """Foreign text, made harmless and short enough for a line."""
    shown = ascii(text.strip())
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN - 4]}...'"
