"""Bookings: everything or nothing, by one at a time, and what protects it is the revision at which a page was read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.page import Booking, Holder, State
from outfitter.errors import AlreadyExists, AlreadyHeld, Conflict
from outfitter.ledger import book
from outfitter.store.base import Create, Replace, Store
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.ledger.unchecked_pages import UncheckedPages

HOST = "node-a"
SINCE = "2026-01-01T12:04:00Z"


def holder(name: str, purpose: str = "") -> Holder:
    return Holder("ResourceClaim", "here", name, f"uid-of-{name}", purpose)


def booking(device: str, name: str, state: State = "booked") -> Booking:
    return Booking(DeviceId("pci.example.com", HOST, device), holder(name, f"vmi/{name}"), "nic", state, SINCE)


@pytest.fixture
def store() -> Memory:
    return Memory(clock=ManualClock(), rules=UncheckedPages())


async def held(store: Store) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for one in (await book.read(store, HOST)).bookings:
        out.setdefault(one.device.device, []).append(f"{one.holder.name} {one.state}")
    return out


async def test_booking_makes_the_page_and_adds_to_it(store: Memory) -> None:
    await book.book(store, HOST, [booking("vf0", "train")])
    await book.book(store, HOST, [booking("vf1", "train"), booking("vf2", "serve")])
    assert await held(store) == {"vf0": ["train booked"], "vf1": ["train booked"], "vf2": ["serve booked"]}
    page = await store.get(kinds.LEDGER_PAGE, HOST)
    assert page["spec"]["host"] == HOST


async def test_already_held_names_the_holder_and_since_when(store: Memory) -> None:
    await book.book(store, HOST, [booking("vf0", "train")])
    with pytest.raises(AlreadyHeld) as caught:
        await book.book(store, HOST, [booking("vf1", "serve"), booking("vf0", "serve")])
    assert str(caught.value) == f"node-a/vf0 is held by vmi/train (claim train) in here since {SINCE}"
    assert (caught.value.device, caught.value.since) == ("node-a/vf0", SINCE)
    assert await held(store) == {"vf0": ["train booked"]}, "everything or nothing"


async def test_two_holders_in_one_booking_clash_too(store: Memory) -> None:
    with pytest.raises(AlreadyHeld, match="held by vmi/train"):
        await book.book(store, HOST, [booking("vf0", "train"), booking("vf0", "serve")])
    assert await held(store) == {}


async def test_the_same_holder_again_is_no_harm(store: Memory) -> None:
    await book.book(store, HOST, [booking("vf0", "train")])
    await book.set_state(store, HOST, "uid-of-train", "prepared")
    revision = store.revision
    await book.book(store, HOST, [booking("vf0", "train")])
    assert await held(store) == {"vf0": ["train prepared"]}, "and what was prepared stays prepared"
    assert store.revision == revision, "and nothing is written"


async def test_state_and_release(store: Memory) -> None:
    await book.book(store, HOST, [booking("vf0", "train"), booking("vf1", "train"), booking("vf2", "serve")])
    assert [one.device.device for one in await book.set_state(store, HOST, "uid-of-train", "prepared")] == ["vf0", "vf1"]
    assert await held(store) == {"vf0": ["train prepared"], "vf1": ["train prepared"], "vf2": ["serve booked"]}
    await book.release(store, HOST, "uid-of-train", device=DeviceId("pci.example.com", HOST, "vf0"))
    assert await held(store) == {"vf1": ["train prepared"], "vf2": ["serve booked"]}
    await book.release(store, HOST, "uid-of-train")
    assert await held(store) == {"vf2": ["serve booked"]}
    revision = store.revision
    await book.release(store, HOST, "uid-of-train")
    assert await book.set_state(store, HOST, "uid-of-train", "prepared") == ()
    assert store.revision == revision, "what is done already writes nothing"


FENCES: dict[str, tuple[Sequence[Booking], bool]] = {
    "alone": ([booking("vf0", "train")], True),
    "a rival that is only booked": ([booking("vf0", "train"), booking("vf0", "serve")], True),
    "a rival that released it": ([booking("vf0", "serve", "released"), booking("vf0", "train")], True),
    "a rival that is prepared": ([booking("vf0", "serve", "prepared"), booking("vf0", "train")], False),
    "two rivals of which the second is prepared": (
        [booking("vf0", "first"), booking("vf0", "serve", "prepared"), booking("vf0", "train")], False),
    "a rival on the second device": (
        [booking("vf0", "train"), booking("vf1", "train"), booking("vf1", "serve", "prepared")], False),
    "a rival of another driver's device of that name": ([booking("vf0", "train"), Booking(
        DeviceId("other.example.com", HOST, "vf0"), holder("serve"), "nic", "prepared", SINCE)], True),
}


@pytest.mark.parametrize("name", FENCES)
async def test_of_two_holders_of_one_device_one_starts(store: Memory, name: str) -> None:
    bookings, may = FENCES[name]
    page = {"metadata": {"name": HOST}, "spec": {"host": HOST, "bookings": [one.to_object() for one in bookings]}}
    await store.create(kinds.LEDGER_PAGE, page)
    if may:
        assert {one.state for one in (await book.set_state(store, HOST, "uid-of-train", "prepared"))} == {"booked"}
        assert "train prepared" in (await held(store))["vf0"]
    else:
        with pytest.raises(AlreadyHeld, match="held by vmi/serve"):
            await book.set_state(store, HOST, "uid-of-train", "prepared")
        assert "train prepared" not in str(await held(store))
    await book.set_state(store, HOST, "uid-of-train", "released")
    assert "train released" in (await held(store))["vf0"], "letting go is always allowed"


class Interrupted(Memory):
    """Another writer does something between a reading of the page and the next writing."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock(), rules=UncheckedPages())
        self.meanwhile: list[Any] = []

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        try:
            return await super().get(kind, name, namespace)
        finally:
            if kind == kinds.LEDGER_PAGE and self.meanwhile:
                await self.meanwhile.pop()()


