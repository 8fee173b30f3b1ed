"""From a host's tree to its PCI functions. What is missing or makes no sense is told as an oddity and leaves the field
unknown; it never stops the scan, and never makes a device look freer than it is."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace

from outfitter.inventory import pci
from outfitter.inventory.pci import Device, Kind
from outfitter.inventory.tree import Tree

DEVICES = "/sys/bus/pci/devices"
GROUPS = "/sys/kernel/iommu_groups"
NODES = "/sys/devices/system/node"

_HEX = re.compile(r"0x([0-9a-fA-F]{1,8})")
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_SERIAL = re.compile(r"[\x20-\x7e]{1,64}")
_NODE = re.compile(r"node[0-9]+")
_VIRTFN = re.compile(r"virtfn[0-9]+")


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something in the tree that is not as it should be, and what was made of it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Scan:
    """What a host has."""

    devices: tuple[Device, ...]  # by address
    warnings: tuple[Oddity, ...]  # in the order they were met


def scan(tree: Tree) -> Scan:
    """Every PCI function of the host, bridges too."""
    return _Scanner(tree).scan()


class _Scanner:
    """One pass over a tree; collects oddities on the way."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.odd: list[Oddity] = []

    def scan(self) -> Scan:
        self.has_numa = any(_NODE.fullmatch(name) for name in self.tree.names(NODES))
        self.listed = self._groups()
        found: dict[str, Device] = {}
        if not self.tree.exists(DEVICES):
            self._odd(DEVICES, "is not there, so no PCI function is known; is the root of the tree right?")
        for name in self.tree.names(DEVICES):
            if not pci.ADDRESS.fullmatch(name):
                self._odd(f"{DEVICES}/{name}", "is no PCI address; left out")
            elif device := self._function(name):
                found[name] = device
        devices = [found[address] for address in sorted(found, key=pci.order)]
        devices = self._with_parents(self._with_members(devices))
        return Scan(tuple(devices), tuple(self.odd))

    def _odd(self, path: str, message: str) -> None:
        self.odd.append(Oddity(path, message))

    def _groups(self) -> dict[str, int]:
        """Address -> IOMMU group, as the groups list it."""
        listed: dict[str, int] = {}
        for name in self.tree.names(GROUPS):
            if not _is_group(name):
                self._odd(f"{GROUPS}/{name}", "is no IOMMU group number; left out")
                continue
            for member in self.tree.names(f"{GROUPS}/{name}/devices"):
                if member in listed:
                    self._odd(f"{GROUPS}/{name}/devices/{member}", f"is in group {listed[member]} too")
                listed[member] = int(name)
        return listed

    def _function(self, address: str) -> Device | None:
        entry = f"{DEVICES}/{address}"
        base = self.tree.link(entry) or entry
        there = frozenset(self.tree.names(base))
        if not there:
            self._odd(entry, "leads nowhere; the function is left out")
            return None
        return Device(
            address=address,
            kind=self._kind(base, there),
            vendor=self._hex(base, "vendor", 4),
            product=self._hex(base, "device", 4),
            class_code=self._hex(base, "class", 6),
            revision=self._hex(base, "revision", 2),
            driver=self._last(base, "driver", there),
            parent=self._parent(base, there),
            numa=self._numa(base, there),
            pcie_root=self._root(base),
            iommu_group=self._group(address, base, there),
            members=(),
            serial=self._serial(base, there),
            interfaces=self._interfaces(base, there),
        )

    def _hex(self, base: str, name: str, digits: int) -> str | None:
        path = f"{base}/{name}"
        text = self.tree.read(path)
        if text is None:
            self._odd(path, "cannot be read")
            return None
        value = _HEX.fullmatch(text.strip())
        if value is None or len(value[1]) > digits:
            self._odd(path, f"says {_short(text)}, which is no 0x and {digits} hex digits")
            return None
        return value[1].lower().zfill(digits)

    def _number(self, path: str) -> int | None:
        text = self.tree.read(path)
        if text is not None and _NUMBER.fullmatch(text.strip()):
            return int(text)
        self._odd(path, "cannot be read" if text is None else f"says {_short(text)}, which is no number")
        return None

    def _last(self, base: str, name: str, there: frozenset[str]) -> str | None:
        """The last part of where a link leads: the name of a driver, the number of a group, the address of a PF."""
        if name not in there:
            return None
        target = self.tree.link(f"{base}/{name}")
        if target is None or target == "/":
            self._odd(f"{base}/{name}", "is no link that leads anywhere")
            return None
        return target.rpartition("/")[2]

    def _kind(self, base: str, there: frozenset[str]) -> Kind:
        if "physfn" in there:
            return Kind.VF
        children = [name for name in there if _VIRTFN.fullmatch(name)]
        total = self._number(f"{base}/sriov_totalvfs") if "sriov_totalvfs" in there else None
        if not total and not children:
            return Kind.PCI
        enabled = self._number(f"{base}/sriov_numvfs")
        if enabled is not None and enabled != len(children):
            self._odd(f"{base}/sriov_numvfs", f"says {enabled}, but {len(children)} virtual functions are linked")
        return Kind.PF

    def _parent(self, base: str, there: frozenset[str]) -> str | None:
        parent = self._last(base, "physfn", there)
        if parent is not None and not pci.ADDRESS.fullmatch(parent):
            self._odd(f"{base}/physfn", f"leads to {_short(parent)}, which is no PCI address")
            return None
        return parent

    def _numa(self, base: str, there: frozenset[str]) -> int | None:
        # A kernel without NUMA has neither the file nor nodes; only the file's absence beside nodes is strange.
        if "numa_node" not in there and not self.has_numa:
            return None
        number = self._number(f"{base}/numa_node")
        return None if number is None or number < 0 else number

    def _root(self, base: str) -> str | None:
        for part in base.split("/"):
            if pci.ROOT.fullmatch(part):
                return part
        self._odd(base, "shows no PCIe root in its path")
        return None

    def _group(self, address: str, base: str, there: frozenset[str]) -> int | None:
        path, listed = f"{base}/iommu_group", self.listed.get(address)
        text = self._last(base, "iommu_group", there)
        if text is not None and not _is_group(text):
            self._odd(path, f"leads to {_short(text)}, which is no IOMMU group number")
            text = None
        linked = None if text is None else int(text)
        if linked != listed:
            self._odd(path, f"says {_group_text(linked)}, but {GROUPS} says {_group_text(listed)}")
        return listed if linked is None else linked

    def _serial(self, base: str, there: frozenset[str]) -> str | None:
        paths = [f"{base}/serial_number"] if "serial_number" in there else []
        if "nvme" in there:
            paths += [f"{base}/nvme/{name}/serial" for name in self.tree.names(f"{base}/nvme")]
        for path in paths:
            text = (self.tree.read(path) or "").strip()
            if _SERIAL.fullmatch(text):
                return text
            self._odd(path, f"says {_short(text)}, which is no serial number")
        return None

    def _interfaces(self, base: str, there: frozenset[str]) -> tuple[str, ...]:
        folders = [f"{base}/{name}/net" for name in sorted(there) if name.startswith("virtio")]
        if "net" in there:
            folders.append(f"{base}/net")
        return tuple(sorted(name for folder in folders for name in self.tree.names(folder)))

    def _with_members(self, devices: list[Device]) -> list[Device]:
        """Tell each device the other endpoints of its group. What a group lists but nobody could read counts as an
        endpoint: it may well be one that the host is using."""
        bridges = {device.address for device in devices if device.is_bridge}
        groups: dict[int, set[str]] = defaultdict(set)
        for address, group in self.listed.items():
            groups[group].add(address)
        for device in devices:
            if device.iommu_group is not None:
                groups[device.iommu_group].add(device.address)
        ends = {group: sorted(members - bridges, key=lambda a: (pci.order(a), a)) for group, members in groups.items()}
        return [
            device if device.iommu_group is None
            else replace(device, members=tuple(a for a in ends[device.iommu_group] if a != device.address))
            for device in devices
        ]

    def _with_parents(self, devices: list[Device]) -> list[Device]:
        """Give virtual functions the serial number of their card."""
        by_address = {device.address: device for device in devices}
        whole = []
        for device in devices:
            parent = by_address.get(device.parent) if device.parent is not None else None
            if device.parent is not None and parent is None:
                self._odd(f"{DEVICES}/{device.address}", f"is a VF of {device.parent}, which is not there")
            serial = parent.serial if parent is not None else device.serial
            whole.append(replace(device, serial=serial) if serial != device.serial else device)
        return whole


def _is_group(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _group_text(group: int | None) -> str:
    return "no group" if group is None else f"group {group}"


def _short(text: str) -> str:
    """Foreign text, made harmless and short enough for a line."""
    shown = ascii(text.strip())
    return shown if len(shown) <= 40 else f"{shown[:36]}...'"
