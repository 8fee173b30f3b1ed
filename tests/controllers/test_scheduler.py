"""What the embedded scheduler gives besides plain claims: devices that no host owns, extended resources, and devices that were
pre-assigned; many at once; and with parts of it switched off."""

from __future__ import annotations

from typing import Any

import pytest

from outfitter.api import kinds, rejection_conditions
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Page, pool_page
from outfitter.api.rejection import RejectionCode
from outfitter.controllers import launcher_pod
from outfitter.controllers.scheduler import REPORT_INTERVAL, Scheduler
from outfitter.inventory.config import SchedulingSettings
from outfitter.ledger import book
from outfitter.scheduling.dra import extended_resources
from outfitter.scheduling.explain import pod as explain_pod
from outfitter.scheduling.explain import vm
from outfitter.scheduling.placement import Waiting
from outfitter.store.base import Create
from tests.controllers import scenario as scenes
from tests.controllers.pool_devices import BINDING, FABRIC, GPU, PAGE, held, mapped, pod, publish, rule_of, settled, why
from tests.controllers.scenario import Scene

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
    two = await settled(scene, "two")
    assert rejection_conditions.of(two) == [RejectionCode.TOO_FEW_FREE]
    assert "pod/one" in why(two)
    await scene.delete(kinds.POD, "one")
    assert (await settled(scene, "two"))["spec"]["nodeName"]
    assert await held(scene) == [("x0", "b", "prepared")]


@pytest.mark.parametrize("forgets", ["the device", "the page"])
@pytest.mark.parametrize("first", ["a host's", "shared"])
async def test_pool_that_moves_to_another_node_is_not_allocated_twice(scene: Scene, first: str, forgets: str) -> None:
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
    [schedule] = [each for each in scene.product.runner.controllers if isinstance(each, Scheduler)]
    await scene.delete(kinds.RESOURCE_SLICE, "rack")
    await settled(scene, "one")
    schedule.cache.devices.held.whole.clear()
    if forgets == "the page":
        schedule.cache.devices.put_page(home, None)
    await scene.create(kinds.RESOURCE_SLICE, "rack", {
        **pool, **now, "pool": {"name": name, "generation": 2, "resourceSliceCount": 1}})
    await pod(scene, "two", {"fabric": "b"})
    two = await settled(scene, "two")
    assert set(rejection_conditions.of(two)) & {RejectionCode.TOO_FEW_FREE, RejectionCode.HELD}
    assert "pod/one" in why(two)
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
    await scene.settle()
    for name in "ab":
        await scene.delete(kinds.RESOURCE_CLAIM, name)
    await scene.settle()
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
    await scene.settle()
    mended = (await scene.find(kinds.RESOURCE_CLAIM, "a") or {})["status"]
    assert [one["device"] for one in mended["allocation"]["devices"]["results"]] == ["x0"]
    assert mended["reservedFor"][0]["uid"] == found["metadata"]["uid"]


async def test_a_node_must_not_be_called_like_the_page_of_a_pool(scene: Scene) -> None:
    with pytest.raises(Exception, match=r"pools\.outfitter\.dev"):
        await scene.store.create(kinds.NODE, {"metadata": {"name": PAGE}})


# -- claims of templates


@pytest.mark.parametrize("owned", [False, True], ids=["nobody's", "another pod's"])
@pytest.mark.parametrize("told", [False, True], ids=["untold", "told"])
async def test_claim_of_another_owner_is_not_used(scene: Scene, told: bool, owned: bool) -> None:
    """It has the name that the pod's claim is made with, with or without the pod's status naming it."""
    await scene.classes()
    if told:
        await scene.template()
    made = await scene.machine("blue", nodeSelector={"not": "there"})
    await scene.waits("blue", "PodScheduled")
    name, uid = launcher_pod.pod_name(made), (await scene.pod("blue"))["metadata"]["uid"]
    claim = f"{name}-network-{launcher_pod.suffix(uid, 'network')}"
    owners: list[Object] = []
    if owned:
        await pod(scene, "other")
        owner = await settled(scene, "other")
        owners = [{"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": owner["metadata"]["uid"], "controller": True}]
    if told:
        await scene.delete(kinds.RESOURCE_CLAIM, claim)  # and before any process hears of it:
    other = await scene.create(kinds.RESOURCE_CLAIM, claim, scene.claim_spec(), ownerReferences=owners)
    if not told:
        await scene.template()
    said = await scene.waits("blue", "PodScheduled", claim, *(["Pod other"] if owned else []))
    assert rejection_conditions.of(await scene.find(kinds.VMI, "blue") or {}) == [RejectionCode.CLAIM_NAME_TAKEN]
    why_not = vm.instance(await scene.cluster_objects(), await scene.find(kinds.VMI, "blue") or {})
    assert why_not.sentence == f"waits: {said}"
    assert await scene.find(kinds.RESOURCE_CLAIM, claim) == other
    await scene.delete(kinds.RESOURCE_CLAIM, claim)
    await scene.rejected("blue", RejectionCode.NODE_SELECTOR, label="not", wanted="there")
    found = await scene.find(kinds.RESOURCE_CLAIM, claim) or {}
    assert found["metadata"]["ownerReferences"][0]["uid"] == uid


