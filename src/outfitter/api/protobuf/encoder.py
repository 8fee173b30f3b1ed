"""JSON objects of the built-in kinds as protobuf. What JSON has and the published message has not is left out. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from outfitter.api.protobuf import message_fields
from outfitter.api.protobuf.message_fields import MessageField
from outfitter.api.protobuf.wire_format import VARINT, tagged, varint

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encode(api_version: str, message: str, value: Mapping[str, Any]) -> bytes:
    out = bytearray()
    for field in message_fields.fields(api_version, message):
        if field.form == "!":
            if inner := encode(api_version, field.type, value):
                out += tagged(field.number, inner)
            continue
        content = value.get(field.name)
        if content is None:
            continue
        for item in _items(api_version, field, content):
            out += item
    return bytes(out)


def _items(api_version: str, field: MessageField, content: Any) -> Iterator[bytes]:
    if field.form == "[]":
        for item in content:
            yield _value(api_version, field.number, field.type, item)
    elif field.form == "{}":
        for key in sorted(content):
            yield tagged(field.number, _text(1, key) + _value(api_version, 2, field.type, content[key]))
    else:
        yield _value(api_version, field.number, field.type, content)


def _value(api_version: str, number: int, type_: str, value: Any) -> bytes:
    match type_:
        case "":
            return _text(number, str(value))
        case "int" | "bool":
            return _number(number, int(value))
        case "bytes":
            return tagged(number, base64.b64decode(value))
        case "Time" | "MicroTime":
            return tagged(number, _time(value))
        case "Quantity":
            return tagged(number, _text(1, str(value)))
        case "IntOrString":
            form = _number(1, int(isinstance(value, str)))
            return tagged(number, form + (_text(3, value) if isinstance(value, str) else _number(2, value)))
        case "FieldsV1" | "RawExtension":
            return tagged(number, _text(1, json.dumps(value, separators=(",", ":"))))
    return tagged(number, encode(api_version, type_, value))


def _time(text: str) -> bytes:
    since = datetime.fromisoformat(text) - _EPOCH
    return _number(1, since.days * 86_400 + since.seconds) + _number(2, since.microseconds * 1000)


def _text(number: int, text: str) -> bytes:
    return tagged(number, text.encode())


def _number(number: int, value: int) -> bytes:
    return varint(number << 3 | VARINT) + varint(value)
