"""Which VMIs the device status controller looks at when a slice, a Node or a feature gate changes: not all that exist."""

from __future__ import annotations

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.controllers.device_status import DeviceStatus
from outfitter.controllers.manager import ControllerContext, ControllerManager, settle
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory

DRIVER = "pci.outfitter.dev"
HOSTS, EACH = 4, 3  # each host has EACH VMIs that wait for what its driver publishes, and EACH that run


async def add(store: Memory, kind: kinds.Kind, obj: Object) -> Object:
    made = await store.create(kind, obj)
    if "status" not in obj:
        return made
    return await store.patch(kind, made["metadata"]["name"], {"status": obj["status"]}, made["metadata"].get("namespace", ""),
                             subresource="status")


def a_slice(host: str, generation: int = 1) -> Object:
    return {"metadata": {"name": host}, "spec": {"driver": DRIVER, "nodeName": host, "devices": [{"name": "other"}],
                                                "pool": {"name": host, "generation": generation, "resourceSliceCount": 1}}}


async def vmi(store: Memory, name: str, host: str, phase: str) -> None:
    ready = {"type": "DevicesReady", "status": str(phase == "Running"), "reason": "x", "lastTransitionTime": None}
    made = await add(store, kinds.VMI, {"metadata": {"name": name, "namespace": "default"}, "spec": {"domain": {}}, "status": {
        "phase": phase, "conditions": [ready]}})
    owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name, "uid": made["metadata"]["uid"],
             "controller": True}
    place = {"name": name, "namespace": "default"}
    await add(store, kinds.POD, {
        "metadata": {**place, "ownerReferences": [owner], "labels": {"kubevirt.io": "virt-launcher"}},
        "spec": {"nodeName": host, "containers": [{"name": "c", "image": "i"}],
                 "resourceClaims": [{"name": "c", "resourceClaimName": name}]}})
    await add(store, kinds.RESOURCE_CLAIM, {"metadata": place, "spec": {"devices": {}}, "status": {
        "allocation": {"devices": {"results": [{"request": "r", "driver": DRIVER, "pool": host, "device": name}]}}}})


async def test_a_change_concerns_the_vmis_that_wait_for_it() -> None:
    store = Memory(clock=ManualClock())
    context = ControllerContext(store, clock=store.clock)
    controller = DeviceStatus(context)
    manager = ControllerManager(context, [])  # the queue shows what would be looked at
    for number in range(HOSTS):
        host = f"host-{number}"
        await add(store, kinds.RESOURCE_SLICE, a_slice(host))
        for each in range(EACH):
            await vmi(store, f"waits-{number}-{each}", host, "Scheduling")
            await vmi(store, f"runs-{number}-{each}", host, "Running")
    await manager.start()

    async def rest() -> None:
        await settle(lambda kind: store.watch_cache(kind).revision, context, [manager])

    async def looked_at() -> set[str]:
        await rest()
        keys = controller.queue.take_more(1000)
        for key in keys:
            controller.queue.done(key)
        return set(keys)

    try:
        await looked_at()  # the first lists
        await store.patch(kinds.RESOURCE_SLICE, "host-2", {"spec": {"pool": {"generation": 2}}})
        assert await looked_at() == {f"default/waits-2-{each}" for each in range(EACH)}
        await store.create(kinds.NODE, {"metadata": {"name": "host-9", "labels": {"a": "b"}}})
        waiting = {f"default/waits-{number}-{each}" for number in range(HOSTS) for each in range(EACH)}
        assert await looked_at() == waiting, "another host may reach devices by its labels"
    finally:
        await manager.stop()
        await store.close()
