"""ResourcePoolStatusRequests, embedded: counts of pools without names, answered once from the ledger."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.controllers.embedded.pool_status_requests import KEPT_ANSWERED, KEPT_PENDING, WAIT_FOR_SLICES, answer, expires
from outfitter.errors import Invalid
from outfitter.ledger import out_of_service
from tests.controllers.pool_devices import FABRIC, pod, publish, rule_of, settled
from tests.controllers.scenario import Scene

REQUEST = kinds.POOL_STATUS_REQUEST


async def ask(scene: Scene, name: str, **spec: Any) -> Object:
    await scene.create(REQUEST, name, {"driver": FABRIC, **spec})
    await scene.settle()
    request = await scene.find(REQUEST, name)
    assert request is not None
    return request


def counts(pool: Object) -> tuple[int, int, int, int]:
    return (pool["totalDevices"], pool["allocatedDevices"], pool["availableDevices"], pool["unavailableDevices"])


def advance(scene: Scene, time: timedelta) -> None:
    assert scene.clock is not None
    scene.clock.advance(time.total_seconds())


async def test_counts_of_a_pool_without_names(scene: Scene) -> None:
    await publish(scene, "x0", "x1", "x2", "x3")
    await pod(scene, "secret-pod", {"fabric": "secret-claim"})
    assert (await settled(scene, "secret-pod"))["spec"]["nodeName"]
    await scene.create(kinds.DEVICE_TAINT_RULE, "broken", rule_of("NoSchedule", driver=FABRIC, device="x3"))
    request = await ask(scene, "now")
    assert request["spec"] == {"driver": FABRIC, "limit": 100}
    assert "generation" not in request["metadata"]
    assert request["status"]["poolCount"] == 1
    assert request["status"]["pools"] == [{
        "driver": FABRIC, "poolName": "rack/one", "generation": 1, "resourceSliceCount": 1, "totalDevices": 4,
        "allocatedDevices": 1, "availableDevices": 2, "unavailableDevices": 1}]
    done = conditions.find(request, "Complete")
    assert done is not None
    assert (done["status"], done["reason"], done["message"]) == ("True", "CalculationComplete", "Calculated status for 1 pools")
    assert not any(word in json.dumps(request["status"]) for word in ("secret", "x0", "x3", scene.namespace))


async def test_an_answer_stays_as_it_is_and_the_next_is_new(scene: Scene) -> None:
    await publish(scene, "x0", "x1")
    first = await ask(scene, "first")
    await pod(scene, "one", {"fabric": "a"})
    await settled(scene, "one")
    second = await ask(scene, "second")
    assert counts(first["status"]["pools"][0]) == (2, 0, 2, 0)
    assert counts(second["status"]["pools"][0]) == (2, 1, 1, 0)
    assert await scene.find(REQUEST, "first") == first
    with pytest.raises(Invalid) as refused:
        await scene.store.patch(REQUEST, "first", {"status": {"poolCount": 7}}, subresource="status")
    assert [cause.field for cause in refused.value.causes] == ["status"]
    with pytest.raises(Invalid) as refused:
        await scene.store.patch(REQUEST, "first", {"spec": {"driver": "other.example.com"}})
    assert [cause.field for cause in refused.value.causes] == ["spec"]


async def test_which_pools_are_shown(scene: Scene) -> None:
    both = (await ask(scene, "both", driver=scene.driver))["status"]
    names = sorted(host.name for host in scene.product.hosts)
    assert (both["poolCount"], [pool["poolName"] for pool in both["pools"]]) == (2, names)
    assert [pool["nodeName"] for pool in both["pools"]] == names
    first = (await ask(scene, "first", driver=scene.driver, limit=1))["status"]
    assert (first["poolCount"], first["pools"]) == (2, both["pools"][:1])
    one = (await ask(scene, "one", driver=scene.driver, poolName=names[1]))["status"]
    assert (one["poolCount"], one["pools"]) == (1, both["pools"][1:])
    none = (await ask(scene, "none", driver="none.example.com"))["status"]
    assert (none["poolCount"], none["pools"]) == (0, [])


async def test_a_device_that_is_out_of_service_or_blocked_is_unavailable(scene: Scene) -> None:
    """The PF of a held VF cannot be had, and counts as Kubernetes' counters say."""
    await scene.classes()
    await scene.template()
    free = counts((await ask(scene, "before", driver=scene.driver))["status"]["pools"][0])
    assert free[1:] == (0, free[0], 0)
    await scene.machine("blue")
    held_on = str((await scene.running("blue"))["status"]["nodeName"])
    pool = (await ask(scene, "held", driver=scene.driver, poolName=held_on))["status"]["pools"][0]
    devices = {device["name"]: device for part in await scene.all(kinds.RESOURCE_SLICE)
               if part["spec"]["pool"]["name"] == held_on for device in part["spec"]["devices"]}
    whole = sum(device["attributes"].get("kind", {}).get("string") == "PF" for device in devices.values())
    assert counts(pool) == (len(devices), 1, len(devices) - 1 - whole, whole)
    [booking] = await scene.bookings()
    other = next(name for name, device in devices.items()
                 if name != booking.device.device and device["attributes"].get("kind", {}).get("string") != "PF")
    await out_of_service.reserve(scene.store, held_on, DeviceId(scene.driver, held_on, other), by="me")
    pool = (await ask(scene, "reserved", driver=scene.driver, poolName=held_on))["status"]["pools"][0]
    assert counts(pool) == (len(devices), 1, len(devices) - 2 - whole, whole + 1)


