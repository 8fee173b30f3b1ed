"""Type conversions: int(), string(), bool() and others."""

from __future__ import annotations

import math
import re

from outfitter.cel import values
from outfitter.cel.library import string_format
from outfitter.cel.library.network import Cidr, Ip
from outfitter.cel.library.objects import Function
from outfitter.cel.library.objects import want as _want
from outfitter.cel.library.quantity import INT_MAX, INT_MIN
from outfitter.cel.library.semver import UINT_MAX
from outfitter.cel.library.times import SECOND, Duration, Timestamp
from outfitter.cel.values import TypeValue, UInt, Value
from outfitter.errors import EvaluationError

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
        return string_format.plain(value)
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


GLOBAL: dict[str, dict[int, Function]] = {
    "int": {1: _to_int},
    "double": {1: _to_double},
    "string": {1: _to_string},
    "bool": {1: _to_bool},
    "uint": {1: _to_uint},
    "bytes": {1: _to_bytes},
    "dyn": {1: _same},
    "type": {1: _type},
}
