"""Paths into objects and containment, as the steps of a case write them.

A path has dots, `[*]` for every item of a list and `[key=value]` for the item that has this value; the key may be a path, `[x]`
is the item named x or with this number. A key may contain dots; the longest one wins. What is missing is null; behind `[*]` a
missing list is []."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SEGMENT = re.compile(r"(?:[^.\[]|\[[^\]]*\])+")
_PARTS = re.compile(r"(?P<key>[^\[]*)(?P<items>(?:\[[^\]]*\])*)")


def select(value: Any, path: str) -> Any:
    return _select(value, _SEGMENT.findall(path))


def _select(value: Any, segments: list[str]) -> Any:
    if not segments:
        return value
    for length in range(len(segments), 0, -1):
        parts = _PARTS.fullmatch(".".join(segments[:length]))
        if parts is None or (isinstance(value, Mapping) and parts["key"] not in value and length > 1):
            continue
        inner = value.get(parts["key"]) if isinstance(value, Mapping) else None
        return _items(inner, re.findall(r"\[([^\]]*)\]", parts["items"]), segments[length:])
    return None


def _items(value: Any, selectors: list[str], rest: list[str]) -> Any:
    if not selectors:
        return _select(value, rest)
    items = value if isinstance(value, list) else []
    if selectors[0] == "*":
        return [_items(item, selectors[1:], rest) for item in items]
    key, equals, wanted = selectors[0].partition("=")
    for index, item in enumerate(items):
        if _text(select(item, key)) == wanted if equals else selectors[0] in (_text(select(item, "name")), str(index)):
            return _items(item, selectors[1:], rest)
    return None


def _text(value: Any) -> str:
    """A value as a path writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def contains(wanted: Any, have: Any) -> bool:
    """Maps are subsets; list items are matched by name, else any item that contains them."""
    if isinstance(wanted, Mapping):
        return isinstance(have, Mapping) and all(key in have and contains(value, have[key]) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(have, list) and all(any(
            contains(item, other) for other in have
            if not (isinstance(item, Mapping) and "name" in item and isinstance(other, Mapping))
            or other.get("name") == item["name"]) for item in wanted)
    return bool(wanted == have)


def matches(match: Mapping[str, Any], obj: Any) -> bool:
    """Whether an object has the values of a `match`: path -> value; a value that is a map is contained."""
    return all(contains(value, select(obj, path)) for path, value in match.items())
