"""What `outfit why` says of a pod, from the objects of a running product."""

from __future__ import annotations

from dataclasses import replace

from outfitter.api import kinds, rejection_conditions
from outfitter.api.device import DeviceId
from outfitter.scheduling.explain import pod as explain_pod
from outfitter.scheduling.explain.explanation import Explanation
from tests.controllers import scenario as scenes
from tests.controllers.pool_devices import BINDING, FABRIC, GPU, pod, publish, report, settled
from tests.controllers.scenario import Scene
from tests.rejected import Code, no


def contains(line: str, *words: str) -> bool:
    return all(word in line for word in words)


async def answer(scene: Scene, name: str) -> Explanation:
    """The answer of `outfit why` for a pod."""
    there = await settled(scene, name)
    return explain_pod.pod(replace(await scene.cluster_objects(), now=scene.product.context.clock.now()), there)


async def test_why_reports_binding_conditions(scene: Scene) -> None:
    await publish(scene, "x0", **BINDING)
    await pod(scene, "one", {"fabric": "a"})
    first = (await settled(scene, "one"))["status"]["nominatedNodeName"]
    found = await answer(scene, "one")
    assert found.rejections == (no(Code.DEVICE_NOT_READY, DeviceId(FABRIC, "rack/one", "x0"), condition="Attached"),)
    assert first in found.sentence
    assert [(first in line, "x0" in line) for line in found.lines] == [(True, True)]
    assert [FABRIC in line for line in found.todo] == [True]
    assert rejection_conditions.of(await settled(scene, "one")) == [Code.DEVICE_NOT_READY]
    other = next(host.name for host in scene.product.hosts if host.name != first)
    await scene.store.patch(kinds.NODE, other, {"spec": {"unschedulable": True}})
    await report(scene, "a", "Broken")
    assert set(rejection_conditions.of(await settled(scene, "one"))) == {Code.HOST_EXCLUDED, Code.NODE_CORDONED}
    found = await answer(scene, "one")
    assert found.waiting is not None, "not: it is about to be given the same host again"
    [excluded] = dict(found.waiting.hosts)[first].rejections
    assert (excluded.code, "rack/one/x0" in excluded["message"]) == (Code.HOST_EXCLUDED, True)
    assert scene.clock is not None
    scene.clock.advance(61)
    assert (await settled(scene, "one"))["status"]["nominatedNodeName"] == first
    await report(scene, "a", "Attached")
    assert (await answer(scene, "one")).state == "Running"
    assert rejection_conditions.of(await settled(scene, "one")) == []


async def test_why_reports_pre_assigned_devices(scene: Scene) -> None:
    await scene.classes()
    await scene.store.patch(kinds.DEVICE_CLASS, scene.namespace, {"spec": {"extendedResourceName": GPU}})
    chosen = f"{scene.host.name}/pci-0000-3b-00-0-vf1"
    for name in ("one", "two", "three"):
        await pod(scene, name, assignedDevices=[{"resourceName": GPU, "deviceIDs": [chosen]}])
    for name in ("two", "three"):
        found = await answer(scene, name)
        assert found.waiting is not None
        [held] = found.waiting.rejections
        assert (held.code, held["id"], held.holder and held.holder.purpose) == (Code.HELD, chosen, "pod/one")
        assert any(chosen in line and "pod/one" in line for line in found.lines), found.lines
    await scene.delete(kinds.POD, "one")
    assert (await settled(scene, "two"))["spec"]["nodeName"] == scene.host.name, "of two who name it the first to come"
    assert not (await settled(scene, "three"))["spec"].get("nodeName")


async def test_why_names_a_stopped_vm_that_keeps_its_device() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        domain = {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [scenes.device()]}}
        await scene.create(kinds.VM, "amber", {
            "runStrategy": "Always", "resourceClaimTemplates": [{"name": "network", "spec": {"spec": scene.claim_spec()}}],
            "template": {"spec": {"domain": domain}}})
        await scene.running("amber")
        await pod(scene, "one", {scene.namespace: "a"})
        assert contains((await answer(scene, "one")).todo[-1], scene.host.name, "vmi/amber")
        await scene.store.patch(kinds.VM, "amber", {"spec": {"runStrategy": "Halted"}}, scene.namespace)
        await scene.gone("amber")
        [claim] = [one["metadata"]["name"] for one in await scene.all(kinds.RESOURCE_CLAIM)
                   if one["metadata"].get("ownerReferences")]
        assert contains((await answer(scene, "one")).todo[-1], scene.host.name,
                        f"kubectl delete resourceclaim {claim} -n here", "vm/amber")
        await scene.delete(kinds.RESOURCE_CLAIM, claim)
        assert (await settled(scene, "one"))["spec"]["nodeName"] == scene.host.name


async def test_why_names_the_holder_of_a_device_of_a_pool_without_a_host(scene: Scene) -> None:
    await publish(scene, "x0")
    for name in ("one", "two"):
        await pod(scene, name, {"fabric": f"claim-{name}"})
    hosts = [host.name for host in scene.product.hosts]
    todo = (await answer(scene, "two")).todo
    assert [contains(line, host, "pod/one") for line, host in zip(todo, hosts, strict=True)] == [True, True]
    await scene.create(kinds.RESOURCE_CLAIM, "many", {"devices": {"requests": [
        {"name": "it", "exactly": {"deviceClassName": "fabric", "count": 2}}]}})
    await scene.create(kinds.POD, "three", {"containers": [{"name": "main"}], "resourceClaims": [
        {"name": "many", "resourceClaimName": "many"}]})
    assert not [line for line in (await answer(scene, "three")).todo if "pod/one" in line]
    await scene.delete(kinds.POD, "one")
    assert (await settled(scene, "two"))["spec"]["nodeName"] in hosts
