"""The only file that wires it all: `embedded()` is the whole product in one process, `cluster()` the same controllers and
node agent on a real Kubernetes API server."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import yaml

from outfitter.api import admission, conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.device import DRIVER
from outfitter.api.hypervisor import DRIVES, Abilities, Domain, Hypervisor
from outfitter.api.kinds import Object
from outfitter.apiserver import auth
from outfitter.apiserver.app import App as ApiServer
from outfitter.apiserver.server import Server
from outfitter.controllers.claim_deallocation import ClaimDeallocation
from outfitter.controllers.device_status import DeviceStatus
from outfitter.controllers.device_taint_eviction import DeviceTaintEviction
from outfitter.controllers.embedded.event_expiry import EventExpiry
from outfitter.controllers.embedded.namespace_defaults import NamespaceDefaults
from outfitter.controllers.garbage_collector import GarbageCollector
from outfitter.controllers.kubevirt import KubeVirtController
from outfitter.controllers.ledger_mirror import LedgerMirror
from outfitter.controllers.manager import Controller, ControllerContext, ControllerManager, settle
from outfitter.controllers.node_taint_eviction import NodeTaintEviction
from outfitter.controllers.pod_claims import PodClaims
from outfitter.controllers.pod_gc import PodGc
from outfitter.controllers.scheduler import Scheduler
from outfitter.controllers.scheduler_cache import SchedulerCache
from outfitter.controllers.vm import VmController
from outfitter.controllers.vmi import VmiController
from outfitter.errors import AlreadyExists, StartupRefused
from outfitter.inventory import assignable, scan
from outfitter.inventory.config import DEFAULT, Config
from outfitter.inventory.simulation.host import SimulatedHost
from outfitter.launcher import connection, domain, libvirt
from outfitter.launcher.domain_options import DomainOptions
from outfitter.launcher.simulated import Simulated
from outfitter.metrics import Metrics
from outfitter.node.agent import Agent
from outfitter.node.agent_host import AgentHost
from outfitter.node.atomic_files import FolderFiles, MemoryFiles
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.host_audit import HostAudit
from outfitter.node.host_env import HostEnv
from outfitter.node.simulation.root import SimulatedRoot
from outfitter.node.sysfs_root import FolderRoot
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

NAMESPACES = ("default", "kube-system")
CERTIFICATES_LAST = timedelta(days=365)
RENEW_BEFORE = timedelta(days=30)
# What a cluster must have learned; networks of others it need not know.
OURS = tuple(kind for kind in kinds.ALL if not kind.builtin and kind != kinds.NETWORK_ATTACHMENT)
CDI = "var/run/cdi"  # below a host's root: where container runtimes look for prepared devices
METADATA = "var/run/outfitter/metadata"  # and what they show to launchers
PATIENCE = 60.0  # seconds for which the kernel may think about one handover
CLUSTER = "outfitter"  # the name in kubeconfigs that we write


def simulated_hosts(hosts: Sequence[SimulatedHost], data: Path | None = None, config: Config = DEFAULT) -> list[AgentHost]:
    """Hosts of a hosts file, as the node agent takes them; their VMs, and what was done to their devices, are stored below
    `data`."""
    recent: OrderedDict[int, SimulatedRoot] = OrderedDict()

    def simulated(host: SimulatedHost) -> AgentHost:
        def files(name: str) -> FolderFiles | MemoryFiles:
            return FolderFiles(data / "hosts" / host.name / name, durable=False) if data else MemoryFiles()

        root = SimulatedRoot(host.tree, files("kernel"), recent)
        env = HostEnv(host.name, host.publisher, root, state=files("state"), cdi=files("cdi"), metadata=files("metadata"))
        return AgentHost(host.name, host.publisher, root.look, Simulated(data / "domains" / host.name if data else None),
                    host.capacity(), host.labels, simulated=True, settings=config.for_host(host.name), env=env,
                    driver_profiles=host.driver_profiles)

    return [simulated(host) for host in hosts]


def hypervisor(kind: str | None, name: str, data: Path | None = None) -> tuple[Hypervisor, str]:
    """The hypervisor of this host, and why it was chosen: "libvirt", a URI of libvirt, "simulated", or None to let
    what is there decide. StartupRefused: libvirt was asked for and cannot be used."""
    drives = str(data / "hosts" / name / "drives") if data and os.geteuid() else DRIVES
    if kind is not None and kind != "simulated":
        if kind != "libvirt" and "://" not in kind:
            raise StartupRefused(f"--hypervisor {kind}: it is libvirt, simulated, or a URI of libvirt such as {libvirt.SYSTEM}")
        connection.library()
        uri = libvirt.SYSTEM if kind == "libvirt" else kind
        return libvirt.Libvirt(uri, drives=drives), f"its VMs run in libvirt at {uri}"
    reason = "as set by --hypervisor" if kind else libvirt.unavailable_reason()
    if not reason:
        return libvirt.Libvirt(drives=drives), f"its VMs run in libvirt at {libvirt.SYSTEM}"
    return Simulated(data / "domains" / name if data else None), f"its VMs are simulated: {reason}"


def this_host(
    name: str, runs: Hypervisor, data: Path | None = None, root: Path = Path("/"), config: Config = DEFAULT, *,
    empty: bool = False,
) -> AgentHost | None:
    """This host, if it has anything to offer: what device_spec lists, what it is asked to make, or else a function that is
    bound to vfio-pci; with `empty` in any case. Everything that is written on it stands below `root`, but for `data`."""
    tree, settings = FolderRoot(root), config.for_host(name)
    found = scan.scan(tree)
    asked = empty or settings.device_spec is not None or settings.sriov or settings.mdev
    if not asked and not assignable.assignable(found.devices, found.mdevs).offered:
        return None
    capacity = {"cpu": str(os.cpu_count() or 1), "memory": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))}
    state = data / "hosts" / name if data else None
    env = HostEnv(name, DRIVER, tree, state=FolderFiles(state / "state") if state else None,
                      cdi=FolderFiles(root / CDI, durable=False), metadata=FolderFiles(root / METADATA, durable=False),
                      dev=str(root / "dev"), patience=PATIENCE)
    return AgentHost(name, DRIVER, lambda: tree, runs, capacity, {}, simulated=False, settings=settings, env=env)


def build_domain(instance: Object, env: Mapping[str, str], files: Mapping[str, str], abilities: Abilities) -> Domain:
    return domain.build(
        instance,
        env,
        files,
        DomainOptions(type="kvm" if abilities.kvm else "qemu", simulated=abilities.simulated, drives=abilities.drives),
    )


def _agent(
    context: ControllerContext, hosts: Sequence[AgentHost], preparation: ClaimPreparation, audit: Callable[[str], None]
) -> Agent:
    return Agent(
        context.store, hosts, build=build_domain, preparation=preparation, clock=context.clock, events=context.events,
        pods=context.informer(kinds.POD), instances=context.informer(kinds.VMI),
        claims=context.informer(kinds.RESOURCE_CLAIM), pages=context.informer(kinds.LEDGER_PAGE), audit=audit,
    )


class Product:
    """Controllers and node agent on a store, running."""

    def __init__(self, store: Store, hosts: Sequence[AgentHost], controllers: Sequence[Controller],
                 context: ControllerContext, *, workers: int = 4) -> None:
        self.store, self.context = store, context
        self.hosts = [host.fresh() for host in hosts]
        self.preparation = ClaimPreparation(context.store, self.hosts, clock=context.clock)
        self.host_audit = HostAudit(store, self.hosts, clock=context.clock, pages=context.informer(kinds.LEDGER_PAGE),
                             slices=context.informer(kinds.RESOURCE_SLICE), events=context.events,
                             begin=self.preparation.begin)
        self.agent = _agent(context, self.hosts, self.preparation, self.host_audit.queue.add)
        unreadable = UnreadableObjects(context.informers, context.events, clock=context.clock)
        self.runner = ControllerManager(context, [*controllers, self.host_audit, self.agent, unreadable], workers=workers)
        self.metrics = Metrics(self.runner, context, self.host_audit.repairs)
        self.offered = 0  # devices that the hosts publish

    async def start(self) -> None:
        await self.preparation.start()
        self.offered = await self.host_audit.start()
        await self.runner.start()

    async def stop(self) -> None:
        await self.runner.stop()
        for host in self.hosts:
            await host.hypervisor.close()
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
        controllers: list[Controller] = [
            VmController(context),
            VmiController(context, aliases),
            PodClaims(context),
            ClaimDeallocation(context),
            Scheduler(context, cache),
            DeviceTaintEviction(context, cache),
            NodeTaintEviction(context),
            DeviceStatus(context),
            GarbageCollector(context),
            self.namespace_defaults,
            EventExpiry(context, keep=config.events.keep, most=config.events.most),
            PodGc(context),
            KubeVirtController(context),
        ]
        # On a disk most of a worker's time is waiting until something is safe: many who wait share one transaction.
        super().__init__(store, hosts, controllers, context, workers=16 if isinstance(store, SQLite) else 4)
        context.informer(kinds.NODE).on_change(self.host_audit.node_changed)  # in a cluster the kubelet creates it again
        self.store, self._config = store, config
        self.api = ApiServer(store, metrics=self.metrics.text)
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
                             metrics=self.metrics.text)
        self.server = Server(self.api, certfile=access.folder / "server.crt", keyfile=access.folder / "server.key",
                             ca=access.folder / "ca.crt", port=port, limits=self._config.server, clock=self.context.clock)
        await self.server.start()
        self.namespace_defaults.publish(access.ca.cert.decode())
        self.metrics.listener = self.server.listener
        config = pki.kubeconfig(self.server.url, ca=access.ca.cert, client=access.admin, cluster=CLUSTER)
        path = data / "kubeconfig"
        pki.save_private(path, yaml.safe_dump(config, sort_keys=False).encode())
        return path

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
    rules = admission.AdmissionRules({kinds.FLAVOR: flavor_claim.checked(aliases)})
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
    instances = VmiController(context, AliasSet.of(config.default), exact=False)
    product = Product(store, hosts, [VmController(context), instances, DeviceStatus(context), LedgerMirror(context)], context)
    try:
        for kind in OURS:
            await store.list(kind, limit=1)  # a cluster that lacks our definitions says so now
        await announce(store, config)
        await product.start()
        yield product
    finally:
        await product.stop()


async def announce(store: Store, config: Config) -> None:
    """What flavors need: the class that their claims use, and the aliases where users and `outfit plan` can read
    them. Written where it is missing or not so any more; without aliases there is nothing to say."""
    if not config.default.alias:
        return
    with contextlib.suppress(AlreadyExists):  # it may have been edited
        await store.create(kinds.DEVICE_CLASS, flavor_claim.device_class())
    wanted = flavor_claim.aliases_config_map(config.default)
    meta = wanted["metadata"]
    try:
        await store.create(kinds.CONFIG_MAP, wanted)
    except AlreadyExists:
        await store.patch(kinds.CONFIG_MAP, meta["name"], {"data": wanted["data"]}, meta["namespace"])


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

