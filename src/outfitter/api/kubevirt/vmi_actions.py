"""pause, unpause, reset and soft reboot of a running VMI, as virtctl requests them. An action request is recorded in the VMI's
`status.stateChangeRequests` until the node agent has done it, so that it survives restarts of processes. There is at most one
request to pause or unpause, the last one, and one of each other action.

A paused VMI stays paused in the hypervisor, not by a request: pausing or resuming it with other tools is not undone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm_actions
from outfitter.errors import Conflict

Action = Literal["pause", "unpause", "reset", "softreboot"]
ACTIONS: tuple[Action, ...] = ("pause", "unpause", "reset", "softreboot")
WORDS: Mapping[Action, str] = {"pause": "Pause", "unpause": "Unpause", "reset": "Reset", "softreboot": "SoftReboot"}
PAUSES = ("Pause", "Unpause")
PAUSED = "Paused"  # the condition
UNPAUSED = "kubevirt.io/virtual-machine-unpaused"  # readiness gate of its pod
FIELD = "stateChangeRequests"
START_PAUSED = "Paused"  # value of spec.startStrategy


def action_requests(instance: Mapping[str, Any]) -> list[Object]:
    """Pending action requests, oldest first."""
    return list((instance.get("status") or {}).get(FIELD) or ())


def with_action_request(action: Action, instance: Mapping[str, Any], now: str) -> list[Object]:
    """The pending requests with a new one. Conflict: the state of the VMI does not allow the action."""
    if (instance.get("status") or {}).get("phase") != "Running" or instance["metadata"].get("deletionTimestamp"):
        raise _conflict(instance, "VM is not running" if action in ("pause", "softreboot") else "VMI is not running")
    have, paused = action_requests(instance), requested_pause(instance)
    paused = conditions.is_true(instance, PAUSED) if paused is None else paused
    if action == "pause" and paused:
        raise _conflict(instance, "VMI is already paused")
    if action == "unpause" and not paused:
        raise _conflict(instance, "VMI is not paused")
    if action == "softreboot" and paused:
        raise _conflict(instance, "VMI is paused")
    if action == "softreboot" and _ignores_power_button(instance):
        raise _conflict(instance, "VMI neither have the agent connected nor the ACPI feature enabled")
    word = WORDS[action]
    replaced = PAUSES if word in PAUSES else (word,)
    return [*(request for request in have if request.get("action") not in replaced), {"action": word, "requestedAt": now}]


def requested_pause(instance: Mapping[str, Any]) -> bool | None:
    """Whether a pause (True) or an unpause (False) is requested; None: neither."""
    return next(
        (request["action"] == "Pause" for request in reversed(action_requests(instance)) if request.get("action") in PAUSES),
        None,
    )


def starts_paused(instance: Mapping[str, Any]) -> bool:
    return (instance.get("spec") or {}).get("startStrategy") == START_PAUSED


def _ignores_power_button(instance: Mapping[str, Any]) -> bool:
    """Whether the guest has neither ACPI nor an agent to receive a shutdown request."""
    features = ((instance.get("spec") or {}).get("domain") or {}).get("features") or {}
    return (features.get("acpi") or {}).get("enabled") is False and conditions.find(instance, "AgentConnected") is None


def _conflict(instance: Mapping[str, Any], why: str) -> Conflict:
    name = vm_actions.qualified_name(kinds.VMI, instance["metadata"]["name"])
    return Conflict(f"Operation cannot be fulfilled on {name}: {why}")


def gated(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is ready only while its VMI is not paused."""
    return any(gate.get("conditionType") == UNPAUSED for gate in pod["spec"].get("readinessGates") or ())


def unpaused_condition(*, paused: bool) -> Condition:
    """Of the pod of a VMI, for its readiness gate."""
    if not paused:
        return Condition(UNPAUSED, True, "NotPaused", "the virtual machine is not paused")
    return Condition(UNPAUSED, False, "Paused", "the virtual machine is paused")
