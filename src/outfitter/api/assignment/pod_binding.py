"""Binding: how a custom scheduler gives a pod its node (POST pods/NAME/binding), as kube-scheduler does. Devices of device
plugins are checked and assigned by the node then; claims must have been allocated. Pure; called by the API server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.validate import names, pods
from outfitter.errors import BadRequest, Cause, Conflict, Invalid

KIND = "Binding"
BOUND: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}  # the answer


@dataclass(frozen=True, slots=True)
class Binding:
    node: str
    uid: str  # the pod's; "" if the scheduler does not say
    annotations: Mapping[str, str]  # become the pod's


def read(body: Any, name: str, namespace: str) -> Binding:
    """The Binding in a body, for the pod that the path names. BadRequest, Invalid: what is wrong with it."""
    if not isinstance(body, dict) or body.get("kind", KIND) != KIND or body.get("apiVersion", "v1") != "v1":
        raise BadRequest(f"the body must be a {KIND} of v1")
    meta, target = body.get("metadata") or {}, body.get("target") or {}
    if not isinstance(meta, dict) or not isinstance(target, dict):
        raise BadRequest("metadata, target: must be objects")
    for key, value in (("name", name), ("namespace", namespace)):
        if meta.get(key) not in (None, "", value):
            raise BadRequest(f"the {key} of the object ({meta[key]}) does not match the {key} on the URL ({value})")
    causes = list(names.subdomain(target.get("name") or None, "target.name"))
    if target.get("kind") not in (None, "", kinds.NODE.kind):
        causes.append(Cause("target.kind", f'Unsupported value: "{target["kind"]}": supported values: "{kinds.NODE.kind}"',
                            "FieldValueNotSupported"))
    causes += names.labels_and_annotations(meta, "metadata")
    if causes:
        raise _invalid(name, causes)
    return Binding(target["name"], meta.get("uid") or "", meta.get("annotations") or {})


def bound(pod: Object, binding: Binding, now: str) -> Object:
    """The pod with its node. Conflict: it cannot be bound now; Invalid: not with these annotations."""
    _check_unbound(pod, binding.uid)
    status = dict(pod.get("status") or {})
    have = conditions.with_condition(status.get("conditions"), Condition("PodScheduled", True), now)
    status["conditions"] = rejection_conditions.with_codes(have, {}, now)
    status.pop("nominatedNodeName", None)
    new = {**pod, "spec": {**pod["spec"], "nodeName": binding.node}, "status": status}
    if binding.annotations:
        annotations = {**(pod["metadata"].get("annotations") or {}), **binding.annotations}
        new["metadata"] = {**pod["metadata"], "annotations": annotations}
        if causes := [*pods.pod(new), *pods.unassigned(new, pod)]:  # assigned devices may be among them
            raise _invalid(pod["metadata"]["name"], causes)
    return new


def _invalid(name: str, causes: Sequence[Cause]) -> Invalid:
    return Invalid(f'{KIND} "{name}" is invalid: ' + "; ".join(f"{each.field}: {each.message}" for each in causes), causes)


def _check_unbound(pod: Object, uid: str) -> None:
    meta, spec = pod["metadata"], pod["spec"]
    name, node = meta["name"], spec.get("nodeName")
    gates = [gate.get("name") for gate in spec.get("schedulingGates") or ()]
    why = (f"its uid is {meta['uid']}, not {uid}: it was created again" if uid not in ("", meta["uid"]) else
           "it is being deleted" if meta.get("deletionTimestamp") else
           f'pod {name} is already assigned to node "{node}"' if node else
           f"it has scheduling gates: {', '.join(map(str, gates))}" if gates else "")
    if why:
        raise Conflict(f'Operation cannot be fulfilled on pods/binding "{name}": {why}')
