"""What a step expects of the stored objects: one function for each word of `then`, which returns the differences."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from outfitter.api.kinds import Kind, Object
from tests.cases.case_product import contains
from tests.cases.object_paths import contains as holds
from tests.cases.object_paths import matches, select


class Objects(Protocol):
    """Reads what is stored."""

    def kind(self, name: str) -> Kind: ...
    def all(self, kind: Kind, namespace: str | None = None) -> Sequence[Object]: ...
    def find(self, entry: Mapping[str, Any]) -> Object | None: ...
    def named(self, name: str, namespace: str | None = None) -> str: ...


def _named(entry: Mapping[str, Any]) -> str:
    return f"{entry['kind']} {entry['name']}"


def _condition(engine: Objects, entry: Mapping[str, Any]) -> list[str]:
    obj = engine.find(entry)
    if obj is None:
        return [f"{_named(entry)} does not exist"]
    have = next((each for each in select(obj, "status.conditions") or () if each.get("type") == entry["type"]), None)
    if have is None:
        return [f"{_named(entry)} has no condition {entry['type']}"]
    wrong = [f"{_named(entry)} {entry['type']}: {key} is {have.get(key)!r}, not {entry[key]!r} ({have.get('message')})"
             for key in ("status", "reason") if key in entry and have.get(key) != entry[key]]
    if not contains(str(have.get("message", "")), entry.get("messageContains", "")):
        wrong.append(f"{_named(entry)} {entry['type']}: {entry['messageContains']!r} is not in {have.get('message')!r}")
    return wrong


def _no_condition(engine: Objects, entry: Mapping[str, Any]) -> list[str]:
    obj = engine.find(entry)
    return [f"{_named(entry)} has {each}" for each in select(obj, "status.conditions") or ()
            if each.get("type") == entry["type"]
            and all(each.get(key) == entry.get(key, each.get(key)) for key in ("status", "reason"))]


def _field(engine: Objects, entry: Mapping[str, Any]) -> list[str]:
    """What is missing is null, also where the object is; a missing list is []."""
    obj = engine.find(entry)
    have = select(obj, entry["path"])
    if have == entry["equals"] or (have is None and entry["equals"] == []):
        return []
    return [f"{_named(entry)} does not exist" if obj is None else
            f"{_named(entry)} {entry['path']} is {json.dumps(have)}, not {json.dumps(entry['equals'])}"]


def _annotation(engine: Objects, entry: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    entry = {"kind": "Pod", **entry}
    obj = engine.find(entry)
    if obj is None:
        return None, [f"{_named(entry)} does not exist"]
    return (obj["metadata"].get("annotations") or {}).get(entry["key"]), []


def _annotation_json(engine: Objects, entry: Mapping[str, Any]) -> list[str]:
    text, wrong = _annotation(engine, entry)
    if wrong:
        return wrong
    try:
        have = json.loads(text or "null")
    except ValueError:
        have = text
    return [] if have == entry["equals"] else [f"{_at(entry)} is {text}, not {json.dumps(entry['equals'])}"]


def _annotation_equals(engine: Objects, entry: Mapping[str, Any]) -> list[str]:
    text, wrong = _annotation(engine, entry)
    if wrong or text == entry["equals"]:
        return wrong
    return [f"{_at(entry)} is {text!r}, not {entry['equals']!r}"]


def _annotation_absent(engine: Objects, entry: Mapping[str, Any]) -> list[str]:
    text, wrong = _annotation(engine, entry)
    return wrong or ([f"{_at(entry)} is {text}"] if text is not None else [])


def _at(entry: Mapping[str, Any]) -> str:
    return f"{entry['name']} {entry['key']}"


def _counted(engine: Objects, entry: Mapping[str, Any]) -> list[Object]:
    name = engine.named(str(entry["name"]), entry.get("namespace")) if "name" in entry else None
    return [obj for obj in engine.all(engine.kind(entry["kind"]), entry.get("namespace"))
            if name in (None, obj["metadata"]["name"]) and matches(entry.get("match") or {}, obj)]


def _count(engine: Objects, entry: Mapping[str, Any]) -> list[str]:
    """`equals` or `atMost`, or both."""
    have = _counted(engine, entry)
    if len(have) == entry.get("equals", len(have)) and len(have) <= entry.get("atMost", len(have)):
        return []
    limits = ", ".join(f"{word} {entry[word]}" for word in ("equals", "atMost") if word in entry)
    return [f"{len(have)} {entry['kind']} match {entry.get('match')}, not {limits}: {[_line(obj) for obj in have]}"]


def _line(obj: Object) -> str:
    return f"{obj['metadata']['name']} {json.dumps(obj.get('status'))}"


def _object(engine: Objects, wanted: Mapping[str, Any]) -> list[str]:
    found = engine.all(engine.kind(wanted["kind"]))
    rest = {key: value for key, value in wanted.items() if key not in ("apiVersion", "kind")}
    if name := (rest.get("metadata") or {}).get("name"):
        rest["metadata"] = {**rest["metadata"], "name": engine.named(name, rest["metadata"].get("namespace"))}
    return [] if any(holds(rest, obj) for obj in found) else [f"no {wanted['kind']} contains {json.dumps(rest)}"]


def _no_object(engine: Objects, wanted: Mapping[str, Any]) -> list[str]:
    return [] if _object(engine, wanted) else [f"there is a {wanted['kind']} that contains {json.dumps(wanted)}"]


CHECKS: Mapping[str, Callable[[Objects, Any], list[str]]] = {
    "conditions": _condition, "noConditions": _no_condition, "fieldEquals": _field, "annotationJSON": _annotation_json,
    "annotationEquals": _annotation_equals, "annotationAbsent": _annotation_absent, "count": _count,
    "countAtMost": _count, "objects": _object, "noObjects": _no_object,
}
