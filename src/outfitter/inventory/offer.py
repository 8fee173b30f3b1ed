"""Which devices a host gives away when nobody says otherwise: those that it has already let go of, by binding them to
vfio-pci. The functions of one IOMMU group can only be given to the same machine, so they are one device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outfitter.inventory import pci
from outfitter.inventory.pci import Device

MAX_MEMBERS = 64  # so many can be listed in the attributes of one published device


@dataclass(frozen=True, slots=True)
class Offered:
    """One thing a VM can be given: a function with the others of its IOMMU group."""

    device: Device  # the one with the lowest address; the group bears its name
    members: tuple[Device, ...]  # all that travel together, by address, itself included

    @property
    def name(self) -> str:
        return self.device.name


@dataclass(frozen=True, slots=True)
class Withheld:
    """A device that stays with the host."""

    device: Device
    reason: str  # for a person: what keeps it, and what would change that


@dataclass(frozen=True, slots=True)
class Offer:
    """Every device of a host, in one of two places."""

    offered: tuple[Offered, ...]
    withheld: tuple[Withheld, ...]


def offer(devices: Iterable[Device]) -> Offer:
    """Divide a host's devices; pure."""
    devices = sorted(devices, key=lambda device: pci.order(device.address))
    by_address = {device.address: device for device in devices}
    groups: dict[int, list[Device]] = defaultdict(list)
    withheld: list[Withheld] = []
    for device in devices:
        if reason := _alone(device):
            withheld.append(Withheld(device, reason))
        elif device.iommu_group is not None:
            groups[device.iommu_group].append(device)
    offered: list[Offered] = []
    for number, group in groups.items():
        if reasons := _together(number, group, by_address):
            withheld += [Withheld(device, reasons[device.address]) for device in group]
        else:
            offered.append(Offered(group[0], tuple(group)))
    return Offer(
        tuple(sorted(offered, key=lambda entry: pci.order(entry.device.address))),
        tuple(sorted(withheld, key=lambda entry: pci.order(entry.device.address))),
    )


def _alone(device: Device) -> str | None:
    """What keeps a device out whatever its neighbours are."""
    if device.is_bridge:
        return f"{device.address} is a bridge (class {device.class_code}); bridges stay with the host"
    if device.iommu_group is None:
        return (f"{device.address} has no IOMMU group; switch the IOMMU on in the firmware and in the kernel "
                f"(intel_iommu=on or amd_iommu=on) to offer it")
    return None


def _together(number: int, group: list[Device], by_address: Mapping[str, Device]) -> dict[str, str]:
    """Address -> reason for every device of an IOMMU group that cannot be offered; empty if it can."""
    wanted = {address for device in group for address in (device.address, *device.members)}
    if len(wanted) > MAX_MEMBERS:
        return {device.address: f"{device.address} is one of {len(wanted)} functions in IOMMU group {number}; at most "
                                f"{MAX_MEMBERS} can be offered as one device" for device in group}
    why = {}  # address -> what is wrong with that member
    for address in sorted(wanted, key=lambda a: (pci.order(a), a)):
        if trouble := _trouble(number, by_address.get(address)):
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


def _trouble(number: int, member: Device | None) -> str | None:
    """What is wrong with one member of a group, as a sentence that lacks its beginning and its end."""
    if member is None:
        return "could not be read as a PCI function; it must be seen"
    if member.iommu_group != number:
        return f"says that it is in another group ({member.iommu_group}); the host must agree with itself"
    if member.vendor is None or member.product is None or member.class_code is None:
        return "does not tell its vendor, product and class; they must be known"
    if member.driver is None:
        return f"is bound to no driver; bind it to {pci.VFIO}"
    if member.driver != pci.VFIO:
        return f"is used by the host through {member.driver}; bind it to {pci.VFIO}"
    return None
