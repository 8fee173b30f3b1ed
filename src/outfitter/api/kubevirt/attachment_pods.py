"""Attachment pods: each holds what is plugged into a running VM, on the host of the VM, because a pod that runs gets no more
devices. They belong to the launcher pod of the VM and go with it. Pure; KubeVirt has such pods for volumes.

| an attachment pod holds | for |
| --- | --- |
| a claim: one entry of the VMI's `resourceClaims` | every device that refers to the claim |
| a resource | the VF of one interface, whose network definition names the resource |

Written by a controller, scheduled as every pod, and run by the node agent. What refers to claims is listed by `_by_interface`
and `_by_device`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outfitter.api import conditions
from outfitter.api.kinds import POD, Object
from outfitter.api.kubevirt import device_refs, device_status, network_info, vm
from outfitter.api.kubevirt.vmi_actions import PAUSED

LABEL = "kubevirt.io"
LABELS: Mapping[Literal["claim", "interface"], str] = {"claim": "hotplug-claim", "interface": "hotplug-interface"}
ANNOTATIONS = {"claim": "outfitter.dev/claim", "interface": "outfitter.dev/interface"}  # its name
PREFIXES = {"claim": "hp-claim", "interface": "hp-nic"}  # of pods' names
PLUG_IN_PLACE = "outfitter.dev/plug-in-place"  # label of a Node: "true" where its agent runs attachment pods
IMAGE = "outfitter/launcher"
HOTPLUG = "hotplugDevice"  # of an entry of status.deviceStatus: the claim and the attachment pod of a plugged device
ATTACHED = "Attached"  # its phase, once the domain has it


@dataclass(frozen=True, slots=True)
class Attachment:
    """What one attachment pod holds."""

    kind: Literal["claim", "interface"]
    name: str  # in the VMI's resourceClaims, or of the interface


def launcher_uid(pod: Mapping[str, Any]) -> str | None:
    """The launcher pod for whose VM an attachment pod holds a device; None for other pods."""
    if held(pod) is None:
        return None
    reference = vm.owner(pod, POD.kind)
    return str(reference["uid"]) if reference is not None else None


def vmi_name(pod: Mapping[str, Any]) -> str:
    """The VMI for which an attachment pod holds a device; "" for other pods."""
    return str((pod["metadata"].get("annotations") or {}).get(vm.DOMAIN) or "") if launcher_uid(pod) is not None else ""


def held(pod: Mapping[str, Any]) -> Attachment | None:
    """What an attachment pod holds; None for other pods."""
    label = (pod["metadata"].get("labels") or {}).get(LABEL)
    for kind, value in LABELS.items():
        if label == value:
            return Attachment(kind, str((pod["metadata"].get("annotations") or {}).get(ANNOTATIONS[kind]) or ""))
    return None


def name(launcher: Mapping[str, Any], attachment: Attachment) -> str:
    """The same for the same VM and attachment, so that creating it twice creates it once."""
    digest = hashlib.sha256(f"{launcher['metadata']['uid']}/{attachment.kind}/{attachment.name}".encode()).hexdigest()[:10]
    return f"{PREFIXES[attachment.kind]}-{launcher['metadata']['name']}"[:52].rstrip("-.") + "-" + digest


def plugs_in_place(node: Mapping[str, Any] | None) -> bool:
    """Whether claimed devices are plugged into running VMs on a node."""
    return node is not None and (node["metadata"].get("labels") or {}).get(PLUG_IN_PLACE) == "true"


def is_plugged_into(launcher: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Whether an entry of status.deviceStatus is of a device that an attachment pod of this launcher pod holds, or held."""
    plugged = entry.get(HOTPLUG) or {}
    return plugged.get("attachPodName") == name(launcher, Attachment("claim", str(plugged.get("claimName") or "")))


