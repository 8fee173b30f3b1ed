"""The loops of instances and their device status alone: scheduler, claims and node are simulated by the test, step by step."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from outfitter.api import admission, conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_status
from outfitter.app import Product
from outfitter.controllers.device_status import FIRST_REPORT, DeviceStatus
from outfitter.controllers.launcher_pod import pod_name
from outfitter.controllers.manager import ControllerContext, settle
from outfitter.controllers.plugged_devices import running_interfaces
from outfitter.controllers.vmi import VmiController
from outfitter.errors import Cause
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from tests.controllers.scenario import addresses, device

DRIVER = "gpu.example.com"
MINE = ({"name": "network", "resourceClaimName": "mine"},)


@dataclass
class Desk:
    product: Product
    store: Memory
    clock: ManualClock

    async def settle(self) -> None:
        for _ in range(4):
            await settle(lambda kind: self.store.watch_cache(kind).revision, self.product.context, [self.product.runner])
            self.clock.advance(1)

    async def wait(self) -> None:
        """Until a VMI that waits reports what for, though no scheduler does."""
        await self.settle()
        self.clock.advance(FIRST_REPORT.total_seconds())
        await self.settle()

    async def machine(self) -> Object:
        await self.settle()
        return await self.store.get(kinds.VMI, "blue", "default")

    async def create(self, claims: Sequence[Object] = MINE, **domain: object) -> Object:
        return await self.store.create(kinds.VMI, {"metadata": {"name": "blue", "namespace": "default"}, "spec": {
            "resourceClaims": list(claims),
            "domain": {"devices": {"hostDevices": [device()]}, **domain}}})

    async def claim(self) -> None:
        await self.store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "mine", "namespace": "default"}, "spec": {
            "devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "any"}}]}}})

    async def deallocate(self) -> None:
        await self.store.patch(kinds.RESOURCE_CLAIM, "mine", {"status": {"allocation": None}}, "default", subresource="status")

    async def allocate(self, *devices: str) -> None:
        await self.store.patch(kinds.RESOURCE_CLAIM, "mine", {"status": {"allocation": {"devices": {"results": [
            {"request": "nic", "driver": DRIVER, "pool": "far", "device": name} for name in devices]}}}}, "default",
            subresource="status")

    async def bind(self) -> None:
        name = pod_name(await self.store.get(kinds.VMI, "blue", "default"))
        await self.store.patch(kinds.POD, name, {"spec": {"nodeName": "far"}}, "default")

    async def given(self, *devices: str) -> None:
        """A VM whose claim has these devices, and whose pod has a host."""
        await self.create()
        await self.claim()
        await self.allocate(*devices)
        await self.settle()
        await self.bind()

    async def publish(self, generation: int, devices: dict[str, Object], count: int = 1, **more: object) -> None:
        await self.store.create(kinds.RESOURCE_SLICE, {"metadata": {"name": f"far-{generation}"}, "spec": {
            "driver": DRIVER, "nodeName": "far", "pool": {"name": "far", "generation": generation, "resourceSliceCount": count},
            "devices": [{"name": name, "attributes": attributes} for name, attributes in devices.items()], **more}})


@contextlib.asynccontextmanager
async def desk(rules: admission.AdmissionRules | None = None) -> AsyncIterator[Desk]:
    clock = ManualClock()
    store = Memory(clock=clock, names=IdGenerator(random.Random(1)), rules=rules or admission.AdmissionRules())
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "default"}})
    context = ControllerContext(store, clock=clock, names=store.names)
    product = Product(store, [], [VmiController(context), DeviceStatus(context)], context)
    await product.start()
    try:
        yield Desk(product, store, clock)
    finally:
        await product.stop()


def address(text: str) -> Object:
    return {"resource.kubernetes.io/pciBusID": {"string": text}}


async def test_a_bound_pod_whose_device_is_not_published_waits_in_peace() -> None:
    async with desk() as here:
        await here.given("gpu-0")
        blue = await here.machine()
        found = conditions.find(blue, "DevicesReady")
        assert found is not None
        assert found["message"] == f"nic0: {DRIVER} has not published device gpu-0 of pool far"
        assert device_status.missing_devices(blue) == ["nic0"]
        [entry] = device_status.statuses(blue, "hostDevices")
        assert entry["deviceResourceClaimStatus"]["name"] == "gpu-0"
        assert entry["deviceResourceClaimStatus"]["attributes"] == {}
        revision = here.store.watch_cache(kinds.VMI).revision
        await here.settle()
        assert here.store.watch_cache(kinds.VMI).revision == revision, "two loops rewrite the same list for ever"
        await here.publish(1, {"gpu-0": address("0000:65:00.0")})
        blue = await here.machine()
        assert addresses(blue) == ["0000:65:00.0"]
        assert conditions.is_true(blue, "DevicesReady")


async def test_incomplete_pool_and_device_without_address_are_reported() -> None:
    async with desk() as here:
        await here.given("gpu-0")
        await here.publish(1, {"gpu-0": address("0000:65:00.0")}, count=2)
        assert "has not published" in str(conditions.find(await here.machine(), "DevicesReady"))
        await here.publish(2, {"gpu-0": {"pcieRoot": {"string": "pci0000:64"}}})
        assert "has neither a PCI address nor a mediated device's UUID" in str(
            conditions.find(await here.machine(), "DevicesReady"))
        await here.publish(3, {"gpu-0": {"mdevUUID": {"string": "5f7fd9a8-6a3f-4f6c-8ee8-1d2b3c4d5e6f"},
                                         **address("0000:65:00.0")}})
        [entry] = (await here.machine())["status"]["deviceStatus"]["hostDeviceStatuses"]
        assert entry["deviceResourceClaimStatus"]["attributes"] == {
            "pciAddress": "0000:65:00.0", "mdevUUID": "5f7fd9a8-6a3f-4f6c-8ee8-1d2b3c4d5e6f"}


async def test_changed_address_is_followed_until_the_vmi_runs() -> None:
    """Addresses move when a card is added to a host. A device that is not published for a moment stays where it was."""
    async with desk() as here:
        await here.create()
        await here.claim()
        await here.allocate("gpu-0")
        await here.settle()
        await here.bind()
        await here.publish(1, {"gpu-0": address("0000:65:00.0")})
        assert addresses(await here.machine()) == ["0000:65:00.0"]
        await here.publish(2, {"gpu-0": address("0000:66:00.0")})
        assert addresses(await here.machine()) == ["0000:66:00.0"]
        await here.publish(3, {"gpu-1": address("0000:67:00.0")})
        blue = await here.machine()
        assert addresses(blue) == ["0000:66:00.0"]
        assert conditions.is_true(blue, "DevicesReady")
        await here.store.patch(kinds.VMI, "blue", {"status": {"phase": "Running"}}, "default", subresource="status")
        await here.publish(4, {"gpu-0": address("0000:68:00.0")})
        assert addresses(await here.machine()) == ["0000:66:00.0"], "what is assigned stays assigned"


async def test_a_host_that_gets_the_label_of_a_slice_reaches_its_devices() -> None:
    async with desk() as here:
        await here.given("gpu-0")
        await here.store.create(kinds.NODE, {"metadata": {"name": "far", "labels": {"rack": "r2"}}})
        await here.publish(1, {"gpu-0": address("0000:65:00.0")}, nodeName=None, nodeSelector={"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}]})
        found = conditions.find(await here.machine(), "DevicesReady")
        assert found is not None
        assert found["message"] == f"nic0: {DRIVER} has not published device gpu-0 of pool far for far"
        await here.store.patch(kinds.NODE, "far", {"metadata": {"labels": {"rack": "r1"}}})
        assert addresses(await here.machine()) == ["0000:65:00.0"]


@pytest.mark.parametrize(("user", "shown"), [
    ({"resource": "pods", "name": "other", "uid": "u1"}, False),
    ({"resource": "podgroups", "apiGroup": "scheduling.k8s.io", "name": "gang", "uid": "u2"}, True),
])
async def test_whose_a_claim_is(user: Object, shown: bool) -> None:
    """What another pod has is not shown as this host's; of a group its pod may be a part."""
    async with desk() as here:
        await here.create()
        await here.claim()
        await here.allocate("gpu-0")
        await here.store.patch(kinds.RESOURCE_CLAIM, "mine", {"status": {"reservedFor": [user]}}, "default",
                               subresource="status")
        await here.publish(1, {"gpu-0": address("0000:65:00.0")})
        await here.settle()
        await here.bind()
        blue = await here.machine()
        if shown:
            assert addresses(blue) == ["0000:65:00.0"]
        else:
            assert "claim mine is not given to it yet" in str(conditions.find(blue, "DevicesReady"))
            assert device_status.missing_devices(blue) == ["nic0"]


