"""CEL values in Python, and the operators on them. Called by `closures` and `library`.

bool, int (64 bits), double, string, bytes, null, list and map are bool, int, float, str, bytes, None, list and dict; the
rest are the classes `UInt`, `Optional`, `TypeValue`, those of `quantity`, `semver`, `times`, `network` and `named_formats`, and
the device itself. Values are immutable. An error is an exception; only `&&`, `||`, `all` and `exists` may ignore one."""

from __future__ import annotations

import decimal
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from outfitter.cel.library import times
from outfitter.cel.library.named_formats import NamedFormat
from outfitter.cel.library.network import Cidr, Ip, Url
from outfitter.cel.library.quantity import INT_MAX, INT_MIN, Quantity
from outfitter.cel.library.semver import UINT_MAX, Semver
from outfitter.cel.library.times import Duration, Timestamp
from outfitter.errors import EvaluationError

Value: TypeAlias = Any  # one of those listed above

MAX_LENGTH: Final = 1_000_000  # characters or items that one call may create or compare


class OutOfBudget(Exception):
    """The expression exceeds its budget. Not an EvaluationError, because `||` must not ignore it."""


class BoolKey(enum.Enum):
    """true and false as map keys: in Python True and 1 would be the same key."""

    FALSE = False
    TRUE = True


class DefaultMap(dict[str, dict[str, Value]]):
    """Kubernetes' map of domains: an unknown domain is an empty map; `in`, size and iteration are exact."""

    __slots__ = ()

    def __missing__(self, _key: object) -> dict[str, Value]:
        return _EMPTY


_EMPTY: Final[dict[str, Value]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Optional:
    """A value that may be absent: what `a.?b` gives."""

    present: bool
    value: Value = None


class UInt(int):
    """A whole number without sign, 64 bits: 5u."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value: what type(x) gives."""

    name: str

    def __str__(self) -> str:
        return self.name


NONE: Final = Optional(False)
MISSING: Final = object()  # result of `find` when there is no such item

_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    UInt: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    list: "list",
    dict: "map",
    DefaultMap: "map",
    Optional: "optional_type",
    Quantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
    TypeValue: "type",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    Ip: "net.IP",
    Cidr: "net.CIDR",
    Url: "kubernetes.URL",
    NamedFormat: "kubernetes.NamedFormat",
}
_SCALARS = frozenset((bool, int, UInt, float, str, bytes, Duration, Timestamp, TypeValue))
_NUMBERS = frozenset((int, UInt, float))
_ORDERED = frozenset((str, bytes, bool, Duration, Timestamp))
_OPAQUE = (Quantity, Semver, Ip, Cidr, Url, NamedFormat)


def type_name(value: Value) -> str:
    """CEL's name for the type of a value."""
    return _NAMES.get(type(value), "kubernetes.DRADevice")


def no_such_overload(operation: str, *operands: Value) -> EvaluationError:
    return EvaluationError(f"no such overload: {operation} applied to ({', '.join(map(type_name, operands))})")


def limit(length: int) -> None:
    """Called before a string or list of that length is created by a function that multiplies lengths at a low cost."""
    if length > MAX_LENGTH:
        raise OutOfBudget


# -- equality and order


def equal(a: Value, b: Value, work: list[int] | None = None) -> bool:
    """`==`. Different types are unequal, numbers compare by value, and a quantity or version on the left requires
    the same type. `work` is the number of items that may still be compared: a short expression can nest lists very deeply."""
    kind, other = type(a), type(b)
    if kind is other and kind in _SCALARS:
        return bool(a == b)
    if a is None or b is None:
        return a is b
    if kind in _NUMBERS and other in _NUMBERS:
        return bool(float(a) == float(b) if float in (kind, other) else a == b)
    if kind is list or isinstance(a, dict):
        return _equal_items(a, b, work or [MAX_LENGTH])
    if kind is Optional and other is Optional:
        return a.present == b.present and (not a.present or equal(a.value, b.value))
    if kind in _OPAQUE:
        if other is not kind:
            raise no_such_overload("==", a, b)
        return bool(a == b)
    return False


def _equal_items(a: Value, b: Value, work: list[int]) -> bool:
    if not isinstance(b, list if type(a) is list else dict) or len(a) != len(b):
        return False
    work[0] -= len(a)
    if work[0] < 0:
        raise OutOfBudget
    if type(a) is list:
        return all(equal(x, y, work) for x, y in zip(a, b, strict=True))
    return all(key in b and equal(value, b[key], work) for key, value in a.items())


