"""`"%s has %d".format([...])`: reading the format, and filling it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from outfitter.cel import values
from outfitter.cel.library.times import Duration, Timestamp
from outfitter.cel.values import TypeValue, UInt, Value
from outfitter.errors import EvaluationError

_CLAUSE = re.compile(r"%(?:(?P<percent>%)|(?:\.(?P<precision>[0-9]+))?(?P<verb>[sdfebxXo]))")
_NO_DOUBLE = frozenset(("NaN", "Infinity", "-Infinity"))
_INTEGERS = frozenset(("int", "uint"))
# What each placeholder takes, by the kind of type.
TAKES: dict[str, frozenset[str]] = {
    "s": frozenset(
        ("list", "map", "int", "uint", "double", "bool", "string", "timestamp", "bytes", "duration", "type", "null", "dyn")
    ),
    "d": _INTEGERS,
    "f": frozenset(("double", "string")),
    "e": frozenset(("double", "string")),
    "b": _INTEGERS | {"bool"},
    "x": _INTEGERS | {"string", "bytes"},
    "X": _INTEGERS | {"string", "bytes"},
    "o": _INTEGERS,
}
WANTS = {
    "s": "plain values, lists and maps", "d": "whole numbers", "f": "doubles", "e": "doubles", "b": "whole numbers and bools",
    "x": "whole numbers, strings and bytes", "X": "whole numbers, strings and bytes", "o": "whole numbers",
}  # fmt: skip
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@dataclass(frozen=True, slots=True)
class Clause:
    verb: str
    precision: int = 6


@lru_cache(maxsize=256)
def parse(text: str) -> tuple[str | Clause, ...]:
    """Split a format into text and placeholders."""
    parts, at = list[str | Clause](), 0
    while (place := text.find("%", at)) >= 0:
        match = _CLAUSE.match(text, place)
        if match is None:
            raise EvaluationError(
                f"could not parse formatting clause {text[place : place + 8]!r}: use %s %d %f %.2f %e %b %x %X %o, and %% for %"
            )
        parts.append(text[at:place] + ("%" if match["percent"] else ""))
        if match["verb"]:
            parts.append(Clause(match["verb"], min(int(match["precision"] or 6), 400)))
        at = match.end()
    return (*parts, text[at:])


def fill(text: str, args: list[Value]) -> str:
    made, used = list[str](), 0
    for part in parse(text):
        if isinstance(part, str):
            made.append(part)
            continue
        if used >= len(args):
            raise EvaluationError(f"index {used} out of range: the format has more placeholders than arguments")
        made.append(_VERBS[part.verb](args[used], part))
        used += 1
    return "".join(made)


def plain(value: Value) -> str:
    """What %s makes of a value."""
    kind = type(value)
    if kind is list:
        items = [_quoted(item) for item in value]
        values.limit(sum(map(len, items)))
        return f"[{', '.join(items)}]"
    if isinstance(value, dict):
        pairs = sorted((_quoted(key), _quoted(item)) for key, item in zip(values.keys(value), value.values(), strict=True))
        values.limit(sum(len(key) + len(item) for key, item in pairs))
        return f"{{{', '.join(f'{key}:{item}' for key, item in pairs)}}}"
    if value is None:
        return "null"
    if kind is bytes:
        return _decoded(value)
    if kind in (str, int, UInt, Duration, Timestamp, TypeValue):
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        return values.double_text(value)
    raise _wrong("s", value)


def _quoted(value: Value) -> str:
    """A value inside of a list or map: as a literal of the language."""
    match value:
        case str():
            return quote(value)
        case bytes():
            return "b" + quote(_decoded(value))
        case float():
            return f"{value:.6f}" if math.isfinite(value) else f'"{values.double_text(value)}"'
        case Duration():
            return f'duration("{value}")'
        case Timestamp():
            return f'timestamp("{value}")'
    return plain(value)


def quote(text: str) -> str:
    """In double quotes, with escapes for what cannot be printed."""
    made = ""
    for character in text:
        if character in _ESCAPES or character.isprintable():
            made += _ESCAPES.get(character, character)
        else:
            code = ord(character)
            made += f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return f'"{made}"'


_ESCAPES = {one: json.dumps(one)[1:-1] for one in '"\\\n\r\t\b\f'} | {"\a": "\\a", "\v": "\\v"}


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from error


def _wrong(verb: str, value: Value) -> EvaluationError:
    return EvaluationError(f"error during formatting: %{verb} formats {WANTS[verb]}, not a {values.type_name(value)}")


def _decimal(value: Value, clause: Clause) -> str:
    if type(value) not in (int, UInt):
        raise _wrong("d", value)
    return str(int(value))


def _double(value: Value, clause: Clause) -> float:
    if type(value) is float:
        return value
    if value in _NO_DOUBLE:
        return float(value)
    raise _wrong(clause.verb, value)


def _fixed(value: Value, clause: Clause) -> str:
    number = _double(value, clause)
    return f"{number:,.{clause.precision}f}" if math.isfinite(number) else _endless(number)


def _scientific(value: Value, clause: Clause) -> str:
    number = _double(value, clause)
    if not math.isfinite(number):
        return _endless(number).rjust(clause.precision)
    # The precision is a least width in this version of the language; there are always six digits.
    mantissa, _, exponent = f"{number:.6e}".partition("e")
    power = f"{'-' if exponent[0] == '-' else ''}{exponent[1:]}".translate(_SUPERSCRIPT)
    return f"{mantissa}×10{power}".rjust(clause.precision)


def _endless(number: float) -> str:
    return "NaN" if math.isnan(number) else "∞" if number > 0 else "-∞"


def _binary(value: Value, clause: Clause) -> str:
    if type(value) not in (int, UInt, bool):
        raise _wrong("b", value)
    return f"{int(value):b}"


def _hex(value: Value, clause: Clause) -> str:
    kind = type(value)
    if kind in (int, UInt):
        return f"{int(value):{clause.verb}}"
    if kind not in (str, bytes):
        raise _wrong("x", value)
    digits = (value.encode() if kind is str else value).hex()
    return str(digits.upper() if clause.verb == "X" else digits)


def _octal(value: Value, clause: Clause) -> str:
    if type(value) not in (int, UInt):
        raise _wrong("o", value)
    return f"{int(value):o}"


_VERBS: dict[str, Callable[[Value, Clause], str]] = {
    "s": lambda value, clause: plain(value),
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "b": _binary,
    "x": _hex,
    "X": _hex,
    "o": _octal,
}
