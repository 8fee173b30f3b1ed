"""The node agent's part of live migrations: on the target it prepares and reports the arrival, on the source it copies, aborts
and reports a failure. Called by who runs the pods of the host, with the host's lock; every call may be repeated.

Who writes what: `api.kubevirt.migration`. The VMI runs where its status.nodeName says, which changes in one write when the
target's agent sees the domain run there. Until then the source's agent reports neither the end of a domain that has left by a
migration, nor a failure while it is stopped here for one: only the target knows whether it arrived."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.hypervisor import Domain, MigrationJob, MigrationLimits, MigrationTarget
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import kubevirt_config, migration, network_info, vm
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.api.quantity import to_int
from outfitter.api.rejection import RejectionCode
from outfitter.errors import HypervisorAway, HypervisorError, NotFound, NotReady, StartFailed
from outfitter.node import networks, nic_plan
from outfitter.node.agent_host import AgentHost
from outfitter.node.hotplug import device_plan
from outfitter.node.pods.pod_cache import PodCache, vmi_runs
from outfitter.node.pods.vmi_arrivals import VmiArrivals
from outfitter.node.status_reporter import StatusReporter
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339

log = logging.getLogger(__name__)
POLL = 0.5  # seconds between two looks at a copy
PROGRESS_EVERY = 5.0  # seconds between two writes of its progress
REACH_PATIENCE = 30.0  # seconds for the target's agent to accept connections
LEFT_PATIENCE = 10.0  # seconds for the target's agent to report what has left the source
ABORT_PATIENCE = 10.0  # seconds for the hypervisor to end a copy
GIB = 1 << 30
BRIDGE = "bridge/"  # in targetSources, before the alias of a NIC
PRIMARY = "eth0"  # the interface of a pod on the pod network
# Codes of failures, beside those of `controllers.migrations.migration_phase`.
COPY_FAILED, COPY_LOST, NO_PROGRESS, TOO_SLOW = "CopyFailed", "CopyLost", "NoProgress", "CompletionTimeout"
TARGET_REFUSED, NOT_ARRIVED, CANCELLED = "TargetRefused", "NotArrived", "Cancelled"
NIC_NOT_RELEASED, TARGET_UNREACHABLE = "NicNotReleased", "TargetUnreachable"
DEVICE_KEPT = str(RejectionCode.DEVICE_KEPT_BY_GUEST)


class VmiMigrations:
    def __init__(
        self, store: Store, cache: PodCache, report: StatusReporter, arrivals: VmiArrivals, *, clock: Clock
    ) -> None:
        self._store, self._cache, self._report, self._arrivals, self._clock = store, cache, report, arrivals, clock
        self._begun: set[str] = set()  # migrations whose copy this process began
        self._detaching: dict[str, float] = {}  # migrations whose guest is asked to release devices -> since when, monotonic
        self._unreached: dict[str, float] = {}  # migrations whose target's agent cannot be reached -> since when, monotonic
        self._left: dict[str, float] = {}  # migrations whose domain has left this host -> since when, monotonic
        self._aborted: dict[str, tuple[str, str]] = {}  # migrations that took too long and are being aborted -> code, message
        self._aborting: dict[str, float] = {}  # migrations whose copy is to end -> since when, monotonic
        self._progress: dict[str, tuple[float, float, float]] = {}  # -> least remaining, since when, time of the last write

    # -- which part a pod has

    def arriving(self, pod: Object) -> Object | None:
        """The VMI that may arrive in a pod by a migration; None for a pod that runs its VMI, and for other pods."""
        vmi, job_uid = self._cache.vmi_named(pod), migration.job_uid(pod)
        if vmi is None or not job_uid or self._runs_here(vmi, pod):
            return None
        if migration.under_way(vmi) and migration.state(vmi)["migrationUid"] != job_uid:
            return None  # of an earlier migration
        return None if self._was_source(vmi, pod) else vmi

    def departed(self, pod: Object) -> Object | None:
        """The VMI that has left a pod by a migration."""
        vmi = self._cache.vmi_named(pod)
        if vmi is None or self._runs_here(vmi, pod) or not (vmi.get("status") or {}).get("nodeName"):
            return None
        return vmi if self._was_source(vmi, pod) else None

    def _runs_here(self, vmi: Object, pod: Object) -> bool:
        status = vmi.get("status") or {}
        active = status.get("activePods") or {}
        here = status.get("nodeName") in (None, pod["spec"].get("nodeName"))
        return here and (not active or pod["metadata"]["uid"] in active)

    def _was_source(self, vmi: Object, pod: Object) -> bool:
        """Whether a migration away from a pod has succeeded."""
        record = migration.state(vmi)
        return bool(record.get("completed")) and not record.get("failed") and (
            record.get("sourcePod") == pod["metadata"]["name"]
            and pod["metadata"]["uid"] not in ((vmi.get("status") or {}).get("activePods") or ()))

    # -- target

    async def run_target(self, host: AgentHost, pod: Object, vmi: Object) -> float | None:
        """Have the pod run; after the hand-over, be ready and report the arrival."""
        if not vmi_runs(vmi):
            return None
        running = await self._arrivals.pod_runs(host, pod)
        if not isinstance(running, dict):
            return running
        if not migration.is_target(vmi, running):
            if migration.state(vmi).get("migrationUid") == migration.job_uid(pod):
                self._arrivals.ended(pod, arrived=False)  # it has failed
            return None  # the hand-over wakes it
        return await self._receive(host, running, vmi)

    async def _receive(self, host: AgentHost, pod: Object, vmi: Object) -> float | None:
        record, domain = migration.state(vmi), await self._arrived(host, vmi)
        if domain is not None:
            await self._complete(host, pod, vmi, domain)
            return None
        if record.get("sourceDomainLeft") and vmi["metadata"]["uid"] not in await host.hypervisor.domains():
            why = f"the VM left {record.get('sourceNode')} and does not run on {host.name}"
            await self._fail(vmi, NOT_ARRIVED, why)
            return None
        known = record.get("targetNodeAddress") and record.get("targetCertificate", "") == self._arrivals.certificate
        if not known and not record.get("abortRequested"):
            return await self._prepare(host, pod, vmi)
        try:
            self._arrivals.admit(pod, vmi)
        except HypervisorError as error:
            await self._fail(vmi, TARGET_REFUSED, f"{host.name}: {error.message}")
            return None
        return POLL if record.get("startTimestamp") else None

    async def _prepare(self, host: AgentHost, pod: Object, vmi: Object) -> float | None:
        try:
            target = await self._arrivals.prepare(host, pod, vmi)
        except (StartFailed, HypervisorError, NotReady) as error:
            await self._fail(vmi, TARGET_REFUSED, f"{host.name}: {error.message}")
            return None
        change: Object = {"targetNodeAddress": target.address}
        if target.certificate:  # of another process, if this one was restarted
            change["targetCertificate"] = target.certificate
        sources = {"drive": target.drive, "driver": target.driver,
                   **{f"{BRIDGE}{alias}": bridge for alias, bridge in target.bridges.items()}}
        if any(sources.values()):
            change["targetSources"] = {name: value for name, value in sources.items() if value}
        await self._patch(vmi, {"migrationState": change})
        return POLL

    async def _arrived(self, host: AgentHost, vmi: Object) -> Domain | None:
        domain = (await host.hypervisor.domains()).get(vmi["metadata"]["uid"])
        return domain if domain is not None and not domain.migrating and not domain.foreign else None

    async def _complete(self, host: AgentHost, pod: Object, vmi: Object, domain: Domain) -> None:
        """The VMI runs here: in one write."""
        now, uid, record = rfc3339(self._clock.now()), pod["metadata"]["uid"], migration.state(vmi)
        others = dict.fromkeys((vmi["status"].get("activePods") or {}).keys() - {uid})
        done = {"completed": True, "failed": None, "endTimestamp": now, "targetNodeDomainReadyTimestamp": now,
                "targetNodeDomainDetected": True, "sourceDomainLeft": None}
        if record.get("abortRequested") or record.get("abortStatus") == migration.ABORTING:
            done["abortStatus"] = "Failed"  # it came too late
        more: Object = migration.arrived_devices(vmi)
        names = [str(entry["name"]) for entry in network_info.interfaces(vmi)]
        nics = nic_plan.named(domain.nics, names)
        interfaces = nic_plan.arrived(networks.statuses(vmi, await self._arrivals.wires(host, pod, vmi)), nics)
        known = {network["name"]: PRIMARY for network in network_info.networks(vmi) if network.get("pod") is not None}
        interfaces = [{**entry, "podInterfaceName": name} if "podInterfaceName" not in entry and (
            name := known.get(entry["name"])) else entry for entry in interfaces]
        if conditions.find(vmi, migration.MIGRATION_REQUIRED) is not None:  # the migration controller would, in a further write
            have = conditions.without_condition(vmi["status"].get("conditions"), migration.MIGRATION_REQUIRED)
            more["conditions"] = have
        fresh = await self._patch(vmi, {
            **more, "nodeName": host.name, "activePods": {**others, uid: host.name}, "migrationState": done,
            **({"interfaces": interfaces} if interfaces else {})})
        self._arrivals.ended(pod, arrived=True)
        await self._report.action_done(fresh, "Migrated", f"The VirtualMachineInstance migrated to node {host.name} from "
                                                          f"{record.get('sourceNode')}")

    async def end_target(self, host: AgentHost, pod: Object, vmi: Object) -> bool:
        """A target's pod ends. Whether the VMI runs here in spite of it: the domain arrived before."""
        uid = vmi["metadata"]["uid"]
        if migration.is_target(vmi, pod) and vmi_runs(vmi) and (domain := await self._arrived(host, vmi)) is not None:
            await self._complete(host, pod, vmi, domain)
            return True
        self._arrivals.ended(pod, arrived=False)
        if vmi["status"].get("nodeName") == host.name and vmi_runs(vmi):
            return False  # it came by a later migration: its domain here, stopped or not, is the VM
        await host.hypervisor.cancel_incoming(uid)
        if not vmi_runs(vmi) or (migration.state(vmi).get("completed") and (vmi["status"].get("nodeName") != host.name)):
            await host.hypervisor.stop(uid)  # of a VM that has ended, or a copy that the source knows nothing of
        return False

    # -- source

    async def run_source(self, host: AgentHost, pod: Object, vmi: Object, domain: Domain | None) -> tuple[bool, float | None]:
        """Of a VMI that is to leave this host: whether its domain may be absent, and when to look again."""
        record = migration.state(vmi)
        job_uid, started = str(record["migrationUid"]), bool(record.get("startTimestamp"))
        if domain is None:
            if not started or (await host.hypervisor.ended()).get(vmi["metadata"]["uid"]) is not None:
                return False, None  # it ended by itself
            if record.get("sourceDomainLeft") and await self._target_has_ended(vmi):
                return False, None  # it was lost with the target
            return True, await self._has_left(vmi, job_uid)
        self._left.pop(job_uid, None)
        if not started and record.get("abortRequested"):
            await self._fail(vmi, CANCELLED, "it was cancelled", abortStatus="Succeeded")
            return False, None
        if not record.get("targetNodeAddress"):
            return False, None  # the target's agent wakes it
        begin: Object = {} if started else {"startTimestamp": rfc3339(self._clock.now())}
        if (certificate := self._arrivals.certificate) and record.get("sourceCertificate") != certificate:
            begin["sourceCertificate"] = certificate
        if begin:  # with the first write the devices that are reattached are marked, before the guest is asked for them
            more = {} if started else migration.asked_for(vmi, pod["metadata"]["name"])
            vmi = await self._patch(vmi, {"migrationState": begin, **more})
        if not started:
            await self._report.action_done(vmi, "Migrating", f"VirtualMachineInstance is migrating to {record['targetNode']}.")
        return False, await self._copy(host, vmi, job_uid)

    async def _copy(self, host: AgentHost, vmi: Object, job_uid: str) -> float | None:
        uid, record, hypervisor = vmi["metadata"]["uid"], migration.state(vmi), host.hypervisor
        try:
            job = await hypervisor.migration(uid)
        except HypervisorAway:
            if record.get("abortRequested") or job_uid in self._aborted:
                await self._not_ended(vmi, job_uid)
            raise
        if job is None or job.failed:
            if (domain := (await hypervisor.domains()).get(uid)) is None:
                return POLL  # it has just left
            if domain.migrating:  # stopped, and the target may run it: the target's agent decides
                return await self._has_stopped(host, vmi, job_uid)
        if job is not None and job.failed and job_uid not in self._begun:
            job = None  # of an earlier migration, or of a process that was killed: it may begin again
        if record.get("abortRequested") or (job is not None and job.failed):
            if job is not None and not job.failed:
                return await self._abort(host, vmi, job_uid)
            if record.get("abortRequested"):
                await self._end_copy(host, vmi, job_uid, CANCELLED, "it was cancelled", abortStatus="Succeeded")
            else:
                await self._end_copy(host, vmi, job_uid, *self._aborted.get(
                    job_uid, (COPY_FAILED, job.failed if job is not None else "")))
            return None
        if job is None:
            if job_uid in self._aborted:
                await self._end_copy(host, vmi, job_uid, *self._aborted[job_uid])
                return None
            if job_uid in self._begun or record.get("sourceDomainLeft"):
                await self._end_copy(host, vmi, job_uid, COPY_LOST, f"the hypervisor of {host.name} no longer copies the VM: "
                                                                    "it was restarted, or the copy was ended with other tools")
                return None
            try:
                again, kept = await self._detach(host, vmi)
            except HypervisorError as error:
                await self._end_copy(host, vmi, job_uid, COPY_FAILED, f"{host.name}: {error.message}")
                return None
            if again is not None and self._late_guest(host, job_uid):
                await self._end_copy(host, vmi, job_uid, *_not_released(host, kept))
                return None
            if again is not None:
                return min(again, 1.0)
            settings = (await self._config()).migrations
            try:
                await hypervisor.migrate(uid, _target(vmi), MigrationLimits(settings.bandwidth, settings.auto_converge))
            except NotReady as error:
                if self._late_target(job_uid):
                    await self._end_copy(host, vmi, job_uid, TARGET_UNREACHABLE, f"{host.name}: {error.message}")
                    return None
                return POLL
            except HypervisorError as error:
                await self._end_copy(host, vmi, job_uid, COPY_FAILED, f"{host.name}: {error.message}")
                return None
            self._begun.add(job_uid)
            return POLL
        self._begun.add(job_uid)
        if late := await self._late(vmi, job_uid, job):
            self._aborted[job_uid] = late
            return await self._abort(host, vmi, job_uid)  # it may come too late: that it has failed is reported when it has
        return POLL

    async def _abort(self, host: AgentHost, vmi: Object, job_uid: str) -> float:
        """Have the hypervisor end the copy. While it does not, nothing else may: the VM may be about to run on the target."""
        await self._not_ended(vmi, job_uid)
        await host.hypervisor.abort_migration(vmi["metadata"]["uid"])
        return POLL

    async def _not_ended(self, vmi: Object, job_uid: str) -> None:
        """Report a copy that is to end, once its hypervisor had time for it."""
        now = self._clock.monotonic()
        since = self._aborting.setdefault(job_uid, now)
        if now - since >= ABORT_PATIENCE and migration.state(vmi).get("abortStatus") != migration.ABORTING:
            await self._patch(vmi, {"migrationState": {"abortStatus": migration.ABORTING}})

    async def _detach(self, host: AgentHost, vmi: Object) -> tuple[float | None, list[str]]:
        """NICs on VFs and devices that are reattached stay on their host: the guest gets others on the target, or these again
        if the migration fails (`nic_hotplug.py`, `device_hotplug.py`). None: it has none any more. Also the names of devices
        that it has not released."""
        uid = vmi["metadata"]["uid"]
        domain = (await host.hypervisor.domains())[uid]
        waits = [await host.hypervisor.detach_device(uid, nic.alias) for nic in domain.nics if nic.address]
        kept: list[str] = []
        for name, devices in device_plan.leaving(vmi, domain.host_devices).items():
            left = [await host.hypervisor.detach_device(uid, device.alias) for device in devices]
            kept += [name] if any(each is not None for each in left) else []
            waits += left
        return min((left for left in waits if left is not None), default=None), kept

    def _late_guest(self, host: AgentHost, job_uid: str) -> bool:
        now = self._clock.monotonic()
        return now - self._detaching.setdefault(job_uid, now) >= host.settings.unplug_timeout.total_seconds()

    def _late_target(self, job_uid: str) -> bool:
        now = self._clock.monotonic()
        return now - self._unreached.setdefault(job_uid, now) >= REACH_PATIENCE

    async def _late(self, vmi: Object, job_uid: str, job: MigrationJob) -> tuple[str, str] | None:
        """Write the progress now and then; why the copy has to be aborted."""
        now, settings = self._clock.monotonic(), (await self._config()).migrations
        best, since, written = self._progress.setdefault(job_uid, (float("inf"), now, now))
        if job.total and job.remaining < best:
            best, since = job.remaining, now
        if now - written >= PROGRESS_EVERY:
            written = now
            await self._patch(vmi, {"migrationState": {"progress": {
                "totalBytes": job.total, "remainingBytes": job.remaining, "processedBytes": job.processed,
                "iteration": job.iteration}}})
        self._progress[job_uid] = best, since, written
        if settings.progress_timeout and now - since >= settings.progress_timeout:
            return NO_PROGRESS, (f"Live migration stuck for {now - since:.0f} seconds: the guest changes its memory as fast as "
                                 "it is copied; allow more bandwidth, or allowAutoConverge")
        elapsed = (self._clock.now() - datetime.fromisoformat(migration.state(vmi)["startTimestamp"])).total_seconds()
        most = settings.completion_timeout * max(1.0, to_int(vm.memory(vmi)) / GIB)
        if settings.completion_timeout and elapsed >= most:
            return TOO_SLOW, f"Live migration is not completed after {elapsed:.0f} seconds (completionTimeoutPerGiB)"
        return None

    async def _has_left(self, vmi: Object, job_uid: str) -> float | None:
        """The domain is not here any more: the target's agent reports it. After a while it is asked whether it has it."""
        since = self._left.setdefault(job_uid, self._clock.monotonic())
        if self._clock.monotonic() - since >= LEFT_PATIENCE and not migration.state(vmi).get("sourceDomainLeft"):
            await self._patch(vmi, {"migrationState": {"sourceDomainLeft": True}})
        return 1.0

    async def _has_stopped(self, host: AgentHost, vmi: Object, job_uid: str) -> float | None:
        """The domain is here, stopped for the last part of a copy that is no longer under way: a hypervisor was killed in it.
        The target's may have resumed it already, and what it runs is the VM. Only if that has none, it is resumed here; no
        clock decides that."""
        if not migration.state(vmi).get("sourceDomainLeft"):
            await self._patch(vmi, {"migrationState": {"sourceDomainLeft": True}})
        elif await self._target_has_ended(vmi):
            pod = migration.state(vmi).get("targetPod")
            await self._end_copy(host, vmi, job_uid, NOT_ARRIVED, f"the target's pod {pod} has ended, and the VM with it")
            return None
        return 1.0

    async def _target_has_ended(self, vmi: Object) -> bool:
        """Whether the target's pod is gone or has terminated. The migration controller requests an abort when it is about to;
        its agent deletes it, or the kubelet reports it, after the domain has ended there."""
        record = migration.state(vmi)
        if not record.get("abortRequested"):
            return False
        try:
            pod = await self._store.get(kinds.POD, str(record.get("targetPod")), vmi["metadata"]["namespace"])
        except NotFound:
            return True
        return (pod.get("status") or {}).get("phase") in vm.FINAL

    async def resume(self, host: AgentHost, vmi: Object, domain: Domain) -> None:
        """A VMI stays here because its migration has failed: have its domain run, if it is still stopped for it."""
        if domain.migrating and migration.state(vmi).get("failed"):
            await host.hypervisor.abort_migration(domain.uid)

    async def end_source(self, host: AgentHost, pod: Object, vmi: Object) -> float | None:
        """A VMI has left this pod: end what may be left of its domain here, then the pod, which releases its devices."""
        uid, record = vmi["metadata"]["uid"], migration.state(vmi)
        job = await host.hypervisor.migration(uid)
        if job is not None and not job.failed:
            return POLL  # the hypervisor is about to end it here
        await host.hypervisor.stop(uid)
        self._forget(str(record.get("migrationUid")))
        await self._report.pod_succeeded(pod, "Migrated", f"the VM migrated to {record.get('targetNode')}")
        return None

    # -- shared

    def _forget(self, job_uid: str) -> None:
        self._begun.discard(job_uid)
        self._left.pop(job_uid, None)
        self._detaching.pop(job_uid, None)
        self._unreached.pop(job_uid, None)
        self._aborted.pop(job_uid, None)
        self._aborting.pop(job_uid, None)
        self._progress.pop(job_uid, None)

    async def _end_copy(self, host: AgentHost, vmi: Object, job_uid: str, *why: str, **more: str) -> None:
        """`why`: code and message."""
        if migration.state(vmi).get("abortStatus") == migration.ABORTING:
            more["abortStatus"] = "Succeeded"
        await self._fail(vmi, *why, **more)
        await host.hypervisor.abort_migration(vmi["metadata"]["uid"])
        self._forget(job_uid)

    async def _fail(self, vmi: Object, code: str, why: str, **more: str) -> None:
        await self._patch(vmi, {"migrationState": {
            "failed": True, "completed": True, "endTimestamp": rfc3339(self._clock.now()), "failureReason": why,
            "failureCode": code, **more}})

    async def _patch(self, vmi: Object, change: Mapping[str, Any]) -> Object:
        """At the revision that was read."""
        meta = vmi["metadata"]
        fresh = await self._store.patch(kinds.VMI, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"]}, "status": dict(change)}, meta["namespace"],
            subresource="status")
        self._cache.put_vmi(fresh)
        return fresh

    async def _config(self) -> KubeVirtConfig:
        found = (await self._store.list(kinds.KUBEVIRT)).items
        return kubevirt_config.read_config(kubevirt_config.active_kubevirt(found))


def _not_released(host: AgentHost, kept: list[str]) -> tuple[str, str]:
    """Code and message of a guest that keeps devices of these names, or NICs."""
    if not kept:
        return NIC_NOT_RELEASED, "the guest does not release its NICs on VFs, which stay on their host"
    return DEVICE_KEPT, (f"{', '.join(kept)}: the guest was asked to release it for the migration and has not for "
                         f"{host.settings.unplug_timeout.total_seconds():.0f} s; stop using the device in the guest, and "
                         "migrate again")


def _target(vmi: Object) -> MigrationTarget:
    """As the target's agent and the controllers wrote it."""
    record = migration.state(vmi)
    sources: Mapping[str, str] = record.get("targetSources") or {}
    bridges = {key.removeprefix(BRIDGE): str(bridge) for key, bridge in sources.items() if key.startswith(BRIDGE)}
    return MigrationTarget(
        str(record["targetNodeAddress"]), str(sources.get("drive", "")), bridges, migration.device_moves(vmi),
        driver=str(sources.get("driver", "")), certificate=str(record.get("targetCertificate") or ""),
        migration=str(record["migrationUid"]))
