"""The hypervisor as the node agent uses it: values and two Protocols. The launcher implements them (libvirt, simulated);
`app.py` connects the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from outfitter.api.kinds import Object
from outfitter.api.kubevirt.device_refs import DeviceRef
from outfitter.api.kubevirt.network_info import Wire

DRIVES = "/var/run/outfitter/drives"  # default folder of config drive images


@dataclass(frozen=True, slots=True)
class Drive:
    """A config drive: an image that the domain has as a disk. The hypervisor writes it before the start and removes it when the
    domain is undefined."""

    path: str
    label: str
    files: tuple[tuple[str, bytes], ...] = field(repr=False)  # path in the image, and contents, which may be secret


@dataclass(frozen=True, slots=True)
class Paused:
    """Why the vCPUs of a domain are paused, with KubeVirt's reasons where it has them."""

    reason: str
    message: str  # for the user


BY_USER = Paused("PausedByUser", "VMI was paused by user")
IO_ERROR = Paused("PausedIOError", "VMI was paused, low-level IO error detected")


@dataclass(frozen=True, slots=True)
class DomainNic:
    """A network interface that a domain of ours has now."""

    alias: str  # by which it is unplugged: "ua-red", of a VF "ua-sriov-fast"
    name: str  # that of its interface in the VMI; followed by "_" where another device had the alias
    type: str = ""  # as in `network_info.Wire`; "": its tap was made by a network plugin
    mac: str = ""
    link_up: bool = True
    bridge: str = ""  # of the host, on which the hypervisor has made its tap
    tap: str = ""
    address: str = ""  # PCI address of its VF
    vlan: int | None = None  # of its VF


@dataclass(frozen=True, slots=True)
class DomainHostDevice:
    """A host device of a claim that a domain of ours has now: one PCI function, or a mediated device."""

    alias: str  # by which it is unplugged: "ua-dra-gpu-a", "ua-dra-hostdevice-b"
    source: str  # its PCI address on the host, or its UUID


@dataclass(frozen=True, slots=True)
class Domain:
    """A libvirt domain, running or to be started."""

    uid: str  # of its VMI; of a foreign domain its own UUID
    name: str  # "namespace_name", as virsh shows it; if too long, shortened with the uid
    xml: str
    devices: tuple[str, ...] = ()  # host devices: PCI addresses and UUIDs of mediated devices
    foreign: bool = False  # not started by Outfitter: neither it nor its devices are touched
    nics: tuple[DomainNic, ...] = field(default=(), compare=False)
    host_devices: tuple[DomainHostDevice, ...] = field(default=(), compare=False)  # GPUs and host devices of claims
    guest_metadata: str = field(default="", compare=False)  # metadata of the config drive: identity and tagged devices
    drive: Drive | None = field(default=None, compare=False)  # the cloud-init data source
    skipped: tuple[str, ...] = field(default=(), compare=False)  # fields that a simulated domain skips
    paused: Paused | None = field(default=None, compare=False)  # vCPUs are paused; in `start`: start it paused
    migrating: bool = field(default=False, compare=False)  # stopped for the last part of a migration, or arriving by one


@dataclass(frozen=True, slots=True)
class PluggedDevice:
    """A function of a host device that is to be plugged into a domain."""

    alias: str
    source: str
    element: str  # its XML


@dataclass(frozen=True, slots=True)
class MigrationTarget:
    """Where a domain migrates to, as the target's hypervisor reports it and the source's receives it."""

    address: str  # a URI of libvirt or of a simulated hypervisor; of a launcher in a pod, HOST:PORT of the target's node agent
    drive: str = ""  # path of its config drive there; "" for none
    bridges: Mapping[str, str] = field(default_factory=dict)  # alias of a NIC -> the bridge that it is on there
    devices: tuple[tuple[str, str], ...] = ()  # PCI addresses or UUIDs of host devices: here, and of those that replace them
    data: str = ""  # URI over which the memory is copied; "": the hypervisor chooses
    driver: str = ""  # path of the URI of a target launcher's libvirt: "session" or "system"
    certificate: str = ""  # PEM, of the target's node agent, which the source's node agent connects to
    migration: str = ""  # uid of the migration, by which the target's node agent knows what is meant for which pod


@dataclass(frozen=True, slots=True)
class MigrationLimits:
    bandwidth: int = 0  # bytes per second; 0: no limit
    auto_converge: bool = False  # slow the guest down if its memory changes faster than it is copied


@dataclass(frozen=True, slots=True)
class MigrationJob:
    """A domain that is being copied to another host, or could not be."""

    total: int = 0  # bytes of memory
    remaining: int = 0
    processed: int = 0  # copied so far, repetitions included
    iteration: int = 0  # how often changed memory was copied again
    failed: str = ""  # why it has ended without success: the domain runs on here, unless it is `migrating`


@dataclass(frozen=True, slots=True)
class Ended:
    """A domain of ours that has ended and is not undefined yet."""

    name: str
    failed: bool  # False: the guest shut down
    reason: str  # for the user
    migrated: bool = False  # it went to another host


@dataclass(frozen=True, slots=True)
class Abilities:
    """Properties of a hypervisor that domains depend on."""

    kvm: bool = False  # domains can use KVM; else they are emulated
    simulated: bool = False  # nothing really runs: unsupported fields are skipped instead of rejected
    drives: str = DRIVES  # folder of config drive images


