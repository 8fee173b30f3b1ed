"""Area allocator: claims on a node, straight through `outfitter.scheduling.dra.allocator`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfitter import errors
from outfitter.api.device import DeviceId
from outfitter.api.rejection_text import render_all
from outfitter.cel.library import quantity
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra.allocated_devices import AllocatedDevices
from outfitter.scheduling.dra.allocator import AllocationRejection, allocate
from outfitter.scheduling.dra.node_devices import PoolSet
from tests.cases.case import Case


async def run(case: Case) -> list[str]:
    data, wanted = case.data, case.expect.get("errorContains")
    try:
        got = answer(data)
    except errors.Invalid as error:
        return [] if wanted else [f"ends in an error: {error}"]
    if isinstance(got, AllocationRejection):
        if got.invalid:
            return [] if wanted else [f"ends in an error: {render_all(got.rejections)}"]
        found: tuple[dict[str, Any], ...] = ()
    else:
        found = got.allocations
    if wanted:
        return [f"gives {len(found)} allocations, but an error was expected: {wanted}"]
    results = case.expect.get("results") or []
    if len(found) != len(results):
        why = f": {render_all((*got.rejections, *got.obstacles))}" if isinstance(got, AllocationRejection) else ""
        return [f"{len(results)} allocations were expected, there are {len(found)}{why}"]
    return [wrong for index, (want, have) in enumerate(zip(results, found, strict=True))
            for wrong in _differs(index, want, have)]


def answer(data: Mapping[str, Any]) -> Any:
    classes = {one["metadata"]["name"]: one for one in data.get("deviceClasses") or ()}
    pools = PoolSet(data.get("resourceSlices") or (), data.get("deviceTaintRules") or ())
    return allocate(data["claims"], node=data.get("node") or {}, pools=pools, classes=classes.get,
                    held=_held(data.get("allocated") or {}), features=Features.only(data.get("features") or {}))


def _held(allocated: Mapping[str, Any]) -> AllocatedDevices:
    held = AllocatedDevices()
    for raw in allocated.get("devices") or ():
        held.whole[_device(raw)] = None
    for raw in allocated.get("sharedDevices") or ():
        held.shares[_device(raw)] = held.shares.get(_device(raw), 0) + 1
    for raw in allocated.get("consumedCapacity") or ():
        held.consume(_device(raw), raw.get("consumedCapacity") or {})
    return held


def _device(raw: Mapping[str, Any]) -> DeviceId:
    return DeviceId(raw["driver"], raw["pool"], raw["device"])


def _differs(index: int, want: Mapping[str, Any], have: Mapping[str, Any]) -> list[str]:
    exact = want.get("deviceOrder") == "exact"
    expected, found = _plain(want["allocation"], exact), _plain(have, exact)
    return [] if expected == found else [f"claim {index}: {expected} was expected, it is {found}"]


def _plain(value: Any, exact: bool, key: str = "") -> Any:
    """Without what does not count: empty fields, which share it is, how an amount is written, and an order that may be any."""
    if isinstance(value, Mapping):
        if key == "consumedCapacity":
            return {name: quantity.parse(str(amount)).nano for name, amount in value.items()}
        parts = {name: _plain(part, exact, name) for name, part in value.items() if name != "parameters"}
        parts |= {name: part for name, part in value.items() if name == "parameters"}
        return {name: part for name, part in parts.items() if part not in (None, "", [], {}, False)}
    if isinstance(value, list):
        members = [_plain(member, exact) for member in value]
        return sorted(members, key=repr) if key == "results" and not exact else members
    return bool(value) if key == "shareID" else value
