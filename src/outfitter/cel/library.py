"""The functions an expression can call, by name and number of arguments. All are pure.

To add one: write it (target first), put it in `MEMBER` or `GLOBAL`, and declare its types in `declarations`."""

from __future__ import annotations

import functools
import itertools
import math
import re
from functools import lru_cache, reduce
from typing import Any

import re2

from outfitter.cel import formatting, objects, values
from outfitter.cel import quantity as quantities
from outfitter.cel import semver as semvers
from outfitter.cel.network import Cidr, Ip
from outfitter.cel.objects import Function
from outfitter.cel.objects import want as _want
from outfitter.cel.quantity import INT_MAX, INT_MIN, Quantity
from outfitter.cel.semver import UINT_MAX, Semver
from outfitter.cel.times import SECOND, Duration, Timestamp
from outfitter.cel.values import NONE, Optional, TypeValue, UInt, Value
from outfitter.errors import EvaluationError

WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"


# -- strings


def _texts(function: str, *args: Value) -> None:
    for arg in args:
        if type(arg) is not str:
            raise values.no_such_overload(function, *args)


def _contains(text: Value, part: Value) -> bool:
    _texts("contains", text, part)
    return part in text


def _starts_with(text: Value, part: Value) -> bool:
    _texts("startsWith", text, part)
    return bool(text.startswith(part))


def _ends_with(text: Value, part: Value) -> bool:
    _texts("endsWith", text, part)
    return bool(text.endswith(part))


def _lower(text: Value) -> str:
    _texts("lowerAscii", text)
    return str(text.translate(_TO_LOWER))


def _upper(text: Value) -> str:
    _texts("upperAscii", text)
    return str(text.translate(_TO_UPPER))


_TO_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_TO_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}


def _trim(text: Value) -> str:
    _texts("trim", text)
    return str(text.strip(WHITE_SPACE))


def _replace(text: Value, old: Value, new: Value, count: Value = -1) -> str:
    _texts("replace", text, old, new)
    most = _want(int, "replace", count)
    found = text.count(old)
    values.limit(len(text) + len(new) * (found if most < 0 else min(most, found)))
    return str(text.replace(old, new, max(most, -1)))


def _split(text: Value, separator: Value, count: Value = -1) -> list[Value]:
    _texts("split", text, separator)
    most = _want(int, "split", count)
    if most == 0:
        return []
    if separator:
        return list(text.split(separator, most - 1 if most > 0 else -1))
    return list(text) if most < 0 or most >= len(text) else [*text[: most - 1], text[most - 1 :]]


def _position(function: str, text: str, index: Value, most: int) -> int:
    at = _want(int, function, index)
    if not 0 <= at <= most:
        raise EvaluationError(f"index out of range: {at} in {function}() of a string of {len(text)}")
    return at


def _offset(function: str, offset: Value) -> int:
    """Where to begin looking: beyond the end nothing is found, before the start is an error."""
    at = _want(int, function, offset)
    if at < 0:
        raise EvaluationError(f"index out of range: {at} in {function}()")
    return at


def _substring(text: Value, start: Value, end: Value = None) -> str:
    _texts("substring", text)
    last = len(text) if end is None else _position("substring", text, end, len(text))
    return str(text[_position("substring", text, start, last) : last])


def _char_at(text: Value, index: Value) -> str:
    _texts("charAt", text)
    at = _position("charAt", text, index, len(text))
    return str(text[at : at + 1])


def _join(items: Value, separator: Value = "") -> str:
    _want(list, "join", items)
    _texts("join", separator)
    if not all(type(item) is str for item in items):
        raise values.no_such_overload("join", items)
    values.limit(sum(map(len, items)) + len(separator) * len(items))
    return str(separator.join(items))


def _index_of(target: Value, item: Value, offset: Value = None) -> int:
    if type(target) is list and offset is None:
        return next((at for at, one in enumerate(target) if values.surely_equal(one, item)), -1)
    _texts("indexOf", target, item)
    start = 0 if offset is None else _offset("indexOf", offset)
    return int(target.find(item, start)) if item else min(start, len(target))


def _last_index_of(target: Value, item: Value, offset: Value = None) -> int:
    if type(target) is list and offset is None:
        last = len(target) - 1
        return next((last - at for at, one in enumerate(reversed(target)) if values.surely_equal(one, item)), -1)
    _texts("lastIndexOf", target, item)
    start = len(target) if offset is None else _offset("lastIndexOf", offset)
    if not item:
        return min(start, len(target))
    return int(target.rfind(item, 0, start + len(item))) if offset is None or start < len(target) else -1


