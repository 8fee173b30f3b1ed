"""Scans a host's sysfs tree for PCI functions and mediated devices. A missing or invalid value becomes a warning and leaves the
field unknown. It never stops the scan, and never makes a device look unused. Called by the host audit, the CLI and
`capture`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from outfitter.inventory import device_name, mdev, pci, serial
from outfitter.inventory.host_tree import Tree
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.pci import FunctionKind, HostDevice
from outfitter.inventory.sysfs_reader import GROUPS, ScanWarning, SysfsReader, short

__all__ = ["DEVICES", "Scan", "ScanWarning", "scan"]

DEVICES = "/sys/bus/pci/devices"
MAX_VFS = 65535  # the maximum of SR-IOV
NETWORK = "02"  # prefix of the class code of network cards

_HEX = re.compile(r"0x([0-9a-fA-F]{1,8})")
_DRIVER = re.compile(r"[\x21-\x7e]{1,64}")
_INTERFACE = re.compile(r"[^\s/:]{1,15}")
_VIRTFN = re.compile(r"virtfn([0-9]{1,5})")
_VDPA = re.compile(r"vdpa[0-9]+")
_GONE = "ffff"  # vendor id that is read from a function that no longer responds


@dataclass(frozen=True, slots=True)
class Scan:
    """The PCI functions and mediated devices of a host."""

    devices: tuple[HostDevice, ...]  # by address
    mdevs: tuple[Mdev, ...]  # by UUID
    warnings: tuple[ScanWarning, ...]  # in the order of the scan
    parents: tuple[mdev.Parent, ...] = ()  # of mediated devices that are no PCI functions, by name


def scan(tree: Tree) -> Scan:
    """Every PCI function of the host, bridges too, and every mediated device."""
    return _Scanner(tree).scan()


@dataclass(slots=True)
class _Links:
    """The sysfs links of a host's functions, by address."""

    paths: dict[str, str]  # the folder of each function
    vfs: dict[str, dict[int, str]]  # of PFs only: VF index -> address


