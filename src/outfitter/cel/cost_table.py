"""The cost of each function as Kubernetes estimates it, from the sizes of its arguments. Called by `cost_estimate`;
`runtime_cost` has the cost of an actual call.

A table by function name; a function that is not in it costs 1. Traversing a string costs a tenth of its length, a regular
expression a quarter of its own length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outfitter.cel import types
from outfitter.cel.types import Type

MAX = (1 << 64) - 1
LIST, MAP = 10, 30  # creating one
TEXT, PATTERN = 0.1, 0.25


@dataclass(frozen=True, slots=True)
class Size:
    """The size range of a string, list or map."""

    least: int
    most: int

    def __add__(self, other: Size) -> Size:
        return Size(add(self.least, other.least), add(self.most, other.most))

    def __mul__(self, other: Size) -> Size:
        return Size(times(self.least, other.least), times(self.most, other.most))

    def union(self, other: Size) -> Size:
        return Size(min(self.least, other.least), max(self.most, other.most))


UNKNOWN = Size(0, MAX)


@dataclass(frozen=True, slots=True)
class Argument:
    """What is known of an argument at compile time."""

    type: Type
    size: Size
    item: Argument | None = None  # of a type with elements
    literal: int | None = None  # value of an int literal
    known: bool = True  # the size is known


@dataclass(frozen=True, slots=True)
class Price:
    cost: int
    size: Size | None = None  # of the result, where known


Estimate = Callable[[str, Argument | None, Sequence[Argument]], Price | None]


def add(*costs: int) -> int:
    return min(sum(costs), MAX)


def times(a: int, b: int) -> int:
    return min(a * b, MAX)


def scaled(size: int, factor: float) -> int:
    """The size times a factor, rounded up."""
    product = float(size) * factor
    return MAX if product >= 2.0**64 else math.ceil(product)


def text(size: int) -> int:
    """The cost of traversing a string of that length."""
    return scaled(size, TEXT)


# -- estimates


def _walk_list(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    if target is None:
        return None
    if target.item is None:
        return Price(times(target.size.most, 1) if overload == "list_includes_dyn_dyn" else text(target.size.most))
    each = 1 + text(target.item.size.most) if target.item.type in (types.STRING, types.BYTES) else 1
    return Price(times(target.size.most, each))


def _walk_first(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    return Price(text(args[0].size.most)) if args else None


def _url(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    return Price(text(args[0].size.most), args[0].size)


def _walk_target(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    return Price(text(target.size.most), target.size) if target else None


def _replace(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    if target is None:
        return None
    size, old, new = target.size, args[0].size, args[1].size
    if old.least == 0:
        most = add(times(min(size.most + 1, MAX), new.most), size.most)
    elif new.most <= old.least:
        most = size.most
    else:
        most = times(_parts(size.most, old.least), new.most)
    if old.most == 0:
        least = add(times(min(size.least + 1, MAX), new.least), size.least)
    elif old.most <= new.least:
        least = size.least
    else:
        least = times(_parts(size.least, old.most), new.least)
    return Price(scaled(size.most, 2 * TEXT), Size(least, most))


def _parts(whole: int, part: int) -> int:
    return min(math.ceil(float(whole) / float(part)), MAX)


def _split(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    if target is None:
        return None
    most = target.size.most
    if len(args) > 1 and args[1].literal is not None:
        most = args[1].literal & MAX
    return Price(scaled(target.size.most, 2 * TEXT), Size(0, most))


def _join(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    if target is None:
        return None
    size = target.size * target.item.size if target.item else Size(0, 0)
    if args:
        size += args[0].size * Size(max(target.size.least - 1, 0), max(target.size.most - 1, 0))
    return Price(text(size.most), size)


def _find(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    if target is None:
        return None
    walked = text(add(target.size.most, 1))
    return Price(times(walked, scaled(args[0].size.most, PATTERN)), Size(0, target.size.most))


def _matches(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    subject, pattern = (target, args[0]) if target is not None else args
    return Price(times(text(add(subject.size.most, 1)), scaled(pattern.size.most, PATTERN)))


def _contains(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    return Price(times(text(target.size.most), text(args[0].size.most))) if target else None


def _ip(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    return Price(1) if overload == "cidr_ip" else _walk_first(overload, target, args)


def _canonical(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    return Price(scaled(args[0].size.most, 2 * TEXT))


def _in_range(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    cost = text(32) + (text(16) + 1 if "cidr_contains_cidr" in overload else 0)
    return Price(add(cost, text(args[0].size.most)) if overload.endswith("_string") else cost)


def _validate(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    return Price(scaled(text(args[0].size.most), 128 * PATTERN))


def _equal(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    one, other = args
    if one.type != other.type:
        return None
    if one.type in (types.QUANTITY, types.SEMVER, types.IP, types.CIDR):
        return Price(1)
    if one.type == types.FORMAT:
        return Price(text(64))
    if one.type == types.URL:
        return Price(text(other.size.most if other.known else 1))
    return None


def _sets(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    both = times(args[0].size.most, args[1].size.most)
    return Price(add(scaled(both, 2 if "equivalent" in overload else 1), 1))


def _new_list(size: Size, factor: float = 1.0) -> Price:
    return Price(add(scaled(size.most, factor), 1, LIST), size)


def _literal(argument: Argument, unknown: int) -> int:
    return unknown if argument.literal is None else max(argument.literal, 0)


def _slice(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    if target is None:
        return None
    length = (_literal(args[1], target.size.most) - _literal(args[0], 0)) & MAX
    return _new_list(Size(length, length))


def _range(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    length = _literal(args[0], MAX)
    return _new_list(Size(length, length))


def _flatten(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    return _new_list(target.size, float(_literal(args[0], MAX)) if args else 1.0) if target else None


def _reverse(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    return _new_list(target.size) if target else None


def _compare_all(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    """Comparing each item with each other: sort and distinct."""
    keys = args[0] if overload.endswith("_sortByAssociatedKeys") else target
    if keys is None:
        return None
    by_text = overload.startswith(("list_string_sort", "list_bytes_sort"))
    return _new_list(keys.size * keys.size, 2.0 + TEXT if by_text else 2.0)


def _of_bytes(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    size = args[0].size
    if overload == "string_to_bytes":
        return Price(text(size.most), Size(size.least, size.most * 4 & MAX))
    return Price(text(size.most), Size(size.least // 4, size.most)) if overload == "bytes_to_string" else None


def _quote(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    size = args[0].size
    return Price(text(size.most), Size(add(size.least, 2), size.most * 2 + 2 & MAX))


def _in(overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    return Price(args[1].size.most) if overload == "in_list" else None


_ESTIMATES: dict[str, Estimate] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"), _walk_list),
    "url": _url,
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _walk_target),
    "replace": _replace,
    "split": _split,
    "join": _join,
    **dict.fromkeys(("find", "findAll"), _find),
    "matches": _matches,
    "contains": _contains,
    **dict.fromkeys(("startsWith", "endsWith"), _walk_first),
    "format": lambda overload, target, args: Price(text(target.size.most)) if target else None,
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"), _walk_first),
    "ip": _ip,
    "ip.isCanonical": _canonical,
    **dict.fromkeys(("containsIP", "containsCIDR"), _in_range),
    "validate": _validate,
    "strings.quote": _quote,
    "_==_": _equal,
    "@in": _in,
    **dict.fromkeys(("sets.contains", "sets.equivalent", "sets.intersects"), _sets),
    "slice": _slice,
    "lists.range": _range,
    "flatten": _flatten,
    "reverse": _reverse,
    **dict.fromkeys(("sort", "@sortByAssociatedKeys", "distinct"), _compare_all),
    **dict.fromkeys(("bytes", "string"), _of_bytes),
}
ORDERED_TEXT = frozenset(
    f"{name}_{kind}" for name in ("less", "less_equals", "greater", "greater_equals") for kind in ("string", "bytes")
)


def price(function: str, overload: str, target: Argument | None, args: Sequence[Argument]) -> Price | None:
    """The estimate for one call without its arguments; None: it is not in the table and costs 1."""
    estimate = _ESTIMATES.get(function)
    return estimate(overload, target, args) if estimate else None
