"""Amounts of a ResourceList: parsed to nano-units, added up, and rounded to the units that kube-scheduler counts. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from outfitter.cel.library import quantity
from outfitter.errors import Cause, Invalid

Object = Mapping[str, Any]
Amounts = Mapping[str, int]  # resource -> how much: cpu in thousandths, everything else in units (bytes, pages, pieces)
NOTHING: Amounts = MappingProxyType({})


def add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


@functools.lru_cache(maxsize=4096)
def nano_units(text: str) -> int:
    return quantity.parse(text).nano


def resource_list(raw: Object, path: str) -> dict[str, int]:
    """A ResourceList in nano-units."""
    out = {}
    for name, value in raw.items():
        try:
            out[name] = nano_units(str(value))
        except ValueError as error:
            raise Invalid(f"{path}[{name}]: {error}", [Cause(f"{path}[{name}]", str(error))]) from error
        if out[name] < 0:
            message = f"{value} is below zero: write 0 or more"
            raise Invalid(f"{path}[{name}]: {message}", [Cause(f"{path}[{name}]", message)])
    return out


def whole_units(name: str, nano: int) -> int:
    """In the units that are counted, rounded up as Kubernetes does."""
    return -(-nano // (quantity.NANO // 1000 if name == "cpu" else quantity.NANO))
