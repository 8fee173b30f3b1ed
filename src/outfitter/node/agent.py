"""The agent of one host or, in embedded mode, of all simulated ones: runs the pods that are bound to its hosts.

A launcher pod: prepare its devices (the page is the exclusive check), report the pod as Running, wait until the VMI's status
contains its devices, start the domain, report the VMI as Running. The end is the reverse: stop the domain, unprepare and
release the devices, delete the pod. Every step may be repeated; a step that was done before a crash is found done."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator

from outfitter.api import kinds, rejection
from outfitter.api.hypervisor import Builder, Domain
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_status, failed_launches, pod_claims, vm
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.validate.readable import UnreadableObject
from outfitter.errors import HypervisorAway, HypervisorError, NotFound, NotReady, StartFailed
from outfitter.node import networks, secrets, status_reporter, watch_filter
from outfitter.node.agent_host import AgentHost
from outfitter.node.claim_bookings import ClaimBookings
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.domain_builder import DomainBuilder
from outfitter.node.networks import Networks
from outfitter.node.pod_preparation import PodPreparation, Unprepared
from outfitter.node.status_reporter import StatusReporter
from outfitter.node.vmi_actions import VmiActions
from outfitter.store.base import Store
from outfitter.store.clock import Clock
from outfitter.store.event_recorder import EventRecorder
from outfitter.store.informer import Informer, key_of
from outfitter.store.workqueue import WorkQueue

log = logging.getLogger(__name__)
SWEEP = "host|"  # a key of this form: stop and release what no pod of the host uses


class Agent:
    name = "node"
    kind = kinds.POD  # of its keys

    def __init__(
        self,
        store: Store,
        hosts: Iterable[AgentHost],
        *,
        build: Builder,
        preparation: ClaimPreparation,
        pods: Informer[Object],
        instances: Informer[Object],
        claims: Informer[Object],
        pages: Informer[Object],
        clock: Clock,
        events: EventRecorder,
        audit: Callable[[str], None],
    ) -> None:
        """`audit` has a host audited soon."""
        self._store, self._preparation = store, preparation
        self._report = StatusReporter(store, clock=clock, events=events)
        self._networks = Networks(store, self._claim)
        self._domains = DomainBuilder(store, build, preparation, self._networks, self._claim)
        self._actions = VmiActions(store, self._report, clock=clock)
        self._bookings = ClaimBookings(store, preparation, pages, clock=clock)
        self._devices = PodPreparation(self._bookings, preparation, self._claim, clock=clock, audit=audit)
        self.hosts = {host.name: host for host in hosts}
        self.queue = WorkQueue(clock, age=pods.age)
        self._pods, self._instances, self._claims = pods, instances, claims
        self._written: dict[str, str] = {}  # pod or VMI -> the revision at which this process wrote that it runs
        self._starting: set[str] = set()  # VMIs whose domains are being started
        self._shutdown_requested: set[str] = set()  # pods whose guests were asked to shut down
        pods.add_index("node", lambda pod: [pod["spec"].get("nodeName") or ""])
        pods.add_index("instance", lambda pod: [vm.launches(pod) or ""])
        pods.add_index("claim", pod_claims.claim_keys)
        instances.add_index("uid", lambda instance: [instance["metadata"]["uid"]])
        pods.on_change(self._pod_changed)
        instances.on_change(self._vmi_changed)
        claims.on_change(self._claim_changed)
        pages.on_change(self._page_changed)
        for name, host in self.hosts.items():
            host.hypervisor.on_change(functools.partial(self._domain_changed, name))
            self.queue.add(SWEEP + name)

    # -- which watch update wakes which pod

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        node = pod["spec"].get("nodeName")
        if new is None:
            self._devices.forget(pod["metadata"]["uid"])
            self._shutdown_requested.discard(pod["metadata"]["uid"])
            self._written.pop(pod["metadata"]["uid"], None)
            self._networks.forget(pod)
        if node not in self.hosts:
            return
        if new is None:
            self.queue.add(SWEEP + node)
        elif not self._wrote(new) and watch_filter.pod_changed(old, new):
            self.queue.add(key_of(new))

    def _wrote(self, obj: Object) -> bool:
        """Whether a pod or VMI is as this process wrote it, in a reconcile that went on with it."""
        return bool(self._written.get(obj["metadata"]["uid"]) == obj["metadata"]["resourceVersion"])

    def _vmi_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            self._written.pop(old["metadata"]["uid"], None)
        if (new is not None and self._wrote(new)) or not watch_filter.vmi_changed(old, new):
            return
        for pod in self._pods.by("instance", key_of(new or old or {})):
            if pod["spec"].get("nodeName") in self.hosts:
                self.queue.add(key_of(pod))

    def _claim_changed(self, old: Object | None, new: Object | None) -> None:
        """A claim was seen after the pod that uses it."""
        self._requeue_pending(self._pods.by("claim", key_of(new or old or {})))

    def _page_changed(self, old: Object | None, new: Object | None) -> None:
        """A claim got a booking after its pod was bound, or a device was released for which a pod waits."""
        name = (new or old or {})["metadata"]["name"]
        if name not in self.hosts:
            return
        for claim in watch_filter.newly_booked(old, new):
            self._requeue_pending(self._pods.by("claim", claim))
        if watch_filter.released(old, new):
            self._requeue_pending(pod for pod in self._pods.by("node", name) if status_reporter.waits_for_devices(pod))

    def _domain_changed(self, name: str, uid: str) -> None:
        """A domain started, ended or was paused; without a uid, the hypervisor was away and any of them may have."""
        if uid in self._starting:
            return  # the reconcile that starts it looks at it afterwards
        for pod in self._pods.by("node", name):
            if (reference := vm.owner(pod, kinds.VMI.kind)) is not None and uid in ("", reference["uid"]):
                self.queue.add(key_of(pod))
        if not uid:
            self.queue.add(SWEEP + name)

    def _requeue_pending(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            if pod["spec"].get("nodeName") in self.hosts and (pod.get("status") or {}).get("phase") == "Pending":
                self.queue.add(key_of(pod))

    async def reconcile(self, key: str) -> float | None:
        if key.startswith(SWEEP):
            name = key.removeprefix(SWEEP)
            host = self.hosts[name]
            async with host.lock:
                await self._sweep(host)
            return None
        name = (self._pods.get(key) or {}).get("spec", {}).get("nodeName")
        if name not in self.hosts:
            return None
        async with self.hosts[name].lock:
            pod = self._pods.get(key)
            if pod is None or pod["spec"].get("nodeName") != name:
                return None
            try:
                return await self._sync(self.hosts[name], pod)
            except HypervisorAway as error:
                away = Rejection.of(RejectionCode.HYPERVISOR_AWAY, message=f"{name}: {error.message}")
                await self._report.waiting(self._pods.get(key) or pod, away, status_reporter.AWAY)
                return error.retry_after

    async def _sync(self, host: AgentHost, pod: Object) -> float | None:
        """Run a pod, or end it."""
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if pod["metadata"].get("deletionTimestamp") or phase in vm.FINAL:
            return await self._end(host, pod)
        return await self._run(host, pod)

    # -- running

    async def _run(self, host: AgentHost, pod: Object) -> float | None:
        instance_key = vm.launches(pod)
        if instance_key is None and not host.simulated:
            why = f"outfitter runs launcher pods of VMs only: other pods need a kubelet on {host.name}"
            await self._report.pod_failed(pod, "NotAMachine", why)
            return None
        instance = self._instances.get(instance_key) if instance_key else None
        if instance is not None and instance["metadata"]["uid"] != self._vmi_uid(pod):
            instance = None  # another VMI of the same name, or one that runs in another pod
        if instance is not None and pod["status"].get("phase") == "Running" and _runs(instance):
            return await self._sync_running(host, pod, instance)
        starts = instance is not None or pod["status"].get("phase") != "Running"
        if missing := (_host_refused(host) if starts else None) or await self._devices.prepare(host, pod):
            return await self._not_prepared(host, pod, missing, elsewhere=instance is not None)
        if instance is None and instance_key and pod["status"].get("phase") != "Running":
            return None  # a watch update of the VMI wakes the pod, or deletes it with the VMI
        if instance is not None and (instance.get("status") or {}).get("phase") not in ("Running", *vm.FINAL):
            try:
                pod = await self._networks.attach(host, pod, instance)
            except NotReady as error:
                network = rejection.of_error(error, RejectionCode.NETWORK_NOT_READY)
                await self._report.waiting(pod, network, status_reporter.FAILED_NETWORKS)
                return 1.0
        if pod["status"].get("phase") != "Running":
            pod = await self._report.pod_running(pod, self._prepared_devices(host, pod))
            self._written[pod["metadata"]["uid"]] = pod["metadata"]["resourceVersion"]
            self._pods.put(pod)
        elif instance is None and status_reporter.waits_for_devices(pod):
            await self._report.clear_waiting(pod)  # it runs, and nothing else has its devices any more
        if instance is None or instance["metadata"].get("deletionTimestamp"):
            return None
        if (instance.get("status") or {}).get("phase") == "Scheduled":
            return await self._start(host, pod, instance)
        return await self._sync_running(host, pod, instance) if _runs(instance) else None

    async def _sync_running(self, host: AgentHost, pod: Object, instance: Object) -> float | None:
        """A VMI that is reported as Running. That its domain ended, and action requests, do not wait for its devices: a host
        that was rebooted may be unable to prepare them."""
        uid = instance["metadata"]["uid"]
        domain = (await host.hypervisor.domains()).get(uid)
        if domain is None:
            await self._report.domain_ended(pod, host.name, (await host.hypervisor.ended()).get(uid))
            return None
        pod = await self._actions.carry_out(host, pod, instance, domain)
        if missing := await self._devices.prepare(host, pod):
            await self._report.waiting(pod, missing.rejection)
            return 1.0
        await self._report.clear_waiting(pod)
        return None

    def _prepared_devices(self, host: AgentHost, pod: Object) -> str:
        """The devices that were prepared for a pod, for its event."""
        claims = [(name, self._claim(pod["metadata"]["namespace"], name)) for _, name in pod_claims.claim_names(pod) if name]
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
        await self._report.waiting(pod, missing.rejection)
        return 1.0

    async def _start(self, host: AgentHost, pod: Object, instance: Object) -> float | None:
        if device_status.unsettled_devices(instance, pod, self._claim):
            return None  # the watch update of the status wakes the pod
        secret_files = await secrets.files(self._store, instance)
        if isinstance(secret_files, str):
            secret = Rejection.of(RejectionCode.SECRET_MISSING, message=secret_files)
            await self._report.waiting(pod, secret, status_reporter.SECRET_MISSING)
            return secrets.RETRY_AFTER
        try:
            domain = await self._domains.build(host, pod, instance, secret_files)
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
        self._written[started["metadata"]["uid"]] = started["metadata"]["resourceVersion"]
        self._instances.put(started)
        self._networks.forget(pod)
        return await self._sync_running(host, pod, started)

    async def _start_domain(self, host: AgentHost, domain: Domain) -> None:
        self._starting.add(domain.uid)
        try:
            await host.hypervisor.start(domain)
        finally:
            self._starting.discard(domain.uid)

    # -- ending

    async def _end(self, host: AgentHost, pod: Object) -> float | None:
        """Stop the domain, release what was prepared, then delete the pod object if its deletion was requested. The guest
        has the pod's grace period to shut down; the hypervisor's event, or the end of the period, wakes the pod again."""
        self._devices.forget(pod["metadata"]["uid"])
        uid = self._vmi_uid(pod)
        grace = pod["metadata"].get("deletionGracePeriodSeconds") or 0.0
        try:
            if uid is not None and (left := await host.hypervisor.stop(uid, grace)) is not None:
                if pod["metadata"]["uid"] not in self._shutdown_requested:
                    self._shutdown_requested.add(pod["metadata"]["uid"])
                    await self._report.shutting_down(pod, grace)
                return left
            released = await self._release(host, pod)
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

    async def _release(self, host: AgentHost, pod: Object) -> list[str]:
        """Release what a pod had prepared and no other pod uses: the names of these claims. NotReady: one cannot be yet."""
        others = self._claims_in_use(other for other in self._alive(host) if other["metadata"]["uid"] != pod["metadata"]["uid"])
        others |= self._claims_of_unreadable_pods(pod)
        places = [(pod["metadata"]["namespace"], claim_name or "") for _, claim_name in pod_claims.claim_names(pod)]
        return [place[1] for place in places if place not in others and await self._bookings.release(host, *place)]

    async def _sweep(self, host: AgentHost) -> None:
        """Stop and release what runs or is prepared here for pods that are gone: they were deleted while no agent was
        running."""
        if (unreadable := next(self._unreadable_pods(host), None)) is not None:
            raise unreadable.error()  # what runs here may be its
        pods = self._alive(host)
        alive = {uid for pod in pods if (uid := self._vmi_uid(pod)) is not None}
        alive |= {uid for found in self._instances.unreadable.values()
                  if isinstance(uid := found.reference()["metadata"].get("uid"), str)}
        for uid, domain in (await host.hypervisor.domains()).items():
            if uid not in alive and not domain.foreign:
                log.warning("%s: %s runs without a pod; stopping it", host.name, domain.name)
                await host.hypervisor.stop(uid)
        for uid in sorted((await host.hypervisor.ended()).keys() - alive):
            await host.hypervisor.stop(uid)
        await self._bookings.release_unused(host, self._claims_in_use(pods))
        await self._preparation.unprepare_leftovers(host)

    def _vmi_uid(self, pod: Object) -> str | None:
        """The uid of the VMI that runs in a pod. An owner reference alone proves nothing: anyone who may create pods can write
        one. A pod that was orphaned (`--cascade=orphan`) is accepted where the VMI's status names the pod."""
        reference, key = vm.owner(pod, kinds.VMI.kind), vm.launches(pod)
        if reference is None:
            uid = (pod["metadata"].get("labels") or {}).get(vm.CREATED_BY)
            named = any(instance["metadata"]["namespace"] == pod["metadata"]["namespace"]
                        and pod["metadata"]["uid"] in ((instance.get("status") or {}).get("activePods") or ())
                        for instance in self._instances.by("uid", uid or ""))
            return uid if named else None
        if key is None:
            return None
        known = self._instances.by("uid", reference["uid"])  # none: the VMI is deleted, and no other has its uid
        its = all(key_of(instance) == key and vm.is_its(pod, instance.get("status") or {}) for instance in known)
        return str(reference["uid"]) if its else None

    def _claim(self, namespace: str, name: str) -> Object | None:
        return self._claims.get(f"{namespace}/{name}")

    def _alive(self, host: AgentHost) -> list[Object]:
        return [
            pod for pod in self._pods.by("node", host.name) if (pod.get("status") or {}).get("phase") not in vm.FINAL
        ]

    def _unreadable_pods(self, host: AgentHost) -> Iterator[UnreadableObject]:
        """Pods that cannot be read and may be on the host."""
        for found in self._pods.unreadable.values():
            spec = found.object.get("spec")
            node = spec.get("nodeName") if isinstance(spec, dict) else None
            if not isinstance(node, str) or node == host.name:
                yield found

    def _claims_of_unreadable_pods(self, pod: Object) -> set[tuple[str, str]]:
        """Those of a pod's claims that are reserved for another pod too, which cannot be read."""
        namespace = pod["metadata"]["namespace"]
        claims = [(name, self._claim(namespace, name)) for _, name in pod_claims.claim_names(pod) if name]
        return {(namespace, name) for name, claim in claims if claim is not None
                for user in (claim.get("status") or {}).get("reservedFor") or ()
                if f"{namespace}/{user.get('name')}" in self._pods.unreadable}

    def _claims_in_use(self, pods: Iterable[Object]) -> set[tuple[str, str]]:
        return {(pod["metadata"]["namespace"], name) for pod in pods for _, name in pod_claims.claim_names(pod) if name}


def _host_refused(host: AgentHost) -> Unprepared | None:
    """Why a host that was refused at start starts nothing."""
    if host.refusal is None:
        return None
    return Unprepared(Rejection.of(RejectionCode.NODE_NOT_READY, message=host.refusal.message), host_failed=True)


def _runs(instance: Object) -> bool:
    """Whether a VMI is reported as Running and is not being deleted."""
    return (instance.get("status") or {}).get("phase") == "Running" and not instance["metadata"].get("deletionTimestamp")
