"""Taints of devices, by a rule or by who publishes them: no new pods, and those who do not bear them go."""

from __future__ import annotations

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.errors import Invalid
from outfitter.ledger import book, marks
from tests.controllers.racks import FABRIC, held, pod, publish, rule_of, settled
from tests.controllers.scene import Scene


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
async def test_a_pod_that_does_not_bear_a_taint_goes(scene: Scene, by: str) -> None:
    await publish(scene, "x0", "x1")
    for name in ("one", "two"):
        await pod(scene, name, {"fabric": f"claim-{name}"})
        assert (await settled(scene, name))["status"]["phase"] == "Running"
    [device] = [one[0] for one in await held(scene) if one[1] == "claim-one"]
    if by == "rule":
        await scene.create(kinds.DEVICE_TAINT_RULE, "broken", rule_of("NoExecute", driver=FABRIC, device=device))
    else:
        piece = await scene.find(kinds.RESOURCE_SLICE, "rack") or {}
        taints = [{"key": "example.com/broken", "effect": "NoExecute"}]
        devices = [{**one, "taints": taints} if one["name"] == device else one for one in piece["spec"]["devices"]]
        await scene.store.replace(kinds.RESOURCE_SLICE, {**piece, "spec": {**piece["spec"], "devices": devices}})
    await scene.settle()
    assert await scene.find(kinds.POD, "one") is None
    assert (await settled(scene, "two"))["status"]["phase"] == "Running"
    [said] = await scene.events("DeviceTaintManagerEviction")
    assert f"rack/one/{device} (claim claim-one) has the taint example.com/broken:NoExecute" in said


async def test_what_is_borne_for_a_time_is_borne_for_that_time(scene: Scene) -> None:
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


async def test_what_is_borne_for_ever_or_was_published_earlier_sends_nobody_away(scene: Scene) -> None:
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


async def test_what_an_operator_marks_sends_nobody_away(scene: Scene) -> None:
    await scene.classes()
    await pod(scene, "one", {scene.namespace: "a"})
    host = (await settled(scene, "one"))["spec"]["nodeName"]
    [booking] = (await book.read(scene.store, host)).bookings
    await marks.quarantine(scene.store, host, booking.device, by="admin")
    assert (await settled(scene, "one"))["status"]["phase"] == "Running"
    assert not await scene.events("DeviceTaintManagerEviction")


@pytest.mark.parametrize(("spec", "says"), [
    ({"deviceSelector": {}}, "spec.taint.key"), ({"taint": {"key": "a", "effect": "Burn"}}, "spec.taint.effect"),
])
async def test_a_rule_is_checked_at_the_door(scene: Scene, spec: Object, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        await scene.create(kinds.DEVICE_TAINT_RULE, "odd", spec)
