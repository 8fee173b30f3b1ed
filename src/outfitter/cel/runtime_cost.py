"""The actual cost of a call in Kubernetes' units, from its arguments and its result. Called by `compiler`.

Only selectors whose estimate exceeds the limit are counted; the estimate is the maximum of all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from outfitter.cel import cost_table, macro_expansion
from outfitter.cel.cost_table import PATTERN, TEXT
from outfitter.cel.library.named_formats import NamedFormat
from outfitter.cel.library.network import Cidr, Ip, Url
from outfitter.cel.library.quantity import Quantity
from outfitter.cel.library.semver import Semver
from outfitter.cel.values import Optional, Value

LIST, MAP = cost_table.LIST, cost_table.MAP
# One iteration of each macro: condition and step, without the user's body. Some charge a part by the result.
TURN = {
    **{"all": 3, "exists": 4, "exists_one": 0, "filter": 0, "map": LIST + 2, "transformList": LIST + 2},
    **{"transformMap": 3, "transformMapEntry": 2},
}
AGAIN = {"all": 2, "exists": 3}  # the condition, evaluated once more when the loop stops before the end
END = {**dict.fromkeys(TURN, 1), "exists_one": 2}  # reading the result
# Evaluated once at compile time when the argument is a constant.
FOLDED = frozenset(("bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"))

Places = Mapping[tuple[int, str], Sequence[str]]  # (position, function) of a call -> its possible overloads
Charge = Callable[[Sequence[Value], Value], int]

_OWN_EQUALITY = (Quantity, Semver, Ip, Cidr, Url, NamedFormat)
_SIZED = (str, bytes, list, dict)


def by_place(root: macro_expansion.Expr) -> Places:
    """The overloads of every call in a checked tree."""
    found: dict[tuple[int, str], Sequence[str]] = {}
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, macro_expansion.ExpandedCall):
            found[node.pos, node.function] = node.overloads
        pending.extend(macro_expansion.children(node))
    return found


def size(value: Value) -> int:
    if isinstance(value, _SIZED):
        return len(value)
    if isinstance(value, Ip | Cidr):
        return value.size
    return size(value.value) if type(value) is Optional and value.present else 1


def charge(name: str, overloads: Sequence[str]) -> Charge:
    """The function that computes the cost of one call from its arguments and result."""
    if found := _CHARGES.get(name):
        return found
    overload = overloads[0] if len(overloads) == 1 else ""
    match name:
        case "_==_" | "_!=_":
            return _equal
        case "@in" if overload == "in_list":
            return lambda args, result: size(args[1])
        case "_+_" if overload in ("add_string", "add_bytes"):
            return lambda args, result: cost_table.text(size(args[0]) + size(args[1]))
        case "string" | "bytes" if overload in ("string_to_bytes", "bytes_to_string"):
            return _walk
        case "ip" if overload == "cidr_ip":
            return _one
        case "ip":
            return _walk
    if overload in cost_table.ORDERED_TEXT:
        return _equal
    return _one


def _one(args: Sequence[Value], result: Value) -> int:
    return 1


def _walk(args: Sequence[Value], result: Value) -> int:
    return cost_table.text(size(args[0]))


def _walk_twice(args: Sequence[Value], result: Value) -> int:
    return cost_table.scaled(size(args[0]), 2 * TEXT)


def _join(args: Sequence[Value], result: Value) -> int:
    return cost_table.scaled(size(result), 2 * TEXT)


def _pattern(args: Sequence[Value], result: Value) -> int:
    return math.ceil((1.0 + size(args[0])) * TEXT) * cost_table.scaled(size(args[1]), PATTERN)


def _contains(args: Sequence[Value], result: Value) -> int:
    return cost_table.text(size(args[0])) * cost_table.text(size(args[1]))


def _equal(args: Sequence[Value], result: Value) -> int:
    if isinstance(args[0], _OWN_EQUALITY):
        return 1
    return cost_table.text(min(size(args[0]), size(args[1])))


def _traverse(args: Sequence[Value], result: Value) -> int:
    return _tree(args[0])


def _tree(value: Value) -> int:
    if isinstance(value, str | bytes):
        return int(len(value.encode(errors="surrogatepass") if isinstance(value, str) else value) * TEXT)
    if isinstance(value, list):
        return sum(map(_tree, value))
    if isinstance(value, dict):
        return sum(_tree(key) + _tree(item) for key, item in value.items())
    return 1


def _in_range(args: Sequence[Value], result: Value) -> int:
    return cost_table.text(2 * size(args[0])) + (_walk(args[1:], result) if isinstance(args[1], str) else 0)


def _in_cidr(args: Sequence[Value], result: Value) -> int:
    return _in_range(args, result) + _walk(args, result) + 1


def _validate(args: Sequence[Value], result: Value) -> int:
    if type(args[0]) is not NamedFormat:
        return 1
    return math.ceil((1.0 + size(args[1])) * TEXT) * cost_table.scaled(args[0].pattern, PATTERN)


def _sets(factor: int) -> Charge:
    return lambda args, result: 1 + size(args[0]) * size(args[1]) * factor


def _new_list(args: Sequence[Value], result: Value) -> int:
    return size(result) + 1 + LIST


def _flatten(args: Sequence[Value], result: Value) -> int:
    depth = args[1] if len(args) > 1 and isinstance(args[1], int) else 1
    return size(args[0]) * max(depth, 0) + 1 + LIST


def _compare_all(args: Sequence[Value], result: Value) -> int:
    items = args[-1]
    if not isinstance(items, list):
        return 1
    by_text = items and isinstance(items[0], str | bytes)
    return int(len(items) ** 2 * (2 + TEXT if by_text else 2)) + 1 + LIST


_CHARGES: dict[str, Charge] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"), _traverse),
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim", "cidr", "isIP", "isCIDR"), _walk),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver", "format"), _walk),
    **dict.fromkeys(("startsWith", "endsWith"), lambda args, result: cost_table.text(size(args[1]))),
    "strings.quote": _walk,
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _walk_twice),
    "join": _join,
    **dict.fromkeys(("find", "findAll", "matches"), _pattern),
    "contains": _contains,
    "containsIP": _in_range,
    "containsCIDR": _in_cidr,
    "validate": _validate,
    **dict.fromkeys(("sets.contains", "sets.intersects"), _sets(1)),
    "sets.equivalent": _sets(2),
    **dict.fromkeys(("slice", "reverse", "lists.range"), _new_list),
    "flatten": _flatten,
    **dict.fromkeys(("sort", "distinct", "@sortByAssociatedKeys"), _compare_all),
}
