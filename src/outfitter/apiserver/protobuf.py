"""Bodies in Kubernetes' protobuf, which Go clients and drivers send: read for the built-in kinds, as JSON would have said them.
Answers are JSON, which those clients accept. As in Go a field whose number is not known is ignored, a message that is sent
twice is merged, and a zero value counts as absent unless the field is a pointer in Go. Numbers and types: `api.protobuf`."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.protobuf import message_fields
from outfitter.api.protobuf.message_fields import DELETE_OPTIONS, KINDS, SCALARS, SPECIAL, MessageField
from outfitter.api.protobuf.wire_format import WireValue, read_fields, read_varints, signed
from outfitter.apiserver import body_limits
from outfitter.errors import BadRequest, Unsupported, shortened
from outfitter.store.clock import rfc3339, rfc3339_micro

MAGIC = b"k8s\x00"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RAW = ("RawExtension", "FieldsV1")

ReadJson = Callable[[bytes], Any]


def read(data: bytes, read_json: ReadJson) -> Object:
    """The object in a body: the envelope runtime.Unknown (1 apiVersion and kind, 2 the object) after four bytes. `read_json`
    reads the JSON that some fields contain, within the limits of bodies."""
    if not data.startswith(MAGIC):
        raise BadRequest("the body is not Kubernetes' protobuf: it does not begin with its prefix")
    body = _BodyReader(read_json)
    try:
        envelope = body.contents(data[len(MAGIC):])
        names = body.contents(_bytes(envelope.get(1, b"")))
        api_version, kind = _bytes(names.get(1, b"")).decode(), _bytes(names.get(2, b"")).decode()
        if kind == DELETE_OPTIONS:
            table = "v1"
        elif kind in KINDS.get(api_version, ()):
            table = api_version
        else:
            raise Unsupported(
                "the body of the request was in an unknown format - "
                f"{shortened(kind) or 'an object without a kind'} of {shortened(api_version) or 'no apiVersion'} is not read "
                "from application/vnd.kubernetes.protobuf; accepted media types include: application/json, application/yaml")
        out = {"apiVersion": api_version, "kind": kind, **body.message(_bytes(envelope.get(2, b"")), table, kind, {})}
    except (IndexError, ValueError, OverflowError) as error:
        raise BadRequest("the body is not Kubernetes' protobuf: it ends early or is damaged") from error
    if body.has_json:
        body_limits.check_size(out)
    return out


class _BodyReader:
    """One body, and how many fields it may still have."""

    def __init__(self, read_json: ReadJson) -> None:
        self._read_json = read_json
        self._left = body_limits.MAX_VALUES
        self.has_json = False

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise body_limits.too_many_values()

    def contents(self, data: bytes) -> dict[int, WireValue]:
        """The last value of each field."""
        out = {}
        for number, value in read_fields(data):
            self._spend()
            out[number] = value
        return out

    def message(self, data: bytes, table: str, name: str, out: Object) -> Object:
        """`out` with what the message says; Go merges messages that come twice."""
        if not data:
            return out
        known = message_fields.by_number(table, name)
        for number, value in read_fields(data):
            self._spend()
            field = known.get(number)
            if field is None:
                continue
            match field.form:
                case "!":
                    self.message(_bytes(value), table, field.type, out)
                case "{}":
                    entry = self.contents(_bytes(value))
                    key = _bytes(entry.get(1, b"")).decode()
                    body_limits.check_key(key)
                    out.setdefault(field.name, {})[key] = self._value(entry.get(2, b""), table, field)
                case "[]":
                    out.setdefault(field.name, []).extend(self._items(value, table, field))
                case _:
                    self._set(out, value, table, field)
        return out

    def _items(self, value: WireValue, table: str, field: MessageField) -> list[Any]:
        if not field.varint or not isinstance(value, bytes):
            return [self._value(value, table, field)]
        out = []
        for number in read_varints(value):
            self._spend()
            out.append(self._value(number, table, field))
        return out

    def _set(self, out: Object, value: WireValue, table: str, field: MessageField) -> None:
        content = self._value(value, table, field, out.get(field.name))
        if content is None or (not content and field.type in SCALARS and field.form != "?"):
            out.pop(field.name, None)
        else:
            out[field.name] = content

    def _value(self, value: WireValue, table: str, field: MessageField, before: Any = None) -> Any:
        """None: absent, as a time that is zero."""
        if field.varint:
            return bool(_number(value)) if field.type == "bool" else _number(value)
        data = _bytes(value)
        match field.type:
            case "":
                return data.decode()
            case "bytes":
                return base64.b64encode(data).decode()
        if field.type in SPECIAL:
            return self._special(self.contents(data), field.type)
        return self.message(data, table, field.type, {} if before is None else before)

    def _special(self, contents: dict[int, WireValue], type_: str) -> Any:
        if type_ in _RAW:
            text = _bytes(contents.get(1, b""))
            self.has_json = True
            return self._read_json(text) if text else None
        if type_ == "Quantity":
            return _bytes(contents.get(1, b"")).decode() or "0"
        first, second = (_number(contents.get(number, 0)) for number in (1, 2))
        if type_ == "IntOrString":
            return _bytes(contents.get(3, b"")).decode() if first else second
        if not first and not second:
            return None
        at = _EPOCH + timedelta(seconds=first, microseconds=second // 1000)
        return rfc3339_micro(at) if type_ == "MicroTime" else rfc3339(at)


def _bytes(value: WireValue) -> bytes:
    if isinstance(value, bytes):
        return value
    raise ValueError("a number where a text or a message is expected")


def _number(value: WireValue) -> int:
    if isinstance(value, int):
        return signed(value)
    raise ValueError("no number where one is expected")
