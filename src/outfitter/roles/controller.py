"""`outfit controller`: our controllers on a real cluster, without those that Kubernetes has. Of several replicas the one that
holds the Lease works; the others wait for it. A leader that loses the Lease stops its controllers and waits again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import uuid
from collections.abc import Iterable

import outfitter
from outfitter.api import kinds
from outfitter.api.kinds import Kind
from outfitter.api.kubevirt import attachment_pods, vm
from outfitter.api.launcher.launcher_container import LauncherSettings
from outfitter.controllers.attachment_pods import AttachmentPods
from outfitter.controllers.cluster.agent_versions import AgentVersions
from outfitter.controllers.device_status import DeviceStatus
from outfitter.controllers.kubevirt import KubeVirtController
from outfitter.controllers.ledger_mirror import LedgerMirror
from outfitter.controllers.manager import Controller, ControllerContext, ControllerManager
from outfitter.controllers.migrations.migration import MigrationController
from outfitter.controllers.nic_hotplug import NicHotplug
from outfitter.controllers.vm import VmController
from outfitter.controllers.vmi import VmiController
from outfitter.controllers.workload_update import WorkloadUpdate
from outfitter.errors import AlreadyExists, NotFound, StartupRefused
from outfitter.inventory.config import Config
from outfitter.metrics import Metrics
from outfitter.roles.cluster_check import Right, check_cluster, reads
from outfitter.roles.process import RoleProcess, spare_the_collector
from outfitter.roles.settings import Settings
from outfitter.scheduling.nova import flavor_claim
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.store.base import Store
from outfitter.store.informer import ObjectSelector
from outfitter.store.kube import Kube
from outfitter.store.leader_election import LeaderElection, Terms
from outfitter.store.unreadable_objects import UnreadableObjects

log = logging.getLogger(__name__)
LEASE = "outfitter-controller"
DEFAULT_LAUNCHER = LauncherSettings(Settings().launcher_image)
WRITES = (
    *(Right(verb, kind) for kind in (kinds.POD, kinds.VMI, kinds.RESOURCE_CLAIM) for verb in ("create", "delete")),
    *(Right("patch", kind, "status") for kind in (kinds.VM, kinds.VMI, kinds.RESOURCE_CLAIM, kinds.MIGRATION,
                                                kinds.KUBEVIRT)),
    *(Right(verb, kinds.MIGRATION) for verb in ("create", "patch", "delete")),
    *(Right("patch", kind) for kind in (kinds.VM, kinds.VMI, kinds.POD)),
    *(Right(verb, kinds.LEDGER_PAGE) for verb in ("create", "update")), Right("create", kinds.EVENT),
)
# Of pods, those of VMs: a cluster has many others. A claim of another pod is booked too, and that pod read then.
SELECTORS = {kinds.POD: ObjectSelector(
    labels=f"{vm.LAUNCHER_LABEL} in ({','.join([vm.LAUNCHER, *attachment_pods.LABELS.values()])})")}
COMPANION_WRITES = tuple(right for right in WRITES if right.kind in (kinds.LEDGER_PAGE, kinds.EVENT))


def cluster_controllers(
    context: ControllerContext, config: Config, launcher: LauncherSettings = DEFAULT_LAUNCHER, *, companion: bool = False
) -> list[Controller]:
    """What Kubernetes does not do itself: kube-scheduler allocates, kube-controller-manager creates and releases claims.
    `companion`: nor what KubeVirt does, which writes all of VMs, VMIs and launcher pods."""
    if companion:
        return [LedgerMirror(context), AgentVersions(context)]
    nodes = context.informer(kinds.NODE)

    def in_place(host: str) -> bool:
        node = nodes.readable(host)
        return attachment_pods.plugs_in_place(node)

    return [VmController(context, in_place),
            VmiController(context, AliasSet.of(config.default), exact=False, launcher=launcher),
            MigrationController(context, launcher), DeviceStatus(context), KubeVirtController(context), LedgerMirror(context),
            AttachmentPods(context, in_place), NicHotplug(context, in_place=in_place), WorkloadUpdate(context),
            AgentVersions(context)]


async def announce(store: Store, config: Config) -> None:
    """What flavors need: the class that their claims use, and the aliases where users and `outfit plan` can read them. Created
    where it is missing, for which a role of an installation needs no right: that has created both. Without aliases there is
    nothing to say."""
    if not config.default.alias:
        return
    wanted = flavor_claim.aliases_config_map(config.default)
    meta = wanted["metadata"]
    with contextlib.suppress(AlreadyExists):  # by another replica
        try:
            await store.get(kinds.DEVICE_CLASS, flavor_claim.CLASS)  # it may have been edited
        except NotFound:
            await store.create(kinds.DEVICE_CLASS, flavor_claim.device_class())
        try:
            await store.patch(kinds.CONFIG_MAP, meta["name"], {"data": wanted["data"]}, meta["namespace"])
        except NotFound:
            await store.create(kinds.CONFIG_MAP, wanted)


class Replica:
    """One of several controllers: waits for the Lease, works while it holds it."""

    def __init__(self, process: RoleProcess, store: Kube, leases: Kube) -> None:
        """`leases`: a client for the Lease alone, which is renewed while the API server refuses other requests."""
        self._process, self._store = process, store
        settings = process.settings
        holder = f"{socket.gethostname()}_{uuid.uuid4()}"
        terms = Terms(settings.lease_duration, settings.renew_deadline, settings.retry_period)
        self.election = LeaderElection(leases, kinds.LEASE, settings.namespace, LEASE, holder, clock=process.clock, terms=terms,
                                       annotations={kinds.VERSION_ANNOTATION: outfitter.__version__})
        self.leading = False
        self.synced = False  # the informers have their first lists

    def wire(self) -> tuple[ControllerContext, ControllerManager]:
        context = ControllerContext(self._store, clock=self._process.clock, component="outfitter-controller",
                                    selectors=SELECTORS)
        settings = self._process.settings
        launcher = LauncherSettings(settings.launcher_image, settings.launcher_pull_policy, settings.launcher_hypervisor,
                                    settings.launcher_kvm_resource)
        controllers = cluster_controllers(context, self._process.config, launcher, companion=settings.companion)
        unreadable = UnreadableObjects(context.informers, context.events, clock=context.clock)
        manager = ControllerManager(context, [*controllers, unreadable])
        self._process.metrics = Metrics(
            manager, context, {}, leader=lambda: self.leading, limiter=self._store.limiter).text
        return context, manager

    async def work(self) -> None:
        """The controllers, from new caches, until cancelled."""
        _, manager = self.wire()
        self.leading = True
        try:
            await announce(self._store, self._process.config)
            await manager.start()
            self.synced = True
            log.info("the controllers run")
            spare_the_collector()
            await self._process.stop.wait()
        finally:
            self.leading = self.synced = False
            await manager.stop()
            gc.unfreeze()  # the caches are garbage now

    async def run(self) -> None:
        try:
            held = await self.election.acquire()
        except NotFound as error:
            namespace = self._process.settings.namespace
            raise StartupRefused(f"the Lease {LEASE} cannot be created, as there is no namespace {namespace}: outfit install "
                                 "--apply creates it, or set --namespace") from error
        if not held and not self._process.settings.leader_elect:
            await self._take_or_refuse()
        self._process.ready("waiting for the Lease" if self._process.settings.leader_elect else "without leader election")
        try:
            while not self._process.stop.is_set():
                await self.election.hold(self.work)
                if not self._process.settings.leader_elect and not self._process.stop.is_set():
                    raise StartupRefused(f"the Lease {LEASE} was lost, and this controller runs without leader election: "
                                         "another has started, or the API server was away; start it with --leader-elect")
        finally:
            await self.election.release()

    async def _take_or_refuse(self) -> None:
        """Take the Lease, or wait until it is not renewed any more: a holder that renews it is another controller."""
        while not await self.election.acquire():
            if self.election.renewed_by_other:
                raise StartupRefused(f"{self.election.renewed_by_other} runs the controllers (it renews the Lease {LEASE}), "
                                     "and two without leader election would work against each other: start both with "
                                     "--leader-elect, or stop the other")
            await self._process.clock.sleep(self._process.settings.retry_period)


async def run(process: RoleProcess) -> None:
    async with process.connect() as store, process.connect() as leases:
        replica = Replica(process, store, leases)
        context, _ = replica.wire()
        await check_cluster(store, "controller", rights(context.informers, process.settings.namespace,
                                                        COMPANION_WRITES if process.settings.companion else WRITES))
        process.ready_checks["informers-synced"] = lambda: replica.synced or not replica.leading
        work, stopped = asyncio.create_task(replica.run()), asyncio.create_task(process.stop.wait())
        try:
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            for task in (work, stopped):
                task.cancel()
            await asyncio.gather(work, stopped, return_exceptions=True)


def rights(watched: Iterable[Kind], namespace: str, writes: Iterable[Right] = WRITES) -> list[Right]:
    lease = [Right(verb, kinds.LEASE, namespace=namespace, name=LEASE) for verb in ("get", "update")]
    return [*reads(watched), *writes, Right("create", kinds.LEASE, namespace=namespace), *lease]
