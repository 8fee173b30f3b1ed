"""What a host says of itself, kept in step with what it has and with what is held."""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from outfitter import app
from outfitter.api import conditions, kinds, providers
from outfitter.api.kinds import Object
from outfitter.api.page import Booking, Holder, Limits
from outfitter.errors import AlreadyHeld, Invalid, OutOfService, Refused
from outfitter.inventory import config, simulate
from outfitter.inventory.config import Settings
from outfitter.inventory.tree import MemoryTree
from outfitter.launcher import domain
from outfitter.ledger import book, history, marks, placement
from outfitter.node.host import Host
from outfitter.node.keep import Keeper
from outfitter.store.clock import ManualClock, SystemClock
from outfitter.store.informer import Informer
from outfitter.store.kube import Kube
from outfitter.store.memory import Memory
from outfitter.store.names import Names
from tests import kubernetes
from tests.controllers.scene import Scene, hosts_of

NOW = "2026-01-01T00:00:00Z"
NIC = "{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {count: %d, product: 1889}}"
DISK = "{address: 0000:65:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}"
PF, VF0, VF1, SSD = "pci-0000-3b-00-0", "pci-0000-3b-00-0-vf0", "pci-0000-3b-00-0-vf1", "pci-0000-65-00-0"


def settings(text: str) -> Settings:
    return config.parse(text).default


def host(pci: str, spec: str = "", **more: Any) -> Host:
    played = simulate.parse(f"hosts: [{{name: a, pci: [{pci}]}}]").hosts
    return replace(app.simulated_hosts(played)[0], settings=settings(spec) if spec else Settings(), **more)


class Bench:
    """One store, and the keepers of hosts on it, each as after a start of its own."""

    def __init__(self, product: app.Embedded, clock: ManualClock) -> None:
        self.product, self.store, self.clock = product, product.store, clock

    def keeper(self, *hosts: Host) -> Keeper:
        return Keeper(self.store, hosts, clock=self.clock, pages=self.product.context.informer(kinds.LEDGER_PAGE))

    async def start(self, *hosts: Host) -> int:
        return await self.keeper(*hosts).start()

    async def devices(self, name: str = "a") -> dict[str, Object]:
        listing = await self.store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={name}")
        return {device["name"]: device for part in listing.items for device in part["spec"].get("devices") or ()}

    async def taints(self, name: str = "a") -> dict[str, list[str]]:
        return {key: [taint["key"].removeprefix("outfitter.dev/") for taint in device["taints"]]
                for key, device in (await self.devices(name)).items() if "taints" in device}

    async def rows(self, name: str = "a") -> dict[str, placement.Row]:
        tree = providers.read(await self.store.get(kinds.PROVIDER_TREE, name))
        return {row.provider.name: row for row in placement.rows(tree, await book.read(self.store, name))}

    async def hold(self, on: Host, device: str, kind: str = "Consumer") -> None:
        holder = Holder(kind, "", "s1", "uid-1")
        await book.book(self.store, on.name, [Booking(on.device(device), holder, "", "prepared", NOW)])


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    clock = ManualClock()
    async with app.embedded(clock=clock, names=Names(random.Random(1))) as product:
        await product.runner.stop()
        yield Bench(product, clock)


async def test_only_what_changed_is_written(bench: Bench) -> None:
    [three] = hosts_of("node", 3)
    assert await bench.start(three) == 3
    revision = bench.store.revision
    keeper = bench.keeper(three)
    assert await keeper.start() == 3
    await keeper.audit("node-0")
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


async def everything(store: Memory) -> dict[str, Object]:
    return {f"{kind.plural}/{obj['metadata']['name']}": obj for kind in kinds.ALL for obj in (await store.list(kind)).items}


