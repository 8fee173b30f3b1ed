"""A host as its agent handles it: how it is reached, what is configured for it, and what this process knows about it.

Made by `outfitter.app`. Everything from `lock` on is state of one process: the audit writes it, preparation and bookings read
it, and a new process begins with `fresh` copies."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from outfitter.api.device import DeviceId
from outfitter.api.hypervisor import Hypervisor
from outfitter.errors import OutfitterError
from outfitter.inventory.config import HostSettings
from outfitter.inventory.host_tree import Tree
from outfitter.inventory.simulation.driver_profile import DriverProfile
from outfitter.node.devices.passthrough_device import PassthroughDevice
from outfitter.node.host_env import HostEnv


@dataclass(slots=True, eq=False)
class AgentHost:
    name: str
    driver: str  # the DRA driver that publishes its devices
    tree: Callable[[], Tree]  # its sysfs, read at each call
    hypervisor: Hypervisor
    capacity: Mapping[str, str]  # cpu, memory
    labels: Mapping[str, str]
    simulated: bool  # runs any pod by simulating it; a real host runs VMs only
    settings: HostSettings = field(default_factory=HostSettings)  # what it offers, and how it is counted
    env: HostEnv | None = None  # where devices are prepared and unprepared; None: another driver does that
    kubelet: bool = False  # one runs its pods, and writes its Node
    driver_profiles: Mapping[str, DriverProfile] = field(default_factory=dict)  # address -> of a simulated function

    lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)  # held while a VM starts or ends, and during an audit
    single_use: frozenset[str] = field(init=False, default=frozenset())  # devices that must be cleaned after use
    devices: Mapping[str, PassthroughDevice] = field(init=False, default_factory=dict)  # name -> how it is prepared
    iommu_groups: Mapping[str, frozenset[str]] = field(init=False, default_factory=dict)  # address -> all of its group
    provisioning_warnings: tuple[str, ...] = field(init=False, default=())  # VFs and mediated devices that could not be created
    refusal: OutfitterError | None = field(init=False, default=None)  # why it did not start: it ends VMs and starts none

    def hardware_of(self, name: str) -> frozenset[str]:
        """What a device of this host is; empty while it is not known."""
        found = self.devices.get(name)
        return found.hardware if found is not None else frozenset()

    def device(self, name: str) -> DeviceId:
        return DeviceId(self.driver, self.name, name)

    def fresh(self) -> AgentHost:
        """The same host, of which nothing is known yet."""
        return dataclasses.replace(self)