async def test_pod_without_a_scheduler_is_explained_after_a_while() -> None:
    async with desk() as here:
        await here.create()
        assert conditions.find(await here.machine(), "DevicesReady") is None
        await here.wait()
        blue = await here.machine()
        found = conditions.find(blue, "DevicesReady")
        assert found is not None
        assert found["message"] == "nic0: claim mine does not exist"
        await here.claim()
        found = conditions.find(await here.machine(), "DevicesReady")
        assert found is not None
        assert found["message"] == "nic0: claim mine has no devices yet"


async def test_a_pod_that_is_scheduled_at_once_costs_one_patch() -> None:
    async with desk() as here:
        await here.claim()
        await here.publish(1, {"gpu-0": address("0000:65:00.0")})
        await here.create()
        await settle(lambda kind: here.store.watch_cache(kind).revision, here.product.context, [here.product.runner])
        await here.allocate("gpu-0")
        await here.bind()
        await here.settle()
        states = [step.next.object() for step in here.store.watch_cache(kinds.VMI).log if step.next]
        told = [conditions.find(state, "DevicesReady") for state in states]
        assert [entry for index, entry in enumerate(told) if entry and told[index - 1] != entry] == [told[-1]]
        assert conditions.is_true(states[-1], "DevicesReady")


async def test_a_status_that_was_lost_is_written_again() -> None:
    async with desk() as here:
        await here.publish(1, {"gpu-0": address("0000:65:00.0")})
        await here.given("gpu-0")
        told = (await here.machine())["status"]["deviceStatus"]
        await here.store.patch(kinds.VMI, "blue", {"status": {"deviceStatus": None}}, "default", subresource="status")
        assert (await here.machine())["status"]["deviceStatus"] == told


