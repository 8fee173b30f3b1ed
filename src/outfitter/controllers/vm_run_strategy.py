"""Whether a VM should have a VMI now, and its printable status. Pure: objects and a time in, a decision
and words out.

A VM has a run strategy (`runStrategy`, or the older `running`), and users request starts and stops through
`status.stateChangeRequests`, as KubeVirt's own tools do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from outfitter.api import conditions
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.kubevirt import vm_actions

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=10), timedelta(minutes=5)  # after a first failure, and at most
STEADY = timedelta(minutes=1)  # a VMI that ran this long is not failing repeatedly
AGAIN = ("Always", "RerunOnFailure")  # strategies that restart a VM that failed
ORPHAN = "orphan"  # finalizer of a VM that is deleted alone: its dependents stay
RERUN: Object = {"action": "Start", "data": {"after": "failure"}}  # written by this controller: the restart waits for its delay


@dataclass(frozen=True, slots=True)
class RunDecision:
    """What to do about the instance, and which of the requests are still open then."""

    do: Literal["create", "delete", "nothing"] = "nothing"
    requests: tuple[Object, ...] = ()
    why: str = ""
    wait: timedelta | None = None  # nothing before that: it failed, and is tried again later
    paused: bool = False  # what is created starts with its processors standing still


def decide(vm: Mapping[str, Any], instance: Mapping[str, Any] | None, now: datetime) -> RunDecision:
    """What is to be done for a VM and its VMI, if it has one."""
    requests, how = open_requests(vm, instance), vm_api.run_strategy(vm)
    first = requests[0]["action"] if requests else ""
    if vm["metadata"].get("deletionTimestamp"):  # another finalizer may keep it for long
        alone = ORPHAN in (vm["metadata"].get("finalizers") or ())
        ends = instance is not None and not alone and not instance["metadata"].get("deletionTimestamp")
        return RunDecision("delete", requests, "it is deleted itself") if ends else RunDecision(requests=requests)
    if instance is None:
        if first != "Start" and not _starts_by_itself(vm, how):
            return RunDecision(requests=requests)
        if (left := _pause(vm, now)) is not None and (first != "Start" or requests[0] == RERUN):
            return RunDecision(requests=requests, wait=left, why="it failed and is tried again later")
        if first != "Start":
            return RunDecision("create", requests)
        return RunDecision("create", requests[1:], paused=(requests[0].get("data") or {}).get("paused") == "true")
    if instance["metadata"].get("deletionTimestamp"):
        return RunDecision(requests=requests)
    if first == "Stop":
        return RunDecision("delete", requests, "it was asked to stop")  # which is done when the instance is gone
    if how == "Halted":
        return RunDecision("delete", requests, "it is halted")
    phase = (instance.get("status") or {}).get("phase")
    if phase in vm_api.FINAL:
        if how == "RerunOnFailure" and phase == "Failed" and not requests:
            return RunDecision(requests=(RERUN,))  # before the VMI is deleted: afterwards the reason would be lost
        again = how == "Always" or first == "Start"
        return (
            RunDecision("delete", requests, f"it has {'ended' if phase == 'Succeeded' else 'failed'}")
            if again
            else RunDecision(requests=requests)
        )
    return RunDecision(requests=requests[1:] if first == "Start" else requests)


def is_stopped(instance: Mapping[str, Any] | None, act: RunDecision) -> bool:
    """Whether the VM is stopped and stays so until a user starts it: not between the two halves of a restart, nor while it
    waits for its next start after a failure."""
    if act.do != "nothing" or act.wait is not None or any(one["action"] == "Start" for one in act.requests):
        return False
    return instance is None or bool((instance.get("status") or {}).get("phase") in vm_api.FINAL
                                    and not instance["metadata"].get("deletionTimestamp"))


def open_requests(vm: Mapping[str, Any], instance: Mapping[str, Any] | None) -> tuple[Object, ...]:
    """Requests that still mean something; our own request only while the VM is to run again after a failure."""
    reruns = vm_api.run_strategy(vm) == "RerunOnFailure"
    return tuple(one for one in vm_actions.open_requests(vm, instance) if reruns or one != RERUN)


def _starts_by_itself(vm: Mapping[str, Any], how: str) -> bool:
    """Whether a VM without a VMI gets one without a request. RerunOnFailure and Once start when the VM gets that strategy,
    not whenever there is no instance: who stopped it, or deleted the instance, meant it."""
    return how == "Always" or (how in ("RerunOnFailure", "Once") and (vm.get("status") or {}).get("runStrategy") != how)


def always_runs(vm: Mapping[str, Any]) -> bool:
    """Whether it runs again whatever its status says, so that nothing depends on when that is written."""
    return vm_api.run_strategy(vm) == "Always"


def strategy_taken_up(
    vm: Mapping[str, Any], instance: Mapping[str, Any] | None, act: RunDecision, *, failed: bool
) -> str | None:
    """The strategy that has been acted upon: not yet the new one while the start that belongs to it is to come."""
    going = instance is not None and instance["metadata"].get("deletionTimestamp")
    if going or (instance is None and (act.wait is not None or failed)):
        return (vm.get("status") or {}).get("runStrategy")
    return vm_api.run_strategy(vm)


def _pause(vm: Mapping[str, Any], now: datetime) -> timedelta | None:
    moment = _time((_remembered(vm) or {}).get("retryAfterTimestamp"))
    left = moment - now if moment else timedelta()
    return left if left > timedelta() else None


def _remembered(vm: Mapping[str, Any]) -> Object | None:
    """The failures in the status. Other writers may have written it: what cannot be parsed counts as none."""
    known = (vm.get("status") or {}).get("startFailure")
    return known if isinstance(known, dict) else None


def _time(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def failure(vm: Mapping[str, Any], instance: Mapping[str, Any] | None, now: datetime) -> Object | None:
    """What is remembered of starts that failed: how often in a row, and when the next one may come. Gone once an instance has
    run for a while, and when a user stops the VM."""
    known = _remembered(vm)
    if vm_api.run_strategy(vm) not in AGAIN or any(one["action"] == "Stop" for one in open_requests(vm, instance)):
        return None  # the next start is a user's
    if instance is None:
        return known
    phase, uid = (instance.get("status") or {}).get("phase"), instance["metadata"]["uid"]
    if phase == "Failed" and (known or {}).get("lastFailedVMIUID") != uid:
        before = (known or {}).get("consecutiveFailCount")
        count = (before if isinstance(before, int) else 0) + 1
        pause = min(FIRST_PAUSE * 2 ** min(count - 1, 10), LONGEST_PAUSE)
        return {"consecutiveFailCount": count, "lastFailedVMIUID": uid, "retryAfterTimestamp": _moment(now + pause)}
    return None if known and phase == "Running" and steady_in(instance, now) is None else known


def steady_in(instance: Mapping[str, Any], now: datetime) -> timedelta | None:
    """How long it takes until a running instance counts as steady; None: it is."""
    ready = conditions.find(instance, "Ready")
    since = _time(ready.get("lastTransitionTime")) if ready is not None and ready.get("status") == "True" else None
    if since is None:
        return STEADY
    left = STEADY - (now - since)
    return left if left > timedelta() else None


def _moment(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def printable(vm: Mapping[str, Any], instance: Mapping[str, Any] | None, act: RunDecision) -> str:
    """status.printableStatus, as in KubeVirt."""
    if vm["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if instance is None:
        if act.wait is not None:
            return "CrashLoopBackOff"
        waits = vm_api.run_strategy(vm) == "WaitAsReceiver"
        return "Starting" if act.do == "create" else "WaitingForReceiver" if waits else "Stopped"
    if instance["metadata"].get("deletionTimestamp") or act.do == "delete":
        return "Stopping"
    phase = (instance.get("status") or {}).get("phase")
    if phase == "Running":
        return "Paused" if conditions.is_true(instance, "Paused") else "Running"
    if phase in vm_api.FINAL:
        return "Stopped"
    scheduled = conditions.find(instance, "PodScheduled")
    unfit = scheduled is not None and scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    return "ErrorUnschedulable" if unfit else "Starting"
