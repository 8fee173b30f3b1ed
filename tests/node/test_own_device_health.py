"""Our own devices that fail while a VM has them: the condition and the event of the VM, and what the policy does next."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.ledger_page.page import Booking
from outfitter.inventory.config import Config, HostSettings, UnhealthyDevice
from outfitter.inventory.simulation import hosts_file
from outfitter.ledger import book, out_of_service
from outfitter.node.simulation.root import SimulatedRoot
from outfitter.store.clock import ManualClock
from tests.controllers.scenario import Scene, addresses, hosts_text


@contextlib.asynccontextmanager
async def scene_with(policy: UnhealthyDevice) -> AsyncIterator[Scene]:
    """One host with two VFs, and a VM with one of them."""
    clock, config = ManualClock(), Config(HostSettings(unhealthy_device=policy))
    hosts = app.simulated_hosts(hosts_file.parse(hosts_text("node", 2), "node").hosts, config=config)
    async with app.embedded(hosts=hosts, clock=clock, config=config) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "scene"}})
        scene = Scene(product, "scene", clock)
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
        yield scene


async def vanish(scene: Scene) -> str:
    """The VF of the VM disappears from the bus: its name."""
    [booking] = await scene.bookings()
    vmi = await scene.find(kinds.VMI, "blue")
    assert vmi is not None
    assert scene.host.env is not None
    root = scene.host.env.root
    assert isinstance(root, SimulatedRoot)
    root.kernel.vanish(addresses(vmi)[0])
    await scene.product.host_audit.audit(scene.host.name)
    return booking.device.device


async def test_the_vm_that_has_a_device_which_vanished_gets_a_condition_and_an_event() -> None:
    async with scene_with(UnhealthyDevice.NOTHING) as scene:
        name = await vanish(scene)
        await scene.waits("blue", conditions.DEVICES_HEALTHY, name, "no longer on the bus")
        assert any(name in message for message in await scene.events("DeviceUnhealthy"))
        assert conditions.find(await scene.pod("blue"), conditions.DEVICES_HEALTHY) is not None
        await scene.running("blue")
        await scene.nothing_missed()


async def test_a_quarantined_device_is_shown_on_its_vm_until_it_is_restored() -> None:
    async with scene_with(UnhealthyDevice.RESTART) as scene:
        [booking] = await scene.bookings()
        await out_of_service.quarantine(scene.store, scene.host.name, booking.device, by="admin", reason="too hot")
        await scene.waits("blue", conditions.DEVICES_HEALTHY, booking.device.device, "too hot")
        assert await _books(scene) == [booking], "what an operator does on a page evicts nothing"
        await out_of_service.restore(scene.store, scene.host.name, booking.device)

        async def healthy() -> bool:
            return await scene.condition("blue", conditions.DEVICES_HEALTHY) is None

        await scene.reach(healthy, "it is healthy again")
        assert await scene.events("DevicesHealthy")


async def test_with_the_policy_restart_the_pod_of_the_vm_is_evicted() -> None:
    async with scene_with(UnhealthyDevice.RESTART) as scene:
        name = await vanish(scene)
        await scene.phase("blue", "Failed")
        assert any(name in message for message in await scene.events("DeviceTaintManagerEviction"))


async def test_with_the_policy_quarantine_the_device_is_on_the_page() -> None:
    async with scene_with(UnhealthyDevice.QUARANTINE) as scene:
        name = await vanish(scene)
        await scene.settle()
        [record] = (await book.read(scene.store, scene.host.name)).quarantined
        assert (record.device.device, record.origin) == (name, "")
        await scene.running("blue")


async def _books(scene: Scene) -> list[Booking]:
    await scene.settle()
    return await scene.bookings()
