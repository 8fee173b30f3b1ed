"""Reads and sets status conditions of objects. Pure: the time is passed in. Used by controllers, node, scheduling and cli."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api.kinds import Object

UNRELEASED = "DevicesUnreleased"  # of a pod that has ended and still holds devices: the message says why
START_REFUSED = "StartRefused"  # reason of a Node's Ready: its host must not start with its configuration; the message says why
INTERFACES = "InterfacesReady"  # of a VMI, False while an interface is to be plugged or unplugged: reason is a rejection code
PLUGGED = "DevicesPlugged"  # of a VMI, False while a GPU or host device is to be plugged or unplugged: the same
DEVICES_HEALTHY = "DevicesHealthy"  # of a pod or VMI, False while a driver reports one of its devices as unhealthy
GATES_IN_USE = "DisabledGatesInUse"  # of the KubeVirt object


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: bool | None  # None: not known
    reason: str = ""
    message: str = ""


_WORDS = {True: "True", False: "False", None: "Unknown"}


def with_condition(have: Sequence[Mapping[str, Any]] | None, new: Condition, now: str) -> list[Object]:
    """The list with one condition replaced in place, else appended; lastTransitionTime changes only with the status. The order
    is kept, so that several writers do not fight over it."""
    entry: Object = {"type": new.type, "status": _WORDS[new.status], "lastTransitionTime": now}
    if new.reason:
        entry["reason"] = new.reason
    if new.message:
        entry["message"] = new.message
    out = [dict(old) for old in have or ()]
    for index, old in enumerate(out):
        if old.get("type") == new.type:
            if old.get("status") == entry["status"]:
                entry["lastTransitionTime"] = old.get("lastTransitionTime", now)
            return [*out[:index], entry, *out[index + 1:]]
    return [*out, entry]


def without_condition(have: Sequence[Mapping[str, Any]] | None, type_: str) -> list[Object]:
    return [dict(old) for old in have or () if old.get("type") != type_]


def find(obj: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((entry for entry in conditions if entry.get("type") == type_), None)


def is_true(obj: Mapping[str, Any], type_: str) -> bool:
    found = find(obj, type_)
    return found is not None and found.get("status") == "True"


def not_ready_reason(node: Mapping[str, Any] | None) -> str:
    """Why a node's VMs are not served, as a clause that follows its name; "" if they are: it is ready, or was refused at start
    and only takes no new ones."""
    if node is None:
        return "which no longer exists: its VMs end within a minute"
    ready = find(node, "Ready")
    if ready is None or ready.get("status") == "True" or ready.get("reason") == START_REFUSED:
        return ""
    return f"which is not ready: {ready.get('message') or ready.get('reason') or 'no reason given'}"
