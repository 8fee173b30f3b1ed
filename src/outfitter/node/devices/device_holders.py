"""Which processes have a device's nodes open: what a driver waits for before it releases the device. Read from /proc and sysfs
below the host's root; called when a write to the host was refused as busy, or is not answered. Never raises: what cannot be
read, or vanishes meanwhile, is skipped."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from outfitter.inventory import mdev, pci
from outfitter.inventory.host_tree import Tree

MAX_FOLDERS = 300  # of a device, in which its nodes are looked for
MAX_FILES = 30_000  # open files that are looked at; about a second on a real host
MAX_HOLDERS = 3
_FUNCTIONS = "/sys/bus/pci/devices"
_NODE_NAME = re.compile(r"^DEVNAME=(.+)$", re.MULTILINE)
_NVIDIA_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    pid: int
    command: str  # its name, as in ps -o comm
    node: str  # what it has open: "/dev/vfio/7"

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) has {self.node} open"


def device_holders(root: Tree, places: Collection[str]) -> tuple[DeviceHolder, ...]:
    """At most `MAX_HOLDERS` processes, by pid. `places`: PCI addresses and UUIDs of mediated devices."""
    nodes = {node for place in places for node in device_nodes(root, place)}
    found: list[DeviceHolder] = []
    looked = 0
    for pid in sorted(int(name) for name in root.names("/proc") if name.isdecimal()) if nodes else ():
        for file in root.names(f"/proc/{pid}/fd"):
            looked += 1
            if (node := root.link(f"/proc/{pid}/fd/{file}")) in nodes and node is not None:
                found.append(DeviceHolder(pid, (root.read(f"/proc/{pid}/comm") or "unknown").strip(), node))
                break
        if looked >= MAX_FILES or len(found) == MAX_HOLDERS:
            break
    return tuple(found)


def device_nodes(root: Tree, place: str) -> Iterator[str]:
    """The nodes in /dev of a PCI function or mediated device: its VFIO group's, and what its driver made for it."""
    folder = next((root.link(path) or path for path in (f"{_FUNCTIONS}/{place}", f"{mdev.DEVICES}/{place}")
                   if root.exists(path)), None)
    if folder is None:
        return
    if (group := root.link(f"{folder}/iommu_group")) is not None:
        yield f"/dev/vfio/{group.rpartition('/')[2]}"
    # NVIDIA's own nodes are not in sysfs.
    if (minor := _NVIDIA_MINOR.search(root.read(f"/proc/driver/nvidia/gpus/{place}/information") or "")) is not None:
        yield f"/dev/nvidia{minor[1]}"
    todo = [folder]
    for _ in range(MAX_FOLDERS):
        if not todo:
            return
        here = todo.pop()
        for name in root.names(here):
            path = f"{here}/{name}"
            if name == "uevent" and here != folder:
                if (node := _NODE_NAME.search(root.read(path) or "")) is not None:
                    yield f"/dev/{node[1]}"
            elif not pci.ADDRESS.fullmatch(name) and root.link(path) is None and root.names(path):
                todo.append(path)
