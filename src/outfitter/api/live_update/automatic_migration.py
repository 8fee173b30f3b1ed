"""Whether a running VM whose change needs a migration gets one: condition MigrationRequired, and why it waits. Pure; the
workload updater carries it out, and `outfit why` explains by it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from outfitter.api import conditions
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import migration, vm
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig

REQUIRED = migration.MIGRATION_REQUIRED  # condition of a VMI
PENDING, DUE = "AutoMigrationPending", "AutoMigrationDueToLiveUpdate"  # its reasons: status False, True
BACKOFF = timedelta(seconds=20)  # after the first failure; doubled with each further one
LOOK_AGAIN = 30.0  # seconds: what is free on hosts changes with pods, and nothing of a VMI changes with that

# Why a migration that is required is not under way: codes at the beginning of that part of the condition's message.
NO_METHOD, NOT_MIGRATABLE = "NoUpdateMethod", "NotLiveMigratable"
NO_OTHER_HOST, NO_CAPACITY = "NoOtherHost", "NoCapacityElsewhere"
CLUSTER_LIMIT, BACKING_OFF, MIGRATING, CREATE_REFUSED = "ClusterLimit", "MigrationBackoff", "Migrating", "CreateRefused"


def message(waiting: Sequence[str], why: str) -> str:
    """Of condition MigrationRequired: what it is required for (`MigrationNeed.waiting`), and why that is not done yet."""
    return f"{'; '.join(waiting)}: {why}"


@dataclass(frozen=True, slots=True)
class UpdateView:
    """What a decision is made from."""

    vmi: Object
    config: KubeVirtConfig
    now: datetime
    jobs: Sequence[Object] = ()  # migrations of this VMI
    unfinished: int = 0  # migrations in the cluster that take a slot
    target: Object | None = None  # pod of the migration that is under way
    hosts: Collection[str] | None = None  # those that take new pods; None: no host is known
    lacking: str = ""  # resource that the target needs and no other host has free; "": none is known to be lacking


@dataclass(frozen=True, slots=True)
class UpdateDecision:
    act: Literal["nothing", "create", "abort"] = "nothing"
    jobs: tuple[Object, ...] = ()  # to abort
    code: str = ""  # why it waits
    message: str = ""
    wait: float | None = None  # seconds until it may be another


def decide(view: UpdateView) -> UpdateDecision:
    vmi, open_jobs = view.vmi, [job for job in view.jobs if not migration.is_finished(job)]
    if not conditions.is_true(vmi, REQUIRED):
        state = migration.state(vmi)
        arrived = state.get("targetNodeDomainReadyTimestamp") or state.get("completed")
        given_up = [job for job in open_jobs if _automatic(job) and not job["metadata"].get("deletionTimestamp")
                    and not (arrived and state.get("migrationUid") == job["metadata"]["uid"])]
        return UpdateDecision("abort", tuple(given_up)) if given_up else UpdateDecision()
    if open_jobs:
        return UpdateDecision(code=MIGRATING, message=_progress(open_jobs[0], view.target))
    if migrating(vmi, view.now) or migration.under_way(vmi):
        return UpdateDecision(code=MIGRATING, message="another migration of this VMI has not ended")
    if not view.config.may_migrate:
        return UpdateDecision(code=NO_METHOD, message="workloadUpdateStrategy.workloadUpdateMethods of the KubeVirt object "
                                                      "does not list LiveMigrate: add it, or migrate the VM by hand")
    migratable = conditions.find(vmi, "LiveMigratable") or {}
    if migratable.get("status") != "True":
        why = f"{migratable.get('reason')}: {migratable.get('message')}" if migratable else "not known yet"
        return UpdateDecision(code=NOT_MIGRATABLE, message=f"the VM cannot migrate: {why}")
    here = (vmi.get("status") or {}).get("nodeName")
    if view.hosts is not None and not any(host != here for host in view.hosts):
        return UpdateDecision(code=NO_OTHER_HOST, message=f"no host but {here} takes VMs", wait=LOOK_AGAIN)
    if view.lacking and backoff_end(view.jobs, migration.state(vmi)) is not None:
        return UpdateDecision(code=NO_CAPACITY, message=f"the last migration failed, and no other host has {view.lacking} free",
                              wait=LOOK_AGAIN)
    if (until := backoff_end(view.jobs, migration.state(vmi))) is not None and until > view.now:
        return UpdateDecision(code=BACKING_OFF, message=f"the last migration failed; the next begins at {until:%H:%M:%S} UTC",
                              wait=(until - view.now).total_seconds())
    most = view.config.migrations.per_cluster
    if view.unfinished >= most:
        return UpdateDecision(code=CLUSTER_LIMIT, message=f"{view.unfinished} migrations are under way, and "
                                                          f"{most} may be at a time (parallelMigrationsPerCluster)")
    return UpdateDecision("create")


def _automatic(job: Object) -> bool:
    return migration.WORKLOAD_UPDATE in (job["metadata"].get("annotations") or {})


def _progress(job: Object, target: Object | None) -> str:
    name, phase = job["metadata"]["name"], migration.phase_of(job) or "Pending"
    scheduled = conditions.find(target, "PodScheduled") or {} if target is not None else {}
    if scheduled.get("status") == "False":
        taken = _taken_devices(target) if target is not None else ""
        return f"migration {name} waits for a host{taken}: {scheduled.get('message')}"
    waits = conditions.find(job, migration.WAITING) or {}
    # Without the phase: every phase would be one more write of the VMI.
    return f"migration {name} is {phase}: {waits['message']}" if waits.get("message") else f"migration {name} is under way"


def _taken_devices(target: Object) -> str:
    """The extended resources that a target takes: a scheduler may report no more than that claims cannot be allocated."""
    named = sorted({resource for each in target["spec"].get("containers") or ()
                    for resource in (each.get("resources") or {}).get("requests") or () if "/" in resource})
    return f" with {', '.join(named)}" if named else ""


def backoff_end(jobs: Sequence[Object], state: object) -> datetime | None:
    """When the next migration may begin: later after each failure since the last success."""
    ended = sorted((_ended(job), migration.phase_of(job) == "Failed") for job in jobs if migration.is_finished(job))
    failures = 0
    for _, failed in reversed(ended):
        if not failed:
            break
        failures += 1
    last = ended[-1][0] if failures else None
    if isinstance(state, dict) and state.get("failed") and (end := moment(state.get("endTimestamp"))) is not None:
        last, failures = max(end, last or end), max(1, failures)  # of a migration whose object is gone
    return last + BACKOFF * float(2 ** (failures - 1)) if last is not None else None


def _ended(job: Object) -> datetime:
    entered = [moment(entry.get("phaseTransitionTimestamp")) for entry in
               (job.get("status") or {}).get("phaseTransitionTimestamps") or () if entry.get("phase") in vm.FINAL]
    created = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
    return max(filter(None, entered), default=created)


def migrating(vmi: Mapping[str, Any], now: datetime) -> bool:
    """Whether the guest is being copied: what it needs is decided when that has ended."""
    state = (vmi.get("status") or {}).get("migrationState") or {}
    started, ended = moment(state.get("startTimestamp")), moment(state.get("endTimestamp"))
    if state.get("completed") or state.get("failed"):
        return False
    return started is not None and started <= now and (ended is None or ended > now)


def moment(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None


def takes_pods(node: Object) -> bool:
    """Whether a host takes new VMs."""
    return not (node.get("spec") or {}).get("unschedulable") and not node["metadata"].get("deletionTimestamp") and (
        (conditions.find(node, "Ready") or {}).get("status") in (None, "True"))


def unschedulable(pod: Object) -> bool:
    """Whether no host can take a pod at the moment."""
    return not pod["spec"].get("nodeName") and (conditions.find(pod, "PodScheduled") or {}).get("status") == "False"


def resource_is_lacking(
    resource: str, count: int, nodes: Sequence[Object], pods: Sequence[Object], *, without: str
) -> bool:
    """Whether hosts count a resource, and none but `without` has so many of it free. One that comes by claims is not counted by
    hosts: nothing is known of it here."""
    amounts = {node["metadata"]["name"]: _amount((node.get("status") or {}).get("allocatable"), resource) for node in nodes
               if resource in ((node.get("status") or {}).get("allocatable") or {})}
    others = [node["metadata"]["name"] for node in nodes
              if node["metadata"]["name"] in amounts and takes_pods(node) and node["metadata"]["name"] != without]
    if not amounts:
        return False
    for pod in pods:
        host = str(pod["spec"].get("nodeName") or "")
        if host in amounts and (pod.get("status") or {}).get("phase") not in vm.FINAL:
            amounts[host] -= sum(_amount((each.get("resources") or {}).get("requests"), resource)
                                 for each in pod["spec"].get("containers") or ())
    return not any(amounts[host] >= count for host in others)


def _amount(amounts: Mapping[str, Any] | None, resource: str) -> int:
    text = str((amounts or {}).get(resource) or 0)
    return int(text) if text.isdecimal() else 0
