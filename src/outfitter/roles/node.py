"""`outfit node`: the agent of this host's Node, or of simulated nodes whose kubelet it plays. `HostAgents` is the same for
`outfit up`, which runs it with the controllers in one process."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from outfitter.api import kinds
from outfitter.api.assignment.kubelet_folder import KUBELET_DIR
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import vm
from outfitter.api.kubevirt.kubevirt_config import active_kubevirt
from outfitter.controllers.manager import Controller, ControllerContext, ControllerManager
from outfitter.errors import NotFound, StartupRefused
from outfitter.launcher.hotplug import device_elements
from outfitter.launcher.nics import nic_hotplug
from outfitter.metrics import Metrics
from outfitter.node.agent import Agent
from outfitter.node.agent_host import AgentHost
from outfitter.node.claim_bookings import ClaimBookings
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.device_manager.checkpoint_file import CheckpointFile
from outfitter.node.device_manager.device_manager import FOLDER as DEVICE_PLUGINS
from outfitter.node.device_plugin.plugin_resources import DeviceSelector, read_selectors
from outfitter.node.dra_manager.driver_controller import DriverController
from outfitter.node.host_audit import HostAudit
from outfitter.node.launchers import Launchers
from outfitter.node.pods.followed_vmis import FollowedVmis
from outfitter.node.pods.kubelet_pods import KubeletPods
from outfitter.node.pods.own_pods import OwnPods
from outfitter.node.pods.pod_cache import PodCache
from outfitter.node.pool_pages import PoolPages
from outfitter.node.readers.host_sources import HostSources
from outfitter.node.readers.node_pods import NodePods
from outfitter.roles import hosts as host_setup
from outfitter.roles import socket_folder
from outfitter.roles.cluster_check import Right, check_cluster, reads
from outfitter.roles.process import RoleProcess, spare_the_collector
from outfitter.roles.settings import Settings
from outfitter.store.base import Store
from outfitter.store.clock import Clock
from outfitter.store.informer import ObjectSelector
from outfitter.store.unreadable_objects import UnreadableObjects

if TYPE_CHECKING:
    from outfitter.node.device_manager.plugin_resource import DevicePlugin
    from outfitter.node.device_plugin.plugin_sockets import DevicePluginSockets
    from outfitter.node.dra_manager.dra_driver import Connect
    from outfitter.node.kubelet.plugin import KubeletPlugin
    from outfitter.node.readers.reader_sockets import ReaderSockets
    from outfitter.roles.device_servers import DeviceServers

log = logging.getLogger(__name__)
DATA = Path("/var/lib/outfitter")
SIMULATED = "outfitter.dev/simulated"  # label of the nodes that we play
MOST_SHOWN = 5  # nodes in a message
READS = tuple(Right("get", kind) for kind in (kinds.NODE, kinds.RESOURCE_CLAIM, kinds.POD))
WRITES = (
    *(Right(verb, kind) for kind in (kinds.RESOURCE_SLICE, kinds.LEDGER_PAGE, kinds.HOST_INVENTORY, kinds.PROVIDER_TREE)
      for verb in ("create", "update")),
    Right("patch", kinds.VMI, "status"), Right("create", kinds.EVENT),
)
KUBELET = (Right("create", kinds.NODE), Right("patch", kinds.NODE, "status"), Right("patch", kinds.POD, "status"),
           Right("delete", kinds.POD))  # what it writes for a kubelet


class HostAgents:
    """Audit, claim preparation and agent of some hosts."""

    def __init__(
        self, context: ControllerContext, hosts: Sequence[AgentHost], *, vms: bool = True, assigned_field: bool = False,
        connect: Callable[[Path], DevicePlugin] | None = None, connect_driver: Connect | None = None,
    ) -> None:
        """`vms`: False beside KubeVirt, where virt-handler runs them: hosts are audited and claims prepared, no more.
        `assigned_field`: the server keeps the field `assignedDevices` of containers. `connect` and `connect_driver`: how
        device plugins and DRA drivers are called; None: over gRPC."""
        self.hosts = [host.fresh() for host in hosts]
        self._assigned_field = assigned_field
        self.device_servers = _device_servers(context, self.hosts, connect, connect_driver)
        pages = context.informer(kinds.LEDGER_PAGE)
        self.preparation = ClaimPreparation(context.store, self.hosts, clock=context.clock)
        self.host_audit = HostAudit(
            context.raw_store, self.hosts, clock=context.clock, pages=pages, slices=context.informer(kinds.RESOURCE_SLICE),
            events=context.events, begin=self.preparation.begin)
        self.controllers: list[Controller] = [self.host_audit]
        self._followed: FollowedVmis | None = None
        self._clock = context.clock
        self._sockets: list[ReaderSockets] = []
        if vms:
            self.agent = self._kubelet_agent(context) or self._own_agent(context)
            self.controllers.append(self.agent)
        if self.device_servers:
            self.controllers.append(DriverController(context.store, self.hosts, clock=context.clock))

    def _own_agent(self, context: ControllerContext) -> Agent:
        """Runs the pods of its hosts itself."""
        pages = context.informer(kinds.LEDGER_PAGE)
        cache = PodCache(context.informer(kinds.POD), context.informer(kinds.VMI), context.informer(kinds.RESOURCE_CLAIM))
        self._show_pods(cache)
        runtime = OwnPods(context.store, cache, build=host_setup.build_domain, build_nic=nic_hotplug.element,
                          build_device=device_elements.build,
                          preparation=self.preparation, pages=pages,
                          clock=context.clock, events=context.events, audit=self.host_audit.queue.add,
                          assigned_field=self._assigned_field)
        agent = Agent(self.hosts, runtime, cache, clock=context.clock, pages=pages)
        runtime.assignment.calls.wake = agent.queue.add
        self.host_audit.wake_holders = agent.wake_holders
        for host in self.hosts:
            if host.dra_manager is not None:
                host.dra_manager.wake = agent.queue.add
        return agent

    def _show_pods(self, cache: PodCache) -> None:
        """Keep what readers see of each host."""
        readers = {host.name: NodePods(host.name, HostSources(host, cache.claim), self._clock) for host in self.hosts}
        for host in self.hosts:
            host.readers = readers[host.name]

        def changed(old: Object | None, new: Object | None) -> None:
            for name in {pod["spec"].get("nodeName") or "" for pod in (old, new) if pod is not None} & readers.keys():
                readers[name].changed(old, new)

        cache.pods.on_change(changed)

    def _kubelet_agent(self, context: ControllerContext) -> Agent | None:
        """Drives the launchers in pods that a kubelet runs; None where there is no kubelet."""
        launchers = self.hosts[0].hypervisor if self.hosts else None
        if not isinstance(launchers, Launchers):
            return None
        self._followed = FollowedVmis(context.store, self.hosts[0].name, clock=context.clock)
        cache = PodCache(context.informer(kinds.POD), context.informer(kinds.VMI), followed=self._followed)
        runtime = KubeletPods(context.store, cache, launchers, clock=context.clock, events=context.events)
        return Agent(self.hosts, runtime, cache, clock=context.clock)

    async def start(self) -> int:
        """Audit all hosts: how many devices they offer."""
        await self.preparation.start()
        offered = await self.host_audit.start()
        for servers in self.device_servers:
            await servers.start()
        return offered

    @property
    def readers(self) -> list[NodePods]:
        return [host.readers for host in self.hosts if host.readers is not None]

    async def serve_readers(self) -> None:
        """Open the sockets of readers, once all pods are known. StartupRefused: one cannot be created."""
        self._sockets = reader_sockets(self.hosts, self._clock)
        for sockets in self._sockets:
            await sockets.start()

    async def stop(self) -> None:
        for sockets in self._sockets:
            await sockets.stop()
        for servers in self.device_servers:
            await servers.stop()
        if self._followed is not None:
            await self._followed.close()
        for host in self.hosts:
            await host.hypervisor.close()


def without_device_assignment(host: AgentHost) -> AgentHost:
    """The host with the gate `DeviceAssignment` off: it serves no device plugins, and its Node no longer offers what those of
    an earlier run did."""
    if host.kubelet_dir is None:
        return host
    registered = CheckpointFile(host.kubelet_dir / DEVICE_PLUGINS).load().registered
    return dataclasses.replace(host, kubelet_dir=None, withdrawn=frozenset(registered))


def reader_sockets(hosts: Sequence[AgentHost], clock: Clock) -> list[ReaderSockets]:
    """For hosts whose agent has a kubelet's folder to itself."""
    served = [(host.readers, host.kubelet_dir) for host in hosts if host.readers is not None and host.kubelet_dir is not None]
    if not served:
        return []
    try:
        from outfitter.node.readers.reader_sockets import ReaderSockets  # noqa: PLC0415  # gRPC is slow to import
    except ImportError as error:
        raise StartupRefused(f"pods and their devices are shown over gRPC, and {error.name} is not installed: "
                             "pip install 'outfitter[kubelet]'") from error
    return [ReaderSockets(readers, folder, clock=clock) for readers, folder in served]


