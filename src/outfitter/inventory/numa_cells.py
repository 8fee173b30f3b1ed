"""The NUMA cells of a host: CPUs and socket of each. Read from sysfs, or from a HostInventory object. Called by the host audit
and the scheduler."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outfitter.inventory import cpulist
from outfitter.inventory.host_tree import Tree

NODES, CPUS = "/sys/devices/system/node", "/sys/devices/system/cpu"
_NODE = re.compile(r"node([0-9]{1,5})")
_DISTANCE = re.compile("[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class HostCell:
    id: int
    cpus: str  # CPU list of those for dedicated vCPUs: "0-7,16-23"; "": none, or memory only
    socket: int | None = None  # of all its CPUs, shared ones too; None: unknown, or on several sockets

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(cpulist.numbers(self.cpus)) if self.cpus else ()

    @property
    def count(self) -> int:
        return len(self.ids)

    def to_object(self) -> dict[str, Any]:
        """The entry in a HostInventory."""
        return {"id": self.id, "cpus": self.cpus, **({"socket": self.socket} if self.socket is not None else {})}


def scan(tree: Tree, dedicated: Collection[int] | None = None) -> tuple[HostCell, ...]:
    """The cells of a host, by number; empty when one of them cannot be read. `dedicated`: the CPUs for dedicated vCPUs (None:
    all). A cell without any of them keeps its socket."""
    found = []
    for number in sorted(int(match[1]) for name in tree.names(NODES) if (match := _NODE.fullmatch(name))):
        text = (tree.read(f"{NODES}/node{number}/cpulist") or "").strip()
        try:
            cpus = cpulist.numbers(text) if text else []
        except ValueError:
            return ()
        sockets = {_socket(tree, cpu) for cpu in cpus}
        own = cpus if dedicated is None else [cpu for cpu in cpus if cpu in dedicated]
        found.append(HostCell(number, cpulist.text(own), sockets.pop() if len(sockets) == 1 else None))
    return tuple(found)


def distances(tree: Tree) -> tuple[tuple[int, ...], ...] | None:
    """From each NUMA node to each, by number; None when the firmware does not report all of them."""
    numbers = sorted(int(match[1]) for name in tree.names(NODES) if (match := _NODE.fullmatch(name)))
    rows = [(tree.read(f"{NODES}/node{number}/distance") or "").split() for number in numbers]
    if not rows or not all(len(row) == len(rows) and all(_DISTANCE.fullmatch(text) for text in row) for row in rows):
        return None
    return tuple(tuple(map(int, row)) for row in rows)


def read(inventory: Mapping[str, Any]) -> Iterable[HostCell]:
    """The cells in a HostInventory."""
    for raw in (inventory.get("spec") or {}).get("cells") or ():
        yield HostCell(raw["id"], raw["cpus"], raw.get("socket"))


def _socket(tree: Tree, cpu: int) -> int | None:
    """The socket of a CPU; None when the firmware does not report it (-1 in sysfs)."""
    text = (tree.read(f"{CPUS}/cpu{cpu}/topology/physical_package_id") or "").strip()
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None