class _Scanner:
    """One pass over a tree: each function on its own first, then the relations between them."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.reader = SysfsReader(tree)
        self.links = _Links({}, {})

    def scan(self) -> Scan:
        found: dict[str, HostDevice] = {}
        entries = self.tree.names(DEVICES)
        if not entries and (not self.tree.exists(DEVICES) or self.tree.read(DEVICES) is not None):
            self.reader.warn(DEVICES, "is not a folder, so no PCI function was found; is the root of the tree right?")
        for name in entries:
            if not pci.ADDRESS.fullmatch(name):
                self.reader.warn(f"{DEVICES}/{name}", "is not a PCI address; skipped")
            elif device := self._function(name):
                found[name] = device
        for name in sorted(self.reader.listed.keys() - entries):
            if pci.ADDRESS.fullmatch(name):
                self.reader.warn(f"{GROUPS}/{self.reader.listed[name]}/devices/{name}", f"is not in {DEVICES}")
        functions = self._related({address: found[address] for address in sorted(found, key=pci.order)})
        parents = mdev.parents(self.reader, functions)
        mdevs = mdev.instances(self.reader, functions, parents)
        return Scan(tuple(functions.values()), mdevs, tuple(self.reader.warnings), parents)

    def _function(self, address: str) -> HostDevice | None:
        entry = f"{DEVICES}/{address}"
        base = self.tree.link(entry) or entry
        there = frozenset(self.tree.names(base))
        if not there:
            self.reader.warn(entry, "is a broken link or empty; the function is skipped")
            return None
        self.links.paths[address] = base
        class_code = self._hex(base, "class", 6)
        has_vpd = "vpd" in there and (class_code or "").startswith(NETWORK)
        driver = self._driver(base, there)
        total, enabled = self._virtual(address, base, there)
        interfaces, speed = self._interfaces(base, there)
        return HostDevice(
            address=address,
            kind=self._kind(address, base, there, driver),
            vendor=self._vendor(base),
            product=self._hex(base, "device", 4),
            class_code=class_code,
            revision=self._hex(base, "revision", 2),
            driver=driver,
            parent=self._parent(base, there),
            numa=self.reader.numa(base, there),
            pcie_root=self._root(base),
            iommu_group=self.reader.group(address, base, there),
            members=(),
            serial=serial.function_serial(self.reader, base, there),
            interfaces=interfaces,
            name="",  # set by _related: depends on the others
            total_vfs=total,
            num_vfs=enabled,
            card_serial=serial.card_serial(self.reader, base) if has_vpd else None,
            mdev_types=mdev.types(self.reader, base) if mdev.TYPES in there else (),
            speed=speed,
        )

    def _hex(self, base: str, name: str, digits: int) -> str | None:
        path = f"{base}/{name}"
        text = self.tree.read(path)
        if text is None:
            self.reader.warn(path, "cannot be read")
            return None
        value = _HEX.fullmatch(text.strip())
        if value is None or len(value[1]) > digits:
            self.reader.warn(path, f"is {short(text)}, which is not 0x and {digits} hex digits")
            return None
        return value[1].lower().zfill(digits)

    def _vendor(self, base: str) -> str | None:
        vendor = self._hex(base, "vendor", 4)
        if vendor == _GONE:
            self.reader.warn(f"{base}/vendor", f"is 0x{_GONE}: the function has named_by_address off the bus")
            return None
        return vendor

    def _driver(self, base: str, there: frozenset[str]) -> str | None:
        driver = self.reader.last(base, "driver", there)
        if driver is not None and not _DRIVER.fullmatch(driver):
            self.reader.warn(f"{base}/driver", f"links to {short(driver)}, which is not a driver name")
            return None
        return driver

    def _kind(self, address: str, base: str, there: frozenset[str], driver: str | None) -> FunctionKind:
        if "physfn" not in there:
            return FunctionKind.PF if address in self.links.vfs else FunctionKind.PCI
        if any(_VDPA.fullmatch(name) for name in there):
            return FunctionKind.VDPA
        if driver is not None and driver != pci.VFIO and (
                "vfio-dev" in there or pci.VENDOR_VFIO.fullmatch(driver) or self._has_vgpu(base, there)):
            return FunctionKind.VENDOR_VF
        return FunctionKind.VF

    def _has_vgpu(self, base: str, there: frozenset[str]) -> bool:
        """Whether NVIDIA's driver has configured the VF as a vGPU; without a vGPU type it cannot be assigned."""
        folder = f"{base}/nvidia"
        if "nvidia" not in there or "current_vgpu_type" not in self.tree.names(folder):
            return False
        return bool(self.reader.number(f"{folder}/current_vgpu_type"))

    def _virtual(self, address: str, base: str, there: frozenset[str]) -> tuple[int | None, int | None]:
        """How many VFs the function supports and has; (None, None) if it is no PF or does not report it. Stores its links."""
        if "physfn" in there:
            return None, None
        linked = {int(link[1]): f"{base}/{name}" for name in there if (link := _VIRTFN.fullmatch(name))}
        if not linked and "sriov_totalvfs" not in there and "sriov_numvfs" not in there:
            return None, None
        total = self.reader.number(f"{base}/sriov_totalvfs", MAX_VFS)
        if total == 0 and not linked:
            return None, None
        vfs: dict[int, str] = {}
        for number, path in sorted(linked.items()):
            target = self.tree.link(path)
            last = target.rpartition("/")[2] if target else ""
            if pci.ADDRESS.fullmatch(last):
                vfs[number] = last
            else:
                self.reader.warn(path, "does not link to a PCI address")
        self.links.vfs[address] = vfs
        enabled = self.reader.number(f"{base}/sriov_numvfs", MAX_VFS)
        if enabled is not None and enabled != len(linked):
            self.reader.warn(f"{base}/sriov_numvfs", f"is {enabled}, but {len(linked)} virtual functions are linked")
        return total, enabled

    def _parent(self, base: str, there: frozenset[str]) -> str | None:
        parent = self.reader.last(base, "physfn", there)
        if parent is not None and not pci.ADDRESS.fullmatch(parent):
            self.reader.warn(f"{base}/physfn", f"links to {short(parent)}, which is no PCI address")
            return None
        return parent

    def _root(self, base: str) -> str | None:
        for part in base.split("/"):
            if pci.ROOT.fullmatch(part):
                return part
        self.reader.warn(base, "has no PCIe root in its path")
        return None

    def _interfaces(self, base: str, there: frozenset[str]) -> tuple[tuple[str, ...], int | None]:
        folders = [f"{base}/{name}/net" for name in sorted(there)
                   if name.startswith("virtio") and "net" in self.tree.names(f"{base}/{name}")]
        if "net" in there:
            folders.append(f"{base}/net")
        found, speed = [], None
        for folder in folders:
            for name in self.reader.names(folder):
                if not _INTERFACE.fullmatch(name) or not name.isprintable():
                    self.reader.warn(f"{folder}/{name}", "is not a network interface name; skipped")
                    continue
                found.append(name)
                if speed is None:
                    speed = self._speed(f"{folder}/{name}/speed")
        return tuple(sorted(found)), speed

    def _speed(self, path: str) -> int | None:
        # An interface that is down returns an error or -1.
        if self.tree.read(path) is None:
            return None
        speed = self.reader.number(path)
        return speed if speed is not None and speed > 0 else None

    def _related(self, devices: Mapping[str, HostDevice]) -> dict[str, HostDevice]:
        """Adds what depends on other functions: the members of the IOMMU group, the PF, the name."""
        numbers = self._vf_indexes(devices)
        parents = {address: self._parent_of(device, devices) for address, device in devices.items()}
        members = self._members(devices)
        names, named_by_address = device_name.names(
            device_name.PciLocation(address, self.links.paths[address], parents[address], numbers.get(address))
            for address in devices
        )
        for address in named_by_address:
            if devices[address].pcie_root is not None:  # otherwise reported already
                self.reader.warn(f"{DEVICES}/{address}", "has the same path from the root as another function; it is named by "
                                                         "its address")
        whole = {}
        for address, device in devices.items():
            parent = devices.get(parents[address] or "")
            whole[address] = replace(
                device,
                name=names[address],
                parent=parents[address],
                vf_index=numbers.get(address),
                members=() if device.iommu_group is None
                else tuple(other for other in members[device.iommu_group] if other != address),
                serial=device.serial or (parent.serial if parent else None),
                card_serial=device.card_serial or (parent.card_serial if parent else None),
            )
        return whole

    def _members(self, devices: Mapping[str, HostDevice]) -> dict[int, list[str]]:
        """The endpoints of each IOMMU group. A member that could not be read counts as one: the host may be using it."""
        groups: dict[int, set[str]] = defaultdict(set)
        for address, group in self.reader.listed.items():
            groups[group].add(address)
        for device in devices.values():
            if device.iommu_group is not None:
                groups[device.iommu_group].add(device.address)
        bridges = {device.address for device in devices.values() if device.is_bridge}
        return {group: sorted(members - bridges, key=lambda a: (pci.order(a), a)) for group, members in groups.items()}

    def _parent_of(self, device: HostDevice, devices: Mapping[str, HostDevice]) -> str | None:
        if device.parent is None:
            return None
        parent, path = devices.get(device.parent), f"{self.links.paths[device.address]}/physfn"
        if parent is None:
            self.reader.warn(path, f"links to {device.parent}, which does not exist")
        elif parent.kind.is_vf:
            self.reader.warn(path, f"links to {device.parent}, which is a VF itself")
            return None
        elif parent.kind is not FunctionKind.PF:
            self.reader.warn(path, f"links to {device.parent}, which has no VFs")
        return device.parent

    def _vf_indexes(self, devices: Mapping[str, HostDevice]) -> dict[str, int]:
        """Address of a VF -> its index, where PF and VF agree."""
        numbers: dict[str, int] = {}
        for pf, vfs in self.links.vfs.items():
            for number, address in vfs.items():
                path = f"{self.links.paths[pf]}/virtfn{number}"
                vf = devices.get(address)
                if vf is None or vf.parent != pf:
                    problem = "does not exist" if vf is None else "is not a VF of it"
                    self.reader.warn(path, f"links to {address}, which {problem}")
                elif address in numbers:
                    self.reader.warn(path, f"links to {address}, as virtfn{numbers[address]} does")
                else:
                    numbers[address] = number
        for address, device in devices.items():
            if device.kind.is_vf and device.parent in devices and address not in numbers:
                self.reader.warn(f"{DEVICES}/{address}", f"is a VF of {device.parent}, which has no virtfn link to it")
        return numbers
