"""What the launcher gets to know about prepared devices: the VM has what was prepared for it, whether it was asked for by
claim or by resource name, or it does not start."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from outfitter import app
from outfitter.api import conditions, device_metadata, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from outfitter.api.kubevirt.device_status import statuses
from outfitter.api.launcher.launcher_environment import merged_environment
from outfitter.errors import StartFailed
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher import hostdev
from outfitter.node.devices.metadata import PreparedDevice
from outfitter.node.launcher_env import launcher_devices
from outfitter.scheduling.placement import Waiting
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene, addresses, device, logged
from tests.node.prepare_host import BOUND, GPU
from tests.rejected import Code

DRIVER = "pci.outfitter.dev"
NIC, CARD, PART = "vendor.example/nic", "vendor.example/gpu", "vendor.example/vgpu"
VFS = "{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {count: 2, product: 1889}}"
UUIDS = ["4b20d080-1b54-4048-85b3-a6a62d165c01", "4b20d080-1b54-4048-85b3-a6a62d165c02"]
SPLIT = (f"{{address: 0000:65:00.0, vendor: 10de, product: 2236, class: 030200, driver: nvidia, mdevTypes: [{{id: nvidia-1, "
         f"name: A10-1, available: 2, instances: [{', '.join(UUIDS)}]}}]}}")
WHOLE = GPU.replace("nouveau", "vfio-pci").replace("snd_hda_intel", "vfio-pci")


@contextlib.asynccontextmanager
async def running(pci: str, **classes: str) -> AsyncIterator[Scene]:
    """A host, with a DeviceClass for each kind of device that is counted as a resource."""
    clock = ManualClock()
    hosts = app.simulated_hosts(hosts_file.parse(f"hosts: [{{name: node, pci: [{pci}]}}]").hosts)
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random(1))) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        scene = Scene(product, "here", clock)
        for kind, resource in classes.items():
            expression = f'device.attributes["{DRIVER}"].kind == "{kind}"'
            await scene.create(kinds.DEVICE_CLASS, kind.lower(), {
                "selectors": [{"cel": {"expression": expression}}], "extendedResourceName": resource})
        yield scene


async def machine(scene: Scene, name: str, *resources: str, claims: tuple[Object, ...] = (), **spec: object) -> None:
    """A VM that asks for devices by resource name."""
    asked = [{"name": f"dev{index}", "deviceName": resource} for index, resource in enumerate(resources)]
    await scene.create(kinds.VMI, name, {**spec, "domain": {
        "memory": {"guest": "64Mi"}, "devices": {"hostDevices": [*asked, *claims]}}})


async def has(scene: Scene, name: str) -> tuple[str, ...]:
    await scene.running(name)
    return next(domain.devices for domain in await scene.domains() if domain.name == f"here_{name}")


async def test_two_vms_never_share_devices_of_an_extended_resource() -> None:
    async with running(VFS, VF=NIC) as scene:
        await machine(scene, "blue", NIC)
        await machine(scene, "green", NIC)
        assert sorted([await has(scene, "blue"), await has(scene, "green")]) == [("0000:3b:01.0",), ("0000:3b:01.1",)]
        await machine(scene, "red", NIC)
        await scene.rejected("red", Code.TOO_FEW_FREE, resource=NIC, wanted=1, match=2, free=0)
        waiting = (await scene.cluster_objects()).choose(await scene.pod("red"))
        assert isinstance(waiting, Waiting)
        holders = {one.holder.purpose for _, host in waiting.hosts for one in host.taken if one.holder}
        assert holders == {"vmi/blue", "vmi/green"}
        await scene.check_books()
        left = await has(scene, "blue")
        await scene.delete(kinds.VMI, "blue")
        assert await has(scene, "red") == left
        for name in ("green", "red"):
            await scene.delete(kinds.VMI, name)
        await scene.empty()


async def test_several_of_one_resource_and_one_of_another() -> None:
    async with running(f"{VFS}, {BOUND}", VF=NIC, PCI=CARD) as scene:
        await machine(scene, "blue", NIC, CARD, NIC)
        assert await has(scene, "blue") == ("0000:3b:01.0", "0000:68:00.0", "0000:3b:01.1")


async def test_a_card_by_resource_name_is_whole() -> None:
    async with running(WHOLE, PCI=CARD) as scene:
        await machine(scene, "blue", CARD)
        assert await has(scene, "blue") == ("0000:65:00.0", "0000:65:00.1")


async def test_one_of_the_host_and_one_that_all_hosts_reach_by_one_resource_name() -> None:
    async with running(VFS.replace("count: 2", "count: 1"), VF=NIC) as scene:
        await scene.create(kinds.RESOURCE_SLICE, "fabric", {
            "driver": "fabric.example", "allNodes": True, "pool": {"name": "rack", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "far", "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:e0:00.0"}}}]})
        either = f'device.driver == "fabric.example" || device.attributes["{DRIVER}"].kind == "VF"'
        await scene.store.patch(kinds.DEVICE_CLASS, "vf", {"spec": {"selectors": [{"cel": {"expression": either}}]}})
        await machine(scene, "blue", NIC, NIC)
        assert sorted(await has(scene, "blue")) == ["0000:3b:01.0", "0000:e0:00.0"]
        assert list(await has(scene, "blue")) == addresses(await scene.running("blue"))


async def test_devices_and_network_cards_share_a_resource_in_one_order() -> None:
    """Host devices first, then GPUs, then networks: in the claim, the status, the environment and the domain. All of it costs
    two patches at most."""
    async with running(VFS.replace("count: 2", "count: 4"), VF=NIC) as scene:
        await scene.create(
            kinds.NETWORK_ATTACHMENT, "fast", {"config": '{"type": "sriov"}'}, annotations={network_info.RESOURCE: NIC}
        )
        seen = logged(scene.product, kinds.VMI, "here")
        await scene.create(kinds.VMI, "blue", {
            "networks": [{"name": name, "multus": {"networkName": "fast"}} for name in ("n1", "n0")],
            "domain": {"memory": {"guest": "64Mi"}, "devices": {
                "interfaces": [{"name": "n0", "sriov": {}}, {"name": "n1", "sriov": {}}],
                "gpus": [{"name": "g", "deviceName": NIC}], "hostDevices": [{"name": "h", "deviceName": NIC}]}}})
        await has(scene, "blue")
        blue = await scene.running("blue")
        claim = (await scene.all(kinds.RESOURCE_CLAIM))[0]
        status = blue["status"]["deviceStatus"]
        told = [entry for field in ("hostDeviceStatuses", "gpuStatuses", "interfaceStatuses") for entry in status[field]]
        assert [entry["name"] for entry in told] == ["h", "g", "n1", "n0"]
        given = [entry["deviceResourceClaimStatus"] for entry in told]
        assert [one["name"] for one in given] == [
            one["device"] for one in claim["status"]["allocation"]["devices"]["results"]]
        assert {one["resourceClaimName"] for one in given} == {claim["metadata"]["name"]}
        places = {entry["name"]: one["attributes"]["pciAddress"] for entry, one in zip(told, given, strict=True)}
        xml = ET.fromstring(next(domain.xml for domain in await scene.domains()))
        handed = [element for element in xml.iterfind("devices/*") if element.find("source/address") is not None]
        assert {str(element.find("alias").attrib["name"]).rpartition("-")[2]: hostdev.sources(_alone(element))[0]  # type: ignore[union-attr]
                for element in handed} == places
        changes = [new for old, new in seen if ((old or {}).get("status") or {}).get("deviceStatus") != (
            (new or {}).get("status") or {}).get("deviceStatus")]
        assert 1 <= len(changes) <= 2


def _alone(element: ET.Element) -> ET.Element:
    """A domain with this device and no other."""
    root = ET.Element("domain")
    ET.SubElement(root, "devices").append(element)
    return root


async def test_mediated_devices_by_resource_name() -> None:
    async with running(SPLIT, MDEV=PART) as scene:
        await machine(scene, "blue", PART)
        await machine(scene, "green", PART)
        assert sorted([*await has(scene, "blue"), *await has(scene, "green")]) == UUIDS


async def test_more_cards_than_entries_leave_each_entry_a_whole_one() -> None:
    """The pod asks for one more than the VM has entries: it has the first one, with its sound."""
    other = WHOLE.replace("0000:65:", "0000:66:").replace("iommuGroup: 7", "iommuGroup: 8")
    async with running(f"{WHOLE}, {other}", PCI=CARD) as scene:
        await scene.create(kinds.VMI, "blue", {"domain": {
            "memory": {"guest": "64Mi"}, "resources": {"limits": {CARD: "2"}},
            "devices": {"gpus": [{"name": "g0", "deviceName": CARD}]}}})
        assert await has(scene, "blue") == ("0000:65:00.0", "0000:65:00.1")
        [entry] = statuses(await scene.running("blue"), "gpus")
        assert entry["deviceResourceClaimStatus"]["attributes"]["members"] == ["0000:65:00.0", "0000:65:00.1"]


async def test_fewer_than_entries_are_refused() -> None:
    async with running(VFS, VF=NIC) as scene:
        await scene.create(kinds.VMI, "blue", {"domain": {
            "memory": {"guest": "64Mi"}, "resources": {"limits": {NIC: "1"}},
            "devices": {"hostDevices": [{"name": "a", "deviceName": NIC}, {"name": "b", "deviceName": NIC}]}}})
        await scene.phase("blue", "Failed")
        (said,) = set(await scene.events("SyncFailed"))
        assert "spec.domain.devices.hostDevices[1]: failed to create HostDevice b" in said
        assert "2 of vendor.example/nic are asked for" in said
        assert not await scene.domains()


async def test_the_devices_of_an_earlier_pod_are_not_those_of_the_next() -> None:
    """A VM that was given a device by a claim, and whose next pod gets one from a device plugin."""
    async with running(VFS, VF=NIC) as scene:
        node = {"status": {"allocatable": {NIC: "1"}, "capacity": {NIC: "1"}}}
        await scene.store.create(kinds.VMI, {"metadata": {"name": "blue", "namespace": "here"}, "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "elsewhere"}, "domain": {"memory": {"guest": "64Mi"}, "devices": {
                "hostDevices": [{"name": "dev0", "deviceName": NIC}]}}}})
        await scene.rejected("blue", Code.NODE_SELECTOR, wanted="elsewhere")
        old: Object = {"name": "dev0", "deviceResourceClaimStatus": {
            "resourceClaimName": "gone", "name": "gone", "attributes": {"pciAddress": "0000:99:00.0"}}}
        ready: Object = {"type": "DevicesReady", "status": "True", "reason": "DevicesKnown"}
        have = (await scene.find(kinds.VMI, "blue") or {})["status"]["conditions"]
        await scene.store.patch(kinds.VMI, "blue", {"status": {
            "deviceStatus": {"hostDeviceStatuses": [old]}, "conditions": [*have, ready]}}, "here", subresource="status")

        async def forgotten() -> bool:
            found = await scene.find(kinds.VMI, "blue") or {}
            return not statuses(found, "hostDevices") and conditions.find(found, "DevicesReady") is None

        await scene.reach(forgotten, "what an earlier pod got is forgotten")
        await scene.create(kinds.NODE, "elsewhere", {}, labels={"kubernetes.io/hostname": "elsewhere"})
        allocatable = {**node["status"]["allocatable"], "cpu": "8", "memory": "8Gi", "pods": "10"}
        await scene.store.patch(kinds.NODE, "elsewhere", {"status": {
            "allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}}, subresource="status")

        async def bound() -> bool:
            return bool((await scene.pod("blue"))["spec"].get("nodeName"))

        await scene.reach(bound, "the plugin's host takes it")
        blue = await scene.find(kinds.VMI, "blue") or {}
        assert "deviceStatus" not in blue["status"]
        assert conditions.find(blue, "DevicesReady") is None, "nothing waits for what a plugin alone knows"


async def test_by_resource_name_and_by_claim_in_one_vm() -> None:
    async with running(VFS, VF=NIC) as scene:
        await scene.create(kinds.RESOURCE_CLAIM_TEMPLATE, "one-vf", {"spec": {"devices": {"requests": [
            {"name": "nic", "exactly": {"deviceClassName": "vf"}}]}}})
        await machine(scene, "blue", NIC, claims=(device(),), resourceClaims=[
            {"name": "network", "resourceClaimTemplateName": "one-vf"}])
        assert sorted(await has(scene, "blue")) == ["0000:3b:01.0", "0000:3b:01.1"]
        told = statuses(await scene.running("blue"), "hostDevices")
        assert [entry["name"] for entry in told] == ["dev0", "nic0"]
        assert sorted(addresses(await scene.running("blue"))) == ["0000:3b:01.0", "0000:3b:01.1"]
        await scene.check_books()


async def test_a_vm_does_not_start_when_its_status_contains_other_devices_than_were_prepared() -> None:
    async with running(VFS, VF=NIC) as scene:
        await scene.create(kinds.RESOURCE_CLAIM, "mine", {"devices": {"requests": [
            {"name": "nic", "exactly": {"deviceClassName": "vf"}}]}})
        # The card was moved to another slot, and the slices do not contain that yet.
        scene.host.devices = {name: replace(target, address=str(target.address).replace("3b", "af"), functions=())
                              for name, target in scene.host.devices.items()}
        await scene.machine("blue", claim="mine")
        await scene.phase("blue", "Failed")
        (said,) = set(await scene.events("SyncFailed"))
        assert said == ("spec.domain.devices.hostDevices[0]: status.deviceStatus has 0000:3b:01.0 for HostDevice nic0, "
                        "but device metadata has 0000:af:01.0: the VM does not start before they agree")
        assert not await scene.domains()


def test_what_is_published_and_what_was_prepared_must_agree() -> None:
    ours, others, both = {"PCI_RESOURCE_X": "a"}, {"PCI_RESOURCE_Y": "b"}, {"PCI_RESOURCE_X": "a,c"}
    assert merged_environment(others, ours) == {**ours, **others}
    assert merged_environment(both, ours) == both
    with pytest.raises(StartFailed, match="PCI_RESOURCE_X: a,c was prepared, but a is published: "):
        merged_environment(ours, both)


def given(request: str, name: str, pool: str = "node") -> PreparedDevice:
    return PreparedDevice(request, DRIVER, pool, name, f"0000:3b:01.{name[-1]}", None)


def claim(*results: PreparedDevice) -> Object:
    return {"metadata": {"name": "mine", "namespace": "here", "uid": "u"}, "status": {"allocation": {"devices": {"results": [
        {"request": one.request, "driver": one.driver, "pool": one.pool, "device": one.device} for one in results]}}}}


def test_request_with_devices_of_another_driver_is_skipped() -> None:
    """We know a part of it only, and that would contradict the status."""
    mine, both, other = given("nic", "vf-0"), given("mix/near", "vf-1"), given("mix/near", "vf-2", "elsewhere")
    told = launcher_devices({}, [("net", claim(mine, both, other), [mine, both])])
    assert told.env == {"PCI_RESOURCE_MINE_NIC": "0000:3b:01.0"}
    assert list(told.files) == [f"{device_metadata.BASE}/resourceclaims/mine/nic/{DRIVER}-metadata.json"]


@pytest.mark.parametrize("container", ["compute", "other"])
def test_only_the_compute_container_counts(container: str) -> None:
    mine = given("container-0-request-0", "vf-0")
    pod = {"status": {"extendedResourceClaimStatus": {"requestMappings": [
        {"containerName": container, "resourceName": NIC, "requestName": mine.request}]}}}
    told = launcher_devices(pod, [("<extended-resources>", claim(mine), [mine])])
    assert (told.env.get("PCI_RESOURCE_VENDOR_EXAMPLE_NIC") == "0000:3b:01.0") == (container == "compute")
