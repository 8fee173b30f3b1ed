"""Whether a structural schema accepts a value, as kube-apiserver decides it: nulls of fields are dropped first, and fields that
the schema does not know are not looked at. `test_crds_cluster` holds it against the real one."""

from __future__ import annotations

from typing import Any

from outfitter.api.kinds import Object

TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "object": (dict,), "array": (list,), "boolean": (bool,)}
MOST = 2 ** 63


def accepts(schema: Object, value: Any) -> bool:
    if not _typed(schema, value) or ("enum" in schema and value not in schema["enum"]):
        return False
    if isinstance(value, list):
        keys = [tuple(item.get(key) for key in schema["x-kubernetes-list-map-keys"]) for item in value
                if isinstance(item, dict)] if "x-kubernetes-list-map-keys" in schema else []
        return len(keys) == len(set(map(repr, keys))) and all(accepts(schema.get("items", {}), item) for item in value)
    if isinstance(value, dict):
        given = {name: inner for name, inner in value.items() if inner is not None}
        if any(name not in given for name in schema.get("required", ())):
            return False
        known = schema.get("properties", {})
        return all(accepts(known.get(name) or schema.get("additionalProperties") or {}, inner) for name, inner in given.items())
    return True


def _typed(schema: Object, value: Any) -> bool:
    if schema.get("x-kubernetes-int-or-string"):
        return isinstance(value, str) or _whole(value)
    if "type" not in schema:
        return True
    if schema["type"] == "integer":
        return _whole(value)
    return isinstance(value, TYPES[schema["type"]])


def _whole(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == int(value) and -MOST <= value < MOST
