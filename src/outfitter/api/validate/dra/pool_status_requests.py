"""ResourcePoolStatusRequest: its spec, which cannot be changed, and its status, which is written once. The rules are those of
Kubernetes 1.36."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.validate import names, node_placement, slices
from outfitter.errors import Cause

DEFAULT_LIMIT, MOST_POOLS = 100, 1000
LONGEST_ERROR = 256  # bytes of a pool's validationError
COUNTS = ("totalDevices", "allocatedDevices", "availableDevices", "unavailableDevices")
CONDITION_STATUSES = ("True", "False", "Unknown")


def request(obj: Mapping[str, Any]) -> Iterator[Cause]:
    spec = obj["spec"]
    yield from _driver(spec.get("driver"), "spec.driver")
    if spec.get("poolName") is not None:
        yield from names.pool(spec["poolName"], "spec.poolName")
    limit = spec.get("limit", DEFAULT_LIMIT)
    if not 1 <= limit <= MOST_POOLS:
        yield Cause("spec.limit", f"Invalid value: {limit}: must be from 1 to {MOST_POOLS}")


def request_status(obj: Mapping[str, Any]) -> Iterator[Cause]:
    status = obj.get("status") or {}
    if not status:
        return
    if status.get("poolCount") is None:
        yield Cause("status.poolCount", "Required value: how many pools match", "FieldValueRequired")
    yield from _at_least(status, "poolCount", 0, "status")
    for index, pool in enumerate(status.get("pools") or ()):
        yield from _pool(pool, f"status.pools[{index}]")
    conditions = status.get("conditions") or ()
    yield from slices.unique((condition["type"] for condition in conditions), "status.conditions[{}].type")
    for index, condition in enumerate(conditions):
        yield from _condition(condition, f"status.conditions[{index}]")


def changed_status(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    if old.get("status") and new.get("status") != old["status"]:
        yield Cause("status", "Invalid value: field is immutable: the request is answered; create a new one instead")


def _pool(pool: Mapping[str, Any], path: str) -> Iterator[Cause]:
    yield from _driver(pool["driver"], f"{path}.driver")
    yield from names.pool(pool["poolName"], f"{path}.poolName")
    for field in ("generation", *COUNTS):
        yield from _at_least(pool, field, 0, path)
    yield from _at_least(pool, "resourceSliceCount", 1, path)
    if pool.get("nodeName") is not None:
        yield from names.subdomain(pool["nodeName"], f"{path}.nodeName")
    if len((pool.get("validationError") or "").encode()) > LONGEST_ERROR:
        yield Cause(f"{path}.validationError", f"Too long: may not be more than {LONGEST_ERROR} bytes", "FieldValueTooLong")


def _condition(condition: Mapping[str, Any], path: str) -> Iterator[Cause]:
    yield from names.key(condition["type"], f"{path}.type")
    if (status := condition.get("status") or "") not in CONDITION_STATUSES:
        yield node_placement.unsupported(f"{path}.status", status, CONDITION_STATUSES)
    yield from names.required(condition.get("lastTransitionTime"), f"{path}.lastTransitionTime")
    yield from names.required(condition.get("reason"), f"{path}.reason")


def _driver(value: Any, field: str) -> Iterator[Cause]:
    """Any case, and as long as a DNS subdomain: longer than the name of a driver in a ResourceSlice can be."""
    yield from names.required(value, field, "the driver's name, such as gpu.example.com")
    if value:
        yield from names.subdomain(value.lower(), field)


def _at_least(obj: Mapping[str, Any], field: str, least: int, path: str) -> Iterator[Cause]:
    value = obj.get(field)
    if value is not None and value < least:
        yield Cause(f"{path}.{field}", f"Invalid value: {value}: must be greater than or equal to {least}")
