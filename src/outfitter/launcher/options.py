"""What the domain of a machine depends on besides the machine: where it will run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Options:
    type: Literal["qemu", "kvm"] = "qemu"  # "qemu" emulates and runs everywhere
    simulated: bool = True  # nothing really runs: what cannot be had here (container images) is left out, not refused
    config_drive: str | None = None  # path of the config drive's image, if the caller made one
    bridges: Mapping[str, str] = field(default_factory=dict)  # network -> bridge of the host; others find a tap made for them
    hypervisor_sets_mac: bool = False  # of virtual functions; if not, whoever prepared the function (a CNI plugin) has set it
    host_nodes: tuple[int, ...] = ()  # NUMA nodes that the machine is spread over; empty: those of its devices


DEFAULT = Options()
