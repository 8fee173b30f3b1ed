"""Drives the launchers of a host whose pods a kubelet runs: `pod_runtime.PodRuntime` for a cluster.

The kubelet prepares devices (through the DRA driver), runs the containers and writes the pod's status; the launcher's end is
the container's end. The agent waits until the pod runs, has its launcher start the domain, reports the VMI as Running, carries
out action requests and migrates it (`vmi_migrations.py`). It writes nothing to the pod."""

from __future__ import annotations

from outfitter.api import conditions, kinds, rejection
from outfitter.api.conditions import Condition
from outfitter.api.hypervisor import Domain, Paused
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import failed_launches, migration, vm
from outfitter.api.launcher.launcher_protocol import StartVmi
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text import render
from outfitter.errors import HypervisorAway, HypervisorError, NotReady, StartFailed
from outfitter.node import networks, status_reporter
from outfitter.node.agent_host import AgentHost
from outfitter.node.launchers import Launchers
from outfitter.node.nic_hotplug import NicSync, PodNics
from outfitter.node.pods.launcher_request import LauncherRequests
from outfitter.node.pods.pod_cache import PodCache, vmi_runs
from outfitter.node.pods.vmi_arrivals import KubeletArrivals
from outfitter.node.pods.vmi_migrations import VmiMigrations
from outfitter.node.status_reporter import StatusReporter
from outfitter.node.vmi_actions import VmiActions
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.events.event_recorder import EventRecorder
from outfitter.store.informer import key_of

LAUNCHER_PATIENCE = 10.0  # seconds for which a launcher may be away, as while its container starts, before that is reported
LAUNCHER_READY = "LauncherReady"  # condition of a VMI, while its launcher cannot be reached or cannot start it
FOLLOW_AFTER = 5.0  # seconds after which the VMI of a pod that runs is looked for on other nodes
AGAIN = 0.25  # seconds after which a launcher that does not listen yet is tried again


