"""Functions on lists, and on lists as sets."""

from __future__ import annotations

import functools
import itertools
from functools import reduce

from outfitter.cel import values
from outfitter.cel.library.objects import Function
from outfitter.cel.library.objects import want as _want
from outfitter.cel.library.times import Duration
from outfitter.cel.values import NONE, Optional, UInt, Value
from outfitter.errors import EvaluationError


def _sum(items: Value) -> Value:
    _want(list, "sum", items)
    for item in items:
        if type(item) not in (int, UInt, float, Duration):
            raise values.no_such_overload("sum", item)
    return reduce(values.add, items) if items else 0


def _extreme(function: str, sign: int) -> Function:
    def pick(items: Value) -> Value:
        _want(list, function, items)
        if not items:
            raise EvaluationError(f"{function} called on empty list")
        values.compare(items[0], items[0], function)  # one item alone must have an order too
        return reduce(lambda best, item: item if values.compare(item, best, function) == sign else best, items)

    return pick


def _is_sorted(items: Value) -> bool:
    _want(list, "isSorted", items)
    return all(values.compare(a, b, "isSorted") <= 0 for a, b in itertools.pairwise(items))


def _slice(items: Value, start: Value, end: Value) -> list[Value]:
    _want(list, "slice", items)
    first, last = _want(int, "slice", start), _want(int, "slice", end)
    if not 0 <= first <= last <= len(items):
        raise EvaluationError(f"cannot slice({first}, {last}) of a list of {len(items)}: 0 <= start <= end <= length")
    return list(items[first:last])


def _flatten(items: Value, depth: Value = 1) -> list[Value]:
    levels = _want(int, "flatten", depth)
    if levels < 0:
        raise EvaluationError("level must be non-negative")
    found = list[Value]()
    for item in _want(list, "flatten", items):
        if type(item) is list and levels > 0:
            found.extend(_flatten(item, levels - 1))
            values.limit(len(found))
        else:
            found.append(item)
    return found


def _range(count: Value) -> list[Value]:
    length = _want(int, "lists.range", count)
    if length < 0:
        raise EvaluationError(f"lists.range: size must be non-negative, got {length}")
    values.limit(length)
    return list(range(length))


def _reverse(items: Value) -> list[Value]:
    return _want(list, "reverse", items)[::-1]


def _distinct(items: Value) -> list[Value]:
    found = list[Value]()
    for item in _want(list, "distinct", items):
        if not any(values.surely_equal(item, one) for one in found):
            found.append(item)
    return found


def sort_by(items: Value, sort_keys: list[Value], function: str = "sortBy") -> list[Value]:
    """The items in the order of their keys, which are of one type that has an order."""
    _want(list, function, items)
    if len({type(key) for key in sort_keys}) > 1:
        raise EvaluationError("list elements must have the same type")
    if sort_keys:
        values.compare(sort_keys[0], sort_keys[0], function)

    def order(one: int, other: int) -> int:
        return values.compare(sort_keys[one], sort_keys[other], function)

    return [items[at] for at in sorted(range(len(items)), key=functools.cmp_to_key(order))]


def _sort(items: Value) -> list[Value]:
    return sort_by(items, _want(list, "sort", items), "sort")


def _first(items: Value) -> Optional:
    return Optional(True, items[0]) if _want(list, "first", items) else NONE


def _last(items: Value) -> Optional:
    return Optional(True, items[-1]) if _want(list, "last", items) else NONE


def _unwrap(items: Value) -> list[Value]:
    return [item.value for item in _want(list, "optional.unwrap", items) if _want(Optional, "optional.unwrap", item).present]


def _includes(target: Value, item: Value) -> bool:
    if type(target) is list:
        return any(values.surely_equal(one, item) for one in target)
    return values.surely_equal(target, item)


def _sets_contains(outer: Value, inner: Value) -> bool:
    _want(list, "sets.contains", outer)
    return all(values.contains(item, outer) for item in _want(list, "sets.contains", inner))


def _sets_equivalent(a: Value, b: Value) -> bool:
    return _sets_contains(a, b) and _sets_contains(b, a)


def _sets_intersects(a: Value, b: Value) -> bool:
    _want(list, "sets.intersects", b)
    return any(values.contains(item, b) for item in _want(list, "sets.intersects", a))


MEMBER: dict[str, dict[int, Function]] = {
    "sum": {0: _sum},
    "min": {0: _extreme("min", -1)},
    "max": {0: _extreme("max", 1)},
    "isSorted": {0: _is_sorted},
    "includes": {1: _includes},
    "slice": {2: _slice},
    "flatten": {0: _flatten, 1: _flatten},
    "reverse": {0: _reverse},
    "distinct": {0: _distinct},
    "sort": {0: _sort},
    "first": {0: _first},
    "last": {0: _last},
    "unwrapOpt": {0: _unwrap},
}
GLOBAL: dict[str, dict[int, Function]] = {
    "lists.range": {1: _range},
    "optional.unwrap": {1: _unwrap},
    "sets.contains": {2: _sets_contains},
    "sets.equivalent": {2: _sets_equivalent},
    "sets.intersects": {2: _sets_intersects},
}
