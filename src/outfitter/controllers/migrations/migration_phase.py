"""How far a live migration is and what comes next, from the migration, its VMI and the target's pod. Pure; the migration
controller carries it out.

Before the hand-over (status.migrationState of the VMI names this migration) the controller alone acts: nothing has touched the
VM, so a migration fails by deleting the target's pod. After the start of the copy only the source's agent knows whether the VM
still runs there: the controller asks it to abort, and waits for its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from outfitter.api import conditions
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, live_migratable, migration, reattached_devices, vm
from outfitter.api.kubevirt.kubevirt_config import MigrationSettings
from outfitter.api.rejection import RejectionCode
from outfitter.controllers.migrations.target_devices import NO_DEVICES, TargetDeviceStatus
from outfitter.scheduling import device_migration
from outfitter.scheduling.device_migration import DeviceMigration

UNSCHEDULABLE = timedelta(seconds=300)  # for a target that no host can take
PENDING = timedelta(seconds=900)  # for a target that does not become ready for any reason

# Codes of a migration that waits or has failed: reasons of its conditions.
CLUSTER_LIMIT, NODE_LIMIT, VMI_NOT_RUNNING = "ClusterLimit", "NodeLimit", "VMINotRunning"
OTHER_MIGRATION, NOT_MIGRATABLE, CANCELLED = "OtherMigration", "NotLiveMigratable", "Cancelled"
VMI_ENDED, VMI_GONE, TARGET_GONE, TARGET_FAILED = "VMIEnded", "VMIGone", "TargetPodGone", "TargetPodFailed"
TARGET_UNSCHEDULABLE, TARGET_TIMEOUT, PREPARE_TIMEOUT = "TargetUnschedulable", "TargetTimeout", "PrepareTimeout"
TARGET_REFUSED, QUOTA_EXCEEDED, MIGRATION_FAILED = "TargetRefused", "QuotaExceeded", "MigrationFailed"
TARGET_DEVICES, TARGET_SILENT, COPY_NOT_ENDED = "TargetDevicesUnknown", "TargetSilent", "CopyNotEnded"
SOURCE_POD = "SourcePodNotEnded"

Act = Literal["nothing", "create-pod", "hand-over", "fail-record", "request-abort", "succeed", "fail", "delete"]


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """One decision."""

    act: Act
    phase: str = ""  # of the migration, once the act is done; "" leaves it
    code: str = ""  # why it waits or fails
    message: str = ""
    again: timedelta | None = None  # look again then, also without a watch update


@dataclass(frozen=True, slots=True)
class MigrationView:
    """What a decision is made from."""

    job: Object
    vmi: Object | None
    pod: Object | None  # the target's
    now: datetime
    settings: MigrationSettings = field(default_factory=MigrationSettings)
    others: Iterable[Object] = ()  # other unfinished migrations
    sources: Mapping[str, str] = field(default_factory=dict)  # key of a VMI -> the host that it runs on
    begun: frozenset[str] = frozenset()  # uids of those with a target's pod, which their phase may not show yet
    left: Object | None = None  # the pod that the VMI left by its last migration, if that pod has not ended
    stuck: frozenset[str] = frozenset()  # uids of other migrations whose VMI has such a pod
    devices: tuple[DeviceMigration, ...] = ()  # what becomes of each device; empty after the hand-over
    target: TargetDeviceStatus = NO_DEVICES  # the devices of the target's pod, before the hand-over


def decide(view: MigrationView) -> MigrationStep:
    job, vmi = view.job, view.vmi
    cancelled = bool(job["metadata"].get("deletionTimestamp"))
    if vmi is None:
        if cancelled:
            return MigrationStep("fail", "Failed", VMI_GONE, f"VMI {migration.vmi_key(job)} does not exist")
        return MigrationStep("delete", code=VMI_GONE, message=f"VMI {migration.vmi_key(job)} does not exist")
    record = migration.state_of(vmi, job)
    if record:
        return _handed_over(view, vmi, record)
    if (vmi.get("status") or {}).get("phase") in vm.FINAL or vmi["metadata"].get("deletionTimestamp"):
        return MigrationStep("fail", "Failed", VMI_ENDED, "the VMI has ended or is being deleted")
    if cancelled:
        return MigrationStep("fail", "Failed", CANCELLED, "it was cancelled before the VM was touched")
    if migration.phase_of(job) in ("PreparingTarget", "TargetReady", "Running"):
        return MigrationStep("fail", "Failed", OTHER_MIGRATION, "another migration took its place in the VMI's status")
    if view.pod is None:
        return _without_target(view, vmi)
    return _with_target(view, vmi, view.pod)


# -- before the hand-over


def _without_target(view: MigrationView, vmi: Object) -> MigrationStep:
    job = view.job
    if migration.phase_of(job) in ("Scheduling", "Scheduled"):
        return MigrationStep("fail", "Failed", TARGET_GONE, "the target's pod was deleted")
    if wait := _waits(view, vmi):
        return wait
    return MigrationStep("create-pod", "Scheduling")


def _waits(view: MigrationView, vmi: Object) -> MigrationStep | None:
    """Why the target's pod is not created yet, or never."""
    job, key = view.job, migration.vmi_key(view.job)
    same = [other for other in view.others if migration.vmi_key(other) == key]
    if migration.under_way(vmi) or any(_before(other, job, view.begun) for other in same):
        other = next((other["metadata"]["name"] for other in same), migration.state(vmi).get("migrationUid"))
        return MigrationStep("fail", "Failed", OTHER_MIGRATION, f"migration {other} of this VMI has not ended")
    blocked = conditions.find(vmi, live_migratable.TYPE)
    if blocked is not None and blocked.get("status") == "False":
        return MigrationStep("fail", "Failed", NOT_MIGRATABLE, f"{blocked.get('reason')}: {blocked.get('message')}")
    if stay := device_migration.blocking(view.devices):
        return MigrationStep("fail", "Failed", NOT_MIGRATABLE, device_migration.text(stay))
    if (vmi.get("status") or {}).get("phase") != "Running":
        return _pending(VMI_NOT_RUNNING, f"VMI {key} is not running yet", seconds=5)
    if view.left is not None:  # its agent knows from the record in the VMI's status alone that the VM has left it
        return _pending(SOURCE_POD, _not_ended(view.left), seconds=5)
    running = [other for other in view.others if not _is_waiting(other, view.begun)]
    rivals = [other for other in view.others if _is_waiting(other, view.begun) and _before(other, job, view.begun)
              and other["metadata"]["uid"] not in view.stuck]
    most, rank = view.settings.per_cluster, migration.priority(job)
    seconds = 1 if rank >= 100 else 3 if rank >= 50 else 5
    if len(running) + len(rivals) >= most:
        # Without a number that changes whenever another one ends: each would cost a write of every one that waits.
        return _pending(CLUSTER_LIMIT, f"{most} migrations may run at a time (parallelMigrationsPerCluster), and others run or "
                                       "come first", seconds=seconds)
    host, most = str((vmi.get("status") or {}).get("nodeName") or ""), view.settings.per_node
    leaving = sum(view.sources.get(migration.vmi_key(other)) == host for other in (*running, *rivals))
    if leaving >= most:
        return _pending(NODE_LIMIT, f"{most} migrations may leave {host} at a time (parallelOutboundMigrationsPerNode), and "
                                    "others leave it or come first", seconds=seconds)
    return None