def _device_servers(
    context: ControllerContext, hosts: Sequence[AgentHost], connect: Callable[[Path], DevicePlugin] | None,
    connect_driver: Connect | None,
) -> list[DeviceServers]:
    """For the hosts of which the agent serves device plugins; each host has its device manager then."""
    if not any(host.kubelet_dir is not None for host in hosts):
        return []
    try:
        from outfitter.roles.device_servers import DeviceServers  # noqa: PLC0415  # gRPC is slow to import
    except ImportError as error:
        raise StartupRefused(f"device plugins are served over gRPC, and {error.name} is not installed: "
                             "pip install 'outfitter[kubelet]'") from error
    out = []
    for host in hosts:
        if host.kubelet_dir is not None:
            out.append(DeviceServers(host, host.kubelet_dir, clock=context.clock, connect=connect,
                                     connect_driver=connect_driver))
            host.device_manager, host.dra_manager = out[-1].manager, out[-1].dra_manager
    return out


def dra_plugins(context: ControllerContext, agents: HostAgents, folder: Path) -> list[KubeletPlugin]:
    """Our DRA driver for the kubelet of each host that has one, whose folder this is."""
    hosts = [host for host in agents.hosts if host.kubelet]
    if not hosts:
        return []
    try:
        from outfitter.node.kubelet.claim_driver import ClaimDriver  # noqa: PLC0415  # gRPC is slow to import
        from outfitter.node.kubelet.plugin import KubeletPlugin  # noqa: PLC0415
    except ImportError as error:
        raise StartupRefused(f"outfit node serves the kubelet over gRPC, and {error.name} is not installed: "
                             "pip install 'outfitter[kubelet]'") from error
    bookings = ClaimBookings(context.store, agents.preparation, PoolPages(context.store), clock=context.clock)
    pages = context.informer(kinds.LEDGER_PAGE)
    return [KubeletPlugin(ClaimDriver(context.store, host, bookings, agents.preparation, clock=context.clock,
                                      events=context.events), folder, clock=context.clock,
                          page=functools.partial(pages.get, host.name)) for host in hosts]