def surely_equal(a: Value, b: Value) -> bool:
    """Equality for searching: values that cannot be compared are not equal."""
    try:
        return equal(a, b)
    except EvaluationError:
        return False


def compare(a: Value, b: Value, operation: str = "compare") -> int:
    """-1, 0 or 1; only numbers, strings, bytes, bools and times have an order."""
    kind, other = type(a), type(b)
    if not (kind in _NUMBERS and other in _NUMBERS) and not (kind is other and kind in _ORDERED):
        raise no_such_overload(operation, a, b)
    if (kind is float and math.isnan(a)) or (other is float and math.isnan(b)):
        raise EvaluationError("NaN values cannot be ordered")
    if kind is not other and float in (kind, other):
        a, b = float(a), float(b)  # as in Kubernetes; not exact beyond 2**53
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

_KEYS = frozenset((bool, int, UInt, float, str))


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
        place = int(key) if type(key) is UInt or (type(key) is float and key.is_integer()) else key
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
        raise EvaluationError.no_such_key(text_of(key))
    return value


# -- arithmetic


def whole(value: int) -> int:
    """An int64, or an error."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise EvaluationError("integer overflow")


def unsigned(value: int) -> UInt:
    """A uint64, or an error."""
    if 0 <= value <= UINT_MAX:
        return UInt(value)
    raise EvaluationError("unsigned integer overflow")


def _exactly(kind: type, value: int | float) -> Value:
    """The result of arithmetic in that type."""
    return whole(int(value)) if kind is int else unsigned(int(value)) if kind is UInt else value


def add(a: Value, b: Value) -> Value:
    kind = type(a)
    if kind is type(b):
        if kind is int:
            return whole(a + b)
        if kind in (float, str, bytes):
            return a + b
        if kind is list:
            limit(len(a) + len(b))
            return a + b
        if kind is UInt:
            return unsigned(int(a) + int(b))
        if kind is Duration:
            return _timed(times.duration, a.nano + b.nano)
    elif {kind, type(b)} == {Timestamp, Duration}:
        return _timed(times.timestamp, a.nano + b.nano)
    raise no_such_overload("+", a, b)


def subtract(a: Value, b: Value) -> Value:
    kind = type(a)
    if kind is type(b):
        if kind in _NUMBERS:
            return whole(a - b) if kind is int else _exactly(kind, float(a) - b if kind is float else int(a) - int(b))
        if kind in (Duration, Timestamp):
            return _timed(times.duration, a.nano - b.nano)
    elif kind is Timestamp and type(b) is Duration:
        return _timed(times.timestamp, a.nano - b.nano)
    raise no_such_overload("-", a, b)


def _timed(make: Callable[[int], Value], nano: int) -> Value:
    try:
        return make(nano)
    except ValueError as error:
        raise EvaluationError(str(error)) from error


def multiply(a: Value, b: Value) -> Value:
    kind = type(a)
    if kind is type(b) and kind in _NUMBERS:
        return a * b if kind is float else _exactly(kind, int(a) * int(b))
    raise no_such_overload("*", a, b)


def divide(a: Value, b: Value) -> Value:
    """Whole numbers are cut towards zero; doubles follow IEEE 754."""
    kind = type(a)
    if kind is not type(b) or kind not in _NUMBERS:
        raise no_such_overload("/", a, b)
    if kind is not float:
        if b == 0:
            raise EvaluationError("division by zero")
        quotient = abs(int(a)) // abs(int(b))
        return _exactly(kind, quotient if (a < 0) == (b < 0) else -quotient)
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def modulo(a: Value, b: Value) -> Value:
    """The rest of the cut division: it has the sign of the left side."""
    kind = type(a)
    if kind is not type(b) or kind not in (int, UInt):
        raise no_such_overload("%", a, b)
    if b == 0:
        raise EvaluationError("modulus by zero")
    if kind is int and a == INT_MIN and b == -1:
        raise EvaluationError("integer overflow")
    rest = abs(int(a)) % abs(int(b))
    return _exactly(kind, -rest if a < 0 else rest)


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
    return str(value) if type(value) in (str, int, UInt, float) else type_name(value)


def double_text(value: float) -> str:
    """The shortest text that reads back as the same double, with an exponent below 1e-4 and from 1e6 on."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    exact = decimal.Decimal(repr(value)).normalize()
    sign, digits = "-" if exact.is_signed() else "", "".join(map(str, exact.as_tuple().digits))
    power = exact.adjusted()
    if value and not -4 <= power < 6:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{'-' if power < 0 else '+'}{abs(power):02d}"
    return f"{exact:f}"
