"""Starting, stopping and restarting a VirtualMachine, as KubeVirt's tools ask for it: what has to be written so that the
machine's controller sees the wish. A strategy that says by itself whether the machine runs is changed; one that leaves it to
people stays, and the wish is noted in status.stateChangeRequests for the controller to take away when it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outfitter.api import kinds, machine
from outfitter.api.kinds import Object
from outfitter.errors import Conflict

Action = Literal["start", "stop", "restart"]
ACTIONS: tuple[Action, ...] = ("start", "stop", "restart")


@dataclass(frozen=True, slots=True)
class Wish:
    """The machine as it has to be written, and which part of it."""

    machine: Object
    subresource: Literal["", "status"]


def wish(action: Action, vm: Object, instance: Mapping[str, Any] | None) -> Wish:
    """What the action changes. Conflict, with the reason, when the machine is not in a state for it."""
    strategy = machine.run_strategy(vm)
    alive = instance is not None and (instance.get("status") or {}).get("phase") not in machine.FINAL
    stop: list[Object] = [{"action": "Stop", "uid": instance["metadata"]["uid"]}] if instance is not None else []
    start: list[Object] = [{"action": "Start"}]
    if action == "start" and alive:
        raise _not(vm, "VM is already running")
    if not alive and (action == "restart" or (action == "stop" and strategy != "Always")):
        raise _not(vm, "VM is not running")
    if (action == "start" and strategy in ("Always", "Once")) or (action == "restart" and strategy in ("Halted", "Once")):
        raise _not(vm, f"{strategy} does not support manual {action} requests")
    if action == "start" and strategy == "Halted":
        return Wish(_meant(vm, runs=True), "")
    if action == "stop" and strategy == "Always":
        return Wish(_meant(vm, runs=False), "")
    if action == "stop" and strategy == "Halted":
        raise _not(vm, "VM is stopping already")
    wanted = {"start": [*stop, *start], "stop": stop, "restart": [*stop, *start]}[action]
    if noted := (vm.get("status") or {}).get("stateChangeRequests"):
        words = " and ".join(str(each.get("action")) for each in noted)
        raise _not(vm, f"unable to complete request: {words} already underway")
    return Wish({**vm, "status": {**(vm.get("status") or {}), "stateChangeRequests": wanted}}, "status")


def _meant(vm: Object, *, runs: bool) -> Object:
    """In the word in which it was said before."""
    said = {"running": runs} if vm["spec"].get("running") is not None else {"runStrategy": "Always" if runs else "Halted"}
    return {**vm, "spec": {**vm["spec"], **said}}


def _not(vm: Mapping[str, Any], why: str) -> Conflict:
    return Conflict(f'Operation cannot be fulfilled on {kinds.MACHINE.resource} "{vm["metadata"]["name"]}": {why}')