def build(launcher: Mapping[str, Any], instance: Mapping[str, Any], attachment: Attachment, resource: str = "") -> Object:
    """The pod for an attachment of the VMI. `resource`: what the definition of an interface's network takes."""
    meta, spec = launcher["metadata"], launcher["spec"]
    container: Object = {"name": vm.CONTAINER, "image": IMAGE, "resources": {}}
    pod: Object = {
        "apiVersion": "v1", "kind": POD.kind,
        "metadata": {
            "name": name(launcher, attachment), "namespace": meta["namespace"],
            "labels": {LABEL: LABELS[attachment.kind], vm.CREATED_BY: instance["metadata"]["uid"]},
            "annotations": {ANNOTATIONS[attachment.kind]: attachment.name, vm.DOMAIN: instance["metadata"]["name"]},
            "ownerReferences": [{"apiVersion": "v1", "kind": POD.kind, "name": meta["name"], "uid": meta["uid"],
                                 "controller": True, "blockOwnerDeletion": True}]},
        "spec": {
            "restartPolicy": "Never", "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [spec["nodeName"]]}]}]}}},
            "tolerations": [{"operator": "Exists"}],  # its VM runs there already
            "containers": [container]}}
    if attachment.kind == "claim":
        listed = instance["spec"].get("resourceClaims") or ()
        pod["spec"]["resourceClaims"] = [dict(entry) for entry in listed if entry.get("name") == attachment.name]
        container["resources"] = {"claims": [{"name": attachment.name}]}
    else:
        container["resources"] = {"requests": {resource: "1"}, "limits": {resource: "1"}}
    return pod


def wanted(instance: Mapping[str, Any], launcher: Mapping[str, Any]) -> list[Attachment]:
    """What a running VMI is to have and its launcher pod does not have: of SR-IOV interfaces that were added since the pod was
    created and are not plugged, and of GPUs and host devices of claims that were added. Of the latter none while it is
    paused."""
    in_domain, absent = _in_domain(instance), _absent(instance)
    listed = {entry.get("name") for entry in instance["spec"].get("resourceClaims") or ()}
    nics = [attachment for interface, attachment in _by_interface(instance).items()
            if interface not in in_domain and interface not in absent]
    devices = [] if conditions.is_true(instance, PAUSED) else _by_device(instance)
    return [attachment for attachment in dict.fromkeys([*nics, *devices])
            if not has(launcher, attachment) and (attachment.kind != "claim" or attachment.name in listed)]


def needed(instance: Mapping[str, Any]) -> set[Attachment]:
    """Attachments whose pods stay: what is wanted, and what the domain still has."""
    in_domain, absent, attachments = _in_domain(instance), _absent(instance), _by_interface(instance)
    devices = {*_by_device(instance), *(Attachment("claim", str(claim)) for claim in hotplugged(instance).values())}
    kept = {attachment for interface, attachment in attachments.items() if interface in in_domain or interface not in absent}
    return kept | devices | {Attachment("interface", interface) for interface in in_domain if interface not in attachments}


def concerns(instance: Mapping[str, Any]) -> bool:
    """Whether a VMI has anything that an attachment pod may hold."""
    return bool(_by_interface(instance) or _by_device(instance) or hotplugged(instance))


def has(launcher: Mapping[str, Any], attachment: Attachment) -> bool:
    """Whether a launcher pod was created with what an attachment is about: it gets no attachment pod, every other one does."""
    if attachment.kind == "claim":
        return any(entry.get("name") == attachment.name for entry in launcher["spec"].get("resourceClaims") or ())
    # The launcher's container has a variable for each network that takes a resource.
    return any(entry.get("name") == f"KUBEVIRT_RESOURCE_NAME_{attachment.name}"
               for container in launcher["spec"].get("containers") or () for entry in container.get("env") or ())


def has_vf(launcher: Mapping[str, Any], network: Mapping[str, Any]) -> bool:
    """Whether a launcher pod was created with the VF of a network by claim: its containers list the request."""
    if (ref := network.get("resourceClaim")) is None:
        return False
    return any(entry.get("name") == ref.get("claimName") and entry.get("request") in (None, "", ref.get("requestName"))
               for container in launcher["spec"].get("containers") or ()
               for entry in (container.get("resources") or {}).get("claims") or ())



def of_network(network: Mapping[str, Any]) -> Attachment:
    """What holds the VF of an interface on a network."""
    if (ref := network.get("resourceClaim")) is not None:
        return Attachment("claim", str(ref.get("claimName") or ""))
    return Attachment("interface", str(network["name"]))


