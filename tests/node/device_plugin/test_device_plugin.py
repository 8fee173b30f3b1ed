"""Our device plugin at a kubelet. The kubelet is our own agent in its place: it registers the plugin, calls Allocate for pods
and VMs, and shows its pods to the plugin. `make judges` has the same with a real kubelet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder
from outfitter.api.rejection import RejectionCode
from outfitter.controllers.manager import ControllerContext, ControllerManager
from outfitter.errors import AlreadyHeld
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.ledger import book, out_of_service
from outfitter.node.devices import vfio
from outfitter.roles.node import HostAgents, device_plugins
from outfitter.roles.settings import Settings
from outfitter.store.clock import rfc3339
from tests.node.device_manager.test_vm_devices import PluginScene, running_product
from tests.node.kubelet.driver_host import short_folder

VF, HOST = "example.com/vf", "hardware"
ADDRESSES = ("0000:3b:01.0", "0000:3b:01.1")
HOSTS = f"""
publisher: pci.outfitter.dev
hosts:
- name: {HOST}
  numa: [{{id: 0, cpus: 0-7, memory: 32Gi}}, {{id: 1, cpus: 8-15, memory: 32Gi}}]
  pci:
  - {{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 1,
     vfs: {{count: 2, product: 1889, driver: iavf}}}}
"""
PERMITTED = {"pciVendorSelector": "8086:1889", "resourceName": VF}
SPEC = "device_spec: [{vendor_id: '8086', product_id: '1889'}]"


class PluginProcess:
    """The plugin's host and process, beside the one that stands for the kubelet; both use one API server."""

    def __init__(self, scene: PluginScene) -> None:
        self.scene = scene
        [hardware] = app.simulated_hosts(hosts_file.parse(HOSTS, "").hosts, None, config.parse(SPEC))
        self._hardware = replace(hardware, kubelet=True)

    async def permit(self, *entries: Object) -> None:
        """What the KubeVirt object lists."""
        spec = {"configuration": {"permittedHostDevices": {"pciHostDevices": list(entries)}}}
        store, meta = self.scene.store, {"name": "kubevirt", "namespace": "kubevirt"}
        if not (await store.list(kinds.KUBEVIRT)).items:
            await store.create(kinds.NAMESPACE, {"metadata": {"name": "kubevirt"}})
            await store.create(kinds.KUBEVIRT, {"metadata": meta, "spec": spec})
        else:
            await store.patch(kinds.KUBEVIRT, meta["name"], {"spec": spec}, meta["namespace"])

    async def start(self) -> None:
        """As `outfit node` does. What an earlier process had in memory is gone."""
        assert self.scene.clock is not None
        context = ControllerContext(self.scene.store, clock=self.scene.clock)
        agents = HostAgents(context, [self._hardware], vms=False)
        [self.host] = agents.hosts
        [self.sockets] = device_plugins(context, agents, Settings(device_plugin=True, kubelet_dir=self.scene.folder))
        self.allocations = self.sockets.allocations
        self._runner = ControllerManager(context, agents.controllers)
        await self.sockets.select()
        await agents.start()
        await self._runner.start()
        await self.sockets.start()

    async def stop(self) -> None:
        await self.sockets.stop()
        await self._runner.stop()

    async def page(self) -> dict[str, tuple[str, str, str]]:
        """Device -> its holder's kind and name, and the state."""
        bookings = (await book.read(self.scene.store, HOST)).bookings
        return {booking.device.device: (booking.holder.kind, booking.holder.name, booking.state) for booking in bookings}

    async def holders(self, *pods: str) -> dict[str, tuple[str, str, str]]:
        """Once the page has these pods, prepared, and nothing else."""
        async def check() -> dict[str, tuple[str, str, str]] | None:
            found = await self.page()
            return found if sorted(found.values()) == sorted((kinds.POD.kind, pod, "prepared") for pod in pods) else None

        if pods:
            return await self.scene.reach(check, f"{pods} have devices of {HOST}")

        async def free() -> bool:
            return not await self.page()

        await self.scene.reach(free, "no device is held")
        return {}

    def drivers(self) -> list[str | None]:
        assert self.host.env is not None
        return [vfio.driver(self.host.env.root, address) for address in ADDRESSES]


@pytest.fixture
async def plugin() -> AsyncIterator[PluginProcess]:
    with short_folder() as folder:
        async with running_product(folder) as scene:
            process = PluginProcess(scene)
            await scene.store.create(kinds.NODE, {"metadata": {"name": HOST}})  # as its kubelet does
            await process.permit(PERMITTED)
            await process.start()
            try:
                yield process
            finally:
                await process.stop()


async def run_pod(scene: PluginScene, name: str, count: int = 1) -> None:
    await scene.create(kinds.POD, name, {"nodeName": scene.host.name, "containers": [
        {"name": "c", "image": "i", "resources": {"limits": {VF: str(count)}}}]})


