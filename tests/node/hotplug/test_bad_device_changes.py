"""Devices that cannot be plugged or unplugged, or not now: a field or a code and a reason, and nothing changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.errors import Invalid
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher.migration.simulated_copy import SimulatedCopy
from outfitter.launcher.simulated import Simulated
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.node.hotplug.test_device_hotplug import GPU, TEMPLATE, Story

# Two hosts with GPUs that may travel.
HOST = """
- name: {name}
  numa: [{{id: 0, cpus: 0-15, memory: 64Gi}}]
  pci: [{gpus}]
"""
FUNCTION = "{{address: 0000:{bus:02x}:00.0, vendor: 10de, product: 20b5, class: 030200, driver: vfio-pci, numa: 0}}"
CONFIG = config.parse("device_spec: [{vendor_id: 10de, live_migratable: 'yes'}]")
SLOW = SimulatedCopy(bandwidth=1 << 26)  # sixteen seconds for a guest of 1 GiB
GPUS = 20


@pytest.fixture
async def story(tmp_path: Path) -> AsyncIterator[Story]:
    gpus = ", ".join(FUNCTION.format(bus=0x20 + number) for number in range(GPUS))
    text = "hosts:" + "".join(HOST.format(name=name, gpus=gpus).rstrip("\n") for name in ("rack", "spare")) + "\n"
    clock = ManualClock()
    hosts = app.simulated_hosts(hosts_file.parse(text, "hosts").hosts, tmp_path, CONFIG)
    for host in hosts:
        assert isinstance(host.hypervisor, Simulated)
        host.hypervisor._monotonic = clock.monotonic
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(), config=CONFIG) as product:
        story = Story(product, clock)
        await story.begin(nodeSelector={"kubernetes.io/hostname": "rack"})
        yield story


async def template(story: Story) -> Object:
    spec: Object = (await story.store.get(kinds.VM, "blue", "default"))["spec"]["template"]["spec"]
    return spec


async def free_to_move(story: Story) -> None:
    """A VM that may run on both hosts, with a GPU; copies of it take their time."""
    await story.vm("green", resourceClaims=[{"name": "gpu", **TEMPLATE}], networks=[{"name": "default", "pod": {}}], domain={
        "memory": {"guest": "1Gi"}, "devices": {"interfaces": [{"name": "default", "masquerade": {}}], "gpus": [
            {"name": "gpu", "claimName": "gpu", "requestName": "gpu"}]}})
    for host in story.product.hosts:
        assert isinstance(host.hypervisor, Simulated)
        host.hypervisor.copy = SLOW


async def aliases(story: Story, name: str) -> list[str]:
    """The devices of a VM's domain, on whichever host it is."""
    uid = (await story.vmi(name))["metadata"]["uid"]
    found = [(await host.hypervisor.domains()).get(uid) for host in story.product.hosts]
    return [device.alias for domain in found if domain is not None for device in domain.host_devices]


async def test_name_of_another_device_is_refused(story: Story) -> None:
    await story.plug("fast", **TEMPLATE)
    before = await template(story)
    with pytest.raises(Invalid, match=r"spec\.template\.spec\.domain\.devices\.gpus\[1\]\.name"):
        await story.plug("fast", "other", **TEMPLATE)
    assert (await template(story), await story.plugged()) == (before, ["ua-dra-gpu-fast"])


async def test_request_that_the_claim_lacks(story: Story) -> None:
    await story.store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "mine", "namespace": "default"}, "spec": {
        "devices": {"requests": [{**GPU["devices"]["requests"][0], "name": "card"}]}}})
    await story.plug("fast", resourceClaimName="mine")
    await story.settle(10)
    waits = await story.waits()
    assert (waits["reason"], waits["message"]) == ("RequestMissing", 'fast: claim mine has no request "gpu"; it has card')
    assert await story.plugged() == []
    await story.unplug("fast")
    await story.settle(5)
    assert (await story.pods(), await story.held(), await story.waits()) == ([], [], {}), "nothing stays held"


async def test_no_port_is_left(story: Story) -> None:
    names = [f"g{number:02}" for number in range(GPUS)]
    await story.change({"resourceClaims": [{"name": name, **TEMPLATE} for name in names], "domain": {"devices": {"gpus": [
        {"name": name, "claimName": name, "requestName": "gpu"} for name in names]}}})
    await story.settle(10)
    waits, plugged = await story.waits(), await story.plugged()
    assert (waits["reason"], "no unused PCI port" in waits["message"]) == ("NoPciPort", True)
    assert 0 < len(plugged) < GPUS
    await story.unplug("g00")
    await story.settle(10)
    assert len(await story.plugged()) == len(plugged), "one that waited has the port that became free"


