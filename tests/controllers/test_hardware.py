"""A function or mediated device of a host is given once, whichever drivers publish it and under how many names: refused when it
is booked where the address is known, and in any case when it is prepared."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from outfitter import app
from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.device import hardware_of
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import failed_launches, pod_claims
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.controllers.device_status import DeviceStatus
from outfitter.controllers.ledger_mirror import LedgerMirror
from outfitter.controllers.manager import ControllerContext, settle
from outfitter.controllers.vmi import VmiController
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.ledger import book
from outfitter.node.pods.pod_preparation import PREPARE_PATIENCE
from outfitter.scheduling.explain import vm as explain
from outfitter.scheduling.placement import Waiting
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from tests.controllers import scenario
from tests.controllers.scenario import Scene, embedded
from tests.ledger.unchecked_pages import UncheckedPages

OTHER = "other.example.com"  # a driver that publishes what is ours
VF = "0000:3b:01.0"  # of the host of a scene
GPU = """
hosts:
- name: node-0
  numa: [{id: 0, cpus: 0-15, memory: 64Gi}]
  pci:
  - {address: 0000:65:00.0, vendor: 10de, product: 2236, class: 030200, driver: nvidia, numa: 0, iommuGroup: 30}
  - {address: 0000:65:00.1, vendor: 10de, product: 1aef, class: 040300, numa: 0, iommuGroup: 30}
"""


def text(value: str) -> Object:
    return {"string": value}


def slice_spec(devices: Mapping[str, Object], generation: int = 1, where: Object | None = None, pool: str = "others") -> Object:
    return {"driver": OTHER, "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
            **(where or {"nodeName": "node-0"}),
            "devices": [{"name": name, "attributes": attributes} for name, attributes in devices.items()]}


async def publish(scene: Scene, devices: Mapping[str, Object], where: Object | None = None) -> None:
    """What the other driver has, a class for each device and one for all of them."""
    await scene.create(kinds.RESOURCE_SLICE, "others", slice_spec(devices, where=where))
    await scene.create(kinds.DEVICE_CLASS, "others", {"selectors": [{"cel": {"expression": f'device.driver == "{OTHER}"'}}]})


async def machine(scene: Scene, name: str, *classes: str) -> None:
    """A VM that asks for one device of each class."""
    await scene.create(kinds.RESOURCE_CLAIM_TEMPLATE, name, {"spec": {"devices": {"requests": [
        {"name": f"it-{number}", "exactly": {"deviceClassName": class_}} for number, class_ in enumerate(classes)]}}})
    await scene.machine(name, *(scenario.device(f"dev-{number}", f"it-{number}") for number in range(len(classes))),
                        template=name)


async def taken(scene: Scene, name: str) -> list[Rejection]:
    """Once a VM waits: its devices whose hardware is held under another name."""
    await scene.rejected(name, RejectionCode.TOO_FEW_FREE)
    verdict = (await scene.cluster_objects()).choose(await scene.pod(name))
    assert isinstance(verdict, Waiting)
    found = [each for _, host in verdict.hosts for each in host.taken if each.code is RejectionCode.HARDWARE_HELD]
    assert found, verdict
    return found


async def allocated(scene: Scene, vm: str) -> bool:
    """Whether a claim of a VM's own has its devices."""
    return any((claim.get("status") or {}).get("allocation") for claim in await scene.all(kinds.RESOURCE_CLAIM)
               if any(owner["name"] == vm for owner in claim["metadata"].get("ownerReferences") or ()))


async def refused(scene: Scene, name: str, why: RejectionCode = RejectionCode.HARDWARE_HELD) -> str:
    """Once the host refuses to prepare a VM's devices because of their hardware: the message."""
    async def check() -> str | None:
        found = await scene.find(kinds.VMI, name) or {}
        code = f"{rejection_conditions.PREFIX}{why}"
        return str((conditions.find(found, code) or {}).get("message") or "")

    return await scene.reach(check, f"{name} is refused at prepare")


async def launches(scene: Scene, name: str) -> list[str]:
    """Once a host has failed a VM for long enough: the hosts on which its launch failed."""
    assert scene.clock is not None
    scene.clock.advance(PREPARE_PATIENCE)

    async def check() -> list[str]:
        return [launch.host for launch in failed_launches.of(await scene.find(kinds.VMI, name) or {})]

    return await scene.reach(check, f"another host is tried for {name}")


async def explained(scene: Scene, name: str) -> str:
    """What `outfit why` prints about a VM, for people and for programs."""
    vmi = await scene.find(kinds.VMI, name)
    assert vmi is not None
    answer = explain.instance(await scene.cluster_objects(), vmi)
    return "\n".join([*answer.text(long=True, more=""), json.dumps(answer.to_object(long=True))])


