"""Of what was chosen: its booking, its preparation, plugging it, and taking it along in a migration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text.rendering import NAMED, Sentence, Wording, message, plain, render

_Code = RejectionCode


def _condition(rejection: Rejection) -> str:
    message = rejection.detail.get("message")
    return f" ({message})" if message else ""


def _device_not_ready(rejection: Rejection, wording: Wording) -> str:
    name = rejection.device.short if rejection.device is not None else "a device"
    return f"{name} is not {rejection['condition']} yet{_condition(rejection)}"


def _device_failed(rejection: Rejection, wording: Wording) -> str:
    name = rejection.device.short if rejection.device is not None else "a device"
    return f"{name}: {rejection['condition']}{_condition(rejection)}"


def _several(causes: Sequence[Rejection], wording: Wording) -> str:
    more = f"; and {len(causes) - NAMED} more" if len(causes) > NAMED else ""
    return "; ".join(render(cause, wording) for cause in causes[:NAMED]) + more


def _ready_timeout(rejection: Rejection, wording: Wording) -> str:
    return f"not made ready within {rejection['seconds']} s: {_several(rejection.causes, wording)}"


def _given_back(rejection: Rejection, wording: Wording) -> str:
    return f"devices on {rejection['host'] or 'its host'} were given back: {_several(rejection.causes, wording)}"


def _no_free_twin(rejection: Rejection, wording: Wording) -> str:
    if not rejection["match"]:
        return f"no other host has a device of the same kind as {rejection['name']}"
    many = f"{rejection['wanted']} devices" if rejection["wanted"] > 1 else "a device"
    held = f" ({_several(rejection.causes, wording)})" if rejection.causes else ""
    return (f"{rejection['name']} needs {many} of the same kind on one other host; others have {rejection['match']}, at most "
            f"{rejection['free']} free on one{held}")


def _vanished(rejection: Rejection, wording: Wording) -> str:
    assert rejection.device is not None
    return f"{rejection.device.device} is no longer on the bus of {rejection['host']}, though the VM has it"


def _not_published(rejection: Rejection, wording: Wording) -> str:
    device = rejection.device
    assert device is not None
    return f"{device.device} of pool {device.pool} is no longer published by {device.driver}, though the VM has it"


SENTENCES: Mapping[RejectionCode, Sentence] = {
    _Code.PAGE_CONFLICT: message,
    _Code.DEVICE_NOT_READY: _device_not_ready,
    _Code.DEVICE_FAILED: _device_failed,
    _Code.DEVICE_READY_TIMEOUT: _ready_timeout,
    _Code.DEVICES_GIVEN_BACK: _given_back,
    _Code.CLAIM_NOT_ALLOCATED: lambda rejection, wording: f"claim {rejection['claim']} is not allocated",
    _Code.CLAIM_NOT_RESERVED: lambda rejection, wording: (
        f"pod {rejection['pod']} is not allowed to use claim {rejection['claim']}: it is not reserved for the pod"),
    _Code.NOT_BOOKED: lambda rejection, wording: (
        f"{', '.join(rejection['devices'])}: not booked for claim {rejection['claim']} on {rejection['host']} yet"),
    _Code.DEVICE_MISSING: message,
    _Code.DEVICE_IN_USE: message,
    _Code.DRIVER_NOT_BOUND: message,
    _Code.DRIVER_NOT_REGISTERED: lambda rejection, wording: (
        f"DRA driver {rejection['driver']} is not registered: claim {rejection['claim']} has a device of it"),
    _Code.DRIVER_CALL_FAILED: lambda rejection, wording: f"DRA driver {rejection['driver']}: {rejection['message']}",
    _Code.DRIVER_REFUSED: lambda rejection, wording: f"DRA driver {rejection['driver']}: {rejection['message']}",
    _Code.DRIVER_CALL_PENDING: lambda rejection, wording: (
        f"the DRA drivers of its claims have not answered for {rejection['seconds']} s"),
    _Code.IOMMU_GROUP_SHARED: message,
    _Code.VFS_PRESENT: message,
    _Code.PREPARE_FAILED: message,
    _Code.RELEASE_FAILED: message,
    _Code.DEVICE_PLUGIN_MISSING: lambda rejection, wording: (
        f"waiting for the device plugin of {', '.join(rejection['resources'])} on {rejection['host']}"
        + "".join(f"; {problem}" for problem in rejection.detail.get("problems", ()))),
    _Code.DEVICES_UNAVAILABLE: lambda rejection, wording: (
        f"requested number of devices unavailable for {rejection['resource']}. Requested: {rejection['wanted']}, Available: "
        f"{rejection['free']}"),
    _Code.NO_HEALTHY_DEVICE: lambda rejection, wording: (
        f"no healthy devices present; cannot allocate unhealthy devices {rejection['resource']}"),
    _Code.DEVICE_UNHEALTHY: lambda rejection, wording: (  # assigned; or, with a message, of a pod or VM that runs
        rejection.detail.get("message") or f"{rejection['id']} ({rejection['resource']}) is not healthy"),
    _Code.TOO_MANY_ASSIGNED: lambda rejection, wording: (
        f"container {rejection['container']} is assigned {rejection['assigned']} of {rejection['resource']} and requests "
        f"{rejection['wanted']}"),
    _Code.ASSIGNED_TWICE: lambda rejection, wording: (
        f"{rejection['id']} ({rejection['resource']}) is assigned to the containers {' and '.join(rejection['containers'])}"),
    _Code.TOPOLOGY_AFFINITY: plain("Resources cannot be allocated with Topology locality"),
    _Code.PLUGIN_CALL_FAILED: message,
    _Code.DEVICE_PLUGIN_REFUSED: lambda rejection, wording: (
        f"device plugin of {rejection['resource']}: {rejection['message']}"),
    _Code.PLUGIN_ANSWER_INVALID: message,
    _Code.DEVICE_VANISHED: _vanished,
    _Code.DEVICE_NOT_PUBLISHED: _not_published,
    _Code.NO_PCI_PORT: message,
    _Code.NIC_KEPT_BY_GUEST: message,
    _Code.NIC_NOT_PLUGGED: message,
    _Code.VF_NOT_BOOKED: message,
    _Code.VM_MIGRATES: message,
    _Code.DEVICE_KEPT_BY_GUEST: message,
    _Code.DEVICE_NOT_PLUGGED: message,
    _Code.DEVICE_NOT_BOOKED: message,
    _Code.NO_FREE_DEVICE_ON_HOST: message,
    _Code.VM_PAUSED: message,
    _Code.VM_STOPS: message,
    _Code.PLUG_NOT_IN_PLACE: message,
    _Code.FLAVOR_DEVICE: message,
    _Code.CLAIM_BY_NAME: lambda rejection, wording: (
        f"claim {rejection['claim']} is referenced by name: it is one allocation on one host and cannot follow"),
    _Code.DEVICE_NOT_MIGRATABLE: lambda rejection, wording: (
        f"{rejection['name']} of the VM is a device that is not marked as live migratable"),
    _Code.DEVICE_BY_RESOURCE: lambda rejection, wording: (
        f"{rejection['name']} is requested by resource name: only devices of claims travel"),
    _Code.SEVERAL_MEDIATED_DEVICES: lambda rejection, wording: (
        f"{rejection['name']} of the VM is a mediated device, which travels only if it is its one GPU or host device"),
    _Code.ALIAS_NOT_MIGRATABLE: lambda rejection, wording: (
        f"alias {rejection['alias']} of the flavor, by which the VM has {rejection['name']}, does not say live_migratable"),
    _Code.NO_FREE_TWIN: _no_free_twin,
    _Code.NETWORK_NOT_READY: message,
    _Code.SECRET_MISSING: message,
    _Code.SOURCES_DISAGREE: message,
    _Code.DOMAIN_INVALID: message,
    _Code.HYPERVISOR_REFUSED: message,
    _Code.HYPERVISOR_AWAY: message,
    _Code.LAUNCHER_AWAY: message,
    _Code.LAUNCHER_VERSION: message,
}
