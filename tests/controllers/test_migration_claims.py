"""Live migrations of VMs whose devices come from claims of every shape, through the API on simulated hosts: what the target's
claim asks for, what the VM has afterwards, what is refused before anything is booked, and what is written for it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import device_status
from outfitter.errors import Invalid
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher.migration.simulated_copy import SimulatedCopy
from outfitter.launcher.simulated import Simulated
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene

# Two GPUs and a disk that travel, and a disk that does not.
HOST = """
- name: node-{letter}
  numa: [{{id: 0, cpus: 0-15, memory: 64Gi}}, {{id: 1, cpus: 16-31, memory: 64Gi}}]
  pci:
  - {{address: "0000:{bus}1:00.0", vendor: 10de, product: 2235, class: 030200, numa: 0}}
  - {{address: "0000:{bus}2:00.0", vendor: 10de, product: 2235, class: 030200, numa: 1}}
  - {{address: "0000:{bus}3:00.0", vendor: 144d, product: a80a, class: 010802, driver: nvme, numa: 0}}
  - {{address: "0000:{bus}4:00.0", vendor: 8086, product: 0b60, class: 010802, driver: nvme, numa: 0}}
"""
HOSTS = "hosts:" + HOST.format(letter="a", bus="1") + HOST.format(letter="b", bus="c").lstrip("\n")
CONFIG = config.parse("""
device_spec:
- {vendor_id: 10de, product_id: 2235, live_migratable: "yes"}
- {vendor_id: 144d, product_id: a80a, live_migratable: "yes"}
- {vendor_id: 8086, product_id: 0b60}
alias:
- {name: gpu, vendor_id: 10de, product_id: "2235", live_migratable: "yes"}
- {name: disk, vendor_id: 144d, product_id: a80a, live_migratable: "yes"}
- {name: any-gpu, vendor_id: 10de, product_id: "2235"}
""")
OWN = "pci.outfitter.dev"
OTHER = "fpga.example.com"  # a driver whose devices are published by hand
WRITTEN = (kinds.VM, kinds.VMI, kinds.MIGRATION, kinds.POD, kinds.RESOURCE_CLAIM, kinds.LEDGER_PAGE)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    clock = ManualClock()
    hosts = app.simulated_hosts(hosts_file.parse(HOSTS).hosts, None, CONFIG)
    for host in hosts:
        assert isinstance(host.hypervisor, Simulated)
        host.hypervisor._monotonic = clock.monotonic
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random(1)), config=CONFIG) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        found = Scene(product, "here", clock)
        for name, product_id in {"gpu": "2235", "disk": "a80a", "old-disk": "0b60"}.items():
            expression = f'device.driver == "{OWN}" && device.attributes["{OWN}"].product == "{product_id}"'
            await found.create(kinds.DEVICE_CLASS, name, {"selectors": [{"cel": {"expression": expression}}]})
        await found.create(kinds.DEVICE_CLASS, "fpga", {"selectors": [{"cel": {"expression": f'device.driver == "{OTHER}"'}}]})
        yield found
        await found.nothing_missed()


def exactly(class_: str, name: str = "card", **more: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": class_, **more}}


def first_of(*classes: str) -> Object:
    return {"name": "card", "firstAvailable": [{"name": f"as-{one}", "deviceClassName": one} for one in classes]}


async def fpgas(scene: Scene) -> None:
    """A device of another driver on each host, which its driver marks."""
    for number, host in enumerate(scene.product.hosts):
        devices = [{"name": "fpga-0", "attributes": {
            "liveMigratable": {"bool": True}, "resource.kubernetes.io/pciBusID": {"string": f"0000:e{number}:00.0"}}}]
        await scene.create(kinds.RESOURCE_SLICE, f"fpga-{host.name}", {
            "driver": OTHER, "nodeName": host.name, "devices": devices,
            "pool": {"name": host.name, "generation": 1, "resourceSliceCount": 1}})


class ClaimShape(NamedTuple):
    requests: list[Object]
    second: Callable[[Object], Any]  # of the spec of the target's claim
    expected: Any  # what that is
    devices: int = 1  # of the VM, before and after
    constraints: tuple[Object, ...] = ()


def _first_request(spec: Object) -> Object:
    request: Object = spec["devices"]["requests"][0]
    return request


SHAPES = {
    "one": ClaimShape([exactly("gpu")], lambda spec: _first_request(spec)["exactly"].get("count", 1), 1),
    "two": ClaimShape([exactly("gpu", count=2)], lambda spec: _first_request(spec)["exactly"]["count"], 2, devices=2),
    "All becomes a number": ClaimShape(
        [exactly("gpu", allocationMode="All")],
        lambda spec: (_first_request(spec)["exactly"]["allocationMode"], _first_request(spec)["exactly"]["count"]),
        ("ExactCount", 2), devices=2),
    "the alternative that it has": ClaimShape(
        [first_of("disk", "gpu")], lambda spec: [one["name"] for one in _first_request(spec)["firstAvailable"]], ["as-disk"]),
    "two requests on one NUMA node": ClaimShape(
        [exactly("gpu"), exactly("disk", "disk")], lambda spec: len(spec["devices"]["constraints"]), 1, devices=2,
        constraints=({"requests": ["card", "disk"], "matchAttribute": "resource.kubernetes.io/numaNode"},)),
    "two drivers": ClaimShape(
        [exactly("gpu"), exactly("fpga", "disk")], lambda spec: len(spec["devices"]["requests"]), 2, devices=2),
}


async def start(scene: Scene, requests: list[Object], *, constraints: tuple[Object, ...] = (), name: str = "blue") -> Object:
    """A VMI with a host device for each request of a claim from a template."""
    await scene.create(kinds.RESOURCE_CLAIM_TEMPLATE, name, {"spec": {"devices": {
        "requests": requests, **({"constraints": list(constraints)} if constraints else {})}}})
    devices = [{"name": request["name"], "claimName": "acc", "requestName": request["name"]} for request in requests]
    await scene.create(kinds.VMI, name, {
        "resourceClaims": [{"name": "acc", "resourceClaimTemplateName": name}],
        "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": devices}}})
    return await with_status(scene, name)


async def with_status(scene: Scene, name: str = "blue") -> Object:
    """The VMI, when it runs and its condition LiveMigratable is known."""
    async def check() -> Object | None:
        vmi = await scene.find(kinds.VMI, name)
        runs = vmi is not None and (vmi.get("status") or {}).get("phase") == "Running"
        return vmi if runs and conditions.find(vmi or {}, "LiveMigratable") else None

    return await scene.reach(check, f"{name} runs")


async def migrated(scene: Scene, name: str = "move") -> Object:
    async def check() -> Object | None:
        job = await scene.find(kinds.MIGRATION, name)
        return job if job and (job.get("status") or {}).get("phase") in ("Succeeded", "Failed") else None

    job = await scene.reach(check, f"{name} has ended")
    assert job["status"]["phase"] == "Succeeded", job["status"]
    return job


def entries(vmi: Object) -> list[tuple[str, str, str]]:
    """Name, pool and address of each device of a VMI."""
    found = []
    for entry in device_status.statuses(vmi, "hostDevices"):
        claim = entry["deviceResourceClaimStatus"]
        found.append((entry["name"], claim["pool"], claim["attributes"]["pciAddress"]))
    return sorted(found)


async def domain_devices(scene: Scene, host: str) -> list[str]:
    found = next(one for one in scene.product.hosts if one.name == host)
    return sorted(address for domain in (await found.hypervisor.domains()).values() for address in domain.devices)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_vm_has_as_many_devices_of_the_target(scene: Scene, shape: str) -> None:
    case = SHAPES[shape]
    await fpgas(scene)
    before = await start(scene, case.requests, constraints=case.constraints)
    source = before["status"]["nodeName"]
    assert len(entries(before)) == case.devices
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})
    await migrated(scene)
    vmi = await scene.find(kinds.VMI, "blue")
    assert vmi is not None
    target = vmi["status"]["nodeName"]
    assert target != source
    assert [(name, pool) for name, pool, _ in entries(vmi)] == [(name, target) for name, _, _ in entries(before)]
    assert sorted(address for _, _, address in entries(vmi)) == await domain_devices(scene, target)
    [claim] = await scene.all(kinds.RESOURCE_CLAIM)
    assert case.second(claim["spec"]) == case.expected
    await scene.check_books()
    assert {booking.holder.purpose for booking in await scene.bookings()} == {"vmi/blue"}


@pytest.mark.parametrize("end", ["arrives", "is cancelled"])
async def test_the_migration_is_the_holder_on_the_target_until_its_end(scene: Scene, end: str) -> None:
    source = (await start(scene, [exactly("gpu"), exactly("disk", "disk")]))["status"]["nodeName"]
    target = {"node-a": "node-b", "node-b": "node-a"}[source]
    for host in scene.product.hosts:
        assert isinstance(host.hypervisor, Simulated)
        host.hypervisor.copy = SimulatedCopy(bandwidth=1 << 26)  # sixteen seconds
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})

    async def copies() -> bool:
        job = await scene.find(kinds.MIGRATION, "move") or {}
        return (job.get("status") or {}).get("phase") == "Running"

    await scene.reach(copies, "it is copied")
    assert await held_for(scene) == {source: ["vmi/blue"] * 2, target: ["migration/move"] * 2}
    if end == "arrives":
        await migrated(scene)
    else:
        await scene.delete(kinds.MIGRATION, "move")

    async def one_host() -> bool:
        return len(await held_for(scene)) == 1

    await scene.reach(one_host, "the other host's devices are free")
    assert await held_for(scene) == {target if end == "arrives" else source: ["vmi/blue"] * 2}


async def held_for(scene: Scene) -> dict[str, list[str]]:
    """Host -> for what its pages say that its devices are held."""
    out: dict[str, list[str]] = {}
    for booking in await scene.bookings():
        out.setdefault(booking.device.pool, []).append(booking.holder.purpose)
    return out


FLAVORS = {
    "every alias travels": ({"pci_passthrough:alias": "gpu:1,disk:1"}, ""),
    "two of one alias": ({"pci_passthrough:alias": "gpu:2"}, ""),
    "one alias does not say so": ({"pci_passthrough:alias": "disk:1,any-gpu:1"}, "AliasNotMigratable"),
    "with pinned CPUs and NUMA": ({"pci_passthrough:alias": "gpu:1", "hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"}, ""),
}


@pytest.mark.parametrize("flavor", FLAVORS)
async def test_a_flavor_migrates_if_every_alias_says_so(scene: Scene, flavor: str) -> None:
    extra, code = FLAVORS[flavor]
    await scene.create(kinds.FLAVOR, "f", {"vcpus": 1, "memory": "1Gi", "extraSpecs": extra})
    await scene.create(kinds.VMI, "blue", {"flavor": {"name": "f"}, "domain": {"devices": {}}})
    before = await with_status(scene)
    source, held = before["status"]["nodeName"], await scene.bookings()
    if code:
        blocked = conditions.find(before, "LiveMigratable") or {}
        assert (blocked["status"], "any-gpu" in blocked["message"]) == ("False", True), blocked
        with pytest.raises(Invalid) as refused:
            await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})
        assert [cause.field for cause in refused.value.causes] == ["spec.vmiName"]
        await scene.settle()
        assert await scene.bookings() == held
        return
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})
    await migrated(scene)
    vmi = await scene.find(kinds.VMI, "blue")
    assert vmi is not None
    assert vmi["status"]["nodeName"] != source
    assert sorted(await domain_devices(scene, vmi["status"]["nodeName"])) == sorted(
        address for _, _, address in entries(vmi))
    assert len(await scene.bookings()) == len(held)


async def test_a_plugged_device_follows_like_one_that_the_vm_was_started_with(scene: Scene) -> None:
    for name in ("gpu", "disk"):
        await scene.create(kinds.RESOURCE_CLAIM_TEMPLATE, name, {"spec": {"devices": {"requests": [exactly(name)]}}})
    claims = [{"name": name, "resourceClaimTemplateName": name} for name in ("gpu", "disk")]
    devices = [{"name": name, "claimName": name, "requestName": "card"} for name in ("gpu", "disk")]
    await scene.create(kinds.VM, "blue", {"runStrategy": "Always", "template": {"spec": {
        "resourceClaims": claims[:1], "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": devices[:1]}}}}})
    source = (await with_status(scene))["status"]["nodeName"]
    await scene.store.patch(kinds.VM, "blue", {"spec": {"template": {"spec": {
        "resourceClaims": claims, "domain": {"devices": {"hostDevices": devices}}}}}}, "here")

    async def plugged() -> Object | None:
        vmi = await scene.find(kinds.VMI, "blue") or {}
        return vmi if len(entries(vmi)) == 2 and len(await domain_devices(scene, source)) == 2 else None

    await scene.reach(plugged, "the disk is plugged")
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})
    job = await migrated(scene)
    assert (conditions.find(job, "migrationDevices") or {})["message"] == "gpu: travels; disk: travels"
    await scene.settle()
    vmi = await scene.find(kinds.VMI, "blue")
    assert vmi is not None
    target = vmi["status"]["nodeName"]
    assert target != source
    assert [(name, pool) for name, pool, _ in entries(vmi)] == [("disk", target), ("gpu", target)]
    assert sorted(address for _, _, address in entries(vmi)) == await domain_devices(scene, target)
    assert await domain_devices(scene, source) == []

    async def released() -> bool:
        held = await scene.bookings()
        return len(held) == 2 and {booking.device.pool for booking in held} == {target}

    await scene.reach(released, "the source's devices are free")
    assert [pod["metadata"]["name"] for pod in await scene.all(kinds.POD) if "hotplug" in str(pod["metadata"]["labels"])] == []
    assert len(await scene.all(kinds.RESOURCE_CLAIM)) == 2
    await scene.check_books()


async def vm_with_templates(scene: Scene, *names: str) -> str:
    """A VM with a host device by a claim from the template of each name; the host on which it runs."""
    for name in ("gpu", "disk"):
        await scene.create(kinds.RESOURCE_CLAIM_TEMPLATE, name, {"spec": {"devices": {"requests": [exactly(name)]}}})
    claims, devices = device_lists(*names)
    await scene.create(kinds.VM, "blue", {"runStrategy": "Always", "template": {"spec": {
        "resourceClaims": claims, "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": devices}}}}})
    return str((await with_status(scene))["status"]["nodeName"])


def device_lists(*names: str) -> tuple[list[Object], list[Object]]:
    """resourceClaims and hostDevices for these devices; "mine" is a claim by name."""
    claims = [{"name": name, "resourceClaimName" if name == "mine" else "resourceClaimTemplateName": name} for name in names]
    return claims, [{"name": name, "claimName": name, "requestName": "card"} for name in names]


async def change_devices(scene: Scene, *names: str) -> None:
    """The template of the VM has these devices from now on."""
    claims, devices = device_lists(*names)
    await scene.store.patch(kinds.VM, "blue", {"spec": {"template": {"spec": {
        "resourceClaims": claims, "domain": {"devices": {"hostDevices": devices}}}}}}, "here")
    await scene.settle()


async def has_devices(scene: Scene, *names: str) -> str:
    """The host on which the VM runs, once status and domain have these devices and no other."""
    async def check() -> str | None:
        vmi = await scene.find(kinds.VMI, "blue") or {}
        host = str((vmi.get("status") or {}).get("nodeName") or "")
        found = [] if not host else await domain_devices(scene, host)
        reported = entries(vmi) if host else []
        return host if [name for name, _, _ in reported] == sorted(names) and sorted(
            address for _, _, address in reported) == found else None

    return await scene.reach(check, f"blue has {names}")


async def test_a_device_is_plugged_after_a_migration_with_another_one(scene: Scene) -> None:
    """The record of the migration names the devices that arrived; it does not take back what was plugged since."""
    source = await vm_with_templates(scene, "gpu")
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})
    await migrated(scene)
    await change_devices(scene, "gpu", "disk")
    target = await has_devices(scene, "gpu", "disk")
    assert target != source
    await change_devices(scene, "disk")
    assert await has_devices(scene, "disk") == target
    await scene.create(kinds.MIGRATION, "back", {"vmiName": "blue"})
    await migrated(scene, "back")
    assert await has_devices(scene, "disk") == source


@pytest.mark.parametrize("other", ["gpu", "mine"], ids=["of a template", "by name"])
async def test_a_claim_whose_device_was_unplugged_stays_behind(scene: Scene, other: str) -> None:
    await scene.create(kinds.RESOURCE_CLAIM, "mine", {"devices": {"requests": [exactly("gpu")]}})
    source = await vm_with_templates(scene, other, "disk")
    await has_devices(scene, other, "disk")
    await change_devices(scene, "disk")
    await has_devices(scene, "disk")
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})
    await migrated(scene)
    target = await has_devices(scene, "disk")
    assert target != source

    async def released() -> bool:
        held = await scene.bookings()
        return [booking.device.pool for booking in held] == [target]

    await scene.reach(released, "only the disk is held")
    await change_devices(scene, other, "disk")
    assert await has_devices(scene, other, "disk") == target, "it can be plugged again"
    await scene.check_books()


async def test_own_claim_of_the_vm_whose_device_was_unplugged_stays_where_it_is(scene: Scene) -> None:
    """It needs no device on the target, and stays the VM's, until its device is plugged again where the VM runs by then."""
    template = {"name": "own", "spec": {"spec": {"devices": {"requests": [exactly("gpu")]}}}}
    gpu = {"name": "gpu", "claimName": "own", "requestName": "card"}
    await scene.create(kinds.VM, "blue", {"runStrategy": "Always", "resourceClaimTemplates": [template], "template": {"spec": {
        "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [gpu]}}}}})
    source = await has_devices(scene, "gpu")
    [before] = await scene.bookings()
    await scene.store.patch(kinds.VM, "blue", {"spec": {"template": {"spec": {"domain": {"devices": {
        "hostDevices": None}}}}}}, "here")
    await has_devices(scene)
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})
    await migrated(scene)
    target = await has_devices(scene)
    assert target != source
    [claim] = (await scene.store.list(kinds.RESOURCE_CLAIM, "here")).items
    assert [owner["kind"] for owner in claim["metadata"]["ownerReferences"]] == ["VirtualMachine"]
    [booking] = await scene.bookings()
    assert (booking.device, booking.holder.uid) == (before.device, before.holder.uid), "no device of the target was booked"
    await scene.check_books()
    await scene.store.patch(kinds.VM, "blue", {"spec": {"template": {"spec": {"domain": {"devices": {
        "hostDevices": [gpu]}}}}}}, "here")
    assert await has_devices(scene, "gpu") == target
    [again] = (await scene.store.list(kinds.RESOURCE_CLAIM, "here")).items
    assert [owner["kind"] for owner in again["metadata"]["ownerReferences"]] == ["VirtualMachine"]
    [booking] = await scene.bookings()
    assert (booking.device.pool, booking.holder.uid) == (target, again["metadata"]["uid"]), "what it had there is free"
    assert again["metadata"]["uid"] != claim["metadata"]["uid"]
    await scene.check_books()


async def test_each_device_without_a_free_twin_is_named_until_it_has_one(scene: Scene) -> None:
    await start(scene, [exactly("gpu"), exactly("disk", "disk")])
    await start(scene, [exactly("gpu", count=2), exactly("disk", "disk")], name="green")
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})

    async def waits() -> Object | None:
        devices = conditions.find(await scene.find(kinds.MIGRATION, "move") or {}, "migrationDevices") or {}
        return dict(devices) if devices.get("reason") else None

    devices = await scene.reach(waits, "it waits for devices")
    assert (devices["status"], devices["reason"]) == ("False", "NoFreeTwin")
    assert devices["message"].count(": cannot travel now (NoFreeTwin: ") == 2
    assert devices["message"].count("held by vmi/green") == 3, "two GPUs and a disk"
    await scene.delete(kinds.VMI, "green")
    job = await migrated(scene)
    assert (conditions.find(job, "migrationDevices") or {})["message"] == "card: travels; disk: travels"
    assert conditions.find(job, "migrationWaiting") is None


