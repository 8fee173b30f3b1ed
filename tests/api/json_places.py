"""Every place in an object, and the object with another value at one of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from outfitter.api.kinds import Object


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if here:
        yield here
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from paths(inner, (*here, key))


def put(obj: Object, path: tuple[Any, ...], value: Any) -> Object:
    out = copy.deepcopy(obj)
    at: Any = out
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return out
