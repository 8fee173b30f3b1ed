"""ConfigMaps and Secrets: keys, base64, size, the keys that a type of Secret requires, and `immutable`."""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from outfitter.errors import Cause

MOST = 1024 * 1024  # bytes of all values together, decoded
KEY_LENGTH = 253
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_NEWLINES = str.maketrans("", "", "\r\n")  # decoders in Go skip them
ACCOUNT = "kubernetes.io/service-account.name"
REQUIRED: Mapping[str, tuple[str, ...]] = {  # type of Secret -> keys that it must have
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
}
IN_JSON = ("kubernetes.io/dockercfg", "kubernetes.io/dockerconfigjson")
BASIC_AUTH = ("username", "password")  # one of them is enough
Compare = Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[Cause]]


def config_map(obj: Mapping[str, Any]) -> Iterator[Cause]:
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    size = sum(len(text.encode(errors="replace")) for text in data.values())
    yield from _keys(data, "data")
    for name in (name for name in data if name in binary):
        yield Cause(f"data[{name}]", f'Invalid value: "{name}": duplicate of key present in binaryData')
    yield from _keys(binary, "binaryData")
    for name, text in binary.items():
        decoded = _decoded(text)
        if decoded is None:
            yield _not_base64(f"binaryData[{name}]")
        size += len(decoded or b"")
    yield from _size(size, "data")


def secret(obj: Mapping[str, Any]) -> Iterator[Cause]:
    data, type_ = obj.get("data") or {}, obj.get("type") or ""
    decoded: dict[str, bytes] = {}
    yield from _keys(data, "data")
    for name, text in data.items():
        plain = _decoded(text)
        if plain is None:
            yield _not_base64(f"data[{name}]", "; plain text goes to stringData")
        decoded[name] = plain or b""
    yield from _size(sum(map(len, decoded.values())), "data")
    for name in REQUIRED.get(type_, ()):
        if name not in data or (type_ == "kubernetes.io/ssh-auth" and not data[name]):
            yield Cause(f"data[{name}]", f"Required value: a Secret of type {type_} has it", "FieldValueRequired")
        elif type_ in IN_JSON and not _json_object(decoded[name]):
            yield Cause(f"data[{name}]", "Invalid value: \"<secret contents redacted>\": must be a JSON object")
    if type_ == "kubernetes.io/basic-auth" and not any(name in data for name in BASIC_AUTH):
        for name in BASIC_AUTH:
            yield Cause(f"data[{name}]", f"Required value: a Secret of type {type_} has one of {' and '.join(BASIC_AUTH)}",
                        "FieldValueRequired")
    if type_ == "kubernetes.io/service-account-token" and not (obj["metadata"].get("annotations") or {}).get(ACCOUNT):
        yield Cause(f"metadata.annotations[{ACCOUNT}]", "Required value: the name of the ServiceAccount", "FieldValueRequired")


def unchanged(*fields: str) -> Compare:
    """An update check: what must stay while `immutable` is set."""

    def check(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
        if old.get("immutable") is not True:
            return
        changed = [] if new.get("immutable") is True else ["immutable"]
        for field in [*changed, *(field for field in fields if (new.get(field) or {}) != (old.get(field) or {}))]:
            yield Cause(field, "Forbidden: field is immutable when `immutable` is set; create a new object instead",
                        "FieldValueForbidden")

    return check


def changed_secret(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    if new.get("type") != old.get("type"):
        yield Cause("type", f'Invalid value: "{new.get("type")}": field is immutable')
    yield from unchanged("data")(new, old)


def _keys(names: Iterable[str], field: str) -> Iterator[Cause]:
    for name in names:
        if not _KEY.fullmatch(name) or len(name) > KEY_LENGTH or name[0] == ".":  # there may be tens of thousands
            yield from _key(name, field)


def _key(name: str, field: str) -> Iterator[Cause]:
    if not _KEY.fullmatch(name):
        yield Cause(f"{field}[{name}]", f'Invalid value: "{name}": a valid config key must consist of alphanumeric characters, '
                                        "'-', '_' or '.' (e.g. 'key.name', or 'KEY_NAME', or 'key-name')")
    elif len(name) > KEY_LENGTH:
        yield Cause(f"{field}[{name}]", f'Invalid value: "{name}": must be no more than {KEY_LENGTH} characters')
    elif name == "." or name.startswith(".."):
        yield Cause(f"{field}[{name}]", f"Invalid value: \"{name}\": must not be '.' or start with '..'")


def _decoded(text: str) -> bytes | None:
    try:
        return binascii.a2b_base64(text.translate(_NEWLINES) if "\n" in text or "\r" in text else text, strict_mode=True)
    except ValueError:
        return None


def _not_base64(field: str, hint: str = "") -> Cause:
    return Cause(field, f"Invalid value: must be base64{hint}")


def _size(size: int, field: str) -> Iterator[Cause]:
    if size > MOST:
        yield Cause(field, f"Too long: may not be more than {MOST} bytes", "FieldValueTooLong")


def _json_object(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
