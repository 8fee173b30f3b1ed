"""Mediated devices: those that a driver could make, and those that it made. Most parents are PCI functions; one need not be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outfitter.inventory import pci
from outfitter.inventory.sysfs_reader import SysfsReader, short

DEVICES = "/sys/bus/mdev/devices"
PARENTS = "/sys/class/mdev_bus"
TYPES = "mdev_supported_types"
MAX_TEXT = 1024  # characters of a description that are kept

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ID = re.compile(r"[\x21-\x2e\x30-\x7e]{1,64}")
_MEMORY = re.compile(r"framebuffer\s*[=:]\s*([0-9]{1,9})\s*([KMGT])|\b([0-9]{1,9})\s*([KMGT])i?B video memory")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class MdevType:
    """One kind of mediated device that a parent can make."""

    id: str  # "nvidia-232"
    name: str  # for people; the id when the driver tells none
    description: str  # as the driver words it; may be empty, and have several lines
    device_api: str  # "vfio-pci"; empty when the driver does not tell
    available: int | None  # how many more could be made; None when the driver does not tell
    instances: tuple[str, ...]  # UUIDs of those made


@dataclass(frozen=True, slots=True)
class Parent:
    """What makes mediated devices and is no PCI function."""

    name: str  # "mtty"
    path: str  # its folder
    types: tuple[MdevType, ...]


@dataclass(frozen=True, slots=True)
class Mdev:
    """A mediated device that was made."""

    uuid: str
    type_id: str  # "nvidia-232"; empty, as the next two, when the host does not tell
    type_name: str
    device_api: str  # "vfio-pci"
    parent: str  # the address of a PCI function, or the name of a parent that is none
    numa: int | None  # of its parent
    pcie_root: str | None  # None, as for the NUMA node, when its parent shows none
    iommu_group: int | None  # its own, not its parent's
    memory: int | None  # bytes, where the description of its type tells

    @property
    def name(self) -> str:
        """Ours for life, and a DNS label."""
        return f"mdev-{self.uuid}"


def types(reader: SysfsReader, base: str) -> tuple[MdevType, ...]:
    """What the function in that folder can make, by id."""
    folder = f"{base}/{TYPES}"
    found = []
    for name in reader.names(folder):
        if not _ID.fullmatch(name):
            reader.warn(f"{folder}/{name}", "is no id of a type of mediated device; left out")
        else:
            found.append(_type(reader, f"{folder}/{name}"))
    return tuple(found)


def _type(reader: SysfsReader, folder: str) -> MdevType:
    there = reader.tree.names(folder)
    identity = folder.rpartition("/")[2]
    instances = []
    for name in reader.names(f"{folder}/devices"):
        if _UUID.fullmatch(name):
            instances.append(name)
        else:
            reader.warn(f"{folder}/devices/{name}", "is no UUID of a mediated device; left out")
    available = reader.number(f"{folder}/available_instances", most=65535)
    device_api = reader.text(f"{folder}/device_api")
    if device_api is not None and not _ID.fullmatch(device_api):
        reader.warn(f"{folder}/device_api", f"says {short(device_api)}, which is no name of an API")
        device_api = None
    return MdevType(
        id=identity,
        # Both may be absent: the kernel asks drivers for neither.
        name=(reader.text(f"{folder}/name") if "name" in there else None) or identity,
        description=(reader.text(f"{folder}/description", MAX_TEXT) if "description" in there else None) or "",
        device_api=device_api or "",
        available=available if available is None or available >= 0 else None,
        instances=tuple(instances),
    )


def parents(reader: SysfsReader, functions: Mapping[str, pci.HostDevice]) -> tuple[Parent, ...]:
    """Those of all parents that are no PCI functions, by name."""
    found = []
    for name in reader.tree.names(PARENTS):
        if name in functions:
            continue
        entry = f"{PARENTS}/{name}"
        base = reader.tree.link(entry)
        if base is None or TYPES not in reader.tree.names(base) or not _ID.fullmatch(name):
            reader.warn(entry, "is no parent of mediated devices; left out")
        else:
            found.append(Parent(name, base, types(reader, base)))
    return tuple(found)


def instances(reader: SysfsReader, functions: Mapping[str, pci.HostDevice], others: Iterable[Parent]) -> tuple[Mdev, ...]:
    """All that were made, by UUID. `functions`: the PCI functions by address; `others`: the parents that are none."""
    by_path = {parent.path: parent for parent in others}
    made = {}
    for name in reader.tree.names(DEVICES):
        if not _UUID.fullmatch(name):
            reader.warn(f"{DEVICES}/{name}", "is no UUID of a mediated device; left out")
        elif mdev := _instance(reader, name, functions, by_path):
            made[name] = mdev
    for parent, known in [*((function.address, function.mdev_types) for function in functions.values()),
                          *((parent.name, parent.types) for parent in by_path.values())]:
        for mdev_type in known:
            for uuid in mdev_type.instances:
                if uuid not in made or (made[uuid].parent, made[uuid].type_id) != (parent, mdev_type.id):
                    reader.warn(f"{DEVICES}/{uuid}", f"is not there as {mdev_type.id} of {parent}, which lists it")
    return tuple(made.values())


def _instance(
    reader: SysfsReader, uuid: str, functions: Mapping[str, pci.HostDevice], by_path: Mapping[str, Parent]
) -> Mdev | None:
    entry = f"{DEVICES}/{uuid}"
    base = reader.tree.link(entry)
    there = frozenset(reader.tree.names(base)) if base else frozenset()
    if base is None or not there:
        reader.warn(entry, "leads nowhere; the mediated device is left out")
        return None
    above = base.rpartition("/")[0]
    parent = above.rpartition("/")[2]
    function, other = functions.get(parent), by_path.get(above)
    if function is None and other is None:
        reader.warn(entry, f"is below {short(parent)}, which is no parent that could be read; left out")
        return None
    known = function.mdev_types if function is not None else other.types if other is not None else ()
    mdev_type = _type_of(reader, base, known)
    if mdev_type is not None and uuid not in mdev_type.instances:
        reader.warn(entry, f"is not listed among the instances of its type {mdev_type.id}")
    return Mdev(
        uuid=uuid,
        type_id=mdev_type.id if mdev_type else "",
        type_name=mdev_type.name if mdev_type else "",
        device_api=mdev_type.device_api if mdev_type else "",
        parent=parent,
        numa=function.numa if function is not None else reader.numa(above, frozenset(reader.tree.names(above)), must=False),
        pcie_root=function.pcie_root if function is not None
        else next((part for part in base.split("/") if pci.ROOT.fullmatch(part)), None),
        iommu_group=reader.group(uuid, base, there),
        memory=memory(mdev_type.description) if mdev_type else None,
    )


def _type_of(reader: SysfsReader, base: str, known: Iterable[MdevType]) -> MdevType | None:
    path = f"{base}/mdev_type"
    identity = (reader.tree.link(path) or "").rpartition("/")[2]
    found = next((mdev_type for mdev_type in known if mdev_type.id == identity), None)
    if found is None:
        reader.warn(path, "leads to no type of its parent")
    return found


def memory(description: str) -> int | None:
    """Bytes of memory that a type's description speaks of: "num_heads=4, framebuffer=2048M" -> 2 GiB."""
    found = _MEMORY.search(description)
    if found is None:
        return None
    number, unit = (found[1], found[2]) if found[1] else (found[3], found[4])
    return int(number) * _UNITS[unit]
