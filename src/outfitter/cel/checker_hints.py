"""Hints in the checker's errors: what the user should write instead. Pure; called by `checker` alone."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from outfitter.cel import types
from outfitter.cel.declarations import Overload
from outfitter.cel.types import Type

_ORDERS = frozenset(("_<_", "_<=_", "_>_", "_>=_"))
_SIGNS = {"@in": "in", "_?_:_": "?:", "_[_]": "[]", "_[?_]": "[?]", "!_": "!", "-_": "-"}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def struct_usage(target: Type) -> str:
    if target == types.QUANTITY:
        return ", such as .isGreaterThan(quantity('1Gi'))"
    return ", such as .major()" if target == types.SEMVER else ""


def type_hint(wanted: Type, found: Type) -> str:
    if types.DYN in (wanted, found):
        return "; wrap the others in dyn(...)"
    if wanted == types.BOOL:
        return ": compare it with something, such as == 1"
    return ""


def function_hint(name: str, member: bool, overloads: Sequence[Overload], given: Sequence[Type]) -> str:
    fitting = [one for one in overloads if one.member is member]
    if not fitting:
        return f"write {name}(x)" if member else f"write x.{name}(...)"
    counts = sorted({len(one.args) - member for one in fitting})
    count = len(given) - member
    if count not in counts:
        return f"it takes {' or '.join(map(str, counts))} argument(s), not {count}"
    if given[0] in (types.QUANTITY, types.SEMVER) and name in ("isGreaterThan", "isLessThan", "compareTo"):
        make = "quantity('1Gi')" if given[0] == types.QUANTITY else "semver('1.2.3')"
        return f"it compares with another one, write .{name}({make})"
    ways = list(dict.fromkeys(_signature(name, one) for one in fitting if len(one.args) == len(given)))
    return f"it is declared as {' or '.join(ways[:3])}{' or ...' if len(ways) > 3 else ''}"


def _signature(name: str, overload: Overload) -> str:
    texts = [str(one) for one in overload.args]
    return f"{texts[0]}.{name}({', '.join(texts[1:])})" if overload.member else f"{name}({', '.join(texts)})"


def operator_hint(name: str, given: Sequence[Type]) -> str:
    sign = _SIGNS.get(name, name.strip("_"))
    for kind, make in ((types.QUANTITY, "quantity('1Gi')"), (types.SEMVER, "semver('1.2.3')")):
        if kind in given and name in _ORDERS:
            verb = "isGreaterThan" if ">" in name else "isLessThan"
            return f"{kind} has no {sign}, write .{verb}({make}) or .compareTo({make}) {sign} 0"
        if kind in given and name in ("_==_", "_!=_"):
            return f"compare it with {make}"
        if kind in given and name in ("_+_", "_-_"):
            return f"write .{'add' if name == '_+_' else 'sub'}(...)"
    if name in ("_+_", "_-_", "_*_", "_/_", "_%_") and len(set(given)) > 1:
        return "both sides must have one type; convert one with int(), double() or string()"
    if name in ("_==_", "_!=_", *_ORDERS):
        return "these two never compare; convert one side, or wrap it in dyn(...)"
    if name in ("_[_]", "_[?_]") and given[0] == types.DEVICE:
        return "device is not a map: write device.attributes, device.capacity or device.driver"
    if name in ("_[_]", "_[?_]"):
        return "a list takes a whole number, a map a key of its type"
    if name == "@in":
        return "the right side is a list or a map; for text in text write .contains(...)"
    if name == "_?_:_":
        return "the condition is a bool and both choices have one type"
    return f"{sign} does not take that"