@pytest.mark.parametrize(("spec", "why"), {
    "device_spec: [{devname: ens1f0}]\nreport_in_placement: true": "devname",
    "device_spec: [{vendor_id: '8086'}]\nreport_in_placement: true": "0000:3b:01.0",
    "device_spec: []": "report_in_placement is off",
}.items())
async def test_a_refused_host_leaves_everything_as_it_was(bench: Bench, spec: str, why: str) -> None:
    good = host(NIC % 2, "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    other = replace(hosts_of("b", 2)[0])
    await bench.start(good)
    before = await everything(bench.store)
    with pytest.raises(Refused, match=why):
        await bench.start(other, host(NIC % 3, spec))
    assert await everything(bench.store) == before, "not even the host that would have been fine was written"


async def test_what_refuses_a_start_is_a_warning_later(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    good = host(NIC % 2, "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    await bench.start(good)
    before = await everything(bench.store)
    keeper = bench.keeper(replace(good, settings=settings("device_spec: [{vendor_id: '8086'}]\nreport_in_placement: true")))
    await keeper.audit("a")
    await keeper.audit("a")
    assert len([record for record in caplog.records if "only one of the two can be offered" in record.message]) == 1
    assert await everything(bench.store) == before


async def test_all_hosts_that_must_not_start_are_named(bench: Bench) -> None:
    bad = config.parse("device_spec: [{vendor_id: '8086'}]\nreport_in_placement: true")
    hosts = app.simulated_hosts(simulate.parse(f"hosts: [{{name: n, count: 3, pci: [{NIC % 1}]}}]").hosts, config=bad)
    with pytest.raises(Refused) as error:
        await bench.start(*hosts)
    assert [f"host n-{number} does not start" in str(error.value) for number in range(3)] == [True] * 3


@pytest.mark.parametrize("gone", [False, True], ids=["no longer listed", "no longer there"])
async def test_a_held_device_stays_visible_until_it_is_free(bench: Bench, gone: bool, caplog: pytest.LogCaptureFixture) -> None:
    listed = host(f"{NIC % 2}, {DISK}", "device_spec: [{product_id: '1889'}, {product_id: a80a}]\nreport_in_placement: true")
    await bench.start(listed)
    was = (await bench.devices())[SSD]
    await bench.hold(listed, SSD)
    after = host(NIC % 2 if gone else f"{NIC % 2}, {DISK}", "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    keeper = bench.keeper(after)
    await keeper.start()
    what = "vanished" if gone else "unlisted"
    assert await bench.taints() == {SSD: [what]}
    assert {**(await bench.devices())[SSD], "taints": None} == {**was, "taints": None}
    row = (await bench.rows())["a_0000:65:00.0"]
    assert (row.used, row.inventories["CUSTOM_PCI_144D_A80A"].total) == ({"CUSTOM_PCI_144D_A80A": 1}, 1)
    inventory = await bench.store.get(kinds.HOST_INVENTORY, "a")
    assert inventory["spec"]["left"] == [{"device": SSD, "what": what}]
    assert any(SSD in record.message and "Consumer s1" in record.message for record in caplog.records)
    revision = bench.store.revision
    await keeper.audit("a")
    assert bench.store.revision == revision, "it is said once"
    await book.release(bench.store, "a", "uid-1")
    await keeper.audit("a")
    assert SSD not in await bench.devices()
    assert "a_0000:65:00.0" not in await bench.rows()


async def test_marks_are_taints(bench: Bench) -> None:
    three = host(NIC % 3)
    keeper = bench.keeper(three)
    await keeper.start()
    await marks.reserve(bench.store, "a", three.device(VF0), by="admin", reason="for later", now=NOW)
    await marks.quarantine(bench.store, "a", three.device(VF1), by="admin", reason="it smells", now=NOW)
    await keeper.audit("a")
    assert await bench.taints() == {VF0: ["reserved"], VF1: ["quarantined"]}
    await marks.unreserve(bench.store, "a", three.device(VF0))
    await marks.restore(bench.store, "a", three.device(VF1))
    await keeper.audit("a")
    assert await bench.taints() == {}


class Tasteless(Memory):
    """An API server without the feature: what it does not know it drops."""

    async def create(self, kind: kinds.Kind, obj: Object, *, dry_run: bool = False) -> Object:
        return await super().create(kind, _without_taints(kind, obj), dry_run=dry_run)

    async def replace(self, kind: kinds.Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        return await super().replace(kind, _without_taints(kind, obj), subresource=subresource, dry_run=dry_run)


def _without_taints(kind: kinds.Kind, obj: Object) -> Object:
    if kind != kinds.RESOURCE_SLICE:
        return obj
    devices = [{key: value for key, value in device.items() if key != "taints"} for device in obj["spec"].get("devices") or ()]
    return {**obj, "spec": {**obj["spec"], "devices": devices}}


async def test_where_taints_are_dropped_the_device_is_left_out() -> None:
    clock = ManualClock()
    product = app.Embedded(Tasteless(clock=clock, names=Names(random.Random(1))), [], clock=clock)
    bench, three = Bench(product, clock), host(NIC % 3)
    keeper = bench.keeper(three)
    await keeper.start()
    assert len(await bench.devices()) == 3
    await marks.quarantine(bench.store, "a", three.device(VF1), by="admin", now=NOW)
    await keeper.audit("a")
    assert VF1 not in await bench.devices()
    revision = bench.store.revision
    await keeper.audit("a")
    assert bench.store.revision == revision
    await marks.restore(bench.store, "a", three.device(VF1))
    await keeper.audit("a")
    assert len(await bench.devices()) == 3


def foreign(name: str, *addresses: str) -> Any:
    sources = "".join(f"<hostdev type='pci'><source><address domain='0x{a[:4]}' bus='0x{a[5:7]}' slot='0x{a[8:10]}' "
                      f"function='0x{a[11:]}'/></source></hostdev>" for a in addresses)
    return domain.read(f"<domain><name>{name}</name><uuid>uid-{name}</uuid><devices>{sources}</devices></domain>")


async def test_the_devices_of_a_machine_that_nobody_booked_for_are_its_own(bench: Bench) -> None:
    three = host(NIC % 3)
    await three.hypervisor.start(foreign("guest", "0000:3b:01.1"))
    keeper = bench.keeper(three)
    await keeper.start()
    [booking] = (await book.read(bench.store, "a")).bookings
    assert (booking.device.device, booking.state) == (VF1, "prepared")
    assert (booking.holder.kind, booking.holder.name) == ("Domain", "guest")
    assert await bench.taints() == {VF1: ["held"]}, "who allocates claims does not read pages"
    await three.hypervisor.stop("uid-guest")
    await keeper.audit("a")
    assert (await book.read(bench.store, "a")).bookings == ()
    assert await bench.taints() == {}
    [past] = [entry for entry in await history.entries(bench.store, three.device(VF1)) if entry.ended]
    assert past.how == history.GONE


async def test_a_machine_of_ours_keeps_its_device_when_the_page_is_lost(bench: Bench) -> None:
    [node] = hosts_of("node", 2)
    async with app.embedded(hosts=[node], clock=bench.clock, names=Names(random.Random(1))) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        scene = Scene(product, "here", bench.clock)
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
        [before] = (await book.read(product.store, "node-0")).bookings
        await product.runner.stop()
        await product.store.delete(kinds.LEDGER_PAGE, "node-0")
        again = app.Embedded(product.store, [node], clock=bench.clock)
        await again.start()
        await again.settle()
        [booking] = (await book.read(product.store, "node-0")).bookings
        assert (booking.device, booking.holder.uid, booking.state) == (before.device, before.holder.uid, "prepared")
        assert len(await node.hypervisor.domains()) == 1
        await again.runner.stop()


ONCE = "device_spec: [{product_id: a80a, one_time_use: 'yes'}]\nreport_in_placement: true"


async def test_what_is_used_once_stays_out_until_it_is_cleaned(bench: Bench) -> None:
    disk = host(DISK, ONCE)
    keeper = bench.keeper(disk)
    await keeper.start()
    assert keeper.once["a"] == {SSD}
    row = (await bench.rows())["a_0000:65:00.0"]
    assert row.inventories["CUSTOM_PCI_144D_A80A"].reserved == 0
    await bench.hold(disk, SSD)
    await keeper.audit("a")
    assert (await bench.rows())["a_0000:65:00.0"].inventories["CUSTOM_PCI_144D_A80A"].reserved == 1
    await book.release(bench.store, "a", "uid-1")
    await keeper.audit("a")
    assert await bench.taints() == {SSD: ["unclean"]}
    with pytest.raises(OutOfService, match="outfit device clear a/pci-0000-65-00-0"):
        await bench.hold(disk, SSD)
    unlisted = host(DISK, "device_spec: []\nreport_in_placement: true")
    await bench.start(unlisted)
    await bench.start(disk)
    assert await bench.taints() == {SSD: ["unclean"]}, "unlisting it cleans nothing"
    await marks.clear(bench.store, "a", disk.device(SSD))
    await keeper.audit("a")
    assert await bench.taints() == {}
    await bench.hold(disk, SSD)


async def test_an_operators_count_is_kept_whichever_devices_there_are(bench: Bench) -> None:
    spec = "device_spec: [{product_id: '1889'}]\nreport_in_placement: true"
    await bench.start(host(NIC % 4, spec))
    await placement.set_reserved(bench.store, "a_0000:3B:00.0", "CUSTOM_PCI_8086_1889", 2, driver="pci.outfitter.dev", now=NOW,
                                 by="ops")
    kept = {mark.device.device for mark in (await book.read(bench.store, "a")).reserved}
    assert len(kept) == 2
    others = sorted({f"{PF}-vf{number}" for number in range(4)} - kept)
    slots = ", ".join(f"{{address: '3b:01.{name[-1]}'}}" for name in others)
    await bench.start(host(NIC % 4, f"device_spec: [{slots}]\nreport_in_placement: true"))
    row = (await bench.rows())["a_0000:3B:00.0"]
    assert (row.inventories["CUSTOM_PCI_8086_1889"].total, row.inventories["CUSTOM_PCI_8086_1889"].reserved) == (2, 2)
    assert sorted(mark.device.device for mark in (await book.read(bench.store, "a")).reserved) == others
    with pytest.raises(Invalid, match="from 0 to 2"):
        await placement.set_reserved(bench.store, "a_0000:3B:00.0", "CUSTOM_PCI_8086_1889", 3, driver="pci.outfitter.dev",
                                     now=NOW, by="ops")
    await placement.set_reserved(bench.store, "a_0000:3B:00.0", "CUSTOM_PCI_8086_1889", 0, driver="pci.outfitter.dev", now=NOW,
                                 by="ops")
    assert [mark for mark in (await book.read(bench.store, "a")).reserved if mark.device.device in others] == []


async def test_what_a_driver_tells_is_no_news_while_a_machine_has_the_device(bench: Bench) -> None:
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


async def test_what_is_not_offered_says_why(bench: Bench) -> None:
    await bench.start(host(f"{NIC % 1}, {DISK}", "device_spec: [{product_id: '1889'}]"))
    inventory = await bench.store.get(kinds.HOST_INVENTORY, "a")
    reasons = {each["address"]: each["reason"] for each in inventory["spec"]["withheld"]}
    assert reasons == {"0000:3b:00.0": "no entry of device_spec lists 0000:3b:00.0",
                       "0000:65:00.0": "no entry of device_spec lists 0000:65:00.0"}


async def test_oddities_of_a_host_are_told(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    odd = replace(host(NIC % 1), tree=lambda: MemoryTree({"/sys/bus/pci/devices/what": "?"}))
    await bench.start(odd)
    inventory = await bench.store.get(kinds.HOST_INVENTORY, "a")
    assert any("what: is no PCI address" in warning for warning in inventory["spec"]["warnings"])
    assert any("is no PCI address" in record.message for record in caplog.records)


async def test_a_real_host_is_looked_at_again_and_again() -> None:
    clock, trees = ManualClock(), [host(NIC % 2).tree()]
    real = host(NIC % 2, "audit_every: 30s", simulated=False, tree=lambda: trees[-1])
    async with app.embedded(hosts=[real], clock=clock, names=Names(random.Random(1))) as product:
        bench = Bench(product, clock)
        await product.settle()
        assert len(await bench.devices()) == 2
        trees.append(host(NIC % 4).tree())
        await product.settle()
        assert len(await bench.devices()) == 2
        for _ in range(2):
            clock.advance(30)
            await product.settle()
        assert len(await bench.devices()) == 4


async def test_a_mark_is_published_at_once() -> None:
    clock, two = ManualClock(), host(NIC % 2)
    async with app.embedded(hosts=[two], clock=clock, names=Names(random.Random(1))) as product:
        bench = Bench(product, clock)
        await product.settle()
        await marks.reserve(bench.store, "a", two.device(VF0), by="admin", now=NOW)
        await product.settle()
        assert await bench.taints() == {VF0: ["reserved"]}


async def test_old_history_is_thrown_away() -> None:
    clock, two = ManualClock(), host(NIC % 2, "history: {keep: 2h}")
    async with app.embedded(hosts=[two], clock=clock, names=Names(random.Random(1))) as product:
        bench = Bench(product, clock)
        await product.settle()
        await bench.hold(two, VF0)
        await book.release(bench.store, "a", "uid-1")
        assert len((await bench.store.list(kinds.PAST_BOOKING)).items) == 1
        for expected in (1, 1, 0):
            clock.advance(3600)
            await product.settle()
            assert len((await bench.store.list(kinds.PAST_BOOKING)).items) == expected


async def test_a_physical_function_and_its_virtual_ones_exclude_each_other() -> None:
    clock = ManualClock()
    both = host(NIC % 2, "device_spec: [{vendor_id: '8086'}]")
    async with app.embedded(hosts=[both], clock=clock, names=Names(random.Random(1))) as product:
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


class Fragile(Memory):
    """Fails at a chosen write, before or after it."""

    fatal, after = 0, False

    async def write(self, work: Any, *, dry_run: bool = False) -> Any:
        self.fatal -= 1
        if self.fatal == 0 and not self.after:
            raise Killed
        answer = await super().write(work, dry_run=dry_run)
        if self.fatal == 0:
            raise Killed
        return answer


class Killed(Exception):
    pass


async def specs(store: Memory) -> dict[str, Any]:
    out = {}
    for kind in (kinds.LEDGER_PAGE, kinds.PROVIDER_TREE, kinds.HOST_INVENTORY, kinds.RESOURCE_SLICE):
        for obj in (await store.list(kind)).items:
            spec = {key: value for key, value in obj["spec"].items() if key != "pool"}
            out[f"{kind.plural}/{obj['metadata']['name']}"] = spec
    return out


@pytest.mark.parametrize("after", [False, True], ids=["before a write", "after a write"])
async def test_a_start_that_dies_is_made_up_for_by_the_next(after: bool) -> None:
    """Killed at any write of a start that heals, keeps what is held, reserves and publishes: the next start ends where an
    undisturbed one does."""

    async def world(fatal: int) -> tuple[Fragile, int]:
        clock = ManualClock()
        store = Fragile(clock=clock, names=Names(random.Random(1)))
        product = app.Embedded(store, [], clock=clock)
        bench = Bench(product, clock)
        spec = "device_spec: [{product_id: '1889'}, {product_id: a80a}]\nreport_in_placement: true"
        first = host(f"{NIC % 2}, {DISK}", spec)
        await bench.start(first)
        await bench.hold(first, SSD)
        await placement.set_reserved(store, "a_0000:3B:00.0", "CUSTOM_PCI_8086_1889", 1, driver="pci.outfitter.dev", now=NOW,
                                     by="ops")
        second = host(NIC % 3, spec)
        await second.hypervisor.start(foreign("guest", "0000:3b:01.2"))
        store.fatal, store.after = fatal, after
        with contextlib.suppress(Killed):
            await bench.start(second)
        deaths, store.fatal = (1 if store.fatal <= 0 < fatal else 0), 0
        await bench.start(second)
        return store, deaths

    undisturbed, _ = await world(0)
    wanted = await specs(undisturbed)
    assert any("vanished" in str(spec) for spec in wanted.values())
    deaths = 0
    for fatal in range(1, 20):
        store, died = await world(fatal)
        assert await specs(store) == wanted, f"killed at write {fatal}"
        deaths += died
    assert deaths >= 4


@pytest.mark.cluster
async def test_on_a_real_api_server(cluster: kubernetes.Cluster) -> None:
    """It takes what we publish, counters and taints too, keeps it, and a second look finds nothing to write."""
    clock, name = SystemClock(), f"h{uuid.uuid4().hex[:8]}"
    store = Kube(cluster.access(), clock=clock)
    try:
        played = simulate.parse(f"hosts: [{{name: {name}, pci: [{NIC % 140}, {DISK}]}}]").hosts
        both = replace(app.simulated_hosts(played)[0], settings=settings(
            "device_spec: [{vendor_id: '8086', traits: 'a,b'}, {product_id: a80a, live_migratable: 'yes'}]"))
        keeper = Keeper(store, [both], clock=clock, pages=Informer(store, kinds.LEDGER_PAGE, clock=clock))
        assert await keeper.start() == 142
        await marks.quarantine(store, name, both.device(SSD), by="admin", reason="it smells", now=NOW)
        await keeper.audit(name)
        parts = (await store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={name}")).items
        devices = {device["name"]: device for part in parts for device in part["spec"].get("devices") or ()}
        assert [taint["key"] for taint in devices[SSD]["taints"]] == ["outfitter.dev/quarantined"]
        assert sorted(len(part["spec"].get("devices") or ()) for part in parts) == [0, 14, 64, 64]
        assert [part["spec"]["sharedCounters"] for part in parts if "sharedCounters" in part["spec"]] == [
            [{"name": PF, "counters": {"functions": {"value": "140"}}}]]
        assert {part["spec"]["pool"]["generation"] for part in parts} == {2}
        before = {part["metadata"]["name"]: part["metadata"]["resourceVersion"] for part in parts}
        await keeper.audit(name)
        parts = (await store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={name}")).items
        assert {part["metadata"]["name"]: part["metadata"]["resourceVersion"] for part in parts} == before
    finally:
        await store.close()
