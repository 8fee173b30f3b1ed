"""The only file that wires it all: `embedded()` is the whole product in one process, `cluster()` the same controllers and
node agent on a real Kubernetes API server."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import yaml

from outfitter.api import admission, conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.apiserver import auth
from outfitter.apiserver.app import App as ApiServer
from outfitter.apiserver.server import Server
from outfitter.controllers.attachment_pods import AttachmentPods
from outfitter.controllers.device_status import DeviceStatus
from outfitter.controllers.embedded.claim_deallocation import ClaimDeallocation
from outfitter.controllers.embedded.device_taint_eviction import DeviceTaintEviction
from outfitter.controllers.embedded.event_expiry import EventExpiry
from outfitter.controllers.embedded.garbage_collector import GarbageCollector
from outfitter.controllers.embedded.namespace_defaults import NamespaceDefaults
from outfitter.controllers.embedded.node_taint_eviction import NodeTaintEviction
from outfitter.controllers.embedded.pod_claims import PodClaims
from outfitter.controllers.embedded.pod_gc import PodGc
from outfitter.controllers.embedded.pool_status_requests import PoolStatusRequests
from outfitter.controllers.kubevirt import KubeVirtController
from outfitter.controllers.manager import Controller, ControllerContext, ControllerManager, settle
from outfitter.controllers.migrations.migration import MigrationController
from outfitter.controllers.nic_hotplug import NicHotplug
from outfitter.controllers.scheduler import Scheduler
from outfitter.controllers.scheduler_cache import SchedulerCache
from outfitter.controllers.vm import VmController
from outfitter.controllers.vmi import VmiController
from outfitter.controllers.workload_update import WorkloadUpdate
from outfitter.errors import AlreadyExists, StartupRefused
from outfitter.inventory.config import DEFAULT, Config
from outfitter.metrics import Metrics
from outfitter.node.agent_host import AgentHost
from outfitter.node.readers.pods_page import PodsPage
from outfitter.roles.cluster_check import OURS
from outfitter.roles.controller import announce, cluster_controllers
from outfitter.roles.hosts import build_domain, hypervisor, simulated_hosts, this_host
from outfitter.roles.node import HostAgents, without_device_assignment
from outfitter.scheduling import config as scheduling_config
from outfitter.scheduling import plugins
from outfitter.scheduling.nova import flavor_claim
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.store import pki
from outfitter.store.base import Store
from outfitter.store.clock import Clock, SystemClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from outfitter.store.rest_config import RestConfig
from outfitter.store.sqlite import SQLite
from outfitter.store.unreadable_objects import UnreadableObjects

__all__ = ["Embedded", "Product", "build_domain", "cluster", "embedded", "hypervisor", "simulated_hosts", "this_host"]
NAMESPACES = ("default", "kube-system")
CERTIFICATES_LAST = timedelta(days=365)
RENEW_BEFORE = timedelta(days=30)
CLUSTER = "outfitter"  # the name in kubeconfigs that we write


class Product:
    """Controllers and node agent on a store, running."""

    def __init__(self, store: Store, hosts: Sequence[AgentHost], controllers: Sequence[Controller],
                 context: ControllerContext, *, workers: int = 4, assigned_field: bool = False) -> None:
        """`assigned_field`: the server keeps the field `assignedDevices` of containers."""
        self.store, self.context = store, context
        agents = HostAgents(context, hosts, assigned_field=assigned_field)
        self.hosts, self.preparation, self.host_audit = agents.hosts, agents.preparation, agents.host_audit
        self.agent, self._agents = agents.agent, agents
        unreadable = UnreadableObjects(context.informers, context.events, clock=context.clock)
        self.runner = ControllerManager(context, [*controllers, *agents.controllers, unreadable], workers=workers)
        self.metrics = Metrics(self.runner, context, self.host_audit.repairs, readers=agents.readers)
        self.offered = 0  # devices that the hosts publish

    async def start(self) -> None:
        self.offered = await self._agents.start()
        await self.runner.start()
        await self._agents.serve_readers()

    async def stop(self) -> None:
        await self.runner.stop()
        await self._agents.stop()
        await self.store.close()


class Embedded(Product):
    """The product on a store of its own."""

    store: Memory

    def __init__(self, store: Memory, hosts: Sequence[AgentHost], *, clock: Clock, config: Config = DEFAULT,
                 aliases: AliasSet | None = None) -> None:
        context = ControllerContext(store, clock=clock, names=store.names)
        self.settings = scheduling_config.SchedulingConfig.of(config.scheduling.policy, config.scheduling.features)
        cache = SchedulerCache(context, plugins=plugins.load(plugins.skipped()), policy=self.settings.policy,
                               features=self.settings.features)
        self.namespace_defaults = NamespaceDefaults(context)

        served = {host.name for host in hosts}

        def in_place(host: str) -> bool:
            return host in served and config.for_host(host).plug_in_place

        controllers: list[Controller] = [
            VmController(context, in_place),
            VmiController(context, aliases),
            PodClaims(context),
            ClaimDeallocation(context),
            Scheduler(context, cache),
            DeviceTaintEviction(context, cache),
            NodeTaintEviction(context),
            DeviceStatus(context),
            AttachmentPods(context, in_place),
            GarbageCollector(context),
            self.namespace_defaults,
            EventExpiry(context, keep=config.events.keep, most=config.events.most),
            PodGc(context),
            PoolStatusRequests(context),
            KubeVirtController(context),
            MigrationController(context),
            NicHotplug(context, in_place=in_place),
            WorkloadUpdate(context),
        ]
        # On a disk most of a worker's time is waiting until something is safe: many who wait share one transaction.
        if not self.settings.features.device_assignment:
            hosts = [without_device_assignment(host) for host in hosts]
        super().__init__(store, hosts, controllers, context, workers=16 if isinstance(store, SQLite) else 4,
                         assigned_field=True)
        context.informer(kinds.NODE).on_change(self.host_audit.node_changed)  # in a cluster the kubelet creates it again
        self.store, self._config = store, config
        self.api = ApiServer(store, metrics=self.metrics.text, pods=self._pods_page())
        self.server: Server | None = None

    async def start(self) -> None:
        for name in NAMESPACES:
            if self.store.committed_record(kinds.NAMESPACE, name) is None:
                await self.store.create(kinds.NAMESPACE, {"metadata": {"name": name}})
        await self._set_aside()
        await self._tell_settings()
        await announce(self.store, self._config)
        await super().start()

    async def _tell_settings(self) -> None:
        """Where `outfit plan` and `outfit why` find how this one chooses."""
        wanted = self.settings.to_object()
        have = self.store.committed_record(kinds.CONFIG_MAP, scheduling_config.NAME, scheduling_config.NAMESPACE)
        if have is None:
            with contextlib.suppress(AlreadyExists):
                await self.store.create(kinds.CONFIG_MAP, wanted)
        elif have.object().get("data") != wanted["data"]:
            await self.store.patch(
                kinds.CONFIG_MAP, scheduling_config.NAME, {"data": wanted["data"]}, scheduling_config.NAMESPACE
            )

    async def _set_aside(self) -> None:
        """Nodes of an earlier run that are not among the hosts of this one take nothing new."""
        ours = {host.name for host in self.hosts}
        for node in (await self.context.store.list(kinds.NODE)).items:
            if node["metadata"]["name"] in ours:
                continue
            gone = Condition("Ready", False, "NotServed", "this host is not among those that outfitter was started with")
            have = conditions.with_condition((node.get("status") or {}).get("conditions"), gone, self.context.now())
            await self.store.patch(kinds.NODE, node["metadata"]["name"], {"status": {"conditions": have}}, subresource="status")

    async def serve(self, data: Path, port: int) -> Path:
        """Serve kubectl on a port of this host; the path of the kubeconfig for it."""
        access = credentials(data / "pki", self.context.clock)
        self.api = ApiServer(self.store, tokens={access.token: auth.User("admin", (auth.MASTERS,))},
                             metrics=self.metrics.text, pods=self._pods_page())
        self.server = Server(self.api, certfile=access.folder / "server.crt", keyfile=access.folder / "server.key",
                             ca=access.folder / "ca.crt", port=port, limits=self._config.server, clock=self.context.clock)
        await self.server.start()
        self.namespace_defaults.publish(access.ca.cert.decode())
        self.metrics.listener = self.server.listener
        config = pki.kubeconfig(self.server.url, ca=access.ca.cert, client=access.admin, cluster=CLUSTER)
        path = data / "kubeconfig"
        pki.save_private(path, yaml.safe_dump(config, sort_keys=False).encode())
        return path

    def _pods_page(self) -> PodsPage:
        return PodsPage(self._agents.readers)

    async def settle(self) -> None:
        """Until there is nothing to do (what waits for the clock does not count)."""
        await settle(lambda kind: self.store.watch_cache(kind).revision, self.context, [self.runner],
                     busy=lambda: self.store.busy)

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()
        await super().stop()


@contextlib.asynccontextmanager
async def embedded(
    *,
    data: Path | None = None,
    hosts: Sequence[AgentHost] = (),
    clock: Clock | None = None,
    names: IdGenerator | None = None,
    synchronous: str = "FULL",
    config: Config = DEFAULT,
    accept_lost_writes: bool = False,
) -> AsyncIterator[Embedded]:
    """The whole product in this process, without a port until `serve` is called; in memory unless `data` names a folder. Of the
    configuration the aliases and how to choose are used here; what it says of hosts comes with these."""
    aliases = AliasSet.of(config.default)
    clock, names = clock or SystemClock(), names or IdGenerator()
    gates = scheduling_config.Features.of(config.scheduling.features)
    rules = admission.AdmissionRules({kinds.FLAVOR: flavor_claim.checked(aliases)}, device_assignment=gates.device_assignment)
    store = Memory(clock=clock, names=names, rules=rules) if data is None else SQLite(
        data, kinds.ALL, clock=clock, names=names, rules=rules, synchronous=synchronous, accept_lost_writes=accept_lost_writes)
    product = Embedded(store, hosts, clock=clock, config=config, aliases=aliases)
    try:
        await product.start()
        yield product
    finally:
        await product.stop()


@contextlib.asynccontextmanager
async def cluster(
    access: RestConfig, *, hosts: Sequence[AgentHost] = (), clock: Clock | None = None, names: IdGenerator | None = None,
    config: Config = DEFAULT,
) -> AsyncIterator[Product]:
    """Our controllers and, for `hosts`, the node agent on a real API server, where kube-scheduler and kube-controller-manager
    do their own work."""
    from outfitter.store.kube import Kube  # noqa: PLC0415  # an HTTP client costs a third of the start of `outfit up`

    clock = clock or SystemClock()
    store = Kube(access, clock=clock)
    context = ControllerContext(store, clock=clock, names=names)
    product = Product(store, hosts, cluster_controllers(context, config), context)
    try:
        for kind in OURS:
            await store.list(kind, limit=1)  # a cluster that lacks our definitions says so now
        await announce(store, config)
        await product.start()
        yield product
    finally:
        await product.stop()


@dataclass(frozen=True, slots=True)
class Credentials:
    folder: Path
    ca: pki.Pair
    admin: pki.Pair
    token: str


def credentials(folder: Path, clock: Clock) -> Credentials:
    """Keys and certificates of the embedded server, created once, and again before they expire or if they are unusable."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    pki.check_folder(folder)
    now = clock.now()
    names = ("ca", "server", "admin")
    fresh = all(os.path.lexists(folder / f"{name}.{part}") for name in names for part in ("crt", "key")) and all(
        pki.usable(_pair(folder, name), _pair(folder, "ca"), now=now, until=now + RENEW_BEFORE) for name in names)
    if not fresh:
        span = {"valid_from": now - timedelta(hours=1), "valid_until": now + CERTIFICATES_LAST}
        ca = pki.authority("outfitter", **span)
        ca.save(folder, "ca")
        pki.server(ca, "outfitter", hosts=["127.0.0.1", "::1", "localhost"], **span).save(folder, "server")
        pki.client(ca, "admin", groups=[auth.MASTERS], **span).save(folder, "admin")
    token = folder / "token"
    if not os.path.lexists(token) or not pki.read_private(token).strip():
        pki.save_private(token, secrets.token_hex(16).encode())
    return Credentials(folder, _pair(folder, "ca"), _pair(folder, "admin"), pki.read_private(token).decode().strip())


def _pair(folder: Path, name: str) -> pki.Pair:
    return pki.Pair(pki.read_certificate(folder / f"{name}.crt"), pki.read_private(folder / f"{name}.key"))


def copy_kubeconfig(source: Path, target: Path) -> None:
    """Write the kubeconfig where the user wants it; a foreign kubeconfig is not overwritten."""
    if target.exists() and target.resolve() != source.resolve():
        try:
            have = yaml.safe_load(target.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise StartupRefused(f"{target} cannot be read ({error}); choose another file with --kubeconfig") from error
        if not isinstance(have, dict) or have.get("kind", "Config") != "Config":
            raise StartupRefused(f"{target} is no kubeconfig and was left as it is; choose another file with --kubeconfig")
        if [entry.get("name") for entry in have.get("clusters") or ()] != [CLUSTER]:
            raise StartupRefused(f"{target} is a kubeconfig for other clusters and was left as it is; choose another file with "
                                 "--kubeconfig")
    if target.resolve() != source.resolve():
        target.parent.mkdir(parents=True, exist_ok=True)
        pki.save_private(target, source.read_bytes())

