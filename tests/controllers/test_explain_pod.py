"""What `outfit why` says of a pod, from the objects of a running product."""

from __future__ import annotations

from dataclasses import replace

from outfitter.api import kinds
from outfitter.scheduling.explain import pod as explain_pod
from tests.controllers import scenario as scenes
from tests.controllers.pool_devices import BINDING, FABRIC, GPU, pod, publish, report, settled, why
from tests.controllers.scenario import Scene


async def told(scene: Scene, name: str) -> list[str]:
    """What `outfit why` says of a pod."""
    there = await settled(scene, name)
    found = explain_pod.pod(replace(await scene.facts(), now=scene.product.context.clock.now()), there)
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
        await scene.create(kinds.VM, "amber", {
            "runStrategy": "Always", "resourceClaimTemplates": [{"name": "network", "spec": {"spec": scene.claim_spec()}}],
            "template": {"spec": {"domain": domain}}})
        await scene.running("amber")
        await pod(scene, "one", {scene.namespace: "a"})
        assert (await told(scene, "one"))[-1] == f"{scene.host.name} could take it once vmi/amber in here ends"
        await scene.store.patch(kinds.VM, "amber", {"spec": {"runStrategy": "Halted"}}, scene.namespace)
        await scene.gone("amber")
        [claim] = [one["metadata"]["name"] for one in await scene.all(kinds.RESOURCE_CLAIM)
                   if one["metadata"].get("ownerReferences")]
        assert (await told(scene, "one"))[-1] == (
            f"{scene.host.name} could take it after: kubectl delete resourceclaim {claim} -n here; or delete vm/amber in here, "
            "which is stopped and keeps its devices")
        await scene.delete(kinds.RESOURCE_CLAIM, claim)
        assert (await settled(scene, "one"))["spec"]["nodeName"] == scene.host.name


async def test_why_names_who_could_let_go_of_a_device_that_no_host_owns(scene: Scene) -> None:
    await publish(scene, "x0")
    for name in ("one", "two"):
        await pod(scene, name, {"fabric": f"claim-{name}"})
    hosts = [host.name for host in scene.product.hosts]
    assert (await told(scene, "two"))[-2:] == [f"{host} could take it once pod/one in {scene.namespace} ends" for host in hosts]
    await scene.create(kinds.RESOURCE_CLAIM, "many", {"devices": {"requests": [
        {"name": "it", "exactly": {"deviceClassName": "fabric", "count": 2}}]}})
    await scene.create(kinds.POD, "three", {"containers": [{"name": "main"}], "resourceClaims": [
        {"name": "many", "resourceClaimName": "many"}]})
    assert not [way for way in await told(scene, "three") if "could take it" in way]
    await scene.delete(kinds.POD, "one")
    assert (await settled(scene, "two"))["spec"]["nodeName"] in hosts
