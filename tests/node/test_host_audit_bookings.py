"""What is held on a host, kept in step with the VMs that run there: healing, marks, counts, providers."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from outfitter import app
from outfitter.api import kinds, providers
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder
from outfitter.api.providers import Inventory, Provider
from outfitter.errors import Invalid, NotFound, OutOfService
from outfitter.ledger import book, history, out_of_service, placement_view
from outfitter.node.agent_host import AgentHost
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene, hosts_of
from tests.ledger.unchecked_pages import unchecked
from tests.node.audited_hosts import DISK, NIC, NOW, ONCE, PF, SSD, VF0, VF1, Bench, foreign, host, settings, theirs


@pytest.mark.parametrize("gone", [False, True], ids=["no longer listed", "no longer there"])
async def test_a_held_device_stays_visible_until_it_is_free(bench: Bench, gone: bool, caplog: pytest.LogCaptureFixture) -> None:
    listed = host(f"{NIC % 2}, {DISK}", "device_spec: [{product_id: '1889'}, {product_id: a80a}]\nreport_in_placement: true")
    await bench.start(listed)
    was = (await bench.devices())[SSD]
    await bench.hold(listed, SSD)
    after = host(NIC % 2 if gone else f"{NIC % 2}, {DISK}", "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    audit = bench.audit(after)
    await audit.start()
    what = "vanished" if gone else "unlisted"
    assert await bench.taints() == {SSD: [what]}
    assert {**(await bench.devices())[SSD], "taints": None} == {**was, "taints": None}
    row = (await bench.rows())["a_0000:65:00.0"]
    assert (row.used, row.inventories["CUSTOM_PCI_144D_A80A"].total) == ({"CUSTOM_PCI_144D_A80A": 1}, 1)
    inventory = await bench.store.get(kinds.HOST_INVENTORY, "a")
    assert inventory["spec"]["left"] == [{"device": SSD, "what": what}]
    assert any(SSD in record.message and "Consumer s1" in record.message for record in caplog.records)
    revision = bench.store.revision
    await audit.audit("a")
    assert bench.store.revision == revision, "it is said once"
    await book.release(bench.store, "a", "uid-1")
    await audit.audit("a")
    assert SSD not in await bench.devices()
    assert "a_0000:65:00.0" not in await bench.rows()


async def test_the_devices_of_a_vm_without_a_booking_are_recorded_as_its(bench: Bench) -> None:
    three = host(NIC % 3)
    await three.hypervisor.start(foreign("guest", "0000:3b:01.1"))
    audit = bench.audit(three)
    await audit.start()
    [booking] = (await book.read(bench.store, "a")).bookings
    assert (booking.device.device, booking.state) == (VF1, "prepared")
    assert (booking.holder.kind, booking.holder.name) == ("Domain", "guest")
    assert await bench.taints() == {VF1: ["held"]}, "who allocates claims does not read pages"
    await three.hypervisor.stop("uid-guest")
    await audit.audit("a")
    assert (await book.read(bench.store, "a")).bookings == ()
    assert await bench.taints() == {}
    [past] = [entry for entry in await history.entries(bench.store, three.device(VF1)) if entry.ended]
    assert past.how == history.GONE


async def test_a_vm_of_ours_keeps_its_device_when_the_page_is_lost(bench: Bench) -> None:
    [node] = hosts_of("node", 2)
    async with app.embedded(hosts=[node], clock=bench.clock, names=IdGenerator(random.Random(1))) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        scene = Scene(product, "here", bench.clock)
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
        [before] = (await book.read(product.store, "node-0")).bookings
        await product.runner.stop()
        with unchecked(product.store):
            await product.store.delete(kinds.LEDGER_PAGE, "node-0")
        again = app.Embedded(product.store, [node], clock=bench.clock)
        await again.start()
        await again.settle()
        [booking] = (await book.read(product.store, "node-0")).bookings
        assert (booking.device, booking.holder.uid, booking.state) == (before.device, before.holder.uid, "prepared")
        assert len(await node.hypervisor.domains()) == 1
        await again.runner.stop()


async def test_what_is_used_once_stays_out_until_it_is_cleaned(bench: Bench) -> None:
    disk = host(DISK, ONCE)
    audit = bench.audit(disk)
    await audit.start()
    assert disk.single_use == {SSD}
    row = (await bench.rows())["a_0000:65:00.0"]
    assert row.inventories["CUSTOM_PCI_144D_A80A"].reserved == 0
    await bench.hold(disk, SSD)
    await audit.audit("a")
    assert (await bench.rows())["a_0000:65:00.0"].inventories["CUSTOM_PCI_144D_A80A"].reserved == 1
    await book.release(bench.store, "a", "uid-1")
    await audit.audit("a")
    assert await bench.taints() == {SSD: ["unclean"]}
    with pytest.raises(OutOfService, match="outfit device clear a/pci-0000-65-00-0"):
        await bench.hold(disk, SSD)
    unlisted = host(DISK, "device_spec: []\nreport_in_placement: true")
    await bench.start(unlisted)
    await bench.start(disk)
    assert await bench.taints() == {SSD: ["unclean"]}, "unlisting it cleans nothing"
    await out_of_service.clear(bench.store, "a", disk.device(SSD))
    await audit.audit("a")
    assert await bench.taints() == {}
    await bench.hold(disk, SSD)


async def test_an_operators_count_is_kept_whichever_devices_there_are(bench: Bench) -> None:
    spec = "device_spec: [{product_id: '1889'}]\nreport_in_placement: true"
    await bench.start(host(NIC % 4, spec))
    await placement_view.set_reserved(
        bench.store, "a_0000:3B:00.0", "CUSTOM_PCI_8086_1889", 2, driver="pci.outfitter.dev", now=NOW, by="ops"
    )
    kept = {mark.device.device for mark in (await book.read(bench.store, "a")).reserved}
    assert len(kept) == 2
    others = sorted({f"{PF}-vf{number}" for number in range(4)} - kept)
    slots = ", ".join(f"{{address: '3b:01.{name[-1]}'}}" for name in others)
    await bench.start(host(NIC % 4, f"device_spec: [{slots}]\nreport_in_placement: true"))
    row = (await bench.rows())["a_0000:3B:00.0"]
    assert (row.inventories["CUSTOM_PCI_8086_1889"].total, row.inventories["CUSTOM_PCI_8086_1889"].reserved) == (2, 2)
    assert sorted(mark.device.device for mark in (await book.read(bench.store, "a")).reserved) == others
    with pytest.raises(Invalid, match="from 0 to 2"):
        await placement_view.set_reserved(bench.store, "a_0000:3B:00.0", "CUSTOM_PCI_8086_1889", 3, driver="pci.outfitter.dev",
                                     now=NOW, by="ops")
    await placement_view.set_reserved(
        bench.store, "a_0000:3B:00.0", "CUSTOM_PCI_8086_1889", 0, driver="pci.outfitter.dev", now=NOW, by="ops"
    )
    assert [mark for mark in (await book.read(bench.store, "a")).reserved if mark.device.device in others] == []


async def test_what_another_driver_has_on_the_host_is_not_ours(bench: Bench) -> None:
    """Its devices may be named like ours."""
    spec = "device_spec: [{product_id: '1889'}, {product_id: a80a}]\nreport_in_placement: true"
    slice_: Object = {"metadata": {"name": "theirs"}, "spec": {
        "driver": "gpu.example.com", "nodeName": "a", "pool": {"name": "a", "generation": 50, "resourceSliceCount": 1},
        "devices": [{"name": "other"}, {"name": VF0, "attributes": {"driver": {"string": "x"}}}]}}
    await bench.store.create(kinds.RESOURCE_SLICE, slice_)
    await bench.start(host(f"{NIC % 2}, {DISK}", spec))
    listing = (await bench.store.list(kinds.RESOURCE_SLICE)).items
    assert {part["metadata"]["name"]: part["spec"]["pool"]["generation"] for part in listing} == {
        "theirs": 50, "a-pci.outfitter.dev-0": 1}
    holder = Holder("Consumer", "", "s1", "uid-1")
    await book.book(bench.store, "a", [
        Booking(theirs(SSD), holder, "", "prepared", NOW), Booking(theirs(VF0), holder, "", "prepared", NOW)])
    await book.change_page(bench.store, "a", lambda page: page.adding(
        Booking(theirs(VF1), Holder("Consumer", "", "s2", "uid-2"), "", "prepared", NOW)))
    await out_of_service.reserve(bench.store, "a", theirs(VF0), by="admin", now=NOW)
    fewer = host(f"{NIC % 2}, {DISK}", "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    await bench.start(fewer)
    ours = {device["name"]: device for part in (await bench.store.list(kinds.RESOURCE_SLICE)).items
            if part["spec"]["driver"] == "pci.outfitter.dev" for device in part["spec"]["devices"]}
    assert list(ours) == [VF0, VF1], "no VM of ours has the disk"
    assert all("taints" not in device for device in ours.values())
    assert list(await bench.rows()) == ["a_0000:3B:00.0"]
    changed = host(f"{(NIC % 2)[:-2]}, driver: iavf}}}}", "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    await bench.start(changed)
    part = await bench.store.get(kinds.RESOURCE_SLICE, "a-pci.outfitter.dev-0")
    assert {device["attributes"]["driver"]["string"] for device in part["spec"]["devices"]} == {"iavf"}


async def test_vanished_device_of_a_vm_is_published_again_with_its_page(bench: Bench) -> None:
    full = host(f"{NIC % 1}, {DISK}", "device_spec: [{product_id: a80a}]")
    await bench.start(full)
    await full.hypervisor.start(foreign("guest", "0000:65:00.0"))
    empty = host(NIC % 1, "device_spec: [{product_id: a80a}]", hypervisor=full.hypervisor)
    await bench.start(empty)
    assert await bench.taints() == {SSD: ["vanished", "held"]}
    [booking] = (await book.read(bench.store, "a")).bookings
    assert (booking.device, booking.holder.name) == (empty.device(SSD), "guest")


def claimed(on: AgentHost, device: str, state: Any) -> Booking:
    return Booking(on.device(device), Holder("ResourceClaim", "here", "c", "uid-c", "vmi/blue"), "nic", state, NOW)


def ours(name: str, *addresses: str) -> Any:
    return replace(foreign(name, *addresses), foreign=False)


async def who(bench: Bench, device: str) -> list[tuple[str, str]]:
    page = await book.read(bench.store, "a")
    return sorted((one.holder.kind, one.holder.uid) for one in page.bookings if one.device.device == device)


CLAIM, GUEST = ("ResourceClaim", "uid-c"), ("Domain", "uid-guest")


FOUND: dict[str, tuple[Any, Any, list[tuple[str, str]]]] = {
    # the VM that runs, the state in which a claim has its device -> who has it afterwards
    "a VM of ours has what was prepared for its claim": (ours, "prepared", [CLAIM]),
    "a VM of ours has what is only booked for a claim": (ours, "booked", [GUEST, CLAIM]),
    "a VM of ours has what no claim has any more": (ours, "released", [GUEST, CLAIM]),
    "a foreign VM has what was prepared for a claim": (foreign, "prepared", [GUEST, CLAIM]),
    "a VM of ours has what is not booked": (ours, None, [GUEST]),
}


@pytest.mark.parametrize("name", FOUND)
async def test_the_holder_of_a_running_vms_device(bench: Bench, name: str) -> None:
    make, state, holders = FOUND[name]
    two = host(NIC % 2)
    await bench.start(two)
    if state is not None:
        await book.book(bench.store, "a", [claimed(two, VF0, state)])
    await two.hypervisor.start(make("guest", "0000:3b:01.0"))
    await bench.start(two)
    assert await who(bench, VF0) == holders
    assert await who(bench, VF1) == []


@pytest.mark.parametrize(("make", "booked", "holders"), {
    "our VM is the claim's": (ours, False, [CLAIM]),
    "a foreign VM is not known": (foreign, False, [GUEST]),
    "another claim has it by now": (ours, True, [GUEST]),
}.values(), ids=["our VM is the claim's", "a foreign VM is not known", "another claim has it by now"])
async def test_allocation_missing_from_the_page_is_booked_again(
    bench: Bench, make: Any, booked: bool, holders: list[tuple[str, str]]
) -> None:
    two = host(NIC % 2)
    await bench.start(two)
    await bench.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
    results = [{"request": "nic", "driver": two.driver, "pool": "a", "device": VF0}]
    for name, given in (("bare", None), ("c", {"allocation": {"devices": {"results": results}}})):
        made = await bench.store.create(kinds.RESOURCE_CLAIM, {
            "metadata": {"name": name, "namespace": "here"}, "spec": {"devices": {"requests": [
                {"name": "nic", "exactly": {"deviceClassName": "vf"}}]}}})
        if given:
            await bench.store.patch(kinds.RESOURCE_CLAIM, name, {"status": given}, "here", subresource="status")
    if booked:
        holder = Holder("Consumer", "", "s1", "uid-1")
        await book.book(bench.store, "a", [Booking(two.device(VF0), holder, "", "booked", NOW)])
    await two.hypervisor.start(make("guest", "0000:3b:01.0"))
    await bench.start(two)
    assert await who(bench, VF0) == [(kind, made["metadata"]["uid"] if uid == "uid-c" else uid) for kind, uid in holders]
    revision = bench.store.revision
    await bench.start(two)
    assert bench.store.revision == revision


async def test_a_vm_of_ours_is_no_consumer(bench: Bench) -> None:
    """What is booked for a consumer follows the consumer's VM only, be its uid the same."""
    two = host(NIC % 2)
    await bench.start(two)
    consumer = Holder("Consumer", "", "guest", "uid-guest")
    await book.book(bench.store, "a", [Booking(two.device(VF1), consumer, "", "booked", NOW)])
    await two.hypervisor.start(ours("guest", "0000:3b:01.0"))
    await bench.start(two)
    assert (await who(bench, VF0), await who(bench, VF1)) == ([GUEST], [("Consumer", "uid-guest")])