def _by_interface(instance: Mapping[str, Any]) -> dict[str, Attachment]:
    """SR-IOV interfaces on secondary networks, each with what holds its VF."""
    interfaces = {entry["name"]: entry for entry in network_info.interfaces(instance)}
    return {str(network["name"]): of_network(network) for network in network_info.networks(instance)
            if (interfaces.get(network["name"]) or {}).get("sriov") is not None and network.get("pod") is None}


def _by_device(instance: Mapping[str, Any]) -> list[Attachment]:
    """The claims of GPUs and host devices."""
    return [Attachment("claim", ref.claim) for ref in device_refs.written_refs(instance) if ref.by_claim and ref.claim]


def with_claims(launcher: Mapping[str, Any], attached: Iterable[Mapping[str, Any]]) -> Object:
    """A launcher pod with the claims of its attachment pods beside its own."""
    spec, status = dict(launcher["spec"]), dict(launcher.get("status") or {})
    for pod in attached:
        attachment = held(pod)
        if attachment is None or attachment.kind != "claim" or has(launcher, attachment):
            continue
        for part, field in ((spec, "resourceClaims"), (status, "resourceClaimStatuses")):
            more = ((pod["spec"] if part is spec else pod.get("status") or {}).get(field)) or ()
            part[field] = [*(part.get(field) or ()), *more]
    return {**launcher, "spec": spec, "status": status}


def plugged_refs(instance: Mapping[str, Any], launcher: Mapping[str, Any]) -> list[device_refs.DeviceRef]:
    """GPUs and host devices of claims that a running VMI got since its launcher pod was created: its container does not ask for
    their requests."""
    asked = {(entry.get("name"), entry.get("request") or None) for container in launcher["spec"].get("containers") or ()
             for entry in (container.get("resources") or {}).get("claims") or ()}
    return [ref for ref in device_refs.written_refs(instance) if ref.by_claim
            and (ref.claim, ref.request) not in asked and (ref.claim, None) not in asked]


def without_plugged(instance: Mapping[str, Any], launcher: Mapping[str, Any]) -> Object:
    """A VMI as its launcher pod was created for it: without the GPUs and host devices that were plugged since."""
    plugged = {(ref.list, ref.index) for ref in plugged_refs(instance, launcher)}
    if not plugged:
        return dict(instance)
    devices = dict(instance["spec"]["domain"]["devices"])
    for list_ in device_refs.LISTS:
        devices[list_] = [entry for index, entry in enumerate(devices.get(list_) or ()) if (list_, index) not in plugged]
    spec = instance["spec"]
    return {**instance, "spec": {**spec, "domain": {**spec["domain"], "devices": devices}}}


def hotplugged(instance: Mapping[str, Any]) -> dict[tuple[device_refs.List, str], str]:
    """GPUs and host devices that an attachment pod holds, by list and name, each with its entry of resourceClaims. One that was
    removed from the spec is among them until the guest has released it."""
    return {(list_, str(entry.get("name"))): str(entry[HOTPLUG].get("claimName") or "")
            for list_ in device_refs.LISTS for entry in device_status.statuses(instance, list_) if entry.get(HOTPLUG)}


def in_guest(instance: Mapping[str, Any], ref: device_refs.DeviceRef) -> bool:
    """Whether a running VM has a device by claim: it was started with it, or got it plugged."""
    found = device_status.status_of(instance, ref)
    return bool(found) and all(not entry.get(HOTPLUG) or entry[HOTPLUG].get("phase") == ATTACHED for entry in found)


def leaving(instance: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Entries of status.deviceStatus whose devices the spec does not have any more: their guest has not released them yet."""
    listed = {(ref.list, ref.name) for ref in device_refs.device_refs(instance)}
    return [entry for list_ in device_refs.LISTS for entry in device_status.statuses(instance, list_)
            if (list_, entry.get("name")) not in listed]


def _in_domain(instance: Mapping[str, Any]) -> set[str]:
    reported = (instance.get("status") or {}).get("interfaces") or ()
    return {str(entry.get("name")) for entry in reported if "domain" in str(entry.get("infoSource") or "")}


def _absent(instance: Mapping[str, Any]) -> set[str]:
    return {str(entry["name"]) for entry in network_info.interfaces(instance) if entry.get("state") == "absent"}
