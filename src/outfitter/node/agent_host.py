"""A host as its agent handles it: how it is reached, what is configured for it, and what this process knows about it.

Made by `outfitter.app`. Everything from `lock` on is state of one process: the audit writes it, preparation and bookings read
it, and a new process begins with `fresh` copies."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outfitter.api.device import DeviceId
from outfitter.api.hypervisor import Hypervisor
from outfitter.errors import OutfitterError
from outfitter.inventory.config import HostSettings
from outfitter.inventory.host_tree import Tree
from outfitter.inventory.simulation.driver_profile import DriverProfile
from outfitter.node.device_manager.device_manager import DeviceManager
from outfitter.node.device_plugin.plugin_resources import DeviceSelector
from outfitter.node.devices.passthrough_device import PassthroughDevice
from outfitter.node.dra_manager.dra_manager import DraManager
from outfitter.node.host_env import HostEnv
from outfitter.node.readers.node_pods import NodePods


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
    kubelet_dir: Path | None = None  # where the agent serves device plugins and readers in the kubelet's place; None: nowhere
    drivers_expected: bool = True  # pods wait for DRA drivers of others; False: only for those with a folder in `plugins`
    withdrawn: frozenset[str] = frozenset()  # resources of device plugins that its Node offered, and does not any more

    lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)  # held while a VM starts or ends, and during an audit
    single_use: frozenset[str] = field(init=False, default=frozenset())  # devices that must be cleaned after use
    devices: Mapping[str, PassthroughDevice] = field(init=False, default_factory=dict)  # name -> how it is prepared
    plugin_selectors: tuple[DeviceSelector, ...] = field(init=False, default=())  # what our device plugin offers the kubelet
    iommu_groups: Mapping[str, frozenset[str]] = field(init=False, default_factory=dict)  # address -> all of its group
    provisioning_warnings: tuple[str, ...] = field(init=False, default=())  # VFs and mediated devices that could not be created
    readers: NodePods | None = field(init=False, default=None)  # what is shown of its pods; None where a kubelet shows them
    device_manager: DeviceManager | None = field(init=False, default=None)  # of device plugins; None without `kubelet_dir`
    dra_manager: DraManager | None = field(init=False, default=None)  # of DRA drivers of others; None without `kubelet_dir`
    vanished: frozenset[str] = field(init=False, default=frozenset())  # its devices that are held and no longer on the bus
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