async def sources(scene: Scene) -> list[str]:
    """What all domains have."""
    return sorted(source for domain in await scene.domains() for source in domain.devices)


SPELLINGS = {
    "the standard name": {"resource.kubernetes.io/pciBusID": text(VF)},
    "without a domain": {"pciBusID": text(VF)},
    "with the driver's domain": {f"{OTHER}/pciAddress": text(VF)},
    "in capitals": {"pciAddress": text(VF.upper())},
}


@pytest.mark.parametrize("attributes", SPELLINGS.values(), ids=SPELLINGS)
async def test_a_function_that_a_second_driver_publishes_is_given_once(attributes: Object) -> None:
    async with embedded(vfs=1) as scene:
        await scene.classes()
        await publish(scene, {"nic": attributes})
        await machine(scene, "blue", scene.namespace)
        await scene.running("blue")
        await machine(scene, "green", "others")
        [why] = await taken(scene, "green")
        [held] = await scene.bookings()
        assert (str(why.device), why["other"], why["hardware"]) == (f"{OTHER}/others/nic", str(held.device), (VF,))
        assert why.holder == held.holder
        assert held.holder.purpose == "vmi/blue"
        assert "HardwareHeld" in await explained(scene, "green")
        await scene.delete(kinds.VMI, "blue")
        await scene.running("green")
        await machine(scene, "red", scene.namespace)  # and the other way round
        [why] = await taken(scene, "red")
        assert (why["other"], getattr(why.holder, "purpose", "")) == (f"{OTHER}/others/nic", "vmi/green")
        assert await sources(scene) in ([VF], [VF.upper()])


async def test_a_function_that_a_driver_publishes_twice_is_given_once() -> None:
    async with embedded(vfs=0) as scene:
        await publish(scene, {name: {"pciAddress": text("0000:77:00.0")} for name in ("one", "two", "three")})
        for name in ("blue", "green", "red"):
            await machine(scene, name, "others")
        await scene.settle()
        assert await sources(scene) == ["0000:77:00.0"]
        assert len(await scene.bookings()) == 1


async def test_one_vm_does_not_get_two_names_of_one_function() -> None:
    async with embedded(vfs=1) as scene:
        await scene.classes()
        await publish(scene, {"nic": {"pciAddress": text(VF)}})
        await machine(scene, "blue", scene.namespace, "others")
        [why] = await scene.rejected("blue", RejectionCode.SAME_HARDWARE)
        assert list(why["hardware"]) == [VF]
        assert f"{OTHER}/others/nic" in why["hardware"][VF]
        assert await scene.bookings() == []


async def test_admin_access_and_other_functions_are_not_concerned() -> None:
    async with embedded(vfs=2) as scene:
        await scene.classes()
        await publish(scene, {"nic": {"pciAddress": text(VF)}, "else": {"pciAddress": text("0000:99:00.0")}})
        await machine(scene, "blue", scene.namespace, scene.namespace)
        await scene.running("blue")
        await machine(scene, "green", "others")  # the one that is not ours
        await scene.running("green")
        assert len(await sources(scene)) == 3
        assert "0000:99:00.0" in await sources(scene)


async def test_a_member_of_an_iommu_group_is_held_with_its_group() -> None:
    async with devices_of(GPU) as scene:
        await publish(scene, {"sound": {"pciAddress": text("0000:65:00.1")}})
        await machine(scene, "blue", "ours")
        await scene.running("blue")
        await machine(scene, "green", "others")
        [why] = await taken(scene, "green")
        assert why["hardware"] == ("0000:65:00.1",)


async def test_functions_of_a_group_that_only_the_host_knows_are_refused_at_prepare() -> None:
    async with devices_of(GPU, "device_spec: []") as scene:  # nothing of it is published by us
        await publish(scene, {"gpu": {"pciAddress": text("0000:65:00.0")}, "sound": {"pciAddress": text("0000:65:00.1")}})
        await machine(scene, "blue", "others")
        await scene.running("blue")
        await machine(scene, "green", "others")  # by now the page knows the group
        await taken(scene, "green")
        await scene.delete(kinds.VMI, "blue")
        await scene.running("green")
        await scene.delete(kinds.VMI, "green")
        await scene.empty()
        for name in ("red", "grey"):  # both are booked before one is prepared
            await machine(scene, name, "others")
        await scene.settle()
        [running] = [vmi["metadata"]["name"] for vmi in await scene.all(kinds.VMI) if vmi["status"]["phase"] == "Running"]
        assert f"vmi/{running}" in await refused(scene, "grey" if running == "red" else "red")
        assert len(await sources(scene)) == 1


