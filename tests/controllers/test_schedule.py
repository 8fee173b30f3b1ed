"""What the embedded scheduler gives besides plain claims: devices that no host owns, extended resources, devices that must be
made ready, and devices that were chosen beforehand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.page import Page, pool_page
from outfitter.controllers.schedule import Schedule
from outfitter.errors import Invalid
from outfitter.inventory.config import Scheduling
from outfitter.ledger import book, marks
from outfitter.scheduling import explain
from outfitter.scheduling.facts import Facts
from outfitter.scheduling.place import Waiting
from tests.controllers import scene as scenes
from tests.controllers.scene import Scene

FABRIC = "fabric.example.com"
PAGE = pool_page(FABRIC, "rack/one")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with scenes.embedded(2, 2) as there:
        yield there


async def publish(scene: Scene, *names: str, where: Object | None = None, **more: Any) -> None:
    await scene.create(kinds.RESOURCE_SLICE, "rack", {
        "driver": FABRIC, "pool": {"name": "rack/one", "generation": 1, "resourceSliceCount": 1},
        **(where or {"allNodes": True}), "devices": [{"name": name, **more} for name in names]})
    await scene.create(kinds.DEVICE_CLASS, "fabric", {"selectors": [{"cel": {"expression": f'device.driver == "{FABRIC}"'}}]})


async def pod(scene: Scene, name: str, claims: dict[str, str] | None = None, **container: Any) -> None:
    """A pod that uses claims: class -> the name of a claim of it, which is made."""
    for class_, claim in (claims or {}).items():
        await scene.create(kinds.RESOURCE_CLAIM, claim, {"devices": {"requests": [
            {"name": "it", "exactly": {"deviceClassName": class_}}]}})
    await scene.create(kinds.POD, name, {
        "containers": [{"name": "main", "image": "main", **container}],
        "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in (claims or {}).values()]})


async def settled(scene: Scene, name: str) -> Object:
    await scene.product.settle()  # type: ignore[attr-defined]
    found = await scene.find(kinds.POD, name)
    assert found is not None
    return found


def why(pod: Object) -> str:
    return str((conditions.find(pod, "PodScheduled") or {}).get("message", ""))


async def held(scene: Scene, page: str = PAGE) -> list[tuple[str, str, str]]:
    return [(one.device.device, one.holder.name, one.state) for one in (await book.read(scene.store, page)).bookings]


# -- devices that no host owns


@pytest.mark.parametrize("where", [{"allNodes": True}, {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [
    {"key": "kubernetes.io/hostname", "operator": "Exists"}]}]}}], ids=["all nodes", "by labels"])
async def test_a_device_of_the_rack_is_had_by_one(scene: Scene, where: Object) -> None:
    for node in await scene.all(kinds.NODE):
        await scene.store.patch(kinds.NODE, node["metadata"]["name"], {"metadata": {"labels": {"kubernetes.io/hostname": "x"}}})
    await publish(scene, "x0", where=where)
    await pod(scene, "one", {"fabric": "a"})
    assert (await settled(scene, "one"))["status"]["phase"] == "Running"
    assert await held(scene) == [("x0", "a", "prepared")]
    page = await scene.find(kinds.LEDGER_PAGE, PAGE)
    assert page is not None
    assert page["spec"]["pool"] == {"driver": FABRIC, "pool": "rack/one"}
    assert "host" not in page["spec"]
    await pod(scene, "two", {"fabric": "b"})
    assert "held by pod/one (claim a)" in why(await settled(scene, "two"))
    await scene.delete(kinds.POD, "one")
    assert (await settled(scene, "two"))["spec"]["nodeName"]
    assert await held(scene) == [("x0", "b", "prepared")]


@pytest.mark.parametrize("forgets", ["the device", "the page"])
@pytest.mark.parametrize("first", ["a host's", "shared"])
async def test_a_pool_that_changes_hands_is_not_given_twice(scene: Scene, first: str, forgets: str) -> None:
    """A host's pool becomes one that all hosts reach, or the other way round, while its device is held: it stands on the page
    that it stood on, and whoever books it on another is stopped by the pages, not only by what is known of them."""
    name = scene.host.name
    ways: list[Object] = [{"nodeName": name}, {"allNodes": True}]
    was, now = ways if first == "a host's" else ways[::-1]
    pool = {"driver": FABRIC, "devices": [{"name": "x0"}]}
    await scene.create(kinds.RESOURCE_SLICE, "rack", {
        **pool, **was, "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}})
    await scene.create(kinds.DEVICE_CLASS, "fabric", {"selectors": [{"cel": {"expression": f'device.driver == "{FABRIC}"'}}]})
    await pod(scene, "one", {"fabric": "a"})
    await settled(scene, "one")
    homes = [name, pool_page(FABRIC, name)]
    home = homes[0] if first == "a host's" else homes[1]
    assert await held(scene, home) == [("x0", "a", "prepared")]
    [schedule] = [each for each in scene.product.runner.controllers if isinstance(each, Schedule)]
    await scene.delete(kinds.RESOURCE_SLICE, "rack")
    await settled(scene, "one")
    schedule._index.held.whole.clear()
    if forgets == "the page":
        schedule._index._pages.pop(home)
    await scene.create(kinds.RESOURCE_SLICE, "rack", {
        **pool, **now, "pool": {"name": name, "generation": 2, "resourceSliceCount": 1}})
    await pod(scene, "two", {"fabric": "b"})
    assert "held by pod/one" in why(await settled(scene, "two"))
    assert [one for page in homes for one in await held(scene, page)] == [("x0", "a", "prepared")]


async def test_a_card_of_the_host_and_a_device_of_the_rack_in_one_claim(scene: Scene) -> None:
    await publish(scene, "x0")
    await scene.classes()
    await pod(scene, "one", {"fabric": "a", scene.namespace: "b"})
    found = await settled(scene, "one")
    host = found["spec"]["nodeName"]
    assert [one[1:] for one in await held(scene, host)] == [("b", "prepared")]
    assert [one.node for one in (await book.read(scene.store, PAGE)).bookings] == [host]
    await scene.delete(kinds.POD, "one")
    await scene.product.settle()  # type: ignore[attr-defined]
    for name in "ab":
        await scene.delete(kinds.RESOURCE_CLAIM, name)
    await scene.product.settle()  # type: ignore[attr-defined]
    assert not await held(scene)
    assert not await held(scene, host)
    past = [one["spec"]["device"]["device"] for one in await scene.all(kinds.PAST_BOOKING)]
    assert "x0" in past, "what ended is in the history"


async def test_a_claim_that_lost_its_status_gets_it_again_from_both_pages(scene: Scene) -> None:
    await publish(scene, "x0")
    await pod(scene, "one", {"fabric": "a"})
    found = await settled(scene, "one")
    claim = await scene.find(kinds.RESOURCE_CLAIM, "a")
    assert claim is not None
    await scene.store.replace(kinds.RESOURCE_CLAIM, {**claim, "status": {}}, subresource="status")
    await scene.product.settle()  # type: ignore[attr-defined]
    mended = (await scene.find(kinds.RESOURCE_CLAIM, "a") or {})["status"]
    assert [one["device"] for one in mended["allocation"]["devices"]["results"]] == ["x0"]
    assert mended["reservedFor"][0]["uid"] == found["metadata"]["uid"]


async def test_a_node_must_not_be_called_like_the_page_of_a_pool(scene: Scene) -> None:
    with pytest.raises(Exception, match=r"pools\.outfitter\.dev"):
        await scene.store.create(kinds.NODE, {"metadata": {"name": PAGE}})


# -- extended resources


GPU = "example.com/gpu"


async def mapped(scene: Scene, *names: str) -> None:
    await publish(scene, *names)
    await scene.store.patch(kinds.DEVICE_CLASS, "fabric", {"spec": {"extendedResourceName": GPU}})


@pytest.mark.parametrize("name", [GPU, "deviceclass.resource.kubernetes.io/fabric"])
async def test_an_extended_resource_comes_from_devices(scene: Scene, name: str) -> None:
    await mapped(scene, "x0", "x1")
    await pod(scene, "one", resources={"limits": {name: "2"}})
    found = await settled(scene, "one")
    assert found["status"]["phase"] == "Running"
    told = found["status"]["extendedResourceClaimStatus"]
    assert told["requestMappings"] == [{"containerName": "main", "resourceName": name, "requestName": "container-0-request-0"}]
    claim = await scene.find(kinds.RESOURCE_CLAIM, told["resourceClaimName"])
    assert claim is not None
    assert told["resourceClaimName"].startswith("one-extended-resources-")
    assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert claim["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]
    assert [one[2] for one in await held(scene)] == ["prepared", "prepared"]
    await scene.delete(kinds.POD, "one")
    await scene.product.settle()  # type: ignore[attr-defined]
    assert not await held(scene)
    assert not await scene.all(kinds.RESOURCE_CLAIM)


async def test_what_the_node_offers_itself_comes_first(scene: Scene) -> None:
    await mapped(scene, "x0")
    for host in scene.product.hosts:
        node = await scene.find(kinds.NODE, host.name) or {}
        offers = {**node["status"]["allocatable"], GPU: "1"}
        await scene.store.patch(kinds.NODE, host.name, {"status": {"allocatable": offers}}, subresource="status")
    await pod(scene, "one", resources={"limits": {GPU: "1"}})
    found = await settled(scene, "one")
    assert found["spec"]["nodeName"]
    assert "extendedResourceClaimStatus" not in found["status"]
    assert not await held(scene)


async def test_without_a_device_the_reason_is_told(scene: Scene) -> None:
    await mapped(scene, "x0")
    await pod(scene, "one", resources={"limits": {GPU: "2"}})
    assert f"resource {GPU} wants 2: 1 match" in why(await settled(scene, "one"))
    assert not await scene.all(kinds.RESOURCE_CLAIM)


# -- devices that are made ready first


BINDING: dict[str, Any] = {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"], "bindsToNode": True}


async def report(scene: Scene, claim: str, type_: str) -> None:
    found = await scene.find(kinds.RESOURCE_CLAIM, claim)
    assert found is not None
    result = found["status"]["allocation"]["devices"]["results"][0]
    entry = {key: result[key] for key in ("driver", "pool", "device")}
    await scene.store.patch(kinds.RESOURCE_CLAIM, claim, {"status": {"devices": [{**entry, "conditions": [
        {"type": type_, "status": "True", "reason": "Said", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]}},
        scene.namespace, subresource="status")


async def test_a_pod_is_bound_when_its_device_is_ready(scene: Scene) -> None:
    await publish(scene, "x0", **BINDING)
    await pod(scene, "one", {"fabric": "a"})
    found = await settled(scene, "one")
    assert not found["spec"].get("nodeName")
    assert "rack/one/x0 is not Attached yet" in why(found)
    assert await held(scene) == [("x0", "a", "booked")]
    claim = await scene.find(kinds.RESOURCE_CLAIM, "a") or {}
    assert claim["status"]["allocation"]["allocationTimestamp"]
    await report(scene, "a", "Attached")
    found = await settled(scene, "one")
    assert found["status"]["phase"] == "Running"
    assert "nominatedNodeName" not in found["status"]


@pytest.mark.parametrize("how", ["failure", "time"])
async def test_what_is_not_made_ready_is_given_back_and_tried_elsewhere(scene: Scene, how: str) -> None:
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
    assert any("given back" in text for text in await scene.events("DevicesNotReady"))
    await report(scene, "a", "Attached")
    assert (await settled(scene, "one"))["spec"]["nodeName"] == found["status"]["nominatedNodeName"]


async def test_a_claim_that_is_being_deleted_is_given_back_too(scene: Scene) -> None:
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
    """Of the host that it is to go to, and of no other; and not after it was given back."""
    await publish(scene, "x0", **BINDING)
    cpus = [int(node["status"]["allocatable"]["cpu"]) for node in (await scene.store.list(kinds.NODE)).items]
    assert cpus[0] == cpus[1]
    most: Object = {"resources": {"requests": {"cpu": str(cpus[0])}}}
    await pod(scene, "one", {"fabric": "a"}, **most)
    first = (await settled(scene, "one"))["status"]["nominatedNodeName"]
    await pod(scene, "two", **most)
    assert (await settled(scene, "two"))["spec"]["nodeName"] != first
    await pod(scene, "three", **most)
    assert f"0 of {cpus[0]} cpu free" in why(await settled(scene, "three"))
    await report(scene, "a", "Attached")
    assert (await settled(scene, "one"))["spec"]["nodeName"] == first
    await scene.delete(kinds.POD, "one")
    assert (await settled(scene, "three"))["spec"]["nodeName"] == first


async def test_what_is_given_back_includes_cpus(scene: Scene) -> None:
    await publish(scene, "x0", **BINDING)
    [cpu, _] = [node["status"]["allocatable"]["cpu"] for node in (await scene.store.list(kinds.NODE)).items]
    most: Object = {"resources": {"requests": {"cpu": cpu}}}
    await pod(scene, "one", {"fabric": "a"}, **most)
    first = (await settled(scene, "one"))["status"]["nominatedNodeName"]
    await report(scene, "a", "Broken")
    assert (await settled(scene, "one"))["status"]["nominatedNodeName"] != first
    await pod(scene, "two", **most)
    assert (await settled(scene, "two"))["spec"]["nodeName"] == first


# -- devices that were chosen beforehand


async def test_a_pod_gets_the_very_devices_that_were_assigned(scene: Scene) -> None:
    await scene.classes()
    await scene.store.patch(kinds.DEVICE_CLASS, scene.namespace, {"spec": {"extendedResourceName": "example.com/vf"}})
    last = scene.product.hosts[1].name
    page = await scene.all(kinds.RESOURCE_SLICE)
    names = sorted(one["name"] for piece in page if piece["spec"].get("nodeName") == last
                   for one in piece["spec"].get("devices") or () if "vf" in one["name"])
    chosen = f"{last}/{names[-1]}"
    await pod(scene, "one", assignedDevices=[{"resourceName": "example.com/vf", "deviceIDs": [chosen]}])
    found = await settled(scene, "one")
    assert found["spec"]["nodeName"] == last
    assert [one[0] for one in await held(scene, last)] == [names[-1]]
    await pod(scene, "two", assignedDevices=[{"resourceName": "example.com/vf", "deviceIDs": [chosen]}])
    assert f"{chosen} is held by pod/one" in why(await settled(scene, "two"))
    await pod(scene, "three", assignedDevices=[{"resourceName": "example.com/vf", "deviceIDs": ["node-9/none"]}])
    assert "node-9/none (example.com/vf) does not exist" in why(await settled(scene, "three"))
    for name in ("a", "b", "c", "d"):
        await pod(scene, f"greedy-{name}", {scene.namespace: name})
    await settled(scene, "greedy-d")
    await scene.delete(kinds.POD, "one")
    await settled(scene, "greedy-d")
    assert (await settled(scene, "two"))["spec"]["nodeName"] == last, "nobody else got it meanwhile"
    assert [(await settled(scene, f"greedy-{name}"))["spec"].get("nodeName") is not None for name in "abcd"].count(True) == 3


async def test_a_name_that_several_devices_have_and_devices_of_two_hosts(scene: Scene) -> None:
    await scene.classes()
    await scene.store.patch(kinds.DEVICE_CLASS, scene.namespace, {"spec": {"extendedResourceName": GPU}})
    name, (one, two) = "pci-0000-3b-00-0-vf0", [host.name for host in scene.product.hosts]
    await pod(scene, "vague", assignedDevices=[{"resourceName": GPU, "deviceIDs": [name]}])
    assert f"{name} ({GPU}) may be any of {one}/{name}, {two}/{name}: write host/device" in why(await settled(scene, "vague"))
    await pod(scene, "torn", assignedDevices=[{"resourceName": GPU, "deviceIDs": [f"{one}/{name}", f"{two}/{name}"]}])
    assert f"no host has all of them: {one}/{name} is on {one}; {two}/{name} is on {two}" in why(await settled(scene, "torn"))


@pytest.mark.parametrize(("devices", "says"), [
    ([{"deviceIDs": ["a/b"]}], "resourceName"), ([{"resourceName": GPU}], "deviceIDs"),
    ([{"resourceName": GPU, "deviceIDs": ["a/b", "a/b"]}], "Duplicate"),
    ([{"resourceName": "gpu", "deviceIDs": ["a"]}], "example"),
], ids=["no resource", "no ids", "twice", "no domain"])
async def test_what_is_assigned_is_checked_at_the_door(scene: Scene, devices: Any, says: str) -> None:
    with pytest.raises(Exception, match=says) as caught:
        await pod(scene, "one", assignedDevices=devices)
    assert "spec.containers[0].assignedDevices[0]" in str(caught.value)


# -- bursts


async def test_a_burst_is_served_in_order_and_in_one_commit(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await publish(scene, "x0", "x1")
    commits = []
    real = scene.store.commit

    async def counted(writes: Any, **more: Any) -> Any:
        commits.append([write.object["metadata"]["name"] for write in writes
                        if write.kind == kinds.POD and getattr(write, "subresource", "-") == ""])
        return await real(writes, **more)

    monkeypatch.setattr(scene.store, "commit", counted)
    for name in "cab":
        await pod(scene, name, {"fabric": f"claim-{name}"})
    found = {name: (await settled(scene, name))["spec"].get("nodeName") for name in "abc"}
    assert [name for name in "cab" if found[name]] == ["c", "a"], "the first to come are served"
    assert ["c", "a"] in commits


async def test_a_page_that_changed_meanwhile_does_not_sink_the_others(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await publish(scene, "x0", "x1", "x2")
    real, raced = scene.store.commit, list[str]()

    async def racing(writes: Any, **more: Any) -> Any:
        if not raced and any(write.kind == kinds.POD for write in writes):
            raced.append("somebody made the page")
            await scene.store.create(kinds.LEDGER_PAGE, Page.blank(PAGE))
        return await real(writes, **more)

    monkeypatch.setattr(scene.store, "commit", racing)
    for name in "abc":
        await pod(scene, name, {"fabric": f"claim-{name}"})
    for name in "abc":
        assert (await settled(scene, name))["spec"].get("nodeName"), name
    assert raced
    assert len(await held(scene)) == 3


# -- taints


def rule_of(effect: str, **selector: str) -> Object:
    return {"deviceSelector": selector, "taint": {"key": "example.com/broken", "effect": effect}}


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
    await scene.product.settle()  # type: ignore[attr-defined]
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
    await scene.product.settle()  # type: ignore[attr-defined]
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


# -- switches


@pytest.mark.parametrize(("gate", "says"), [
    ("DRADeviceBindingConditions", "has binding conditions, which are switched off"), ("DRADeviceTaintRules", ""),
    ("DRAExtendedResource", f"it offers no {GPU}")])
async def test_a_gate_switches_a_part_off(gate: str, says: str) -> None:
    async with scenes.embedded(1, scheduling=Scheduling(features={gate: False})) as scene:
        await mapped(scene, "x0")
        if gate == "DRADeviceBindingConditions":
            await scene.delete(kinds.RESOURCE_SLICE, "rack")
            await scene.delete(kinds.DEVICE_CLASS, "fabric")
            await publish(scene, "x0", **BINDING)
        if gate == "DRADeviceTaintRules":
            await scene.create(kinds.DEVICE_TAINT_RULE, "broken", rule_of("NoExecute", driver=FABRIC))
        if gate == "DRAExtendedResource":
            await pod(scene, "one", resources={"limits": {GPU: "1"}})
        else:
            await pod(scene, "one", {"fabric": "a"})
        found = await settled(scene, "one")
        if says:
            told = (await facts(scene)).choose(found)
            assert isinstance(told, Waiting)
            assert any(says in f"{refusal.summary} {refusal.details}" for _, refusal in told.hosts), told
        else:
            assert found["status"]["phase"] == "Running"


async def facts(scene: Scene) -> Facts:
    assert isinstance(scene.product, app.Embedded)
    async def all_of(kind: Kind) -> list[Object]:
        return (await scene.store.list(kind)).items

    settings = scene.product.settings
    return Facts(
        await all_of(kinds.INSTANCE), await all_of(kinds.POD), await all_of(kinds.RESOURCE_CLAIM),
        await all_of(kinds.DEVICE_CLASS), await all_of(kinds.RESOURCE_SLICE), await all_of(kinds.LEDGER_PAGE),
        await all_of(kinds.NODE), rules=await all_of(kinds.DEVICE_TAINT_RULE), policy=settings.policy,
        features=settings.features)


async def told(scene: Scene, name: str) -> list[str]:
    """What `outfit why` says of a pod."""
    there = await settled(scene, name)
    found = explain.pod(replace(await facts(scene), now=scene.product.context.clock.now()), there)
    return [found.sentence, *found.lines, *found.todo]


async def test_why_tells_of_devices_that_are_made_ready(scene: Scene) -> None:
    await publish(scene, "x0", **BINDING)
    await pod(scene, "one", {"fabric": "a"})
    first = (await settled(scene, "one"))["status"]["nominatedNodeName"]
    sentence, device, todo = await told(scene, "one")
    assert sentence == f"waits until its devices on {first} are made ready: rack/one/x0 is not Attached yet"
    assert device.startswith(f"x0 of pool rack/one, on {first}, for request it: booked since ")
    assert FABRIC in todo
    other = next(host.name for host in scene.product.hosts if host.name != first)
    await scene.store.patch(kinds.NODE, other, {"spec": {"unschedulable": True}})
    await report(scene, "a", "Broken")
    found = await settled(scene, "one")
    assert f"{first}: devices on {first} were given back: rack/one/x0: Broken (Said)" in why(found)
    assert (await told(scene, "one"))[0].startswith("waits: 0/2 hosts"), "not: it is about to be given the same host again"
    assert scene.clock is not None
    scene.clock.advance(61)
    assert (await settled(scene, "one"))["status"]["nominatedNodeName"] == first
    await report(scene, "a", "Attached")
    assert (await told(scene, "one"))[0] == f"runs on {first}: nothing is wrong"


async def test_why_tells_of_devices_that_were_chosen_beforehand(scene: Scene) -> None:
    await scene.classes()
    await scene.store.patch(kinds.DEVICE_CLASS, scene.namespace, {"spec": {"extendedResourceName": GPU}})
    chosen = f"{scene.host.name}/pci-0000-3b-00-0-vf1"
    for name in ("one", "two", "three"):
        await pod(scene, name, assignedDevices=[{"resourceName": GPU, "deviceIDs": [chosen]}])
    for name in ("two", "three"):
        said = await told(scene, name)
        assert any(f"assigned beforehand: {chosen} is held by pod/one" in line for line in said), said
    await scene.delete(kinds.POD, "one")
    assert (await settled(scene, "two"))["spec"]["nodeName"] == scene.host.name, "of two who name it the first to come"
    assert not (await settled(scene, "three"))["spec"].get("nodeName")


async def test_why_names_a_machine_that_is_stopped_and_keeps_its_device() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        domain = {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [scenes.device()]}}
        await scene.create(kinds.MACHINE, "amber", {
            "runStrategy": "Always", "resourceClaimTemplates": [{"name": "network", "spec": {"spec": scene.claim_spec()}}],
            "template": {"spec": {"domain": domain}}})
        await scene.running("amber")
        await pod(scene, "one", {scene.namespace: "a"})
        assert (await told(scene, "one"))[-1] == f"{scene.host.name} could take it once vmi/amber in here ends"
        await scene.store.patch(kinds.MACHINE, "amber", {"spec": {"runStrategy": "Halted"}}, scene.namespace)
        await scene.gone("amber")
        [claim] = [one["metadata"]["name"] for one in await scene.all(kinds.RESOURCE_CLAIM)
                   if one["metadata"].get("ownerReferences")]
        assert (await told(scene, "one"))[-1] == (
            f"{scene.host.name} could take it after: kubectl delete resourceclaim {claim} -n here; or delete vm/amber in here, "
            "which is stopped and keeps its devices")
        await scene.delete(kinds.RESOURCE_CLAIM, claim)
        assert (await settled(scene, "one"))["spec"]["nodeName"] == scene.host.name
