"""The hypervisor as the node agent uses it: values and two Protocols. The launcher implements them (libvirt, simulated);
`app.py` connects the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from outfitter.api.kinds import Object

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
class Domain:
    """A libvirt domain, running or to be started."""

    uid: str  # of its VMI; of a foreign domain its own UUID
    name: str  # "namespace_name", as virsh shows it; if too long, shortened with the uid
    xml: str
    devices: tuple[str, ...] = ()  # host devices: PCI addresses and UUIDs of mediated devices
    foreign: bool = False  # not started by Outfitter: neither it nor its devices are touched
    guest_metadata: str = field(default="", compare=False)  # metadata of the config drive: identity and tagged devices
    drive: Drive | None = field(default=None, compare=False)  # the cloud-init data source
    skipped: tuple[str, ...] = field(default=(), compare=False)  # fields that a simulated domain skips
    paused: Paused | None = field(default=None, compare=False)  # vCPUs are paused; in `start`: start it paused


@dataclass(frozen=True, slots=True)
class Ended:
    """A domain of ours that has ended and is not undefined yet."""

    name: str
    failed: bool  # False: the guest shut down
    reason: str  # for the user


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

    async def stop(self, uid: str, grace: float = 0.0) -> float | None:
        """Ends a domain of ours and undefines it. With a grace period in seconds its guest is asked to shut down first, and the
        domain is destroyed when the period has passed since the first call; a paused domain is destroyed at once. None: it is
        gone. A number: call again when it has ended, or after that many seconds."""
        ...

    def on_change(self, callback: Callable[[str], None]) -> None:
        """`callback` is called in the event loop with the VMI uid of a domain that changed, and with "" when all may have
        changed."""
        ...

    async def close(self) -> None:
        """Disconnects; the domains keep running."""
        ...


class Builder(Protocol):
    """Builds the domain of a VMI whose devices are known. StartFailed: something is missing or contradictory. `env` and `files`
    (by path) are the environment and files of the launcher's container: device metadata, network info and Secrets (see
    `api.kubevirt.cloudinit`)."""

    def __call__(self, instance: Object, env: Mapping[str, str], files: Mapping[str, str], abilities: Abilities) -> Domain: ...
