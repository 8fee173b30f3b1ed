"""The status of a ResourceClaim: its allocation, who uses it, and its devices as their drivers report them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.validate import names, node_placement, resources, slices
from outfitter.errors import Cause

MOST_RESULTS = 32
MOST_IPS = 16
SOURCES = ("FromClaim", "FromClass")


def claim_status(obj: Mapping[str, Any]) -> Iterator[Cause]:
    status = obj.get("status") or {}
    users, allocation = status.get("reservedFor") or (), status.get("allocation")
    yield from slices.unique((user["uid"] for user in users), "status.reservedFor[{}]")
    for index, user in enumerate(users):
        for field in ("resource", "name", "uid"):
            yield from names.required(user.get(field), f"status.reservedFor[{index}].{field}")
    if users and allocation is None:
        yield Cause("status.reservedFor", "Forbidden: may not be specified when `allocated` is not set", "FieldValueForbidden")
    if allocation is not None:
        yield from _allocation(allocation, resources.request_names(obj.get("spec")), "status.allocation")
    yield from _devices(status.get("devices") or (), allocation)


def changed(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    allocation, was = ((obj.get("status") or {}).get("allocation") for obj in (new, old))
    if allocation is not None and was is not None and allocation != was:
        yield Cause("status.allocation", "Invalid value: field is immutable; deallocate the claim first")


def _allocation(allocation: Mapping[str, Any], requests: frozenset[str], path: str) -> Iterator[Cause]:
    devices = allocation.get("devices") or {}
    yield from slices.bounded(devices.get("results") or (), MOST_RESULTS, f"{path}.devices.results")
    for index, result in enumerate(devices.get("results") or ()):
        here = f"{path}.devices.results[{index}]"
        yield from resources.known_request(result["request"], requests, f"{here}.request")
        yield from _identity(result, here)
        if result.get("bindingConditions") or result.get("bindingFailureConditions"):
            yield from slices.binding_conditions(result, here)
        yield from node_placement.tolerations(result.get("tolerations"), f"{here}.tolerations", node_placement.DEVICE_EFFECTS)
    for index, entry in enumerate(devices.get("config") or ()):
        here = f"{path}.devices.config[{index}]"
        if (source := entry.get("source") or "") not in SOURCES:
            yield node_placement.unsupported(f"{here}.source", source, SOURCES)
        yield from resources.config(entry, requests, here)
    if allocation.get("nodeSelector") is not None:
        yield from node_placement.node_selector(allocation["nodeSelector"], f"{path}.nodeSelector")


def _identity(entry: Mapping[str, Any], path: str) -> Iterator[Cause]:
    yield from names.driver(entry["driver"], f"{path}.driver")
    yield from names.pool(entry["pool"], f"{path}.pool")
    yield from names.device(entry["device"], f"{path}.device")


def _devices(devices: Any, allocation: Mapping[str, Any] | None) -> Iterator[Cause]:
    results = ((allocation or {}).get("devices") or {}).get("results") or ()
    allocated = {_id(result) for result in results}
    yield from slices.unique(map(_id, devices), "status.devices[{}]")
    for index, entry in enumerate(devices):
        here = f"status.devices[{index}]"
        yield from _identity(entry, here)
        if _id(entry) not in allocated:
            yield Cause(here, f'Invalid value: "{"/".join(_id(entry))}": must be an allocated device in the claim')
        yield from slices.unique((condition["type"] for condition in entry.get("conditions") or ()),
                                 here + ".conditions[{}].type")
        addresses = (entry.get("networkData") or {}).get("ips") or ()
        yield from slices.bounded(addresses, MOST_IPS, f"{here}.networkData.ips")
        yield from slices.unique(addresses, here + ".networkData.ips[{}]")


def _id(entry: Mapping[str, Any]) -> tuple[str, ...]:
    share = (entry["shareID"],) if entry.get("shareID") else ()
    return (entry["driver"], entry["pool"], entry["device"], *share)