def _not_ended(pod: Object) -> str:
    name, why = pod["metadata"]["name"], (pod.get("status") or {}).get("message")
    host = (pod.get("spec") or {}).get("nodeName")
    return (f"pod {name} on {host}, which the VM left by the last migration, has not ended{f' ({why})' if why else ''}; if "
            f"{host} is off for good: kubectl delete pod {name} --force")


def _is_waiting(job: Object, begun: frozenset[str]) -> bool:
    return migration.phase_of(job) in ("", "Pending") and job["metadata"]["uid"] not in begun


def _before(other: Object, job: Object, begun: frozenset[str]) -> bool:
    """Whether another migration comes first: by priority, then by age."""
    def rank(one: Object) -> tuple[bool, int, str, str, str]:
        meta = one["metadata"]
        waits = _is_waiting(one, begun)
        return waits, -migration.priority(one), str(meta.get("creationTimestamp")), str(meta.get("namespace")), meta["name"]

    return rank(other) < rank(job)


def _pending(code: str, message: str, *, seconds: float) -> MigrationStep:
    return MigrationStep("nothing", "Pending", code, message, timedelta(seconds=seconds))


def refused(code: str, message: str, seconds: float) -> MigrationStep:
    """The target's pod could not be created."""
    return _pending(code, message, seconds=seconds)


