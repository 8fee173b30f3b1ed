"""The launcher pod in which a VM runs. Pure: a VMI in, a pod out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api.kinds import VMI, Object
from outfitter.api.kubevirt import device_refs, failed_launches, migration, pod_claims, vm, vmi_actions
from outfitter.api.kubevirt.failed_launches import FailedLaunch
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.api.launcher.launcher_environment import NETWORK_RESOURCE
from outfitter.controllers import launcher_networks, launcher_resources
from outfitter.scheduling.dra import binding_conditions

IMAGE = "outfitter/launcher"
PLACEMENT = ("nodeSelector", "schedulerName", "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName")
DEFAULT = KubeVirtConfig()
LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def pod_name(instance: Mapping[str, Any]) -> str:
    """The same for the same instance, so that making the pod twice makes it once."""
    meta = instance["metadata"]
    return f"virt-launcher-{meta['name']}"[:57].rstrip("-.") + "-" + suffix(meta["uid"])


def suffix(*words: str) -> str:
    """Five letters that depend on the words alone."""
    number = int.from_bytes(hashlib.sha256("\x00".join(words).encode()).digest()[:8], "big")
    return "".join(LETTERS[number // len(LETTERS) ** place % len(LETTERS)] for place in range(5))


def planned_pod(
    instance: Mapping[str, Any], config: KubeVirtConfig, attachments: launcher_networks.Attachments, *,
    source: Mapping[str, Any] | None = None,
) -> Object:
    """The pod of a VMI whose network attachment definitions are looked up; `source` as below. NotReady: a network is missing,
    or it takes what is not permitted."""
    networks = launcher_networks.resources(instance, attachments, config.gates)
    return launcher_pod(instance, config, networks=networks, source=source)


def launcher_pod(
    instance: Mapping[str, Any], settings: KubeVirtConfig = DEFAULT, *, networks: Mapping[str, str] | None = None,
    source: Mapping[str, Any] | None = None,
) -> Object:
    """The pod of an instance. `networks`: the resource that each of its networks takes of the host; `source`: the pod that it
    moves away from. NotReady: it asks for what is not permitted."""
    meta, spec = instance["metadata"], instance["spec"]
    listed = [*(spec.get("resourceClaims") or ())] if source is None else _claims_that_move(instance, source)
    if own := vm.flavored(instance).get("claimName"):
        listed.append({"name": device_refs.FLAVOR_CLAIM, "resourceClaimName": own})
    resources = launcher_resources.resources(instance, settings, Counter((networks or {}).values()))
    container: Object = {"name": vm.CONTAINER, "image": IMAGE, "resources": resources}
    if networks:  # a device plugin lists functions by resource: the launcher learns which network each is for
        container["env"] = [{"name": f"{NETWORK_RESOURCE}_{name}", "value": taken} for name, taken in networks.items()]
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(instance),
            "namespace": meta["namespace"],
            "labels": {**(meta.get("labels") or {}), vm.LAUNCHER_LABEL: vm.LAUNCHER,
                       vm.CREATED_BY: meta["uid"], "vm.kubevirt.io/name": meta["name"][:63].rstrip("-.")},
            "annotations": {vm.DOMAIN: meta["name"], **launcher_networks.of_pod(instance, settings, source)},
            "ownerReferences": [{"apiVersion": VMI.api_version, "kind": VMI.kind, "name": meta["name"],
                                 "uid": meta["uid"], "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": spec.get("terminationGracePeriodSeconds", 30),
            "readinessGates": [{"conditionType": vmi_actions.UNPAUSED}],
            "containers": [container],
        },
    }
    for field in PLACEMENT:
        if spec.get(field):
            pod["spec"][field] = spec[field]
    if listed:
        pod["spec"]["resourceClaims"] = listed
    return pod


def _claims_that_move(instance: Mapping[str, Any], source: Mapping[str, Any]) -> list[Object]:
    """The claims of a VMI for the target of a migration: not those of devices that are unplugged. The VMI keeps these entries.
    The pod that it moves away from never had those of devices that were plugged, and its container asks for the requests of
    those that it was started with."""
    used = {ref.claim for ref in device_refs.request_refs(instance)}
    had = {entry.get("name") for entry in (source.get("spec") or {}).get("resourceClaims") or ()}
    left = pod_claims.entries_by_request(source)
    return [entry for entry in instance["spec"].get("resourceClaims") or () if entry.get("name") in used or (
        entry.get("name") in had and not (entry.get("resourceClaimTemplateName") and entry.get("name") in left))]


def target_pod(pod: Object, instance: Mapping[str, Any], job: Mapping[str, Any], host: str) -> Object:
    """A rendered launcher pod as the target of a migration: named after it, on another host than this one, and only where the
    migration allows it."""
    meta, spec = pod["metadata"], pod["spec"]
    labels = {**meta["labels"], migration.JOB_UID: job["metadata"]["uid"]}
    annotations = {**meta["annotations"], migration.JOB_NAME: job["metadata"]["name"]}
    # KubeVirt's node selector: the VMI's own labels win, so that a migration can only narrow the choice.
    selector = {**((job.get("spec") or {}).get("addedNodeSelector") or {}), **(spec.get("nodeSelector") or {})}
    return {**pod, "metadata": {**meta, "name": target_pod_name(instance, job), "labels": labels, "annotations": annotations},
            "spec": {**spec, **({"nodeSelector": selector} if selector else {}),
                     "affinity": _not_on(spec.get("affinity") or {}, host)}}


def target_pod_name(instance: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """The same for the same migration."""
    meta = instance["metadata"]
    return f"virt-launcher-{meta['name']}"[:57].rstrip("-.") + "-" + suffix(meta["uid"], job["metadata"]["uid"])


def _not_on(affinity: Mapping[str, Any], host: str) -> Object:
    """An affinity that also excludes one host: every term of the required ones, which are alternatives, does."""
    other = {"key": "metadata.name", "operator": "NotIn", "values": [host]}
    nodes = affinity.get("nodeAffinity") or {}
    required = nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    alternatives: Sequence[Object] = required.get("nodeSelectorTerms") or ({},)
    terms = [{**term, "matchFields": [*(term.get("matchFields") or ()), other]} for term in alternatives]
    required = {**required, "nodeSelectorTerms": terms}
    return {**affinity, "nodeAffinity": {**nodes, "requiredDuringSchedulingIgnoredDuringExecution": required}}


def keep_away(pod: Object, launches: Sequence[FailedLaunch]) -> Object:
    """The next launcher pod, which avoids the hosts of failed launches: our scheduler reads the annotation, with the reason and
    for a while; kube-scheduler prefers any other node."""
    hosts = failed_launches.excluded_hosts(launches)
    if not hosts:
        return pod
    annotations = {**pod["metadata"]["annotations"], **binding_conditions.skipped_hosts_annotation(hosts)}
    affinity = pod["spec"].get("affinity") or {}
    nodes = affinity.get("nodeAffinity") or {}
    elsewhere = {"weight": 100, "preference": {"matchFields": [
        {"key": "metadata.name", "operator": "NotIn", "values": [host]} for host in sorted(hosts)]}}
    preferred = [*(nodes.get("preferredDuringSchedulingIgnoredDuringExecution") or ()), elsewhere]
    nodes = {**nodes, "preferredDuringSchedulingIgnoredDuringExecution": preferred}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations},
            "spec": {**pod["spec"], "affinity": {**affinity, "nodeAffinity": nodes}}}
