"""Kubernetes' protobuf, read for the few kinds that `kubectl create namespace`, `configmap`, `secret` and `serviceaccount`
send in no other form. Answers are JSON, which those clients take. A field that is not in the table is refused, not dropped."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.apiserver import body_limits
from outfitter.errors import BadRequest, Unsupported
from outfitter.store.clock import rfc3339

MAGIC = b"k8s\x00"


@dataclass(frozen=True, slots=True)
class Field:
    """A field's name in JSON, and what its value is: "text", "bytes", "bool", "int", "time", or a message."""

    name: str
    of: str | Mapping[int, Field] = "text"
    repeated: bool = False
    map: bool = False  # repeated pairs of a text key and a value


Message = Mapping[int, Field]


def _texts(names: Mapping[int, str]) -> dict[int, Field]:
    return {number: Field(name) for number, name in names.items()}


_OWNER: Message = {**_texts({1: "kind", 3: "name", 4: "uid", 5: "apiVersion"}), 6: Field("controller", "bool"),
                   7: Field("blockOwnerDeletion", "bool")}
_METADATA: Message = {
    **_texts({1: "name", 2: "generateName", 3: "namespace", 4: "selfLink", 5: "uid", 6: "resourceVersion"}),
    7: Field("generation", "int"), 8: Field("creationTimestamp", "time"), 9: Field("deletionTimestamp", "time"),
    10: Field("deletionGracePeriodSeconds", "int"), 11: Field("labels", map=True), 12: Field("annotations", map=True),
    13: Field("ownerReferences", _OWNER, repeated=True), 14: Field("finalizers", repeated=True),
}
_REFERENCE: Message = _texts({1: "kind", 2: "namespace", 3: "name", 4: "uid", 5: "apiVersion", 6: "resourceVersion",
                              7: "fieldPath"})
_META = {1: Field("metadata", _METADATA)}
# By apiVersion and kind, as the envelope says them.
MESSAGES: Mapping[tuple[str, str], Message] = {
    (kinds.NAMESPACE.api_version, kinds.NAMESPACE.kind): {
        **_META, 2: Field("spec", {1: Field("finalizers", repeated=True)}), 3: Field("status", {1: Field("phase")})},
    (kinds.CONFIG_MAP.api_version, kinds.CONFIG_MAP.kind): {
        **_META, 2: Field("data", map=True), 3: Field("binaryData", "bytes", map=True), 4: Field("immutable", "bool")},
    (kinds.SECRET.api_version, kinds.SECRET.kind): {
        **_META, 2: Field("data", "bytes", map=True), 3: Field("type"), 4: Field("stringData", map=True),
        5: Field("immutable", "bool")},
    (kinds.SERVICE_ACCOUNT.api_version, kinds.SERVICE_ACCOUNT.kind): {
        **_META, 2: Field("secrets", _REFERENCE, repeated=True),
        3: Field("imagePullSecrets", {1: Field("name")}, repeated=True), 4: Field("automountServiceAccountToken", "bool")},
    ("v1", "DeleteOptions"): {
        1: Field("gracePeriodSeconds", "int"), 2: Field("preconditions", _texts({1: "uid", 2: "resourceVersion"})),
        3: Field("orphanDependents", "bool"), 4: Field("propagationPolicy"), 5: Field("dryRun", repeated=True)},
}
_TYPE: Message = _texts({1: "apiVersion", 2: "kind"})
_ENVELOPE: Message = {1: Field("type", _TYPE), 2: Field("raw", "raw"), 3: Field("encoding"), 4: Field("media")}


def read(data: bytes) -> Object:
    """The object in a protobuf body, as JSON would have said it."""
    if not data.startswith(MAGIC):
        raise BadRequest("the body is not Kubernetes' protobuf: it does not begin with its prefix")
    try:
        budget = _Budget()
        envelope = _message(data[len(MAGIC):], _ENVELOPE, budget)
        names = envelope.get("type", {})
        known = MESSAGES.get((names.get("apiVersion", ""), names.get("kind", "")))
        if known is None:
            raise _unsupported(f"a {names.get('kind') or 'nameless kind'}")
        return {**names, **_message(envelope.get("raw", b""), known, budget)}
    except (IndexError, ValueError, OverflowError) as error:
        raise BadRequest("the body is not Kubernetes' protobuf: it ends early or is damaged") from error


def _unsupported(what: str) -> Unsupported:
    return Unsupported(f"the body of the request was in an unknown format - {what} is not read from "
                       "application/vnd.kubernetes.protobuf; accepted media types include: application/json, application/yaml")


class _Budget:
    """How many fields a body may still have."""

    left = body_limits.MAX_VALUES

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise body_limits.too_many_values()


def _message(data: bytes, known: Message, budget: _Budget) -> Object:
    out: Object = {}
    for number, value in _fields(data):
        budget.spend()
        if number not in known:
            raise _unsupported(f"field {number} beside {', '.join(field.name for field in known.values())}")
        field = known[number]
        if field.map:
            entry = _message(value, {1: Field("key"), 2: Field("value", field.of)}, budget)
            out.setdefault(field.name, {})[entry.get("key", "")] = entry.get("value", "")
        elif field.repeated:
            out.setdefault(field.name, []).append(_value(value, field, budget))
        else:
            out[field.name] = _value(value, field, budget)
    return {name: value for name, value in out.items() if value not in ("", None, {})}


def _value(value: Any, field: Field, budget: _Budget) -> Any:
    if isinstance(value, int) != (field.of in ("int", "bool")):
        raise ValueError(field.name)
    match field.of:
        case "text":
            return value.decode()
        case "bytes":
            return base64.b64encode(value).decode()
        case "bool":
            return bool(value)
        case "int":
            return value - (1 << 64) if value >= 1 << 63 else value
        case "raw":
            return value
        case "time":
            seconds = _message(value, {1: Field("seconds", "int"), 2: Field("nanos", "int")}, budget).get("seconds")
            return rfc3339(datetime.fromtimestamp(seconds, UTC)) if seconds else None
        case _:
            return _message(value, field.of, budget)  # type: ignore[arg-type]  # the texts are all above


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers with their values: whole numbers and bytes are all that these messages have."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        if tag & 7 == 0:
            number, place = _varint(data, place)
            yield tag >> 3, number
        elif tag & 7 == 2:
            length, place = _varint(data, place)
            if place + length > len(data):
                raise ValueError("it ends early")
            yield tag >> 3, data[place:place + length]
            place += length
        else:
            raise ValueError("a wire type that is not used here")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number that is too long")