def _with_target(view: MigrationView, vmi: Object, pod: Object) -> MigrationStep:
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    if status.get("phase") in vm.FINAL:
        why = status.get("message") or status.get("reason") or "no reason given"
        return MigrationStep("fail", "Failed", TARGET_FAILED, f"the target's pod {name} has failed: {why}")
    if pod["metadata"].get("deletionTimestamp"):
        return MigrationStep("fail", "Failed", TARGET_GONE, f"the target's pod {name} was deleted")
    if late := _plugged_since(vmi, pod):
        return MigrationStep("fail", "Failed", TARGET_DEVICES, (
            f"{', '.join(late)}: plugged after the target's pod {name} was created, which has no claim for it; migrate again"))
    ready = status.get("phase") == "Running" and pod["spec"].get("nodeName") and _is_ready(pod)
    if ready and not view.target.missing:
        return _changed_since(view, pod) or MigrationStep("hand-over", "PreparingTarget")
    age = view.now - datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    scheduled, unschedulable = conditions.find(pod, "PodScheduled") or {}, is_unschedulable(pod)
    code, why = (TARGET_UNSCHEDULABLE, str(scheduled.get("message") or "no host can take it")) if unschedulable else (
        TARGET_TIMEOUT, str(status.get("message") or "its pod is not ready yet"))
    if ready:
        code, why = TARGET_DEVICES, f"its devices are not known: {'; '.join(view.target.missing)}"
    for limit, applies in ((_timeout(view.job, migration.UNSCHEDULABLE_TIMEOUT, UNSCHEDULABLE), unschedulable),
                           (_timeout(view.job, migration.PENDING_TIMEOUT, PENDING), True)):
        if applies and age >= limit:
            return MigrationStep("fail", "Failed", code, f"no target within {limit.total_seconds():.0f} seconds: {why}")
    left = (_timeout(view.job, migration.UNSCHEDULABLE_TIMEOUT, UNSCHEDULABLE) if unschedulable
            else _timeout(view.job, migration.PENDING_TIMEOUT, PENDING)) - age
    waits = unschedulable or ready or bool(status.get("reason"))
    return MigrationStep("nothing", "Scheduling", code if waits else "", why if waits else "", left)


def _plugged_since(vmi: Object, pod: Object) -> list[str]:
    """Devices of claims that the target's pod does not have: its claims never change."""
    have = {entry.get("name") for entry in pod["spec"].get("resourceClaims") or ()}
    return [ref.name for ref in device_refs.written_refs(vmi) if ref.by_claim and ref.claim not in have]


def _changed_since(view: MigrationView, pod: Object) -> MigrationStep | None:
    """Why the target's pod, whose claims never change, is of no use any more: a device can no longer travel, or its owner no
    longer permits that it is reattached. A device that the pod was created to reattach and that could travel now is
    reattached."""
    if stay := [one for one in device_migration.blocking(view.devices) if one.rejection is not None
                and one.rejection.code in (*device_migration.CANNOT_TRAVEL, RejectionCode.PLUG_NOT_IN_PLACE)]:
        return MigrationStep("fail", "Failed", NOT_MIGRATABLE, device_migration.text(stay))
    planned = reattached_devices.planned_for(pod)
    if late := [one.name for one in view.devices if one.how == "reattached" and one.list is not None
                and (one.list, one.name) not in planned]:
        return MigrationStep("fail", "Failed", TARGET_DEVICES, (
            f"{', '.join(late)}: it could travel when the target's pod {pod['metadata']['name']} was created, and is to be "
            "reattached now; migrate again"))
    return None


def is_unschedulable(pod: Object) -> bool:
    scheduled = conditions.find(pod, "PodScheduled") or {}
    return not pod["spec"].get("nodeName") and scheduled.get("status") == "False"


