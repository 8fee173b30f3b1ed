"""GPUs and host devices that do not travel and whose guest agrees: released before the copy, another one plugged on the target;
after a failure or a cancellation the VM has its own again. Through the API on simulated hosts, with all controllers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_status, reattached_devices
from outfitter.errors import Invalid
from outfitter.inventory import config, scan
from outfitter.inventory.config import Config
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher.migration.simulated_copy import SimulatedCopy
from outfitter.launcher.simulated import Simulated
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene

# Two GPUs that do not travel, and a disk that does.
HOST = """
- name: node-{letter}
  pci:
  - {{address: "0000:{bus}1:00.0", vendor: 10de, product: 2235, class: 030200, driver: nouveau}}
  - {{address: "0000:{bus}2:00.0", vendor: 10de, product: 2235, class: 030200, driver: nouveau}}
  - {{address: "0000:{bus}3:00.0", vendor: 144d, product: a80a, class: 010802, driver: nvme}}
"""
HOSTS = "hosts:" + HOST.format(letter="a", bus="1") + HOST.format(letter="b", bus="c").lstrip("\n")
DEVICE_SPEC = """
device_spec:
- {vendor_id: 10de, product_id: 2235}
- {vendor_id: 144d, product_id: a80a, live_migratable: "yes"}
"""
CONFIG = config.parse(DEVICE_SPEC)
OWN = "pci.outfitter.dev"
SLOW = SimulatedCopy(bandwidth=1 << 26)  # sixteen seconds for a guest of 1 GiB


class OneIsKept(Simulated):
    """A hypervisor whose guests do not release one of several devices."""

    kept = ""  # its PCI address

    async def detach_device(self, uid: str, alias: str) -> float | None:
        domain = (await self.domains())[uid]
        if any(device.alias == alias and device.source == self.kept for device in domain.host_devices):
            return 5.0
        return await super().detach_device(uid, alias)


@contextlib.asynccontextmanager
async def running(settings: Config = CONFIG, hosts_text: str = HOSTS) -> AsyncIterator[Scene]:
    clock = ManualClock()
    hosts = [replace(host, hypervisor=OneIsKept(monotonic=clock.monotonic))
             for host in app.simulated_hosts(hosts_file.parse(hosts_text).hosts, None, settings)]
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random(1)), config=settings) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        scene = Scene(product, "here", clock)
        for name, number in {"gpu": "2235", "disk": "a80a"}.items():
            expression = f'device.driver == "{OWN}" && device.attributes["{OWN}"].product == "{number}"'
            await scene.create(kinds.DEVICE_CLASS, name, {"selectors": [{"cel": {"expression": expression}}]})
            await scene.create(kinds.RESOURCE_CLAIM_TEMPLATE, name, {"spec": claim(name)})
        yield scene
        await scene.nothing_missed()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with running() as made:
        yield made


def claim(class_: str, **more: Any) -> Object:
    return {"devices": {"requests": [{"name": "card", "exactly": {"deviceClassName": class_, **more}}]}}


def lists(*names: str) -> Object:
    """Of a template's spec: a host device by a claim from the ResourceClaimTemplate of its name, "gpu" or "gpu-NUMBER"."""
    return {"resourceClaims": [{"name": name, "resourceClaimTemplateName": name.partition("-")[0]} for name in names],
            "domain": {"memory": {"guest": "1Gi"}, "devices": {
                "hostDevices": [{"name": name, "claimName": name, "requestName": "card"} for name in names]}}}


def annotated(text: str | None) -> Object:
    return {"annotations": {reattached_devices.DECLARED: text}}


async def start(scene: Scene, spec: Object, declared: str | None = "*", name: str = "blue", **more: Any) -> str:
    """A VM; the host on which it runs."""
    meta = annotated(declared) if declared is not None else {}
    await scene.create(kinds.VM, name, {"runStrategy": "Always", **more, "template": {"metadata": meta, "spec": spec}})

    async def check() -> str | None:
        vmi = await scene.find(kinds.VMI, name) or {}
        return vmi["status"].get("nodeName") if conditions.find(vmi, "LiveMigratable") else None

    return await scene.reach(check, f"{name} runs")


async def vmi_of(scene: Scene, name: str = "blue") -> Object:
    return await scene.store.get(kinds.VMI, name, "here")


def hypervisor(scene: Scene, host: str) -> OneIsKept:
    found = next(one.hypervisor for one in scene.product.hosts if one.name == host)
    assert isinstance(found, OneIsKept)
    return found


