"""Options of a domain that depend on the host, not on the VMI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outfitter.api.hypervisor import DRIVES


@dataclass(frozen=True, slots=True)
class DomainOptions:
    type: Literal["qemu", "kvm"] = "qemu"  # "qemu" emulates and runs everywhere
    simulated: bool = True  # no real hypervisor: unsupported parts (container images) are skipped instead of rejected
    drives: str = DRIVES  # folder of the images of config drives
    host_nodes: tuple[int, ...] = ()  # host NUMA nodes of the VM; empty: those of its devices
    arriving: bool = False  # target of a migration: the devices of the source host are not used


DEFAULT = DomainOptions()