def _is_ready(pod: Object) -> bool:
    """By its containers, as KubeVirt counts: the readiness gate of a launcher pod is that of a VM that runs in it."""
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return conditions.is_true(pod, "Ready") or (bool(containers) and all(one.get("ready") for one in containers))


def _timeout(job: Object, annotation: str, otherwise: timedelta) -> timedelta:
    text = (job["metadata"].get("annotations") or {}).get(annotation)
    return timedelta(seconds=int(text)) if isinstance(text, str) and text.isdecimal() and len(text) < 10 else otherwise


# -- after it


def _handed_over(view: MigrationView, vmi: Object, record: Mapping[str, Any]) -> MigrationStep:
    job, started = view.job, bool(record.get("startTimestamp"))
    if record.get("completed"):
        if record.get("failed"):
            code, why = record.get("failureCode") or MIGRATION_FAILED, record.get("failureReason") or "no reason given"
            return MigrationStep("fail", "Failed", str(code), str(why))
        return MigrationStep("succeed", "Succeeded")
    status = vmi.get("status") or {}
    if status.get("phase") in vm.FINAL:
        return MigrationStep("fail", "Failed", VMI_ENDED, "the VMI has ended")
    phase = "Running" if started else "TargetReady" if record.get("targetNodeAddress") else "PreparingTarget"
    lost = _target_lost(view.pod)
    if job["metadata"].get("deletionTimestamp") or vmi["metadata"].get("deletionTimestamp"):
        lost = CANCELLED, "it was cancelled"
    age, limit = view.now - _since(job, "PreparingTarget", view.now), timedelta(seconds=view.settings.prepare_timeout)
    if lost is None and not started and age >= limit:
        lost = PREPARE_TIMEOUT, f"the target was not ready {age.total_seconds():.0f} seconds after the hand-over"
    if lost is None:
        return MigrationStep("nothing", phase, *_unanswered(record), again=None if started else limit - age)
    if not started:
        return MigrationStep("fail-record", phase, *lost)
    if not record.get("abortRequested"):
        return MigrationStep("request-abort", phase, *lost)
    return MigrationStep("nothing", phase, *_unanswered(record))


def _unanswered(record: Mapping[str, Any]) -> tuple[str, str]:
    """Code and message of a migration whose end only the target's agent knows, or the source's hypervisor."""
    source, target, pod = record.get("sourceNode"), record.get("targetNode"), record.get("targetPod")
    if record.get("sourceDomainLeft"):
        return TARGET_SILENT, (f"{source} no longer runs the VM, and {target} has not reported whether it does; if {target} is "
                               f"off for good: kubectl delete pod {pod} --force")
    if record.get("abortStatus") == migration.ABORTING:
        return COPY_NOT_ENDED, (f"the hypervisor of {source} is to end the copy and has not; if that lasts, restart "
                                f"libvirtd on {source}: the VM runs on")
    return "", ""


def _target_lost(pod: Object | None) -> tuple[str, str] | None:
    if pod is None or pod["metadata"].get("deletionTimestamp"):
        return TARGET_GONE, "the target's pod was deleted"
    if (pod.get("status") or {}).get("phase") in vm.FINAL:
        return TARGET_FAILED, f"Target pod is down: {(pod.get('status') or {}).get('message') or 'no reason given'}"
    return None


def _since(job: Object, phase: str, otherwise: datetime) -> datetime:
    """When the migration entered a phase."""
    for entry in (job.get("status") or {}).get("phaseTransitionTimestamps") or ():
        if entry.get("phase") == phase:
            return datetime.fromisoformat(entry["phaseTransitionTimestamp"])
    return otherwise


def passed(job: Object, phase: str, now: str) -> list[Object]:
    """phaseTransitionTimestamps with every phase up to this one: several may be passed between two looks."""
    have: list[Object] = list((job.get("status") or {}).get("phaseTransitionTimestamps") or ())
    upto = migration.PHASES[:migration.PHASES.index(phase) + 1] if phase not in vm.FINAL else (phase,)
    if phase == "Succeeded":
        upto = tuple(name for name in migration.PHASES if name != "Failed")
    for name in upto:
        have = vm.entered(have, name, now)
    return have