async def offered(scene: PluginScene, healthy: int, listed: int = 2) -> None:
    async def check() -> bool:
        status = (await scene.find(kinds.NODE, scene.host.name) or {})["status"]
        return (status["capacity"].get(VF), status["allocatable"].get(VF)) == (str(listed), str(healthy))

    await scene.reach(check, f"{healthy} of {listed} devices are healthy")


async def test_a_pod_and_a_vm_have_our_devices_until_they_end(plugin: PluginProcess) -> None:
    scene = plugin.scene
    await offered(scene, 2)
    manager = scene.host.device_manager
    assert manager is not None
    assert {each.numa_nodes for each in manager.resources[VF].devices.values()} == {(1,)}
    await run_pod(scene, "web")
    await scene.runs("web")
    await plugin.holders("web")
    [answer] = manager.allocations.values()
    assert answer.envs == {"PCI_RESOURCE_EXAMPLE_COM_VF": ADDRESSES[0]}
    control, group = (outside for _, outside, _ in answer.devices)
    assert control == "/dev/vfio/vfio"
    assert group.startswith("/dev/vfio/")
    assert len(answer.cdi_ids) == 1
    assert plugin.drivers() == ["vfio-pci", "iavf"]
    await scene.vm("blue", VF)
    assert await scene.devices_of("blue") == [ADDRESSES[1]]
    launcher = (await scene.pod("blue"))["metadata"]["name"]
    await plugin.holders("web", launcher)
    assert plugin.drivers() == ["vfio-pci", "vfio-pci"]
    await scene.delete(kinds.POD, "web")
    await scene.delete(kinds.VM, "blue")
    await plugin.holders()
    assert plugin.drivers() == ["iavf", "iavf"], "as they were before"


async def test_it_registers_again_when_the_kubelet_was_restarted_and_a_restart_of_its_own_keeps_what_pods_have(
    plugin: PluginProcess,
) -> None:
    scene = plugin.scene
    await offered(scene, 2)
    await run_pod(scene, "web")
    await scene.runs("web")
    held = await plugin.holders("web")
    await plugin.stop()
    await offered(scene, 0)
    await plugin.start()
    await offered(scene, 2)
    assert await plugin.holders("web") == held
    for path in (scene.folder / "device-plugins").glob("outfitter-*"):  # as the kubelet does when it starts
        path.unlink()
    await run_pod(scene, "second")
    await scene.runs("second")
    assert len(await plugin.holders("web", "second")) == 2


async def test_what_others_hold_is_not_offered_and_allocate_refuses_it(plugin: PluginProcess) -> None:
    scene, name = plugin.scene, "pci-0000-3b-00-0-vf0"
    await offered(scene, 2)
    now = rfc3339(scene.clock.now()) if scene.clock else ""
    claim = Holder(kinds.RESOURCE_CLAIM.kind, "scene", "gold", "u1")
    await book.book(scene.store, HOST, [Booking(plugin.host.device(name), claim, "nic", "prepared", now, prepared=now)])
    with pytest.raises(AlreadyHeld, match="gold") as refused:
        await plugin.allocations.allocate(VF, [name])
    assert refused.value.rejection.code is RejectionCode.HELD
    assert await plugin.page() == {name: (kinds.RESOURCE_CLAIM.kind, "gold", "prepared")}
    await offered(scene, 1)
    await book.set_state(scene.store, HOST, "u1", "released")
    await book.release(scene.store, HOST, "u1")
    await offered(scene, 2)
    await out_of_service.quarantine(scene.store, HOST, plugin.host.device(name), by="a test", reason="smoke", now=now)
    await offered(scene, 1)


@pytest.mark.thorough
async def test_an_allocation_that_no_pod_got_is_released(plugin: PluginProcess) -> None:
    scene, name = plugin.scene, "pci-0000-3b-00-0-vf0"
    await offered(scene, 2)
    await plugin.allocations.allocate(VF, [name])
    assert [state for _, _, state in (await plugin.page()).values()] == ["prepared"]
    await plugin.allocations.allocate(VF, [name])  # as a kubelet does that was restarted in between
    assert len(await plugin.page()) == 1
    await plugin.holders()
    assert plugin.drivers() == ["iavf", "iavf"]


@pytest.mark.thorough
async def test_devices_of_the_plugin_are_tainted_for_claims(plugin: PluginProcess) -> None:
    slices = [part for part in (await plugin.scene.store.list(kinds.RESOURCE_SLICE)).items if part["spec"]["nodeName"] == HOST]
    taints = {device["name"]: [taint["key"] for taint in device.get("taints") or ()] for part in slices
              for device in part["spec"]["devices"]}
    assert taints == {f"pci-0000-3b-00-0-vf{number}": ["outfitter.dev/device-plugin"] for number in range(2)}
    await plugin.permit()

    async def offered_to_claims() -> bool:
        parts = (await plugin.scene.store.list(kinds.RESOURCE_SLICE)).items
        return not any(device.get("taints") for part in parts for device in part["spec"].get("devices") or ())

    await plugin.scene.reach(offered_to_claims, "claims may have them again")
    await offered(plugin.scene, 0, listed=0)
