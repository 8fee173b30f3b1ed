"""What the domain of a machine depends on besides the machine: where it will run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outfitter.api.hypervisor import DRIVES


@dataclass(frozen=True, slots=True)
class DomainOptions:
    type: Literal["qemu", "kvm"] = "qemu"  # "qemu" emulates and runs everywhere
    simulated: bool = True  # nothing really runs: what cannot be had here (container images) is left out, not refused
    drives: str = DRIVES  # the folder of the config drives' images
    host_nodes: tuple[int, ...] = ()  # NUMA nodes that the machine is spread over; empty: those of its devices
    arriving: bool = False  # a migration arrives in it: devices of the host that it left do not come along


DEFAULT = DomainOptions()
