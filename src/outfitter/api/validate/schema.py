"""Checks the field types of an object against the shape of its kind (`shapes`), before all other validation, which relies on
them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from outfitter.api.validate import time_fields
from outfitter.api.validate.shapes import METADATA, NUMBER, QUANTITY, SHAPES, Amount, Shape, Time
from outfitter.cel.library import quantity
from outfitter.errors import Cause

MOST = 2 ** 63  # integers must fit int64, which clients in Go use
WHOLE = (int,)  # how `_compile` writes int: its range is checked too
WORDS: Mapping[Any, str] = {
    QUANTITY: "an amount", NUMBER: "an amount", str: "text", int: "a whole number", bool: "true or false", dict: "an object",
    list: "a list", Amount: "an amount, such as 500m, 2 or 4Gi", Time: "a time, such as 2026-01-31T12:00:00Z"}


def conforms(kind: str, obj: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> bool:
    """Whether all fields have their types. The fast path of every write; `check` finds the causes. `old`: the object that is
    replaced. A part that is the identical value there was checked before."""
    fields = _compiled(kind)
    if old is None:
        return obj.get("metadata") is not None and _good(obj, fields)
    changed = {name: part for name, part in obj.items() if part is not old.get(name)}
    return all(obj.get(name) is not None for name in ("metadata", *fields.needed)) and _good(
        changed, fields._replace(needed=()) if fields.needed else fields)


def check(kind: str, obj: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> Iterator[Cause]:
    """The fields of the wrong type. A part that equals that of the object that is replaced is left alone: an object that got
    into the store before can still be deleted, and its other parts written."""
    if conforms(kind, obj, old):
        return
    whole = {"metadata!": METADATA, **SHAPES.get(kind, {})}
    if old is not None:
        whole = {key: wanted for key, wanted in whole.items() if not _same(obj.get(key.rstrip("!")), old.get(key.rstrip("!")))}
    yield from _object(obj, whole, "")


def _same(value: Any, other: Any) -> bool:
    """Whether two values are equal as JSON; in Python, true equals 1."""
    return value == other and json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


class _SchemaFields(NamedTuple):
    """A shape compiled for fast checks."""

    known: Mapping[str, Any]  # field -> a type, _Fields, or [either] for a list of such
    needed: tuple[str, ...]
    every: Any  # the rule for every field; None: unlisted fields are not checked


@functools.cache
def _compiled(kind: str) -> _SchemaFields:
    """The compiled shape of a kind. That metadata is required is checked elsewhere."""
    compiled: _SchemaFields = _compile({"metadata": METADATA, **SHAPES.get(kind, {})})
    return compiled


def _compile(shape: Any) -> Any:
    if isinstance(shape, list):
        return [_compile(shape[0])]
    if not isinstance(shape, Mapping):
        return WHOLE if shape is int else shape
    known = {key.rstrip("!"): _compile(wanted) for key, wanted in shape.items() if key != "*"}
    return _SchemaFields(known, tuple(key[:-1] for key in shape if key.endswith("!")), _compile(shape.get("*")))


def _good(value: Any, wanted: Any) -> bool:
    """Whether a value has the right type; `_object` finds the causes."""
    if type(value) is wanted:
        return True
    if type(wanted) is _SchemaFields:
        if type(value) is not dict:
            return False
        for field in wanted.needed:
            if value.get(field) is None:
                return False
        known = wanted.known
        for field, inner in value.items():
            rule = known.get(field)
            if rule is not None and inner is not None and type(inner) is not rule and not _good(inner, rule):
                return False
        if (rule := wanted.every) is not None:
            for inner in value.values():
                if type(inner) is not rule and not _good(inner, rule):
                    return False
        return True
    if type(wanted) is list:
        if type(value) is not list:
            return False
        rule = wanted[0]
        return all(type(item) is rule or _good(item, rule) for item in value)
    return _fits(value, wanted)


def without_wrong(kind: str, obj: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without fields of the wrong type, for further checks. A list with a wrong item is dropped whole, since the indices
    of its other items would change."""
    out = _right(obj, {"metadata": METADATA, **SHAPES.get(kind, {})})
    assert isinstance(out, dict)
    return out


_WRONG = object()


def _right(value: Any, wanted: Any) -> Any:
    if isinstance(wanted, list):
        items = [_right(item, wanted[0]) for item in value] if isinstance(value, list) else [_WRONG]
        return _WRONG if any(item is _WRONG for item in items) else items
    if not isinstance(wanted, dict):
        return value if _fits(value, wanted) else _WRONG
    if not isinstance(value, dict):
        return _WRONG
    known = {key.rstrip("!"): inner for key, inner in wanted.items()}
    pairs = {field: inner if inner is None or known.get(field, known.get("*")) is None else
             _right(inner, known.get(field, known.get("*"))) for field, inner in value.items()}
    return {field: inner for field, inner in pairs.items() if inner is not _WRONG}


def _object(value: Mapping[str, Any], shape: Shape, path: str) -> Iterator[Cause]:
    for key, wanted in shape.items():
        if key == "*":
            for field, inner in value.items():
                yield from _value(inner, wanted, f"{path}.{field}")
            continue
        needed = key[-1] == "!"
        field = key[:-1] if needed else key
        inner = value.get(field)
        if inner is not None:
            yield from _value(inner, wanted, f"{path}.{field}" if path else field)
        elif needed:
            yield Cause(f"{path}.{field}" if path else field, "Required value", "FieldValueRequired")


def _value(value: Any, wanted: Any, path: str) -> Iterator[Cause]:
    if isinstance(wanted, list):
        if not isinstance(value, list):
            yield _wrong(path, value, list)
            return
        for index, item in enumerate(value):
            yield from _value(item, wanted[0], f"{path}[{index}]")
    elif isinstance(wanted, dict):
        if isinstance(value, dict):
            yield from _object(value, wanted, path)
        else:
            yield _wrong(path, value, dict)
    elif not _fits(value, wanted):
        yield _wrong(path, value, wanted)


def _fits(value: Any, wanted: Any) -> bool:
    if wanted is int or wanted is WHOLE:
        return type(value) is int and -MOST <= value < MOST
    if wanted is Amount:
        return _parses(value) if type(value) in NUMBER else False
    if wanted is Time:
        return type(value) is str and time_fields.parse(value) is not None
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))


@functools.lru_cache(maxsize=4096, typed=True)
def _parses(amount: str | int | float) -> bool:
    try:
        quantity.parse(str(amount))
    except ValueError:
        return False
    return True


def _wrong(path: str, value: Any, wanted: Any) -> Cause:
    shown = json.dumps(value, ensure_ascii=False, default=repr)
    hint = "; put it in quotes" if wanted is str and isinstance(value, bool | int | float) else ""
    if wanted is int and type(value) is int:
        hint = f" from {-MOST} to {MOST - 1}"
    return Cause(path, f"Invalid value: {shown[:60]}: must be {WORDS[wanted]}{hint}", "FieldValueTypeInvalid")
