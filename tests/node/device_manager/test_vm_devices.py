"""VMs that ask for a device of a device plugin by its resource name, on hosts that outfitter runs: a plugin registers at the
host's sockets, and the domain has what it answered to Allocate."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from outfitter import app
from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.assignment import assigned_devices
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode
from outfitter.inventory.simulation import hosts_file
from outfitter.node.device_manager import checkpoint
from outfitter.node.device_manager.checkpoint import DeviceCheckpoint
from outfitter.node.kubelet.proto import device_plugin_v1beta1_pb2 as pb
from outfitter.store.clock import ManualClock
from tests.cases.assignment.plugins import PlayedPlugin
from tests.controllers.scenario import hosts_text
from tests.node.dra_manager.test_pods_with_drivers import DriverScene

GPU, VGPU = "example.com/gpu", "example.com/v-gpu"
ADDRESSES = {"g0": "0000:65:00.0", "g1": "0000:66:00.0", "g2": "0000:67:00.0"}
UUIDS = {"v0": "11111111-8b16-4d01-a136-25a0f3c73123"}
VARIABLE, UUID_VARIABLE = "PCI_RESOURCE_EXAMPLE_COM_GPU", "MDEV_PCI_RESOURCE_EXAMPLE_COM_V-GPU"
Answer = Callable[[Sequence[str]], Any]


def variables(name: str, values: Mapping[str, str]) -> Answer:
    return lambda ids: pb.ContainerAllocateResponse(envs={name: ",".join(values[each] for each in ids)})


async def _unseen(method: str, plugin: str) -> None:
    pass


@dataclass
class PluginScene(DriverScene):
    plugins: list[PlayedPlugin] = field(default_factory=list)

    async def plugin(self, resource: str, devices: Sequence[str], answer: Answer) -> PlayedPlugin:
        keys = {"resource": resource, "devices": {each: [] for each in devices}, "answer": answer}
        plugin = PlayedPlugin(resource.rpartition("/")[2], keys, self.folder, _unseen)
        await plugin.listen()
        self.plugins.append(plugin)
        assert await plugin.register() is None
        return plugin

    async def vm(self, name: str, *gpus: str, devices: Sequence[str] = ()) -> None:
        """A VM that is started again whenever its VMI is gone."""
        lists = {"gpus": gpus, "hostDevices": devices}
        await self.create(kinds.VM, name, {"runStrategy": "Always", "template": {"spec": {"domain": {
            "memory": {"guest": "1Gi"},
            "devices": {list_: [{"name": f"d{number}", "deviceName": resource} for number, resource in enumerate(asked)]
                        for list_, asked in lists.items() if asked}}}}})

    async def devices_of(self, name: str) -> list[str]:
        """What the domain of a running VM has, as its XML says."""
        await self.running(name)
        domain = next(domain for domain in await self.domains() if domain.name.endswith(f"_{name}"))
        assert all(_in_xml(each, domain.xml) for each in domain.devices), domain.xml
        return list(domain.devices)

    async def ids(self, name: str) -> dict[str, dict[str, tuple[str, ...]]]:
        return assigned_devices.of_pod(await self.pod(name))

    async def free(self) -> None:
        async def check() -> bool:
            return not await self.bookings()

        await self.reach(check, "no device is booked")

    async def code(self, name: str, code: RejectionCode) -> str:
        """Once a VMI has a code: its message."""
        async def check() -> str | None:
            found = conditions.find(await self.find(kinds.VMI, name) or {}, f"{rejection_conditions.PREFIX}{code}")
            return str(found["message"]) if found is not None else None

        return await self.reach(check, f"{name} has the code {code}")


def _in_xml(place: str, xml: str) -> bool:
    domain, bus, rest = [*place.split(":"), "", ""][:3]
    slot, _, function = rest.partition(".")
    wanted = f'domain="0x{domain}" bus="0x{bus}" slot="0x{slot}" function="0x{function}"' if rest else f'uuid="{place}"'
    return wanted in xml.replace("'", '"')


@contextlib.asynccontextmanager
async def running_product(folder: Path, data: Path | None = None) -> AsyncIterator[PluginScene]:
    """The product on one simulated host; what it leaves in `data` is found by the next one."""
    clock = ManualClock()
    hosts = app.simulated_hosts(hosts_file.parse(hosts_text("node", 1), "node").hosts, data)
    hosts = [replace(host, kubelet_dir=folder / host.name) for host in hosts]
    async with app.embedded(hosts=hosts, clock=clock, data=data) as product:
        if product.store.committed_record(kinds.NAMESPACE, "scene") is None:  # not of an earlier one
            await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "scene"}})
        scene = PluginScene(product, "scene", clock, folder / hosts[0].name)
        try:
            yield scene
        finally:
            for plugin in scene.plugins:
                await plugin.stop()



@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[PluginScene]:
    async with running_product(tmp_path) as scene:
        yield scene


async def test_a_vm_has_the_devices_that_its_plugins_answered(scene: PluginScene) -> None:
    await scene.vm("blue", GPU, GPU, devices=[VGPU])
    await scene.plugin(GPU, list(ADDRESSES), variables(VARIABLE, ADDRESSES))
    await scene.plugin(VGPU, list(UUIDS), variables(UUID_VARIABLE, UUIDS))
    assert sorted(await scene.devices_of("blue")) == sorted([ADDRESSES["g0"], ADDRESSES["g1"], UUIDS["v0"]])
    assert await scene.ids("blue") == {"compute": {GPU: ("g0", "g1"), VGPU: ("v0",)}}
    booked = {(each.device.device, each.hardware) for each in await scene.bookings()}
    assert booked == {("g0", (ADDRESSES["g0"],)), ("g1", (ADDRESSES["g1"],)), ("v0", (UUIDS["v0"],))}
    status = (await scene.pod("blue"))["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
    assert {entry["name"] for entry in status} == {GPU, VGPU}
    await scene.delete(kinds.VM, "blue")
    await scene.empty()


async def test_a_vm_that_is_restarted_gets_the_same_device_again(scene: PluginScene) -> None:
    await scene.plugin(GPU, ["g0", "g1"], variables(VARIABLE, ADDRESSES))
    await scene.vm("first", GPU)
    assert await scene.devices_of("first") == [ADDRESSES["g0"]]
    await scene.vm("second", GPU)
    assert await scene.devices_of("second") == [ADDRESSES["g1"]]
    await scene.delete(kinds.VM, "first")  # g0 is free, and would be chosen
    await scene.gone("first")
    uid = (await scene.running("second"))["metadata"]["uid"]
    await scene.delete(kinds.VMI, "second")

    async def again() -> Object | None:
        found = await scene.find(kinds.VMI, "second")
        return found if found and found["metadata"]["uid"] != uid and found["status"].get("phase") == "Running" else None

    await scene.reach(again, "it runs again")
    assert await scene.devices_of("second") == [ADDRESSES["g1"]]


async def test_a_vm_keeps_its_device_when_the_agent_is_restarted(tmp_path: Path) -> None:
    async with running_product(tmp_path, tmp_path / "data") as scene:
        await scene.plugin(GPU, ["g0", "g1"], variables(VARIABLE, ADDRESSES))
        await scene.vm("blue", GPU)
        assert await scene.devices_of("blue") == [ADDRESSES["g0"]]
        uid = (await scene.running("blue"))["metadata"]["uid"]
    async with running_product(tmp_path, tmp_path / "data") as scene:
        assert (await scene.running("blue"))["metadata"]["uid"] == uid
        assert await scene.devices_of("blue") == [ADDRESSES["g0"]], "while its plugin is away, too"
        plugin = await scene.plugin(GPU, ["g0", "g1"], variables(VARIABLE, ADDRESSES))
        await scene.vm("red", GPU)
        assert await scene.devices_of("red") == [ADDRESSES["g1"]]
        assert [what for method, what in plugin.calls if method == "Allocate"] == [["g1"]]
        text = (scene.folder / "device-plugins" / checkpoint.FILE).read_text()
        saved = checkpoint.decode(text)
        assert isinstance(saved, DeviceCheckpoint)
        answers = {tuple(entry.ids): pb.ContainerAllocateResponse.FromString(entry.response) for entry in saved.entries}
        assert {ids: dict(answer.envs) for ids, answer in answers.items()} == {
            ("g0",): {VARIABLE: ADDRESSES["g0"]}, ("g1",): {VARIABLE: ADDRESSES["g1"]}}
        for name in ("blue", "red"):
            await scene.delete(kinds.VM, name)
        await scene.empty()


ILL = {
    "no variable": (pb.ContainerAllocateResponse(), VARIABLE),
    "another variable": (pb.ContainerAllocateResponse(envs={"GPU": ADDRESSES["g0"]}), VARIABLE),
    "no address": (pb.ContainerAllocateResponse(envs={VARIABLE: "the first"}), "the first"),
    "an empty list": (pb.ContainerAllocateResponse(envs={VARIABLE: ","}), VARIABLE),
    "two kinds": (pb.ContainerAllocateResponse(envs={VARIABLE: ADDRESSES["g0"], f"MDEV_{VARIABLE}": UUIDS["v0"]}), VARIABLE),
}


@pytest.mark.parametrize("name", ILL)


async def test_an_answer_without_a_usable_variable_is_a_code_and_the_device_is_free(scene: PluginScene, name: str) -> None:
    answer, word = ILL[name]
    plugin = await scene.plugin(GPU, ["g0"], lambda ids: answer)
    await scene.create(kinds.VMI, "blue", {"domain": {"devices": {"gpus": [{"name": "g", "deviceName": GPU}]}}})
    assert word in await scene.code("blue", RejectionCode.PLUGIN_ANSWER_INVALID)
    await scene.phase("blue", "Failed")
    await scene.free()
    assert len([call for call in plugin.calls if call[0] == "Allocate"]) == 1, "it is not asked again and again"


async def test_a_plugin_that_fails_is_reported_with_its_own_words(scene: PluginScene) -> None:
    plugin = await scene.plugin(GPU, ["g0"], variables(VARIABLE, ADDRESSES))
    plugin.keys["fails"] = {"Allocate": "the card is on fire"}
    await scene.create(kinds.VMI, "blue", {"domain": {"devices": {"gpus": [{"name": "g", "deviceName": GPU}]}}})
    assert "the card is on fire" in await scene.code("blue", RejectionCode.PLUGIN_CALL_FAILED)
    await scene.free()


async def test_hardware_that_a_claim_holds_is_not_given_by_a_plugin_too(scene: PluginScene) -> None:
    await scene.classes()
    await scene.template("one-vf")
    await scene.machine("claimed")
    await scene.running("claimed")
    [held] = await scene.bookings()
    await scene.plugin(GPU, ["g0"], variables(VARIABLE, {"g0": held.hardware[0]}))
    await scene.create(kinds.VMI, "blue", {"domain": {"devices": {"gpus": [{"name": "g", "deviceName": GPU}]}}})
    assert held.device.device in await scene.code("blue", RejectionCode.HARDWARE_HELD)
    assert [booking.device for booking in await scene.bookings()] == [held.device]


async def test_hardware_of_a_plugin_is_not_given_to_a_claim_too(scene: PluginScene) -> None:
    await scene.classes()
    await scene.template("one-vf")
    address = next(iter(hardware for device in scene.host.devices.values() for hardware in device.hardware))
    await scene.plugin(GPU, ["g0"], variables(VARIABLE, {"g0": address}))
    await scene.vm("blue", GPU)
    assert await scene.devices_of("blue") == [address]
    await scene.machine("claimed")
    await scene.code("claimed", RejectionCode.TOO_FEW_FREE)
    assert [booking.device.device for booking in await scene.bookings() if booking.state == "prepared"] == ["g0"]
    assert len(await scene.domains()) == 1


async def test_the_environment_of_a_cdi_device_counts(scene: PluginScene) -> None:
    assert scene.host.env is not None
    scene.host.env.cdi.write("example.json", """{"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": [
        {"name": "g0", "containerEdits": {"env": ["PCI_RESOURCE_EXAMPLE_COM_GPU=0000:65:00.0"]}}]}""")
    await scene.plugin(GPU, ["g0"], lambda ids: pb.ContainerAllocateResponse(
        cdi_devices=[pb.CDIDevice(name="example.com/gpu=g0")]))
    await scene.vm("blue", GPU)
    assert await scene.devices_of("blue") == [ADDRESSES["g0"]]


async def test_permitted_host_devices_decide_which_names_a_vm_may_use(scene: PluginScene) -> None:
    await scene.plugin(GPU, ["g0"], variables(VARIABLE, ADDRESSES))
    await scene.store.create(kinds.NAMESPACE, {"metadata": {"name": "kubevirt"}})
    await scene.store.create(kinds.KUBEVIRT, {
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"}, "spec": {"configuration": {"permittedHostDevices": {
            "pciHostDevices": [{"pciVendorSelector": "10de:20b5", "resourceName": GPU, "externalResourceProvider": True}]}}}})
    await scene.vm("blue", GPU)
    assert await scene.devices_of("blue") == [ADDRESSES["g0"]]
    await scene.create(kinds.VMI, "red", {"domain": {"devices": {"gpus": [{"name": "g", "deviceName": VGPU}]}}})
    await scene.waits("red", "Synchronized", VGPU, "permittedHostDevices")
