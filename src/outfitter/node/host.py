"""A host as its node agent knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from outfitter.api.device import DeviceId
from outfitter.api.hypervisor import Hypervisor
from outfitter.inventory.config import HostSettings
from outfitter.inventory.host_tree import Tree
from outfitter.inventory.simulation.driver_profile import DriverProfile
from outfitter.node.host_env import HostEnv


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    driver: str  # in whose name its devices are published
    tree: Callable[[], Tree]  # its sysfs, read when asked
    hypervisor: Hypervisor
    capacity: Mapping[str, str]  # cpu, memory
    labels: Mapping[str, str]
    simulated: bool  # runs any pod by pretending; a real host runs machines only
    settings: HostSettings = field(default_factory=HostSettings)  # what it offers, and how it is counted
    station: HostEnv | None = None  # where devices are handed over and taken back; None: somebody else does that
    guises: Mapping[str, DriverProfile] = field(default_factory=dict)  # address -> how a simulated function is published

    def device(self, name: str) -> DeviceId:
        return DeviceId(self.driver, self.name, name)
