"""Live migration between simulated hypervisors. The commit is one rename: the file of the domain goes from the folder of the
source to that of the target, so that it is in exactly one of them whenever a process is killed. Used by `simulated.Simulated`.

    uid_name.xml.incoming    on the target: the domain as it will be there; no domain yet. The source replaces it before the
                             commit: a guest keeps its PCI ports and what is plugged, whatever its VMI was given meanwhile
    uid_name.xml.migrating   on the source: the copy that has begun, or why it failed"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from xml.etree import ElementTree as ET

import msgspec

from outfitter.api.hypervisor import Domain, MigrationJob, MigrationLimits, MigrationTarget
from outfitter.errors import HypervisorError
from outfitter.launcher import domain as domains
from outfitter.launcher.migration.simulated_copy import SimulatedCopy, copied

SCHEME = "simulated:"
INCOMING, MIGRATING = ".xml.incoming", ".xml.migrating"


class Arrival(Protocol):
    """A simulated hypervisor as the source of a migration uses it."""

    def arrive(self, domain: Domain) -> None: ...

    def expects(self, uid: str) -> bool: ...


# Hypervisors of this process by address: a domain in memory goes from one to another, and one with files is notified.
KNOWN: weakref.WeakValueDictionary[str, Arrival] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class OutgoingCopy:
    """The contents of a ".migrating" file."""

    address: str
    started: float  # monotonic seconds of this host
    memory: int
    bandwidth: int = 0
    auto_converge: bool = False
    failed: str = ""
    drive: str = ""  # of the target, as the next two
    bridges: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[tuple[str, str], ...] = ()


def write(copy: OutgoingCopy) -> str:
    return msgspec.json.encode(copy).decode()


def read(text: str) -> OutgoingCopy:
    return msgspec.json.decode(text, type=OutgoingCopy)


def begin(domain: Domain, target: MigrationTarget, limits: MigrationLimits, now: float) -> OutgoingCopy:
    if not target.address.startswith(SCHEME):
        raise HypervisorError(f"a simulated VM cannot migrate to {target.address}: the target must be simulated too")
    root = ET.fromstring(domain.xml)
    memory = int(root.findtext("memory") or 0)
    return OutgoingCopy(target.address, now, memory, limits.bandwidth, limits.auto_converge,
                        drive=target.drive, bridges=dict(target.bridges), devices=target.devices)


def moved(domain: Domain, copy: OutgoingCopy) -> Domain:
    """The domain as it runs on the target."""
    target = MigrationTarget(copy.address, copy.drive, copy.bridges, copy.devices)
    return domains.read(domains.moved(domain.xml, target), domain.uid)


def look(copy: OutgoingCopy, how: SimulatedCopy, now: float) -> tuple[MigrationJob, bool]:
    """How far it is, and whether the VM leaves now. A copy that began before the host was restarted begins again."""
    if copy.failed:
        return MigrationJob(copy.memory, copy.memory, failed=copy.failed), False
    state = copied(how, copy.memory, max(0.0, now - copy.started), bandwidth=copy.bandwidth, auto_converge=copy.auto_converge)
    return state.job, state.done


def folder_of(address: str) -> Path | None:
    """The folder of a target; None for one in memory."""
    path = address.removeprefix(SCHEME)
    return Path(path) if path.startswith("/") else None
