"""What two versions of an object have in common is kept once: it needs no further memory, was checked before, and is compared
by identity. Used where readers keep objects, which they do not change: `informer` and `watch_cache`."""

from __future__ import annotations

from typing import Any

import msgspec

from outfitter.api.kinds import Object

LONG = 8  # entries of a list of which those that did not change are kept
_encode = msgspec.json.Encoder().encode


def shared(obj: Object, old: Object) -> Object:
    """The object with the parts of its earlier version that did not change: spec and status, else the lists in them, else the
    first and last entries of these."""
    same: Object = {name: part for name in ("spec", "status") if name in obj and name in old
                    and (part := _part(obj[name], old[name])) is not obj[name]}
    return {**obj, **same} if same else obj


def _part(new: Any, old: Any) -> Any:
    if new is old or not (isinstance(new, dict) and isinstance(old, dict)):
        return new
    if _same(new, old):
        return old
    lists = {name: _entries(value, old[name]) for name, value in new.items()
             if isinstance(value, list) and isinstance(old.get(name), list) and value is not old[name]}
    return {**new, **lists} if any(lists[name] is not new[name] for name in lists) else new


def _entries(new: list[Any], old: list[Any]) -> list[Any]:
    if _same(new, old):
        return old
    most = min(len(new), len(old))
    if most < LONG:
        return new
    first = next((place for place in range(most) if new[place] != old[place]), most)
    last = next((place for place in range(most - first) if new[-1 - place] != old[-1 - place]), most - first)
    if first and _same(new[:first], old[:first]):
        new = old[:first] + new[first:]
    if last and _same(new[-last:], old[-last:]):
        new = new[:-last] + old[-last:]
    return new


def _same(new: Any, old: Any) -> bool:
    """As JSON: to Python `1`, `1.0` and `true` are equal."""
    return new is old or bool(new == old and _encode(new) == _encode(old))
