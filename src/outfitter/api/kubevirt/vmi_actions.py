"""What people ask of a machine that runs, as KubeVirt's tools do: pause, unpause, reset, soft reboot. A wish is noted in the
instance's `status.stateChangeRequests` until the node has done it, so that it outlives every process in between. There is at
most one note that pauses or unpauses, for the last one counts, and one of each other kind.

A machine that is paused stays so by itself, not by a note: who pauses it with other tools, or lets it go on, is not fought."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm_actions
from outfitter.errors import Conflict

Action = Literal["pause", "unpause", "reset", "softreboot"]
ACTIONS: tuple[Action, ...] = ("pause", "unpause", "reset", "softreboot")
WORDS: Mapping[Action, str] = {"pause": "Pause", "unpause": "Unpause", "reset": "Reset", "softreboot": "SoftReboot"}
PAUSES = ("Pause", "Unpause")
PAUSED = "Paused"  # the condition
UNPAUSED = "kubevirt.io/virtual-machine-unpaused"  # the condition of its pod, which is not ready without it
FIELD = "stateChangeRequests"
START_PAUSED = "Paused"  # of spec.startStrategy


def action_requests(instance: Mapping[str, Any]) -> list[Object]:
    """What is still to be done, the oldest first."""
    return list((instance.get("status") or {}).get(FIELD) or ())


def with_action_request(action: Action, instance: Mapping[str, Any], now: str) -> list[Object]:
    """The notes with the wish among them. Conflict, with the reason, when the machine is not in a state for it."""
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
    over = PAUSES if word in PAUSES else (word,)
    return [*(note for note in have if note.get("action") not in over), {"action": word, "requestedAt": now}]


def requested_pause(instance: Mapping[str, Any]) -> bool | None:
    """Whether the machine is to be paused or to go on; None: it is to stay as it is."""
    return next(
        (note["action"] == "Pause" for note in reversed(action_requests(instance)) if note.get("action") in PAUSES), None
    )


def starts_paused(instance: Mapping[str, Any]) -> bool:
    return (instance.get("spec") or {}).get("startStrategy") == START_PAUSED


def _ignores_power_button(instance: Mapping[str, Any]) -> bool:
    """Nobody in its guest hears the power button."""
    features = ((instance.get("spec") or {}).get("domain") or {}).get("features") or {}
    return (features.get("acpi") or {}).get("enabled") is False and conditions.find(instance, "AgentConnected") is None


def _conflict(instance: Mapping[str, Any], why: str) -> Conflict:
    name = vm_actions.qualified_name(kinds.VMI, instance["metadata"]["name"])
    return Conflict(f"Operation cannot be fulfilled on {name}: {why}")