async def test_writes_of_a_migration_with_a_device(scene: Scene) -> None:
    """Each object that a commit changes counts once; the request itself counts too."""
    await start(scene, [exactly("gpu")])
    await scene.settle()
    written: Counter[str] = Counter()

    async def count(kind: Kind, since: str) -> None:
        async for _ in scene.store.watch(kind, since=since):
            written[kind.kind] += 1

    since = (await scene.store.list(kinds.POD)).revision
    tasks = [asyncio.ensure_future(count(kind, since)) for kind in WRITTEN]
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})
    await migrated(scene)
    await scene.settle()
    for task in tasks:
        task.cancel()
    assert sum(written.values()) <= 20, written


async def test_a_claim_that_the_controller_never_creates_is_reported(scene: Scene) -> None:
    """The claims of a target's pod follow in the next moment: only one that does not is reported."""
    pod = {"containers": [{"name": "compute", "image": "launcher"}],
           "resourceClaims": [{"name": "acc", "resourceClaimName": "missing"}]}
    labels = {"kubevirt.io/migrationJobUID": "00000000-0000-0000-0000-000000000001"}
    await scene.create(kinds.POD, "target", pod, labels=labels)
    await scene.settle()
    found = await scene.find(kinds.POD, "target")
    assert conditions.find(found or {}, "PodScheduled") is None

    async def check() -> bool:
        found = await scene.find(kinds.POD, "target")
        return conditions.find(found or {}, "rejected.outfitter.dev/ClaimMissing") is not None

    await scene.reach(check, "the missing claim is reported")
    await scene.delete(kinds.POD, "target")
