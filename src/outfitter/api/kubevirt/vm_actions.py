"""start, stop and restart of a VM, as virtctl requests them: the patches that an action makes. With run strategies Always and
Halted the strategy is changed; with the others an action request is recorded in status.stateChangeRequests, which the VM
controller removes when it is done. Actions on a running VMI are in `vmi_actions`. Called by apiserver and cli; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.errors import BadRequest, Conflict

Action = Literal["start", "stop", "restart"]
ACTIONS: tuple[Action, ...] = ("start", "stop", "restart")
MIGRATE = "migrate"  # creates a migration; who may start and stop a VM may not migrate it (`install.user_roles`)
MIGRATION_PREFIX = "kubevirt-migrate-vm-"  # of the names of migrations that it creates
GROUP = "subresources.kubevirt.io"  # the API group of the actions
GRACE_FIELDS: Mapping[str, str] = {"stop": "gracePeriod", "restart": "gracePeriodSeconds"}  # field of the options by action
PAUSED: Object = {"paused": "true"}  # data of a Start request
DEFAULT_GRACE = 30  # seconds, without terminationGracePeriodSeconds


@dataclass(frozen=True, slots=True)
class ActionOptions:
    """Options of an action."""

    dry_run: bool = False
    paused: bool = False  # start with paused vCPUs
    grace: int | None = None  # grace period in seconds; None: from the spec
    node_selector: Mapping[str, str] = field(default_factory=dict)  # of migrate: labels that the target must have
    outfit: bool = False  # from `outfit vm`: may start a VM with Once or one that is stopping, and cancel a pending start

    def body(self, action: str) -> Object:
        """The request body, which `parse_options` reads."""
        body: Object = {"dryRun": ["All"] if self.dry_run else None, "paused": self.paused or None,
                        "outfit": self.outfit or None}
        if action in GRACE_FIELDS:
            body[GRACE_FIELDS[action]] = self.grace
        if action == MIGRATE:
            body["addedNodeSelector"] = dict(self.node_selector) or None
        return {field: value for field, value in body.items() if value is not None}


PLAIN = ActionOptions()


@dataclass(frozen=True, slots=True)
class ObjectPatch:
    """A merge patch of the VM or its VMI; or, of another kind, an object to create."""

    kind: Kind
    patch: Object
    subresource: Literal["", "status"] = ""
    creates: bool = False


def parse_options(action: str, body: Any) -> ActionOptions:
    """The options in the request body of an action. BadRequest names the field."""
    if not isinstance(body, Mapping):
        raise BadRequest(f"the body of {action} must be an object of options, or nothing")
    dry_run, paused = body.get("dryRun") or [], body.get("paused") or False
    if dry_run not in ([], ["All"]):
        raise BadRequest(f'dryRun: Unsupported value: {dry_run!r}: supported values: ["All"]')
    if not isinstance(paused, bool):
        raise BadRequest(f"paused: Invalid value: {paused!r}: must be true or false")
    grace_field = GRACE_FIELDS.get(action, "")
    grace = body.get(grace_field)
    if grace is not None and (type(grace) is not int or grace < 0):
        raise BadRequest(f"{grace_field}: Invalid value: {grace!r}: gracePeriod has to be greater or equal to 0, in whole "
                         "seconds")
    selector = body.get("addedNodeSelector") or {}
    if not isinstance(selector, Mapping) or not all(isinstance(word, str) for pair in selector.items() for word in pair):
        raise BadRequest(f"addedNodeSelector: Invalid value: {selector!r}: must be labels of nodes with their values")
    return ActionOptions(bool(dry_run), paused and action == "start", grace, dict(selector) if action == MIGRATE else {},
                         outfit=body.get("outfit") is True)


def requested_migration(vm: Object, instance: Mapping[str, Any] | None, options: ActionOptions = PLAIN) -> ObjectPatch:
    """The migration of a VM to create. Conflict: it does not run. Whether it can migrate is decided by admission."""
    if instance is None or (instance.get("status") or {}).get("phase") != "Running":
        raise _conflict(vm, "VM is not running")
    return migration_of(instance, options)


def migration_of(instance: Mapping[str, Any], options: ActionOptions = PLAIN) -> ObjectPatch:
    meta = instance["metadata"]
    spec = {"vmiName": meta["name"], **({"addedNodeSelector": dict(options.node_selector)} if options.node_selector else {})}
    return ObjectPatch(kinds.MIGRATION, {
        "apiVersion": kinds.MIGRATION.api_version, "kind": kinds.MIGRATION.kind,
        "metadata": {"generateName": MIGRATION_PREFIX, "namespace": meta["namespace"]}, "spec": spec}, creates=True)


def requested_changes(
    action: Action, vm: Object, instance: Mapping[str, Any] | None, options: ActionOptions = PLAIN
) -> list[ObjectPatch]:
    """The patches of an action; `instance` is the VM's VMI. Written together, or else in this order, each at the revision that
    was read or that the one before gave: what shall hold when the VM starts or stops comes first. Conflict: the state of the VM
    does not allow it."""
    strategy, alive = vm_api.run_strategy(vm), is_alive(instance)
    stop: list[Object] = [{"action": "Stop", "uid": instance["metadata"]["uid"]}] if instance is not None else []
    start: list[Object] = [{"action": "Start", **({"data": PAUSED} if options.paused else {})}]
    if action == "start" and alive:
        if not (options.outfit and is_stopping(vm, instance)):
            raise _conflict(vm, "VM is already running")
        if strategy != "Halted":
            return [_request_patch([*stop, *start])]
    never = {"start": ("Always", "Once"), "restart": ("Halted", "Once"), "stop": ()}[action]
    if strategy in never and not (strategy == "Once" and options.outfit):
        raise _conflict(vm, f"{strategy} does not support manual {action} requests")
    if action == "stop" and not alive and options.outfit and strategy != "Always" and will_start(vm, instance):
        return [_record_request(vm, instance, stop)]
    if not alive and (action == "restart" or (action == "stop" and strategy != "Always")):
        raise _conflict(vm, "VM is not running")
    other = _grace_patch(instance, options.grace) if instance is not None and alive else []
    if action == "start" and strategy == "Halted":
        return [*([_record_request(vm, instance, start)] if options.paused else []), _run_patch(vm, runs=True)]
    if action == "stop" and strategy == "Always":
        return [*other, _run_patch(vm, runs=False)]
    if action == "stop" and strategy == "Halted":
        if options.grace is None or options.grace >= grace_period(instance or {}):
            raise _conflict(vm, "Halted only supports manual stop requests with a shorter graceperiod")
        return other
    wanted = {"start": [*stop, *start], "stop": stop, "restart": [*stop, *start]}[action]
    return [*other, _record_request(vm, instance, wanted)]


def is_stopping(vm: Mapping[str, Any], instance: Mapping[str, Any] | None) -> bool:
    """Whether the VMI of a VM is stopping and will not be started again."""
    strategy, actions = vm_api.run_strategy(vm), [request["action"] for request in open_requests(vm, instance)]
    return (strategy == "Halted" and instance is not None) or (
        strategy != "Always" and bool(stopping_uid(vm, instance)) and "Start" not in actions)


def stopping_uid(vm: Mapping[str, Any], instance: Mapping[str, Any] | None) -> str:
    """The uid of a VMI that is stopping; "" if it is not."""
    meta = (instance or {}).get("metadata") or {}
    stopped = any(request["action"] == "Stop" for request in open_requests(vm, instance))
    return str(meta["uid"]) if meta.get("deletionTimestamp") or stopped else ""


def is_alive(instance: Mapping[str, Any] | None) -> bool:
    return instance is not None and (instance.get("status") or {}).get("phase") not in vm_api.FINAL


def will_start(vm: Mapping[str, Any], instance: Mapping[str, Any] | None) -> bool:
    """Whether a VM that is not running will be started: by its run strategy, by a Start request, or again after a failure."""
    failed = instance is not None and (instance.get("status") or {}).get("phase") == "Failed"
    strategy, requests = vm_api.run_strategy(vm), (vm.get("status") or {}).get("stateChangeRequests") or ()
    return strategy == "Always" or (strategy == "RerunOnFailure" and failed) or any(
        request.get("action") == "Start" for request in requests)


def open_requests(vm: Mapping[str, Any], instance: Mapping[str, Any] | None) -> tuple[Object, ...]:
    """Action requests that are not done: a Stop is for one VMI by uid and done when that is gone; a Start of a Halted VM is
    void."""
    uid = (instance or {}).get("metadata", {}).get("uid")
    recorded: list[Object] = (vm.get("status") or {}).get("stateChangeRequests") or []
    named = [
        {**request, "uid": request.get("uid") or uid} if request.get("action") == "Stop" else request for request in recorded
    ]
    return tuple(request for request in named if (request.get("action") == "Start" and vm_api.run_strategy(vm) != "Halted")
                 or (request.get("action") == "Stop" and uid is not None and request["uid"] == uid))


def grace_period(instance: Mapping[str, Any]) -> int:
    """Seconds that the guest of a VMI gets to shut down."""
    seconds = (instance.get("spec") or {}).get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE if seconds is None else int(seconds)


def _record_request(vm: Object, instance: Mapping[str, Any] | None, wanted: list[Object]) -> ObjectPatch:
    """Records action requests. A Stop replaces pending requests, and a Start may follow the Stop of a VMI that has ended;
    otherwise a pending request must be done first (Conflict)."""
    pending, starts = open_requests(vm, instance), any(request["action"] == "Start" for request in wanted)
    ended = not is_alive(instance) and all(request["action"] == "Stop" for request in pending)
    if pending and starts and not ended:
        words = " and ".join(str(request.get("action")) for request in pending)
        raise _conflict(vm, f"unable to complete request: {words} already underway")
    return _request_patch(wanted)


def _request_patch(wanted: list[Object]) -> ObjectPatch:
    return ObjectPatch(kinds.VM, {"status": {"stateChangeRequests": wanted}}, "status")


def _grace_patch(instance: Mapping[str, Any], seconds: int | None) -> list[ObjectPatch]:
    if seconds is None or seconds == grace_period(instance):
        return []
    return [ObjectPatch(kinds.VMI, {"spec": {"terminationGracePeriodSeconds": seconds}})]


def _run_patch(vm: Object, *, runs: bool) -> ObjectPatch:
    """Sets the run strategy, in the field that the spec uses."""
    strategy = {"running": runs} if vm["spec"].get("running") is not None else {"runStrategy": "Always" if runs else "Halted"}
    return ObjectPatch(kinds.VM, {"spec": strategy})


def _conflict(vm: Mapping[str, Any], why: str) -> Conflict:
    return Conflict(f'Operation cannot be fulfilled on {qualified_name(kinds.VM, vm["metadata"]["name"])}: {why}')


def qualified_name(kind: Kind, name: str) -> str:
    """An object as KubeVirt's messages name it, with the singular kind."""
    return f'{kind.singular}.{kind.group} "{name}"'