def entries(vmi: Object) -> list[tuple[str, str, str]]:
    """Name, pool and address of each host device."""
    return sorted((entry["name"], status["pool"], status["attributes"]["pciAddress"])
                  for entry in device_status.statuses(vmi, "hostDevices") if (status := entry["deviceResourceClaimStatus"]))


async def in_domain(scene: Scene, host: str) -> list[str]:
    return sorted(address for domain in (await hypervisor(scene, host).domains()).values() for address in domain.devices)


async def migrate(scene: Scene, phase: str = "Succeeded") -> Object:
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})
    return await ended(scene, phase)


async def ended(scene: Scene, phase: str) -> Object:
    async def check() -> Object | None:
        job = await scene.find(kinds.MIGRATION, "move")
        return job if job and (job.get("status") or {}).get("phase") in ("Succeeded", "Failed") else None

    job = await scene.reach(check, "the migration has ended")
    assert job["status"]["phase"] == phase, job["status"]
    return job


def devices_of(job: Object) -> str:
    return str((conditions.find(job, "migrationDevices") or {}).get("message"))


async def has(scene: Scene, host: str, *names: str) -> None:
    """Status and domain have these devices of a host, nothing waits, and nothing else is held."""
    async def check() -> bool:
        vmi = await vmi_of(scene)
        found = entries(vmi)
        return vmi["status"]["nodeName"] == host and [(name, pool) for name, pool, _ in found] == [
            (name, host) for name in sorted(names)] and sorted(address for *_, address in found) == await in_domain(
            scene, host) and conditions.find(vmi, "DevicesPlugged") is None and {
            booking.device.pool for booking in await scene.bookings()} == {host}

    await scene.reach(check, f"blue has {names} of {host}")
    await scene.check_books()


def drivers(scene: Scene, *addresses: str) -> set[str | None]:
    """The drivers of devices, on the hosts that have them."""
    return {device.driver for host in scene.product.hosts for device in scan.scan(host.tree()).devices
            if device.address in addresses}


VMS: dict[str, tuple[Callable[[], Object], str, str]] = {  # a VM: its spec, the devices, what the plan says
    "one": (lambda: lists("gpu"), "gpu", "gpu: reattached"),
    "two": (lambda: lists("gpu-1", "gpu-2"), "gpu-1,gpu-2", "gpu-1: reattached; gpu-2: reattached"),
    "beside one that travels": (lambda: lists("gpu", "disk"), "gpu", "gpu: reattached; disk: travels"),
}


@pytest.mark.parametrize("case", VMS)
async def test_device_is_left_behind_and_another_one_plugged(scene: Scene, case: str) -> None:
    spec, declared, plan = VMS[case]
    source = await start(scene, spec(), declared)
    before = entries(await vmi_of(scene))
    names = [name for name, *_ in before]
    job = await migrate(scene)
    assert devices_of(job) == plan
    target = (await vmi_of(scene))["status"]["nodeName"]
    assert target != source
    await has(scene, target, *names)
    assert await in_domain(scene, source) == []
    assert {booking.holder.purpose for booking in await scene.bookings()} == {"vmi/blue"}
    assert "vfio-pci" not in drivers(scene, *(address for *_, address in before)), "those of the source are as they were"
    assert drivers(scene, *await in_domain(scene, target)) == {"vfio-pci"}
    assert len(await scene.all(kinds.RESOURCE_CLAIM)) == len(names)
    assert sorted(await scene.events("DevicePlugged")) == sorted(
        f"host device {name} is plugged on {target}" for name in names if name != "disk")
    assert not [pod for pod in await scene.all(kinds.POD) if "hotplug" in str(pod["metadata"]["labels"])]


@pytest.mark.parametrize("how", ["its own claim", "two devices of a request", "plugged while it ran"])
async def test_device_of_any_claim_that_can_follow_comes_and_goes(scene: Scene, how: str) -> None:
    """There and back again."""
    name = "gpu"
    if how == "its own claim":
        spec = {"domain": lists("gpu")["domain"]}
        await start(scene, spec, resourceClaimTemplates=[{"name": "gpu", "spec": {"spec": claim("gpu")}}])
    elif how == "two devices of a request":
        await scene.create(kinds.RESOURCE_CLAIM_TEMPLATE, "both", {"spec": claim("gpu", count=2)})
        await start(scene, lists("both"), "both")
        name = "both"
    else:
        await start(scene, lists())
        await scene.store.patch(kinds.VM, "blue", {"spec": {"template": {"spec": lists("gpu")}}}, "here")

    async def count() -> int:
        return len(entries(await vmi_of(scene)))

    await scene.reach(count, "it has devices")
    names, source = [name] * await count(), (await vmi_of(scene))["status"]["nodeName"]
    await has(scene, source, *names)
    await migrate(scene)
    target = (await vmi_of(scene))["status"]["nodeName"]
    assert target != source
    await has(scene, target, *names)
    await scene.delete(kinds.MIGRATION, "move")
    await migrate(scene)
    await has(scene, source, *names)
    await scene.store.patch(kinds.VM, "blue", {"spec": {"template": {"spec": {"domain": {"devices": {
        "hostDevices": None}}}}}}, "here")

    async def unplugged() -> bool:
        return not await count() and not await in_domain(scene, source)

    await scene.reach(unplugged, "it can be unplugged")