async def test_what_is_missing_on_the_way_costs_no_patch() -> None:
    """It waited so long that this was said; then all comes, one after the other."""
    async with desk() as here:
        async def rest() -> None:
            await settle(lambda kind: here.store.watch_cache(kind).revision, here.product.context, [here.product.runner])

        await here.publish(1, {"gpu-0": address("0000:65:00.0")})
        await here.create()
        await here.wait()
        assert "claim mine does not exist" in str(conditions.find(await here.machine(), "DevicesReady"))
        for step in (here.claim(), here.allocate("gpu-0"), here.bind()):
            await step
            await rest()
        states = [step.next.object() for step in here.store.watch_cache(kinds.VMI).log if step.next]
        told = [str(conditions.find(state, "DevicesReady")) for state in states]
        assert len({each for each in told if each != "None"}) == 2, told
        assert conditions.is_true(states[-1], "DevicesReady")


async def test_what_an_earlier_pod_got_is_not_what_the_next_one_gets() -> None:
    """A launcher pod that went before the VM ran is made again, and may get another device elsewhere."""
    async with desk() as here:
        await here.claim()
        await here.publish(1, {"gpu-0": address("0000:65:00.0"), "gpu-1": address("0000:66:00.0")})
        made = await here.create()
        await here.settle()
        await here.allocate("gpu-0")
        await here.bind()
        assert addresses(await here.machine()) == ["0000:65:00.0"]
        await here.store.delete(kinds.POD, pod_name(made), "default", grace=0)
        await here.settle()
        await here.deallocate()
        await here.allocate("gpu-1")
        await here.bind()
        assert addresses(await here.machine()) == ["0000:66:00.0"]