def device_plugins(
    context: ControllerContext, agents: HostAgents, settings: Settings
) -> list[DevicePluginSockets]:
    """Our device plugin for the kubelet of each host that has one, if that is asked for."""
    hosts = [host for host in agents.hosts if host.kubelet and host.env is not None] if settings.device_plugin else []
    if not hosts:
        return []
    from outfitter.node.device_plugin.plugin_sockets import (  # noqa: PLC0415  # gRPC is slow to import
        DevicePluginSockets,
        kubelet_pods,
    )
    from outfitter.node.device_plugin.pod_allocations import PodAllocations  # noqa: PLC0415

    pages, pods = context.informer(kinds.LEDGER_PAGE), context.informer(kinds.POD)

    async def selectors() -> tuple[DeviceSelector, ...]:
        found = active_kubevirt((await context.store.list(kinds.KUBEVIRT)).items)
        return read_selectors(found, companion=settings.companion)

    out = []
    for host in hosts:
        allocations = PodAllocations(
            context.store, host, agents.preparation, clock=context.clock,
            pod=lambda namespace, name: pods.get(f"{namespace}/{name}"), page=functools.partial(pages.get, host.name),
            listed=functools.partial(kubelet_pods, settings.kubelet_dir))
        out.append(DevicePluginSockets(allocations, settings.kubelet_dir, clock=context.clock, selectors=selectors,
                                       changed=functools.partial(agents.host_audit.queue.add, host.name)))
        pods.on_change(_on_pod_end(out[-1]))
    return out


def _on_pod_end(plugin: DevicePluginSockets) -> Callable[[Object | None, Object | None], None]:
    def changed(old: Object | None, new: Object | None) -> None:
        if new is None or (new.get("status") or {}).get("phase") in vm.FINAL:
            plugin.look_soon()

    return changed