async def test_a_device_of_a_pool_without_a_host_is_compared_on_the_host_that_uses_it() -> None:
    async with embedded(vfs=1) as scene:
        await scene.classes()
        await publish(scene, {"nic": {"pciAddress": text(VF)}}, where={"allNodes": True})
        await machine(scene, "blue", "others")
        await scene.running("blue")
        await machine(scene, "green", scene.namespace)
        await taken(scene, "green")
        await scene.delete(kinds.VMI, "blue")
        await scene.running("green")
        await machine(scene, "red", "others")
        await taken(scene, "red")
        assert await sources(scene) == [VF]


async def test_an_address_that_is_published_late_is_refused_at_prepare() -> None:
    """The scheduler cannot know: the VM with the other name has its host before the address is known."""
    async with embedded(vfs=1) as scene:
        await scene.classes()
        await publish(scene, {"nic": {}})
        await machine(scene, "green", "others")
        await machine(scene, "blue", scene.namespace)
        await scene.running("blue")
        await scene.store.patch(kinds.RESOURCE_SLICE, "others", {"spec": slice_spec({"nic": {"pciAddress": text(VF)}}, 2)})

        message = await refused(scene, "green")
        assert all(word in message for word in ("nic", VF, f"{scene.driver}/node-0/pci-0000-3b-00-0-vf0", "vmi/blue"))
        assert f"the same hardware ({VF}) as {scene.driver}/node-0/pci-0000-3b-00-0-vf0" in await explained(scene, "green")
        assert await sources(scene) == [VF]
        await scene.delete(kinds.VMI, "blue")
        await scene.running("green")
        assert await sources(scene) == [VF]