@pytest.mark.parametrize("published", [True, False], ids=["it was ready", "it was not published"])
async def test_released_device_is_not_in_the_status_of_the_next_pod(published: bool) -> None:
    """The pod went before the VM ran, and the template of its claim with it."""
    async with desk() as here:
        await here.claim()
        if published:
            await here.publish(1, {"gpu-0": address("0000:65:00.0")})
        made = await here.create(claims=[{"name": "network", "resourceClaimTemplateName": "gone"}])
        await here.settle()
        await here.store.patch(kinds.POD, pod_name(made), {"status": {"resourceClaimStatuses": [
            {"name": "network", "resourceClaimName": "mine"}]}}, "default", subresource="status")
        await here.allocate("gpu-0")
        await here.bind()
        before = await here.machine()
        assert conditions.is_true(before, "DevicesReady") == published
        assert [one["deviceResourceClaimStatus"]["name"] for one in device_status.statuses(before, "hostDevices")] == ["gpu-0"]
        await here.store.delete(kinds.POD, pod_name(made), "default", grace=0)
        await here.settle()
        revision = here.store.watch_cache(kinds.VMI).revision
        await here.store.patch(kinds.POD, pod_name(made), {"status": {"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "it has no claim"}]}}, "default",
            subresource="status")
        after = await here.machine()
        assert "deviceStatus" not in after["status"]
        found = conditions.find(after, "DevicesReady") or {}
        assert (found["status"], found["message"]) == ("False", "nic0: claim network has not been made yet")
        writes = [step for step in here.store.watch_cache(kinds.VMI).log if step.next and step.next.revision > revision]
        assert len(writes) <= 2, "one for what the pod says, and one for the devices"


async def test_device_status_of_a_running_vmi_is_kept() -> None:
    async with desk() as here:
        await here.claim()
        await here.publish(1, {"gpu-0": address("0000:65:00.0"), "gpu-1": address("0000:66:00.0")})
        await here.create()
        await here.settle()
        await here.allocate("gpu-0")
        await here.bind()
        await here.settle()
        await here.store.patch(kinds.VMI, "blue", {"status": {"phase": "Running"}}, "default", subresource="status")
        await here.deallocate()
        await here.allocate("gpu-1")
        await here.publish(2, {"gpu-0": address("0000:99:00.0")})
        assert addresses(await here.machine()) == ["0000:65:00.0"]


async def test_terminated_pod_ends_the_vmi_with_its_reason() -> None:
    async with desk() as here:
        made = await here.create()
        await here.settle()
        change = {"status": {"phase": "Failed", "reason": "DomainGone", "message": "the VM no longer runs on far"}}
        await here.store.patch(kinds.POD, pod_name(made), change, "default", subresource="status")
        blue = await here.machine()
        assert blue["status"]["phase"] == "Failed"
        found = conditions.find(blue, "Ready")
        assert found is not None
        assert (found["status"], found["reason"]) == ("False", "DomainGone")
        assert found["message"] == "the VM no longer runs on far"


async def test_started_vmi_is_not_moved_to_a_later_pod() -> None:
    """A process that did not know yet how far the VM was made it, and then the VM's own pod went."""
    async with desk() as here:
        await here.given("gpu-0")
        await here.settle()
        [own] = (await here.store.list(kinds.POD)).items
        await here.store.patch(kinds.VMI, "blue", {"status": {
            "phase": "Running", "activePods": {own["metadata"]["uid"]: "far"}}}, "default", subresource="status")
        meta = {key: own["metadata"][key] for key in ("namespace", "labels", "annotations", "ownerReferences")}
        await here.store.create(kinds.POD, {**own, "metadata": {**meta, "name": "later"}, "status": {}})
        await here.store.delete(kinds.POD, own["metadata"]["name"], "default", grace=0)
        blue = await here.machine()
        assert blue["status"]["phase"] == "Failed"
        assert (conditions.find(blue, "Ready") or {})["message"] == "its pod is gone"


async def test_rejected_pod_is_reported_on_the_vmi() -> None:
    def closed(pod: Mapping[str, Any]) -> Iterator[Cause]:
        yield Cause("spec.containers", "Forbidden: no pods today")

    async with desk(admission.AdmissionRules({kinds.POD: closed})) as here:
        await here.store.create(kinds.VMI, {"metadata": {"name": "blue", "namespace": "default"}, "spec": {"domain": {}}})
        blue = await here.machine()
        found = conditions.find(blue, "Synchronized")
        assert found is not None
        assert found["reason"] == "FailedCreate"
        assert "spec.containers: Forbidden: no pods today" in found["message"]
        assert not (await here.store.list(kinds.POD)).items


async def test_long_names_make_good_pods() -> None:
    async with desk() as here:
        name = "a" * 42 + "." + "b" * 19 + "-" + "c" * 60
        await here.store.create(kinds.VMI, {"metadata": {"name": name, "namespace": "default"}, "spec": {"domain": {}}})
        await here.settle()
        assert len((await here.store.list(kinds.POD)).items) == 1


async def test_whole_card_of_a_vmi_with_guest_numa_nodes() -> None:
    published = {**address("0000:65:00.0"), "resource.kubernetes.io/numaNode": {"int": 1},
                 f"{DRIVER}/members2": {"string": "0000:65:00.2"}, "members": {"string": "0000:65:00.0,0000:65:00.1"}}
    members = ["0000:65:00.0", "0000:65:00.1", "0000:65:00.2"]
    shown: Object = {"cpu": {"numa": {"guestMappingPassthrough": {}}}}
    for domain, more in (({}, {}), (shown, {"numaNode": 1})):
        async with desk() as here:
            await here.create(**domain)
            await here.claim()
            await here.allocate("gpu-0")
            await here.settle()
            await here.bind()
            await here.publish(1, {"gpu-0": published})
            [entry] = (await here.machine())["status"]["deviceStatus"]["hostDeviceStatuses"]
            attributes = entry["deviceResourceClaimStatus"]["attributes"]
            assert attributes == {"pciAddress": "0000:65:00.0", "members": members, **more}


async def plug(here: Desk, name: str, **functions: str) -> None:
    """What a network plugin says of the pod's networks."""
    told = [{"network": network, "deviceInfo": {"type": "pci", "pci": {"pci-address": address}}}
            for network, address in functions.items()]
    await here.store.patch(kinds.POD, name, {"metadata": {"annotations": {
        "kubevirt.io/network-info": json.dumps({"interfaces": told})}}}, "default")


async def test_network_cards_whose_function_came_from_a_claim() -> None:
    """Of three cards one has a function of the claim that the scheduler made, one that of a claim of the VM's own, and one
    something that was not published."""
    async with desk() as here:
        await here.claim()
        await here.publish(1, {"gpu-0": address("0000:65:00.0"), "vf-0": address("0000:3b:01.0"),
                               "vf-1": address("0000:3b:01.1")})
        made = await here.create()
        await here.settle()
        name = pod_name(made)
        await here.store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "counted", "namespace": "default"}, "spec": {
            "devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any", "count": 2}}]}}})
        await here.store.patch(kinds.RESOURCE_CLAIM, "counted", {"status": {"allocation": {"devices": {"results": [
            {"request": "r", "driver": DRIVER, "pool": "far", "device": each} for each in ("vf-0", "vf-1")]}}}}, "default",
            subresource="status")
        await here.store.patch(kinds.POD, name, {"status": {"extendedResourceClaimStatus": {
            "resourceClaimName": "counted", "requestMappings": [
                {"containerName": "compute", "resourceName": "x.example/vf", "requestName": "r"}]}}}, "default",
            subresource="status")
        await here.allocate("gpu-0")
        await here.bind()
        blue = await here.machine()
        assert addresses(blue) == ["0000:65:00.0"]
        assert "interfaceStatuses" not in blue["status"]["deviceStatus"], "it is unknown yet which NIC has which function"
        revision = here.store.watch_cache(kinds.VMI).revision
        await plug(here, name, fast="0000:3B:01.1", own="0000:65:00.0", other="0000:99:00.0")
        blue = await here.machine()
        told = blue["status"]["deviceStatus"]["interfaceStatuses"]
        assert [(entry["name"], entry["deviceResourceClaimStatus"]) for entry in told] == [
            ("fast", {"name": "vf-1", "resourceClaimName": "counted", "driver": DRIVER, "pool": "far",
                      "attributes": {"pciAddress": "0000:3b:01.1"}}),
            ("own", {"name": "gpu-0", "resourceClaimName": "mine", "driver": DRIVER, "pool": "far",
                     "attributes": {"pciAddress": "0000:65:00.0"}})]
        assert [device_status.address_of(entry) for entry in device_status.statuses(blue, "hostDevices")] == [
            ("pci", "0000:65:00.0")
        ]
        writes = [step for step in here.store.watch_cache(kinds.VMI).log if step.next and step.next.revision > revision]
        assert len(writes) == 1
        await here.store.patch(kinds.VMI, "blue", {"status": {"phase": "Running"}}, "default", subresource="status")
        await plug(here, name, fast="0000:3b:01.0")
        after = await here.machine()
        assert after["status"]["deviceStatus"] == blue["status"]["deviceStatus"], "what a running VM has stays"


