"""Divides a host's devices into assignable and withheld ones. Assignable are those that device_spec lists or, without a
device_spec, those that are bound to vfio-pci. The functions of one IOMMU group can only be assigned to the same VM, so they are
one device. A function that has mediated devices is not assigned itself, nor is a PF whose VFs would go with its driver. Pure;
called by `host_devices`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outfitter.inventory import pci
from outfitter.inventory.device_spec import DeviceSpec, DeviceSpecEntry
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.pci import HostDevice

MAX_MEMBERS = 24  # functions that fit into the attributes of one published device


@dataclass(frozen=True, slots=True)
class AssignableDevice:
    """What a VM can be assigned: a mediated device, or a function with the others of its IOMMU group."""

    device: HostDevice | Mdev  # of an IOMMU group: its first listed function, which names it
    members: tuple[HostDevice, ...] = ()  # all functions of the IOMMU group, by address, itself included
    entry: DeviceSpecEntry | None = None  # of device_spec that lists it

    @property
    def name(self) -> str:
        return self.device.name


@dataclass(frozen=True, slots=True)
class WithheldDevice:
    """A device that is not assignable."""

    device: HostDevice | Mdev
    reason: str  # for people, said of the device: "is a bridge (...)": why, and what would make it assignable
    entry: DeviceSpecEntry | None = None  # of device_spec that lists it nevertheless


@dataclass(frozen=True, slots=True)
class AssignableDevices:
    """The devices of a host."""

    offered: tuple[AssignableDevice, ...]
    withheld: tuple[WithheldDevice, ...]


def assignable(devices: Iterable[HostDevice], mdevs: Iterable[Mdev] = (), spec: DeviceSpec | None = None) -> AssignableDevices:
    """Divide a host's devices. Invalid when an entry of `spec` is impossible on this host."""
    return _Divider(sorted(devices, key=lambda device: pci.order(device.address)), tuple(mdevs), spec).divide()


