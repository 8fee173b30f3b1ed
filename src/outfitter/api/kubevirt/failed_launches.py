"""`status.failedLaunches` of a VMI: launcher pods for which a host could not prepare the devices or could not start the domain.
The VMI controller records each one, releases its devices and launches the VMI on another host, MAX_LAUNCHES times in all. Pure
functions over wire objects; called by the node agent (reasons), the VMI controller and `outfit why`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outfitter.api import conditions
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_end
from outfitter.api.kubevirt import vm as vm_api

FIELD = "failedLaunches"
MAX_LAUNCHES = 3  # as Nova's [scheduler]max_attempts
EXCLUDED_FOR = timedelta(seconds=60)  # after the last failure; by then the hosts may be tried again
HOST_PATIENCE = timedelta(seconds=10)  # for another host after a failed start: devices may still be on their way back
PREPARE_FAILED, START_FAILED = "FailedPrepareDevices", "FailedStart"  # reasons on the pod: another host may succeed
FLAVOR_PLACE = ("hostCells", "pinned", "cpus")  # of status.flavor: where the guest's NUMA cells were on the failed host


@dataclass(frozen=True, slots=True)
class FailedLaunch:
    """A launcher pod that failed before its VMI ran."""

    pod_uid: str
    host: str
    reason: str
    message: str
    at: str  # RFC 3339

    def __str__(self) -> str:
        return self.text()

    def text(self, time: Callable[[str], str] = str) -> str:
        """`time`: how a stored time is shown."""
        return f"launch on {self.host} failed at {time(self.at)}: {self.message}"

    def to_object(self) -> Object:
        return {"podUID": self.pod_uid, "nodeName": self.host, "reason": self.reason, "message": self.message, "time": self.at}


def of(vmi: Mapping[str, Any]) -> tuple[FailedLaunch, ...]:
    """The oldest first."""
    return tuple(
        FailedLaunch(str(entry.get("podUID")), str(entry.get("nodeName")), str(entry.get("reason")), str(entry.get("message")),
                     str(entry.get("time")))
        for entry in (vmi.get("status") or {}).get(FIELD) or ()
    )


def is_failed_launch(vmi: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Whether the pod failed for a reason that another host may not have, before the VMI ran."""
    status, phase = pod.get("status") or {}, (vmi.get("status") or {}).get("phase") or "Pending"
    failed = phase in vm_api.BEFORE and status.get("phase") == "Failed"
    return failed and pod_end.reason_of(pod)[0] in (PREPARE_FAILED, START_FAILED)


def with_failure(vmi: Mapping[str, Any], pod: Mapping[str, Any], now: str) -> tuple[FailedLaunch, ...]:
    """With this pod's failure; the same when it is recorded already."""
    known, uid = of(vmi), str(pod["metadata"]["uid"])
    if any(launch.pod_uid == uid for launch in known):
        return known
    host = str(pod["spec"].get("nodeName") or "")
    return (*known, FailedLaunch(uid, host, *pod_end.reason_of(pod), now))


def excluded_hosts(launches: Sequence[FailedLaunch]) -> dict[str, tuple[datetime, str]]:
    """Hosts on which the next pod is not placed: until when, and why."""
    if not launches:
        return {}
    until = datetime.fromisoformat(launches[-1].at) + EXCLUDED_FOR
    return {launch.host: (until, str(launch)) for launch in launches}


def host_patience(vmi: Mapping[str, Any], pod: Mapping[str, Any], now: datetime) -> timedelta | None:
    """How long a VMI whose last start failed still waits for another host; None: it does not wait for one. A failed prepare is
    another matter: what keeps a device busy may end, so the VMI waits until the host may be tried again."""
    launches = of(vmi)
    if not launches or launches[-1].reason != START_FAILED or pod["spec"].get("nodeName"):
        return None
    scheduled = conditions.find(pod, "PodScheduled") or {}
    if scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return None
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) + HOST_PATIENCE - now


def summary(launches: Sequence[FailedLaunch]) -> str:
    """Why a VMI was not launched anywhere."""
    if len(launches) == 1:
        return launches[0].message
    return "; ".join(f"{launch.host}: {launch.message}" for launch in launches)


def next_status(vmi: Object, launches: Sequence[FailedLaunch], now: str) -> Object:
    """The patch that records the last of these launches: no host, no devices, and Failed if it was the last one possible."""
    if len(launches) >= MAX_LAUNCHES:
        return {**_recorded(launches), **failed_status(vmi, launches, now)}
    status, last = vmi.get("status") or {}, launches[-1]
    have = conditions.without_condition(status.get("conditions"), "DevicesReady")
    not_ready = Condition("Ready", False, last.reason, str(last))
    change: Object = {"phase": "Pending", "nodeName": None, "deviceStatus": None,
                      "conditions": conditions.with_condition(have, not_ready, now), **_recorded(launches)}
    if status.get("flavor"):
        change["flavor"] = dict.fromkeys(FLAVOR_PLACE)
    return change


def failed_status(vmi: Object, launches: Sequence[FailedLaunch], now: str) -> Object:
    """The patch for a VMI that is not launched again."""
    status = vmi.get("status") or {}
    not_ready = Condition("Ready", False, launches[-1].reason, summary(launches))
    return {"phase": "Failed", "conditions": conditions.with_condition(status.get("conditions"), not_ready, now),
            "phaseTransitionTimestamps": vm_api.entered(status.get("phaseTransitionTimestamps"), "Failed", now)}


def _recorded(launches: Sequence[FailedLaunch]) -> Object:
    return {FIELD: [launch.to_object() for launch in launches]}
