"""Devices of a rack, which no host owns, and pods that want them."""

from __future__ import annotations

from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import pool_page
from outfitter.ledger import book
from tests.controllers.scenario import Scene

FABRIC = "fabric.example.com"
PAGE = pool_page(FABRIC, "rack/one")
GPU = "example.com/gpu"  # a resource that the class of these devices stands for, see `mapped`
BINDING: dict[str, Any] = {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"], "bindsToNode": True}


async def publish(scene: Scene, *names: str, where: Object | None = None, **more: Any) -> None:
    await scene.create(kinds.RESOURCE_SLICE, "rack", {
        "driver": FABRIC, "pool": {"name": "rack/one", "generation": 1, "resourceSliceCount": 1},
        **(where or {"allNodes": True}), "devices": [{"name": name, **more} for name in names]})
    await scene.create(kinds.DEVICE_CLASS, "fabric", {"selectors": [{"cel": {"expression": f'device.driver == "{FABRIC}"'}}]})


async def pod(scene: Scene, name: str, claims: dict[str, str] | None = None, **container: Any) -> None:
    """A pod that uses claims: class -> the name of a claim of it, which is made. It requests what is assigned to it."""
    for class_, claim in (claims or {}).items():
        await scene.create(kinds.RESOURCE_CLAIM, claim, {"devices": {"requests": [
            {"name": "it", "exactly": {"deviceClassName": class_}}]}})
    assigned = {entry["resourceName"]: str(len(entry["deviceIDs"])) for entry in container.get("assignedDevices") or ()
                if {"resourceName", "deviceIDs"} <= entry.keys()}
    requested = {"resources": {"limits": assigned}} if assigned else {}
    await scene.create(kinds.POD, name, {
        "containers": [{"name": "main", "image": "main", **requested, **container}],
        "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in (claims or {}).values()]})


async def settled(scene: Scene, name: str) -> Object:
    await scene.settle()
    found = await scene.find(kinds.POD, name)
    assert found is not None
    return found


def why(pod: Object) -> str:
    return str((conditions.find(pod, "PodScheduled") or {}).get("message", ""))


async def held(scene: Scene, page: str = PAGE) -> list[tuple[str, str, str]]:
    """What is booked on a page: device, claim, state."""
    return [(one.device.device, one.holder.name, one.state) for one in (await book.read(scene.store, page)).bookings]


async def mapped(scene: Scene, *names: str) -> None:
    """Published, and asked for as an extended resource."""
    await publish(scene, *names)
    await scene.store.patch(kinds.DEVICE_CLASS, "fabric", {"spec": {"extendedResourceName": GPU}})


async def report(scene: Scene, claim: str, type_: str) -> None:
    """Its driver says something of the device that a claim was given."""
    found = await scene.find(kinds.RESOURCE_CLAIM, claim)
    assert found is not None
    result = found["status"]["allocation"]["devices"]["results"][0]
    entry = {key: result[key] for key in ("driver", "pool", "device")}
    await scene.store.patch(kinds.RESOURCE_CLAIM, claim, {"status": {"devices": [{**entry, "conditions": [
        {"type": type_, "status": "True", "reason": "Said", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]}},
        scene.namespace, subresource="status")


def rule_of(effect: str, **selector: str) -> Object:
    return {"deviceSelector": selector, "taint": {"key": "example.com/broken", "effect": effect}}
