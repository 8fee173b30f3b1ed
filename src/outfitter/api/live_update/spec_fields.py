"""Differences between two specs, as field paths. Items of lists are matched by their name: `domain.devices.disks[root].bus`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

EMPTY: tuple[Any, ...] = (None, [], ())  # as if it were not there; {} is a value: `bridge: {}`


def get(spec: Mapping[str, Any], path: str) -> Any:
    value: Any = spec
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all values."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            if inner not in EMPTY:
                yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif named := named_items(value):
        for name, item in named.items():
            yield from leaves(item, f"{path}[{name}]")
    else:
        yield path


def named_items(value: Any) -> dict[str, Mapping[str, Any]]:
    """Items of a list by name; empty where it is no list of items with different names."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return {}
    if not all(isinstance(item, Mapping) and item.get("name") for item in value):
        return {}
    named = {str(item["name"]): item for item in value}
    return named if len(named) == len(value) else {}


def changed(
    wanted: Any, have: Any, path: str = "", *, started_with: Collection[str] | None = None, skip: Collection[str] = ()
) -> Iterator[str]:
    """The fields in which `wanted` differs from `have`. What only `have` contains was filled in by admission or a pool and is
    no change, unless it was in the template at the start (`started_with`: its fields; None: not known). Fields of `skip` do not
    count."""
    if path in skip or wanted == have:
        return
    if wanted in EMPTY and have in EMPTY:
        return
    if wanted in EMPTY:
        if started_with is not None and any(_below(field, path) for field in started_with):
            yield path
        return
    items, others = named_items(wanted), named_items(have)
    if isinstance(wanted, Mapping) and isinstance(have, Mapping):
        for key in {**wanted, **have}:
            yield from changed(wanted.get(key), have.get(key), f"{path}.{key}" if path else str(key),
                               started_with=started_with, skip=skip)
    elif items and (others or have in EMPTY):
        for name in {**items, **others}:
            if name in items and name in others:
                yield from changed(items[name], others[name], f"{path}[{name}]", started_with=started_with, skip=skip)
            else:
                yield f"{path}[{name}]"
    else:
        yield path


def _below(field: str, path: str) -> bool:
    return field == path or field.startswith((f"{path}.", f"{path}["))
