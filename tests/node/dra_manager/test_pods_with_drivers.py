"""Pods and VMs with devices of other DRA drivers on hosts that outfitter runs: the whole product, and a driver that registers
in the host's kubelet folder and answers over unix sockets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from outfitter import app
from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode
from outfitter.inventory.config import Config, HostSettings, UnhealthyDevice
from outfitter.inventory.simulation import hosts_file
from outfitter.node.dra_manager.driver_controller import TAINT
from outfitter.scheduling.placement import Waiting
from outfitter.store.clock import ManualClock
from tests.controllers import scenario
from tests.controllers.scenario import hosts_text
from tests.node.dra_manager.driver_server import PREPARE, UNPREPARE, DriverServer
from tests.node.socket_scene import SocketScene

NET = "net.d.io"
ADDRESS = "resource.kubernetes.io/pciBusID"


@dataclass
class DriverScene(SocketScene):
    folder: Path = Path()
    drivers: list[DriverServer] = field(default_factory=list)

    async def driver_process(self, **keys: Any) -> DriverServer:
        socket, registry = self.folder / "plugins" / NET / "dra.sock", self.folder / "plugins_registry"
        self.drivers.append(await DriverServer(NET, socket, registry=registry, **keys).start())
        return self.drivers[-1]

    async def publish(self, *devices: str) -> None:
        """Each device at an address of its own."""
        await self.create(kinds.RESOURCE_SLICE, "theirs", {
            "driver": NET, "nodeName": self.host.name, "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": name, "attributes": {ADDRESS: {"string": f"0000:{65 + number}:00.0"}}}
                        for number, name in enumerate(devices)]})
        await self.create(kinds.DEVICE_CLASS, "theirs", {"selectors": [{"cel": {"expression": f'device.driver == "{NET}"'}}]})
        await self.template("theirs", "gpu", deviceClassName="theirs")

    async def vm(self, name: str) -> None:
        await self.machine(name, scenario.device("g", request="gpu"), template="theirs")

    async def pod_with_claim(self, name: str) -> None:
        await self.create(kinds.POD, name, {
            "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "theirs"}],
            "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "nic"}]}}]})

    async def pod_when(self, name: str, holds: Callable[[Object], Any], what: str) -> Object:
        async def check() -> Object | None:
            found = await self.find(kinds.POD, name)
            return found if found is not None and holds(found) else None

        return await self.reach(check, f"pod {name}: {what}")

    async def runs(self, name: str) -> Object:
        return await self.pod_when(name, lambda pod: pod["status"].get("phase") == "Running", "runs")


@contextlib.asynccontextmanager
async def scene_with(
    folder: Path, policy: UnhealthyDevice = UnhealthyDevice.NOTHING, *, expected: bool = True
) -> AsyncIterator[DriverScene]:
    clock, config = ManualClock(), Config(HostSettings(unhealthy_device=policy))
    hosts = app.simulated_hosts(hosts_file.parse(hosts_text("node", 1), "node").hosts, config=config)
    hosts = [replace(host, kubelet_dir=folder / host.name, drivers_expected=expected) for host in hosts]
    async with app.embedded(hosts=hosts, clock=clock, config=config) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "scene"}})
        scene = DriverScene(product, "scene", clock, folder / hosts[0].name)
        try:
            yield scene
        finally:
            for driver in scene.drivers:
                await driver.stop()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[DriverScene]:
    async with scene_with(tmp_path) as scene:
        yield scene


async def test_a_vm_has_the_device_that_its_driver_prepared(scene: DriverScene) -> None:
    await scene.publish("d0")
    await scene.vm("blue")
    waiting = await scene.reach(lambda: _rejected(scene, "blue", RejectionCode.DRIVER_NOT_REGISTERED), "waits for its driver")
    assert NET in waiting
    driver = await scene.driver_process()
    await scene.running("blue")
    [claim] = await scene.all(kinds.RESOURCE_CLAIM)
    name = claim["metadata"]["name"]
    await scene.reach(lambda: _notified(driver), "the driver knows that it is registered")
    assert driver.notified == [(True, "")]
    assert driver.claims(PREPARE) == [(name,)]
    [domain] = await scene.domains()
    assert list(domain.devices) == ["0000:65:00.0"]
    await scene.delete(kinds.VMI, "blue")
    await scene.empty()
    assert driver.claims(UNPREPARE) == [(name,)]


async def _notified(driver: DriverServer) -> bool:
    return bool(driver.notified)


async def _rejected(scene: DriverScene, name: str, code: RejectionCode) -> str:
    found = await scene.find(kinds.VMI, name) or {}
    return str((conditions.find(found, f"{rejection_conditions.PREFIX}{code}") or {}).get("message") or "")


async def test_a_pod_waits_for_what_its_driver_answers(scene: DriverScene) -> None:
    await scene.publish("d0")
    driver = await scene.driver_process(errors={(PREPARE, ""): "no firmware"})
    await scene.pod_with_claim("p")
    pod = await scene.pod_when("p", lambda pod: "no firmware" in str(pod["status"].get("message")), "waits")
    assert pod["status"]["phase"] == "Pending"
    driver.errors = {(UNPREPARE, ""): "still busy"}
    await scene.runs("p")
    await scene.delete(kinds.POD, "p")
    await scene.pod_when("p", lambda pod: "still busy" in str(pod["status"].get("message")), "stays")
    [booking] = await scene.bookings()
    assert booking.state == "prepared", "no other claim gets it before it is unprepared"
    driver.errors = {}

    async def gone() -> bool:
        return await scene.find(kinds.POD, "p") is None

    await scene.reach(gone, "the pod goes")


async def test_unhealthy_devices_are_tainted_and_shown_where_they_are_used(scene: DriverScene) -> None:
    await scene.publish("d0")
    driver = await scene.driver_process(devices={"": ["d0"]})
    await scene.vm("blue")
    await scene.running("blue")
    driver.report(d0=("Unhealthy", 3600))
    why = await scene.waits("blue", conditions.DEVICES_HEALTHY, "d0", "unhealthy")
    assert "d0 is Unhealthy" in why, "in the driver's words"
    assert any("d0" in message for message in await scene.events("DeviceUnhealthy"))
    pod = await scene.pod("blue")
    assert conditions.find(pod, conditions.DEVICES_HEALTHY) is not None

    async def rules() -> list[Object]:
        return await scene.all(kinds.DEVICE_TAINT_RULE)

    [rule] = await scene.reach(rules, "it is tainted")
    assert rule["spec"]["deviceSelector"] == {"driver": NET, "pool": "n1", "device": "d0"}
    assert (rule["spec"]["taint"]["key"], rule["spec"]["taint"]["effect"]) == (TAINT, "NoSchedule")
    driver.report(d0=("Healthy", 3600))

    async def healthy() -> bool:
        return not await rules() and await scene.condition("blue", conditions.DEVICES_HEALTHY) is None

    await scene.reach(healthy, "it is healthy again")


async def test_health_is_in_the_status_of_the_container(scene: DriverScene) -> None:
    await scene.publish("d0")
    driver = await scene.driver_process(devices={"": ["d0"]})
    driver.health = {"d0": ("Healthy", 3600)}
    await scene.pod_with_claim("p")

    def health(pod: Object) -> Any:
        return [(entry["name"], resource["resourceID"], resource["health"])
                for status in pod["status"].get("containerStatuses") or ()
                for entry in status.get("allocatedResourcesStatus") or () for resource in entry["resources"]]

    await scene.pod_when("p", lambda pod: health(pod) == [("claim:nic", f"{NET}/dev=d0", "Healthy")], "healthy")
    driver.report(d0=("Unhealthy", 3600))
    await scene.pod_when("p", lambda pod: health(pod) == [("claim:nic", f"{NET}/dev=d0", "Unhealthy")], "unhealthy")
    driver.end_streams()
    await scene.pod_when("p", lambda pod: health(pod) == [("claim:nic", f"{NET}/dev=d0", "Unknown")], "unknown")


async def test_with_the_policy_restart_its_holder_goes_and_another_device_is_used(tmp_path: Path) -> None:
    async with scene_with(tmp_path, UnhealthyDevice.RESTART) as scene:
        await scene.publish("d0", "d1")
        driver = await scene.driver_process()
        await scene.pod_with_claim("p")
        await scene.runs("p")
        [claim] = await scene.all(kinds.RESOURCE_CLAIM)
        device = claim["status"]["allocation"]["devices"]["results"][0]["device"]
        driver.report(**{device: ("Unhealthy", 3600)})

        async def gone() -> bool:
            return await scene.find(kinds.POD, "p") is None

        await scene.reach(gone, "the pod is evicted")
        assert driver.claims(UNPREPARE) == [(claim["metadata"]["name"],)]
        await scene.pod_with_claim("q")
        await scene.runs("q")
        [booking] = await scene.bookings()
        assert booking.device.device not in ("", device)


async def test_with_the_policy_quarantine_it_stays_out_of_service(tmp_path: Path) -> None:
    async with scene_with(tmp_path, UnhealthyDevice.QUARANTINE) as scene:
        await scene.publish("d0")
        driver = await scene.driver_process()
        driver.health = {"d0": ("Unhealthy", 3600)}

        async def rules() -> list[Object]:
            return await scene.all(kinds.DEVICE_TAINT_RULE)

        async def healthy() -> bool:
            return not await rules()

        await scene.reach(rules, "it is tainted")
        driver.report(d0=("Healthy", 3600))
        await scene.reach(healthy, "it is healthy again")
        await scene.vm("blue")
        await scene.rejected("blue", RejectionCode.TOO_FEW_FREE)
        verdict = (await scene.cluster_objects()).choose(await scene.pod("blue"))
        assert isinstance(verdict, Waiting)
        assert [each.code for _, host in verdict.hosts for each in host.taken] == [RejectionCode.QUARANTINED]


async def test_slices_of_a_driver_that_is_gone_are_deleted_after_a_while(scene: DriverScene) -> None:
    await scene.publish("d0")
    driver = await scene.driver_process()

    async def registered() -> bool:
        manager = scene.host.dra_manager
        return manager is not None and manager.drivers.usable(NET)

    async def gone() -> bool:
        return not await registered()

    await scene.reach(registered, "the driver is registered")
    await driver.stop()
    await scene.reach(gone, "the driver is gone")
    await scene.settle()
    assert await scene.find(kinds.RESOURCE_SLICE, "theirs") is not None

    async def deleted() -> bool:
        return await scene.find(kinds.RESOURCE_SLICE, "theirs") is None

    await scene.reach(deleted, "its slice is deleted")


async def test_in_a_folder_that_nothing_named_only_drivers_with_a_place_there_are_waited_for(tmp_path: Path) -> None:
    """Slices may be written by hand, or by a program without a socket."""
    async with scene_with(tmp_path, expected=False) as scene:
        await scene.publish("d0", "d1")
        await scene.vm("blue")
        await scene.running("blue")
        assert scene.host.dra_manager is not None
        assert not scene.host.dra_manager.recorded()
        (scene.folder / "plugins" / NET).mkdir(parents=True)
        await scene.vm("green")
        await scene.reach(lambda: _rejected(scene, "green", RejectionCode.DRIVER_NOT_REGISTERED), "waits for its driver")
        driver = await scene.driver_process()
        await scene.running("green")
        assert len(driver.claims(PREPARE)) == 1
        await scene.delete(kinds.VMI, "blue")
        await scene.delete(kinds.VMI, "green")
        await scene.empty()
