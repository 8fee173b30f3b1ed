"""Attachment pods: each holds the VF of a network interface that is plugged into a running VM, on the host of the VM, because a
pod that runs gets no more devices. They belong to the launcher pod of the VM and go with it. Pure; KubeVirt has such pods for
volumes.

Written by a controller (embedded mode), scheduled as every pod, and run by the node agent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from outfitter.api.kinds import POD, Object
from outfitter.api.kubevirt import network_info, vm

LABEL, ATTACHES = "kubevirt.io", "hotplug-interface"
INTERFACE = "outfitter.dev/interface"  # annotation: the name of the interface
IMAGE = "outfitter/launcher"


def launcher_uid(pod: Mapping[str, Any]) -> str | None:
    """The launcher pod for whose VM an attachment pod holds a device; None for other pods."""
    if (pod["metadata"].get("labels") or {}).get(LABEL) != ATTACHES:
        return None
    reference = vm.owner(pod, POD.kind)
    return str(reference["uid"]) if reference is not None else None


def interface(pod: Mapping[str, Any]) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(INTERFACE) or "")


def name(launcher: Mapping[str, Any], network: str) -> str:
    """The same for the same VM and interface, so that making it twice makes it once."""
    digest = hashlib.sha256(f"{launcher['metadata']['uid']}/{network}".encode()).hexdigest()[:10]
    return f"hp-nic-{launcher['metadata']['name']}"[:52].rstrip("-.") + "-" + digest


def build(launcher: Mapping[str, Any], instance: Mapping[str, Any], network: Mapping[str, Any], resource: str) -> Object:
    """The pod for a network of the VMI. `resource`: what its definition takes; "" for a network by claim."""
    meta, spec = launcher["metadata"], launcher["spec"]
    container: Object = {"name": vm.CONTAINER, "image": IMAGE, "resources": {}}
    pod: Object = {
        "apiVersion": "v1", "kind": POD.kind,
        "metadata": {
            "name": name(launcher, network["name"]), "namespace": meta["namespace"],
            "labels": {LABEL: ATTACHES, vm.CREATED_BY: instance["metadata"]["uid"]},
            "annotations": {INTERFACE: network["name"]},
            "ownerReferences": [{"apiVersion": "v1", "kind": POD.kind, "name": meta["name"], "uid": meta["uid"],
                                 "controller": True, "blockOwnerDeletion": True}]},
        "spec": {
            "restartPolicy": "Never", "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [spec["nodeName"]]}]}]}}},
            "tolerations": [{"operator": "Exists"}],  # its VM runs there already
            "containers": [container]}}
    if resource:
        container["resources"] = {"requests": {resource: "1"}, "limits": {resource: "1"}}
    else:
        ref = network["resourceClaim"]
        listed = (instance["spec"].get("resourceClaims") or ())
        pod["spec"]["resourceClaims"] = [dict(entry) for entry in listed if entry.get("name") == ref.get("claimName")]
        container["resources"] = {"claims": [{"name": ref.get("claimName"), "request": ref.get("requestName")}]}
    return pod


def wanted(instance: Mapping[str, Any], launcher: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The networks of a running VMI whose VF its launcher pod does not have: those of SR-IOV interfaces that were added since
    the pod was made and are not plugged."""
    reported = {entry.get("name"): str(entry.get("infoSource") or "") for entry in
                (instance.get("status") or {}).get("interfaces") or ()}
    interfaces = {entry["name"]: entry for entry in network_info.interfaces(instance)}
    out = []
    for network in network_info.networks(instance):
        interface_ = interfaces.get(network["name"]) or {}
        if interface_.get("sriov") is None or interface_.get("state") == "absent" or network.get("pod") is not None:
            continue
        if "domain" in reported.get(network["name"], "") or has_device(launcher, network):
            continue
        out.append(network)
    return out


def has_device(launcher: Mapping[str, Any], network: Mapping[str, Any]) -> bool:
    """Whether a launcher pod was made with this network, and so has its VF: such a network gets no attachment pod, every other
    one does."""
    if (ref := network.get("resourceClaim")) is not None:
        claims = [claim for container in launcher["spec"].get("containers") or ()
                  for claim in (container.get("resources") or {}).get("claims") or ()]
        return any(claim.get("name") == ref.get("claimName") and claim.get("request") in (None, ref.get("requestName"))
                   for claim in claims)
    # The launcher's container has a variable for each network that takes a resource.
    return any(entry.get("name") == f"KUBEVIRT_RESOURCE_NAME_{network['name']}"
               for container in launcher["spec"].get("containers") or () for entry in container.get("env") or ())


def needed(instance: Mapping[str, Any]) -> set[str]:
    """The interfaces whose attachment pods stay: those that are wanted, and those that the domain still has."""
    wanted_ = {str(entry["name"]) for entry in network_info.interfaces(instance)
               if entry.get("sriov") is not None and entry.get("state") != "absent"}
    reported = (instance.get("status") or {}).get("interfaces") or ()
    return wanted_ | {str(entry.get("name")) for entry in reported if "domain" in str(entry.get("infoSource") or "")}
