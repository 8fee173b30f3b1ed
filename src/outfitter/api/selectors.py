"""Label and field selectors in the syntax of `kubectl -l` and `--field-selector`, as predicates. Used by the store and the API
server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from outfitter.api.kinds import Kind
from outfitter.errors import BadRequest, shortened

Match = Callable[[Mapping[str, str]], bool]

MAX_BYTES = 16 * 1024  # of a selector
MAX_REQUIREMENTS = 100  # of a selector: each is asked of every object of a list
_PART = re.compile(r"[^,(]*(?:\([^)]*\)?[^,(]*)*")  # up to a comma that is outside brackets
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
    tests = [_label_test(part, text) for part in _requirements("labelSelector", text, _parts(text))]
    if not tests:
        return everything
    return lambda have: all(test(have) for test in tests)


def _parts(text: str) -> Iterator[str]:
    place = 0
    while place <= len(text):
        found = _PART.match(text, place)
        assert found is not None  # it matches nothing, too
        yield found[0]
        place = found.end() + 1


def _requirements(option: str, text: str, parts: Iterable[str]) -> list[str]:
    """Each requirement once."""
    if len(text) > MAX_BYTES:
        raise BadRequest(f"{option}: Too long: may have {MAX_BYTES} bytes, this one has {len(text)}")
    out = list(dict.fromkeys(filter(None, (part.strip() for part in parts))))
    if len(out) > MAX_REQUIREMENTS:
        raise BadRequest(f"{option}: Too many: may have {MAX_REQUIREMENTS} requirements, this one has {len(out)}; "
                         "write key in (a,b) for several values of a key")
    return out


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
    raise BadRequest(f"labelSelector {shortened(whole)!r}: cannot read {shortened(part)!r}; write key=value, key!=value, "
                     "key in (a,b), key or !key")


def fields(text: str, kind: Kind) -> Match:
    """`metadata.name=a,spec.nodeName!=b` as a predicate over the result of `field_values`."""
    known = ("metadata.name", "metadata.namespace", *kind.selectable)
    tests: list[Match] = []
    for part in _requirements("fieldSelector", text, text.split(",")):
        found = _FIELD.match(part)
        if not found:
            raise BadRequest(f"fieldSelector {shortened(text)!r}: cannot read {shortened(part)!r}; write field=value or "
                             "field!=value")
        if found["key"] not in known:
            raise BadRequest(
                f'field label not supported: {shortened(found["key"])} (a {kind.kind} can be selected by {", ".join(known)})'
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
