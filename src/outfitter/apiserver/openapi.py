"""OpenAPI v3, as much as clients need to know that the server checks fields itself: an index, and a small document per
group and version. Schemas are open: they name the fields that the server knows (`api.fields`, `api.validate.shape`), so that
`kubectl explain` can show them, and allow others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from outfitter.api import known_fields
from outfitter.api.kinds import Kind, Object
from outfitter.api.validate import schema
from outfitter.apiserver import discovery

_QUERY = ("dryRun", "fieldManager", "fieldValidation", "pretty")
_PATCHES = ("application/json-patch+json", "application/merge-patch+json")  # a strategic patch would need typed schemas
_TYPES: Mapping[Any, str] = {str: "string", int: "integer", bool: "boolean"}
_OPERATIONS = {"get": "get", "put": "put", "patch": "patch", "delete": "delete"}


class OpenApi:
    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds = tuple(kinds)
        places = {(kind.group, version) for kind in self._kinds for version in kind.versions}
        self._places = {_place(group, version): (group, version) for group, version in sorted(places)}

    def index(self) -> Object:
        """Where the documents are; the hash lets a client keep what it has."""
        entries = {}
        for place in self._places:
            digest = hashlib.sha256(msgspec.json.encode(self.document(place))).hexdigest().upper()
            entries[place] = {"serverRelativeURL": f"/openapi/v3/{place}?hash={digest}"}
        return {"paths": entries}

    def document(self, place: str) -> Object | None:
        """The document of "api/v1" or "apis/group/version"; None when nothing is served there."""
        if place not in self._places:
            return None
        group, version = self._places[place]
        kinds = [kind for kind in self._kinds if kind.group == group and version in kind.versions]
        routes: Object = {}
        for kind in kinds:
            scope = "namespaces/{namespace}/" if kind.namespaced else ""
            base = f"/{place}/{scope}{kind.plural}"
            what = {"group": kind.group, "version": version, "kind": kind.kind}
            reference = {"$ref": f"#/components/schemas/{_schema_name(kind, version)}"}
            routes[base] = {"post": _operation("post", what, reference)}
            routes[base + "/{name}"] = {
                method: _operation(action, what, reference) for method, action in _OPERATIONS.items()
            }
        return {
            "openapi": "3.0.0",
            "info": {"title": "Outfitter", "version": f"{discovery.MAJOR}.{discovery.MINOR}"},
            "paths": routes,
            "components": {"schemas": {_schema_name(kind, version): _schema(kind, version) for kind in kinds}},
        }


def _place(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _schema_name(kind: Kind, version: str) -> str:
    return ".".join([*reversed((kind.group or "core").split(".")), version, kind.kind])


def _schema(kind: Kind, version: str) -> Object:
    known = {"apiVersion": str, "kind": str, "metadata": schema.METADATA, **schema.SHAPES.get(kind.kind, {})}
    return {
        **_object(known_fields.tree(kind, version), known),
        "x-kubernetes-preserve-unknown-fields": True,
        "x-kubernetes-group-version-kind": [{"group": kind.group, "version": version, "kind": kind.kind}],
    }


def _object(tree: known_fields.Tree | None, known: Mapping[str, Any]) -> Object:
    """The fields that are known by name, where all of them are; else those whose type is."""
    types = {key.rstrip("!"): wanted for key, wanted in known.items()}
    properties = {name: _value((tree or {}).get(name), types.get(name)) for name in tree or types if name != "*"}
    return {"type": "object", **({"properties": properties} if properties else {})}


def _value(tree: known_fields.Tree | None, wanted: Any) -> Object:
    if isinstance(wanted, list):
        return {"type": "array", "items": _value(tree, wanted[0])}
    if isinstance(wanted, dict):
        return _object(tree, wanted)
    if wanted in _TYPES:
        return {"type": _TYPES[wanted]}
    return _object(tree, {}) if tree else {"x-kubernetes-preserve-unknown-fields": True}


def _operation(action: str, what: Object, reference: Object) -> Object:
    out: Object = {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": what,
        "parameters": [{"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}} for name in _QUERY],
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
    }
    if action == "patch":
        out["requestBody"] = {"content": {media: {"schema": {"type": "object"}} for media in _PATCHES}, "required": True}
    elif action in ("post", "put"):
        out["requestBody"] = {"content": {"application/json": {"schema": reference}}, "required": True}
    return out
