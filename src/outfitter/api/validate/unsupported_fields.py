"""Fields of KubeVirt that Outfitter accepts and does not implement. They are accepted so that a manifest works in both systems,
and reported as warnings at admission, so that a user who relies on one learns it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NOTHING: tuple[Any, ...] = (None, False, "", [], "None")  # values without effect; the last is an evictionStrategy
SKIPPED = "a simulated VM starts without it, and a real host does not start the VM"
NO_MIGRATION = "a VM that must leave its host is stopped, not migrated"
NO_PROBES = "the guest is not probed: the VM is ready while it runs"
NO_HOTPLUG = "the VM keeps what it started with"
NO_DNS = "it is not passed to the guest or its pod"
NO_QUEUES = "disks and network interfaces have one queue, and no dedicated thread"
NO_PORTS = "nothing is forwarded to the guest"
NO_SMBIOS = "the guest does not see it"
NO_AGENT = "there is no connection to a guest agent: use cloud-init"
IN_A_CLUSTER = "the embedded scheduler ignores it; kube-scheduler in a cluster does not"

# Below a VMI's spec: unsupported field -> what happens instead.
VMI: Mapping[str, str] = {
    "accessCredentials.userPassword": NO_AGENT,
    "accessCredentials.sshPublicKey.propagationMethod.qemuGuestAgent": NO_AGENT,
    "affinity.podAffinity": IN_A_CLUSTER,
    "affinity.podAntiAffinity": IN_A_CLUSTER,
    "dnsConfig": NO_DNS,
    "dnsPolicy": NO_DNS,
    "evictionStrategy": NO_MIGRATION,
    "livenessProbe": NO_PROBES,
    "priorityClassName": IN_A_CLUSTER,
    "readinessProbe": NO_PROBES,
    "serviceAccountName": "the pod has no service account, and the guest no token",
    "subdomain": NO_DNS,
    "topologySpreadConstraints": IN_A_CLUSTER,
    "utilityVolumes": "they are not attached",
    "domain.chassis": NO_SMBIOS,
    "domain.cpu.isolateEmulatorThread": "the emulator runs on the CPUs of the guest",
    "domain.cpu.maxSockets": NO_HOTPLUG,
    "domain.cpu.realtime": "its vCPUs are scheduled like all others",
    "domain.features.hyperv": "the guest sees no Hyper-V",
    "domain.features.hypervPassthrough": "the guest sees no Hyper-V",
    "domain.features.kvm.hidden": "the guest can see that it runs on KVM",
    "domain.features.pvspinlock": "the guest chooses for itself",
    "domain.firmware.acpi": "the guest has no such table",
    "domain.firmware.bootloader.bios.useSerial": "the BIOS writes to the screen alone",
    "domain.firmware.bootloader.efi.persistent": "firmware variables are lost when the VM stops",
    "domain.firmware.kernelBoot": "the VM boots from its disks and network interfaces",
    "domain.firmware.serial": NO_SMBIOS,
    "domain.ioThreads": NO_QUEUES,
    "domain.ioThreadsPolicy": NO_QUEUES,
    "domain.launchSecurity": f"the memory is not protected from the host; {SKIPPED}",
    "domain.memory.maxGuest": NO_HOTPLUG,
    "domain.memory.reservedOverhead": "the pod requests the overhead that Outfitter computes",
    "domain.rebootPolicy": "a guest that reboots does so in the same domain",
    "domain.devices.autoattachInputDevice": "the VM has the devices of domain.devices.inputs",
    "domain.devices.autoattachMemBalloon": "the VM has no balloon: assigned devices pin all memory",
    "domain.devices.autoattachPodInterface": "the VM has the interfaces of domain.devices.interfaces",
    "domain.devices.autoattachVSOCK": "the VM has none",
    "domain.devices.blockMultiQueue": NO_QUEUES,
    "domain.devices.clientPassthrough": SKIPPED,
    "domain.devices.disableHotplug": NO_HOTPLUG,
    "domain.devices.disks.blockSize": "the disk has the blocks of its file",
    "domain.devices.disks.dedicatedIOThread": NO_QUEUES,
    "domain.devices.disks.errorPolicy": "the hypervisor's default applies",
    "domain.devices.disks.lun": "use disk or cdrom: the VM will fail",
    "domain.devices.disks.shareable": "a disk is used by one VM at a time",
    "domain.devices.downwardMetrics": SKIPPED,
    "domain.devices.filesystems": SKIPPED,
    "domain.devices.interfaces.dhcpOptions": "the guest gets the DHCP options of its network",
    "domain.devices.interfaces.passtBinding": "the interface is on a bridge",
    "domain.devices.interfaces.portRanges": NO_PORTS,
    "domain.devices.interfaces.ports": NO_PORTS,
    "domain.devices.logSerialConsole": "the console is not logged",
    "domain.devices.networkInterfaceMultiqueue": NO_QUEUES,
    "domain.devices.panicDevices": SKIPPED,
    "domain.devices.sound": SKIPPED,
    "domain.devices.tpm": SKIPPED,
    "domain.devices.useVirtioTransitional": "the machine type decides",
    "domain.devices.watchdog": SKIPPED,
}
# Below a VM's spec.
VM: Mapping[str, str] = {
    "dataVolumeTemplates": "these volumes are not created",
    "instancetype": "the VM is built from its template; a flavor can be named in spec.template.spec.flavor",
    "preference": "the VM is built from its template",
    "updateVolumesStrategy": NO_HOTPLUG,
}


def unsupported_warnings(spec: Mapping[str, Any], root: str, table: Mapping[str, str]) -> Iterator[str]:
    for path, instead in table.items():
        for at in _used_paths(spec, path.split("."), root):
            yield f"{at}: not supported: {instead}"


def _used_paths(value: Any, path: list[str], at: str) -> Iterator[str]:
    """The concrete paths at which a field has a value with effect; lists are searched item by item."""
    if not path:
        if value not in NOTHING:
            yield at
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _used_paths(item, path, f"{at}[{index}]")
    elif isinstance(value, Mapping):
        yield from _used_paths(value.get(path[0]), path[1:], f"{at}.{path[0]}")