# -- extended resources


async def test_no_second_claim_while_that_of_another_scheduler_is_on_its_way(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod in the store names a claim for its extended resources that the informers have not seen yet."""
    [schedule] = [each for each in scene.product.runner.controllers if isinstance(each, Scheduler)]
    await scene.create(kinds.DEVICE_CLASS, "fabric", {
        "selectors": [{"cel": {"expression": f'device.driver == "{FABRIC}"'}}], "extendedResourceName": GPU})
    await pod(scene, "one", resources={"limits": {GPU: "1"}})
    stale, name = await settled(scene, "one"), "one-extended-resources-theirs"
    await scene.store.create(kinds.RESOURCE_CLAIM, {
        "metadata": {"name": name, "namespace": scene.namespace, "annotations": {extended_resources.ANNOTATION: "true"},
                     "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "one", "controller": True,
                                          "uid": stale["metadata"]["uid"]}]},
        "spec": {"devices": {"requests": [{"name": "container-0-request-0", "exactly": {"deviceClassName": "fabric"}}]}}})
    await scene.store.patch(kinds.POD, "one", {"status": {"extendedResourceClaimStatus": {
        "resourceClaimName": name, "requestMappings": [{"containerName": "main", "resourceName": GPU,
                                                        "requestName": "container-0-request-0"}]}}},
        scene.namespace, subresource="status")
    known = schedule.cache.claim
    monkeypatch.setattr(schedule.cache, "pod", lambda key: stale)
    monkeypatch.setattr(schedule.cache, "claim", lambda space, each: None if each == name else known(space, each))
    await scene.create(kinds.RESOURCE_SLICE, "rack", {
        "driver": FABRIC, "pool": {"name": "rack/one", "generation": 1, "resourceSliceCount": 1}, "allNodes": True,
        "devices": [{"name": "x0"}, {"name": "x1"}]})
    await scene.settle()
    assert [claim["metadata"]["name"] for claim in await scene.all(kinds.RESOURCE_CLAIM)] == [name]
    monkeypatch.undo()
    await scene.store.patch(kinds.POD, "one", {"metadata": {"labels": {"a": "b"}}}, scene.namespace)
    assert (await settled(scene, "one"))["spec"]["nodeName"]
    assert [claim["metadata"]["name"] for claim in await scene.all(kinds.RESOURCE_CLAIM)] == [name]


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
    await scene.settle()
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


async def test_waiting_pod_has_the_reason(scene: Scene) -> None:
    await mapped(scene, "x0")
    await pod(scene, "one", resources={"limits": {GPU: "2"}})
    found = await settled(scene, "one")
    assert rejection_conditions.of(found) == [RejectionCode.TOO_FEW_FREE]
    assert GPU in why(found)
    assert not await scene.all(kinds.RESOURCE_CLAIM)


# -- devices that were pre-assigned


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
    two = await settled(scene, "two")
    assert rejection_conditions.of(two)[0] == RejectionCode.HELD
    assert all(word in why(two) for word in (chosen, "pod/one"))
    await pod(scene, "three", assignedDevices=[{"resourceName": "example.com/vf", "deviceIDs": ["node-9/none"]}])
    three = await settled(scene, "three")
    assert rejection_conditions.of(three) == [RejectionCode.ASSIGNED_DEVICE_MISSING]
    assert all(word in why(three) for word in ("node-9/none", "example.com/vf"))
    for name in ("a", "b", "c", "d"):
        await pod(scene, f"greedy-{name}", {scene.namespace: name})
    await settled(scene, "greedy-d")
    await scene.delete(kinds.POD, "one")
    await settled(scene, "greedy-d")
    assert (await settled(scene, "two"))["spec"]["nodeName"] == last, "it was not allocated meanwhile"
    assert [(await settled(scene, f"greedy-{name}"))["spec"].get("nodeName") is not None for name in "abcd"].count(True) == 3


async def test_a_name_that_several_devices_have_and_devices_of_two_hosts(scene: Scene) -> None:
    await scene.classes()
    await scene.store.patch(kinds.DEVICE_CLASS, scene.namespace, {"spec": {"extendedResourceName": GPU}})
    name, (one, two) = "pci-0000-3b-00-0-vf0", [host.name for host in scene.product.hosts]
    await pod(scene, "vague", assignedDevices=[{"resourceName": GPU, "deviceIDs": [name]}])
    vague = await settled(scene, "vague")
    assert rejection_conditions.of(vague) == [RejectionCode.ASSIGNED_DEVICE_AMBIGUOUS]
    assert all(word in why(vague) for word in (f"{one}/{name}", f"{two}/{name}", GPU))
    await pod(scene, "torn", assignedDevices=[{"resourceName": GPU, "deviceIDs": [f"{one}/{name}", f"{two}/{name}"]}])
    torn = await settled(scene, "torn")
    assert rejection_conditions.of(torn) == [RejectionCode.ASSIGNED_DEVICE_ELSEWHERE]
    assert all(word in why(torn) for word in (f"{one}/{name}", f"{two}/{name}"))


async def test_fewer_ids_than_requested_are_filled_up(scene: Scene) -> None:
    await scene.classes()
    await scene.store.patch(kinds.DEVICE_CLASS, scene.namespace, {"spec": {"extendedResourceName": "example.com/vf"}})
    last = scene.product.hosts[1].name
    chosen = f"{last}/pci-0000-3b-00-0-vf1"
    await pod(scene, "one", resources={"limits": {"example.com/vf": "2"}},
              assignedDevices=[{"resourceName": "example.com/vf", "deviceIDs": [chosen]}])
    found = await settled(scene, "one")
    assert found["spec"]["nodeName"] == last
    assert sorted(one[0] for one in await held(scene, last)) == ["pci-0000-3b-00-0-vf0", "pci-0000-3b-00-0-vf1"]
    mapped_to = found["status"]["extendedResourceClaimStatus"]["requestMappings"]
    assert len({each["requestName"] for each in mapped_to}) == 2, "one request has the id, the other the rest"


async def test_ids_of_a_resource_of_device_plugins_are_left_to_the_node(scene: Scene) -> None:
    await pod(scene, "one", resources={"limits": {"a.io/gpu": "1"}},
              assignedDevices=[{"resourceName": "a.io/gpu", "deviceIDs": ["g0"]}])
    waits = await settled(scene, "one")
    assert rejection_conditions.of(waits) == [RejectionCode.RESOURCE_NOT_OFFERED], "no plugin has registered yet"
    host = scene.product.hosts[0].name
    await scene.store.patch(kinds.NODE, host, {"status": {"capacity": {"a.io/gpu": "1"}, "allocatable": {"a.io/gpu": "1"}}},
                            subresource="status")
    assert (await settled(scene, "one"))["spec"]["nodeName"] == host


@pytest.mark.parametrize(("devices", "says"), [
    ([{"deviceIDs": ["a/b"]}], "resourceName"), ([{"resourceName": GPU}], "deviceIDs"),
    ([{"resourceName": GPU, "deviceIDs": ["a/b", "a/b"]}], "Duplicate"),
    ([{"resourceName": "gpu", "deviceIDs": ["a"]}], "example"),
], ids=["no resource", "no ids", "twice", "no domain"])
async def test_pre_assigned_devices_are_checked_at_admission(scene: Scene, devices: Any, says: str) -> None:
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


async def test_a_device_that_is_withdrawn_meanwhile_is_not_booked(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slice changes after the scheduler chose it, and before that is written."""
    await publish(scene, "x0", "x1")
    real, chosen = scene.store.commit, list[str]()

    async def racing(writes: Any, **more: Any) -> Any:
        if not chosen and any(write.kind == kinds.POD for write in writes):
            chosen[:] = [one.device.device for write in writes if write.kind == kinds.LEDGER_PAGE and isinstance(write, Create)
                         for one in Page(write.object).bookings]
            slice_ = await scene.store.get(kinds.RESOURCE_SLICE, "rack")
            slice_["spec"] |= {"devices": [device for device in slice_["spec"]["devices"] if device["name"] not in chosen]}
            await scene.store.replace(kinds.RESOURCE_SLICE, slice_)
        return await real(writes, **more)

    monkeypatch.setattr(scene.store, "commit", racing)
    await pod(scene, "one", {"fabric": "a"})
    assert (await settled(scene, "one"))["spec"].get("nodeName")
    assert chosen == ["x0"]
    assert await held(scene) == [("x1", "a", "prepared")]


async def test_who_waits_is_not_written_of_whenever_others_come_and_go(scene: Scene) -> None:
    await publish(scene, "x0", "x1")
    await scene.create(kinds.RESOURCE_CLAIM, "both", {"devices": {"requests": [
        {"name": "it", "exactly": {"deviceClassName": "fabric", "count": 2}}]}})
    await pod(scene, "first", {"fabric": "a"})
    await scene.settle()
    await scene.create(kinds.POD, "large", {"containers": [{"name": "main"}], "resourceClaims": [
        {"name": "both", "resourceClaimName": "both"}]})
    assert "pod/first" in why(await settled(scene, "large")), "the first reason is reported at once"
    events, changes = scenes.logged(scene.product, kinds.EVENT, "here"), scenes.logged(scene.product, kinds.POD, "here")
    for name in (*"bcdefgh", "last"):
        await pod(scene, name, {"fabric": f"claim-{name}"})
        assert (await settled(scene, name))["spec"].get("nodeName")
        if name != "last":
            await scene.delete(kinds.POD, name)
            await scene.settle()

    def written() -> tuple[int, int]:
        return (sum(new is not None and new["metadata"]["name"] == "large" for _, new in changes),
                sum(new is not None and new["metadata"]["name"].startswith("large.") for _, new in events))

    large = await settled(scene, "large")
    assert written() == (0, 0)
    told = (await scene.cluster_objects()).choose(large)
    assert isinstance(told, Waiting)
    assert {one.holder.purpose for _, rejected in told.hosts for one in rejected.taken if one.holder} == {
        "pod/first",
        "pod/last",
    }, "who asks why gets the answer of now"
    assert scene.clock is not None
    scene.clock.advance(REPORT_INTERVAL)
    assert "pod/last" in why(await settled(scene, "large")), "the last reason is reported in the end"
    assert written() == (1, 1)


# -- switches


@pytest.mark.parametrize(("gate", "code", "detail"), [
    ("DRADeviceBindingConditions", RejectionCode.FEATURE_DISABLED, {"feature": "DRADeviceBindingConditions"}),
    ("DRADeviceTaintRules", None, {}), ("DRAExtendedResource", RejectionCode.RESOURCE_NOT_OFFERED, {"resource": GPU})])
async def test_a_gate_switches_a_part_off(gate: str, code: RejectionCode | None, detail: Object) -> None:
    async with scenes.embedded(1, scheduling=SchedulingSettings(features={gate: False})) as scene:
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
        if code is not None:
            told = (await scene.cluster_objects()).choose(found)
            assert isinstance(told, Waiting)
            assert any(one.code is code and {**one.detail, **detail} == one.detail for _, rejected in told.hosts
                       for one in (*rejected.rejections, *rejected.obstacles)), told
        else:
            assert found["status"]["phase"] == "Running"


async def test_selectors_that_cost_too_much(scene: Scene) -> None:
    """The pod waits with the reason, others are scheduled, and fewer devices end it."""
    if not scene.embedded:
        pytest.skip("kube-scheduler has a time limit instead")
    names = [f"x{at:02}" for at in range(64)]
    await scene.create(kinds.RESOURCE_SLICE, "rack", {
        "driver": FABRIC, "pool": {"name": "rack/one", "generation": 1, "resourceSliceCount": 1}, "allNodes": True,
        "devices": [{"name": name, "attributes": {"at": {"int": at}}} for at, name in enumerate(names)]})
    await scene.create(kinds.DEVICE_CLASS, "fabric", {"selectors": [{"cel": {"expression": f'device.driver == "{FABRIC}"'}}]})
    ten = "[0,1,2,3,4,5,6,7,8,9]"
    loops = f'{ten}.all(a, {ten}.all(b, {ten}.all(c, a + b + c >= 0))) && device.attributes["{FABRIC}"].at >= 0'
    await scene.create(kinds.RESOURCE_CLAIM, "costly", {"devices": {"requests": [{"name": "it", "exactly": {
        "deviceClassName": "fabric", "selectors": [{"cel": {"expression": loops}}]}}]}})
    await scene.create(kinds.POD, "one", {"containers": [{"name": "main", "image": "main"}],
                                          "resourceClaims": [{"name": "c", "resourceClaimName": "costly"}]})
    await pod(scene, "two", {"fabric": "b"})
    assert (await settled(scene, "two"))["spec"]["nodeName"]
    one = await settled(scene, "one")
    assert rejection_conditions.of(one) == [RejectionCode.SELECTOR_BUDGET]
    assert f"claim {scene.namespace}/costly, request it: the selectors cost more than" in why(one)
    explained = explain_pod.pod(await scene.cluster_objects(), one)
    assert "the selectors cost more than" in explained.sentence
    await scene.store.patch(kinds.RESOURCE_SLICE, "rack", {"spec": {
        "devices": [{"name": "x63", "attributes": {"at": {"int": 1}}}],
        "pool": {"name": "rack/one", "generation": 2, "resourceSliceCount": 1}}})
    assert (await settled(scene, "one"))["spec"]["nodeName"]
