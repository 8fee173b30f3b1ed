"""What KubeVirt would act upon and nobody here does. It is taken, so that a manifest needs no second form, and told at once:
whoever relies on it must not find out later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NOTHING: tuple[Any, ...] = (None, False, "", [], "None")  # values that ask for nothing; the last is an evictionStrategy
LEFT_OUT = "a simulated machine does without, and a real host does not start it"
NO_MIGRATION = "a machine that has to leave its host is stopped, not moved"
NO_PROBES = "nobody asks the guest: the machine is ready while it runs, and runs until it ends"
NO_HOTPLUG = "the machine keeps what it started with"
NO_DNS = "nothing tells it to the guest or its pod"
NO_QUEUES = "disks and network cards have one queue, and no thread of their own"
NO_PORTS = "nothing is forwarded to the guest"
NO_SMBIOS = "the guest does not see it"
NO_AGENT = "nobody asks an agent in the guest: use cloud-init"
IN_A_CLUSTER = "the scheduler of this server does not look at it; that of a cluster does"

# Below the spec of an instance: what is not served -> what happens instead.
INSTANCE: Mapping[str, str] = {
    "accessCredentials.userPassword": NO_AGENT,
    "accessCredentials.sshPublicKey.propagationMethod.qemuGuestAgent": NO_AGENT,
    "dnsConfig": NO_DNS,
    "dnsPolicy": NO_DNS,
    "evictionStrategy": NO_MIGRATION,
    "livenessProbe": NO_PROBES,
    "priorityClassName": IN_A_CLUSTER,
    "readinessProbe": NO_PROBES,
    "serviceAccountName": "the pod has no account, and the guest no token",
    "subdomain": NO_DNS,
    "topologySpreadConstraints": IN_A_CLUSTER,
    "utilityVolumes": "they are not attached",
    "domain.chassis": NO_SMBIOS,
    "domain.cpu.isolateEmulatorThread": "the emulator runs on the CPUs of the guest",
    "domain.cpu.maxSockets": NO_HOTPLUG,
    "domain.cpu.realtime": "its processors are scheduled like all others",
    "domain.features.hyperv": "the guest sees no Hyper-V",
    "domain.features.hypervPassthrough": "the guest sees no Hyper-V",
    "domain.features.kvm.hidden": "the guest can see that it runs on KVM",
    "domain.features.pvspinlock": "the guest chooses for itself",
    "domain.firmware.acpi": "the guest has no such table",
    "domain.firmware.bootloader.bios.useSerial": "the BIOS writes to the screen alone",
    "domain.firmware.bootloader.efi.persistent": "nobody keeps what the firmware stores for the next start",
    "domain.firmware.kernelBoot": "the machine boots from its disks and network cards",
    "domain.firmware.serial": NO_SMBIOS,
    "domain.ioThreads": NO_QUEUES,
    "domain.ioThreadsPolicy": NO_QUEUES,
    "domain.launchSecurity": f"the memory is not protected from the host; {LEFT_OUT}",
    "domain.memory.maxGuest": NO_HOTPLUG,
    "domain.memory.reservedOverhead": "the pod asks for what is counted here",
    "domain.rebootPolicy": "a guest that reboots begins anew in the same machine",
    "domain.devices.autoattachInputDevice": "the machine has the devices of domain.devices.inputs",
    "domain.devices.autoattachMemBalloon": "the machine has no balloon: devices of the host hold all memory",
    "domain.devices.autoattachPodInterface": "the machine has the network cards of domain.devices.interfaces",
    "domain.devices.autoattachVSOCK": "the machine has none",
    "domain.devices.blockMultiQueue": NO_QUEUES,
    "domain.devices.clientPassthrough": LEFT_OUT,
    "domain.devices.disableHotplug": NO_HOTPLUG,
    "domain.devices.disks.blockSize": "the disk has the blocks of its file",
    "domain.devices.disks.dedicatedIOThread": NO_QUEUES,
    "domain.devices.disks.errorPolicy": "the hypervisor decides what follows when a disk fails",
    "domain.devices.disks.lun": "use disk or cdrom: the machine will fail",
    "domain.devices.disks.shareable": "a disk is one machine's at a time",
    "domain.devices.downwardMetrics": LEFT_OUT,
    "domain.devices.filesystems": LEFT_OUT,
    "domain.devices.interfaces.dhcpOptions": "the guest is told what its network says",
    "domain.devices.interfaces.passtBinding": "the network card is on a bridge",
    "domain.devices.interfaces.portRanges": NO_PORTS,
    "domain.devices.interfaces.ports": NO_PORTS,
    "domain.devices.logSerialConsole": "nobody keeps what the guest writes there",
    "domain.devices.networkInterfaceMultiqueue": NO_QUEUES,
    "domain.devices.panicDevices": LEFT_OUT,
    "domain.devices.sound": LEFT_OUT,
    "domain.devices.tpm": LEFT_OUT,
    "domain.devices.useVirtioTransitional": "the machine type decides",
    "domain.devices.watchdog": LEFT_OUT,
}
# Below the spec of a machine.
MACHINE: Mapping[str, str] = {
    "dataVolumeTemplates": "nobody makes these volumes",
    "instancetype": "the machine is what its template says; a flavor can be named in spec.template.spec.flavor",
    "preference": "the machine is what its template says",
    "updateVolumesStrategy": NO_HOTPLUG,
}


def unsupported_warnings(spec: Mapping[str, Any], root: str, table: Mapping[str, str]) -> Iterator[str]:
    for path, instead in table.items():
        for at in _used_paths(spec, path.split("."), root):
            yield f"{at}: not served: {instead}"


def _used_paths(value: Any, path: list[str], at: str) -> Iterator[str]:
    """Where a path leads to something that is asked for; through lists, to each such item."""
    if not path:
        if value not in NOTHING:
            yield at
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _used_paths(item, path, f"{at}[{index}]")
    elif isinstance(value, Mapping):
        yield from _used_paths(value.get(path[0]), path[1:], f"{at}.{path[0]}")
