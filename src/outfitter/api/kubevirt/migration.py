"""Live migrations: phases of a VirtualMachineInstanceMigration, the record in a VMI's `status.migrationState`, and which pod
and host are source and target. KubeVirt's names. Pure; used by admission, the migration controller, the node agent and the CLI.

The record belongs to one migration by `migrationUid`. The migration controller creates it (the hand-over), the target's
agent adds `targetNodeAddress`, the source's agent `startTimestamp` and `progress`, and the agent that knows how it ended adds
`completed`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_status, reattached_devices, vm

PHASES = ("Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded", "Failed")
ABORTING = "Aborting"  # abortStatus of a copy that the hypervisor was asked to end, and has not
FINALIZER = "kubevirt.io/migrationJobFinalize"
JOB_UID = "kubevirt.io/migrationJobUID"  # label of a target pod: the uid of its migration
JOB_NAME = "kubevirt.io/migrationJobName"  # annotation of a target pod
VMI_NAME = "kubevirt.io/vmi-name"  # label of a migration, by which virtctl finds it
WORKLOAD_UPDATE = "kubevirt.io/workloadUpdateMigration"  # annotation of migrations that the workload updater created
UNSCHEDULABLE_TIMEOUT = "kubevirt.io/migrationUnschedulablePodTimeoutSeconds"  # annotations of a migration
PENDING_TIMEOUT = "kubevirt.io/migrationPendingPodTimeoutSeconds"
HOSTNAME = "kubernetes.io/hostname"  # label of a node, by which addedNodeSelector names a target
DEVICE_LISTS = ("gpuStatuses", "hostDeviceStatuses")  # of status.deviceStatus
PRIORITIES: Mapping[str, int] = {"system-critical": 100, "user-triggered": 50, "system-maintenance": 20, "": 0}

# Condition types of a migration.
WAITING = "migrationWaiting"  # ours: why it has not got a target yet; the reason is a code
ABORT_REQUESTED = "migrationAbortRequested"
REJECTED_BY_QUOTA = "migrationRejectedByResourceQuota"
DEVICES = "migrationDevices"  # ours: what becomes of each device; False: one blocks, and the reason is its code
FAILED = "migrationFailed"  # ours: why it failed; the reason is a code
# Condition type of a VMI.
MIGRATION_REQUIRED = "MigrationRequired"


def phase_of(migration: Mapping[str, Any]) -> str:
    return str((migration.get("status") or {}).get("phase") or "")


def is_finished(migration: Mapping[str, Any]) -> bool:
    return phase_of(migration) in vm.FINAL


def vmi_name(migration: Mapping[str, Any]) -> str:
    return str((migration.get("spec") or {}).get("vmiName") or "")


def vmi_key(migration: Mapping[str, Any]) -> str:
    return f"{migration['metadata'].get('namespace')}/{vmi_name(migration)}"


def priority(migration: Mapping[str, Any]) -> int:
    return PRIORITIES.get(str((migration.get("spec") or {}).get("priority") or ""), 0)


def requested_host(migration: Mapping[str, Any]) -> str:
    """The only host that it may go to; "" for any."""
    return str(((migration.get("spec") or {}).get("addedNodeSelector") or {}).get(HOSTNAME) or "")


def job_uid(pod: Mapping[str, Any]) -> str:
    """The uid of the migration whose target a pod is; "" for another pod."""
    return str((pod["metadata"].get("labels") or {}).get(JOB_UID) or "")


def state(vmi: Mapping[str, Any]) -> Mapping[str, Any]:
    """status.migrationState: of the current migration, or of the last one."""
    found: Mapping[str, Any] = (vmi.get("status") or {}).get("migrationState") or {}
    return found


def state_of(vmi: Mapping[str, Any], migration: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record of this migration; empty before its hand-over, and when another took its place."""
    found = state(vmi)
    return found if found.get("migrationUid") == migration["metadata"]["uid"] else {}


def under_way(vmi: Mapping[str, Any]) -> bool:
    """Whether a VMI was handed over and its migration has not ended."""
    found = state(vmi)
    return bool(found.get("migrationUid")) and not found.get("completed")


