"""Conversion of objects between older API versions and the stored one. Pure: arguments are not changed. Unknown fields are kept
in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object

Convert = Callable[[Object], Object]

# Fields of a device request: beside its name in older versions, under `exactly` in v1.
EXACT = ("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity")
# Fields of a device: under `basic` in older versions, beside its name in v1.
BASIC = ("attributes", "capacity", "consumesCounters", "nodeName", "nodeSelector", "allNodes", "taints", "bindsToNode",
         "bindingConditions", "bindingFailureConditions", "allowMultipleAllocations", "nodeAllocatableResourceMappings")


def to_stored(kind: Kind, version: str, obj: Object) -> Object:
    """An object of an older version as it is stored."""
    return _converted(kind, version, obj, kind.api_version, up=True)


def from_stored(kind: Kind, version: str, obj: Object) -> Object:
    """A stored object as an older version shows it."""
    return _converted(kind, version, obj, kind.api_version_of(version), up=False)


def _converted(kind: Kind, version: str, obj: Object, api_version: str, *, up: bool) -> Object:
    if version == kind.version:
        return obj
    change = CHANGES.get((kind, version), {}).get("up" if up else "down")
    out = change(obj) if change else dict(obj)
    if "apiVersion" in out:
        out["apiVersion"] = api_version
    return out


def _at(path: str, change: Callable[[Any], Any]) -> Convert:
    """Change every item of the list at a path, if there is one."""
    words = path.split(".")

    def walk(value: Any, left: list[str]) -> Any:
        if not left:
            return [change(item) for item in value] if isinstance(value, list) else value
        if not isinstance(value, dict) or left[0] not in value:
            return value
        return {**value, left[0]: walk(value[left[0]], left[1:])}

    return lambda obj: dict(walk(obj, words))


def _wrap(item: Any, inner: str, names: Iterable[str]) -> Object:
    """Move the named fields of an item into an inner object, except those that the inner object has already."""
    have = item.get(inner, {})
    moved = {name: item[name] for name in names if name in item and name not in have}
    if not moved:
        return dict(item)
    return {**{name: value for name, value in item.items() if name not in moved}, inner: {**have, **moved}}


def _unwrap(item: Any, inner: str, names: Iterable[str]) -> Object:
    """The reverse of `_wrap`. Other fields stay in the inner object; an empty inner object is removed."""
    have = item.get(inner)
    if not isinstance(have, dict):
        return dict(item)
    moved = {name: have[name] for name in names if name in have and name not in item}
    left = {name: value for name, value in have.items() if name not in moved}
    out = {name: value for name, value in item.items() if name != inner} | moved
    if left or not moved:
        out[inner] = left
    return out


def _fits(item: Any, inner: str) -> bool:
    return isinstance(item, dict) and isinstance(item.get(inner, {}), dict)


def _request_up(request: Any) -> Any:
    return _wrap(request, "exactly", EXACT) if _fits(request, "exactly") else request


def _request_down(request: Any) -> Any:
    return _unwrap(request, "exactly", EXACT) if _fits(request, "exactly") else request


def _device_up(device: Any) -> Any:
    if not _fits(device, "basic"):
        return device
    out = _unwrap(device, "basic", BASIC)
    return {name: value for name, value in out.items() if name != "basic" or value}


def _device_down(device: Any) -> Any:
    return {"basic": {}, **_wrap(device, "basic", BASIC)} if _fits(device, "basic") else device


def _capacity_up(device: Any) -> Any:
    """v1alpha3 writes a capacity as a plain quantity, later versions as {value: quantity}."""
    return _capacity(device, lambda amount: {"value": amount} if isinstance(amount, str | int | float) else amount)


def _capacity_down(device: Any) -> Any:
    def plain(amount: Any) -> Any:
        value = amount.get("value") if isinstance(amount, dict) and len(amount) == 1 else None
        return value if isinstance(value, str | int | float) else amount

    return _capacity(device, plain)


def _capacity(device: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(device, dict) or not isinstance(device.get("capacity"), dict):
        return device
    return {**device, "capacity": {name: change(amount) for name, amount in device["capacity"].items()}}


def _requests(path: str) -> Mapping[str, Convert]:
    return {"up": _at(path, _request_up), "down": _at(path, _request_down)}


_DEVICES = {"up": _at("spec.devices", _device_up), "down": _at("spec.devices", _device_down)}
_ALPHA_DEVICES = {
    "up": _at("spec.devices", lambda device: _capacity_up(_device_up(device))),
    "down": _at("spec.devices", lambda device: _device_down(_capacity_down(device))),
}

FLAT = ("v1beta1", "v1alpha3")  # the versions in which requests are flat and devices are not

# Conversions between a version and the stored one; without an entry only apiVersion differs.
CHANGES: Mapping[tuple[Kind, str], Mapping[str, Convert]] = {
    **{(kinds.RESOURCE_CLAIM, version): _requests("spec.devices.requests") for version in FLAT},
    **{(kinds.RESOURCE_CLAIM_TEMPLATE, version): _requests("spec.spec.devices.requests") for version in FLAT},
    (kinds.RESOURCE_SLICE, "v1beta1"): _DEVICES,
    (kinds.RESOURCE_SLICE, "v1alpha3"): _ALPHA_DEVICES,
}
