"""The sockets of a host below its kubelet folder, served in the kubelet's place: device plugins register here and are called.
Made by `HostAgents` for hosts with a `kubelet_dir`. Imports gRPC, which is slow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from outfitter.errors import NotReady
from outfitter.inventory import numa_cells
from outfitter.node.agent_host import AgentHost
from outfitter.node.atomic_files import FolderFiles
from outfitter.node.device_manager import allocate_response
from outfitter.node.device_manager.device_manager import DeviceManager
from outfitter.node.device_manager.plugin_client import PluginClient
from outfitter.node.device_manager.plugin_resource import VERSION, DevicePlugin, wrong_name
from outfitter.node.device_manager.plugin_watcher import PluginInfo, PluginWatcher
from outfitter.node.device_manager.registration import RegistrationServer
from outfitter.node.dra_manager.dra_driver import PLUGIN_TYPE, Connect
from outfitter.node.dra_manager.dra_manager import DraManager
from outfitter.node.dra_manager.driver_client import DriverClient
from outfitter.node.dra_manager.driver_registry import DriverRegistry
from outfitter.scheduling.topology.settings import NumaNodes, TopologySettings
from outfitter.store.clock import Clock


class DeviceServers:
    """Of one host."""

    def __init__(
        self, host: AgentHost, folder: Path, *, clock: Clock, connect: Callable[[Path], DevicePlugin] | None = None,
        connect_driver: Connect | None = None,
    ) -> None:
        self.manager = DeviceManager(host.name, folder, connect or PluginClient, topology_settings(host), clock=clock)
        self.dra_manager = DraManager(
            host.name, host.driver, FolderFiles(folder, durable=not host.simulated),
            DriverRegistry(host.name, host.driver, connect_driver or DriverClient, clock=clock, problem=self.manager.problem),
            clock=clock,
            expected=lambda driver: host.drivers_expected or (folder / "plugins" / driver).is_dir(),
            whole=host.drivers_expected)
        self._registration = RegistrationServer(self.manager)
        self._watcher = PluginWatcher(folder, {
            "DevicePlugin": DevicePluginHandler(self.manager), PLUGIN_TYPE: self.dra_manager.drivers}, clock=clock)

    async def start(self) -> None:
        """StartupRefused: a socket cannot be created."""
        self.manager.load(allocate_response.decode)
        self.dra_manager.load()
        await self._registration.start()
        await self._watcher.start()

    async def stop(self) -> None:
        await self._watcher.stop()
        await self._registration.stop()
        await self.manager.stop()
        await self.dra_manager.stop()


class DevicePluginHandler:
    """Registers device plugins that were found by their sockets."""

    def __init__(self, manager: DeviceManager) -> None:
        self._manager = manager

    async def add(self, info: PluginInfo) -> None:
        why = wrong_name(info.name)
        if VERSION not in info.versions:
            offered = ", ".join(info.versions) or "none"
            why = f"the device plugin API versions {offered} are not supported; supported is {VERSION}"
        if why:
            self._manager.refuse(info.name, why)
            raise NotReady(why)
        await self._manager.add(info.name, info.endpoint)

    async def remove(self, info: PluginInfo) -> None:
        await self._manager.remove(info.name, info.endpoint)


def topology_settings(host: AgentHost) -> TopologySettings:
    """Invalid: the host's settings cannot be used with its NUMA nodes."""
    tree = host.tree()
    numa = NumaNodes.of([cell.id for cell in numa_cells.scan(tree)] or [0], numa_cells.distances(tree))
    settings = host.settings.topology_manager
    return TopologySettings.parse(settings.policy, settings.scope, settings.options, numa)
