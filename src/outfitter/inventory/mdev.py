"""Scans mediated devices: the types that a parent supports, and the existing instances. Most parents are PCI functions; some
(mtty) are not. Called by `scan`."""

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
    """A type of mediated device that a parent supports."""

    id: str  # "nvidia-232"
    name: str  # for people; the id when the driver has none
    description: str  # as the driver writes it; may be empty, and have several lines
    device_api: str  # "vfio-pci"; empty when unknown
    available: int | None  # how many more can be created; None when unknown
    instances: tuple[str, ...]  # UUIDs of existing ones


@dataclass(frozen=True, slots=True)
class Parent:
    """A parent of mediated devices that is not a PCI function."""

    name: str  # "mtty"
    path: str  # its folder
    types: tuple[MdevType, ...]


@dataclass(frozen=True, slots=True)
class Mdev:
    """An existing mediated device."""

    uuid: str
    type_id: str  # "nvidia-232"; empty, here and for the next two, when unknown
    type_name: str
    device_api: str  # "vfio-pci"
    parent: str  # the address of a PCI function, or the name of another parent
    numa: int | None  # of its parent
    pcie_root: str | None  # None, as for the NUMA node, when its parent has none
    iommu_group: int | None  # its own, not its parent's
    memory: int | None  # bytes, from the description of its type
    vendor: str | None = None  # of its parent, as the next two; None when that is not a PCI function
    product: str | None = None
    class_code: str | None = None

    @property
    def name(self) -> str:
        """The stable device name, a DNS label."""
        return f"mdev-{self.uuid}"


def types(reader: SysfsReader, base: str) -> tuple[MdevType, ...]:
    """The mediated device types of the function in that folder, by id."""
    folder = f"{base}/{TYPES}"
    found = []
    for name in reader.names(folder):
        if not _ID.fullmatch(name):
            reader.warn(f"{folder}/{name}", "is not a mediated device type; skipped")
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
            reader.warn(f"{folder}/devices/{name}", "is not the UUID of a mediated device; skipped")
    available = reader.number(f"{folder}/available_instances", most=65535)
    device_api = reader.text(f"{folder}/device_api")
    if device_api is not None and not _ID.fullmatch(device_api):
        reader.warn(f"{folder}/device_api", f"is {short(device_api)}, which is not an API name")
        device_api = None
    return MdevType(
        id=identity,
        # Both are optional for drivers.
        name=(reader.text(f"{folder}/name") if "name" in there else None) or identity,
        description=(reader.text(f"{folder}/description", MAX_TEXT) if "description" in there else None) or "",
        device_api=device_api or "",
        available=available if available is None or available >= 0 else None,
        instances=tuple(instances),
    )


def parents(reader: SysfsReader, functions: Mapping[str, pci.HostDevice]) -> tuple[Parent, ...]:
    """The parents that are not PCI functions, by name."""
    found = []
    for name in reader.tree.names(PARENTS):
        if name in functions:
            continue
        entry = f"{PARENTS}/{name}"
        base = reader.tree.link(entry)
        if base is None or TYPES not in reader.tree.names(base) or not _ID.fullmatch(name):
            reader.warn(entry, "is not a parent of mediated devices; skipped")
        else:
            found.append(Parent(name, base, types(reader, base)))
    return tuple(found)


def instances(reader: SysfsReader, functions: Mapping[str, pci.HostDevice], others: Iterable[Parent]) -> tuple[Mdev, ...]:
    """All existing mediated devices, by UUID. `functions`: the PCI functions by address; `others`: the other parents."""
    by_path = {parent.path: parent for parent in others}
    mdevs = {}
    for name in reader.tree.names(DEVICES):
        if not _UUID.fullmatch(name):
            reader.warn(f"{DEVICES}/{name}", "is not the UUID of a mediated device; skipped")
        elif mdev := _instance(reader, name, functions, by_path):
            mdevs[name] = mdev
    for parent, known in [*((function.address, function.mdev_types) for function in functions.values()),
                          *((parent.name, parent.types) for parent in by_path.values())]:
        for mdev_type in known:
            for uuid in mdev_type.instances:
                if uuid not in mdevs or (mdevs[uuid].parent, mdevs[uuid].type_id) != (parent, mdev_type.id):
                    reader.warn(f"{DEVICES}/{uuid}", f"is listed by {parent} as {mdev_type.id}, but does not exist as such")
    return tuple(mdevs.values())


def _instance(
    reader: SysfsReader, uuid: str, functions: Mapping[str, pci.HostDevice], by_path: Mapping[str, Parent]
) -> Mdev | None:
    entry = f"{DEVICES}/{uuid}"
    base = reader.tree.link(entry)
    there = frozenset(reader.tree.names(base)) if base else frozenset()
    if base is None or not there:
        reader.warn(entry, "is a broken link; the mediated device is skipped")
        return None
    parent_path = base.rpartition("/")[0]
    parent = parent_path.rpartition("/")[2]
    function, other = functions.get(parent), by_path.get(parent_path)
    if function is None and other is None:
        reader.warn(entry, f"is below {short(parent)}, which is not a readable parent; skipped")
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
        numa=function.numa if function is not None
        else reader.numa(parent_path, frozenset(reader.tree.names(parent_path)), must=False),
        pcie_root=function.pcie_root if function is not None
        else next((part for part in base.split("/") if pci.ROOT.fullmatch(part)), None),
        iommu_group=reader.group(uuid, base, there),
        memory=memory(mdev_type.description) if mdev_type else None,
        vendor=function.vendor if function is not None else None,
        product=function.product if function is not None else None,
        class_code=function.class_code if function is not None else None,
    )


def _type_of(reader: SysfsReader, base: str, known: Iterable[MdevType]) -> MdevType | None:
    path = f"{base}/mdev_type"
    identity = (reader.tree.link(path) or "").rpartition("/")[2]
    found = next((mdev_type for mdev_type in known if mdev_type.id == identity), None)
    if found is None:
        reader.warn(path, "does not link to a type of its parent")
    return found


def memory(description: str) -> int | None:
    """Bytes of memory in a type's description: "num_heads=4, framebuffer=2048M" -> 2 GiB."""
    found = _MEMORY.search(description)
    if found is None:
        return None
    number, unit = (found[1], found[2]) if found[1] else (found[3], found[4])
    return int(number) * _UNITS[unit]
