"""Placement's words for the ledger: what each provider has and what is used of it, who has what, and what operators reserve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from outfitter.api import kinds, providers
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.page import Booking, OutOfServiceRecord, Page
from outfitter.api.providers import Inventory, Provider
from outfitter.errors import Conflict, Invalid, NotFound
from outfitter.ledger import book, out_of_service, placement_view
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.ledger.bookings import (
    DRIVER,
    HOST,
    LATER,
    NOW,
    OTHER,
    booking,
    claim,
    consumer,
    device,
    domain,
    memory,
    page,
    record,
    resources,
)

CARD = Provider("card", "u-1", HOST, 3, {"VF": Inventory(4)}, frozenset({"T"}), frozenset(), ("d1", "d2", "d3", "d4"))
GPU = Provider("gpu", "u-2", HOST, 1, {"PGPU": Inventory(1)}, frozenset(), frozenset(), ("g",))
BANDWIDTH = Provider("bw", "u-3", HOST, 1, {"KBPS": Inventory(100, reserved=7)}, frozenset())


# -- providers with what is used of them


@dataclass(frozen=True)
class Rows:
    bookings: Sequence[Booking] = ()
    marks: Mapping[str, Sequence[OutOfServiceRecord]] = field(default_factory=dict)
    reserved: int = 0  # by an operator, of the card
    says: tuple[int, int] = (0, 0)  # used of the card, and reserved
    holders: Mapping[str, Sequence[str]] = field(default_factory=dict)


ROWS = {
    "nothing": Rows(),
    "a claim has one": Rows([booking("d1", claim("c"))], says=(1, 0), holders={"d1": ["vmi/c (claim c) in here"]}),
    "a claim and a consumer": Rows([booking("d1", claim("c")), booking("d3", consumer("s"), "prepared")], says=(2, 0),
                                   holders={"d1": ["vmi/c (claim c) in here"], "d3": ["Consumer s"]}),
    "one that was found running is kept out": Rows([booking("d1", domain("m"), "prepared")], says=(0, 1),
                                                   holders={"d1": ["Domain m"]}),
    "released and not yet released is used": Rows([booking("d1", consumer("s"), "released")], says=(1, 0),
                                                    holders={"d1": ["Consumer s"]}),
    "two have one": Rows([booking("d1", consumer("s")), booking("d1", domain("m"))], says=(1, 1),
                         holders={"d1": ["Consumer s", "Domain m"]}),
    "one of another provider": Rows([booking("g", consumer("s"))]),
    "a host's own resources use no device": Rows([resources(consumer("s"), VCPU=2), Booking(
        device("d1"), consumer("s"), "", "booked", NOW, {"resources": {"VCPU": 1}})]),
    "reserved by an operator": Rows(reserved=2, says=(0, 2)),
    "reserved by a person": Rows(marks={"reserved": [record("d1")]}, says=(0, 1)),
    "unclean": Rows(marks={"unclean": [record("d1")]}, says=(0, 1)),
    "quarantined": Rows(marks={"quarantined": [record("d1")]}, says=(0, 1)),
    "one with all marks counts once": Rows(
        marks={"reserved": [record("d1")], "quarantined": [record("d1")], "unclean": [record("d1")]}, says=(0, 1)),
    "each with an out-of-service record counts": Rows(
        marks={"reserved": [record("d1")], "quarantined": [record("d2")], "unclean": [record("d3")]}, says=(0, 3)),
    "marks are how the operator's count comes about": Rows(
        marks={"reserved": [record("d1"), record("d2")]}, reserved=2, says=(0, 2)),
    "the larger of both": Rows(marks={"reserved": [record("d1")]}, reserved=3, says=(0, 3)),
    "a marked one that was found running counts once": Rows(
        [booking("d1", domain("m"))], {"reserved": [record("d1")]}, says=(0, 1), holders={"d1": ["Domain m"]}),
    "never more than there are": Rows(reserved=9, says=(0, 4)),
    "records of another provider": Rows(marks={"reserved": [record("g")], "unclean": [record("x")]}),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    case = ROWS[name]
    stored = Provider("card", "u-1", HOST, 3, {"VF": Inventory(4, case.reserved)}, CARD.traits, frozenset(), CARD.devices)
    [bandwidth, row] = placement_view.rows([BANDWIDTH, stored], page(case.bookings, case.marks))
    assert row.provider == stored
    assert (row.used, row.inventories) == ({"VF": case.says[0]}, {"VF": Inventory(4, case.says[1])})
    assert row.holders == case.holders
    assert (bandwidth.used, bandwidth.inventories, bandwidth.holders) == ({}, BANDWIDTH.inventories, {}), "it counts for itself"


# -- consumers with what they have

ALLOCATIONS: dict[str, tuple[Sequence[Page], placement_view.Allocations]] = {
    "nothing": ([page()], {}),
    "two of one card and one of another": (
        [page([booking("d1", consumer("s")), booking("d2", consumer("s")), booking("g", consumer("s"))])],
        {"uid-s": {"card": {"VF": 2}, "gpu": {"PGPU": 1}}}),
    "a claim has some too": ([page([booking("d1", claim("c"))])], {"uid-c": {"card": {"VF": 1}}}),
    "of the host itself": (
        [page([resources(consumer("s"), VCPU=2, MEMORY_MB=512), booking("d1", consumer("s"))])],
        {"uid-s": {HOST: {"VCPU": 2, "MEMORY_MB": 512}, "card": {"VF": 1}}}),
    "of the host itself, twice": (
        [page([resources(consumer("s"), VCPU=2), Booking(device("d1"), consumer("s"), "", "booked", NOW,
                                                         {"resources": {"VCPU": 3}})])],
        {"uid-s": {HOST: {"VCPU": 5}}}),
    "two consumers on one host": ([page([booking("d1", consumer("s")), booking("d2", consumer("t"))])],
                                  {"uid-s": {"card": {"VF": 1}}, "uid-t": {"card": {"VF": 1}}}),
    "a consumer that moves has something on both hosts": (
        [page([booking("d2", consumer("s"))]), page([booking("d1", consumer("s"), host=OTHER)], host=OTHER)],
        {"uid-s": {"card": {"VF": 1}, "far": {"VF": 1}}}),
    "a device of the same name elsewhere": (
        [page([booking("d1", consumer("s"), host=OTHER)], host=OTHER)], {"uid-s": {"far": {"VF": 1}}}),
}


@pytest.mark.parametrize(("pages", "says"), ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_allocations(pages: Sequence[Page], says: placement_view.Allocations) -> None:
    far = Provider("far", "u-9", OTHER, 1, {"VF": Inventory(1)}, frozenset(), frozenset(), ("d1",))
    assert placement_view.allocations([[BANDWIDTH, CARD, GPU], [far]], pages) == says


def test_what_placement_did_not_give_is_no_allocation() -> None:
    """A domain that was found, and a device of no provider."""
    found = page([booking("d1", domain("m"), "prepared"), booking("x", consumer("s"))])
    bookings_by_device = placement_view.allocations([[CARD]], [found])
    assert [amounts for amounts in bookings_by_device.values() if amounts] == []


def test_a_host_is_booked_as_something_that_no_device_is() -> None:
    assert placement_view.host_resources("a") == DeviceId("placement.outfitter.dev", "a", "host")


# -- what operators reserve


async def stored(store: Memory, *tree: Provider, host: str = HOST) -> None:
    await store.create(kinds.PROVIDER_TREE, providers.with_providers(providers.blank(host), tree))


async def reserve(store: Memory, count: int, name: str = "card", class_: str = "VF") -> None:
    await placement_view.set_reserved(store, name, class_, count, driver=DRIVER, now=NOW, by="ops")


async def kept(store: Memory) -> dict[str, tuple[str, str, str]]:
    return {one.device.device: (one.by, one.since, one.origin) for one in (await book.read(store, HOST)).reserved}


async def test_a_count_is_written_to_the_tree_and_to_the_page() -> None:
    store = memory()
    far = Provider("far", "u-9", OTHER, 1, {"VF": Inventory(1)}, frozenset(), frozenset(), ("d1",))
    await stored(store, far, host=OTHER)
    two = {"VF": Inventory(4), "OTHER": Inventory(9, 1)}
    await stored(store, BANDWIDTH, Provider("card", "u-1", HOST, 3, two, CARD.traits, frozenset(), CARD.devices), GPU)
    await reserve(store, 2)
    trees = await placement_view.trees(store)
    assert trees[OTHER] == (far,)
    bandwidth, card, gpu = trees[HOST]
    assert (bandwidth, gpu) == (BANDWIDTH, GPU), "others stay as they are"
    assert card.inventories == {"VF": Inventory(4, 2), "OTHER": Inventory(9, 1)}
    assert card.generation == 4
    assert await kept(store) == {"d1": ("ops", NOW, "placement"), "d2": ("ops", NOW, "placement")}
    await reserve(store, 0)
    assert (await placement_view.trees(store))[HOST][1].inventories["VF"] == Inventory(4)
    assert await kept(store) == {}


@pytest.mark.parametrize("count", [0, 1, 4])
async def test_all_counts_that_can_be(count: int) -> None:
    store = memory()
    await stored(store, CARD)
    await reserve(store, count)
    assert len(await kept(store)) == count


WRONG: dict[str, tuple[int, str, str, type[Exception], str]] = {
    "too many": (5, "card", "VF", Invalid, "reserved: 5 of 4 VF on card; write a number from 0 to 4"),
    "less than nothing": (-1, "card", "VF", Invalid, "reserved: -1 of 4 VF on card; write a number from 0 to 4"),
    "another class": (1, "card", "PGPU", Invalid, "provider card has no PGPU; it has VF"),
    "no class": (1, "empty", "VF", Invalid, "provider empty has no VF; it has nothing"),
    "no provider": (1, "unknown", "VF", NotFound, "there is no provider 'unknown'; outfit providers lists them"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_count_that_cannot_be(name: str) -> None:
    count, provider, class_, error, says = WRONG[name]
    store = memory()
    await stored(store, CARD, Provider("empty", "u-5", HOST, 0, {}, frozenset()))
    revision = store.revision
    with pytest.raises(error) as caught:
        await reserve(store, count, provider, class_)
    assert str(caught.value) == says
    assert store.revision == revision


async def test_reserved_count_of_zero_removes_unclean_records() -> None:
    store = memory()
    await stored(store, CARD)
    await book.book(store, HOST, [booking("d1", consumer("s"))])
    await book.release(store, HOST, "uid-s", now=LATER)
    await book.change_page(store, HOST, lambda read: read.with_records("unclean", [record("d1")]))
    await reserve(store, 1)
    assert [one.device for one in (await book.read(store, HOST)).unclean] == [device("d1")]
    await reserve(store, 0)
    assert (await book.read(store, HOST)).unclean == ()


class Busy(Memory):
    """Another writer changes the tree just before we do, a number of times."""

    rivals: list[Callable[[Object], None]]

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        if kind == kinds.PROVIDER_TREE and self.rivals:
            change = self.rivals.pop()
            have = await self.get(kind, obj["metadata"]["name"])
            change(have)
            await super().replace(kind, have)
        return await super().replace(kind, obj, subresource=subresource, dry_run=dry_run)


async def test_who_is_slower_reads_again() -> None:
    store = Busy(clock=ManualClock())
    store.rivals = [lambda tree: tree["spec"]["providers"].append({"name": "more"})] * 3
    await stored(store, CARD)
    await reserve(store, 1)
    card, *more = (await placement_view.trees(store))[HOST]
    assert (card.generation, card.inventories["VF"].reserved) == (4, 1)
    assert [each.name for each in more] == ["more"] * 3
    assert set(await kept(store)) == {"d1"}


async def test_who_is_slower_takes_the_devices_of_the_last_reading() -> None:
    store = Busy(clock=ManualClock())
    store.rivals = [lambda tree: tree["spec"]["providers"][0].update(devices=["d7"])]
    await stored(store, CARD)
    await reserve(store, 1)
    assert set(await kept(store)) == {"d7"}


async def test_who_is_slower_again_and_again_gives_up() -> None:
    store = Busy(clock=ManualClock())
    store.rivals = [lambda tree: tree["spec"]["providers"].append({"name": "more"})] * 99
    await stored(store, CARD)
    with pytest.raises(Conflict, match="provider card was changed 16 times meanwhile; try again"):
        await reserve(store, 1)
    assert await kept(store) == {}


async def test_the_tree_comes_first() -> None:
    """Killed between the two writes, the count is remembered, and the next audit of the host writes the page."""
    store = memory()
    await stored(store, CARD)

    async def dies(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(out_of_service, "set_reserved", dies)
        with pytest.raises(RuntimeError, match="killed"):
            await reserve(store, 1)
    assert (await placement_view.trees(store))[HOST][0].inventories["VF"].reserved == 1


def test_a_domain_without_a_booking_is_no_consumer() -> None:
    assert placement_view.allocations([], [page([booking("d", domain("x"))])]) == {}
