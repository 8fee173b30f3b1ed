"""What the node asks of whatever runs machines. The launcher implements it; the app brings the two together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from outfitter.api.kinds import Object

DRIVES = "/var/run/outfitter/drives"  # where the images of config drives lie, unless a hypervisor says otherwise


@dataclass(frozen=True, slots=True)
class Drive:
    """An image that a machine has as a disk. Whoever runs the machine makes it before the start, and removes it when the
    machine is put away."""

    path: str
    label: str
    files: tuple[tuple[str, bytes], ...] = field(repr=False)  # name in the image, with its folders, and contents: secrets too


@dataclass(frozen=True, slots=True)
class Paused:
    """Why the processors of a machine stand still, in KubeVirt's words where it has some."""

    reason: str
    message: str  # a sentence for its owner


BY_USER = Paused("PausedByUser", "VMI was paused by user")
IO_ERROR = Paused("PausedIOError", "VMI was paused, low-level IO error detected")


@dataclass(frozen=True, slots=True)
class Domain:
    """A running machine."""

    uid: str  # of the instance it belongs to; of a foreign one its own
    name: str  # "namespace_name", as the hypervisor's own tools show it; if that is too long, its beginning and the uid
    xml: str
    devices: tuple[str, ...] = ()  # what it has of the host: PCI addresses and UUIDs of mediated devices
    foreign: bool = False  # somebody else started it: we leave it alone, and its devices to it
    guest_metadata: str = field(default="", compare=False)  # as its drive has it, or would: who it is, what tagged devices are
    drive: Drive | None = field(default=None, compare=False)  # what its cloud-init finds
    left_out: tuple[str, ...] = field(default=(), compare=False)  # what the spec has and a simulated machine does without
    paused: Paused | None = field(default=None, compare=False)  # its processors stand still; to be started: they shall


@dataclass(frozen=True, slots=True)
class Ended:
    """A machine of ours that does not run any more and was not put away yet."""

    name: str
    failed: bool  # False: its guest shut down
    reason: str  # a sentence for its owner


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the domains of a hypervisor depend on."""

    kvm: bool = False  # its machines may use the host's processors; else they are emulated
    plays: bool = False  # nothing really runs: what cannot be had is left out, not refused
    drives: str = DRIVES  # the folder of its machines' drives


class Hypervisor(Protocol):
    """One host's. Every call may be made twice without harm. HypervisorAway: it does not answer now, and says why."""

    async def domains(self) -> Mapping[str, Domain]:
        """What runs, by the instance's uid; also what was started before this process was."""
        ...

    async def ended(self) -> Mapping[str, Ended]:
        """What ended by itself and was not stopped since, by the instance's uid; also before this process was."""
        ...

    async def abilities(self) -> Abilities:
        """Asked before a domain is built."""
        ...

    async def start(self, domain: Domain) -> None:
        """With its processors standing still if it says `paused`. One that runs already stays as it is. Its drive is
        made first. HypervisorError: the hypervisor rejects it. StartFailed: the domain cannot be what it says."""
        ...

    async def pause(self, uid: str) -> None:
        """Its processors stand still, and nothing of it is lost. HypervisorError: they cannot, and why."""
        ...

    async def unpause(self, uid: str) -> None:
        """By whomever it was paused. HypervisorError: it cannot go on, and why."""
        ...

    async def reset(self, uid: str) -> None:
        """The reset button: its guest is not asked, and begins anew. HypervisorError: it cannot, and why."""
        ...

    async def reboot(self, uid: str) -> None:
        """Asks the guest to shut down and starts it again when it did. HypervisorError: it cannot be asked, and why."""
        ...

    async def stop(self, uid: str, grace: float = 0.0) -> float | None:
        """End a machine of ours and put it away. With a grace period in seconds its guest is asked to shut down, and it is
        forced only when the period is over, counted from the first call; one that is paused cannot hear it, and is forced at
        once. None: it is gone. A number: call again when it ended, or after so many seconds."""
        ...

    def on_change(self, callback: Callable[[str], None]) -> None:
        """`callback` gets the uid of a machine that started, ended, was paused or changed, and "" when all may have, in the
        event loop."""
        ...

    async def close(self) -> None:
        """Let go of the hypervisor; the machines go on."""
        ...


class Builder(Protocol):
    """Makes the domain of an instance whose devices are known; StartFailed says what is missing or contradicts itself. `env`
    and `files` (by path) are what a launcher finds in its container: whoever prepared the devices tells of them there too, and
    there are the Secrets of its cloud-init volume (see api.cloudinit)."""

    def __call__(self, instance: Object, env: Mapping[str, str], files: Mapping[str, str], abilities: Abilities) -> Domain: ...
