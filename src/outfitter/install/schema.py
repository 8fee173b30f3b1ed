"""Structural schemas of CRDs, from the shapes that admission checks (`api.validate.shapes`), the known field names and their
descriptions. Pure; called by `crds`.

A schema is never stricter than admission, and no field that a user wrote is pruned: every object keeps unknown fields, as the
embedded server does. An amount that may be a fraction (cpu: 0.5) has no type, since int-or-string would refuse it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfitter.api import known_fields
from outfitter.api.kinds import Kind, Object
from outfitter.api.served import descriptions
from outfitter.api.served.descriptions import Path
from outfitter.api.validate.shapes import QUANTITY, SHAPES, Time
from outfitter.install.schema_rules import ENUMERATIONS, LIST_KEYS, UNCHECKED

KEEPS_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
_TYPES: Mapping[Any, Object] = {
    str: {"type": "string"}, int: {"type": "integer", "format": "int64"}, bool: {"type": "boolean"},
    Time: {"type": "string"},  # a format would refuse some times that admission accepts
    dict: {"type": "object", KEEPS_UNKNOWN: True}, QUANTITY: {"x-kubernetes-int-or-string": True},
}


def structural(kind: Kind, version: str) -> Object:
    """The schema of a kind in a version. Nothing is required at the top: an object that is stored without it can still be
    changed elsewhere."""
    tree = {name: inner for name, inner in known_fields.tree(kind, version).items() if name != "metadata"}
    shape = {name.rstrip("!"): wanted for name, wanted in SHAPES.get(kind.kind, {}).items()}
    out = _object(tree, {"apiVersion": str, "kind": str, **shape}, (kind.kind,))
    out["properties"]["metadata"] = {"type": "object"}  # the API server has its own schema of it
    return {**out, "description": descriptions.describe((kind.kind,))}


def _object(tree: Any, shape: Mapping[str, Any], path: Path, *, checked: bool = True) -> Object:
    """The fields that are known by name, where all of them are; else those whose type is."""
    types = {name.rstrip("!"): wanted for name, wanted in shape.items()}
    known, below = tree or types, tree or {}
    if "*" in known:
        return {"type": "object", "additionalProperties": _value(below.get("*"), types.get("*"), path, checked=checked)}
    out: Object = {KEEPS_UNKNOWN: True, "properties": {
        name: _field(below.get(name), types.get(name), (*path, name), checked=checked) for name in sorted(known)}}
    if not checked:
        return out
    required = {name[:-1] for name in shape if name.endswith("!")} | {*filter(None, [LIST_KEYS.get(".".join(path))])}
    return {"type": "object", **out} | ({"required": sorted(required)} if required else {})


def _field(tree: Any, wanted: Any, path: Path, *, checked: bool) -> Object:
    out = _value(tree, wanted, path, checked=checked)
    if (key := LIST_KEYS.get(".".join(path))) and checked:
        out |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    if text := descriptions.describe(path):
        out["description"] = text
    return out


def _value(tree: Any, wanted: Any, path: Path, *, checked: bool) -> Object:
    if isinstance(wanted, list):
        inside = checked and ".".join(path) not in UNCHECKED
        listed = {"type": "array"} if checked else {KEEPS_UNKNOWN: True}
        return {**listed, "items": _value(tree, wanted[0], path, checked=inside)}
    if isinstance(wanted, Mapping):
        return _object(tree, wanted, path, checked=checked)
    if tree and wanted in (None, dict):
        return _object(tree, {}, path, checked=checked and wanted is dict)
    typed = _TYPES.get(wanted) if checked else None
    if typed is None:
        return {KEEPS_UNKNOWN: True}
    values = ENUMERATIONS.get(".".join(path))
    return {**typed, "enum": list(values)} if values else dict(typed)
