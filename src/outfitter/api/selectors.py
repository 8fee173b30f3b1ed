"""Label and field selectors in the syntax of `kubectl -l` and `--field-selector`, as predicates. Used by the store and the API
server."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from outfitter.api.kinds import Kind
from outfitter.errors import BadRequest

Match = Callable[[Mapping[str, str]], bool]

_SPLIT = re.compile(r",(?![^(]*\))")  # commas outside brackets
_WORD = r"(?P<key>[A-Za-z0-9][-A-Za-z0-9_./]*)"
_SET = re.compile(rf"^{_WORD}\s+(?P<op>in|notin)\s*\((?P<values>[-A-Za-z0-9_.,\s]*)\)$")
_PAIR = re.compile(rf"^{_WORD}\s*(?P<op>==|=|!=)\s*(?P<value>[-A-Za-z0-9_.]*)$")
_KEY = re.compile(rf"^(?P<no>!?)\s*{_WORD}$")
_FIELD = re.compile(r"^(?P<key>[^=!\s]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^=!\s]*)$")


ABSENT = {"spec.unschedulable": "false"}  # the value of an absent field; else ""


def everything(_: Mapping[str, str]) -> bool:
    return True


def labels(text: str) -> Match:
    """`app=web,tier!=db,zone in (a, b),!legacy` as a predicate over an object's labels."""
    tests = [_label_test(part.strip(), text) for part in _SPLIT.split(text) if part.strip()]
    if not tests:
        return everything
    return lambda have: all(test(have) for test in tests)


def _label_test(part: str, whole: str) -> Match:
    if found := _SET.match(part):
        key, wanted = found["key"], {value.strip() for value in found["values"].split(",")}
        if found["op"] == "in":
            return lambda have: have.get(key) in wanted
        return lambda have: have.get(key) not in wanted
    if found := _PAIR.match(part):
        key, value = found["key"], found["value"]
        if found["op"] == "!=":
            return lambda have: have.get(key) != value
        return lambda have: have.get(key) == value
    if found := _KEY.match(part):
        key = found["key"]
        if found["no"]:
            return lambda have: key not in have
        return lambda have: key in have
    raise BadRequest(f"labelSelector {whole!r}: cannot read {part!r}; write key=value, key!=value, key in (a,b), key or !key")


def fields(text: str, kind: Kind) -> Match:
    """`metadata.name=a,spec.nodeName!=b` as a predicate over the result of `field_values`."""
    known = ("metadata.name", "metadata.namespace", *kind.selectable)
    tests: list[Match] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        found = _FIELD.match(part)
        if not found:
            raise BadRequest(f"fieldSelector {text!r}: cannot read {part!r}; write field=value or field!=value")
        if found["key"] not in known:
            raise BadRequest(
                f'field label not supported: {found["key"]} (a {kind.kind} can be selected by {", ".join(known)})'
            )
        tests.append(_field_test(found["key"], found["value"], found["op"] != "!="))
    if not tests:
        return everything
    return lambda have: all(test(have) for test in tests)


def _field_test(key: str, value: str, equal: bool) -> Match:
    return lambda have: (have.get(key, "") == value) == equal


def field_values(kind: Kind, obj: Mapping[str, Any]) -> dict[str, str]:
    """The values of an object's selectable fields."""
    meta = obj.get("metadata", {})
    out = {"metadata.name": meta.get("name", ""), "metadata.namespace": meta.get("namespace", "")}
    for path in kind.selectable:
        out[path] = _text(_dig(obj, path)) or ABSENT.get(path, "")
    return out


def _dig(obj: Mapping[str, Any], path: str) -> Any:
    value: Any = obj
    for word in path.split("."):
        value = value.get(word) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.get("component", "") if isinstance(value, Mapping) else str(value)