async def test_an_incomplete_pool_is_waited_for_and_then_has_a_reason(scene: Scene) -> None:
    half = {"driver": FABRIC, "pool": {"name": "rack/one", "generation": 2, "resourceSliceCount": 2}, "allNodes": True}
    await scene.create(kinds.RESOURCE_SLICE, "half", {**half, "devices": [{"name": "x0"}]})
    assert not (await ask(scene, "patient")).get("status")
    await scene.create(kinds.RESOURCE_SLICE, "other-half", {**half, "devices": [{"name": "x1"}]})
    advance(scene, timedelta(seconds=1))
    await scene.settle()
    assert counts(((await scene.find(REQUEST, "patient")) or {})["status"]["pools"][0]) == (2, 0, 2, 0)
    await scene.delete(kinds.RESOURCE_SLICE, "half")
    assert not (await ask(scene, "never")).get("status")
    for _ in range(round(WAIT_FOR_SLICES.total_seconds())):
        advance(scene, timedelta(seconds=1))
        await scene.settle()
    [pool] = ((await scene.find(REQUEST, "never")) or {})["status"]["pools"]
    assert pool == {"driver": FABRIC, "poolName": "rack/one", "generation": 2, "validationError":
                    f"pool {FABRIC}/rack/one is incomplete: observed 1/2 slices at generation 2"}


async def test_answered_requests_expire(scene: Scene) -> None:
    await publish(scene, "x0")
    await ask(scene, "old")
    advance(scene, KEPT_ANSWERED - timedelta(seconds=10))
    await ask(scene, "young")
    advance(scene, timedelta(seconds=11))
    await scene.settle()
    assert [request["metadata"]["name"] for request in await scene.all(REQUEST)] == ["young"]
    await scene.delete(REQUEST, "young")
    await scene.nothing_missed()


def test_when_a_request_expires() -> None:
    created = "2026-01-01T00:00:00Z"
    pending = {"metadata": {"creationTimestamp": created}, "spec": {"driver": FABRIC}}
    answered = {**pending, "status": answer(pending, [], "2026-01-01T05:00:00Z")}
    odd = {**pending, "status": {"poolCount": 0}}
    hours = [(expires(request) - expires(odd)) / timedelta(hours=1) for request in (pending, answered)]
    assert hours == [KEPT_PENDING / timedelta(hours=1) - 1, 5.0]