async def test_a_consumers_device_is_found_in_the_tree_when_it_is_no_longer_listed(bench: Bench) -> None:
    both = host(NIC % 2, "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    await bench.start(both)
    consumer = Holder("Consumer", "", "guest", "uid-guest")
    await book.book(bench.store, "a", [Booking(both.device(VF0), consumer, "", "booked", NOW)])
    await both.hypervisor.start(foreign("guest", "0000:3b:01.1"))
    await bench.start(replace(both, settings=settings("device_spec: [{address: '3b:01.1'}]\nreport_in_placement: true")))
    assert (await who(bench, VF0), await who(bench, VF1)) == ([], [("Consumer", "uid-guest")])


async def test_a_provider_stays_for_what_is_only_found_to_be_held(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    disk = host(DISK, "device_spec: [{product_id: a80a}]\nreport_in_placement: true")
    await bench.start(disk)
    await disk.hypervisor.start(foreign("guest", "0000:65:00.0"))
    await bench.start(replace(disk, settings=settings("device_spec: []\nreport_in_placement: true")))
    row = (await bench.rows())["a_0000:65:00.0"]
    assert (row.inventories["CUSTOM_PCI_144D_A80A"].reserved, row.holders) == (1, {SSD: ["Domain guest"]})
    assert any("device spec is not found for device 0000:65:00.0" in record.message for record in caplog.records)
    inventory = await bench.store.get(kinds.HOST_INVENTORY, "a")
    assert any("is allocated by Domain guest" in warning for warning in inventory["spec"]["warnings"])


# -- writing


async def test_a_tree_of_others_stands_beside_ours(bench: Bench) -> None:
    bandwidth = Provider("a_bandwidth", "u-1", "a", 7, {"KBPS": Inventory(10)}, frozenset({"X"}), extra={"who": "them"})
    tree = providers.with_providers(providers.blank("a"), [bandwidth])
    tree["metadata"]["labels"] = {"keep": "me"}
    tree["status"] = {"seen": "yes"}
    await bench.store.create(kinds.PROVIDER_TREE, tree)
    spec = "device_spec: [{product_id: '1889'}]\nreport_in_placement: true"
    await bench.start(host(NIC % 2, spec))
    have = await bench.store.get(kinds.PROVIDER_TREE, "a")
    assert [each.name for each in providers.read(have)] == ["a_bandwidth", "a_0000:3B:00.0"]
    assert providers.read(have)[0] == bandwidth
    assert (have["metadata"]["labels"], have.get("status")) == ({"keep": "me"}, {"seen": "yes"})
    await bench.start(host(NIC % 2, "device_spec: []\nreport_in_placement: true"))
    have = await bench.store.get(kinds.PROVIDER_TREE, "a")
    assert providers.read(have) == (bandwidth,), "ours go, theirs stay"


async def test_a_tree_is_emptied_when_nothing_is_listed_any_more(bench: Bench) -> None:
    await bench.start(host(NIC % 2, "device_spec: [{product_id: '1889'}]\nreport_in_placement: true"))
    await bench.start(host(NIC % 2, "device_spec: []\nreport_in_placement: true"))
    assert await bench.rows() == {}
    await bench.start(host(NIC % 2, "device_spec: [{vendor_id: '8086'}]"))
    assert len(await bench.devices()) == 2, "now reporting may be off"


async def test_without_reporting_there_is_no_tree(bench: Bench) -> None:
    await bench.start(host(NIC % 2, "device_spec: [{product_id: '1889'}]"))
    with pytest.raises(NotFound):
        await bench.store.get(kinds.PROVIDER_TREE, "a")


# -- what operators keep back


async def test_device_reserved_by_a_user_stays_reserved_without_a_count(bench: Bench) -> None:
    spec = "device_spec: [{product_id: '1889'}]\nreport_in_placement: true"
    two = host(f"{NIC % 2}, {DISK}", spec)
    await bench.start(two)
    await out_of_service.reserve(bench.store, "a", two.device(SSD), by="admin", now=NOW)
    await bench.start(two)
    assert [mark.device.device for mark in (await book.read(bench.store, "a")).reserved] == [SSD]


async def test_records_of_a_reserved_count_go_with_their_provider(bench: Bench) -> None:
    spec = "device_spec: [{product_id: '1889'}]\nreport_in_placement: true"
    await bench.start(host(NIC % 2, spec))
    await placement_view.set_reserved(
        bench.store, "a_0000:3B:00.0", "CUSTOM_PCI_8086_1889", 1, driver="pci.outfitter.dev", now=NOW, by="ops"
    )
    await bench.start(host(NIC % 2, spec))
    assert await bench.taints() == {VF0: ["reserved"]}
    await bench.start(host(NIC % 2, "device_spec: []\nreport_in_placement: true"))
    assert (await book.read(bench.store, "a")).reserved == ()


async def test_reserved_count_without_records_is_corrected_at_once(bench: Bench) -> None:
    """The process that reserved it was killed between tree and page."""
    spec = "device_spec: [{product_id: '1889'}]\nreport_in_placement: true"
    await bench.start(host(NIC % 2, spec))

    async def change(reserved: int) -> None:
        tree = await bench.store.get(kinds.PROVIDER_TREE, "a")
        tree["spec"]["providers"][0]["inventories"]["CUSTOM_PCI_8086_1889"]["reserved"] = reserved
        await bench.store.replace(kinds.PROVIDER_TREE, tree)

    await change(1)
    await bench.start(host(NIC % 2, spec))
    assert await bench.taints() == {VF0: ["reserved"]}, "the slices of the same round say so"
    assert [(mark.by, mark.origin) for mark in (await book.read(bench.store, "a")).reserved] == [("placement", "placement")]
    await change(0)
    await bench.start(host(NIC % 2, spec))
    assert await bench.taints() == {}


async def test_looking_at_a_host_cleans_nothing(bench: Bench) -> None:
    """A count that an operator set earlier is smaller than what is unclean by now."""
    two = host(f"{DISK}, {DISK.replace('65', '66')}", ONCE)
    await bench.start(two)
    tree = await bench.store.get(kinds.PROVIDER_TREE, "a")
    await bench.hold(two, SSD)
    await bench.start(two)
    await book.release(bench.store, "a", "uid-1")
    tree = await bench.store.get(kinds.PROVIDER_TREE, "a")
    await out_of_service.reserve(bench.store, "a", two.device(SSD), by="admin", now=NOW)
    row = providers.read(tree)[0]
    tree = providers.with_providers(tree, [replace(row, inventories={
        name: replace(each, reserved=1) for name, each in row.inventories.items()}), *providers.read(tree)[1:]])
    await bench.store.replace(kinds.PROVIDER_TREE, tree)
    await out_of_service.unreserve(bench.store, "a", two.device(SSD))
    await bench.start(two)
    assert [mark.device.device for mark in (await book.read(bench.store, "a")).unclean] == [SSD]


async def test_a_group_is_booked_once_even_when_it_is_no_longer_listed(bench: Bench) -> None:
    pair = ", ".join(f"{{address: 0000:65:00.{n}, vendor: 10de, product: 2204, class: 030000, iommuGroup: 9}}" for n in (0, 1))
    one = host(pair)
    await one.hypervisor.start(foreign("guest", "0000:65:00.0", "0000:65:00.1"))
    await bench.start(one)
    for spec in ("device_spec: [{}]", "device_spec: []"):
        await bench.start(replace(one, settings=settings(spec)))
        assert [booking.device.device for booking in (await book.read(bench.store, "a")).bookings] == [SSD]