async def test_domain_arrives_without_it_and_a_plug_that_fails_is_tried_again(scene: Scene) -> None:
    source = await start(scene, lists("gpu"))
    target = {"node-a": "node-b", "node-b": "node-a"}[source]
    refusing = dict.fromkeys(("0000:11:00.0", "0000:12:00.0", "0000:c1:00.0", "0000:c2:00.0"), "no room")
    hypervisor(scene, target).refusing.update(refusing)
    await migrate(scene)

    async def waits() -> bool:
        found = conditions.find(await vmi_of(scene), "DevicesPlugged") or {}
        return found.get("reason") == "DeviceNotPlugged"

    await scene.reach(waits, "the plug has failed")
    assert (await in_domain(scene, target), [pool for _, pool, _ in entries(await vmi_of(scene))]) == ([], [target])
    hypervisor(scene, target).refusing.clear()
    await has(scene, target, "gpu")


@pytest.mark.parametrize("timeout", [2, 30])
async def test_guest_that_keeps_it_does_not_migrate(timeout: int) -> None:
    settings = replace(CONFIG, default=replace(CONFIG.default, unplug_timeout=timedelta(seconds=timeout)))
    async with running(settings) as scene:
        source = await start(scene, lists("gpu"))
        before, held = entries(await vmi_of(scene)), await scene.bookings()
        hypervisor(scene, source).keeping_devices.add((await vmi_of(scene))["metadata"]["uid"])
        assert scene.clock is not None
        begun = scene.clock.monotonic()
        job = await migrate(scene, "Failed")
        assert job["status"]["migrationState"]["failureCode"] == "DeviceKeptByGuest"
        assert job["status"]["migrationState"]["failureReason"].startswith("gpu: ")
        assert timeout <= scene.clock.monotonic() - begun < timeout + 5
        await has(scene, source, "gpu")
        assert (entries(await vmi_of(scene)), await scene.bookings()) == (before, held)


async def test_guest_that_keeps_one_of_two_gets_the_other_back() -> None:
    async with running() as scene:
        await scene.create(kinds.RESOURCE_CLAIM_TEMPLATE, "both", {"spec": claim("gpu", count=2)})
        source = await start(scene, lists("both"))
        before = entries(await vmi_of(scene))
        hypervisor(scene, source).kept = before[1][2]
        await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})

        async def asked() -> bool:
            return await in_domain(scene, source) == [before[1][2]]

        await scene.reach(asked, "one is released")
        job = await ended(scene, "Failed")
        assert job["status"]["migrationState"]["failureCode"] == "DeviceKeptByGuest"
        await has(scene, source, "both", "both")
        assert entries(await vmi_of(scene)) == before


async def test_cancelled_while_it_is_copied_it_has_its_device_again(scene: Scene) -> None:
    source = await start(scene, lists("gpu", "disk"))
    before = entries(await vmi_of(scene))
    disk = next(address for name, _, address in before if name == "disk")
    hypervisor(scene, source).copy = SLOW
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})

    async def copying() -> bool:
        return await in_domain(scene, source) == [disk]

    await scene.reach(copying, "the GPU is released")
    assert scene.clock is not None
    for _ in range(6):  # it is not plugged again while it is copied, nor is anything else unplugged
        scene.clock.advance(1)
        await scene.settle()
        assert await copying()
    await scene.delete(kinds.MIGRATION, "move")
    await has(scene, source, "gpu", "disk")
    assert entries(await vmi_of(scene)) == before


async def test_copy_that_fails_gives_it_back(scene: Scene) -> None:
    source = await start(scene, lists("gpu"))
    before = entries(await vmi_of(scene))
    hypervisor(scene, source).copy = SimulatedCopy(fails="the network is gone")
    await migrate(scene, "Failed")
    await has(scene, source, "gpu")
    assert entries(await vmi_of(scene)) == before
    hypervisor(scene, source).copy = SimulatedCopy()
    await scene.delete(kinds.MIGRATION, "move")
    await migrate(scene)
    await has(scene, (await vmi_of(scene))["status"]["nodeName"], "gpu")