class Hypervisor(Protocol):
    """The hypervisor of one host. All calls are idempotent. HypervisorAway: it does not answer now, with the reason."""

    async def domains(self) -> Mapping[str, Domain]:
        """Running domains by VMI uid, including those that an earlier process started."""
        ...

    async def ended(self) -> Mapping[str, Ended]:
        """Domains that ended by themselves and were not stopped since, by VMI uid, including those of earlier processes."""
        ...

    async def abilities(self) -> Abilities:
        """Called before a domain is built."""
        ...

    async def start(self, domain: Domain) -> None:
        """Writes the config drive and starts the domain, with paused vCPUs if `paused` is set. A running domain is left as it
        is. HypervisorError: the hypervisor rejects it. StartFailed: the domain is impossible."""
        ...

    async def pause(self, uid: str) -> None:
        """Pauses the vCPUs; the state is kept. HypervisorError: not possible, with the reason."""
        ...

    async def unpause(self, uid: str) -> None:
        """Resumes the vCPUs, also after a pause by other tools. HypervisorError: not possible, with the reason."""
        ...

    async def reset(self, uid: str) -> None:
        """Resets the domain without asking its guest. HypervisorError: not possible, with the reason."""
        ...

    async def reboot(self, uid: str) -> None:
        """Asks the guest to reboot. HypervisorError: the guest cannot be asked, with the reason."""
        ...

    async def attach_device(self, uid: str, element: str) -> None:
        """Plugs a NIC or a host device, the XML of its element, into a running domain, and makes the tap of a NIC; one with its
        alias is left as it is. HypervisorError: the hypervisor rejects it, with the reason; nothing is left of it."""
        ...

    async def detach_device(self, uid: str, alias: str) -> float | None:
        """Asks the guest to release a NIC or a host device. None: it is gone, with the tap of a NIC; MAC address and VLAN of a
        NIC's VF are reset. A number: call again when the domain has changed, or after that many seconds. HypervisorError: not
        possible, with the reason."""
        ...

    async def set_link(self, uid: str, alias: str, *, up: bool) -> None:
        """Sets the link state that the guest sees of a NIC. HypervisorError: not possible, with the reason."""
        ...

    async def set_bridge(self, uid: str, alias: str, bridge: str) -> None:
        """Moves the tap of a NIC to another bridge; the guest keeps the NIC. HypervisorError: not possible, with the reason."""
        ...

    async def stop(self, uid: str, grace: float = 0.0) -> float | None:
        """Ends a domain of ours and undefines it. With a grace period in seconds its guest is asked to shut down first, and the
        domain is destroyed when the period has passed since the first call; a paused domain is destroyed at once. None: it is
        gone. A number: call again when it has ended, or after that many seconds."""
        ...

    # -- live migration: called on the target, then on the source

    async def prepare_incoming(self, domain: Domain) -> MigrationTarget:
        """Have ready what a domain needs that will arrive here, as `domain` describes it on this host. HypervisorError: it
        cannot arrive, with the reason."""
        ...

    async def incoming(self) -> frozenset[str]:
        """VMI uids for which `prepare_incoming` was called and that have neither arrived nor been cancelled."""
        ...

    async def cancel_incoming(self, uid: str) -> None:
        """Undo `prepare_incoming`, and end a domain that is arriving. One that has arrived is left as it is."""
        ...

    async def migrate(self, uid: str, target: MigrationTarget, limits: MigrationLimits) -> None:
        """Begin to copy a running domain; a copy that has begun is left as it is. It ends by itself: the domain is gone from
        here and runs on the target, or `migration` reports why not. HypervisorError: it cannot be begun, with the reason."""
        ...

    async def migration(self, uid: str) -> MigrationJob | None:
        """How far the copy is, also one that an earlier process began; None: there is none."""
        ...

    async def abort_migration(self, uid: str) -> None:
        """End the copy; the domain runs on here, unless it has left already. One that has failed is forgotten, and a domain
        that it left stopped is resumed: only to be called if it does not run on the target."""
        ...

    def on_change(self, callback: Callable[[str], None]) -> None:
        """`callback` is called in the event loop with the VMI uid of a domain that changed, and with "" when all may have
        changed."""
        ...

    async def close(self) -> None:
        """Disconnects; the domains keep running."""
        ...


class NicBuilder(Protocol):
    """Builds the element of interface `name` of a VMI for its domain, which runs with the XML `running`. HypervisorError: it
    cannot be plugged, with the reason."""

    def __call__(self, running: str, instance: Object, name: str, wire: Wire) -> str: ...


class DeviceBuilder(Protocol):
    """Builds the elements of a GPU or host device of a claim, one for each function, for the domain of its VMI, which runs with
    the XML `running`. `env` and `files` as for a `Builder`, of the pod that holds the claim. HypervisorError: it cannot be
    plugged, with the reason. StartFailed: its sources are contradictory."""

    def __call__(
        self, running: str, instance: Object, ref: DeviceRef, env: Mapping[str, str], files: Mapping[str, str]
    ) -> list[PluggedDevice]: ...


class Builder(Protocol):
    """Builds the domain of a VMI whose devices are known. StartFailed: something is missing or contradictory. `env` and `files`
    (by path) are the environment and files of the launcher's container: device metadata, network info and Secrets (see
    `api.kubevirt.cloudinit`)."""

    def __call__(self, instance: Object, env: Mapping[str, str], files: Mapping[str, str], abilities: Abilities) -> Domain: ...
