"""Known field names by kind and version, and the search for unknown ones (strict field validation). The names of Kubernetes'
kinds are those of their shapes (`validate.shapes`).

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
from outfitter.api.validate import node_placement, shapes, time_fields
from outfitter.api.validate.shapes import dra
from outfitter.errors import BadRequest

Tree = Mapping[str, Union["Tree", None]]
ANY = None
MAX_UNKNOWN = 1_000  # unknown fields that are looked for in an object


def _names(shape: Any) -> Any:
    """The field names of a shape."""
    if isinstance(shape, list):
        return _names(shape[0])
    if not isinstance(shape, Mapping):
        return ANY
    if "*" in shape:
        inner = _names(shape["*"])
        return ANY if inner is ANY else {"*": inner}
    return {name.rstrip("!"): _names(inner) for name, inner in shape.items()}


METADATA: Tree = _names(shapes.METADATA)

# resource.k8s.io before v1beta2: exactly was flat, and basic wrapped what describes a device.
_FLAT_CLAIM_SPEC = _names({"devices": {**dra.CLAIM_SPEC["devices"], "requests": [
    {"name": str, **dra.EXACTLY, "firstAvailable": dra.REQUEST["firstAvailable"]}]}})
_BASIC: Tree = _names({name: wanted for name, wanted in dra.DEVICE.items() if name != "name!"})
# v1alpha3 had these for claims that a controller allocates.
_ALPHA_CLAIM_SPEC = {**_FLAT_CLAIM_SPEC, "controller": ANY}
_ALPHA_CLASS_SPEC = _names({**dra.CLASS_SPEC, "suitableNodes": node_placement.NODE_SELECTOR})
_CLAIM_STATUS = _names(dra.CLAIM_STATUS)


def _slice_spec(basic: Tree) -> Tree:
    return {**_names(dra.SLICE_SPEC), "devices": {"name": ANY, "basic": basic}}


# Fields besides apiVersion, kind and metadata.
TOP: Mapping[Kind, Tree] = {
    **known_kubevirt_fields.TOP,
    **{kind: _names(shapes.SHAPES[kind.kind]) for kind in kinds.ALL if kind.builtin},
}
OLDER: Mapping[tuple[Kind, str], Tree] = {
    (kinds.RESOURCE_CLAIM, "v1beta1"): {"spec": _FLAT_CLAIM_SPEC, "status": _CLAIM_STATUS},
    (kinds.RESOURCE_CLAIM, "v1alpha3"): {"spec": _ALPHA_CLAIM_SPEC, "status": _CLAIM_STATUS},
    (kinds.RESOURCE_CLAIM_TEMPLATE, "v1beta1"): {"spec": {"metadata": METADATA, "spec": _FLAT_CLAIM_SPEC}},
    (kinds.RESOURCE_CLAIM_TEMPLATE, "v1alpha3"): {"spec": {"metadata": METADATA, "spec": _ALPHA_CLAIM_SPEC}},
    (kinds.RESOURCE_SLICE, "v1beta1"): {"spec": _slice_spec(_BASIC)},
    (kinds.RESOURCE_SLICE, "v1alpha3"): {"spec": _slice_spec({**_BASIC, "capacity": ANY})},
    (kinds.DEVICE_CLASS, "v1alpha3"): {"spec": _ALPHA_CLASS_SPEC},
}


def tree(kind: Kind, version: str) -> Tree:
    """All known names of a kind in a version."""
    top = OLDER.get((kind, version)) or TOP.get(kind) or {"spec": ANY, "status": ANY}
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