@lru_cache(maxsize=1024)
def regex(pattern: str) -> Any:
    """A compiled pattern. RE2, not `re`: its time is linear, whatever the user writes."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise EvaluationError(f"invalid regular expression {pattern[:100]!r}: {reason} (RE2 syntax)") from error


def _matches(text: Value, pattern: Value) -> bool:
    _texts("matches", text, pattern)
    return regex(pattern).search(text) is not None


def _find(text: Value, pattern: Value) -> str:
    _texts("find", text, pattern)
    found = regex(pattern).search(text)
    return found.group() if found else ""


def _find_all(text: Value, pattern: Value, count: Value = -1) -> list[Value]:
    _texts("findAll", text, pattern)
    most = _want(int, "findAll", count)
    found = list[Value]()
    for match in regex(pattern).finditer(text):
        if 0 <= most <= len(found):
            break
        found.append(match.group())
    return found


def _size(value: Value) -> int:
    if isinstance(value, str | list | dict | bytes):
        return len(value)
    raise values.no_such_overload("size", value)


_QUOTED = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"} | {
    "\\": "\\\\",
    '"': '\\"',
}


def _quote(text: Value) -> str:
    _texts("strings.quote", text)
    return f'"{text.translate(str.maketrans(_QUOTED))}"'


def _format(text: Value, args: Value) -> str:
    _texts("format", text)
    return formatting.fill(text, _want(list, "format", args))


# -- conversions

_INT = re.compile(r"[+-]?[0-9]{1,30}")
_UINT = re.compile(r"[0-9]{1,30}")
_DIGITS = r"[0-9](?:_?[0-9])*"
_DOUBLE = re.compile(rf"[+-]?(?:(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:e[+-]?{_DIGITS})?|inf|infinity|nan)", re.I)
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")


def _to_int(value: Value) -> int:
    match value:
        case bool():
            raise values.no_such_overload("int", value)
        case int():
            return values.whole(int(value))
        case float():
            if not math.isfinite(value) or not float(INT_MIN) < value < float(INT_MAX):
                raise EvaluationError("integer overflow")
            return int(value)
        case str():
            if not _INT.fullmatch(value):
                raise EvaluationError(f"type conversion error: {value[:60]!r} is not a whole number")
            return values.whole(int(value))
        case Duration():
            return value.nano
        case Timestamp():
            return value.nano // SECOND
    raise values.no_such_overload("int", value)


def _to_uint(value: Value) -> UInt:
    match value:
        case bool():
            raise values.no_such_overload("uint", value)
        case int():
            return values.unsigned(int(value))
        case float():
            if not math.isfinite(value) or not 0 <= value < float(UINT_MAX):
                raise EvaluationError("unsigned integer overflow")
            return UInt(int(value))
        case str():
            if not _UINT.fullmatch(value):
                raise EvaluationError(f"type conversion error: {value[:60]!r} is not a whole number without sign")
            return values.unsigned(int(value))
    raise values.no_such_overload("uint", value)


def _to_double(value: Value) -> float:
    if type(value) in (int, UInt, float):
        return float(value)
    if type(value) is not str:
        raise values.no_such_overload("double", value)
    if not _DOUBLE.fullmatch(value) or (math.isinf(float(value)) and "n" not in value.lower()):
        raise EvaluationError(f"type conversion error: {value[:60]!r} is not a number that fits a double")
    return float(value)


def _to_string(value: Value) -> str:
    if type(value) in (str, int, UInt, bool, float, bytes, Duration, Timestamp):
        return formatting.plain(value)
    if type(value) in (Ip, Cidr):
        return str(value)
    raise values.no_such_overload("string", value)


def _to_bytes(value: Value) -> bytes:
    if type(value) is bytes:
        return value
    return _want(str, "bytes", value).encode(errors="surrogatepass")


def _to_bool(value: Value) -> bool:
    if type(value) is bool:
        return value
    if type(value) is not str:
        raise values.no_such_overload("bool", value)
    if value in _TRUE or value in _FALSE:
        return value in _TRUE
    raise EvaluationError(f"type conversion error: {value[:60]!r} is not true or false")


def _same(value: Value) -> Value:
    return value


def _type(value: Value) -> TypeValue:
    return TypeValue(values.type_name(value))


# -- lists and sets


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


# -- quantities and versions


def _quantity(text: Value) -> Quantity:
    try:
        return quantities.parse(_want(str, "quantity", text))
    except ValueError as error:
        raise EvaluationError(str(error)) from error


def _is_quantity(text: Value) -> bool:
    try:
        quantities.parse(_want(str, "isQuantity", text))
    except ValueError:
        return False
    return True


def _semver(text: Value, normalize: Value = False) -> Semver:
    try:
        return semvers.parse(_want(str, "semver", text), normalize=_want(bool, "semver", normalize))
    except ValueError as error:
        raise EvaluationError(str(error)) from error


def _is_semver(text: Value, normalize: Value = False) -> bool:
    try:
        semvers.parse(_want(str, "isSemver", text), normalize=_want(bool, "isSemver", normalize))
    except ValueError:
        return False
    return True


def _compare_to(a: Value, b: Value, function: str = "compareTo") -> int:
    if type(a) not in (Quantity, Semver) or type(a) is not type(b):
        raise values.no_such_overload(function, a, b)
    return int(b < a) - int(a < b)


def _is_greater_than(a: Value, b: Value) -> bool:
    return _compare_to(a, b, "isGreaterThan") > 0


def _is_less_than(a: Value, b: Value) -> bool:
    return _compare_to(a, b, "isLessThan") < 0


def _operand(function: str, target: Value, other: Value) -> Quantity:
    _want(Quantity, function, target)
    return quantities.of(other) if type(other) is int else _want(Quantity, function, other)


def _add(target: Value, other: Value) -> Value:
    return target + _operand("add", target, other)


def _sub(target: Value, other: Value) -> Value:
    return target - _operand("sub", target, other)


def _as_integer(target: Value) -> int:
    whole = _want(Quantity, "asInteger", target).whole
    if whole is None:
        raise EvaluationError(f"cannot convert value to integer: {target}")
    return whole


# -- optionals


def _has_value(target: Value) -> bool:
    return _want(Optional, "hasValue", target).present


def _value(target: Value) -> Value:
    if not _want(Optional, "value", target).present:
        raise EvaluationError("optional.none() dereference")
    return target.value


def _of_non_zero(value: Value) -> Optional:
    zero = value is None or (isinstance(value, bool | int | float | str | bytes | list | dict) and not value)
    zero = zero or (type(value) is Duration and value.nano == 0)
    return values.NONE if zero else Optional(True, value)


MEMBER: dict[str, dict[int, Function]] = {
    "contains": {1: _contains},
    "startsWith": {1: _starts_with},
    "endsWith": {1: _ends_with},
    "matches": {1: _matches},
    "find": {1: _find},
    "findAll": {1: _find_all, 2: _find_all},
    "size": {0: _size},
    "lowerAscii": {0: _lower},
    "upperAscii": {0: _upper},
    "trim": {0: _trim},
    "replace": {2: _replace, 3: _replace},
    "split": {1: _split, 2: _split},
    "substring": {1: _substring, 2: _substring},
    "charAt": {1: _char_at},
    "indexOf": {1: _index_of, 2: _index_of},
    "lastIndexOf": {1: _last_index_of, 2: _last_index_of},
    "join": {0: _join, 1: _join},
    "sum": {0: _sum},
    "min": {0: _extreme("min", -1)},
    "max": {0: _extreme("max", 1)},
    "isSorted": {0: _is_sorted},
    "includes": {1: _includes},
    "compareTo": {1: _compare_to},
    "isGreaterThan": {1: _is_greater_than},
    "isLessThan": {1: _is_less_than},
    "isInteger": {0: lambda target: _want(Quantity, "isInteger", target).whole is not None},
    "asInteger": {0: _as_integer},
    "asApproximateFloat": {0: lambda target: _want(Quantity, "asApproximateFloat", target).approximate()},
    "add": {1: _add},
    "sub": {1: _sub},
    "major": {0: lambda target: values.whole(_want(Semver, "major", target).major)},
    "minor": {0: lambda target: values.whole(_want(Semver, "minor", target).minor)},
    "patch": {0: lambda target: values.whole(_want(Semver, "patch", target).patch)},
    "hasValue": {0: _has_value},
    "value": {0: _value},
    "format": {1: _format},
    "slice": {2: _slice},
    "flatten": {0: _flatten, 1: _flatten},
    "reverse": {0: _reverse},
    "distinct": {0: _distinct},
    "sort": {0: _sort},
    "first": {0: _first},
    "last": {0: _last},
    "unwrapOpt": {0: _unwrap},
    **objects.MEMBER,
}

GLOBAL: dict[str, dict[int, Function]] = {
    "size": {1: _size},
    "matches": {2: _matches},
    "int": {1: _to_int},
    "double": {1: _to_double},
    "string": {1: _to_string},
    "bool": {1: _to_bool},
    "uint": {1: _to_uint},
    "bytes": {1: _to_bytes},
    "dyn": {1: _same},
    "type": {1: _type},
    "sign": {1: lambda value: _want(Quantity, "sign", value).sign},
    "strings.quote": {1: _quote},
    "lists.range": {1: _range},
    "optional.unwrap": {1: _unwrap},
    "quantity": {1: _quantity},
    "isQuantity": {1: _is_quantity},
    "semver": {1: _semver, 2: _semver},
    "isSemver": {1: _is_semver, 2: _is_semver},
    "sets.contains": {2: _sets_contains},
    "sets.equivalent": {2: _sets_equivalent},
    "sets.intersects": {2: _sets_intersects},
    "optional.of": {1: lambda value: Optional(True, value)},
    "optional.none": {0: lambda: values.NONE},
    "optional.ofNonZeroValue": {1: _of_non_zero},
    **objects.GLOBAL,
}
