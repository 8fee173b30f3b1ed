"""Every step of a VM's life can be read: as an event on the VM, its instance or its pod, and as a phase with its
time."""

from __future__ import annotations

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.launcher.simulated import Simulated
from tests.controllers import scenario as scenes
from tests.controllers.scenario import Scene, device

SHORT = {"VirtualMachine": "vm", "VirtualMachineInstance": "vmi", "Pod": "pod"}
BORN = ["vm SuccessfulCreate", "vmi SuccessfulCreate", "pod Scheduled", "pod Prepared", "vmi Started"]
GONE = ["vm SuccessfulDelete", "vmi SuccessfulDelete", "vmi Deleted"]


async def machine(scene: Scene, strategy: str = "Always") -> None:
    await scene.classes()
    await scene.template()
    await scene.create(kinds.VM, "blue", {"runStrategy": strategy, "template": {"spec": {
        "resourceClaims": [{"name": "network", "resourceClaimTemplateName": "one-vf"}],
        "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [device()]}}}}})


async def all_events(scene: Scene) -> list[Object]:
    return sorted(await scene.all(kinds.EVENT), key=lambda event: int(event["metadata"]["resourceVersion"]))


async def event_texts(scene: Scene) -> list[str]:
    return [f"{SHORT[event['involvedObject']['kind']]} {event['reason']}" for event in await all_events(scene)]


async def test_from_its_making_to_its_end() -> None:
    async with scenes.embedded(1) as scene:
        await machine(scene)
        blue = await scene.running("blue")
        pod = await scene.pod("blue")
        assert await event_texts(scene) == BORN
        [prepared] = await scene.events("Prepared")
        [name] = [entry["resourceClaimName"] for entry in pod["status"]["resourceClaimStatuses"]]
        assert prepared == f"Prepared on node-0: pci-0000-3b-00-0-vf0 for claim {name}"
        assert await scene.events("Started") == ["VirtualMachineInstance started. It has nic0 (0000:3b:01.0)."]
        assert {event["involvedObject"]["uid"] for event in await all_events(scene) if event["reason"] == "Started"} == {
            blue["metadata"]["uid"]}
        await scene.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Halted"}}, "here")
        await scene.gone("blue")
        assert (await event_texts(scene))[len(BORN):] == GONE
        assert await scene.events("Deleted") == [
            f"Signaled Deletion: stopped on node-0; the devices of {name} are released"]
        assert {event["type"] for event in await all_events(scene)} == {"Normal"}


async def test_loops_are_not_woken_for_what_they_do_nothing_about() -> None:
    """A VM of its own is nothing to the loop of VirtualMachines; claims are made once, and the rest of a pod's life does
    not matter to whoever makes them."""
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
        woken = {loop.name: loop.queue.added for loop in scene.product.runner.controllers}
        assert (woken["vm"], woken["pod_claims"]) == (0, 2)  # the pod was made, and its claim was


async def test_a_guest_that_needs_time_and_one_that_ends_by_itself() -> None:
    async with scenes.embedded(1) as scene:
        await machine(scene, "Manual")
        await scene.store.patch(kinds.VM, "blue", {"status": {"stateChangeRequests": [{"action": "Start"}]}}, "here",
                                subresource="status")
        blue = await scene.running("blue")
        hypervisor = scene.host.hypervisor
        assert isinstance(hypervisor, Simulated)
        hypervisor.simulate_end(blue["metadata"]["uid"], "the guest shut down", failed=False)
        ended = await scene.phase("blue", "Succeeded")

        async def free() -> bool:
            return not await scene.bookings()

        await scene.reach(free, "its device is free")
        assert (await event_texts(scene))[len(BORN):] == ["vmi Stopped", "vmi Released"]
        assert await scene.events("Stopped") == ["node-0: the guest shut down"]
        times = [entry["phase"] for entry in ended["status"]["phaseTransitionTimestamps"]]
        assert times == ["Pending", "Scheduling", "Scheduled", "Running", "Succeeded"]


async def test_each_phase_has_its_time() -> None:
    async with scenes.embedded(1) as scene:
        assert scene.clock is not None
        await scene.classes()
        await scene.machine("blue")
        await scene.phase("blue", "Scheduling")
        scene.clock.advance(60)
        await scene.template()
        blue = await scene.running("blue")
        times = {entry["phase"]: entry["phaseTransitionTimestamp"] for entry in blue["status"]["phaseTransitionTimestamps"]}
        assert list(times) == ["Pending", "Scheduling", "Scheduled", "Running"]
        assert times["Pending"] == blue["metadata"]["creationTimestamp"]
        assert times["Scheduling"] < times["Scheduled"] <= times["Running"]
