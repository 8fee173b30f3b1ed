"""When a host is looked at, what keeps it from starting, and what a death between two writes leaves."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import threading
import uuid
from dataclasses import replace
from typing import Any, cast

import pytest

from outfitter import app
from outfitter.api import conditions, kinds, write_request
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder, OutOfServiceRecord, Page
from outfitter.errors import Conflict, Invalid, NotFound, StartupRefused
from outfitter.inventory import config
from outfitter.inventory.config import HostSettings
from outfitter.inventory.host_tree import Tree
from outfitter.inventory.simulation import hosts_file
from outfitter.ledger import book, out_of_service, placement_view
from outfitter.node import host_audit
from outfitter.node.host_audit import EXPIRE, EXPIRE_EVERY, RELEASED_AFTER, HostAudit
from outfitter.store.clock import ManualClock, SystemClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.informer import Informer
from outfitter.store.kube import Kube
from outfitter.store.memory import Memory
from tests import kubernetes
from tests.controllers.scenario import hosts_of
from tests.node.audited_hosts import (
    DISK,
    NIC,
    NOW,
    PF,
    SSD,
    VF0,
    VF1,
    Bench,
    Fragile,
    Killed,
    Pages,
    Tasteless,
    everything,
    foreign,
    host,
    settings,
    specs,
    watched,
)


@pytest.mark.parametrize(("spec", "why"), {
    "device_spec: [{devname: ens1f0}]\nreport_in_placement: true": "devname",
    "device_spec: [{vendor_id: '8086'}]\nreport_in_placement: true": "0000:3b:01.0",
    "device_spec: []": "report_in_placement is off",
    "": "report_in_placement is off",
    "device_spec: [{address: '0000:3b:00.0', remote_managed: 'yes'}]\nreport_in_placement: true": "remote_managed",
}.items())
async def test_a_refused_host_leaves_everything_as_it_was(bench: Bench, spec: str, why: str) -> None:
    good = host(NIC % 2, "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    others = [replace(each, settings=settings("device_spec: [{product_id: '1889'}]") if number else HostSettings())
              for number, each in enumerate(hosts_of("b", 2, count=2))]
    await bench.start(good)
    before = await everything(bench.store)
    with pytest.raises((StartupRefused, Invalid), match=why):
        await bench.start(host(NIC % 3, spec))
    assert await everything(bench.store) == before
    refused = host(NIC % 3, spec)
    assert await bench.start(*others, refused) == 4, "the other hosts are published"
    node = before.pop("nodes/a")
    after = await everything(bench.store)
    assert {name: after[name] for name in before} == before
    assert refused.refusal is not None
    assert why in refused.refusal.message
    ready = conditions.find(after["nodes/a"], "Ready") or {}
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "StartRefused", refused.refusal.message)
    assert {**after["nodes/a"]["status"], "conditions": []} == {**node["status"], "conditions": []}


@pytest.mark.parametrize("simulated", [True, False])
async def test_only_the_tree_of_a_real_host_is_read_beside_the_loop(bench: Bench, simulated: bool) -> None:
    """It may take long, and does not block the event loop; a simulated host keeps its order."""
    one, readers = host(NIC % 2), set[threading.Thread]()

    def tree() -> Tree:
        readers.add(threading.current_thread())
        return one.tree()

    audit = bench.audit(replace(one, simulated=simulated, tree=tree))
    await audit.start()
    await audit.audit("a")
    assert (threading.current_thread() in readers, len(readers) > 0) == (simulated, True)


async def test_what_refuses_a_start_is_a_warning_later(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    good = host(NIC % 2, "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    await bench.start(good)
    before = await everything(bench.store)
    audit = bench.audit(replace(good, settings=settings("device_spec: [{vendor_id: '8086'}]\nreport_in_placement: true")))
    await audit.audit("a")
    await audit.audit("a")
    assert len([record for record in caplog.records if "only one of the two can be offered" in record.message]) == 1
    assert await everything(bench.store) == before


REMOTE = "device_spec: [{address: '0000:3b:00.0', remote_managed: 'yes'}]"  # cannot be: it is a physical function


async def test_a_list_that_cannot_be_of_this_host_is_a_warning_later(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    good = host(NIC % 2)
    await bench.start(good)
    before = await everything(bench.store)
    await bench.audit(replace(good, settings=settings(REMOTE))).audit("a")
    assert any("only VFs can be managed remotely" in record.message for record in caplog.records)
    assert await everything(bench.store) == before


async def test_what_is_wrong_with_several_hosts_is_reported_for_each(bench: Bench) -> None:
    cannot_be = host(NIC % 1, REMOTE)
    with pytest.raises(Invalid, match="remote_managed") as alone:
        await bench.start(cannot_be)
    bad = replace(hosts_of("b", 1)[0], settings=settings("device_spec: [{vendor_id: '8086'}]\nreport_in_placement: true"))
    with pytest.raises(StartupRefused) as error:
        await bench.start(cannot_be, bad)
    first, second = str(error.value).split("\n")
    assert first == alone.value.message
    assert second.startswith("host b-0 does not start: device_spec lists both")


async def test_all_hosts_that_must_not_start_are_named(bench: Bench) -> None:
    bad = config.parse("device_spec: [{vendor_id: '8086'}]\nreport_in_placement: true")
    hosts = app.simulated_hosts(hosts_file.parse(f"hosts: [{{name: n, count: 3, pci: [{NIC % 1}]}}]").hosts, config=bad)
    with pytest.raises(StartupRefused) as error:
        await bench.start(*hosts)
    assert [f"host n-{number} does not start" in str(error.value) for number in range(3)] == [True] * 3


async def test_a_real_host_is_looked_at_again_and_again() -> None:
    clock, trees = ManualClock(), [host(NIC % 2).tree()]
    real = host(NIC % 2, "audit_every: 30s", simulated=False, tree=lambda: trees[-1])
    async with app.embedded(hosts=[real], clock=clock, names=IdGenerator(random.Random(1))) as product:
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


async def test_out_of_service_record_is_published_at_once() -> None:
    clock, two = ManualClock(), host(NIC % 2)
    async with app.embedded(hosts=[two], clock=clock, names=IdGenerator(random.Random(1))) as product:
        bench = Bench(product, clock)
        await product.settle()
        await out_of_service.reserve(bench.store, "a", two.device(VF0), by="admin", now=NOW)
        await product.settle()
        assert await bench.taints() == {VF0: ["reserved"]}


async def test_a_slice_that_is_deleted_is_published_again() -> None:
    clock = ManualClock()
    async with app.embedded(hosts=[host(NIC % 2)], clock=clock, names=IdGenerator(random.Random(1))) as product:
        bench = Bench(product, clock)
        await product.settle()
        before = await bench.devices()
        assert before
        [part] = (await bench.store.list(kinds.RESOURCE_SLICE)).items
        await bench.store.delete(kinds.RESOURCE_SLICE, part["metadata"]["name"])
        await product.settle()
        assert await bench.devices() == before


async def test_old_history_is_thrown_away() -> None:
    clock, two = ManualClock(), host(NIC % 2, "history: {keep: 2h}")
    async with app.embedded(hosts=[two], clock=clock, names=IdGenerator(random.Random(1))) as product:
        bench = Bench(product, clock)
        await product.settle()
        await bench.hold(two, VF0)
        await book.release(bench.store, "a", "uid-1")
        assert len((await bench.store.list(kinds.PAST_BOOKING)).items) == 1
        for expected in (1, 1, 0):
            clock.advance(3600)
            await product.settle()
            assert len((await bench.store.list(kinds.PAST_BOOKING)).items) == expected


@pytest.mark.parametrize("after", [False, True], ids=["before a write", "after a write"])
async def test_a_start_that_dies_is_made_up_for_by_the_next(after: bool) -> None:
    """Killed at any write of a start that heals, keeps what is held, reserves and publishes: the next start ends where an
    undisturbed one does."""

    async def audited(fatal: int) -> tuple[Fragile, int]:
        clock = ManualClock()
        store = Fragile(clock=clock, names=IdGenerator(random.Random(1)))
        product = app.Embedded(store, [], clock=clock)
        bench = Bench(product, clock)
        spec = "device_spec: [{product_id: '1889'}, {product_id: a80a}]\nreport_in_placement: true"
        first = host(f"{NIC % 2}, {DISK}", spec)
        await bench.start(first)
        await bench.hold(first, SSD)
        await placement_view.set_reserved(
            store, "a_0000:3B:00.0", "CUSTOM_PCI_8086_1889", 1, driver="pci.outfitter.dev", now=NOW, by="ops"
        )
        second = host(NIC % 3, spec)
        await second.hypervisor.start(foreign("guest", "0000:3b:01.2"))
        store.fatal, store.after = fatal, after
        with contextlib.suppress(Killed):
            await bench.start(second)
        deaths, store.fatal = (1 if store.fatal <= 0 < fatal else 0), 0
        await bench.start(second)
        return store, deaths

    undisturbed, _ = await audited(0)
    wanted = await specs(undisturbed)
    assert any("vanished" in str(spec) for spec in wanted.values())
    deaths = 0
    for fatal in range(1, 20):
        store, died = await audited(fatal)
        assert await specs(store) == wanted, f"killed at write {fatal}"
        deaths += died
    assert deaths >= 4


async def test_no_vm_starts_during_an_audit_of_its_host(bench: Bench) -> None:
    audit = bench.audit(host(NIC % 2))
    async with audit.hosts["a"].lock:
        revision = bench.store.revision
        looking = asyncio.ensure_future(audit.audit("a"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not looking.done()
        assert bench.store.revision == revision
    await looking
    assert len(await bench.devices()) == 2

    waited: list[bool] = []

    class Curious:
        async def domains(self) -> dict[str, Any]:
            waited.append(audit.hosts["a"].lock.locked())
            return {}

    audit.hosts["a"] = replace(audit.hosts["a"], hypervisor=cast(Any, Curious()))
    await audit.audit("a")
    assert waited == [True]


@pytest.mark.parametrize("simulated", [True, False])
async def test_only_real_hosts_are_looked_at_from_time_to_time(bench: Bench, simulated: bool) -> None:
    audit = bench.audit(host(NIC % 1, "audit_every: 30s", simulated=simulated))
    await audit.start()
    for seconds, due in ((0, 0), (29, 0), (1, 0 if simulated else 1)):
        bench.clock.advance(seconds)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(audit.queue) == due
    assert await audit.reconcile("a") == (None if simulated else 30.0)
    audit.queue.close()


async def test_history_is_kept_for_the_longest_retention_of_all_hosts(bench: Bench) -> None:
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
    assert await bench.audit(one, two).reconcile(EXPIRE) == EXPIRE_EVERY
    assert await left() == ["a", "b-0", "c-0"]
    await bench.audit(one).reconcile(EXPIRE)
    assert await left() == ["b-0", "c-0"], "a host that is alone sees to its own"
    assert await bench.audit().reconcile(EXPIRE) == EXPIRE_EVERY
    assert await left() == ["b-0", "c-0"]
    bench.clock.advance(2 * 3600)
    await bench.audit(one, two).reconcile(EXPIRE)
    assert await left() == []


async def test_history_is_bounded_before_its_hour_where_many_bookings_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_audit, "EXPIRE_AFTER", 4)
    nics, pages = host(NIC % 1), Pages()
    await bench.start(nics)
    [device] = await bench.devices()
    audit = HostAudit(bench.store, [nics], clock=bench.clock, pages=cast(Any, pages))
    before, held = Page.blank("a"), Page.blank("a")
    held["spec"]["bookings"] = [{"device": {"driver": "d", "pool": "a", "device": device}, "state": "booked",
                                 "holder": {"kind": "Consumer", "name": "s", "uid": "u"}, "since": "2026-01-01T00:00:00Z"}]
    prepared = copy.deepcopy(held)
    prepared["spec"]["bookings"][0]["state"] = "prepared"
    due = []
    for _ in range(4):
        for old, new in ((before, held), (held, prepared), (prepared, before)):
            pages.tell(old, new)
            due.append(len(audit.queue))
    assert due == [0] * 11 + [1]
    audit.queue.close()


def paged(name: str, held: tuple[str, ...] = (), **marked: str) -> Object:
    out: Object = Page.blank(name)
    holder = Holder("Consumer", "", "s1", "uid-1")
    out["spec"]["bookings"] = [Booking(DeviceId("pci.outfitter.dev", name, each), holder, "", "booked", NOW).to_object()
                               for each in held]
    for which, device in marked.items():
        out["spec"][which] = [OutOfServiceRecord(DeviceId("pci.outfitter.dev", name, device), "", "admin", NOW).to_object()]
    return out


CHANGES: dict[str, tuple[Object | None, Object | None, bool | float]] = {
    "reserved": (paged("a"), paged("a", reserved=VF0), True),
    "no longer reserved": (paged("a", reserved=VF0), paged("a"), True),
    "quarantined": (paged("a"), paged("a", quarantined=VF0), True),
    "used up": (paged("a"), paged("a", unclean=VF0), True),
    "a first page without anything": (None, paged("a"), False),
    "a first page with an out-of-service record": (None, paged("a", reserved=VF0), True),
    "a page that is deleted": (paged("a", reserved=VF0), None, True),
    "booked": (paged("a"), paged("a", (VF0,)), False),
    "released": (paged("a", (VF0,)), paged("a"), False),
    "one that only stays is released": (paged("a", (VF0, SSD)), paged("a", (VF0,)), RELEASED_AFTER),
    "one beside it is released": (paged("a", (VF0, SSD)), paged("a", (SSD,)), False),
    "one that only stays goes with the page": (paged("a", (SSD,)), None, RELEASED_AFTER),
    "a host that is another's": (paged("z"), paged("z", reserved=VF0), False),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_which_changes_of_a_page_are_a_reason_for_an_audit(bench: Bench, name: str) -> None:
    before, after, audits = CHANGES[name]
    listed = host(f"{NIC % 2}, {DISK}", "device_spec: [{product_id: '1889'}, {product_id: a80a}]")
    await bench.start(listed)
    await bench.hold(listed, SSD)
    audit, pages = watched(bench, host(f"{NIC % 2}, {DISK}", "device_spec: [{product_id: '1889'}]"))
    await audit.start()
    assert await bench.taints() == {SSD: ["unlisted"]}
    pages.tell(before, after)
    if audits is RELEASED_AFTER:
        assert len(audit.queue) == 0, "others may be released with it"
        await asyncio.sleep(0)
        bench.clock.advance(RELEASED_AFTER)
        for _ in range(10):
            await asyncio.sleep(0)
    assert len(audit.queue) == (1 if audits else 0)
    if audits:
        assert await audit.queue.take() == "a"


async def test_warning_that_recurs_is_logged_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    one = host(NIC % 1)
    audit = bench.audit(one)
    for strange in (True, True, False, True):
        await one.hypervisor.stop("uid-guest")
        if strange:
            await one.hypervisor.start(foreign("guest", "0000:99:00.0"))
        await audit.audit("a")
    assert len([record for record in caplog.records if "0000:99:00.0" in record.message]) == 2


async def test_an_object_that_is_created_meanwhile_is_a_conflict(bench: Bench) -> None:
    """Both looked before either wrote: the second looks again."""
    audit, spec = bench.audit(host(NIC % 2)), "device_spec: [{product_id: '1889'}]\nreport_in_placement: true"
    audit.hosts["a"] = host(NIC % 2, spec)
    stored = (await audit._publisher.read(audit.hosts.values()))["a"]
    result = await audit._compare(audit.hosts["a"], stored)
    await audit._write(audit.hosts["a"], stored, result)
    with pytest.raises(Conflict, match="ProviderTree a was created meanwhile: read it again"):
        await audit._write(audit.hosts["a"], stored, result)


async def test_an_old_slice_that_is_deleted_meanwhile_is_no_error() -> None:
    class Hasty(Memory):
        async def delete(self, kind: kinds.Kind, name: str, *args: Any, **options: Any) -> Object:
            gone = await super().delete(kind, name, *args, **options)
            if kind == kinds.RESOURCE_SLICE:
                raise NotFound("somebody was faster")
            return gone

    clock = ManualClock()
    bench = Bench(app.Embedded(Hasty(clock=clock, names=IdGenerator(random.Random(1))), [], clock=clock), clock)
    await bench.start(host(NIC % 130))
    await bench.start(host(NIC % 2))
    assert list(await bench.devices()) == [VF0, VF1]


async def test_new_slices_stand_before_old_ones_go() -> None:
    """A pool that lacks devices never looks complete: what is incomplete in between is not used."""
    seen: list[list[tuple[str, int]]] = []

    class Watched(Memory):
        async def write(self, work: Any, *, dry_run: bool = False, by: write_request.Writer = write_request.OURSELVES) -> Any:
            answer = await super().write(work, dry_run=dry_run, by=by)
            seen.append([(part["metadata"]["name"][-1], part["spec"]["pool"]["generation"])
                         for part in (await self.list(kinds.RESOURCE_SLICE)).items])
            return answer

    clock = ManualClock()
    bench = Bench(app.Embedded(Watched(clock=clock, names=IdGenerator(random.Random(1))), [], clock=clock), clock)
    await bench.start(host(NIC % 130))
    seen.clear()
    await bench.start(host(NIC % 2))
    steps = [step for step in seen if step]
    assert [steps[number] for number in range(len(steps)) if number == 0 or steps[number] != steps[number - 1]][-2:] == [
        [("0", 2), ("1", 1)], [("0", 2)]]


@pytest.mark.parametrize("home", [Tasteless, Memory], ids=["where taints are dropped", "after the slices were deleted"])
async def test_a_held_function_that_is_unlisted_refuses_no_later_start(home: type[Memory]) -> None:
    clock = ManualClock()
    bench = Bench(app.Embedded(home(clock=clock, names=IdGenerator(random.Random(1))), [], clock=clock), clock)
    listed = host(NIC % 2, "device_spec: [{product_id: '1889'}]\nreport_in_placement: true")
    await bench.start(listed)
    await bench.hold(listed, VF0)
    fewer = host(NIC % 2, "device_spec: [{address: '3b:01.1'}]\nreport_in_placement: true")
    await bench.start(fewer)
    if home is Memory:
        for part in (await bench.store.list(kinds.RESOURCE_SLICE)).items:
            await bench.store.delete(kinds.RESOURCE_SLICE, part["metadata"]["name"])
    await bench.start(fewer)


async def test_a_mistake_that_only_this_host_shows_names_the_host(bench: Bench) -> None:
    with pytest.raises(Invalid, match=r"host a does not start: .*remote_managed"):
        await bench.start(host(NIC % 1, "device_spec: [{address: '0000:3b:00.0', remote_managed: 'yes'}]"))


@pytest.mark.parametrize("fatal", range(1, 9))
async def test_a_start_that_dies_between_two_slices_forgets_no_held_device(fatal: int) -> None:
    clock = ManualClock()
    store = Fragile(clock=clock, names=IdGenerator(random.Random(1)))
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
        card = (NIC % 140).replace("driver: ice", "driver: vfio-pci")  # so that it is offered beside its VFs
        played = hosts_file.parse(f"hosts: [{{name: {name}, pci: [{card}, {DISK}]}}]").hosts
        both = replace(app.simulated_hosts(played)[0], settings=settings(
            "device_spec: [{vendor_id: '8086', traits: 'a,b'}, {product_id: a80a, live_migratable: 'yes'}]"))
        audit = HostAudit(store, [both], clock=clock, pages=Informer(store, kinds.LEDGER_PAGE, clock=clock))
        assert await audit.start() == 142
        await out_of_service.quarantine(store, name, both.device(SSD), by="admin", reason="it smells", now=NOW)
        await audit.audit(name)
        parts = (await store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={name}")).items
        devices = {device["name"]: device for part in parts for device in part["spec"].get("devices") or ()}
        assert [taint["key"] for taint in devices[SSD]["taints"]] == ["outfitter.dev/quarantined"]
        assert sorted(len(part["spec"].get("devices") or ()) for part in parts) == [0, 14, 64, 64]
        assert [part["spec"]["sharedCounters"] for part in parts if "sharedCounters" in part["spec"]] == [
            [{"name": PF, "counters": {"functions": {"value": "140"}}}]]
        assert {part["spec"]["pool"]["generation"] for part in parts} == {2}
        before = {part["metadata"]["name"]: part["metadata"]["resourceVersion"] for part in parts}
        await audit.audit(name)
        parts = (await store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={name}")).items
        assert {part["metadata"]["name"]: part["metadata"]["resourceVersion"] for part in parts} == before
    finally:
        await store.close()
