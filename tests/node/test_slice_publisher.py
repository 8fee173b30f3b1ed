"""What a host publishes of its devices: slices, counters, taints, and what is not offered."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import outfitter
from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.ledger_page.page import Booking, Holder, Limits, Page
from outfitter.errors import AlreadyHeld
from outfitter.inventory import host_devices, scan
from outfitter.inventory.host_tree import MemoryTree
from outfitter.ledger import book, out_of_service
from outfitter.node.slice_publisher import HostPublication, SlicePublisher
from outfitter.scheduling import scheduler
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.filter.node_usage import NodeUsage
from outfitter.scheduling.placement import Waiting
from outfitter.scheduling.snapshot import SchedulingSnapshot
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene, hosts_of
from tests.ledger.unchecked_pages import unchecked
from tests.node.audited_hosts import BOUND, DISK, NIC, NOW, PF, SSD, VF0, VF1, Bench, Tasteless, foreign, host, theirs


async def test_only_what_changed_is_written(bench: Bench) -> None:
    [three] = hosts_of("node", 3)
    assert await bench.start(three) == 3
    revision = bench.store.revision
    audit = bench.audit(three)
    assert await audit.start() == 3
    await audit.audit("node-0")
    assert bench.store.revision == revision
    [five] = hosts_of("node", 5)
    assert await bench.start(five) == 5
    [part] = (await bench.store.list(kinds.RESOURCE_SLICE)).items
    assert part["spec"]["pool"]["generation"] == 2
    assert len(part["spec"]["devices"]) == 5
    node = await bench.store.get(kinds.NODE, "node-0")
    assert conditions.is_true(node, "Ready")
    assert node["metadata"]["labels"]["outfitter.dev/simulated"] == "true"
    assert part["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]


async def test_slices_belong_to_the_node_as_it_is_now(bench: Bench) -> None:
    """A node that was deleted and made again has another uid; slices that name the old one would be swept away."""
    hosts = hosts_of("node", 2, count=3)
    assert await bench.start(*hosts) == 6
    await bench.store.delete(kinds.NODE, "node-1")
    assert await bench.start(*hosts) == 6
    node = await bench.store.get(kinds.NODE, "node-1")
    parts = (await bench.store.list(kinds.RESOURCE_SLICE)).items
    assert [part["spec"]["pool"]["generation"] for part in parts] == [1, 2, 1]
    assert parts[1]["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]


async def test_out_of_service_records_are_taints(bench: Bench) -> None:
    three = host(NIC % 3)
    audit = bench.audit(three)
    await audit.start()
    await out_of_service.reserve(bench.store, "a", three.device(VF0), by="admin", reason="for later", now=NOW)
    await out_of_service.quarantine(bench.store, "a", three.device(VF1), by="admin", reason="it smells", now=NOW)
    await audit.audit("a")
    assert await bench.taints() == {VF0: ["reserved"], VF1: ["quarantined"]}
    await out_of_service.unreserve(bench.store, "a", three.device(VF0))
    await out_of_service.restore(bench.store, "a", three.device(VF1))
    await audit.audit("a")
    assert await bench.taints() == {}


async def test_tainted_device_is_unpublished_where_taints_are_dropped() -> None:
    clock = ManualClock()
    product = app.Embedded(Tasteless(clock=clock, names=IdGenerator(random.Random(1))), [], clock=clock)
    bench, three = Bench(product, clock), host(NIC % 3)
    audit = bench.audit(three)
    await audit.start()
    assert len(await bench.devices()) == 3
    await out_of_service.quarantine(bench.store, "a", three.device(VF1), by="admin", now=NOW)
    await audit.audit("a")
    assert VF1 not in await bench.devices()
    revision = bench.store.revision
    await audit.audit("a")
    assert bench.store.revision == revision
    await out_of_service.restore(bench.store, "a", three.device(VF1))
    await audit.audit("a")
    assert len(await bench.devices()) == 3


async def test_driver_of_a_device_in_use_is_not_republished(bench: Bench) -> None:
    spec = "device_spec: [{product_id: a80a}]"
    bound = host("{address: 0000:65:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme, serial: S1}", spec)
    await bench.start(bound)
    await bench.hold(bound, SSD)
    given = host("{address: 0000:65:00.0, vendor: 144d, product: a80a, class: 010802, driver: vfio-pci}", spec)
    revision = bench.store.revision
    await bench.start(given)
    assert bench.store.revision == revision
    await book.release(bench.store, "a", "uid-1")
    await bench.start(given)
    assert (await bench.devices())[SSD]["attributes"]["driver"] == {"string": "vfio-pci"}


async def test_unassignable_device_has_a_reason(bench: Bench) -> None:
    await bench.start(host(f"{NIC % 1}, {DISK}", "device_spec: [{product_id: '1889'}]"))
    inventory = await bench.store.get(kinds.HOST_INVENTORY, "a")
    reasons = {each["address"]: each["reason"] for each in inventory["spec"]["withheld"]}
    assert reasons == {"0000:3b:00.0": "is listed by no entry of device_spec",
                       "0000:65:00.0": "is listed by no entry of device_spec"}


async def test_an_inventory_tells_whether_the_host_has_an_iommu(bench: Bench) -> None:
    await bench.start(host(NIC % 1))
    spec = (await bench.store.get(kinds.HOST_INVENTORY, "a"))["spec"]
    assert (spec["iommu"], spec["agentVersion"]) == (True, outfitter.__version__)
    await bench.start(host(DISK.replace("driver: nvme", "driver: nvme, iommuGroup: none")))
    assert (await bench.store.get(kinds.HOST_INVENTORY, "a"))["spec"]["iommu"] is False


async def test_warnings_of_a_host_are_published(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    odd = replace(host(NIC % 1), tree=lambda: MemoryTree({"/sys/bus/pci/devices/what": "?"}))
    await bench.start(odd)
    inventory = await bench.store.get(kinds.HOST_INVENTORY, "a")
    assert any("what: is not a PCI address" in warning for warning in inventory["spec"]["warnings"])
    assert any("is not a PCI address" in record.message for record in caplog.records)


async def test_a_physical_function_and_its_virtual_ones_exclude_each_other() -> None:
    clock = ManualClock()
    both = host(BOUND % 2, "device_spec: [{vendor_id: '8086'}]")
    async with app.embedded(hosts=[both], clock=clock, names=IdGenerator(random.Random(1))) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        scene = Scene(product, "here", clock)
        await scene.classes()
        await scene.template()
        await product.settle()
        devices = await Bench(product, clock).devices()
        assert list(devices) == [PF, VF0, VF1]
        await scene.machine("blue")
        await scene.running("blue")
        [booking] = (await book.read(product.store, "a")).bookings
        assert booking.device.device == VF0, "what is asked for is a virtual function"
        holder = Holder("Consumer", "", "s1", "uid-1")
        whole = Booking(both.device(PF), holder, "", "booked", NOW, {"whole": True, "counters": {PF: {"functions": "2"}}})
        with pytest.raises(AlreadyHeld, match="functions of counter set"):
            await book.book(product.store, "a", [whole], limits=Limits(
                counters={("pci.outfitter.dev", "a", PF): {"functions": "2"}}))


async def test_a_domain_that_has_another_drivers_device_taints_none_of_ours(bench: Bench) -> None:
    two = host(NIC % 2)
    await bench.start(two)
    found = Booking(theirs(VF0), Holder("Domain", "", "m", "uid-m"), "", "prepared", NOW)
    page = await book.read(bench.store, "a")
    publisher = SlicePublisher(bench.store)
    stored = (await publisher.read([two]))["a"]
    devices = host_devices.host_devices("a", two.settings, scan.scan(two.tree()), stored.devices)
    await publisher.publish(two, stored, HostPublication(devices, (), (), ()), Page(page.adding(found)), "uid")
    assert await bench.taints() == {}


async def test_slices_of_an_older_generation_are_not_what_is_published(bench: Bench) -> None:
    """Left behind by a start that was killed: a device that only they have is not brought back."""
    spec = "device_spec: [{product_id: '1889'}, {product_id: a80a}]"
    both = host(f"{NIC % 2}, {DISK}", spec)
    await bench.start(both)
    [old] = (await bench.store.list(kinds.RESOURCE_SLICE)).items
    fewer = host(NIC % 2, spec)
    await bench.start(fewer)
    await bench.store.create(kinds.RESOURCE_SLICE, {"metadata": {"name": "left-behind"}, "spec": old["spec"]})
    with unchecked(bench.store):
        await book.change_page(bench.store, "a", lambda page: page.adding(
            Booking(fewer.device(SSD), Holder("Consumer", "", "s1", "uid-1"), "", "booked", NOW)))
    await bench.start(fewer)
    [part] = (await bench.store.list(kinds.RESOURCE_SLICE)).items
    assert [device["name"] for device in part["spec"]["devices"]] == [VF0, VF1]
    assert part["spec"]["pool"]["generation"] == 3, "above all that stand"


async def test_an_unknown_device_of_a_vm_is_a_warning(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    one = host(NIC % 1)
    await one.hypervisor.start(foreign("guest", "0000:99:00.0", "0000:3b:01.0"))
    await bench.start(one)
    inventory = await bench.store.get(kinds.HOST_INVENTORY, "a")
    assert inventory["spec"]["warnings"] == ["VM guest has 0000:99:00.0, which is not known on this host"]
    said = [record.message for record in caplog.records]
    assert "a: VM guest has 0000:99:00.0, which is not known on this host" in said
    assert any(f"{VF0} is in use by Domain guest and was not booked for it" in text for text in said), "what was healed too"
    assert await bench.taints() == {VF0: ["held"]}


async def test_what_is_withheld_is_described_as_far_as_it_is_known(bench: Bench) -> None:
    gpu = ("{address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: none, iommuGroup: none, mdevTypes: "
           "[{id: nvidia-63, instances: [4b20d080-1b54-4048-85b3-a6a62d165c01]}]}")
    await bench.start(host(gpu, "device_spec: []"))
    inventory = await bench.store.get(kinds.HOST_INVENTORY, "a")
    pci, mdev = inventory["spec"]["withheld"]
    assert {key: value for key, value in pci.items() if key != "reason"} == {
        "name": SSD, "address": "0000:65:00.0", "kind": "PCI", "vendor": "10de", "product": "2204", "class": "030000"}
    assert mdev == {"name": "mdev-4b20d080-1b54-4048-85b3-a6a62d165c01", "uuid": "4b20d080-1b54-4048-85b3-a6a62d165c01",
                    "type": "nvidia-63", "parent": "0000:65:00.0",
                    "reason": "has the parent 0000:65:00.0, which no entry of device_spec lists"}


async def test_a_device_has_each_taint_once(bench: Bench) -> None:
    one = host(NIC % 2)
    await bench.start(one)
    for name in ("m", "n"):
        await one.hypervisor.start(foreign(name, "0000:3b:01.0"))
    await bench.start(one)
    assert len((await book.read(bench.store, "a")).bookings) == 2
    assert await bench.taints() == {VF0: ["held"]}


async def blocked(bench: Bench, name: str = "a") -> dict[str, bool]:
    """What a scheduler may not give away, by device."""
    parts = (await bench.store.list(kinds.RESOURCE_SLICE)).items
    nodes = (await bench.store.list(kinds.NODE)).items
    index = DeviceIndex.of(parts, [await book.read(bench.store, name)], nodes)
    out = {}
    for device, raw in (await bench.devices(name)).items():
        address = raw["attributes"]["resource.kubernetes.io/pciBusID"]["string"]
        where = {"cel": {"expression": f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"'}}
        claim = {"metadata": {"name": "c", "namespace": "here"}, "spec": {"devices": {"requests": [
            {"name": "r", "exactly": {"deviceClassName": "any", "selectors": [where]}}]}}}
        pod = {"metadata": {"name": "p", "namespace": "here"},
               "spec": {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}}
        found = scheduler.place(SchedulingSnapshot(
            devices=index, usage=NodeUsage(), claim=lambda namespace, name, claim=claim: claim,  # type: ignore[misc]
            device_class={"any": {"metadata": {"name": "any"}}}.get), pod)
        out[device] = isinstance(found, Waiting)
    return out


async def test_a_pf_is_not_allocated_while_an_unlisted_vf_of_it_is_held(bench: Bench) -> None:
    both = host(BOUND % 2, "device_spec: [{vendor_id: '8086'}]")
    await bench.start(both)
    await bench.hold(both, VF0)
    await bench.start(host(BOUND % 2, "device_spec: [{product_id: '1592'}]"))
    assert await blocked(bench) == {PF: True, VF0: True}


async def test_vfs_are_not_allocated_while_their_unlisted_pf_is_held(bench: Bench) -> None:
    both = host(BOUND % 2, "device_spec: [{vendor_id: '8086'}]")
    await bench.start(both)
    await bench.hold(both, PF)
    await bench.start(host(NIC % 2, "device_spec: [{product_id: '1889'}]"))
    assert await blocked(bench) == {VF0: True, VF1: True, PF: True}


async def test_restart_keeps_out_of_service_records_where_taints_are_dropped() -> None:
    clock = ManualClock()
    bench = Bench(app.Embedded(Tasteless(clock=clock, names=IdGenerator(random.Random(1))), [], clock=clock), clock)
    three = host(NIC % 3)
    await bench.start(three)
    await out_of_service.quarantine(bench.store, "a", three.device(VF1), by="admin", now=NOW)
    await bench.start(three)
    revision = bench.store.revision
    await bench.start(three)
    assert bench.store.revision == revision


async def test_a_host_that_plays_another_driver_has_its_names_and_attributes(bench: Bench) -> None:
    """Also when it looks again while a VM has the device, and when the device leaves the bus."""
    says = ("published: {name: gpu-0, attributes: {type: {string: gpu}, index: {int: 0}, shared: {bool: false}, "
            "fw: {version: 1.0.0}, kind: {string: toaster}, productName: {string: A1}}}")
    card = host(f"{{address: 0000:65:00.0, vendor: 10de, product: 2236, {says}}}, {NIC % 1}", driver="gpu.example.com")
    assert await bench.start(card) == 2
    [part] = (await bench.store.list(kinds.RESOURCE_SLICE)).items
    gpu, nic = sorted(part["spec"]["devices"], key=lambda device: str(device["name"]))
    assert (part["spec"]["driver"], gpu["name"], nic["name"]) == ("gpu.example.com", "gpu-0", VF0)
    wanted = {"type": {"string": "gpu"}, "index": {"int": 0}, "shared": {"bool": False}, "fw": {"version": "1.0.0"},
              "kind": {"string": "PCI"}, "productName": {"string": "A1"},
              "resource.kubernetes.io/pciBusID": {"string": "0000:65:00.0"}}
    assert wanted.items() <= gpu["attributes"].items(), "what the host shows stays"
    assert "type" not in nic["attributes"]

    await book.book(bench.store, "a", [Booking(card.device("gpu-0"), Holder("Consumer", "", "c", "u1"), "", "booked", NOW)])
    revision = bench.store.revision
    assert await bench.start(card) == 2
    assert bench.store.revision == revision, "nothing changed"
    await bench.audit(replace(card, tree=lambda: MemoryTree({}))).start()
    [part] = (await bench.store.list(kinds.RESOURCE_SLICE)).items
    [gone] = part["spec"]["devices"]
    assert (gone["name"], gone["attributes"]) == ("gpu-0", gpu["attributes"])
    assert [taint["key"] for taint in gone["taints"]] == ["outfitter.dev/vanished"]
