"""What two versions of an object have in common is kept once: it needs no further memory, was checked before, and is compared
by identity. Used where readers keep objects, which they do not change (`informer`, `watch_cache`), and where such an object is
replaced (`transaction`)."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import msgspec

from outfitter.api.kinds import Object

LONG = 8  # entries of a list of which those that did not change are kept
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def shared(obj: Object, old: Object) -> Object:
    """The object with the parts of its earlier version that did not change: spec and status, else the lists in them, else the
    first and last entries of these."""
    same: Object = {name: part for name in ("spec", "status") if name in obj and name in old
                    and (part := _part(obj[name], old[name])) is not obj[name]}
    return {**obj, **same} if same else obj


def copied(obj: Object, stored: Object) -> Object:
    """A deep copy, but for entries of long lists that are those of the stored version: these stay shared."""
    return {name: {field: _copied(value, stored[name].get(field)) for field, value in part.items()}
            if name in ("spec", "status") and isinstance(part, dict) and isinstance(stored.get(name), dict)
            else _own(part) for name, part in obj.items()}


def _copied(new: Any, old: Any) -> Any:
    if not (isinstance(new, list) and isinstance(old, list) and len(old) >= LONG):
        return _own(new)
    known = set(map(id, old))
    return [entry if id(entry) in known else _own(entry) for entry in new]


def _own(value: Any) -> Any:
    return _decode(_encode(value))


def _part(new: Any, old: Any) -> Any:
    if new is old or not (isinstance(new, dict) and isinstance(old, dict)):
        return new
    lists = {name: _entries(value, old[name]) for name, value in new.items()
             if isinstance(value, list) and isinstance(old.get(name), list)}
    kept = {**new, **lists} if any(lists[name] is not new[name] for name in lists) else new
    return old if _same(kept, old) else kept


def _entries(new: list[Any], old: list[Any]) -> list[Any]:
    """Entries that are not one object in both are compared as text, each once: a list may be long."""
    most = min(len(new), len(old))
    start = next(itertools.compress(itertools.count(), map(operator.is_not, new, old)), most)
    if start == len(new) == len(old):
        return old
    texts, had = list(map(_encode, new[start:])), list(map(_encode, old[start:]))
    if texts == had:
        return old
    if most < LONG:
        return new
    most -= start
    first = next(itertools.compress(itertools.count(), map(operator.ne, texts, had)), most)
    last = next((place for place in range(most - first) if texts[-1 - place] != had[-1 - place]), most - first)
    kept = [*old[:start + first], *new[start + first:len(new) - last], *old[len(old) - last:]]
    return new if all(map(operator.is_, kept, new)) else kept


def _same(new: Any, old: Any) -> bool:
    """As JSON: to Python `1`, `1.0` and `true` are equal."""
    return new is old or bool(new == old and _encode(new) == _encode(old))
