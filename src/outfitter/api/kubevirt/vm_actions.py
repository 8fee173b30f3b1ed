"""Starting, stopping and restarting a VirtualMachine, as KubeVirt's tools ask for it: what has to be written so that the
machine's controller sees the wish. A strategy that says by itself whether the machine runs is changed; one that leaves it to
people stays, and the wish is noted in status.stateChangeRequests for the controller to take away when it is done.

What is asked of a machine while it runs is in `notes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.errors import BadRequest, Conflict

Action = Literal["start", "stop", "restart"]
ACTIONS: tuple[Action, ...] = ("start", "stop", "restart")
GROUP = "subresources.kubevirt.io"  # the API group in which actions on machines and instances are asked for
GRACE_FIELDS: Mapping[str, str] = {"stop": "gracePeriod", "restart": "gracePeriodSeconds"}  # of the options of an action
PAUSED: Object = {"paused": "true"}  # data of a request to start
DEFAULT_GRACE = 30  # seconds, of a machine that does not say


@dataclass(frozen=True, slots=True)
class ActionOptions:
    """What may be said besides the action."""

    dry_run: bool = False
    paused: bool = False  # start it with its processors standing still
    grace: int | None = None  # seconds that its guest gets to shut down; None: as its spec says
    outfit: bool = False  # asked by `outfit vm`: one that runs Once or stops is started too, and a start to come is taken back

    def body(self, action: str) -> Object:
        """As a request says them; `options` reads it."""
        said: Object = {"dryRun": ["All"] if self.dry_run else None, "paused": self.paused or None,
                        "outfit": self.outfit or None}
        if action in GRACE_FIELDS:
            said[GRACE_FIELDS[action]] = self.grace
        return {field: value for field, value in said.items() if value is not None}


PLAIN = ActionOptions()


@dataclass(frozen=True, slots=True)
class ObjectPatch:
    """One object of the machine's name, and what of it becomes otherwise, as a merge patch."""

    kind: Kind
    patch: Object
    subresource: Literal["", "status"] = ""


def parse_options(action: str, body: Any) -> ActionOptions:
    """The options of an action on a machine or instance, as its request's body says them. BadRequest names the field."""
    if not isinstance(body, Mapping):
        raise BadRequest(f"the body of {action} must be an object of options, or nothing")
    dry_run, paused = body.get("dryRun") or [], body.get("paused") or False
    if dry_run not in ([], ["All"]):
        raise BadRequest(f'dryRun: Unsupported value: {dry_run!r}: supported values: ["All"]')
    if not isinstance(paused, bool):
        raise BadRequest(f"paused: Invalid value: {paused!r}: must be true or false")
    field = GRACE_FIELDS.get(action, "")
    grace = body.get(field)
    if grace is not None and (type(grace) is not int or grace < 0):
        raise BadRequest(f"{field}: Invalid value: {grace!r}: gracePeriod has to be greater or equal to 0, in whole seconds")
    return ActionOptions(bool(dry_run), paused and action == "start", grace, outfit=body.get("outfit") is True)


def requested_changes(
    action: Action, vm: Object, instance: Mapping[str, Any] | None, said: ActionOptions = PLAIN
) -> list[ObjectPatch]:
    """What the action changes, all of it at once; `instance` is the machine's own. Conflict, with the reason, when the machine
    is not in a state for it."""
    strategy, alive = vm_api.run_strategy(vm), is_alive(instance)
    stop: list[Object] = [{"action": "Stop", "uid": instance["metadata"]["uid"]}] if instance is not None else []
    start: list[Object] = [{"action": "Start", **({"data": PAUSED} if said.paused else {})}]
    if action == "start" and alive:
        if not (said.outfit and is_stopping(vm, instance)):
            raise _conflict(vm, "VM is already running")
        if strategy != "Halted":
            return [_request_patch([*stop, *start])]
    never = {"start": ("Always", "Once"), "restart": ("Halted", "Once"), "stop": ()}[action]
    if strategy in never and not (strategy == "Once" and said.outfit):
        raise _conflict(vm, f"{strategy} does not support manual {action} requests")
    if action == "stop" and not alive and said.outfit and strategy != "Always" and will_start(vm, instance):
        return [_record_request(vm, instance, stop)]
    if not alive and (action == "restart" or (action == "stop" and strategy != "Always")):
        raise _conflict(vm, "VM is not running")
    other = _grace_patch(instance, said.grace) if instance is not None and alive else []
    if action == "start" and strategy == "Halted":
        return [_run_patch(vm, runs=True), *([_record_request(vm, instance, start)] if said.paused else [])]
    if action == "stop" and strategy == "Always":
        return [_run_patch(vm, runs=False), *other]
    if action == "stop" and strategy == "Halted":
        if said.grace is None or said.grace >= grace_period(instance or {}):
            raise _conflict(vm, "Halted only supports manual stop requests with a shorter graceperiod")
        return other
    wanted = {"start": [*stop, *start], "stop": stop, "restart": [*stop, *start]}[action]
    return [_record_request(vm, instance, wanted), *other]


