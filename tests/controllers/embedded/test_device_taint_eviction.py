"""Taints of devices, by a rule or by who publishes them: no new pods, and those who do not tolerate them go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode
from outfitter.errors import Invalid
from outfitter.ledger import book, out_of_service
from outfitter.scheduling.explain import pod as explain_pod
from outfitter.scheduling.placement import Waiting
from tests.controllers import scenario as scenes
from tests.controllers.pool_devices import BINDING, FABRIC, held, pod, publish, report, rule_of, settled
from tests.controllers.scenario import Scene


async def keeper(scene: Scene, **exactly: Any) -> None:
    """A VM with a claim of its own, which keeps its device while the VM is off."""
    await scene.create(kinds.VM, "blue", {
        "runStrategy": "Always",
        "resourceClaimTemplates": [{"name": "disk", "spec": {"spec": {"devices": {"requests": [
            {"name": "it", "exactly": {"deviceClassName": "fabric", **exactly}}]}}}}],
        "template": {"spec": {"domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [
            scenes.device("d0", "it", "disk")]}}}}})


async def taint(scene: Scene, device: str, ruled: bool, *, gone: bool = False) -> None:
    """NoExecute, by a rule, which says since when, or by who publishes the device, who does not; or no more."""
    if ruled and gone:
        await scene.delete(kinds.DEVICE_TAINT_RULE, "broken")
    elif ruled:
        await scene.create(kinds.DEVICE_TAINT_RULE, "broken", rule_of("NoExecute", driver=FABRIC, device=device))
    else:
        piece = await scene.find(kinds.RESOURCE_SLICE, "rack") or {}
        taints = [] if gone else [{"key": "example.com/broken", "effect": "NoExecute"}]
        devices = [{**one, "taints": taints} if one["name"] == device else one for one in piece["spec"]["devices"]]
        await scene.store.replace(kinds.RESOURCE_SLICE, {**piece, "spec": {**piece["spec"], "devices": devices}})


async def test_a_rule_keeps_a_device_from_new_pods(scene: Scene) -> None:
    await publish(scene, "x0")
    await scene.create(kinds.DEVICE_TAINT_RULE, "broken", rule_of("NoSchedule", driver=FABRIC, device="x0"))
    await pod(scene, "one", {"fabric": "a"})
    assert not (await settled(scene, "one"))["spec"].get("nodeName")
    await scene.delete(kinds.DEVICE_TAINT_RULE, "broken")
    assert (await settled(scene, "one"))["spec"].get("nodeName"), "the end of the rule wakes those who wait"
    await scene.create(kinds.DEVICE_TAINT_RULE, "late", rule_of("NoSchedule", driver=FABRIC))
    assert (await settled(scene, "one"))["status"]["phase"] == "Running", "whoever has it keeps it"


@pytest.mark.parametrize("by", ["rule", "slice"])
async def test_pod_that_does_not_tolerate_a_taint_is_evicted(scene: Scene, by: str) -> None:
    await publish(scene, "x0", "x1")
    for name in ("one", "two"):
        await pod(scene, name, {"fabric": f"claim-{name}"})
        assert (await settled(scene, name))["status"]["phase"] == "Running"
    [device] = [one[0] for one in await held(scene) if one[1] == "claim-one"]
    await taint(scene, device, by == "rule")
    await scene.settle()
    assert await scene.find(kinds.POD, "one") is None
    assert (await settled(scene, "two"))["status"]["phase"] == "Running"
    [said] = await scene.events("DeviceTaintManagerEviction")
    assert f"rack/one/{device} (claim claim-one) has the taint example.com/broken:NoExecute" in said


async def test_toleration_seconds_are_respected(scene: Scene) -> None:
    await publish(scene, "x0")
    await scene.create(kinds.RESOURCE_CLAIM, "a", {"devices": {"requests": [{"name": "it", "exactly": {
        "deviceClassName": "fabric", "tolerations": [
            {"key": "example.com/broken", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]}}]}})
    await scene.create(kinds.POD, "one", {"containers": [{"name": "main"}], "terminationGracePeriodSeconds": 0,
                                          "resourceClaims": [{"name": "a", "resourceClaimName": "a"}]})
    assert (await settled(scene, "one"))["status"]["phase"] == "Running"
    await scene.create(kinds.DEVICE_TAINT_RULE, "broken", rule_of("NoExecute", driver=FABRIC))
    assert scene.clock is not None
    scene.clock.advance(29)
    found = await settled(scene, "one")
    assert conditions.find(found, "DisruptionTarget") is None
    scene.clock.advance(2)
    await scene.settle()
    assert await scene.find(kinds.POD, "one") is None


@pytest.mark.parametrize("borne", [None, 30, 0], ids=["not tolerated", "for a time", "for no time"])
@pytest.mark.parametrize("timed", [True, False], ids=["by a rule", "by a slice"])
async def test_vm_that_keeps_a_tainted_device_waits_in_one_pod(scene: Scene, borne: int | None, timed: bool) -> None:
    """Its own claim has the device for good: who went there would go at once, and the next one too."""
    await publish(scene, "x0", attributes={"resource.kubernetes.io/pciBusID": {"string": "0000:65:00.0"}})
    tolerations = [{"key": "example.com/broken", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": borne}]
    await keeper(scene, **({"tolerations": tolerations} if borne is not None else {}))
    first = await scene.running("blue")
    pods = scenes.logged(scene.product, kinds.POD, scene.namespace)
    await taint(scene, "x0", timed)
    await scene.settle()
    assert scene.clock is not None
    scene.clock.advance(borne or 0)
    said = await scene.waits("blue", "PodScheduled", "blue-disk", "x0", "example.com/broken:NoExecute")
    assert rejection_conditions.of(await scene.pod("blue")) == [RejectionCode.CLAIM_DEVICE_TAINTED]
    for _ in range(20):
        scene.clock.advance(10)
        await scene.settle()
    assert sum(old is None for old, _ in pods) == 1, "one pod waits"
    assert len(await scene.events("DeviceTaintManagerEviction")) == 1
    told = explain_pod.pod(replace(await scene.cluster_objects(), now=scene.clock.now()), await scene.pod("blue"))
    assert said in told.sentence, "outfit why says the same"
    await taint(scene, "x0", timed, gone=True)
    assert (await scene.running("blue"))["metadata"]["uid"] != first["metadata"]["uid"]
    assert sum(old is None for old, _ in pods) == 1


async def test_expired_toleration_does_not_allocate_the_device(scene: Scene) -> None:
    """A claim from a template is recreated for each pod: it would get the device again, and go again."""
    await publish(scene, "x0", "x1")
    await scene.create(kinds.DEVICE_TAINT_RULE, "broken", rule_of("NoExecute", driver=FABRIC, device="x0"))
    borne = [{"key": "example.com/broken", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]
    assert scene.clock is not None
    for name in ("one", "two", "three"):
        await scene.create(kinds.RESOURCE_CLAIM, name, {"devices": {"requests": [{"name": "it", "exactly": {
            "deviceClassName": "fabric", "tolerations": borne}}]}})
        await scene.create(kinds.POD, name, {"containers": [{"name": "main"}], "terminationGracePeriodSeconds": 0,
                                             "resourceClaims": [{"name": "a", "resourceClaimName": name}]})
        scene.clock.advance(15)
        await scene.settle()
    assert await scene.find(kinds.POD, "one") is None, "it had half a minute"
    assert (await settled(scene, "two"))["status"]["phase"] == "Running"
    last = await settled(scene, "three")
    assert not last["spec"].get("nodeName")
    assert await held(scene) == [("x1", "two", "prepared")]
    told = replace(await scene.cluster_objects(), now=scene.clock.now()).choose(last)
    assert isinstance(told, Waiting)
    assert {one.device.device: one.detail for _, rejected in told.hosts for one in rejected.obstacles
            if one.code is RejectionCode.TAINTED and one.device is not None} == {
        "x0": {"request": "it", "taint": "example.com/broken:NoExecute", "rules": ("broken",), "expired": True}}
    await scene.delete(kinds.DEVICE_TAINT_RULE, "broken")
    assert (await settled(scene, "three"))["status"]["phase"] == "Running"


async def test_device_tainted_before_it_is_ready_is_released(scene: Scene) -> None:
    await publish(scene, "x0", "x1", **BINDING)
    await pod(scene, "one", {"fabric": "a"})
    await scene.settle()
    assert await held(scene) == [("x0", "a", "booked")]
    await scene.create(kinds.DEVICE_TAINT_RULE, "broken", rule_of("NoExecute", driver=FABRIC, device="x0"))
    await scene.settle()
    assert await held(scene) == [("x1", "a", "booked")]
    [said] = await scene.events("DevicesNotReady")
    assert all(word in said for word in ("rack/one/x0", "example.com/broken:NoExecute"))
    await report(scene, "a", "Attached")
    assert (await settled(scene, "one"))["status"]["phase"] == "Running"


async def test_tolerated_and_outdated_taints_evict_no_pod(scene: Scene) -> None:
    """A taint of an older generation of the pool is not there any more."""
    await publish(scene, "x0")
    await scene.create(kinds.RESOURCE_CLAIM, "a", {"devices": {"requests": [{"name": "it", "exactly": {
        "deviceClassName": "fabric", "tolerations": [{"key": "example.com/broken", "operator": "Exists"}]}}]}})
    await scene.create(kinds.POD, "one", {"containers": [{"name": "main"}], "resourceClaims": [
        {"name": "a", "resourceClaimName": "a"}]})
    assert (await settled(scene, "one"))["status"]["phase"] == "Running"
    await scene.create(kinds.DEVICE_TAINT_RULE, "broken", rule_of("NoExecute", driver=FABRIC))
    await scene.create(kinds.RESOURCE_SLICE, "earlier", {
        "driver": FABRIC, "pool": {"name": "rack/one", "generation": 0, "resourceSliceCount": 1}, "allNodes": True,
        "devices": [{"name": "x0", "taints": [{"key": "example.com/other", "effect": "NoExecute"}]}]})
    assert scene.clock is not None
    scene.clock.advance(3600)
    assert (await settled(scene, "one"))["status"]["phase"] == "Running"


async def test_out_of_service_record_evicts_no_pod(scene: Scene) -> None:
    await scene.classes()
    await pod(scene, "one", {scene.namespace: "a"})
    host = (await settled(scene, "one"))["spec"]["nodeName"]
    [booking] = (await book.read(scene.store, host)).bookings
    await out_of_service.quarantine(scene.store, host, booking.device, by="admin")
    assert (await settled(scene, "one"))["status"]["phase"] == "Running"
    assert not await scene.events("DeviceTaintManagerEviction")


@pytest.mark.parametrize(("spec", "says"), [
    ({"deviceSelector": {}}, "spec.taint.key"), ({"taint": {"key": "a", "effect": "Burn"}}, "spec.taint.effect"),
])
async def test_device_taint_rule_is_checked_at_admission(scene: Scene, spec: Object, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        await scene.create(kinds.DEVICE_TAINT_RULE, "odd", spec)
