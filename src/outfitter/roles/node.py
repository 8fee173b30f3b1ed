"""`outfit node`: the agent of this host's Node, or of simulated nodes whose kubelet it plays. `HostAgents` is the same for
`outfit up`, which runs it with the controllers in one process."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from outfitter.api import kinds
from outfitter.api.kinds import Kind
from outfitter.controllers.manager import Controller, ControllerContext, ControllerManager
from outfitter.errors import NotFound, StartupRefused
from outfitter.launcher.nics import nic_hotplug
from outfitter.metrics import Metrics
from outfitter.node.agent import Agent
from outfitter.node.agent_host import AgentHost
from outfitter.node.claim_bookings import ClaimBookings
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.host_audit import HostAudit
from outfitter.node.launchers import Launchers
from outfitter.node.pods.followed_vmis import FollowedVmis
from outfitter.node.pods.kubelet_pods import KubeletPods
from outfitter.node.pods.own_pods import OwnPods
from outfitter.node.pods.pod_cache import PodCache
from outfitter.node.pool_pages import PoolPages
from outfitter.roles import hosts as host_setup
from outfitter.roles.cluster_check import Right, check_cluster, reads
from outfitter.roles.process import RoleProcess, spare_the_collector
from outfitter.store.base import Store
from outfitter.store.informer import ObjectSelector
from outfitter.store.unreadable_objects import UnreadableObjects

if TYPE_CHECKING:
    from outfitter.node.kubelet.plugin import KubeletPlugin

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

    def __init__(self, context: ControllerContext, hosts: Sequence[AgentHost], *, vms: bool = True) -> None:
        """`vms`: False beside KubeVirt, where virt-handler runs them: hosts are audited and claims prepared, no more."""
        self.hosts = [host.fresh() for host in hosts]
        pages = context.informer(kinds.LEDGER_PAGE)
        self.preparation = ClaimPreparation(context.store, self.hosts, clock=context.clock)
        self.host_audit = HostAudit(
            context.raw_store, self.hosts, clock=context.clock, pages=pages, slices=context.informer(kinds.RESOURCE_SLICE),
            events=context.events, begin=self.preparation.begin)
        self.controllers: list[Controller] = [self.host_audit]
        self._followed: FollowedVmis | None = None
        if vms:
            self.agent = self._kubelet_agent(context) or self._own_agent(context)
            self.controllers.append(self.agent)

    def _own_agent(self, context: ControllerContext) -> Agent:
        """Runs the pods of its hosts itself."""
        pages = context.informer(kinds.LEDGER_PAGE)
        cache = PodCache(context.informer(kinds.POD), context.informer(kinds.VMI), context.informer(kinds.RESOURCE_CLAIM))
        runtime = OwnPods(context.store, cache, build=host_setup.build_domain, build_nic=nic_hotplug.element,
                          preparation=self.preparation, pages=pages,
                          clock=context.clock, events=context.events, audit=self.host_audit.queue.add)
        return Agent(self.hosts, runtime, cache, clock=context.clock, pages=pages)

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
        return await self.host_audit.start()

    async def stop(self) -> None:
        if self._followed is not None:
            await self._followed.close()
        for host in self.hosts:
            await host.hypervisor.close()


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
    return [KubeletPlugin(ClaimDriver(context.store, host, bookings, agents.preparation, clock=context.clock,
                                      events=context.events), folder, clock=context.clock) for host in hosts]


async def run(process: RoleProcess) -> None:
    hosts, why = choose_hosts(process)
    async with process.connect() as store:
        for launchers in (host.hypervisor for host in hosts if isinstance(host.hypervisor, Launchers)):
            launchers.proxy.towards = urlsplit(store.access.server).hostname or ""
        context = ControllerContext(store, clock=process.clock, component="outfitter-node", selectors=selectors(hosts))
        agents = HostAgents(context, hosts, vms=not process.settings.companion)
        plugins = dra_plugins(context, agents, process.settings.kubelet_dir)
        writes = (*WRITES, *KUBELET) if process.settings.simulate else WRITES
        await check_cluster(store, "node", rights(context.informers, writes, companion=process.settings.companion))
        await _check_nodes(store, hosts)
        unreadable = UnreadableObjects(context.informers, context.events, clock=context.clock)
        manager = ControllerManager(context, [*agents.controllers, unreadable])
        process.metrics = Metrics(manager, context, agents.host_audit.repairs, limiter=store.limiter).text
        try:
            offered = await agents.start()
            await manager.start()
            for plugin in plugins:
                await plugin.start()
            process.ready(f"{len(hosts)} {'host' if len(hosts) == 1 else 'hosts'} ({why}), {offered} devices offered")
            spare_the_collector()
            await process.stop.wait()
        finally:
            for plugin in plugins:
                await plugin.stop()
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

        found = hosts_file.from_argument(settings.simulate).hosts
        return host_setup.simulated_hosts(found, settings.data, process.config), f"simulated: {settings.simulate}"
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