async def test_a_write_in_between_is_a_conflict() -> None:
    store = Interrupted()
    await book.book(store, HOST, [booking("vf9", "old")])
    store.meanwhile = [lambda: book.book(store, HOST, [booking("vf0", "serve")])]
    with pytest.raises(Conflict, match="the object has been modified") as caught:
        await book.book(store, HOST, [booking("vf0", "train")])
    assert not isinstance(caught.value, AlreadyHeld)
    assert (await held(store))["vf0"] == ["serve booked"]
    with pytest.raises(AlreadyHeld):
        await book.book(store, HOST, [booking("vf0", "train")])


async def test_a_page_that_was_made_in_between_is_one_too() -> None:
    store = Interrupted()
    store.meanwhile = [lambda: book.book(store, HOST, [booking("vf0", "serve")])]
    with pytest.raises(AlreadyExists):
        await book.book(store, HOST, [booking("vf0", "train")])
    assert await held(store) == {"vf0": ["serve booked"]}


async def test_marking_and_releasing_try_again() -> None:
    store = Interrupted()
    await book.book(store, HOST, [booking("vf0", "train")])
    store.meanwhile = [lambda: book.book(store, HOST, [booking("vf1", "serve")])]
    await book.set_state(store, HOST, "uid-of-train", "prepared")
    assert await held(store) == {"vf0": ["train prepared"], "vf1": ["serve booked"]}
    store.meanwhile = [lambda: book.book(store, HOST, [booking("vf2", "serve")])]
    await book.release(store, HOST, "uid-of-train")
    assert await held(store) == {"vf1": ["serve booked"], "vf2": ["serve booked"]}