class KubeletPods:
    def __init__(self, store: Store, cache: PodCache, launchers: Launchers, *, clock: Clock, events: EventRecorder) -> None:
        self._store, self._cache, self._launchers, self._clock = store, cache, launchers, clock
        self._report = _KubeletStatusReporter(store, clock=clock, events=events)
        self._actions = VmiActions(store, self._report, clock=clock)
        self._requests = LauncherRequests(store)
        self._nics = NicSync(PodNics(launchers, self._requests), self._report, clock=clock)
        self._arrivals = KubeletArrivals(launchers, self._requests)
        self._migrations = VmiMigrations(store, cache, self._report, self._arrivals, clock=clock)
        self._vmi_seen: set[str] = set()  # pods whose VMI was on this node
        self._without_vmi: dict[str, float] = {}  # pod -> since when it runs and no VMI of this node does in it, monotonic
        self._starting: set[str] = set()  # VMIs whose domains are being started
        self._away: dict[str, float] = {}  # pod -> since when its launcher does not answer, monotonic
        self._shutdown_requested: set[str] = set()  # pods whose guests were asked to shut down

    async def offer_devices(self, host: AgentHost) -> float | None:
        """The kubelet does that."""
        return None

    def starts(self, uid: str) -> bool:
        return uid in self._starting

    def forget(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        self._away.pop(uid, None)
        self._shutdown_requested.discard(uid)
        self._vmi_seen.discard(uid)
        self._unfollow(pod)
        self._arrivals.ended(pod, arrived=False)
        self._launchers.forget(uid)
        self._nics.forget((vm.owner(pod, kinds.VMI.kind) or {}).get("uid", ""))

    async def waiting(self, pod: Object, why: Rejection, reason: str) -> None:
        if (instance := self._cache.vmi(pod)) is not None:
            await self._report.vmi_waits(instance, why, reason)

    async def sweep(self, host: AgentHost) -> float | None:
        """A launcher without a pod object is the kubelet's to kill."""
        return None

    async def end(self, host: AgentHost, pod: Object) -> float | None:
        """The kubelet sends SIGTERM; a user may have given the guest another grace period, which only the pod has."""
        vmi, uid = self._cache.vmi_uid(pod), pod["metadata"]["uid"]
        if (arriving := self._migrations.arriving(pod)) is not None:
            if pod["status"].get("phase") in vm.FINAL:
                self._arrivals.ended(pod, arrived=False)
            elif await self._migrations.end_target(host, pod, arriving):
                return 0.0  # it runs here, in a pod that ends
            return None
        grace = pod["metadata"].get("deletionGracePeriodSeconds")
        if vmi is None or not grace or uid in self._shutdown_requested:
            return None
        self._launchers.assign(vmi, uid)
        try:
            left = await self._launchers.stop(vmi, float(grace))
        except (HypervisorAway, HypervisorError):
            return None  # it ends, or has started nothing
        if left is not None:
            self._shutdown_requested.add(uid)
            await self._report.shutting_down(pod, grace)
        return None

    async def run(self, host: AgentHost, pod: Object, instance: Object | None) -> float | None:
        if pod["status"].get("phase") != "Running":
            return None  # a watch update of the pod brings it back
        uid = pod["metadata"]["uid"]
        try:
            if instance is None or self._cache.instances.get(key_of(instance)) is None:
                again = await self._elsewhere(host, pod)
            elif instance["metadata"].get("deletionTimestamp"):
                return None
            else:
                self._vmi_seen.add(uid)
                self._unfollow(pod)
                self._launchers.assign(instance["metadata"]["uid"], uid)
                again = await self._sync(host, pod, instance)
        except HypervisorAway:
            since = self._away.setdefault(uid, self._clock.monotonic())
            if self._clock.monotonic() - since < LAUNCHER_PATIENCE:
                return AGAIN
            raise
        self._away.pop(uid, None)
        return again

    # -- pods whose VMI is on another node

    async def _elsewhere(self, host: AgentHost, pod: Object) -> float | None:
        """It may arrive here, or has left; or its status does not have this node yet."""
        key, uid = vm.launches(pod), pod["metadata"]["uid"]
        if key is None or self._cache.followed is None:
            return None
        now = self._clock.monotonic()
        waited = now - self._without_vmi.setdefault(uid, now)
        if not migration.job_uid(pod) and uid not in self._vmi_seen and waited < FOLLOW_AFTER:
            return FOLLOW_AFTER - waited
        self._cache.followed.follow(uid, key)
        if (arriving := self._migrations.arriving(pod)) is not None:
            self._launchers.assign(arriving["metadata"]["uid"], uid)
            return await self._migrations.run_target(host, pod, arriving)
        if (departed := self._migrations.departed(pod)) is not None:
            return await self._launchers.end_source(uid, departed["metadata"]["uid"])
        return None  # a watch update of the VMI brings it back

    def _unfollow(self, pod: Object) -> None:
        self._without_vmi.pop(pod["metadata"]["uid"], None)
        if self._cache.followed is not None:
            self._cache.followed.release(pod["metadata"]["uid"])

    # -- pods whose VMI is on this node

    async def _sync(self, host: AgentHost, pod: Object, instance: Object) -> float | None:
        if (instance.get("status") or {}).get("phase") == "Scheduled":
            return await self._start(host, pod, instance)
        return await self._sync_running(host, pod, instance) if vmi_runs(instance) else None

    async def _sync_running(self, host: AgentHost, pod: Object, instance: Object) -> float | None:
        """A VMI that is reported as Running. Its launcher ends with its domain, and the kubelet reports that."""
        if (departed := self._migrations.departed(pod)) is not None:  # and came back, into another pod
            return await self._launchers.end_source(pod["metadata"]["uid"], departed["metadata"]["uid"])
        state = await self._launchers.state(instance["metadata"]["uid"])
        if migration.is_source(instance, host.name):
            domain = state.domain.to_domain() if state.domain is not None else None
            left, again = await self._migrations.run_source(host, pod, instance, domain)
            if left or domain is not None:
                return again  # nothing else is done to a VM that is to leave
            if migration.state(instance).get("sourceDomainLeft"):  # and it was lost: its launcher waits for the agent
                return await self._launchers.end_source(pod["metadata"]["uid"], instance["metadata"]["uid"])
        if state.domain is not None:
            instance = await self._report.vmi_waits_no_more(instance)
            await self._migrations.resume(host, instance, state.domain.to_domain())
            await self._actions.carry_out(host, pod, instance, state.domain.to_domain())
            return await self._nics.sync(host, pod, instance, state.domain.to_domain())
        return None

    async def _start(self, host: AgentHost, pod: Object, instance: Object) -> float | None:
        if not await self._requests.settled(pod, instance):
            return None  # the watch update of the status wakes the pod
        try:
            request, wires = await self._requests.of(host, pod, instance)
        except NotReady as error:
            why = rejection.of_error(error, RejectionCode.NETWORK_NOT_READY)
            await self._report.vmi_waits(instance, why, status_reporter.FAILED_NETWORKS)
            return 1.0
        try:
            domain = await self._start_domain(request)
        except StartFailed as error:  # of the VMI, on whichever host: its launcher ends, and the pod fails
            await self._report.start_failed(
                pod, rejection.of_error(error, RejectionCode.DOMAIN_INVALID), status_reporter.SYNC_FAILED)
            return None
        except HypervisorError as error:  # of this host
            await self._report.start_failed(
                pod, rejection.of_error(error, RejectionCode.HYPERVISOR_REFUSED), failed_launches.START_FAILED)
            return None
        if domain is None:
            return None  # it has ended already
        interfaces = networks.statuses(instance, {wire.network: wire for wire in wires})
        started = await self._report.vmi_running(instance, host.name, domain.paused, interfaces)
        self._cache.put(kinds.VMI, started)
        return await self._sync_running(host, pod, started)

    async def _start_domain(self, request: StartVmi) -> Domain | None:
        uid = request.vmi["metadata"]["uid"]
        self._starting.add(uid)
        try:
            return await self._launchers.start_vmi(request)
        finally:
            self._starting.discard(uid)


class _KubeletStatusReporter(StatusReporter):
    """Writes nothing to pods, which are the kubelet's: why a VMI waits is a condition of the VMI."""

    async def vmi_waits(self, instance: Object, why: Rejection, reason: str) -> None:
        text, now = render(why), rfc3339(self._clock.now())
        wanted = Condition(LAUNCHER_READY, False, str(why.code), text)
        have = instance["status"].get("conditions")
        if (conditions.find(instance, LAUNCHER_READY) or {}).get("message") != text:
            await self._patch_instance(instance, {"conditions": conditions.with_condition(have, wanted, now)})
            await self._events.warning(instance, reason, text)

    async def vmi_waits_no_more(self, instance: Object) -> Object:
        """The VMI as it is then."""
        if conditions.find(instance, LAUNCHER_READY) is None:
            return instance
        have = conditions.without_condition(instance["status"].get("conditions"), LAUNCHER_READY)
        return await self._patch_instance(instance, {"conditions": have})

    async def start_failed(self, pod: Object, why: Rejection, reason: str) -> None:
        """Its launcher ends, and the VMI controller reports that."""
        await self._events.warning(status_reporter.subject(pod), reason, render(why))

    async def pod_paused(self, pod: Object, paused: Paused | None) -> Object:
        """The VMI controller writes the readiness gate."""
        return pod
