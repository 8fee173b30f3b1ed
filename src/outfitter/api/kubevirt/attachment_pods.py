"""Attachment pods: each holds what is plugged into a running VM, on the host of the VM, because a pod that runs gets no more
devices. They belong to the launcher pod of the VM and go with it. Pure; KubeVirt has such pods for volumes.

| an attachment pod holds | for |
| --- | --- |
| a claim: one entry of the VMI's `resourceClaims` | every device that refers to the claim |
| a resource | the VF of one interface, whose network definition names the resource |

Written by a controller, scheduled as every pod, and run by the node agent. What refers to claims is listed by
`_by_interface`: a further kind of device that can be plugged is one more such list."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outfitter.api.kinds import POD, Object
from outfitter.api.kubevirt import network_info, vm

LABEL = "kubevirt.io"
LABELS: Mapping[Literal["claim", "interface"], str] = {"claim": "hotplug-claim", "interface": "hotplug-interface"}
ANNOTATIONS = {"claim": "outfitter.dev/claim", "interface": "outfitter.dev/interface"}  # its name
PREFIXES = {"claim": "hp-claim", "interface": "hp-nic"}  # of pods' names
PLUG_IN_PLACE = "outfitter.dev/plug-in-place"  # label of a Node: "true" where its agent runs attachment pods
IMAGE = "outfitter/launcher"


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


def build(launcher: Mapping[str, Any], instance: Mapping[str, Any], attachment: Attachment, resource: str = "") -> Object:
    """The pod for an attachment of the VMI. `resource`: what the definition of an interface's network takes."""
    meta, spec = launcher["metadata"], launcher["spec"]
    container: Object = {"name": vm.CONTAINER, "image": IMAGE, "resources": {}}
    pod: Object = {
        "apiVersion": "v1", "kind": POD.kind,
        "metadata": {
            "name": name(launcher, attachment), "namespace": meta["namespace"],
            "labels": {LABEL: LABELS[attachment.kind], vm.CREATED_BY: instance["metadata"]["uid"]},
            "annotations": {ANNOTATIONS[attachment.kind]: attachment.name},
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
    created and are not plugged."""
    in_domain, absent = _in_domain(instance), _absent(instance)
    listed = {entry.get("name") for entry in instance["spec"].get("resourceClaims") or ()}
    out = [attachment for interface, attachment in _by_interface(instance).items()
           if interface not in in_domain and interface not in absent and not has(launcher, attachment)
           and (attachment.kind != "claim" or attachment.name in listed)]
    return list(dict.fromkeys(out))


def needed(instance: Mapping[str, Any]) -> set[Attachment]:
    """Attachments whose pods stay: what is wanted, and what the domain still has."""
    in_domain, absent, attachments = _in_domain(instance), _absent(instance), _by_interface(instance)
    kept = {attachment for interface, attachment in attachments.items() if interface in in_domain or interface not in absent}
    return kept | {Attachment("interface", interface) for interface in in_domain if interface not in attachments}


def has(launcher: Mapping[str, Any], attachment: Attachment) -> bool:
    """Whether a launcher pod was created with what an attachment is about: it gets no attachment pod, every other one does."""
    if attachment.kind == "claim":
        return any(entry.get("name") == attachment.name for entry in launcher["spec"].get("resourceClaims") or ())
    # The launcher's container has a variable for each network that takes a resource.
    return any(entry.get("name") == f"KUBEVIRT_RESOURCE_NAME_{attachment.name}"
               for container in launcher["spec"].get("containers") or () for entry in container.get("env") or ())


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


def _in_domain(instance: Mapping[str, Any]) -> set[str]:
    reported = (instance.get("status") or {}).get("interfaces") or ()
    return {str(entry.get("name")) for entry in reported if "domain" in str(entry.get("infoSource") or "")}


def _absent(instance: Mapping[str, Any]) -> set[str]:
    return {str(entry["name"]) for entry in network_info.interfaces(instance) if entry.get("state") == "absent"}