def is_stopping(vm: Mapping[str, Any], instance: Mapping[str, Any] | None) -> bool:
    """Whether a machine has an instance that goes, and nothing that starts it again."""
    strategy, asked = vm_api.run_strategy(vm), [each["action"] for each in open_requests(vm, instance)]
    return (strategy == "Halted" and instance is not None) or (
        strategy != "Always" and bool(stopping_uid(vm, instance)) and "Start" not in asked)


def stopping_uid(vm: Mapping[str, Any], instance: Mapping[str, Any] | None) -> str:
    """The uid of an instance that goes, whatever comes after it; empty if there is none."""
    meta = (instance or {}).get("metadata") or {}
    stopped = any(each["action"] == "Stop" for each in open_requests(vm, instance))
    return str(meta["uid"]) if meta.get("deletionTimestamp") or stopped else ""


def is_alive(instance: Mapping[str, Any] | None) -> bool:
    return instance is not None and (instance.get("status") or {}).get("phase") not in vm_api.FINAL


def will_start(vm: Mapping[str, Any], instance: Mapping[str, Any] | None) -> bool:
    """Whether a machine that does not run will, unless it is stopped: it always does, was asked to, or failed and is to run
    again then."""
    failed = instance is not None and (instance.get("status") or {}).get("phase") == "Failed"
    strategy, asked = vm_api.run_strategy(vm), (vm.get("status") or {}).get("stateChangeRequests") or ()
    return strategy == "Always" or (strategy == "RerunOnFailure" and failed) or any(
        each.get("action") == "Start" for each in asked)


def open_requests(vm: Mapping[str, Any], instance: Mapping[str, Any] | None) -> tuple[Object, ...]:
    """Requests that still mean something: a stop is for one instance, by its uid, and done when that is gone; nobody starts a
    halted machine."""
    uid = (instance or {}).get("metadata", {}).get("uid")
    noted: list[Object] = (vm.get("status") or {}).get("stateChangeRequests") or []
    named = [{**each, "uid": each.get("uid") or uid} if each.get("action") == "Stop" else each for each in noted]
    return tuple(each for each in named if (each.get("action") == "Start" and vm_api.run_strategy(vm) != "Halted")
                 or (each.get("action") == "Stop" and uid is not None and each["uid"] == uid))


def grace_period(instance: Mapping[str, Any]) -> int:
    """How many seconds the guest of an instance gets to shut down."""
    said = (instance.get("spec") or {}).get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE if said is None else int(said)


def _record_request(vm: Object, instance: Mapping[str, Any] | None, wanted: list[Object]) -> ObjectPatch:
    """A stop takes the place of whatever was to come, and a start may follow the stop of one that has ended; else one wish is
    done before there is another."""
    noted, starts = open_requests(vm, instance), any(each["action"] == "Start" for each in wanted)
    ended = not is_alive(instance) and all(each["action"] == "Stop" for each in noted)
    if noted and starts and not ended:
        words = " and ".join(str(each.get("action")) for each in noted)
        raise _conflict(vm, f"unable to complete request: {words} already underway")
    return _request_patch(wanted)


def _request_patch(wanted: list[Object]) -> ObjectPatch:
    return ObjectPatch(kinds.VM, {"status": {"stateChangeRequests": wanted}}, "status")


def _grace_patch(instance: Mapping[str, Any], seconds: int | None) -> list[ObjectPatch]:
    if seconds is None or seconds == grace_period(instance):
        return []
    return [ObjectPatch(kinds.VMI, {"spec": {"terminationGracePeriodSeconds": seconds}})]


def _run_patch(vm: Object, *, runs: bool) -> ObjectPatch:
    """In the word in which it was said before."""
    said = {"running": runs} if vm["spec"].get("running") is not None else {"runStrategy": "Always" if runs else "Halted"}
    return ObjectPatch(kinds.VM, {"spec": said})


def _conflict(vm: Mapping[str, Any], why: str) -> Conflict:
    return Conflict(f'Operation cannot be fulfilled on {qualified_name(kinds.VM, vm["metadata"]["name"])}: {why}')


def qualified_name(kind: Kind, name: str) -> str:
    """An object as the answers to KubeVirt's tools call it: one machine, not its resource."""
    return f'{kind.singular}.{kind.group} "{name}"'