async def test_migrating_vm_gets_a_device_when_it_has_arrived(story: Story) -> None:
    await free_to_move(story)
    source = (await story.vmi("green"))["status"]["nodeName"]
    await story.store.create(kinds.MIGRATION, {"metadata": {"name": "move", "namespace": "default"}, "spec": {
        "vmiName": "green"}})
    await story.settle(3)
    assert (await story.vmi("green"))["status"]["migrationState"].get("startTimestamp"), "it is copied"
    held = await story.held()
    await story.plug("fast", name="green", **TEMPLATE)
    waits = await story.waits("green")
    assert (waits["reason"], waits["message"]) == (
        "VmMigrates", "fast: the VM migrates, and it is done when that has ended")
    assert (await story.held(), await story.pods(), await aliases(story, "green")) == (held, [], ["ua-dra-gpu-gpu"])
    await story.settle(40)
    assert (await story.vmi("green"))["status"]["nodeName"] != source
    assert sorted(await aliases(story, "green")) == ["ua-dra-gpu-fast", "ua-dra-gpu-gpu"]
    assert await story.waits("green") == {}


async def test_device_that_could_not_be_plugged_is_plugged_where_the_vm_has_arrived(story: Story) -> None:
    """The guest arrives with what it had, and no more."""
    await free_to_move(story)
    before = await story.vmi("green")
    source, uid = before["status"]["nodeName"], before["metadata"]["uid"]
    hosts = {host.name: host.hypervisor for host in story.product.hosts}
    for number in range(GPUS):
        for hypervisor in hosts.values():
            assert isinstance(hypervisor, Simulated)
            hypervisor.refusing[f"0000:{0x20 + number:02x}:00.0"] = "it is refused"
    await story.plug("fast", name="green", **TEMPLATE)
    assert (await story.waits("green"))["reason"] == "DeviceNotPlugged"
    await story.store.create(kinds.MIGRATION, {"metadata": {"name": "move", "namespace": "default"}, "spec": {
        "vmiName": "green"}})
    await story.settle(40)
    vmi = await story.vmi("green")
    target = hosts[vmi["status"]["nodeName"]]
    assert isinstance(target, Simulated)
    assert vmi["status"]["nodeName"] != source
    addresses = {entry["name"]: entry["deviceResourceClaimStatus"]["attributes"]["pciAddress"]
                 for entry in vmi["status"]["deviceStatus"]["gpuStatuses"]}
    [device] = (await target.domains())[uid].host_devices
    assert (device.alias, device.source) == ("ua-dra-gpu-gpu", addresses["gpu"])
    assert (await story.waits("green"))["reason"] == "DeviceNotPlugged", "it is still reported"
    target.refusing.clear()
    await story.settle(10)
    assert {device.alias: device.source for device in (await target.domains())[uid].host_devices} == {
        f"ua-dra-gpu-{name}": address for name, address in addresses.items()}
    assert (sorted(addresses), await story.waits("green")) == (["fast", "gpu"], {})


async def test_device_that_is_plugged_while_a_migration_waits_ends_the_migration(story: Story) -> None:
    """The claims of the target's pod cannot change."""
    await free_to_move(story)
    source = (await story.vmi("green"))["status"]["nodeName"]
    [other] = {"rack", "spare"} - {source}
    await story.store.patch(kinds.NODE, other, {"spec": {"unschedulable": True}})
    await story.store.create(kinds.MIGRATION, {"metadata": {"name": "move", "namespace": "default"}, "spec": {
        "vmiName": "green"}})
    await story.settle(3)
    await story.plug("fast", name="green", **TEMPLATE)
    await story.settle(10)
    job = await story.store.get(kinds.MIGRATION, "move", "default")
    failed = conditions.find(job, "migrationFailed") or {}
    assert (job["status"]["phase"], failed.get("reason")) == ("Failed", "TargetDevicesUnknown")
    assert failed["message"].startswith("fast: plugged after the target's pod")
    assert sorted(await aliases(story, "green")) == ["ua-dra-gpu-fast", "ua-dra-gpu-gpu"]
    assert ((await story.vmi("green"))["status"]["nodeName"], len(await story.held())) == (source, 2)


@pytest.mark.parametrize("name", ["gpu", "fast"], ids=["started with it", "plugged"])
async def test_vm_whose_guest_keeps_an_unplugged_device_does_not_migrate(story: Story, name: str) -> None:
    """The target's pod has no claim for it."""
    await free_to_move(story)
    await story.plug("fast", name="green", **TEMPLATE)
    vmi = await story.vmi("green")
    source = next(host.hypervisor for host in story.product.hosts if host.name == vmi["status"]["nodeName"])
    assert isinstance(source, Simulated)
    source.keeping_devices.add(vmi["metadata"]["uid"])
    await story.unplug(name, name="green")
    why = f"{name} is being unplugged"
    assert why in (conditions.find(await story.vmi("green"), "LiveMigratable") or {}).get("message", "")
    move = {"metadata": {"name": "move", "namespace": "default"}, "spec": {"vmiName": "green"}}
    with pytest.raises(Invalid, match=why):
        await story.store.create(kinds.MIGRATION, move)
    source.keeping_devices.clear()
    await story.settle(10)
    assert len(await aliases(story, "green")) == 1
    await story.store.create(kinds.MIGRATION, move)
    await story.settle(40)
    assert (await story.vmi("green"))["status"]["nodeName"] != vmi["status"]["nodeName"]


