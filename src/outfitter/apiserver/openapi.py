"""OpenAPI v3, as much as clients need to know that the server checks fields itself: an index, and a small document per
group and version. Schemas are open: they name the fields that the server knows (`api.known_fields`, `served_types`), describe
each (`descriptions`), so that `kubectl explain` can show them, and allow others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from outfitter.api import known_fields
from outfitter.api.kinds import Kind, Object
from outfitter.api.served import descriptions, served_types
from outfitter.api.served.descriptions import Path
from outfitter.api.validate.shapes import NUMBER, QUANTITY, Amount, Time
from outfitter.apiserver import discovery

_QUERY: Mapping[str, str] = {
    "dryRun": "All: check the request and answer it, and store nothing.",
    "fieldManager": "The name under which the client's changes are recorded.",
    "fieldValidation": "Strict rejects unknown and duplicate fields, Warn warns of them (the default), Ignore keeps silent.",
    "pretty": "Whether the answer is indented for reading.",
}
_PATCHES = ("application/json-patch+json", "application/merge-patch+json")  # a strategic patch would need typed schemas
_TYPES: Mapping[Any, str] = {str: "string", int: "integer", bool: "boolean", Time: "string"}
_OPERATIONS = {"get": "get", "put": "put", "patch": "patch", "delete": "delete"}


_INFO = {"title": "outfitter", "version": discovery.version()["gitVersion"]}
# What kubectl asks for, and what kube-apiserver answers: Go does not read the first as a content type.
V2_ASKED = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
V2_MEDIA = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def v2() -> Object:
    """OpenAPI v2 without a path. kubectl reads it about a kind that v3 does not have: with it, `kubectl apply` reports "no
    matches for kind", without it that validation failed."""
    return {"swagger": "2.0", "info": _INFO, "paths": {}}


def v2_protobuf() -> bytes:
    """The same as a message Document of gnostic's openapi.v2."""
    info = b"".join(_message_field(number, text.encode()) for number, text in enumerate(_INFO.values(), 1))
    return _message_field(1, b"2.0") + _message_field(2, info) + _message_field(8, b"")


def _message_field(number: int, data: bytes) -> bytes:
    """A field of bytes, text or a message of less than 128 bytes."""
    return bytes([number << 3 | 2, len(data)]) + data


class OpenApi:
    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds = tuple(kinds)
        places = {(kind.group, version) for kind in self._kinds for version in kind.versions}
        self._places = {_place(group, version): (group, version) for group, version in sorted(places)}
        self._documents: dict[str, Object] = {}  # built when first asked for
        self._index: Object | None = None

    def index(self) -> Object:
        """Where the documents are; the hash lets a client keep what it has."""
        if self._index is None:
            entries = {}
            for place in self._places:
                digest = hashlib.sha256(msgspec.json.encode(self.document(place))).hexdigest().upper()
                entries[place] = {"serverRelativeURL": f"/openapi/v3/{place}?hash={digest}"}
            self._index = {"paths": entries}
        return self._index

    def document(self, place: str) -> Object | None:
        """The document of "api/v1" or "apis/group/version"; None when nothing is served there."""
        if place in self._places and place not in self._documents:
            self._documents[place] = self._built(place)
        return self._documents.get(place)

    def _built(self, place: str) -> Object:
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
    served = _object(known_fields.tree(kind, version), served_types.served_types(kind.kind), (kind.kind,))
    return {
        **served,
        "description": descriptions.describe((kind.kind,)),
        "x-kubernetes-preserve-unknown-fields": True,
        "x-kubernetes-group-version-kind": [{"group": kind.group, "version": version, "kind": kind.kind}],
    }


def _object(tree: known_fields.Tree | None, types: Mapping[str, Any], path: Path) -> Object:
    """The fields that are known by name, where all of them are; else those whose type is."""
    out: Object = {"type": "object"}
    known: Mapping[str, Any] = tree or types
    inner = tree or {}
    if properties := {name: _field(inner.get(name), types.get(name), (*path, name)) for name in known if name != "*"}:
        out["properties"] = properties
    if known.get("*"):
        out["additionalProperties"] = _value(inner.get("*"), types.get("*"), path)
    return out


def _field(tree: known_fields.Tree | None, wanted: Any, path: Path) -> Object:
    description = descriptions.describe(path)
    if description == descriptions.KEPT:
        tree, wanted = None, _outermost(wanted)
    return {**_value(tree, wanted, path), "description": description}


def _outermost(wanted: Any) -> Any:
    """A type without the fields of its objects."""
    if isinstance(wanted, list):
        return [_outermost(wanted[0])]
    return dict if isinstance(wanted, Mapping) else wanted


def _value(tree: known_fields.Tree | None, wanted: Any, path: Path) -> Object:
    if isinstance(wanted, list):
        return {"type": "array", "items": _value(tree, wanted[0], path)}
    if isinstance(wanted, Mapping):
        return _object(tree, wanted, path)
    if wanted in _TYPES:
        return {"type": _TYPES[wanted]}
    if wanted in (QUANTITY, NUMBER, Amount):
        return {"x-kubernetes-int-or-string": True}
    if tree:
        return _object(tree, {}, path)
    return {"type": "object"} if wanted is dict else {"x-kubernetes-preserve-unknown-fields": True}


def _operation(action: str, what: Object, reference: Object) -> Object:
    out: Object = {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": what,
        "parameters": [{"name": name, "in": "query", "description": text, "schema": {"type": "string", "uniqueItems": True}}
                       for name, text in _QUERY.items()],
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
    }
    if action == "patch":
        out["requestBody"] = {"content": {media: {"schema": {"type": "object"}} for media in _PATCHES}, "required": True}
    elif action in ("post", "put"):
        out["requestBody"] = {"content": {"application/json": {"schema": reference}}, "required": True}
    return out
