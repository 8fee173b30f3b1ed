"""What a host says of itself, kept in step with what it has and with what is held."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from outfitter import app
from outfitter.api import conditions, kinds, providers
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.page import Booking, Holder, Limits, Mark, Page
from outfitter.api.providers import Inventory, Provider
from outfitter.errors import AlreadyHeld, Conflict, Invalid, NotFound, OutOfService, Refused
from outfitter.inventory import config, simulate
from outfitter.inventory.config import Settings
from outfitter.inventory.tree import MemoryTree
from outfitter.launcher import domain
from outfitter.ledger import book, history, marks, placement
from outfitter.node.host import Host
from outfitter.node.keep import EXPIRE, EXPIRE_EVERY, Keeper
from outfitter.scheduling import place
from outfitter.scheduling.fit import Used
from outfitter.scheduling.index import Index
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
    "": "report_in_placement is off",
    "device_spec: [{address: '0000:3b:00.0', remote_managed: 'yes'}]\nreport_in_placement: true": "remote_managed",
}.items())
async def test_a_refused_host_leaves_everything_as_it_was(bench: Bench, spec: str, why: str) -> None:
    good = host(NIC % 2, "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    others = [replace(each, settings=settings("device_spec: [{product_id: '1889'}]") if number else Settings())
              for number, each in enumerate(hosts_of("b", 2, count=2))]
    await bench.start(good)
    before = await everything(bench.store)
    with pytest.raises((Refused, Invalid), match=why):
        await bench.start(*others, host(NIC % 3, spec))
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


REMOTE = "device_spec: [{address: '0000:3b:00.0', remote_managed: 'yes'}]"  # cannot be: it is a physical function


async def test_a_list_that_cannot_be_of_this_host_is_a_warning_later(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    good = host(NIC % 2)
    await bench.start(good)
    before = await everything(bench.store)
    await bench.keeper(replace(good, settings=settings(REMOTE))).audit("a")
    assert any("only VFs can be managed remotely" in record.message for record in caplog.records)
    assert await everything(bench.store) == before


async def test_what_is_wrong_with_several_hosts_is_told_of_each(bench: Bench) -> None:
    cannot_be = host(NIC % 1, REMOTE)
    with pytest.raises(Invalid, match="remote_managed") as alone:
        await bench.start(cannot_be)
    bad = replace(hosts_of("b", 1)[0], settings=settings("device_spec: [{vendor_id: '8086'}]\nreport_in_placement: true"))
    with pytest.raises(Refused) as error:
        await bench.start(cannot_be, bad)
    first, second = str(error.value).split("\n")
    assert first == alone.value.message
    assert second.startswith("host b-0 does not start: device_spec lists both")


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


# -- when it looks


class Pages:
    """Stands for the informer of pages: tells of a change when asked to."""

    def on_change(self, handler: Any) -> None:
        self.tell = handler


def watched(bench: Bench, *hosts: Host) -> tuple[Keeper, Pages]:
    pages = Pages()
    return Keeper(bench.store, hosts, clock=bench.clock, pages=cast(Any, pages)), pages


async def test_nobody_starts_a_machine_while_a_host_is_looked_at(bench: Bench) -> None:
    keeper = bench.keeper(host(NIC % 2))
    async with keeper.locks["a"]:
        revision = bench.store.revision
        looking = asyncio.ensure_future(keeper.audit("a"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not looking.done()
        assert bench.store.revision == revision
    await looking
    assert len(await bench.devices()) == 2

    waited: list[bool] = []

    class Curious:
        async def domains(self) -> dict[str, Any]:
            waited.append(keeper.locks["a"].locked())
            return {}

    keeper.hosts["a"] = replace(keeper.hosts["a"], hypervisor=cast(Any, Curious()))
    await keeper.audit("a")
    assert waited == [True]


@pytest.mark.parametrize("simulated", [True, False])
async def test_only_real_hosts_are_looked_at_from_time_to_time(bench: Bench, simulated: bool) -> None:
    keeper = bench.keeper(host(NIC % 1, "audit_every: 30s", simulated=simulated))
    await keeper.start()
    for seconds, due in ((0, 0), (29, 0), (1, 0 if simulated else 1)):
        bench.clock.advance(seconds)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(keeper.queue) == due
    assert await keeper.reconcile("a") == (None if simulated else 30.0)
    keeper.queue.close()


async def test_history_is_kept_as_long_as_any_host_says(bench: Bench) -> None:
    one, [two] = host(NIC % 1, "history: {keep: 2h}"), hosts_of("b", 1)
    two = replace(two, settings=settings("history: {keep: 4h}"))
    far = hosts_of("c", 1)[0]
    await bench.start(one, two, far)
    for each in (one, two, far):
        await bench.hold(each, (await bench.store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={each.name}"))
                         .items[0]["spec"]["devices"][0]["name"])
        await book.release(bench.store, each.name, "uid-1")

    async def left() -> list[str]:
        return sorted(past["spec"]["host"] for past in (await bench.store.list(kinds.PAST_BOOKING)).items)

    bench.clock.advance(3 * 3600)
    assert await bench.keeper(one, two).reconcile(EXPIRE) == EXPIRE_EVERY
    assert await left() == ["a", "b-0", "c-0"]
    await bench.keeper(one).reconcile(EXPIRE)
    assert await left() == ["b-0", "c-0"], "a host that is alone sees to its own"
    assert await bench.keeper().reconcile(EXPIRE) == EXPIRE_EVERY
    assert await left() == ["b-0", "c-0"]
    bench.clock.advance(2 * 3600)
    await bench.keeper(one, two).reconcile(EXPIRE)
    assert await left() == []


def paged(name: str, held: tuple[str, ...] = (), **marked: str) -> Object:
    out: Object = Page.blank(name)
    holder = Holder("Consumer", "", "s1", "uid-1")
    out["spec"]["bookings"] = [Booking(DeviceId("pci.outfitter.dev", name, each), holder, "", "booked", NOW).to_object()
                               for each in held]
    for which, device in marked.items():
        out["spec"][which] = [Mark(DeviceId("pci.outfitter.dev", name, device), "", "admin", NOW).to_object()]
    return out


CHANGES: dict[str, tuple[Object | None, Object | None, bool]] = {
    "reserved": (paged("a"), paged("a", reserved=VF0), True),
    "no longer reserved": (paged("a", reserved=VF0), paged("a"), True),
    "quarantined": (paged("a"), paged("a", quarantined=VF0), True),
    "used up": (paged("a"), paged("a", unclean=VF0), True),
    "a first page without anything": (None, paged("a"), False),
    "a first page with a mark": (None, paged("a", reserved=VF0), True),
    "a page that is deleted": (paged("a", reserved=VF0), None, True),
    "booked": (paged("a"), paged("a", (VF0,)), False),
    "let go of": (paged("a", (VF0,)), paged("a"), False),
    "one that only stays is let go of": (paged("a", (VF0, SSD)), paged("a", (VF0,)), True),
    "one beside it is let go of": (paged("a", (VF0, SSD)), paged("a", (SSD,)), False),
    "one that only stays goes with the page": (paged("a", (SSD,)), None, True),
    "a host that is another's": (paged("z"), paged("z", reserved=VF0), False),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_which_news_of_a_page_are_a_reason_to_look(bench: Bench, name: str) -> None:
    before, after, looks = CHANGES[name]
    listed = host(f"{NIC % 2}, {DISK}", "device_spec: [{product_id: '1889'}, {product_id: a80a}]")
    await bench.start(listed)
    await bench.hold(listed, SSD)
    keeper, pages = watched(bench, host(f"{NIC % 2}, {DISK}", "device_spec: [{product_id: '1889'}]"))
    await keeper.start()
    assert await bench.taints() == {SSD: ["unlisted"]}
    pages.tell(before, after)
    assert len(keeper.queue) == (1 if looks else 0)
    if looks:
        assert await keeper.queue.take() == "a"


# -- what is others'


def theirs(name: str) -> DeviceId:
    return DeviceId("gpu.example.com", "a", name)


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
    await marks.reserve(bench.store, "a", theirs(VF0), by="admin", now=NOW)
    fewer = host(f"{NIC % 2}, {DISK}", "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    await bench.start(fewer)
    ours = {device["name"]: device for part in (await bench.store.list(kinds.RESOURCE_SLICE)).items
            if part["spec"]["driver"] == "pci.outfitter.dev" for device in part["spec"]["devices"]}
    assert list(ours) == [VF0, VF1], "nobody of ours has the disk"
    assert all("taints" not in device for device in ours.values())
    assert list(await bench.rows()) == ["a_0000:3B:00.0"]
    changed = host(f"{(NIC % 2)[:-2]}, driver: iavf}}}}", "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    await bench.start(changed)
    part = await bench.store.get(kinds.RESOURCE_SLICE, "a-pci.outfitter.dev-0")
    assert {device["attributes"]["driver"]["string"] for device in part["spec"]["devices"]} == {"iavf"}


async def test_a_domain_that_has_another_drivers_device_taints_none_of_ours(bench: Bench) -> None:
    two = host(NIC % 2)
    await bench.start(two)
    found = Booking(theirs(VF0), Holder("Domain", "", "m", "uid-m"), "", "prepared", NOW)
    page = await book.read(bench.store, "a")
    seen, _ = watched(bench, two)
    have = (await seen._stored("a"))["a"]
    outlook = await seen._look(two, have)
    await seen._publish(two, have, outlook.seen, Page(page.adding(found)), "uid")
    assert await bench.taints() == {}


async def test_slices_of_an_older_generation_are_not_what_is_published(bench: Bench) -> None:
    """Left behind by a start that died: a device that only they have is not brought back."""
    spec = "device_spec: [{product_id: '1889'}, {product_id: a80a}]"
    both = host(f"{NIC % 2}, {DISK}", spec)
    await bench.start(both)
    [old] = (await bench.store.list(kinds.RESOURCE_SLICE)).items
    fewer = host(NIC % 2, spec)
    await bench.start(fewer)
    await bench.store.create(kinds.RESOURCE_SLICE, {"metadata": {"name": "left-behind"}, "spec": old["spec"]})
    await book.change_page(bench.store, "a", lambda page: page.adding(
        Booking(fewer.device(SSD), Holder("Consumer", "", "s1", "uid-1"), "", "booked", NOW)))
    await bench.start(fewer)
    [part] = (await bench.store.list(kinds.RESOURCE_SLICE)).items
    assert [device["name"] for device in part["spec"]["devices"]] == [VF0, VF1]
    assert part["spec"]["pool"]["generation"] == 3, "above all that stand"


async def test_a_vanished_device_that_a_machine_has_comes_back_with_its_page(bench: Bench) -> None:
    full = host(f"{NIC % 1}, {DISK}", "device_spec: [{product_id: a80a}]")
    await bench.start(full)
    await full.hypervisor.start(foreign("guest", "0000:65:00.0"))
    empty = host(NIC % 1, "device_spec: [{product_id: a80a}]", hypervisor=full.hypervisor)
    await bench.start(empty)
    assert await bench.taints() == {SSD: ["vanished", "held"]}
    [booking] = (await book.read(bench.store, "a")).bookings
    assert (booking.device, booking.holder.name) == (empty.device(SSD), "guest")


def claimed(on: Host, device: str, state: Any) -> Booking:
    return Booking(on.device(device), Holder("ResourceClaim", "here", "c", "uid-c", "vmi/blue"), "nic", state, NOW)


def ours(name: str, *addresses: str) -> Any:
    return replace(foreign(name, *addresses), foreign=False)


async def who(bench: Bench, device: str) -> list[tuple[str, str]]:
    page = await book.read(bench.store, "a")
    return sorted((one.holder.kind, one.holder.uid) for one in page.bookings if one.device.device == device)


CLAIM, GUEST = ("ResourceClaim", "uid-c"), ("Domain", "uid-guest")
FOUND: dict[str, tuple[Any, Any, list[tuple[str, str]]]] = {
    # the machine that runs, the state in which a claim has its device -> who has it afterwards
    "a machine of ours has what was prepared for its claim": (ours, "prepared", [CLAIM]),
    "a machine of ours has what is only booked for a claim": (ours, "booked", [GUEST, CLAIM]),
    "a machine of ours has what no claim has any more": (ours, "released", [GUEST, CLAIM]),
    "a machine of others has what was prepared for a claim": (foreign, "prepared", [GUEST, CLAIM]),
    "a machine of ours has what nobody booked": (ours, None, [GUEST]),
}


@pytest.mark.parametrize("name", FOUND)
async def test_whose_a_running_machines_device_is(bench: Bench, name: str) -> None:
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
    "our machine is the claim's": (ours, False, [CLAIM]),
    "a machine of others is nobody's we know": (foreign, False, [GUEST]),
    "somebody else has it by now": (ours, True, [GUEST]),
}.values(), ids=["our machine is the claim's", "a machine of others is nobody's we know", "somebody else has it by now"])
async def test_a_promise_that_the_page_lost(bench: Bench, make: Any, booked: bool, holders: list[tuple[str, str]]) -> None:
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


async def test_a_machine_of_ours_is_no_consumer(bench: Bench) -> None:
    """What is booked for a consumer follows the consumer's machine only, be its uid the same."""
    two = host(NIC % 2)
    await bench.start(two)
    consumer = Holder("Consumer", "", "guest", "uid-guest")
    await book.book(bench.store, "a", [Booking(two.device(VF1), consumer, "", "booked", NOW)])
    await two.hypervisor.start(ours("guest", "0000:3b:01.0"))
    await bench.start(two)
    assert (await who(bench, VF0), await who(bench, VF1)) == ([GUEST], [("Consumer", "uid-guest")])