def is_target(vmi: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Whether a VMI is being migrated into this pod."""
    return under_way(vmi) and state(vmi).get("targetPod") == pod["metadata"]["name"] and (
        pod["metadata"]["uid"] in ((vmi.get("status") or {}).get("activePods") or ()))


def is_source(vmi: Mapping[str, Any], host: str) -> bool:
    """Whether a VMI is being migrated away from this host."""
    return under_way(vmi) and state(vmi).get("sourceNode") == host and (vmi.get("status") or {}).get("nodeName") == host


def active_pods(vmi: Mapping[str, Any], current: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> Object:
    """status.activePods: the pod that it runs in and, while a migration is under way, the target's pod."""
    known = (vmi.get("status") or {}).get("activePods") or {}
    both = [current, *(pod for pod in pods if pod["metadata"]["uid"] in known and is_target(vmi, pod))]
    return {pod["metadata"]["uid"]: pod["spec"].get("nodeName") or "" for pod in both}


def pod_names(vmi: Mapping[str, Any]) -> list[str]:
    """Pods of migrations that a VMI may run in."""
    found = state(vmi).get("targetPod")
    return [str(found)] if found else []


def arrived_devices(vmi: Mapping[str, Any]) -> Object:
    """A merge patch of the status of a VMI that runs on the target now: the devices there, and the host cells and CPUs of a
    flavor, take the place of those of the source."""
    status, target = vmi.get("status") or {}, on_target(vmi)["status"]
    if state(vmi).get("targetDeviceStatus") is None:
        return {}
    return {field: _replacing(status.get(field) or {}, target.get(field) or {}) for field in ("deviceStatus", "flavor")
            if status.get(field) != target.get(field)}


def on_target(vmi: Mapping[str, Any]) -> Object:
    """A VMI as it will be on the target of its migration: its domain there is built from it."""
    status, record = vmi.get("status") or {}, state(vmi)
    devices = record.get("targetDeviceStatus")
    if devices is None:
        return dict(vmi)
    kept = {name: value for name, value in (status.get("deviceStatus") or {}).items() if name not in DEVICE_LISTS}
    out: Object = {**status, "deviceStatus": {**kept, **{name: devices[name] for name in DEVICE_LISTS if devices.get(name)}}}
    if flavor := record.get("targetFlavor"):
        had = {key: value for key, value in (status.get("flavor") or {}).items() if key not in ("hostCells", "pinned", "cpus")}
        out["flavor"] = {**had, **flavor}
    return {**vmi, "status": out}


def device_moves(vmi: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Of each device that travels: its PCI address or UUID on the source, and that of the device on the target."""
    here, there = (vmi.get("status") or {}).get("deviceStatus") or {}, state(vmi).get("targetDeviceStatus") or {}
    left = reattached(vmi)
    names = {field: {name for key, name in left if key == list_} for list_, field in device_status.STATUS_LISTS.items()}
    return tuple(pair for list_ in DEVICE_LISTS for pair in zip(
        _places(here, list_, names[list_]), _places(there, list_, names[list_]), strict=False))


def reattached(vmi: Mapping[str, Any]) -> Mapping[reattached_devices.Key, str]:
    """The GPUs and host devices that stay on the source and are replaced on the target, each with its claim: the record of
    the migration marks them."""
    return reattached_devices.marks(state(vmi).get("targetDeviceStatus") or {})


def asked_for(vmi: Mapping[str, Any], pod: str) -> Object:
    """A merge patch of the status of a VMI whose guest is asked for the devices that are reattached: they are marked, so that
    they are plugged again if the migration fails. `pod`: the launcher pod on the source."""
    claims = reattached(vmi)
    before: Mapping[str, Any] = (vmi.get("status") or {}).get("deviceStatus") or {}
    after = reattached_devices.marked(before, claims.keys(), claims, pod)
    changed = {list_: after[list_] for list_ in DEVICE_LISTS if after.get(list_) != before.get(list_)}
    return {"deviceStatus": changed} if changed else {}


def _places(status: Mapping[str, Any], list_: str, left: Collection[str]) -> list[str]:
    """Addresses and UUIDs in a device status, without those of devices that are `left` behind; those of devices with the same
    name are in the order of the claim."""
    out: list[str] = []
    for entry in sorted(status.get(list_) or (), key=lambda entry: str(entry.get("name"))):
        if str(entry.get("name")) in left:
            continue
        attributes = (entry.get("deviceResourceClaimStatus") or {}).get("attributes") or {}
        one = attributes.get("mdevUUID") or attributes.get("mDevUUID") or attributes.get("pciAddress") or ""
        out += attributes.get("members") or [one]
    return out


def _replacing(old: Mapping[str, Any], new: Mapping[str, Any]) -> Object:
    """The merge patch that makes the one the other."""
    out: Object = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        had = old.get(key)
        if had != value:
            out[key] = _replacing(had, value) if isinstance(value, Mapping) and isinstance(had, Mapping) else value
    return out


def progress_share(progress: Mapping[str, Any]) -> float | None:
    """How much of the memory is on the target, from 0 to 1; None: not known."""
    total, remaining = progress.get("totalBytes"), progress.get("remainingBytes")
    if not isinstance(total, int) or not isinstance(remaining, int) or total <= 0:
        return None
    return min(1.0, max(0.0, 1.0 - remaining / total))