async def test_without_a_free_twin_it_waits(scene: Scene) -> None:
    source = await start(scene, lists("gpu"))
    other = {"node-a": "node-b", "node-b": "node-a"}[source]
    await start(scene, {**lists("gpu-1", "gpu-2"), "nodeSelector": {"kubernetes.io/hostname": other}}, name="green")
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})

    async def waits() -> Object | None:
        devices = conditions.find(await scene.find(kinds.MIGRATION, "move") or {}, "migrationDevices") or {}
        return dict(devices) if devices.get("reason") else None

    devices = await scene.reach(waits, "it waits for a device")
    assert devices["reason"] == "NoFreeTwin"
    assert devices["message"].startswith("gpu: cannot be reattached now (NoFreeTwin: ")
    assert devices["message"].count("held by vmi/green") == 2
    await scene.delete(kinds.VM, "green")
    assert devices_of(await ended(scene, "Succeeded")) == "gpu: reattached"


async def test_owner_who_no_longer_permits_it_ends_a_migration_that_waits(scene: Scene) -> None:
    source = await start(scene, lists("gpu"))
    other = {"node-a": "node-b", "node-b": "node-a"}[source]
    await start(scene, {**lists("gpu-1", "gpu-2"), "nodeSelector": {"kubernetes.io/hostname": other}}, name="green")
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})

    async def waits() -> bool:
        found = conditions.find(await scene.find(kinds.MIGRATION, "move") or {}, "migrationWaiting") or {}
        return found.get("reason") == "TargetUnschedulable"

    await scene.reach(waits, "no host can take it")
    await scene.store.patch(kinds.VM, "blue", {"spec": {"template": {"metadata": annotated(None)}}}, "here")
    await scene.delete(kinds.VM, "green")
    job = await ended(scene, "Failed")
    assert (conditions.find(job, "migrationFailed") or {})["reason"] == "NotLiveMigratable"
    await has(scene, source, "gpu")


async def blocked(scene: Scene) -> str:
    found = conditions.find(await vmi_of(scene), "LiveMigratable") or {}
    return str(found.get("message")) if found.get("status") == "False" else ""


async def test_it_blocks_unless_it_is_declared_and_the_template_changes_that_live(scene: Scene) -> None:
    source = await start(scene, lists("gpu"), None)
    assert "not marked as live migratable" in await blocked(scene)
    with pytest.raises(Invalid):
        await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})
    for text, blocks in (("disk", True), ("gpu", False), (None, True), ("*", False)):
        await scene.store.patch(kinds.VM, "blue", {"spec": {"template": {"metadata": annotated(text)}}}, "here")
        await scene.settle()
        assert reattached_devices.declared((await vmi_of(scene))["metadata"]) == text
        assert bool(await blocked(scene)) == blocks, text
        vm = await scene.store.get(kinds.VM, "blue", "here")
        assert conditions.find(vm, "RestartRequired") is None
    await migrate(scene)
    assert (await vmi_of(scene))["status"]["nodeName"] != source


async def test_claim_by_name_blocks_though_it_is_declared(scene: Scene) -> None:
    await scene.create(kinds.RESOURCE_CLAIM, "mine", claim("gpu"))
    spec = {**lists("gpu"), "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}
    await start(scene, spec)
    assert "referenced by name" in await blocked(scene)


@pytest.mark.parametrize("where", ["on its own host", "on the other host"])
async def test_host_that_plugs_nothing_in_place_neither_gives_nor_takes_it(where: str) -> None:
    off = "node-a" if where == "on its own host" else "node-b"
    settings = config.parse(f"{DEVICE_SPEC}\nhosts: {{{off}: {{plug_in_place: false}}}}")
    async with running(settings) as scene:
        source = await start(scene, lists("gpu"))
        assert source == "node-a"
        if source == off:
            assert "plugs no claimed devices into running VMs" in await blocked(scene)
            return
        await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})

        async def waits() -> bool:
            found = conditions.find(await scene.find(kinds.MIGRATION, "move") or {}, "migrationWaiting") or {}
            return found.get("reason") == "TargetUnschedulable"

        await scene.reach(waits, "no host can take it")
        await has(scene, source, "gpu")
        await scene.delete(kinds.MIGRATION, "move")
        await scene.settle()
