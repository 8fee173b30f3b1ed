"""The functions an expression can call, by name and number of arguments. All are pure.

Those on strings are in `texts`, on lists in `lists`, between types in `conversions`, on times and addresses in `objects`.
To add one: write it (target first), put it in `MEMBER` or `GLOBAL` there, and declare its types in `declarations`."""

from __future__ import annotations

from outfitter.cel import values
from outfitter.cel.library import conversions, lists, objects, strings
from outfitter.cel.library import quantity as quantities
from outfitter.cel.library import semver as semvers
from outfitter.cel.library.objects import Function
from outfitter.cel.library.objects import want as _want
from outfitter.cel.library.quantity import Quantity
from outfitter.cel.library.semver import Semver
from outfitter.cel.library.times import Duration
from outfitter.cel.values import Optional, Value
from outfitter.errors import EvaluationError


def _size(value: Value) -> int:
    if isinstance(value, str | list | dict | bytes):
        return len(value)
    raise values.no_such_overload("size", value)


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
    return quantities.from_int(other) if type(other) is int else _want(Quantity, function, other)


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
    "size": {0: _size},
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
    **lists.MEMBER,
    **strings.MEMBER,
    **objects.MEMBER,
}

GLOBAL: dict[str, dict[int, Function]] = {
    "size": {1: _size},
    "sign": {1: lambda value: _want(Quantity, "sign", value).sign},
    "quantity": {1: _quantity},
    "isQuantity": {1: _is_quantity},
    "semver": {1: _semver, 2: _semver},
    "isSemver": {1: _is_semver, 2: _is_semver},
    "optional.of": {1: lambda value: Optional(True, value)},
    "optional.none": {0: lambda: values.NONE},
    "optional.ofNonZeroValue": {1: _of_non_zero},
    **conversions.GLOBAL,
    **lists.GLOBAL,
    **strings.GLOBAL,
    **objects.GLOBAL,
}