async def test_network_cards_of_a_pod_that_went_are_forgotten() -> None:
    async with desk() as here:
        await here.claim()
        await here.publish(1, {"gpu-0": address("0000:65:00.0")})
        made = await here.create()
        await here.settle()
        await here.allocate("gpu-0")
        await here.bind()
        await plug(here, pod_name(made), fast="0000:65:00.0")
        assert "interfaceStatuses" in (await here.machine())["status"]["deviceStatus"]
        await here.store.delete(kinds.POD, pod_name(made), "default", grace=0)
        await here.settle()
        assert "interfaceStatuses" not in (await here.machine())["status"]["deviceStatus"]


def test_network_cards_of_a_vm_that_migrated_have_the_functions_of_its_new_pod() -> None:
    """Of a running VMI: entries of claims that its pod does not use are replaced, or go with their interface."""
    def entry(name: str, claim: str) -> Object:
        return {"name": name, "deviceResourceClaimStatus": {"name": "vf", "resourceClaimName": claim}}

    pod: Object = {"metadata": {"name": "target", "namespace": "default"}, "spec": {}, "status": {
        "extendedResourceClaimStatus": {"resourceClaimName": "new"}}}
    vmi: Object = {"spec": {"domain": {"devices": {"interfaces": [{"name": "fast"}, {"name": "kept"}]}}}, "status": {
        "deviceStatus": {"interfaceStatuses": [entry("fast", "old"), entry("kept", "elsewhere"), entry("gone", "old")]}}}
    assert running_interfaces(vmi, [pod], [entry("fast", "new")]) == [
        entry("kept", "elsewhere"), entry("fast", "new")]
    assert running_interfaces(vmi, [pod], []) == [entry("fast", "old"), entry("kept", "elsewhere")]
