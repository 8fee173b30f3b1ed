"""The ProviderTree object: the resource providers of one host, in Placement's terms. Providers that others created are kept
unchanged. Used by `inventory`, `ledger.placement_view` and `cli`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outfitter.api.kinds import PROVIDER_TREE, Object


@dataclass(frozen=True, slots=True)
class Inventory:
    """Placement's inventory of one resource class of a provider."""

    total: int
    reserved: int = 0  # set by an operator; unclean devices are counted from the page
    min_unit: int = 1
    max_unit: int | None = None  # None: the total
    step_size: int = 1
    allocation_ratio: float = 1.0
    extra: Mapping[str, Any] = field(default_factory=dict)  # unknown fields

    def to_object(self) -> Object:
        return {**copy.deepcopy(dict(self.extra)), "total": self.total, "reserved": self.reserved, "min_unit": self.min_unit,
                "max_unit": self.total if self.max_unit is None else self.max_unit, "step_size": self.step_size,
                "allocation_ratio": self.allocation_ratio}


@dataclass(frozen=True, slots=True)
class Provider:
    name: str
    uuid: str
    parent: str  # the name of the provider above it; "" for the host itself
    generation: int
    inventories: Mapping[str, Inventory]
    traits: frozenset[str]
    configured: frozenset[str] = frozenset()  # the traits from device_spec, kept while a device is held
    devices: tuple[str, ...] = ()  # names of the devices that are counted here
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields of the stored entry that are unknown

    def to_object(self) -> Object:
        return {
            **copy.deepcopy(dict(self.extra)),
            "name": self.name,
            "uuid": self.uuid,
            "parent": self.parent,
            "generation": self.generation,
            "inventories": {name: inventory.to_object() for name, inventory in self.inventories.items()},
            "traits": sorted(self.traits),
            "configured": sorted(self.configured),
            "devices": list(self.devices),
        }


_FIELDS = {"total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio"}
_KNOWN = {"name", "uuid", "parent", "generation", "inventories", "traits", "configured", "devices"}


def _inventory(raw: Mapping[str, Any]) -> Inventory:
    total, max_unit = int(raw["total"]), raw.get("max_unit")
    return Inventory(total, int(raw.get("reserved") or 0), int(raw.get("min_unit") or 1),
                     None if max_unit in (None, total) else int(max_unit), int(raw.get("step_size") or 1),
                     float(raw.get("allocation_ratio") or 1.0),
                     {key: value for key, value in raw.items() if key not in _FIELDS})


def _provider(raw: Mapping[str, Any]) -> Provider:
    return Provider(
        raw["name"], raw.get("uuid") or "", raw.get("parent") or "", int(raw.get("generation") or 0),
        {name: _inventory(inventory) for name, inventory in (raw.get("inventories") or {}).items()},
        frozenset(raw.get("traits") or ()), frozenset(raw.get("configured") or ()), tuple(raw.get("devices") or ()),
        {key: value for key, value in raw.items() if key not in _KNOWN},
    )


def read(obj: Mapping[str, Any] | None) -> tuple[Provider, ...]:
    """The providers of a stored tree; none if there is none."""
    return () if obj is None else tuple(_provider(raw) for raw in (obj.get("spec") or {}).get("providers") or ())


def blank(host: str) -> Object:
    return {"apiVersion": PROVIDER_TREE.api_version, "kind": PROVIDER_TREE.kind, "metadata": {"name": host},
            "spec": {"providers": []}}


def with_providers(obj: Mapping[str, Any], providers: Iterable[Provider]) -> Object:
    """The object with these providers; other fields are kept."""
    out = copy.deepcopy(dict(obj))
    out["spec"] = {**(out.get("spec") or {}), "providers": [provider.to_object() for provider in providers]}
    return out
