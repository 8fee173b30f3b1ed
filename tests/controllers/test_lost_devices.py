"""Devices of running VMs that are gone: they left the bus, or their driver withdrew its slice. The VM goes on, and condition,
event and `outfit why` report it, until the devices are there again."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.scheduling.explain import vm as explain_vm
from outfitter.scheduling.explain.explanation import Explanation
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers import scenario as scenes
from tests.controllers.scenario import Scene, device

HOST = "hosts: [{name: node, pci: [{address: '0000:66:00.0', vendor: 144d, product: a80a, class: 010802, driver: nvme}]}]"
FAR = "gpu.example.com"
VANISHED, WITHDRAWN = str(RejectionCode.DEVICE_VANISHED), str(RejectionCode.DEVICE_NOT_PUBLISHED)


@contextlib.asynccontextmanager
async def running_vm() -> AsyncIterator[Scene]:
    """VM blue has the disk of the host and a GPU of another driver."""
    hosts = app.simulated_hosts(hosts_file.parse(HOST).hosts, None, config.parse("device_spec: [{vendor_id: 144d}]"))
    clock = ManualClock()
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random(1))) as product:
        scene = Scene(product, "here", clock)
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        for driver in ("pci.outfitter.dev", FAR):
            expression = f"device.driver == '{driver}'"
            await scene.create(kinds.DEVICE_CLASS, driver, {"selectors": [{"cel": {"expression": expression}}]})
        await publish(scene, 1)
        await scene.create(kinds.RESOURCE_CLAIM, "both", {"devices": {"requests": [
            {"name": "disk", "exactly": {"deviceClassName": "pci.outfitter.dev"}},
            {"name": "gpu", "exactly": {"deviceClassName": FAR}}]}})
        await scene.machine("blue", device("d0", "disk"), device("g0", "gpu"), claim="both")
        await scene.running("blue")
        await scene.settle()
        assert conditions.is_true(await vmi(scene), "DevicesReady")
        yield scene
        await scene.nothing_missed()
        assert len(await scene.domains()) == 1, "it runs on"


async def publish(scene: Scene, generation: int, *, devices: int = 1, count: int = 1) -> None:
    await scene.create(kinds.RESOURCE_SLICE, f"far-{generation}", {
        "driver": FAR, "nodeName": "node", "pool": {"name": "far", "generation": generation, "resourceSliceCount": count},
        "devices": [{"name": f"gpu-{number}", "attributes": {"resource.kubernetes.io/pciBusID": {
            "string": f"0000:0{number}:00.0"}}} for number in range(devices)]})


async def vmi(scene: Scene) -> Object:
    found = await scene.find(kinds.VMI, "blue")
    assert found is not None
    return found


async def ready(scene: Scene, status: str, reason: str) -> str:
    """The message of DevicesReady, once it is so."""
    async def check() -> Object | None:
        found = conditions.find(await vmi(scene), "DevicesReady") or {}
        return dict(found) if (found["status"], found["reason"]) == (status, reason) else None

    return str((await scene.reach(check, f"DevicesReady is {status}, {reason}")).get("message", ""))


async def why(scene: Scene) -> Explanation:
    return explain_vm.instance(await scene.cluster_objects(), await vmi(scene))


async def test_withdrawn_slice_is_reported_until_it_is_back() -> None:
    async with running_vm() as scene:
        writes = scenes.logged(scene.product, kinds.VMI, scene.namespace)
        status = (await vmi(scene))["status"]["deviceStatus"]
        await scene.delete(kinds.RESOURCE_SLICE, "far-1")
        message = await ready(scene, "False", WITHDRAWN)
        assert [word for word in ("g0", "gpu-0", "far", FAR) if word not in message] == []
        assert await scene.events(WITHDRAWN) == [message]
        answer = await why(scene)
        assert (answer.state, answer.codes) == ("Running", (RejectionCode.DEVICE_NOT_PUBLISHED,))
        assert any("gpu-0" in line and FAR in line for line in answer.lines)
        assert answer.todo
        assert (await vmi(scene))["status"]["deviceStatus"] == status, "what is assigned stays assigned"
        await publish(scene, 2)
        await ready(scene, "True", "DevicesKnown")
        assert (await why(scene)).codes == ()
        assert len(writes) == 2, "one for the loss, one for the return"


async def test_device_that_left_the_bus_is_reported_until_it_is_back() -> None:
    async with running_vm() as scene:
        there = scene.host.tree
        scene.host.tree = hosts_file.parse("hosts: [{name: node}]").hosts[0].tree
        await scene.product.host_audit.audit("node")
        message = await ready(scene, "False", VANISHED)
        assert [word for word in ("d0", "pci-0000-66-00-0", "node") if word not in message] == []
        assert await scene.events(VANISHED) == [message]
        assert (await why(scene)).codes == (RejectionCode.DEVICE_VANISHED,)
        await scene.delete(kinds.RESOURCE_SLICE, "far-1")

        async def both() -> bool:
            found = conditions.find(await vmi(scene), "DevicesReady") or {}
            return "d0" in found["message"] and "g0" in found["message"]

        await scene.reach(both, "both are reported")
        assert (await why(scene)).codes == (RejectionCode.DEVICE_VANISHED, RejectionCode.DEVICE_NOT_PUBLISHED)
        scene.host.tree = there
        await scene.product.host_audit.audit("node")
        await ready(scene, "False", WITHDRAWN)
        await publish(scene, 2)
        await ready(scene, "True", "DevicesKnown")
        assert len(await scene.events("DevicesKnown")) == 1
        assert (await why(scene)).codes == ()


async def test_slices_that_are_replaced_are_no_loss() -> None:
    """A driver that restarts, or replaces its slices one after the other; an incomplete pool is published still."""
    async with running_vm() as scene:
        writes = scenes.logged(scene.product, kinds.VMI, scene.namespace)
        await scene.delete(kinds.RESOURCE_SLICE, "far-1")
        await scene.settle()
        await publish(scene, 2, count=2)
        await scene.settle()
        assert scene.clock is not None
        for _ in range(5):
            scene.clock.advance(1)
            await scene.settle()
        await publish(scene, 3)
        await scene.delete(kinds.RESOURCE_SLICE, "far-2")
        await scene.settle()
        assert writes == []
        assert (await why(scene)).codes == ()
        await scene.delete(kinds.RESOURCE_SLICE, "far-3")
        await publish(scene, 4, devices=0)
        await ready(scene, "False", WITHDRAWN)