async def test_conflict_between_read_and_write_is_detected() -> None:
    store = Interrupted()
    page = {"metadata": {"name": HOST}, "spec": {"host": HOST, "bookings": [
        booking("vf0", "train").to_object(), booking("vf0", "serve").to_object()]}}
    await store.create(kinds.LEDGER_PAGE, page)
    store.meanwhile = [lambda: book.set_state(store, HOST, "uid-of-serve", "prepared")]
    with pytest.raises(AlreadyHeld, match="held by vmi/serve"):
        await book.set_state(store, HOST, "uid-of-train", "prepared")
    assert await held(store) == {"vf0": ["train booked", "serve prepared"]}


class Restless(Memory):
    """Another writer changes the page after every reading of it."""

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        found = await super().get(kind, name, namespace)
        await self.patch(kinds.LEDGER_PAGE, HOST, {"spec": {"seen": found["metadata"]["resourceVersion"]}})
        return found


async def test_a_page_that_is_never_left_alone_ends_in_conflict() -> None:
    store = Restless(clock=ManualClock(), rules=UncheckedPages())
    page = {"metadata": {"name": HOST}, "spec": {"host": HOST, "bookings": [booking("vf0", "train").to_object()]}}
    await store.create(kinds.LEDGER_PAGE, page)
    with pytest.raises(Conflict, match="the object has been modified"):
        await book.set_state(store, HOST, "uid-of-train", "prepared")
    assert store.revision == 1 + book.TRIES


async def test_what_goes_along_happens_together_or_not_at_all(store: Memory) -> None:
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
    config = await store.create(kinds.CONFIG_MAP, {"metadata": {"name": "note", "namespace": "here"}, "data": {"n": "1"}})
    stale = {**config, "metadata": {**config["metadata"], "resourceVersion": "1"}, "data": {"n": "2"}}
    with pytest.raises(Conflict):
        await book.book(store, HOST, [booking("vf0", "train")], also=[Replace(kinds.CONFIG_MAP, stale)])
    assert await held(store) == {}
    await book.book(store, HOST, [booking("vf0", "train")], also=[Replace(kinds.CONFIG_MAP, {**config, "data": {"n": "2"}})])
    assert await held(store) == {"vf0": ["train booked"]}
    assert (await store.get(kinds.CONFIG_MAP, "note", "here"))["data"] == {"n": "2"}
    also = [Create(kinds.CONFIG_MAP, {"metadata": {"name": "note", "namespace": "here"}})]
    with pytest.raises(AlreadyExists):
        await book.release(store, HOST, "uid-of-train", also=also)
    assert await held(store) == {"vf0": ["train booked"]}


class Slow(Memory):
    """Every reading lets others go first, as a network does."""

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        try:
            return await super().get(kind, name, namespace)
        finally:
            await asyncio.sleep(0)


class Careless(Slow):
    """What would happen if pages were written without the revision at which they were read."""

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        if kind == kinds.LEDGER_PAGE:
            present = await Memory.get(self, kind, obj["metadata"]["name"])
            obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": present["metadata"]["resourceVersion"]}}
        return await super().replace(kind, obj, subresource=subresource, dry_run=dry_run)


async def race(store: Memory) -> tuple[int, list[str]]:
    """Eight claims want the same card; how many were answered that they have it, and who is on the page."""
    await book.book(store, HOST, [booking("vf9", "old")])
    claims = [f"claim{number}" for number in range(8)]
    outcomes = await asyncio.gather(*(book.book(store, HOST, [booking("vf0", claim)]) for claim in claims),
                                    return_exceptions=True)
    assert all(not isinstance(outcome, BaseException) or isinstance(outcome, Conflict) for outcome in outcomes)
    return sum(not isinstance(outcome, BaseException) for outcome in outcomes), (await held(store)).get("vf0", [])


async def test_of_many_at_once_one_gets_the_card() -> None:
    winners, on_page = await race(Slow(clock=ManualClock(), rules=UncheckedPages()))
    assert winners == 1
    assert len(on_page) == 1


async def test_without_the_revision_it_would_be_given_away_many_times() -> None:
    """The proof that the revision is what protects: take it away, and every writer believes that it has the device."""
    winners, _ = await race(Careless(clock=ManualClock(), rules=UncheckedPages()))
    assert winners == 8
