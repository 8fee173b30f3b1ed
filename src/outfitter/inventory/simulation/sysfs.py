"""Builds the sysfs tree of a simulated host: the files and relative links of a real kernel that the product reads. Called by
`SimulatedHost.tree` and the simulated kernel."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outfitter.inventory import cpulist, pci
from outfitter.inventory.host_tree import Entry, Link, MemoryTree

if TYPE_CHECKING:
    from outfitter.inventory.simulation.host import Hardware, PciFunction, SimulatedHost, SimulatedMdevType


@dataclass(frozen=True, slots=True)
class Function:
    """One function as the kernel shows it: VFs are functions of their own, and every IOMMU group has a number."""

    address: str
    product: str
    driver: str | None
    group: int | None
    interface: str | None
    of: PciFunction  # itself, or its PF
    vf: int | None  # its VF index; None if it is no VF

    @property
    def path(self) -> str:
        return f"/sys/devices/{self.of.pcie_root}/{self.address}"


def build(host: SimulatedHost) -> MemoryTree:
    return MemoryTree(_SysfsBuilder(host).build())


def functions(hardware: Hardware) -> list[Function]:
    """All functions of a host. IOMMU groups without a number in the file get the lowest unused numbers, in the order of the
    file."""
    taken = {function.iommu_group for function in hardware.pci}
    free = (number for number in range(1, 1 << 31) if number not in taken)
    result = []
    for function in hardware.pci:
        group = _number(function.iommu_group, free)
        result.append(Function(function.address, function.product, function.driver, group, function.interface, function, None))
        if (vfs := function.vfs) is None:
            continue
        common = next(free) if vfs.iommu_groups == "shared" else group if vfs.iommu_groups == "parent" else None
        for index, address in enumerate(function.vf_addresses()):
            number = next(free) if vfs.iommu_groups == "own" else common
            result.append(Function(address, vfs.product, vfs.drivers[index], number, vfs.interfaces[index], function, index))
    return result


def _number(group: int | str, free: Iterator[int]) -> int | None:
    if isinstance(group, int):
        return group
    return next(free) if group == "own" else None


class _SysfsBuilder:
    def __init__(self, host: SimulatedHost) -> None:
        self.host = host
        self.hardware = host.hardware
        self.entries: dict[str, Entry] = {"/sys/bus/pci/devices": None, "/sys/class/net": None}
        self.cpus_of = {node.id: node.cpus for node in self.hardware.numa}
        self.interfaces: dict[str, str] = {}  # interface -> the path where its own folder is

    def build(self) -> dict[str, Entry]:
        result = functions(self.hardware)
        for function in result:
            self._function(function)
        groups = max((function.group or 0 for function in result), default=0)
        for function in result:
            for mdev_type in function.of.mdev_types if function.vf is None else ():
                groups = self._mdev_type(function, mdev_type, groups)
        self._nodes()
        self._networks()
        return self.entries

    def _file(self, path: str, text: str) -> None:
        self.entries[path] = f"{text}\n"

    def _link(self, path: str, target: str) -> None:
        self.entries[path] = Link(posixpath.relpath(target, posixpath.dirname(path)))

    def _function(self, function: Function) -> None:
        base, of = function.path, function.of
        for name, text in {
            "vendor": f"0x{of.vendor}",
            "device": f"0x{function.product}",
            "class": f"0x{of.class_code}",
            "revision": f"0x{of.revision}",
            "numa_node": str(-1 if of.numa is None else of.numa),
            "local_cpulist": cpulist.text(range(self.hardware.cpus)) if of.numa is None else self.cpus_of[of.numa],
            "driver_override": pci.VFIO if function.driver == pci.VFIO else "(null)",
            "enable": "0" if function.driver is None else "1",
            "uevent": self._uevent(function),
        }.items():
            self._file(f"{base}/{name}", text)
        self._link(f"{base}/subsystem", "/sys/bus/pci")
        self._link(f"/sys/bus/pci/devices/{function.address}", base)
        if function.driver is not None:
            self._link(f"{base}/driver", f"/sys/bus/pci/drivers/{function.driver}")
            self._link(f"/sys/bus/pci/drivers/{function.driver}/{function.address}", base)
        if function.group is not None:
            self._group(base, function.group)
        # A function without a host driver has no network interface.
        if function.interface is not None and function.driver not in (None, pci.VFIO):
            self._interface(function.interface, f"{base}/net/{function.interface}", device=base)
        if function.vf is not None:
            parent = f"/sys/devices/{of.pcie_root}/{of.address}"
            self._link(f"{base}/physfn", parent)
            self._link(f"{parent}/virtfn{function.vf}", base)
            return
        if (serial := self.host.serial(of)) is not None:
            self._file(f"{base}/serial_number", serial)
        if (vfs := of.vfs) is not None:
            for name, text in {
                "sriov_totalvfs": str(vfs.total), "sriov_numvfs": str(vfs.count), "sriov_offset": str(vfs.offset),
                "sriov_stride": str(vfs.stride), "sriov_vf_device": vfs.product, "sriov_drivers_autoprobe": "1",
            }.items():
                self._file(f"{base}/{name}", text)

    def _uevent(self, function: Function) -> str:
        of = function.of
        lines = [] if function.driver is None else [f"DRIVER={function.driver}"]
        lines += [f"PCI_CLASS={int(of.class_code, 16):X}", f"PCI_ID={of.vendor.upper()}:{function.product.upper()}",
                  f"PCI_SLOT_NAME={function.address}"]
        return "\n".join(lines)

    def _group(self, base: str, group: int) -> None:
        folder = f"/sys/kernel/iommu_groups/{group}"
        self._link(f"{base}/iommu_group", folder)
        self._link(f"{folder}/devices/{posixpath.basename(base)}", base)
        self._file(f"{folder}/type", "DMA")

    def _mdev_type(self, function: Function, mdev_type: SimulatedMdevType, groups: int) -> int:
        """Adds a type and its instances, each in an IOMMU group of its own after `groups`; returns the highest group number."""
        base = function.path
        folder = f"{base}/mdev_supported_types/{mdev_type.id}"
        for name, text in {
            "name": mdev_type.name, "description": mdev_type.description, "device_api": mdev_type.device_api,
            "available_instances": str(mdev_type.available),
        }.items():
            self._file(f"{folder}/{name}", text)
        self.entries[f"{folder}/devices"] = None
        self._link(f"/sys/class/mdev_bus/{function.address}", base)
        for described in mdev_type.instances:
            instance = self.host.mdev(described)
            path = f"{base}/{instance}"
            groups += 1
            self._group(path, groups)
            self._link(f"{path}/mdev_type", folder)
            self._link(f"{path}/subsystem", "/sys/bus/mdev")
            self._link(f"{folder}/devices/{instance}", path)
            self._link(f"/sys/bus/mdev/devices/{instance}", path)
        return groups

    def _nodes(self) -> None:
        system = "/sys/devices/system"
        for node in self.hardware.numa:
            self._file(f"{system}/node/node{node.id}/cpulist", node.cpus)
            self._file(f"{system}/node/node{node.id}/meminfo", f"Node {node.id} MemTotal: {node.memory // 1024} kB")
            if node.distances:
                self._file(f"{system}/node/node{node.id}/distance", " ".join(map(str, node.distances)))
            for cpu in cpulist.numbers(node.cpus):
                self._file(f"{system}/cpu/cpu{cpu}/topology/physical_package_id", str(node.socket))
                self._link(f"{system}/node/node{node.id}/cpu{cpu}", f"{system}/cpu/cpu{cpu}")
        if self.hardware.numa:
            self._file(f"{system}/node/online", cpulist.text(node.id for node in self.hardware.numa))

    def _interface(self, name: str, path: str, device: str | None = None) -> None:
        self.interfaces[name] = path
        self._link(f"/sys/class/net/{name}", path)
        self._file(f"{path}/operstate", "up")
        if device is not None:
            self._link(f"{path}/device", device)

    def _networks(self) -> None:
        virtual = "/sys/devices/virtual/net"
        for bridge in self.hardware.bridges:
            self._interface(bridge.name, f"{virtual}/{bridge.name}")
            self.entries[f"{virtual}/{bridge.name}/bridge"] = None
            self.entries[f"{virtual}/{bridge.name}/brif"] = None
        for nic in self.hardware.nics:
            if nic.name not in self.interfaces:
                self._interface(nic.name, f"{virtual}/{nic.name}")
            path = self.interfaces[nic.name]
            self._file(f"{path}/address", self.host.mac(nic))
            if nic.speed is not None:
                self._file(f"{path}/speed", str(nic.speed))
            if nic.bridge is not None:
                self._link(f"{path}/master", f"{virtual}/{nic.bridge}")
                self._link(f"{virtual}/{nic.bridge}/brif/{nic.name}", path)
