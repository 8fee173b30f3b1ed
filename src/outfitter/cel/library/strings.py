"""Functions on strings, and regular expressions by RE2."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2

from outfitter.cel import values
from outfitter.cel.library import string_format
from outfitter.cel.library.objects import Function
from outfitter.cel.library.objects import want as _want
from outfitter.cel.values import Value
from outfitter.errors import EvaluationError

WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"


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


_QUOTED = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"} | {
    "\\": "\\\\",
    '"': '\\"',
}


def _quote(text: Value) -> str:
    _texts("strings.quote", text)
    return f'"{text.translate(str.maketrans(_QUOTED))}"'


def _format(text: Value, args: Value) -> str:
    _texts("format", text)
    return string_format.fill(text, _want(list, "format", args))


MEMBER: dict[str, dict[int, Function]] = {
    "contains": {1: _contains},
    "startsWith": {1: _starts_with},
    "endsWith": {1: _ends_with},
    "matches": {1: _matches},
    "find": {1: _find},
    "findAll": {1: _find_all, 2: _find_all},
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
    "format": {1: _format},
}
GLOBAL: dict[str, dict[int, Function]] = {
    "matches": {2: _matches},
    "strings.quote": {1: _quote},
}
