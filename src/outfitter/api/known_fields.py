"""Known field names by kind and version, as data, and the search for unknown ones (strict field validation).

A tree has the names of one level; `ANY` accepts everything below. Lists are checked item by item; "*" is the tree of every
value of a map. A tree is only given where it is complete: a kind without one is checked at its top level and in metadata
only."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Union

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import known_kubevirt_fields
from outfitter.api.validate import time_fields
from outfitter.errors import BadRequest

Tree = Mapping[str, Union["Tree", None]]
ANY = None
MAX_UNKNOWN = 1_000  # unknown fields that are looked for in an object


def _leaves(names: str) -> dict[str, Tree | None]:
    return dict.fromkeys(names.split())


OWNER = _leaves("apiVersion kind name uid controller blockOwnerDeletion")
MANAGED = _leaves("manager operation apiVersion time fieldsType fieldsV1 subresource")
METADATA: Tree = _leaves(
    "name generateName namespace selfLink uid resourceVersion generation creationTimestamp deletionTimestamp "
    "deletionGracePeriodSeconds labels annotations finalizers"
) | {"ownerReferences": OWNER, "managedFields": MANAGED}
CONDITION: Tree = _leaves("type status observedGeneration lastTransitionTime reason message")
REFERENCE: Tree = _leaves("kind namespace name uid apiVersion resourceVersion fieldPath")

# resource.k8s.io/v1
_EXPRESSIONS = _leaves("key operator values")
_NODE_SELECTOR: Tree = {"nodeSelectorTerms": {"matchExpressions": _EXPRESSIONS, "matchFields": _EXPRESSIONS}}
_SELECTORS: Tree = {"cel": _leaves("expression")}
_OPAQUE = _leaves("driver parameters")
_TOLERATION = _leaves("key operator value effect tolerationSeconds")
_CAPACITY_REQUEST: Tree = _leaves("requests")
_EXACT = _leaves("deviceClassName allocationMode count adminAccess") | {
    "selectors": _SELECTORS, "tolerations": _TOLERATION, "capacity": _CAPACITY_REQUEST}
_SUBREQUEST = _leaves("name deviceClassName allocationMode count") | {
    "selectors": _SELECTORS, "tolerations": _TOLERATION, "capacity": _CAPACITY_REQUEST}
_REQUEST: Tree = {"name": ANY, "exactly": _EXACT, "firstAvailable": _SUBREQUEST}
_FLAT_REQUEST: Tree = {"name": ANY, **_EXACT, "firstAvailable": _SUBREQUEST}
_RESULT = _leaves(
    "request driver pool device adminAccess bindingConditions bindingFailureConditions shareID consumedCapacity"
) | {"tolerations": _TOLERATION}
_ALLOCATION: Tree = {
    "devices": {"results": _RESULT, "config": _leaves("source requests") | {"opaque": _OPAQUE}},
    "nodeSelector": _NODE_SELECTOR,
    "allocationTimestamp": ANY,
}
_DEVICE_STATUS = _leaves("driver pool device shareID data") | {
    "conditions": CONDITION, "networkData": _leaves("interfaceName ips hardwareAddress")}
_CLAIM_STATUS: Tree = {
    "allocation": _ALLOCATION, "reservedFor": _leaves("apiGroup resource name uid"), "devices": _DEVICE_STATUS}
_COUNTERS: Tree = {"*": _leaves("value")}
_POLICY = _leaves("default validValues") | {"validRange": _leaves("min max step")}
_DEVICE: dict[str, Tree | None] = _leaves(
    "name nodeName allNodes bindsToNode bindingConditions bindingFailureConditions allowMultipleAllocations"
) | {
    "attributes": {"*": _leaves("bool bools int ints string strings version versions")},
    "capacity": {"*": {"value": ANY, "requestPolicy": _POLICY}},
    "consumesCounters": {"counterSet": ANY, "counters": _COUNTERS},
    "nodeSelector": _NODE_SELECTOR,
    "taints": _leaves("key value effect timeAdded"),
    "nodeAllocatableResourceMappings": {"*": _leaves("allocationMultiplier capacityKey")},
}
_BASIC_DEVICE: Tree = {"name": ANY, "basic": {name: tree for name, tree in _DEVICE.items() if name != "name"}}
_ALPHA_DEVICE: Tree = {"name": ANY, "basic": {**_DEVICE, "capacity": ANY}}


def _claim_spec(request: Tree) -> dict[str, Tree | None]:
    return {"devices": {
        "requests": request,
        "constraints": _leaves("requests matchAttribute distinctAttribute"),
        "config": {"requests": ANY, "opaque": _OPAQUE},
    }}


def _slice_spec(device: Tree) -> Tree:
    return _leaves("driver nodeName allNodes perDeviceNodeSelection") | {
        "pool": _leaves("name generation resourceSliceCount"),
        "nodeSelector": _NODE_SELECTOR,
        "devices": device,
        "sharedCounters": {"name": ANY, "counters": _COUNTERS},
    }


_CLASS_SPEC: dict[str, Tree | None] = {"selectors": _SELECTORS, "config": {"opaque": _OPAQUE}, "extendedResourceName": ANY}
# v1alpha3 had these for claims that a controller allocates.
_ALPHA_CLAIM_SPEC = _claim_spec(_FLAT_REQUEST) | {"controller": ANY}
_ALPHA_CLASS_SPEC = _CLASS_SPEC | {"suitableNodes": _NODE_SELECTOR}

# Fields besides apiVersion, kind and metadata.
TOP: Mapping[Kind, Tree] = {
    **known_kubevirt_fields.TOP,
    kinds.NAMESPACE: {"spec": _leaves("finalizers"), "status": {"phase": ANY, "conditions": CONDITION}},
    kinds.NODE: _leaves("spec status"),
    kinds.POD: _leaves("spec status"),
    kinds.EVENT: _leaves("reason message firstTimestamp lastTimestamp count type eventTime action reportingComponent "
                         "reportingInstance") | {
        "involvedObject": REFERENCE, "related": REFERENCE, "source": _leaves("component host"),
        "series": _leaves("count lastObservedTime")},
    kinds.CONFIG_MAP: _leaves("data binaryData immutable"),
    kinds.SECRET: _leaves("data stringData type immutable"),
    kinds.SERVICE_ACCOUNT: {
        "secrets": REFERENCE, "imagePullSecrets": _leaves("name"), "automountServiceAccountToken": ANY},
    kinds.LEASE: {"spec": _leaves("holderIdentity leaseDurationSeconds acquireTime renewTime leaseTransitions strategy "
                                  "preferredHolder")},
    kinds.DEVICE_CLASS: {"spec": _CLASS_SPEC},
    kinds.RESOURCE_CLAIM: {"spec": _claim_spec(_REQUEST), "status": _CLAIM_STATUS},
    kinds.RESOURCE_CLAIM_TEMPLATE: {"spec": {"metadata": METADATA, "spec": _claim_spec(_REQUEST)}},
    kinds.RESOURCE_SLICE: {"spec": _slice_spec(_DEVICE)},
    kinds.DEVICE_TAINT_RULE: {"spec": {"deviceSelector": _leaves("driver pool device"),
                                       "taint": _leaves("key value effect timeAdded")}, "status": {"conditions": CONDITION}},
}
OLDER: Mapping[tuple[Kind, str], Tree] = {
    (kinds.RESOURCE_CLAIM, "v1beta1"): {"spec": _claim_spec(_FLAT_REQUEST), "status": _CLAIM_STATUS},
    (kinds.RESOURCE_CLAIM, "v1alpha3"): {"spec": _ALPHA_CLAIM_SPEC, "status": _CLAIM_STATUS},
    (kinds.RESOURCE_CLAIM_TEMPLATE, "v1beta1"): {"spec": {"metadata": METADATA, "spec": _claim_spec(_FLAT_REQUEST)}},
    (kinds.RESOURCE_CLAIM_TEMPLATE, "v1alpha3"): {"spec": {"metadata": METADATA, "spec": _ALPHA_CLAIM_SPEC}},
    (kinds.RESOURCE_SLICE, "v1beta1"): {"spec": _slice_spec(_BASIC_DEVICE)},
    (kinds.RESOURCE_SLICE, "v1alpha3"): {"spec": _slice_spec(_ALPHA_DEVICE)},
    (kinds.DEVICE_CLASS, "v1alpha3"): {"spec": _ALPHA_CLASS_SPEC},
}


def tree(kind: Kind, version: str) -> Tree:
    """All known names of a kind in a version."""
    top = OLDER.get((kind, version)) or TOP.get(kind) or _leaves("spec status")
    return {"apiVersion": ANY, "kind": ANY, "metadata": METADATA, **top}


def unknown(kind: Kind, version: str, obj: Mapping[str, Any]) -> list[str]:
    """Paths of unknown fields in document order: "spec.devices.requests[0].x". No more than `MAX_UNKNOWN`."""
    return list(itertools.islice(_unknown_paths(obj, tree(kind, version), ""), MAX_UNKNOWN))


def _unknown_paths(value: Any, known: Tree | None, path: str) -> Iterator[str]:
    if known is None:
        return
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _unknown_paths(item, known, f"{path}[{place}]")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            here = f"{path}.{name}" if path else name
            if name in known or "*" in known:
                yield from _unknown_paths(inner, known.get(name, known.get("*")), here)
            else:
                yield here


# Metadata fields whose types all code relies on.
TEXTS = ("name", "generateName", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
MAPS = ("labels", "annotations")
EMPTY = (*MAPS, "finalizers", "ownerReferences", "managedFields")  # dropped when empty


def normalize(kind: Kind, obj: Any) -> Object:
    """The object with checked types of metadata, spec and status, and times in their normal form. Null fields are dropped, and
    so are empty maps and lists of metadata, as in Kubernetes. BadRequest names the field. `obj` is the caller's no more."""
    what = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
    if not isinstance(obj, dict):
        raise BadRequest(f"the object provided is unrecognized (must be of type {kind.kind}): it is {_type(obj)}")
    out = {name: value for name, value in obj.items() if value is not None}
    for part in ("metadata", "spec", "status"):
        if not isinstance(out.get(part, {}), dict):
            raise BadRequest(f"{what}: {part}: must be an object, it is {_type(out[part])}")
    meta = {name: value for name, value in out.get("metadata", {}).items() if value is not None}
    for name in TEXTS:
        if not isinstance(meta.get(name, ""), str):
            raise BadRequest(f"{what}: metadata.{name}: must be a string, it is {_type(meta[name])}")
    for name in MAPS:
        if name in meta:
            meta[name] = _texts(what, f"metadata.{name}", meta[name])
    finalizers = meta.get("finalizers", [])
    if not isinstance(finalizers, list) or not all(isinstance(finalizer, str) for finalizer in finalizers):
        raise BadRequest(f"{what}: metadata.finalizers: must be a list of strings")
    owners = meta.get("ownerReferences", [])
    if not isinstance(owners, list) or not all(isinstance(owner, dict) for owner in owners):
        raise BadRequest(f"{what}: metadata.ownerReferences: must be a list of objects")
    whole = {**out, "metadata": {name: value for name, value in meta.items() if value or name not in EMPTY}}
    time_fields.normalize_times(kind, whole, what)
    return whole


def _texts(what: str, path: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise BadRequest(f"{what}: {path}: must be an object of strings, it is {_type(value)}")
    for key, text in value.items():
        if not isinstance(text, str | None):
            raise BadRequest(f"{what}: {path}.{key}: must be a string, it is {_type(text)}; write it in quotes")
    return {key: text or "" for key, text in value.items()}


def _type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
