"""GPUs and host devices of claims come and go while a VM runs, on simulated hosts and with all controllers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.inventory.config import Config, HostSettings
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher.simulated import Simulated
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator

HOSTS = """
hosts:
- name: rack
  numa: [{id: 0, cpus: 0-15, memory: 64Gi}]
  pci:
  - {address: 0000:65:00.0, vendor: 10de, product: 20b5, class: 030200, driver: vfio-pci, numa: 0}
  - {address: 0000:66:00.0, vendor: 10de, product: 20b5, class: 030200, driver: vfio-pci, numa: 0}
"""
GPU = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
DEVICES = "domain.devices"


class Story:
    """A VM on a host, and what is done to it."""

    def __init__(self, product: app.Embedded, clock: ManualClock) -> None:
        self.product, self.store, self.clock = product, product.store, clock

    @property
    def hypervisor(self) -> Simulated:
        made = self.product.hosts[0].hypervisor
        assert isinstance(made, Simulated)
        return made

    async def begin(self, **spec: Any) -> None:
        await self.store.create(kinds.DEVICE_CLASS, {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {
            "expression": 'device.driver == "pci.outfitter.dev"'}}]}})
        await self.store.create(kinds.RESOURCE_CLAIM_TEMPLATE, {
            "metadata": {"name": "one-gpu", "namespace": "default"}, "spec": {"spec": GPU}})
        await self.vm(**spec)

    async def vm(self, name: str = "blue", **spec: Any) -> None:
        template = {"domain": {"memory": {"guest": "1Gi"}, "devices": {}}, **spec}
        await self.store.create(kinds.VM, {"metadata": {"name": name, "namespace": "default"}, "spec": {
            "runStrategy": "Always", "template": {"spec": template}}})
        await self.settle()
        assert (await self.vmi(name))["status"]["phase"] == "Running"

    async def plug(self, device: str, claim: str | None = None, list_: str = "gpus", name: str = "blue", **entry: str) -> None:
        """`entry`: what the claim is."""
        spec = (await self.store.get(kinds.VM, name, "default"))["spec"]["template"]["spec"]
        claims = [*(spec.get("resourceClaims") or ()), *([{"name": claim or device, **entry}] if entry else [])]
        listed = [*(spec["domain"]["devices"].get(list_) or ()), {
            "name": device, "claimName": claim or device, "requestName": "gpu"}]
        await self.change({"resourceClaims": claims, "domain": {"devices": {list_: listed}}}, name)

    async def unplug(self, device: str, list_: str = "gpus", name: str = "blue") -> None:
        spec = (await self.store.get(kinds.VM, name, "default"))["spec"]["template"]["spec"]
        left = [entry for entry in spec["domain"]["devices"][list_] if entry["name"] != device]
        await self.change({"domain": {"devices": {list_: left}}, "resourceClaims": [
            entry for entry in spec["resourceClaims"] if entry["name"] != device]}, name)

    async def change(self, spec: Object, name: str = "blue") -> None:
        await self.store.patch(kinds.VM, name, {"spec": {"template": {"spec": spec}}}, "default")
        await self.settle()

    async def settle(self, seconds: float = 1) -> None:
        """A write that was refused because another one came before is repeated within the first second."""
        await self.product.settle()
        for _ in range(int(seconds)):
            self.clock.advance(1)
            await self.product.settle()

    async def vmi(self, name: str = "blue") -> Object:
        return await self.store.get(kinds.VMI, name, "default")

    async def domain(self, name: str = "blue") -> Domain:
        return (await self.hypervisor.domains())[(await self.vmi(name))["metadata"]["uid"]]

    async def plugged(self, name: str = "blue") -> list[str]:
        return [device.alias for device in (await self.domain(name)).host_devices]

    async def statuses(self, list_: str = "gpuStatuses") -> dict[str, Any]:
        entries = ((await self.vmi())["status"].get("deviceStatus") or {}).get(list_) or ()
        return {entry["name"]: entry for entry in entries}

    async def waits(self, name: str = "blue") -> Any:
        return conditions.find(await self.vmi(name), "DevicesPlugged") or {}

    async def restart_required(self) -> str:
        found = conditions.find(await self.store.get(kinds.VM, "blue", "default"), "RestartRequired") or {}
        return str(found.get("message") or "")

    async def events(self, reason: str) -> list[str]:
        listed = (await self.store.list(kinds.EVENT, "default")).items
        return [event["message"] for event in listed if event["reason"] == reason]

    async def pods(self) -> list[str]:
        listed = (await self.store.list(kinds.POD, "default")).items
        return [pod["metadata"]["name"] for pod in listed if pod["metadata"]["labels"].get("kubevirt.io") == "hotplug-claim"]

    async def claims(self) -> list[str]:
        return [claim["metadata"]["name"] for claim in (await self.store.list(kinds.RESOURCE_CLAIM, "default")).items]

    async def held(self) -> list[str]:
        pages = (await self.store.list(kinds.LEDGER_PAGE)).items
        return sorted(booking["device"]["device"] for page in pages for booking in page["spec"].get("bookings") or ())

    async def holders(self) -> set[str]:
        """For what the pages say that devices are held."""
        pages = (await self.store.list(kinds.LEDGER_PAGE)).items
        return {booking["holder"].get("purpose", "") for page in pages for booking in page["spec"].get("bookings") or ()}

    async def is_free(self) -> None:
        """Nothing is left of what was plugged."""
        assert (await self.plugged(), await self.pods(), await self.claims(), await self.held()) == ([], [], [], [])
        assert (await self.statuses(), await self.waits(), await self.restart_required()) == ({}, {}, "")


@contextlib.asynccontextmanager
async def running(folder: Path, config: Config | None = None) -> AsyncIterator[Story]:
    clock, config_ = ManualClock(), config or Config()
    hosts = app.simulated_hosts(hosts_file.parse(HOSTS, "hosts").hosts, folder, config_)
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(), config=config_) as product:
        yield Story(product, clock)


@pytest.fixture
async def story(tmp_path: Path) -> AsyncIterator[Story]:
    async with running(tmp_path) as made:
        await made.begin()
        yield made


TEMPLATE = {"resourceClaimTemplateName": "one-gpu"}


async def test_gpu_of_a_claim_template_is_plugged_and_unplugged_in_place(story: Story) -> None:
    before = await story.domain()
    await story.plug("fast", **TEMPLATE)
    assert await story.plugged() == ["ua-dra-gpu-fast"]
    entry = (await story.statuses())["fast"]
    [pod] = await story.pods()
    assert entry["hotplugDevice"] == {"claimName": "fast", "attachPodName": pod, "phase": "Attached"}
    [claim] = await story.claims()
    assert entry["deviceResourceClaimStatus"]["resourceClaimName"] == claim
    assert await story.held() == [entry["deviceResourceClaimStatus"]["name"]]
    assert await story.holders() == {"vmi/blue"}, "not its attachment pod"
    assert (await story.domain()).devices == (entry["deviceResourceClaimStatus"]["attributes"]["pciAddress"],)
    assert await story.events("DevicePlugged") == ["GPU fast is plugged on rack"]
    assert (await story.waits(), await story.restart_required()) == ({}, "")
    assert [each["name"] for each in (await story.vmi())["spec"]["resourceClaims"]] == ["fast"]

    await story.unplug("fast")
    await story.is_free()
    assert await story.events("DeviceUnplugged") == ["GPU fast is unplugged on rack"]
    assert (await story.domain()).name == before.name
    await story.plug("fast", **TEMPLATE)
    assert await story.plugged() == ["ua-dra-gpu-fast"], "it can be plugged again"


async def test_named_claim_is_free_after_the_unplug(story: Story) -> None:
    await story.store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "mine", "namespace": "default"}, "spec": GPU})
    await story.plug("fast", list_="hostDevices", resourceClaimName="mine")
    assert await story.plugged() == ["ua-dra-hostdevice-fast"]
    await story.unplug("fast", "hostDevices")
    assert (await story.plugged(), await story.pods(), await story.held()) == ([], [], [])
    [claim] = (await story.store.list(kinds.RESOURCE_CLAIM, "default")).items
    assert not (claim.get("status") or {}).get("allocation")


async def test_claim_of_the_vm_itself_comes_and_goes_with_its_entry(story: Story) -> None:
    gpu = {"name": "fast", "claimName": "own", "requestName": "gpu"}
    patch = {"resourceClaimTemplates": [{"name": "own", "spec": {"spec": GPU}}],
             "template": {"spec": {"domain": {"devices": {"gpus": [gpu]}}}}}
    await story.store.patch(kinds.VM, "blue", {"spec": patch}, "default")
    await story.settle()
    assert await story.plugged() == ["ua-dra-gpu-fast"]
    [claim] = (await story.store.list(kinds.RESOURCE_CLAIM, "default")).items
    assert [owner["kind"] for owner in claim["metadata"]["ownerReferences"]] == ["VirtualMachine"]
    await story.store.patch(kinds.VM, "blue", {"spec": {
        "resourceClaimTemplates": None, "template": {"spec": {"domain": {"devices": {"gpus": None}}}}}}, "default")
    await story.settle()
    await story.is_free()


async def test_plug_waits_for_a_free_device_of_the_host_and_is_done_when_there_is_one(story: Story) -> None:
    for name in ("one", "two"):
        await story.vm(name, resourceClaims=[{"name": "gpu", **TEMPLATE}], domain={
            "memory": {"guest": "1Gi"}, "devices": {"gpus": [{"name": "gpu", "claimName": "gpu", "requestName": "gpu"}]}})
    held = await story.held()
    await story.plug("fast", **TEMPLATE)
    waits = await story.waits()
    assert (waits["status"], waits["reason"]) == ("False", "NoFreeDeviceOnHost")
    assert waits["message"].startswith("fast: rack, on which the VM runs, has no free device for claim fast")
    assert await story.events("FailedPlugDevice") == [waits["message"]]
    assert (await story.plugged(), await story.held()) == ([], held)

    await story.unplug("fast")
    assert (await story.pods(), await story.waits(), len(await story.claims())) == ([], {}, 2), "the plug is cancelled"

    await story.plug("fast", **TEMPLATE)
    await story.store.patch(kinds.VM, "two", {"spec": {"runStrategy": "Halted"}}, "default")
    await story.settle(5)
    assert await story.plugged() == ["ua-dra-gpu-fast"]
    assert await story.waits() == {}


async def test_device_that_the_guest_keeps_stays_held_until_it_is_released(story: Story) -> None:
    await story.plug("fast", **TEMPLATE)
    held = await story.held()
    story.hypervisor.keeping_devices.add((await story.vmi())["metadata"]["uid"])
    await story.unplug("fast")
    await story.settle(20)
    assert await story.waits() == {}, "the guest has 30 seconds"
    await story.settle(15)
    waits = await story.waits()
    assert waits["reason"] == "DeviceKeptByGuest"
    assert await story.events("FailedUnplugDevice") == [waits["message"]]
    assert (await story.plugged(), await story.held(), len(await story.pods())) == (["ua-dra-gpu-fast"], held, 1)
    story.hypervisor.keeping_devices.clear()
    await story.settle(6)
    await story.is_free()


async def test_patience_with_the_guest_is_configured(tmp_path: Path) -> None:
    async with running(tmp_path, Config(default=HostSettings(unplug_timeout=timedelta(seconds=2)))) as story:
        await story.begin()
        await story.plug("fast", **TEMPLATE)
        story.hypervisor.keeping_devices.add((await story.vmi())["metadata"]["uid"])
        await story.unplug("fast")
        await story.settle(7)
        assert "has not for 2 s" in (await story.waits())["message"]


async def test_name_of_a_device_that_is_being_unplugged_waits_until_it_is_gone(story: Story) -> None:
    await story.plug("fast", **TEMPLATE)
    uid = (await story.vmi())["metadata"]["uid"]
    story.hypervisor.keeping_devices.add(uid)
    await story.unplug("fast")
    await story.plug("fast", **TEMPLATE)
    assert (await story.vmi())["spec"]["domain"]["devices"].get("gpus") in (None, [])
    assert await story.restart_required() == ""
    story.hypervisor.keeping_devices.clear()
    await story.settle(10)
    assert await story.plugged() == ["ua-dra-gpu-fast"]
    assert len(await story.held()) == 1


async def test_paused_vm_gets_a_device_when_it_is_resumed(story: Story) -> None:
    uid = (await story.vmi())["metadata"]["uid"]
    await story.hypervisor.pause(uid)
    await story.settle()
    await story.plug("fast", **TEMPLATE)
    assert (await story.waits())["reason"] == "VmPaused"
    assert (await story.held(), await story.pods()) == ([], []), "nothing is booked for it"
    await story.hypervisor.unpause(uid)
    await story.settle()
    assert (await story.plugged(), await story.waits()) == (["ua-dra-gpu-fast"], {})


async def test_device_that_the_vm_was_started_with_is_unplugged_and_plugged_again(story: Story) -> None:
    await story.vm("one", resourceClaims=[{"name": "gpu", **TEMPLATE}], domain={
        "memory": {"guest": "1Gi"}, "devices": {"gpus": [{"name": "gpu", "claimName": "gpu", "requestName": "gpu"}]}})
    held = await story.held()
    await story.change({"domain": {"devices": {"gpus": []}}}, "one")
    assert (await story.plugged("one"), await story.held()) == ([], held), "its claim stays the launcher pod's"
    await story.plug("gpu", name="one")
    assert (await story.plugged("one"), await story.held(), await story.pods()) == (["ua-dra-gpu-gpu"], held, [])


async def test_claim_that_another_vm_uses_is_not_plugged(story: Story) -> None:
    await story.store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "mine", "namespace": "default"}, "spec": GPU})
    await story.vm("one", resourceClaims=[{"name": "gpu", "resourceClaimName": "mine"}], domain={
        "memory": {"guest": "1Gi"}, "devices": {"gpus": [{"name": "gpu", "claimName": "gpu", "requestName": "gpu"}]}})
    await story.plug("fast", resourceClaimName="mine")
    assert (await story.waits())["reason"] == "ClaimInUse"
    assert (await story.plugged(), len(await story.held())) == ([], 1)


async def test_hypervisor_that_rejects_a_device_is_asked_again(story: Story) -> None:
    story.hypervisor.refusing.update(dict.fromkeys(("0000:65:00.0", "0000:66:00.0"), "no IOMMU"))
    await story.plug("fast", **TEMPLATE)
    waits = await story.waits()
    assert (waits["reason"], "no IOMMU" in waits["message"]) == ("DeviceNotPlugged", True)
    story.hypervisor.refusing.clear()
    await story.settle(6)
    assert await story.plugged() == ["ua-dra-gpu-fast"]


async def test_without_plug_in_place_it_waits_for_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, Config(default=HostSettings(plug_in_place=False))) as story:
        await story.begin()
        await story.plug("fast", **TEMPLATE)
        message = await story.restart_required()
        assert "spec.template.spec.domain.devices.gpus[fast] (PlugNotInPlace: fast: rack plugs no claimed devices" in message
        assert not (await story.vmi())["spec"]["domain"]["devices"].get("gpus")
        assert (await story.pods(), await story.held()) == ([], [])


async def test_attachment_pod_that_is_deleted_by_hand_takes_the_device_along(story: Story) -> None:
    await story.plug("fast", **TEMPLATE)
    [pod] = await story.pods()
    await story.store.delete(kinds.POD, pod, "default")
    await story.settle(6)
    assert await story.plugged() == ["ua-dra-gpu-fast"], "a new one is made, and it is plugged again"
    assert (len(await story.held()), len(await story.pods())) == (1, 1)
    entry = (await story.statuses())["fast"]
    assert entry["hotplugDevice"]["phase"] == "Attached"
    assert [entry["deviceResourceClaimStatus"]["resourceClaimName"]] == await story.claims()


async def test_device_by_resource_name_waits_for_a_restart(story: Story) -> None:
    await story.change({"domain": {"devices": {"hostDevices": [{"name": "nic", "deviceName": "x.com/nic"}]}}})
    assert "hostDevices[nic] (DeviceNotPlugged: nic is requested by deviceName" in await story.restart_required()