async def test_what_a_consumer_has_is_told_from_the_tree_when_it_is_no_longer_listed(bench: Bench) -> None:
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


async def test_a_machine_with_something_unknown_is_told(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    one = host(NIC % 1)
    await one.hypervisor.start(foreign("guest", "0000:99:00.0", "0000:3b:01.0"))
    await bench.start(one)
    inventory = await bench.store.get(kinds.HOST_INVENTORY, "a")
    assert inventory["spec"]["warnings"] == ["machine guest has 0000:99:00.0, which is not known on this host"]
    said = [record.message for record in caplog.records]
    assert "a: machine guest has 0000:99:00.0, which is not known on this host" in said
    assert any(f"{VF0} is in use by Domain guest and was not booked for it" in text for text in said), "what was healed too"
    assert await bench.taints() == {VF0: ["held"]}


async def test_a_warning_is_said_again_when_it_was_over_in_between(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    one = host(NIC % 1)
    keeper = bench.keeper(one)
    for strange in (True, True, False, True):
        await one.hypervisor.stop("uid-guest")
        if strange:
            await one.hypervisor.start(foreign("guest", "0000:99:00.0"))
        await keeper.audit("a")
    assert len([record for record in caplog.records if "0000:99:00.0" in record.message]) == 2


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
    assert len(await bench.devices()) == 3, "now reporting may be off"


async def test_without_reporting_there_is_no_tree(bench: Bench) -> None:
    await bench.start(host(NIC % 2, "device_spec: [{product_id: '1889'}]"))
    with pytest.raises(NotFound):
        await bench.store.get(kinds.PROVIDER_TREE, "a")


async def test_what_somebody_else_makes_meanwhile_is_a_conflict(bench: Bench) -> None:
    """Both looked before either wrote: the second looks again."""
    keeper, spec = bench.keeper(host(NIC % 2)), "device_spec: [{product_id: '1889'}]\nreport_in_placement: true"
    keeper.hosts["a"] = host(NIC % 2, spec)
    have = (await keeper._stored("a"))["a"]
    outlook = await keeper._look(keeper.hosts["a"], have)
    await keeper._write(keeper.hosts["a"], have, outlook)
    with pytest.raises(Conflict, match="ProviderTree a was made meanwhile: look again"):
        await keeper._write(keeper.hosts["a"], have, outlook)


async def test_an_old_slice_that_somebody_deletes_meanwhile_is_no_harm() -> None:
    class Hasty(Memory):
        async def delete(self, kind: kinds.Kind, name: str, *args: Any, **options: Any) -> Object:
            gone = await super().delete(kind, name, *args, **options)
            if kind == kinds.RESOURCE_SLICE:
                raise NotFound("somebody was faster")
            return gone

    clock = ManualClock()
    bench = Bench(app.Embedded(Hasty(clock=clock, names=Names(random.Random(1))), [], clock=clock), clock)
    await bench.start(host(NIC % 130))
    await bench.start(host(NIC % 2))
    assert list(await bench.devices()) == [VF0, VF1]


async def test_new_slices_stand_before_old_ones_go() -> None:
    """Nobody sees a pool that looks whole and lacks devices: what is incomplete in between is not used."""
    seen: list[list[tuple[str, int]]] = []

    class Watched(Memory):
        async def write(self, work: Any, *, dry_run: bool = False) -> Any:
            answer = await super().write(work, dry_run=dry_run)
            seen.append([(part["metadata"]["name"][-1], part["spec"]["pool"]["generation"])
                         for part in (await self.list(kinds.RESOURCE_SLICE)).items])
            return answer

    clock = ManualClock()
    bench = Bench(app.Embedded(Watched(clock=clock, names=Names(random.Random(1))), [], clock=clock), clock)
    await bench.start(host(NIC % 130))
    seen.clear()
    await bench.start(host(NIC % 2))
    steps = [step for step in seen if step]
    assert [steps[number] for number in range(len(steps)) if number == 0 or steps[number] != steps[number - 1]][-2:] == [
        [("0", 2), ("1", 1)], [("0", 2)]]


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
                    "reason": "no entry of device_spec lists 0000:65:00.0, which carries it"}


async def test_a_device_has_each_taint_once(bench: Bench) -> None:
    one = host(NIC % 2)
    await bench.start(one)
    for name in ("m", "n"):
        await one.hypervisor.start(foreign(name, "0000:3b:01.0"))
    await bench.start(one)
    assert len((await book.read(bench.store, "a")).bookings) == 2
    assert await bench.taints() == {VF0: ["held"]}


# -- what operators keep back


async def test_what_a_person_reserved_stays_when_it_is_not_counted(bench: Bench) -> None:
    spec = "device_spec: [{product_id: '1889'}]\nreport_in_placement: true"
    two = host(f"{NIC % 2}, {DISK}", spec)
    await bench.start(two)
    await marks.reserve(bench.store, "a", two.device(SSD), by="admin", now=NOW)
    await bench.start(two)
    assert [mark.device.device for mark in (await book.read(bench.store, "a")).reserved] == [SSD]


async def test_marks_of_a_count_go_with_their_provider(bench: Bench) -> None:
    spec = "device_spec: [{product_id: '1889'}]\nreport_in_placement: true"
    await bench.start(host(NIC % 2, spec))
    await placement.set_reserved(bench.store, "a_0000:3B:00.0", "CUSTOM_PCI_8086_1889", 1, driver="pci.outfitter.dev", now=NOW,
                                 by="ops")
    await bench.start(host(NIC % 2, spec))
    assert await bench.taints() == {VF0: ["reserved"]}
    await bench.start(host(NIC % 2, "device_spec: []\nreport_in_placement: true"))
    assert (await book.read(bench.store, "a")).reserved == ()


async def test_a_count_without_marks_is_made_good_at_once(bench: Bench) -> None:
    """Whoever reserved it died between tree and page."""
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
    await marks.reserve(bench.store, "a", two.device(SSD), by="admin", now=NOW)
    row = providers.read(tree)[0]
    tree = providers.with_providers(tree, [replace(row, inventories={
        name: replace(each, reserved=1) for name, each in row.inventories.items()}), *providers.read(tree)[1:]])
    await bench.store.replace(kinds.PROVIDER_TREE, tree)
    await marks.unreserve(bench.store, "a", two.device(SSD))
    await bench.start(two)
    assert [mark.device.device for mark in (await book.read(bench.store, "a")).unclean] == [SSD]


async def blocked(bench: Bench, name: str = "a") -> dict[str, bool]:
    """What a scheduler may not give away, by device."""
    parts = (await bench.store.list(kinds.RESOURCE_SLICE)).items
    nodes = (await bench.store.list(kinds.NODE)).items
    index = Index.of(parts, [await book.read(bench.store, name)], nodes)
    out = {}
    for device, raw in (await bench.devices(name)).items():
        address = raw["attributes"]["resource.kubernetes.io/pciBusID"]["string"]
        where = {"cel": {"expression": f'device.attributes["resource.kubernetes.io"].pciBusID == "{address}"'}}
        claim = {"metadata": {"name": "c", "namespace": "here"}, "spec": {"devices": {"requests": [
            {"name": "r", "exactly": {"deviceClassName": "any", "selectors": [where]}}]}}}
        pod = {"metadata": {"name": "p", "namespace": "here"},
               "spec": {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}}
        found = place.place(pod, lambda namespace, name, claim=claim: claim,  # type: ignore[misc]
                            {"any": {"metadata": {"name": "any"}}}.get, index, Used())
        out[device] = isinstance(found, place.Waiting)
    return out


async def test_a_card_is_not_given_whole_while_an_unlisted_function_of_it_is_held(bench: Bench) -> None:
    both = host(NIC % 2, "device_spec: [{vendor_id: '8086'}]")
    await bench.start(both)
    await bench.hold(both, VF0)
    await bench.start(host(NIC % 2, "device_spec: [{product_id: '1592'}]"))
    assert await blocked(bench) == {PF: True, VF0: True}


async def test_its_functions_are_not_given_while_the_unlisted_card_is_held(bench: Bench) -> None:
    both = host(NIC % 2, "device_spec: [{vendor_id: '8086'}]")
    await bench.start(both)
    await bench.hold(both, PF)
    await bench.start(host(NIC % 2, "device_spec: [{product_id: '1889'}]"))
    assert await blocked(bench) == {VF0: True, VF1: True, PF: True}


@pytest.mark.parametrize("home", [Tasteless, Memory], ids=["where taints are dropped", "after the slices were deleted"])
async def test_a_held_function_that_is_unlisted_refuses_no_later_start(home: type[Memory]) -> None:
    clock = ManualClock()
    bench = Bench(app.Embedded(home(clock=clock, names=Names(random.Random(1))), [], clock=clock), clock)
    listed = host(NIC % 2, "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    await bench.start(listed)
    await bench.hold(listed, VF0)
    fewer = host(NIC % 2, "device_spec: [{address: '3b:01.1'}]\nreport_in_placement: true")
    await bench.start(fewer)
    if home is Memory:
        for part in (await bench.store.list(kinds.RESOURCE_SLICE)).items:
            await bench.store.delete(kinds.RESOURCE_SLICE, part["metadata"]["name"])
    await bench.start(fewer)


async def test_a_group_is_booked_once_even_when_it_is_no_longer_listed(bench: Bench) -> None:
    pair = ", ".join(f"{{address: 0000:65:00.{n}, vendor: 10de, product: 2204, class: 030000, iommuGroup: 9}}" for n in (0, 1))
    one = host(pair)
    await one.hypervisor.start(foreign("guest", "0000:65:00.0", "0000:65:00.1"))
    await bench.start(one)
    for spec in ("device_spec: [{}]", "device_spec: []"):
        await bench.start(replace(one, settings=settings(spec)))
        assert [booking.device.device for booking in (await book.read(bench.store, "a")).bookings] == [SSD]


async def test_a_start_never_lifts_a_mark_where_taints_are_dropped() -> None:
    clock = ManualClock()
    bench = Bench(app.Embedded(Tasteless(clock=clock, names=Names(random.Random(1))), [], clock=clock), clock)
    three = host(NIC % 3)
    await bench.start(three)
    await marks.quarantine(bench.store, "a", three.device(VF1), by="admin", now=NOW)
    await bench.start(three)
    revision = bench.store.revision
    await bench.start(three)
    assert bench.store.revision == revision


async def test_a_mistake_that_only_this_host_shows_names_the_host(bench: Bench) -> None:
    with pytest.raises(Invalid, match=r"host a does not start: .*remote_managed"):
        await bench.start(host(NIC % 1, "device_spec: [{address: '0000:3b:00.0', remote_managed: 'yes'}]"))


@pytest.mark.parametrize("fatal", range(1, 9))
async def test_a_start_that_dies_between_two_slices_forgets_no_held_device(fatal: int) -> None:
    clock = ManualClock()
    store = Fragile(clock=clock, names=Names(random.Random(1)))
    bench = Bench(app.Embedded(store, [], clock=clock), clock)
    first = host(f"{NIC % 140}, {DISK}", "device_spec: [{product_id: '1889'}, {product_id: a80a}]")
    await bench.start(first)
    await bench.hold(first, SSD)
    second = host(NIC % 140, "device_spec: [{product_id: '1889'}]")
    store.fatal, store.after = fatal, False
    with contextlib.suppress(Killed):
        await bench.start(second)
    store.fatal = 0
    await bench.start(second)
    assert await bench.taints() == {SSD: ["vanished"]}
    assert len((await bench.store.list(kinds.RESOURCE_SLICE)).items) == 3, "what the dead one left is gone"


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
