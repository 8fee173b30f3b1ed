"""Runs the pods of a host that has no kubelet: `pod_runtime.PodRuntime` as the agent itself.

A launcher pod: prepare its devices (the page is the exclusive check), report the pod as Running, wait until the VMI's status
contains its devices, start the domain, report the VMI as Running. The end is the reverse: stop the domain, unprepare and
release the devices, delete the pod. Every step may be repeated; a step that was done before a crash is found done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from outfitter.api import kinds, rejection
from outfitter.api.device import hardware_key
from outfitter.api.hypervisor import Builder, DeviceBuilder, Domain, NicBuilder
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, device_status, failed_launches, migration, pod_claims, vm
from outfitter.api.ledger_page.page import Page
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.errors import HypervisorError, NotFound, NotReady, StartFailed
from outfitter.ledger import book
from outfitter.node import networks, node_status, status_reporter
from outfitter.node.agent_host import AgentHost
from outfitter.node.claim_bookings import ClaimBookings
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.hotplug.device_hotplug import DeviceSync
from outfitter.node.networks import Networks
from outfitter.node.nic_hotplug import HostNics, NicSync
from outfitter.node.pods import secrets
from outfitter.node.pods.device_assignment import DeviceAssignment
from outfitter.node.pods.device_health import PodDeviceHealth
from outfitter.node.pods.domain_builder import DomainBuilder
from outfitter.node.pods.driver_claims import DriverClaims
from outfitter.node.pods.pod_cache import PodCache, claims_in_use, vmi_runs
from outfitter.node.pods.pod_preparation import PodPreparation, Unprepared
from outfitter.node.pods.vmi_arrivals import OwnArrivals
from outfitter.node.pods.vmi_migrations import VmiMigrations
from outfitter.node.pool_pages import PoolPages
from outfitter.node.status_reporter import StatusReporter
from outfitter.node.vmi_actions import VmiActions
from outfitter.store.base import Store
from outfitter.store.clock import Clock
from outfitter.store.events.event_recorder import EventRecorder
from outfitter.store.informer import Informer

log = logging.getLogger(__name__)


class OwnPods:
    def __init__(
        self,
        store: Store,
        cache: PodCache,
        *,
        build: Builder,
        build_nic: NicBuilder,
        build_device: DeviceBuilder,
        preparation: ClaimPreparation,
        pages: Informer[Object],
        clock: Clock,
        events: EventRecorder,
        audit: Callable[[str], None],
        assigned_field: bool = True,
    ) -> None:
        """`audit` has a host audited soon. `assigned_field`: the server keeps the field `assignedDevices` of containers."""
        self._store, self._cache, self._preparation = store, cache, preparation
        self._report = StatusReporter(store, clock=clock, events=events)
        self.assignment = DeviceAssignment(store, cache, self._report, pages=pages, clock=clock, field=assigned_field)
        self._networks = Networks(store, cache.claim)
        self._domains = DomainBuilder(store, build, preparation, self._networks, cache.claim)
        self._actions = VmiActions(store, self._report, clock=clock)
        self._nics = NicSync(HostNics(self._networks, cache, build_nic), self._report, clock=clock)
        self._bookings = ClaimBookings(store, preparation, PoolPages(store, pages), clock=clock)
        self._devices = PodPreparation(self._bookings, preparation, cache.claim, clock=clock, audit=audit)
        self._drivers = DriverClaims(self._devices, self._report, clock=clock)
        self._health = PodDeviceHealth(store, cache, pages.get, clock=clock, events=events)
        self._plugged = DeviceSync(store, cache, build_device, preparation=preparation, devices=self._devices,
                                   report=self._report, clock=clock)
        arrivals = OwnArrivals(store, cache, self._report, devices=self._devices, attached=self._networks,
                               domains=self._domains)
        self._migrations = VmiMigrations(store, cache, self._report, arrivals, clock=clock)
        self._starting: set[str] = set()  # VMIs whose domains are being started
        self._shutdown_requested: set[str] = set()  # pods whose guests were asked to shut down

    def starts(self, uid: str) -> bool:
        return uid in self._starting

    def forget(self, pod: Object) -> None:
        self._devices.forget(pod["metadata"]["uid"])
        self.assignment.forget(pod["metadata"]["uid"])
        self._shutdown_requested.discard(pod["metadata"]["uid"])
        self._networks.forget(pod)
        for plugged in (self._nics, self._plugged):
            plugged.forget((vm.owner(pod, kinds.VMI.kind) or {}).get("uid", ""))

    async def waiting(self, pod: Object, why: Rejection, reason: str) -> None:
        await self._report.waiting(pod, why, reason)

    async def offer_devices(self, host: AgentHost) -> float | None:
        assert host.device_manager is not None
        await node_status.offer(self._store, host.name, host.device_manager.amounts())
        for why in host.device_manager.take_problems():
            await self._report.of_node(host.name, why)
        self.assignment.save(host)
        await self._health.record_plugins(host)
        return host.device_manager.changes_after()

    # -- running

    async def run(self, host: AgentHost, pod: Object, instance: Object | None) -> float | None:
        launches = vm.launches(pod) is not None
        if not launches and not host.simulated and attachment_pods.launcher_uid(pod) is None:
            why = f"outfitter runs launcher pods of VMs only: other pods need a kubelet on {host.name}"
            await self._report.pod_failed(pod, "NotAMachine", why)
            return None
        if (arriving := self._migrations.arriving(pod)) is not None:
            return await self._migrations.run_target(host, pod, arriving)
        if (departed := self._migrations.departed(pod)) is not None:
            return await self._migrations.end_source(host, pod, departed)
        started = not launches or (instance is not None and vmi_runs(instance))
        if (waits := await self.assignment.admit(host, pod, started=started)) is not None:
            return waits.again
        if instance is not None and pod["status"].get("phase") == "Running" and vmi_runs(instance):
            return await self._sync_running(host, pod, instance)
        starts = instance is not None or pod["status"].get("phase") != "Running"
        if missing := (_host_refused(host) if starts else None) or await self._devices.prepare(host, pod):
            return await self._not_prepared(host, pod, missing, elsewhere=instance is not None)
        if instance is None and launches and pod["status"].get("phase") != "Running":
            return None  # a watch update of the VMI wakes the pod, or deletes it with the VMI
        if instance is not None and (instance.get("status") or {}).get("phase") not in ("Running", *vm.FINAL):
            try:
                pod = await self._networks.attach(host, pod, instance)
            except NotReady as error:
                network = rejection.of_error(error, RejectionCode.NETWORK_NOT_READY)
                await self._report.waiting(pod, network, status_reporter.FAILED_NETWORKS)
                return 1.0
        if pod["status"].get("phase") != "Running":
            if host.readers is not None:
                host.readers.admit(pod)
            if (waits := await self.assignment.prestart(host, pod)) is not None:
                return waits.again
            pod = await self._report.pod_running(pod, self._prepared_devices(host, pod),
                                                 resources=self._resources(host, pod))
            self._cache.put(kinds.POD, pod)
        elif instance is None and status_reporter.waits_for_devices(pod):
            await self._report.clear_waiting(pod)  # it runs, and nothing else has its devices any more
        if instance is None and not launches:
            pod = await self._report.resources_changed(pod, self._resources(host, pod))
            pod, _ = await self._health.report(host, pod, None)
            if await self._health.evict(host, pod):
                return None
        if instance is None or instance["metadata"].get("deletionTimestamp"):
            return None
        if (instance.get("status") or {}).get("phase") == "Scheduled":
            return await self._start(host, pod, instance)
        return await self._sync_running(host, pod, instance) if vmi_runs(instance) else None

    async def _sync_running(self, host: AgentHost, pod: Object, instance: Object) -> float | None:
        """A VMI that is reported as Running. That its domain ended, and action requests, do not wait for its devices: a host
        that was rebooted may be unable to prepare them."""
        uid = instance["metadata"]["uid"]
        domain = (await host.hypervisor.domains()).get(uid)
        if migration.is_source(instance, host.name):
            left, again = await self._migrations.run_source(host, pod, instance, domain)
            if left or domain is not None:
                return again  # nothing else is done to a VM that is to leave
        if domain is None:
            await self._report.domain_ended(pod, host.name, (await host.hypervisor.ended()).get(uid))
            return None
        await self._migrations.resume(host, instance, domain)
        pod = await self._actions.carry_out(host, pod, instance, domain)
        if missing := await self._devices.prepare(host, pod):
            await self._report.waiting(pod, missing.rejection)
            return 1.0
        if host.dra_manager is not None:
            pod = await self._report.resources_changed(pod, self._resources(host, pod))
        pod, instance = await self._health.report(host, pod, instance)
        if await self._health.evict(host, pod):
            return None
        await self._report.clear_waiting(pod)
        waits = [await self._nics.sync(host, pod, instance, domain),
                 await self._plugged.sync(host, pod, self._cache.vmi(pod) or instance, domain)]
        return min((each for each in waits if each is not None), default=None)

    def _resources(self, host: AgentHost, pod: Object) -> Mapping[str, Sequence[Object]]:
        return self._drivers.statuses(host, pod, self.assignment.statuses(host, pod), self._health.own(host))

    def _prepared_devices(self, host: AgentHost, pod: Object) -> str:
        """The devices that were prepared for a pod, for its event."""
        namespace = pod["metadata"]["namespace"]
        claims = [(name, self._cache.claim(namespace, name)) for _, name in pod_claims.claim_names(pod) if name]
        devices = [f"{', '.join(result['device'] for result in results)} for claim {name}"
                   for name, claim in claims if (results := pod_claims.allocation_results(claim or {}))]
        return f"Prepared on {host.name}: {'; '.join(devices)}" if devices else ""

    async def _not_prepared(
        self, host: AgentHost, pod: Object, missing: Unprepared, *, elsewhere: bool = True
    ) -> float | None:
        """Report why a pod does not run yet, or end it. `elsewhere`: another host may be tried."""
        if missing.final:
            await self._report.pod_rejected(pod, missing.rejection, status_reporter.SYNC_FAILED)
            return None  # its end releases the devices
        if elsewhere and self._devices.gives_up(host.name, pod, missing):
            await self._report.pod_rejected(pod, missing.rejection, failed_launches.PREPARE_FAILED)
            return None  # its end releases what was prepared, and the VMI is launched elsewhere
        if not self._devices.passes_soon(pod, missing):
            await self._report.waiting(pod, missing.rejection)
        return 1.0

    async def _start(self, host: AgentHost, pod: Object, instance: Object) -> float | None:
        if device_status.unsettled_devices(instance, pod, self._cache.claim):
            return None  # the watch update of the status wakes the pod
        secret_files = await secrets.files(self._store, instance)
        if isinstance(secret_files, str):
            secret = Rejection.of(RejectionCode.SECRET_MISSING, message=secret_files)
            await self._report.waiting(pod, secret, status_reporter.SECRET_MISSING)
            return secrets.RETRY_AFTER
        try:
            edits = self.assignment.launcher_edits(host, pod)
            domain = await self._domains.build(host, pod, instance, secret_files, edits)
            if missing := await self._devices.clash(host, pod, domain):
                return await self._not_prepared(host, pod, missing)
            await self._start_domain(host, domain)
        except StartFailed as error:  # of the VMI, on whichever host
            if missing := await self._devices.at_fault(host, pod, error):
                return await self._not_prepared(host, pod, missing)
            await self._report.pod_rejected(
                pod, rejection.of_error(error, RejectionCode.DOMAIN_INVALID), status_reporter.SYNC_FAILED)
            return None
        except HypervisorError as error:  # of this host
            await self._report.pod_rejected(
                pod, rejection.of_error(error, RejectionCode.HYPERVISOR_REFUSED), failed_launches.START_FAILED)
            return None
        self._devices.started(pod["metadata"]["uid"])
        interfaces = networks.statuses(instance, self._networks.of(pod))
        started = await self._report.vmi_running(instance, host.name, domain.paused, interfaces)
        self._cache.put(kinds.VMI, started)
        self._networks.forget(pod)
        return await self._sync_running(host, pod, started)

    async def _start_domain(self, host: AgentHost, domain: Domain) -> None:
        self._starting.add(domain.uid)
        try:
            await host.hypervisor.start(domain)
        finally:
            self._starting.discard(domain.uid)

    # -- ending

    async def end(self, host: AgentHost, pod: Object) -> float | None:
        """Stop the domain, release what was prepared, then delete the pod object if its deletion was requested. The guest
        has the pod's grace period to shut down; the hypervisor's event, or the end of the period, wakes the pod again."""
        self._devices.forget(pod["metadata"]["uid"])
        uid = self._cache.vmi_uid(pod)
        if (arriving := self._migrations.arriving(pod)) is not None:
            if await self._migrations.end_target(host, pod, arriving):
                return 0.0  # it runs here, in a pod that ends
            uid = None
        grace = pod["metadata"].get("deletionGracePeriodSeconds") or 0.0
        try:
            if uid is not None and (left := await host.hypervisor.stop(uid, grace)) is not None:
                if pod["metadata"]["uid"] not in self._shutdown_requested:
                    self._shutdown_requested.add(pod["metadata"]["uid"])
                    await self._report.shutting_down(pod, grace)
                return left
            if (left := await self._unplug(host, pod)) is not None:
                return left
            if (left := await self._drivers.unprepare(host, pod)) is not None:
                return left
            released = await self._release(host, pod)
            await self.assignment.release(host, pod)
        except (NotReady, HypervisorError) as error:
            await self._report.waiting(
                pod, rejection.of_error(error, RejectionCode.RELEASE_FAILED), status_reporter.FAILED_RELEASE)
            return 1.0
        if pod["metadata"].get("deletionTimestamp"):
            try:
                seen = await self._store.delete(kinds.POD, pod["metadata"]["name"], pod["metadata"]["namespace"],
                                                uid=pod["metadata"]["uid"], grace=0)
            except NotFound:
                return None  # deleted before, and reported then
            if seen["metadata"].get("finalizers"):
                if (seen.get("status") or {}).get("phase") in vm.FINAL and not released:
                    return None  # reported before, too
                await self._report.held_by_finalizers(seen, host.name)
        else:
            await self._report.clear_waiting(pod)
        if uid is not None and (released or pod["metadata"].get("deletionTimestamp")):
            await self._report.released(pod, host.name, released)
        return None

    async def _unplug(self, host: AgentHost, pod: Object) -> float | None:
        """An attachment pod that ends: the VM must not have its device any more. A number: call again after so many seconds."""
        if attachment_pods.launcher_uid(pod) is None:
            return None
        others = claims_in_use(other for other in self._cache.alive(host) if other["metadata"]["uid"] != pod["metadata"]["uid"])
        claims = {(pod["metadata"]["namespace"], name or "") for _, name in pod_claims.claim_names(pod)} - others
        kept = await self._unplug_held(host, lambda claim: claim in claims)
        return min(kept.values(), default=None)

    async def _release(self, host: AgentHost, pod: Object) -> list[str]:
        """Release what a pod had prepared and no other pod uses: the names of these claims. NotReady: one cannot be yet."""
        others = claims_in_use(other for other in self._cache.alive(host) if other["metadata"]["uid"] != pod["metadata"]["uid"])
        others |= self._cache.claims_of_unreadable_pods(pod)
        places = [(pod["metadata"]["namespace"], claim_name or "") for _, claim_name in pod_claims.claim_names(pod)]
        return [place[1] for place in places if place not in others and await self._bookings.release(host, *place)]

    async def sweep(self, host: AgentHost) -> float | None:
        """Stop and release what runs or is prepared here for pods that are gone: they were deleted while no agent was
        running."""
        if (unreadable := next(self._cache.unreadable(host), None)) is not None:
            raise unreadable.error()  # what runs here may be its
        pods = self._cache.alive(host)
        alive = {uid for pod in pods if (uid := self._cache.vmi_uid(pod)) is not None}
        alive |= {uid for found in self._cache.instances.unreadable.values()
                  if isinstance(uid := found.reference()["metadata"].get("uid"), str)}
        for uid, domain in (await host.hypervisor.domains()).items():
            if uid not in alive and not domain.foreign:
                log.warning("%s: %s runs without a pod; stopping it", host.name, domain.name)
                await host.hypervisor.stop(uid)
        arriving = {vmi["metadata"]["uid"] for pod in pods if (vmi := self._migrations.arriving(pod)) is not None}
        for uid in sorted(await host.hypervisor.incoming() - arriving - alive):
            await host.hypervisor.cancel_incoming(uid)
        for uid in sorted((await host.hypervisor.ended()).keys() - alive):
            await host.hypervisor.stop(uid)
        used, page = claims_in_use(pods), await book.read(self._store, host.name)
        kept = await self._unplug_held(host, lambda claim: claim not in used, page)
        unprepared, again = self._drivers.sweep(host, pods)
        await self._bookings.release_unused(host, used | kept.keys() | unprepared, page)
        await self.assignment.release_unused(host, pods, page)
        await self._preparation.unprepare_leftovers(host)
        return min([*kept.values(), *([again] if again is not None else [])], default=None)

    async def _unplug_held(
        self, host: AgentHost, gone: Callable[[tuple[str, str]], bool], known: Page | None = None
    ) -> dict[tuple[str, str], float]:
        """Unplug NICs and devices that belong to a claim that is `gone`, as their attachment pod is. The claims of those that
        the guest has not released, and when to ask again. The page counts, as it was just read (`known`) or is read now: a new
        process knows no more."""
        domains = (await host.hypervisor.domains()).values()
        plugged = [(domain.uid, nic.alias, nic.address) for domain in domains for nic in domain.nics if nic.address]
        plugged += [(domain.uid, device.alias, device.source) for domain in domains for device in domain.host_devices]
        kept: dict[tuple[str, str], float] = {}
        for booking in (known or await book.read(self._store, host.name)).bookings if plugged else ():
            claim = (booking.holder.namespace, booking.holder.name)
            for uid, alias, place in plugged:
                if gone(claim) and booking.state == "prepared" and hardware_key(place) in booking.hardware and (
                        left := await host.hypervisor.detach_device(uid, alias)) is not None:
                    kept[claim] = left
        return kept


def _host_refused(host: AgentHost) -> Unprepared | None:
    """Why a host that was refused at start starts nothing."""
    if host.refusal is None:
        return None
    return Unprepared(Rejection.of(RejectionCode.NODE_NOT_READY, message=host.refusal.message), host_failed=True)