async def test_stopping_vm_gets_no_device(story: Story) -> None:
    uid = (await story.vmi())["metadata"]["uid"]
    story.hypervisor.ignoring_shutdown.add(uid)
    await story.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Halted"}}, "default")
    await story.settle()
    await story.plug("fast", **TEMPLATE)
    assert (await story.plugged(), await story.pods(), await story.held(), await story.claims()) == ([], [], [], [])
    await story.settle(200)
    await story.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Always"}}, "default")
    await story.settle(5)
    assert await story.plugged() == ["ua-dra-gpu-fast"], "it is started with it"


async def test_one_claim_is_plugged_into_one_of_two_vms(story: Story) -> None:
    await story.store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "mine", "namespace": "default"}, "spec": GPU})
    await story.vm("green", nodeSelector={"kubernetes.io/hostname": "rack"})
    entry = {"resourceClaims": [{"name": "fast", "resourceClaimName": "mine"}], "domain": {"devices": {"gpus": [
        {"name": "fast", "claimName": "fast", "requestName": "gpu"}]}}}
    for name in ("blue", "green"):
        await story.store.patch(kinds.VM, name, {"spec": {"template": {"spec": entry}}}, "default")
    await story.settle(10)
    have = {name: await story.plugged(name) for name in ("blue", "green")}
    [winner] = [name for name, devices in have.items() if devices]
    [other] = {"blue", "green"} - {winner}
    assert ((await story.waits(other))["reason"], len(await story.held())) == ("ClaimInUse", 1)
    await story.unplug("fast", name=winner)
    await story.settle(10)
    assert (await story.plugged(other), await story.waits(other)) == (["ua-dra-gpu-fast"], {})


async def test_vm_that_is_deleted_while_a_device_is_plugged_leaves_nothing(story: Story) -> None:
    await story.store.patch(kinds.VM, "blue", {"spec": {"template": {"spec": {
        "resourceClaims": [{"name": "fast", **TEMPLATE}], "domain": {"devices": {"gpus": [
            {"name": "fast", "claimName": "fast", "requestName": "gpu"}]}}}}}}, "default")
    await story.store.delete(kinds.VM, "blue", "default")
    await story.settle(60)
    assert (await story.pods(), await story.claims(), await story.held()) == ([], [], [])
    assert (await story.store.list(kinds.VMI, "default")).items == []


async def test_disk_is_neither_plugged_nor_unplugged(story: Story) -> None:
    disks: Object = {"domain": {"devices": {"disks": [{"name": "boot", "disk": {}}]}}, "volumes": [
        {"name": "boot", "containerDisk": {"image": "quay.io/containerdisks/fedora"}}]}
    await story.vm("green", **{**disks, "domain": {"memory": {"guest": "1Gi"}, **disks["domain"]}})
    before = (await story.domain("green")).xml
    await story.change({"domain": {"devices": {"disks": []}}, "volumes": []}, "green")
    found = conditions.find(await story.store.get(kinds.VM, "green", "default"), "RestartRequired") or {}
    assert "disks" in str(found.get("message")), found
    assert (await story.domain("green")).xml == before


MISSING = {
    "a template": ({"resourceClaimTemplateName": "later"}, kinds.RESOURCE_CLAIM_TEMPLATE, {"spec": GPU}, "DeviceNotBooked"),
    "a claim": ({"resourceClaimName": "later"}, kinds.RESOURCE_CLAIM, GPU, "ClaimMissing")}


@pytest.mark.parametrize(("entry", "kind", "spec", "code"), MISSING.values(), ids=MISSING)
async def test_what_does_not_exist_yet_is_waited_for(
    story: Story, entry: dict[str, str], kind: Kind, spec: Object, code: str
) -> None:
    await story.plug("fast", **entry)
    await story.settle(40)
    waits = await story.waits()
    assert (waits["reason"], "later" in waits["message"]) == (code, True), waits
    assert (await story.plugged(), await story.held()) == ([], [])
    await story.store.create(kind, {"metadata": {"name": "later", "namespace": "default"}, "spec": spec})
    await story.settle(10)
    assert (await story.plugged(), await story.waits()) == (["ua-dra-gpu-fast"], {})


async def test_vm_that_came_back_to_its_host_within_a_second_gets_a_device(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod that it left there is as old as the one that it runs in."""
    now = story.clock.now().replace(microsecond=0)
    monkeypatch.setattr(story.clock, "now", lambda: now)
    await free_to_move(story)
    source = (await story.vmi("green"))["status"]["nodeName"]
    for name, host in (("there", None), ("back", source)):
        await story.store.create(kinds.MIGRATION, {"metadata": {"name": name, "namespace": "default"}, "spec": {
            "vmiName": "green", **({"addedNodeSelector": {"kubernetes.io/hostname": host}} if host else {})}})
        await story.settle(40)
    assert (await story.vmi("green"))["status"]["nodeName"] == source
    await story.plug("fast", name="green", **TEMPLATE)
    await story.settle(10)
    assert (await aliases(story, "green"), await story.waits("green")) == (["ua-dra-gpu-gpu", "ua-dra-gpu-fast"], {})