class _Divider:
    def __init__(self, devices: Sequence[HostDevice], mdevs: Sequence[Mdev], spec: DeviceSpec | None) -> None:
        self.devices, self.mdevs = devices, mdevs
        self.by_address = {device.address: device for device in devices}
        self.listed: Mapping[str, DeviceSpecEntry] | None = None if spec is None else spec.match(devices)
        self.mdev_counts: dict[str, int] = defaultdict(int)  # address -> number of its mediated devices
        for mdev in mdevs:
            self.mdev_counts[mdev.parent] += 1
        self.blocking_bridges: dict[int | None, HostDevice] = {  # IOMMU group -> a bridge in it that makes it unassignable
            device.iommu_group: device for device in devices
            if device.is_bridge and pci.blocks_iommu_group(device.class_code, device.driver)}

    def divide(self) -> AssignableDevices:
        groups: dict[int, list[HostDevice]] = defaultdict(list)
        withheld: list[WithheldDevice] = []
        for device in self.devices:
            if reason := self._reason_alone(device):
                withheld.append(WithheldDevice(device, reason, self._entry(device.address)))
            elif device.iommu_group is not None:
                groups[device.iommu_group].append(device)
        offered: list[AssignableDevice] = []
        for number, group in groups.items():
            if reasons := self._reasons_of_group(number, group):
                withheld += [WithheldDevice(device, reasons[device.address], self._entry(device.address)) for device in group]
            else:
                offered.append(self._as_device(group))
        offered.sort(key=lambda entry: pci.order(entry.device.address) if isinstance(entry.device, HostDevice) else ())
        for mdev in sorted(self.mdevs, key=lambda mdev: mdev.uuid):
            entry = self._entry(mdev.parent)
            if self.listed is not None and entry is None:
                withheld.append(WithheldDevice(mdev, f"has the parent {mdev.parent}, which no entry of device_spec lists"))
            else:
                offered.append(AssignableDevice(mdev, (), entry))
        withheld.sort(key=lambda entry: pci.order(entry.device.address) if isinstance(entry.device, HostDevice) else (1 << 33,))
        return AssignableDevices(tuple(offered), tuple(withheld))

    def _entry(self, address: str) -> DeviceSpecEntry | None:
        return None if self.listed is None else self.listed.get(address)

    def _as_device(self, group: list[HostDevice]) -> AssignableDevice:
        """The group as one device, named after its first listed function."""
        head = next((device for device in group if self._entry(device.address) is not None), group[0])
        return AssignableDevice(head, tuple(group), self._entry(head.address))

    def _reason_alone(self, device: HostDevice) -> str | None:
        """Why a device is withheld regardless of its IOMMU group; None if it is not."""
        if device.is_bridge:
            return f"is a bridge (class {device.class_code}); bridges are not assignable"
        if count := self.mdev_counts.get(device.address):
            which, them = ("devices, which are", "them") if count > 1 else ("device, which is", "it")
            return f"has {count} mediated {which} offered instead; remove {them} to offer the function itself"
        if device.kind.is_vf and device.parent is None:
            return "is a virtual function whose parent is not known; its physfn link must be readable to offer it"
        if device.iommu_group is None:
            return ("has no IOMMU group; switch the IOMMU on in the firmware and in the kernel (intel_iommu=on or "
                    "amd_iommu=on) to offer it")
        return None

    def _reasons_of_group(self, number: int, group: list[HostDevice]) -> dict[str, str]:
        """Address -> reason for every device of an IOMMU group that cannot be offered; empty if it can."""
        wanted = {address for device in group for address in (device.address, *device.members)}
        if self.listed is not None and not wanted & self.listed.keys():
            return {device.address: "is listed by no entry of device_spec" for device in group}
        if len(wanted) > MAX_MEMBERS:
            return {device.address: f"is one of {len(wanted)} functions in IOMMU group {number}; at most "
                                    f"{MAX_MEMBERS} can be offered as one device" for device in group}
        if (bridge := self.blocking_bridges.get(number)) is not None:
            return {device.address: f"shares IOMMU group {number} with the bridge {bridge.address}, which is used by the "
                                    f"host through {bridge.driver}; free the bridge from {bridge.driver} to offer it"
                    for device in group}
        problems = {}  # address -> what is wrong with that member
        for address in sorted(wanted, key=lambda a: (pci.order(a), a)):
            if problem := self._problem(number, self.by_address.get(address)):
                problems[address] = problem
        reasons = {}
        for device in group if problems else ():
            if device.address in problems:
                reasons[device.address] = f"{problems[device.address]} to offer it"
            else:
                other, problem = next(iter(problems.items()))
                reasons[device.address] = f"shares IOMMU group {number} with {other}, which {problem} to offer both"
        return reasons

    def _problem(self, number: int, member: HostDevice | None) -> str | None:
        """What is wrong with one member of a group: the middle of a sentence that begins with its address and ends in "to offer
        it"."""
        if member is None:
            return "could not be read as a PCI function; it must be readable"
        if member.iommu_group != number:
            return f"is in another group ({member.iommu_group}) by its own link; both must agree"
        if member.vendor is None or member.product is None or member.class_code is None:
            return "has no readable vendor, product and class; they must be known"
        if member.self_vfio:
            return None
        if self._entry(member.address) is not None:
            return self._vfs_in_the_way(member)
        if self.listed is not None:
            return "is listed by no entry of device_spec; list it too, or bind it to vfio-pci,"
        if member.driver is None:
            return f"is bound to no driver; bind it to {pci.VFIO}, or list it in device_spec,"
        return f"is used by the host through {member.driver}; bind it to {pci.VFIO}, or list it in device_spec,"

    @staticmethod
    def _vfs_in_the_way(member: HostDevice) -> str | None:
        """Of a listed PF that would have to be taken from its driver, and its VFs with it."""
        if not member.num_vfs or member.kind.is_vf:
            return None
        return (f"has {member.num_vfs} virtual function{'s' if member.num_vfs > 1 else ''}, which would go when it is taken "
                f"from {member.driver or 'the host'}; remove them (sriov_numvfs 0), or bind it to {pci.VFIO},")