async def test_a_stopped_vm_whose_device_runs_elsewhere_under_another_name_waits_for_it() -> None:
    """It keeps its claim, whose address is published late: it is not started to fail, again and again."""
    async with embedded(vfs=1) as scene:
        await scene.classes()
        await publish(scene, {"nic": {}})
        claim = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "others"}}]}}
        await scene.create(kinds.VM, "amber", {
            "runStrategy": "Always", "resourceClaimTemplates": [{"name": "network", "spec": {"spec": claim}}],
            "template": {"spec": {"domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [scenario.device()]}}}}})
        await scene.reach(lambda: allocated(scene, "amber"), "amber's claim is allocated")
        await scene.store.patch(kinds.VM, "amber", {"spec": {"runStrategy": "Halted"}}, scene.namespace)
        await scene.gone("amber")
        await machine(scene, "blue", scene.namespace)
        await scene.running("blue")
        await scene.store.patch(kinds.RESOURCE_SLICE, "others", {"spec": slice_spec({"nic": {"pciAddress": text(VF)}}, 2)})
        await scene.store.patch(kinds.VM, "amber", {"spec": {"runStrategy": "Always"}}, scene.namespace)

        [why] = await scene.rejected("amber", RejectionCode.HARDWARE_HELD)
        assert (why.holder and why.holder.purpose, why["hardware"]) == ("vmi/blue", (VF,))
        assert not (await scene.pod("amber"))["spec"].get("nodeName"), "nothing was tried that cannot work"
        assert f"the same hardware ({VF}) as {scene.driver}/node-0/pci-0000-3b-00-0-vf0" in await explained(scene, "amber")
        await scene.delete(kinds.VMI, "blue")
        await scene.running("amber")
        assert await sources(scene) == [VF]


async def test_partitions_of_one_function_do_not_run_in_two_vms() -> None:
    """Their driver lets pods share the card by counters; a VM gets the whole function."""
    async with embedded(vfs=0) as scene:
        pool = {"driver": OTHER, "nodeName": "node-0", "pool": {"name": "others", "generation": 1, "resourceSliceCount": 2}}
        takes = [{"counterSet": "card", "counters": {"slots": {"value": "1"}}}]
        await scene.create(kinds.RESOURCE_SLICE, "counters", {
            **pool, "sharedCounters": [{"name": "card", "counters": {"slots": {"value": "2"}}}]})
        await scene.create(kinds.RESOURCE_SLICE, "halves", {**pool, "devices": [
            {"name": name, "attributes": {"pciAddress": text("0000:99:00.0")}, "consumesCounters": takes}
            for name in ("half-0", "half-1")]})
        await scene.create(kinds.DEVICE_CLASS, "others", {"selectors": [{"cel": {
            "expression": f'device.driver == "{OTHER}"'}}]})
        await machine(scene, "blue", "others")
        await scene.running("blue")
        await machine(scene, "green", "others")
        message = await refused(scene, "green", RejectionCode.DEVICE_IN_USE)
        assert all(word in message for word in ("0000:99:00.0", "here_blue"))
        assert await sources(scene) == ["0000:99:00.0"]
        assert await launches(scene, "green") == ["node-0"]
        await scene.delete(kinds.VMI, "blue")
        assert scene.clock is not None
        scene.clock.advance(60)  # until then the host is not tried again
        await scene.running("green")


async def test_two_names_in_one_claim_that_turn_out_to_be_one_function_are_refused_at_start() -> None:
    """The VM is not failed for good: on another host the two are two."""
    async with embedded(vfs=0) as scene:
        await publish(scene, {"one": {}, "two": {}})
        await machine(scene, "green", "others", "others")
        await scene.settle()
        both = {name: {"pciAddress": text(VF)} for name in ("one", "two")}
        await scene.store.patch(kinds.RESOURCE_SLICE, "others", {"spec": slice_spec(both, 2)})
        message = await refused(scene, "green")
        assert all(word in message for word in ("one", "two", VF))
        assert await sources(scene) == []
        assert await launches(scene, "green") == ["node-0"]


async def test_two_names_of_one_function_whose_driver_withdrew_the_address_are_refused_at_start() -> None:
    """The status keeps the address that was published, which is what the domain would get."""
    async with embedded(vfs=0) as scene:
        await publish(scene, {"one": {}, "two": {}})
        await machine(scene, "green", "others", "others")
        await scene.settle()
        [claim] = await scene.all(kinds.RESOURCE_CLAIM)
        entries = [{"name": f"dev-{number}", "deviceResourceClaimStatus": {
            "resourceClaimName": claim["metadata"]["name"], "driver": OTHER, "pool": "others", "name": result["device"],
            "attributes": {"pciAddress": VF}}} for number, result in enumerate(pod_claims.allocation_results(claim))]
        await scene.store.patch(kinds.VMI, "green", {"status": {"deviceStatus": {"hostDeviceStatuses": entries}}},
                                scene.namespace, subresource="status")
        message = await refused(scene, "green")
        assert all(word in message for word in ("one", "two", VF))
        assert await sources(scene) == []
        assert await launches(scene, "green") == ["node-0"]


async def test_mediated_devices_by_their_uuid() -> None:
    uuid = "2a3f6c1e-0000-4000-8000-000000000001"
    assert hardware_of({"attributes": {"mdevUUID": text(uuid.upper()), "pciBusID": text(VF)}}, OTHER) == {uuid}
    async with embedded(vfs=0) as scene:
        await publish(scene, {"one": {"mdevUUID": text(uuid)}, "two": {f"{OTHER}/mDevUUID": text(uuid.upper())}})
        for name in ("blue", "green"):
            await machine(scene, name, "others")
        await scene.settle()
        assert len(await scene.domains()) == 1


@contextlib.asynccontextmanager
async def devices_of(hosts: str, settings: str = "device_spec: [{vendor_id: 10de}]") -> AsyncIterator[Scene]:
    simulated = app.simulated_hosts(hosts_file.parse(hosts, "test").hosts, config=config.parse(settings))
    async with app.embedded(hosts=simulated, clock=ManualClock(), names=IdGenerator(random.Random(1))) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        scene = Scene(product, "here", product.context.clock)  # type: ignore[arg-type]
        await scene.create(kinds.DEVICE_CLASS, "ours", {"selectors": [{"cel": {
            "expression": f'device.driver == "{scene.driver}"'}}]})
        yield scene


async def test_what_is_recorded_on_the_page() -> None:
    async with embedded(vfs=1) as scene:
        await scene.classes()
        await machine(scene, "blue", scene.namespace)
        await scene.running("blue")
        page: Any = (await book.read(scene.store, "node-0")).object
        assert [booking["hardware"] for booking in page["spec"]["bookings"]] == [[VF]]


# -- in a cluster, where another scheduler allocates


@dataclass
class ClusterScene(Scene):
    """The controllers of a cluster; the test allocates and binds, as kube-scheduler does."""

    async def settle(self) -> None:
        assert isinstance(self.store, Memory)
        caches = self.store.watch_cache
        await settle(lambda kind: caches(kind).revision, self.product.context, [self.product.runner])

    async def allocated(self, name: str, *devices: tuple[str, str, str], **more: Any) -> None:
        """A VM, its claim with these devices, and its pod on the host."""
        await self.create(kinds.RESOURCE_CLAIM, name, self.claim_spec(*(f"it-{number}" for number in range(len(devices)))))
        await self.machine(name, *(scenario.device(f"dev-{number}", f"it-{number}") for number in range(len(devices))),
                           claim=name)
        await self.settle()
        pod = await self.pod(name)
        user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        results = [{"request": f"it-{number}", "driver": driver, "pool": pool, "device": device, **more}
                   for number, (driver, pool, device) in enumerate(devices)]
        await self.store.patch(kinds.RESOURCE_CLAIM, name, {"status": {
            "allocation": {"devices": {"results": results}}, "reservedFor": [user]}}, self.namespace, subresource="status")
        await self.store.patch(kinds.POD, pod["metadata"]["name"], {"spec": {"nodeName": "node-0"}}, self.namespace)


@contextlib.asynccontextmanager
async def cluster_scene(vfs: int) -> AsyncIterator[ClusterScene]:
    clock = ManualClock()
    store = Memory(clock=clock, names=IdGenerator(random.Random(1)), rules=UncheckedPages())
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
    context = ControllerContext(store, clock=clock, names=store.names)
    product = app.Product(store, scenario.hosts_of("node", vfs),
                          [VmiController(context), DeviceStatus(context), LedgerMirror(context)], context)
    await product.start()
    try:
        yield ClusterScene(product, "here", clock)
    finally:
        await product.stop()


OURS = ("node.example.com", "node-0", "pci-0000-3b-00-0-vf0")
THEIRS = (OTHER, "others", "nic")


@pytest.mark.parametrize("late", [False, True], ids=["the address is published", "the address is published late"])
async def test_a_cluster_scheduler_that_allocates_both_names(late: bool) -> None:
    async with cluster_scene(vfs=1) as scene:
        await scene.classes()
        address = {"pciAddress": text(VF)}
        await publish(scene, {"nic": {} if late else address})
        await scene.allocated("green", *([THEIRS] if late else [OURS]))
        await scene.allocated("blue", *([OURS] if late else [THEIRS]))
        await scene.settle()
        if late:
            await scene.store.patch(kinds.RESOURCE_SLICE, "others", {"spec": slice_spec({"nic": address}, 2)})
        first, second = ("blue", "green") if late else ("green", "blue")
        message = await refused(scene, second)
        assert all(word in message for word in (VF, "/".join(OURS), f"vmi/{first}"))
        await scene.running(first)
        assert await sources(scene) == [VF]
        await scene.delete(kinds.VMI, first)
        await scene.delete(kinds.RESOURCE_CLAIM, first)
        await scene.running(second)
        assert await sources(scene) == [VF]


async def test_a_cluster_scheduler_that_allocates_both_names_to_one_claim() -> None:
    async with cluster_scene(vfs=1) as scene:
        await scene.classes()
        await publish(scene, {"nic": {"pciAddress": text(VF)}})
        await scene.allocated("blue", OURS, THEIRS)
        assert "/".join(OURS) in await refused(scene, "blue")
        assert await sources(scene) == []
        assert not any(booking.state == "prepared" for booking in await scene.bookings())


async def test_admin_access_in_a_cluster_is_booked_and_holds_nothing() -> None:
    async with cluster_scene(vfs=1) as scene:
        await scene.classes()
        await scene.allocated("blue", OURS, adminAccess=True)
        await scene.running("blue")
        [booking] = await scene.bookings()
        assert (booking.amount, booking.state, booking.counted) == ({"adminAccess": True}, "prepared", False)


@pytest.mark.parametrize("how", ["edited", "deleted"])
async def test_a_page_of_a_cluster_that_loses_a_booking_by_hand_has_it_again(how: str) -> None:
    """Nothing refuses the edit there; the host knows what its VM has."""
    async with cluster_scene(vfs=1) as scene:
        await scene.classes()
        await scene.allocated("blue", OURS)
        await scene.running("blue")
        [before] = await scene.bookings()
        if how == "deleted":
            await scene.store.delete(kinds.LEDGER_PAGE, "node-0")
        else:
            await scene.store.patch(kinds.LEDGER_PAGE, "node-0", {"spec": {"bookings": []}})

        async def again() -> bool:
            return any((one.device, one.state) == (before.device, "prepared") for one in await scene.bookings())

        await scene.reach(again, "the host records what it has")
        await scene.allocated("green", OURS)

        async def waits() -> bool:
            status = (await scene.pod("green"))["status"]
            return status.get("reason") == "FailedPrepareDevices" and "held by vmi/blue" in status["message"]

        await scene.reach(waits, "green does not get it")
        assert await sources(scene) == [VF]
