"""Which devices a host gives away: those that device_spec lists or, when nobody wrote one, those that the host has already
let go of by binding them to vfio-pci. The functions of one IOMMU group can only be given to the same machine, so they are one
device. A function that is already sliced into mediated devices is not given away whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outfitter.inventory import pci
from outfitter.inventory.device_spec import DeviceSpec, DeviceSpecEntry
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.pci import HostDevice

MAX_MEMBERS = 24  # so many can be listed in the attributes of one published device


@dataclass(frozen=True, slots=True)
class AssignableDevice:
    """One thing a VM can be given: a mediated device, or a function with the others of its IOMMU group."""

    device: HostDevice | Mdev  # of a group the function with the lowest address; the group bears its name
    members: tuple[HostDevice, ...] = ()  # all functions that travel together, by address, itself included
    entry: DeviceSpecEntry | None = None  # of device_spec, which took it

    @property
    def name(self) -> str:
        return self.device.name


@dataclass(frozen=True, slots=True)
class WithheldDevice:
    """A device that stays with the host."""

    device: HostDevice | Mdev
    reason: str  # for a person: what keeps it, and what would change that


@dataclass(frozen=True, slots=True)
class AssignableDevices:
    """Every device of a host, in one of two places."""

    offered: tuple[AssignableDevice, ...]
    withheld: tuple[WithheldDevice, ...]


def assignable(devices: Iterable[HostDevice], mdevs: Iterable[Mdev] = (), spec: DeviceSpec | None = None) -> AssignableDevices:
    """Divide a host's devices; pure. Invalid: an entry of `spec` asks of this host what cannot be."""
    return _Divider(sorted(devices, key=lambda device: pci.order(device.address)), tuple(mdevs), spec).divide()


class _Divider:
    def __init__(self, devices: Sequence[HostDevice], mdevs: Sequence[Mdev], spec: DeviceSpec | None) -> None:
        self.devices, self.mdevs = devices, mdevs
        self.by_address = {device.address: device for device in devices}
        self.listed: Mapping[str, DeviceSpecEntry] | None = None if spec is None else spec.match(devices)
        self.sliced: dict[str, int] = defaultdict(int)  # address -> mediated devices that it carries
        for mdev in mdevs:
            self.sliced[mdev.parent] += 1
        self.kept: dict[int | None, HostDevice] = {  # IOMMU group -> a bridge of it that keeps the others with the host
            device.iommu_group: device for device in devices
            if device.is_bridge and pci.blocks_iommu_group(device.class_code, device.driver)}

    def divide(self) -> AssignableDevices:
        groups: dict[int, list[HostDevice]] = defaultdict(list)
        withheld: list[WithheldDevice] = []
        for device in self.devices:
            if reason := self._alone(device):
                withheld.append(WithheldDevice(device, reason))
            elif device.iommu_group is not None:
                groups[device.iommu_group].append(device)
        offered: list[AssignableDevice] = []
        for number, group in groups.items():
            if reasons := self._together(number, group):
                withheld += [WithheldDevice(device, reasons[device.address]) for device in group]
            else:
                offered.append(self._one(group))
        offered.sort(key=lambda entry: pci.order(entry.device.address) if isinstance(entry.device, HostDevice) else ())
        for mdev in sorted(self.mdevs, key=lambda mdev: mdev.uuid):
            entry = self._entry(mdev.parent)
            if self.listed is not None and entry is None:
                withheld.append(WithheldDevice(mdev, f"no entry of device_spec lists {mdev.parent}, which carries it"))
            else:
                offered.append(AssignableDevice(mdev, (), entry))
        withheld.sort(key=lambda entry: pci.order(entry.device.address) if isinstance(entry.device, HostDevice) else (1 << 33,))
        return AssignableDevices(tuple(offered), tuple(withheld))

    def _entry(self, address: str) -> DeviceSpecEntry | None:
        return None if self.listed is None else self.listed.get(address)

    def _one(self, group: list[HostDevice]) -> AssignableDevice:
        """The group as one device, which bears the name of its first listed function."""
        head = next((device for device in group if self._entry(device.address) is not None), group[0])
        return AssignableDevice(head, tuple(group), self._entry(head.address))

    def _alone(self, device: HostDevice) -> str | None:
        """What keeps a device out whatever its neighbours are."""
        if device.is_bridge:
            return f"{device.address} is a bridge (class {device.class_code}); bridges stay with the host"
        if count := self.sliced.get(device.address):
            return (f"{device.address} carries {count} mediated device{'s' if count > 1 else ''}, which are given away "
                    "instead; remove them to offer it whole")
        if device.kind.is_vf and device.parent is None:
            return f"{device.address} is a virtual function whose parent is not known; the host must tell it to offer it"
        if device.iommu_group is None:
            return (f"{device.address} has no IOMMU group; switch the IOMMU on in the firmware and in the kernel "
                    f"(intel_iommu=on or amd_iommu=on) to offer it")
        return None

    def _together(self, number: int, group: list[HostDevice]) -> dict[str, str]:
        """Address -> reason for every device of an IOMMU group that cannot be offered; empty if it can."""
        wanted = {address for device in group for address in (device.address, *device.members)}
        if self.listed is not None and not wanted & self.listed.keys():
            return {device.address: f"no entry of device_spec lists {device.address}" for device in group}
        if len(wanted) > MAX_MEMBERS:
            return {device.address: f"{device.address} is one of {len(wanted)} functions in IOMMU group {number}; at most "
                                    f"{MAX_MEMBERS} can be offered as one device" for device in group}
        if (bridge := self.kept.get(number)) is not None:
            return {device.address: f"{device.address} shares IOMMU group {number} with the bridge {bridge.address}, which is "
                                    f"used by the host through {bridge.driver}; free it from {bridge.driver} to offer "
                                    f"{device.address}" for device in group}
        why = {}  # address -> what is wrong with that member
        for address in sorted(wanted, key=lambda a: (pci.order(a), a)):
            if trouble := self._trouble(number, self.by_address.get(address)):
                why[address] = trouble
        reasons = {}
        for device in group if why else ():
            if device.address in why:
                reasons[device.address] = f"{device.address} {why[device.address]} to offer it"
            else:
                other, trouble = next(iter(why.items()))
                reasons[device.address] = (f"{device.address} shares IOMMU group {number} with {other}, which {trouble} to "
                                           f"offer both")
        return reasons

    def _trouble(self, number: int, member: HostDevice | None) -> str | None:
        """What is wrong with one member of a group, as a sentence that lacks its beginning and its end."""
        if member is None:
            return "could not be read as a PCI function; it must be seen"
        if member.iommu_group != number:
            return f"says that it is in another group ({member.iommu_group}); the host must agree with itself"
        if member.vendor is None or member.product is None or member.class_code is None:
            return "does not tell its vendor, product and class; they must be known"
        if self._entry(member.address) is not None or member.self_vfio:
            return None
        if self.listed is not None:
            return "no entry of device_spec lists; list it too, or bind it to vfio-pci,"
        if member.driver is None:
            return f"is bound to no driver; bind it to {pci.VFIO}, or list it in device_spec,"
        return f"is used by the host through {member.driver}; bind it to {pci.VFIO}, or list it in device_spec,"
