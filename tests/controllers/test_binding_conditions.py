"""Devices that must be made ready before their pod is bound: what waits meanwhile, and what is released."""

from __future__ import annotations

import pytest

from outfitter.api import kinds, rejection_conditions
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode
from tests.controllers.pool_devices import BINDING, GPU, held, pod, publish, report, settled, why
from tests.controllers.scenario import Scene


async def test_a_pod_is_bound_when_its_device_is_ready(scene: Scene) -> None:
    await publish(scene, "x0", **BINDING)
    await pod(scene, "one", {"fabric": "a"})
    found = await settled(scene, "one")
    assert not found["spec"].get("nodeName")
    assert rejection_conditions.of(found) == [RejectionCode.DEVICE_NOT_READY]
    assert all(word in why(found) for word in ("rack/one/x0", "Attached"))
    assert await held(scene) == [("x0", "a", "booked")]
    claim = await scene.find(kinds.RESOURCE_CLAIM, "a") or {}
    assert claim["status"]["allocation"]["allocationTimestamp"]
    await report(scene, "a", "Attached")
    found = await settled(scene, "one")
    assert found["status"]["phase"] == "Running"
    assert "nominatedNodeName" not in found["status"]


@pytest.mark.parametrize("how", ["failure", "time"])
async def test_devices_that_are_not_ready_are_released_and_another_host_is_tried(scene: Scene, how: str) -> None:
    await publish(scene, "x0", **BINDING)
    await pod(scene, "one", {"fabric": "a"})
    first = (await settled(scene, "one"))["status"]["nominatedNodeName"]
    assert scene.clock is not None
    if how == "failure":
        await report(scene, "a", "Broken")
    else:
        scene.clock.advance(599)
        assert (await settled(scene, "one"))["status"]["nominatedNodeName"] == first
        scene.clock.advance(2)
    found = await settled(scene, "one")
    assert found["status"]["nominatedNodeName"] != first, "another host was asked"
    assert await held(scene) == [("x0", "a", "booked")]
    assert any(first in text for text in await scene.events("DevicesNotReady"))
    await report(scene, "a", "Attached")
    assert (await settled(scene, "one"))["spec"]["nodeName"] == found["status"]["nominatedNodeName"]


async def test_claim_that_is_being_deleted_is_deallocated_too(scene: Scene) -> None:
    """Also one that the scheduler made itself: it is gone with its finalizer, and nothing is left of it."""
    await publish(scene, "x0", **BINDING)
    await scene.store.patch(kinds.DEVICE_CLASS, "fabric", {"spec": {"extendedResourceName": GPU}})
    await pod(scene, "one", resources={"limits": {GPU: "1"}})
    made = (await settled(scene, "one"))["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    await scene.delete(kinds.RESOURCE_CLAIM, made)
    await settled(scene, "one")
    await report(scene, made, "Broken")
    found = await settled(scene, "one")
    assert await scene.find(kinds.RESOURCE_CLAIM, made) is None
    assert found["status"]["extendedResourceClaimStatus"]["resourceClaimName"] != made, "another host is tried"


async def test_what_a_pod_needs_besides_is_kept_while_its_device_is_made_ready(scene: Scene) -> None:
    """Of the host that it is to go to, and of no other; and not after it was released."""
    await publish(scene, "x0", **BINDING)
    cpus = [int(node["status"]["allocatable"]["cpu"]) for node in (await scene.store.list(kinds.NODE)).items]
    assert cpus[0] == cpus[1]
    most: Object = {"resources": {"requests": {"cpu": str(cpus[0])}}}
    await pod(scene, "one", {"fabric": "a"}, **most)
    first = (await settled(scene, "one"))["status"]["nominatedNodeName"]
    await pod(scene, "two", **most)
    assert (await settled(scene, "two"))["spec"]["nodeName"] != first
    await pod(scene, "three", **most)
    assert rejection_conditions.of(await settled(scene, "three")) == [RejectionCode.INSUFFICIENT_RESOURCE]
    await report(scene, "a", "Attached")
    assert (await settled(scene, "one"))["spec"]["nodeName"] == first
    await scene.delete(kinds.POD, "one")
    assert (await settled(scene, "three"))["spec"]["nodeName"] == first


async def test_release_includes_cpus(scene: Scene) -> None:
    await publish(scene, "x0", **BINDING)
    [cpu, _] = [node["status"]["allocatable"]["cpu"] for node in (await scene.store.list(kinds.NODE)).items]
    most: Object = {"resources": {"requests": {"cpu": cpu}}}
    await pod(scene, "one", {"fabric": "a"}, **most)
    first = (await settled(scene, "one"))["status"]["nominatedNodeName"]
    await report(scene, "a", "Broken")
    assert (await settled(scene, "one"))["status"]["nominatedNodeName"] != first
    await pod(scene, "two", **most)
    assert (await settled(scene, "two"))["spec"]["nodeName"] == first
