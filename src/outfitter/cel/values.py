"""What CEL values are in Python, and what the operators do to them.

bool, int (64 bits), double, string, null, list and map are bool, int, float, str, None, list and dict; the rest are the
classes `Optional`, `Quantity`, `Semver` and the device itself. No value is ever changed once made. An error is an
exception; only `&&`, `||`, `all` and `exists` may swallow one."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from outfitter.cel.quantity import INT_MAX, INT_MIN, Quantity
from outfitter.cel.semver import Semver
from outfitter.errors import EvaluationError

Value: TypeAlias = Any  # one of those listed above; which one, only the run knows

MAX_LENGTH: Final = 1_000_000  # characters that one call may build


class OutOfBudget(Exception):
    """The expression works too long. No EvaluationError, because `||` must not swallow it."""


class BoolKey(enum.Enum):
    """true and false as map keys: in Python True and 1 would be the same key."""

    FALSE = False
    TRUE = True


class DefaultMap(dict[str, dict[str, Value]]):
    """Kubernetes' map of domains: looking up an unknown one gives an empty map; `in`, size and walking stay exact."""

    __slots__ = ()

    def __missing__(self, _key: object) -> dict[str, Value]:
        return _EMPTY


_EMPTY: Final[dict[str, Value]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Optional:
    """A value that may be absent: what `a.?b` gives."""

    present: bool
    value: Value = None


NONE: Final = Optional(False)
MISSING: Final = object()  # what `find` gives when there is nothing

_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "double",
    str: "string",
    type(None): "null_type",
    list: "list",
    dict: "map",
    DefaultMap: "map",
    Optional: "optional_type",
    Quantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
}
_SCALARS = frozenset((bool, int, float, str))
_NUMBERS = frozenset((int, float))
_OPAQUE = (Quantity, Semver)


def type_name(value: Value) -> str:
    """CEL's name for the type of a value."""
    return _NAMES.get(type(value), "kubernetes.DRADevice")


def no_such_overload(operation: str, *operands: Value) -> EvaluationError:
    return EvaluationError(f"no such overload: {operation} applied to ({', '.join(map(type_name, operands))})")


def limit(length: int) -> None:
    """Called before a string of that length is built by a function that can multiply lengths."""
    if length > MAX_LENGTH:
        raise OutOfBudget


# -- equality and order


def equal(a: Value, b: Value) -> bool:
    """`==`. Different types are unequal, numbers compare by value, and a quantity or version on the left insists on
    its own kind."""
    kind, other = type(a), type(b)
    if kind is other and kind in _SCALARS:
        return bool(a == b)
    if a is None or b is None:
        return a is b
    if kind in _NUMBERS and other in _NUMBERS:
        return bool(a == b)
    if kind is list:
        return other is list and len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        if not isinstance(b, dict) or len(a) != len(b):
            return False
        return all(key in b and equal(value, b[key]) for key, value in a.items())
    if kind is Optional and other is Optional:
        return a.present == b.present and (not a.present or equal(a.value, b.value))
    if kind in _OPAQUE:
        if other is not kind:
            raise no_such_overload("==", a, b)
        return bool(a == b)
    return False


def surely_equal(a: Value, b: Value) -> bool:
    """Equality for searching: what cannot be compared is not what is looked for."""
    try:
        return equal(a, b)
    except EvaluationError:
        return False


def compare(a: Value, b: Value, operation: str = "compare") -> int:
    """-1, 0 or 1; only numbers, strings and bools have an order."""
    kind, other = type(a), type(b)
    if not (kind in _NUMBERS and other in _NUMBERS) and not (kind is other and kind in (str, bool)):
        raise no_such_overload(operation, a, b)
    if (kind is float and math.isnan(a)) or (other is float and math.isnan(b)):
        raise EvaluationError("NaN values cannot be ordered")
    return int(a > b) - int(a < b)


def contains(item: Value, container: Value) -> bool:
    """`item in container`: an item of a list, or a key of a map."""
    if type(container) is list:
        return any(surely_equal(item, one) for one in container)
    if isinstance(container, dict):
        if type(item) is str:
            return item in container
        return type(item) in _KEYS and to_key(item) in container
    raise no_such_overload("in", item, container)


# -- lookups

_KEYS = frozenset((bool, int, float, str))


def to_key(value: Value) -> Value:
    """The value as it is stored as a map key."""
    kind = type(value)
    if kind is bool:
        return BoolKey(value)
    if kind in _KEYS:
        return value
    raise EvaluationError(f"unsupported key type: {type_name(value)}")


def keys(mapping: dict[Value, Value]) -> list[Value]:
    """The keys of a map as CEL values."""
    return [key.value if type(key) is BoolKey else key for key in mapping]


def find(container: Value, key: Value) -> Value:
    """What is at that key or index, or MISSING."""
    if isinstance(container, dict):
        try:
            return container[to_key(key)]
        except KeyError:
            return MISSING
    if type(container) is list:
        place = int(key) if type(key) is float and key.is_integer() else key
        if type(place) is not int:
            raise EvaluationError(f"unsupported index {text_of(key)} in a list: it takes a whole number")
        return container[place] if 0 <= place < len(container) else MISSING
    raise no_such_overload("[]", container, key)


def at(container: Value, key: Value) -> Value:
    """What is at that key or index; an error when there is nothing."""
    value = find(container, key)
    if value is MISSING:
        if type(container) is list:
            raise EvaluationError(f"index out of bounds: {text_of(key)} in a list of {len(container)}")
        raise EvaluationError(f"no such key: {text_of(key)}")
    return value


# -- arithmetic


def whole(value: int) -> int:
    """An int64, or an error."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise EvaluationError("integer overflow")


def add(a: Value, b: Value) -> Value:
    kind = type(a)
    if kind is type(b):
        if kind is int:
            return whole(a + b)
        if kind is float:
            return a + b
        if kind is str or kind is list:
            return a + b
    raise no_such_overload("+", a, b)


def subtract(a: Value, b: Value) -> Value:
    kind = type(a)
    if kind is type(b) and kind in _NUMBERS:
        return whole(a - b) if kind is int else a - b
    raise no_such_overload("-", a, b)


def multiply(a: Value, b: Value) -> Value:
    kind = type(a)
    if kind is type(b) and kind in _NUMBERS:
        return whole(a * b) if kind is int else a * b
    raise no_such_overload("*", a, b)


def divide(a: Value, b: Value) -> Value:
    """Whole numbers are cut towards zero; doubles follow IEEE 754."""
    kind = type(a)
    if kind is not type(b) or kind not in _NUMBERS:
        raise no_such_overload("/", a, b)
    if kind is int:
        if b == 0:
            raise EvaluationError("division by zero")
        quotient = abs(a) // abs(b)
        return whole(quotient if (a < 0) == (b < 0) else -quotient)
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def modulo(a: Value, b: Value) -> Value:
    """The rest of the cut division: it has the sign of the left side."""
    if type(a) is not int or type(b) is not int:
        raise no_such_overload("%", a, b)
    if b == 0:
        raise EvaluationError("modulus by zero")
    rest = abs(a) % abs(b)
    return -rest if a < 0 else rest


def negate(a: Value) -> Value:
    if type(a) is int:
        return whole(-a)
    if type(a) is float:
        return -a
    raise no_such_overload("-", a)


ARITHMETIC: dict[str, Callable[[Value, Value], Value]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": modulo,
}


def text_of(value: Value) -> str:
    """A value in an error message."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if type(value) in (str, int, float) else type_name(value)
