"""Checks of a host's PCI functions: which are offered, with which drivers, in which IOMMU groups. Pure; called by
`host_checks`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from outfitter.doctor.finding import Finding, count, error, ok, some, warning
from outfitter.errors import Invalid
from outfitter.inventory import pci
from outfitter.inventory.assignable import AssignableDevices, WithheldDevice, assignable
from outfitter.inventory.device_spec import DeviceSpec
from outfitter.inventory.pci import FunctionKind, HostDevice
from outfitter.inventory.scan import DEVICES, Scan

NOTHING_OFFERED = "the host offers no device: no function is bound to vfio-pci together with its IOMMU group."
# Prefixes of class codes of what users pass through: disks, NICs, displays, accelerators.
PASSED_THROUGH = ("0108", "02", "03", "12")


def check(found: Scan, overrides: Mapping[str, str], spec: DeviceSpec | None, *, iommu: bool) -> list[Finding]:
    """Without an IOMMU nothing can be said of groups, and `host-iommu` reports it."""
    out = [*_sysfs(found), *_sriov(found.devices)]
    try:
        division = assignable(found.devices, found.mdevs, spec)
    except Invalid as error_:
        return [*out, error("host-devices", f"the configuration is impossible on this host: {error_.message}",
                            "Correct device_spec.", "outfit config check FILE")]
    out += [*_offered(division, configured=spec is not None), *_drivers(found.devices, overrides, division)]
    if iommu:
        out += [*_groups(found.devices, division), *_acs(found.devices)]
    return out


def _sysfs(found: Scan) -> Iterator[Finding]:
    if found.warnings:
        yield warning("host-sysfs", f"{count(len(found.warnings), 'value')} of PCI functions cannot be read: "
                      f"{some(map(str, found.warnings), 2)}.", "Run it as root; outfit scan shows all warnings.",
                      "sudo outfit scan")
    else:
        yield ok("host-sysfs", f"{count(len(found.devices), 'PCI function')} and {count(len(found.mdevs), 'mediated device')}")


def _sriov(devices: Sequence[HostDevice]) -> Iterator[Finding]:
    pfs = [device for device in devices if device.kind is FunctionKind.PF and device.total_vfs]
    if not pfs:
        return
    enabled, total = sum(device.num_vfs or 0 for device in pfs), sum(device.total_vfs or 0 for device in pfs)
    without = [device.address for device in pfs if not device.num_vfs]
    text = f"{count(len(pfs), 'PF')}: {enabled} of {total} VFs exist"
    if enabled:
        yield ok("host-sriov", text + (f"; none at {some(without)}" if without else ""))
    else:
        yield warning("host-sriov", f"{text}.", "Create VFs, or list them under sriov in the configuration file.",
                      f"echo {min(8, pfs[0].total_vfs or 1)} >{DEVICES}/{pfs[0].address}/sriov_numvfs", subject=pfs[0].address)


def _offered(division: AssignableDevices, *, configured: bool) -> Iterator[Finding]:
    if division.offered:
        yield ok("host-devices", f"{count(len(division.offered), 'device')} can be assigned")
        return
    likely = [entry.device for entry in division.withheld if isinstance(entry.device, HostDevice)
              and (entry.device.class_code or "").startswith(PASSED_THROUGH) and not entry.device.self_vfio
              and not _may_be_needed(entry.device)]
    if configured:
        yield warning("host-devices", "device_spec lists no device that can be assigned.",
                      "Compare device_spec with what the host has.", "outfit config check FILE")
    elif likely:
        yield warning("host-devices", NOTHING_OFFERED,
                      f"List devices in device_spec, or bind some; candidates are {some(device.address for device in likely)}.",
                      f"driverctl set-override {likely[0].address} vfio-pci")
    else:
        yield warning("host-devices", NOTHING_OFFERED,
                      "List devices in device_spec that the host can do without, or simulate some.",
                      "outfit scan; outfit up --simulate 2x8")


def _may_be_needed(device: HostDevice) -> bool:
    """Whether the host may lose its network or its disk with a function: no command takes it away."""
    return bool(device.interfaces) or (device.driver is not None and not device.self_vfio
                                       and (device.class_code or "").startswith(("01", "02")))


def _drivers(
    devices: Sequence[HostDevice], overrides: Mapping[str, str], division: AssignableDevices
) -> Iterator[Finding]:
    wrong = [device for device in devices if (wanted := overrides.get(device.address)) and wanted != device.driver]
    for device in wrong:
        wanted = overrides[device.address]
        have = f"is bound to {device.driver}" if device.driver else "is bound to no driver"
        unbind = f"echo {device.address} >/sys/bus/pci/drivers/{device.driver}/unbind; " if device.driver else ""
        yield warning("host-drivers", f"{device.address} {have}, but its driver_override is {wanted}.",
                      f"Bind it to {wanted}; its host driver was loaded before {wanted}.",
                      f"modprobe {wanted}; {unbind}echo {device.address} >/sys/bus/pci/drivers_probe", subject=device.address)
    listed = [entry for entry in division.withheld if entry.entry is not None and not _of_group(entry)]
    for entry in listed:
        yield warning("host-drivers", f"{entry.device.name} is listed in device_spec, but {entry.reason}.",
                      "Do what the reason says, or remove it from device_spec.", "outfit scan", subject=entry.device.name)
    if not wrong and not listed:
        yield ok("host-drivers", "every function has the driver that it should have")


def _of_group(entry: WithheldDevice) -> bool:
    """Whether it is withheld because of another member of its group, which `host-iommu-groups` reports."""
    return isinstance(entry.device, HostDevice) and entry.device.iommu_group is not None and bool(entry.device.members)


def _groups(devices: Sequence[HostDevice], division: AssignableDevices) -> Iterator[Finding]:
    """Groups of which the host is meant to offer something, and does not because of one of its members."""
    by_address = {device.address: device for device in devices}
    found = False
    seen: set[int] = set()
    for entry in division.withheld:
        device = entry.device
        if not isinstance(device, HostDevice) or device.iommu_group is None or device.iommu_group in seen:
            continue
        if not (entry.entry is not None or device.self_vfio) or not _of_group(entry):
            continue
        seen.add(device.iommu_group)
        found = True
        others = [other for address in device.members if (other := by_address.get(address)) and not other.self_vfio]
        yield warning(
            "host-iommu-groups", f"{device.address} cannot be assigned: it {entry.reason}.",
            f"All of IOMMU group {device.iommu_group} goes to one VM; bind "
            f"{some(other.address for other in others) or 'its other members'} to vfio-pci too, if the host can do without; "
            "else use another slot.",
            "; ".join(f"driverctl set-override {other.address} vfio-pci" for other in others if not _may_be_needed(other)),
            subject=device.address)
    if not found:
        yield ok("host-iommu-groups", "no IOMMU group blocks a device that should be assigned")


def _acs(devices: Sequence[HostDevice]) -> Iterator[Finding]:
    groups: dict[int, list[HostDevice]] = defaultdict(list)
    for device in devices:
        if device.iommu_group is not None and not device.is_bridge:
            groups[device.iommu_group].append(device)
    shared = {number: members for number, members in groups.items()
              if len({pci.routing(member.address)[1] >> 3 for member in members if not member.kind.is_vf}) > 1
              and any((member.class_code or "").startswith(PASSED_THROUGH) for member in members)}
    for number, members in shared.items():
        yield warning("host-acs", f"IOMMU group {number} has functions of several cards: "
                      f"{some(member.address for member in members)}.",
                      "The port above them has no ACS: use another slot, or switch ACS on in the firmware.",
                      "lspci -vvv | grep -e ^[0-9a-f] -e ACSCtl", subject=members[0].address)
    if groups and not shared:
        yield ok("host-acs", "each card has IOMMU groups of its own")