async def run(process: RoleProcess) -> None:
    hosts, why = choose_hosts(process)
    async with process.connect() as store:
        for launchers in (host.hypervisor for host in hosts if isinstance(host.hypervisor, Launchers)):
            launchers.proxy.towards = urlsplit(store.access.server).hostname or ""
        context = ControllerContext(store, clock=process.clock, component="outfitter-node", selectors=selectors(hosts))
        agents = HostAgents(context, hosts, vms=not process.settings.companion)
        served = device_plugins(context, agents, process.settings)
        plugins: list[KubeletPlugin | DevicePluginSockets] = [
            *dra_plugins(context, agents, process.settings.kubelet_dir), *served]
        writes = (*WRITES, *KUBELET) if process.settings.simulate else WRITES
        await check_cluster(store, "node", rights(context.informers, writes, companion=process.settings.companion))
        await _check_nodes(store, hosts)
        unreadable = UnreadableObjects(context.informers, context.events, clock=context.clock)
        manager = ControllerManager(context, [*agents.controllers, unreadable])
        process.metrics = Metrics(manager, context, agents.host_audit.repairs, limiter=store.limiter,
                                  readers=agents.readers).text
        try:
            for plugin in served:
                await plugin.select()  # before slices are published: what the plugin offers is tainted there
            offered = await agents.start()
            await manager.start()
            await agents.serve_readers()
            for each in plugins:
                await each.start()
            process.ready(f"{len(hosts)} {'host' if len(hosts) == 1 else 'hosts'} ({why}), {offered} devices offered")
            spare_the_collector()
            await process.stop.wait()
        finally:
            for each in plugins:
                await each.stop()
            await manager.stop()
            await agents.stop()


def selectors(hosts: Sequence[AgentHost]) -> dict[Kind, ObjectSelector]:
    """What an agent reads of the cluster: its page, and the pods, VMIs and slices of its node; VMIs that migrate to or from it
    besides (`FollowedVmis`). Several simulated nodes cannot be selected at once, and their VMIs are read before they are on a
    node."""
    if len(hosts) == 1 and hosts[0].kubelet:
        name = hosts[0].name
        fields = {kinds.POD: "spec.nodeName", kinds.VMI: "status.nodeName", kinds.RESOURCE_SLICE: "spec.nodeName",
                  kinds.LEDGER_PAGE: "metadata.name"}
        return {kind: ObjectSelector(fields=f"{field}={name}") for kind, field in fields.items()}
    return {kinds.POD: ObjectSelector(fields="spec.nodeName!=")}


def rights(watched: Iterable[Kind], writes: Sequence[Right] = WRITES, *, companion: bool = False) -> list[Right]:
    kept = [right for right in writes if not (companion and right.kind == kinds.VMI)]
    return [*reads(watched), *READS, *kept]


def choose_hosts(process: RoleProcess) -> tuple[list[AgentHost], str]:
    """The hosts of this agent, and why these."""
    settings = process.settings
    if settings.simulate:
        from outfitter.inventory.simulation import hosts_file  # noqa: PLC0415  # only of a simulation
        from outfitter.scheduling.config import Features  # noqa: PLC0415

        found = host_setup.simulated_hosts(hosts_file.from_argument(settings.simulate).hosts, settings.data, process.config)
        asked = settings.kubelet_dir if settings.kubelet_dir != KUBELET_DIR else None
        sockets = socket_folder.choose(found, asked, settings.data)
        placed, where = sockets.hosts, sockets.text
        if not Features.of(process.config.scheduling.features).device_assignment:
            placed, where = [without_device_assignment(host) for host in placed], "none: the gate DeviceAssignment is off"
        return list(placed), f"simulated: {settings.simulate}; sockets: {where}"
    name = settings.node_name or host_setup.own_name()
    data = settings.data or DATA
    launchers = Launchers(settings.kubelet_dir, migration_address=settings.migration_address, clock=process.clock)
    host = host_setup.this_host(name, launchers, data, config=process.config, empty=True)
    assert host is not None  # also one that has nothing to offer
    return [dataclasses.replace(host, kubelet=True)], f"its VMs run in pods of the kubelet in {settings.kubelet_dir}"


async def _check_nodes(store: Store, hosts: Sequence[AgentHost]) -> None:
    """A real host must be a Node of the cluster; a simulated one must not be the Node of a kubelet."""
    found = await asyncio.gather(*(_node_labels(store, host.name) for host in hosts))
    for host, labels in zip(hosts, found, strict=True):
        if labels is None and not host.simulated:
            names = sorted(node["metadata"]["name"] for node in (await store.list(kinds.NODE, limit=50)).items)
            some = ", ".join(names[:MOST_SHOWN]) + (" ..." if len(names) > MOST_SHOWN else "")
            raise StartupRefused(f"this host is {host.name}, and the cluster has no such Node (nodes: {some or 'none'}): "
                                 "set --node-name or OUTFITTER_NODE_NAME to the name of its Node, in a pod to spec.nodeName")
        if labels is not None and host.simulated and labels.get(SIMULATED) != "true":
            raise StartupRefused(f"the simulated host {host.name} has the name of a Node that is not simulated: choose another "
                                 "name in the hosts file")


async def _node_labels(store: Store, name: str) -> dict[str, str] | None:
    try:
        node = await store.get(kinds.NODE, name)
    except NotFound:
        return None
    return node["metadata"].get("labels") or {}
