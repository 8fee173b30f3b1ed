"""Devices out of service: who marked them, what it changes, and how a provider's reserved count becomes marks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from outfitter.api.device import DeviceId
from outfitter.api.ledger_page.page import OutOfServiceRecord, OutOfServiceState, Page
from outfitter.errors import AlreadyHeld, OutOfService
from outfitter.ledger import book, out_of_service
from outfitter.store.memory import Memory
from tests.ledger.bookings import HOST, NOW, booking, bookings_by_device, claim, device, memory, page, record

ON = {"reserved": out_of_service.reserve, "quarantined": out_of_service.quarantine}
OFF: dict[str, Callable[[Memory, str, DeviceId], Awaitable[bool]]] = {
    "reserved": out_of_service.unreserve,
    "quarantined": out_of_service.restore,
}


@pytest.fixture
def store() -> Memory:
    return memory()


@pytest.mark.parametrize("which", ["reserved", "quarantined"])
async def test_out_of_service_and_back_in_service(store: Memory, which: OutOfServiceState) -> None:
    vf0 = device("vf0")
    assert await ON[which](store, HOST, vf0, by="admin", reason="hot", now=NOW)
    assert (await book.read(store, HOST)).records(which) == (OutOfServiceRecord(vf0, "hot", "admin", NOW),)
    revision = store.revision
    assert not await ON[which](store, HOST, vf0, by="admin", reason="hot", now="later")
    assert store.revision == revision, "twice is no harm, and writes nothing"
    with pytest.raises(OutOfService, match=f"node-a/vf0 is {which} by admin since {NOW}: hot"):
        await book.book(store, HOST, [booking("vf0", claim("train"))])
    assert await OFF[which](store, HOST, vf0)
    assert not await OFF[which](store, HOST, vf0)
    await book.book(store, HOST, [booking("vf0", claim("train"))])


async def test_without_a_time_the_stores_clock_is_used(store: Memory) -> None:
    await out_of_service.reserve(store, HOST, device("vf0"), by="admin")
    assert (await book.read(store, HOST)).reserved[0].since == "2026-01-01T00:00:00Z"


async def test_holder_keeps_a_device_that_goes_out_of_service(store: Memory) -> None:
    await book.book(store, HOST, [booking("vf0", claim("train"))])
    await out_of_service.reserve(store, HOST, device("vf0"), by="admin", reason="", now=NOW)
    await book.set_state(store, HOST, "uid-train", "prepared")
    assert bookings_by_device(await book.read(store, HOST)) == {"vf0": ["ResourceClaim train prepared"]}
    await book.release(store, HOST, "uid-train")
    with pytest.raises(OutOfService):
        await book.book(store, HOST, [booking("vf0", claim("serve"))])


async def test_device_for_one_use_is_unclean_in_the_write_that_prepares_it(store: Memory) -> None:
    train, serve = claim("train"), claim("serve")
    await book.book(store, HOST, [booking("vf0", train), booking("vf1", train), booking("vf2", serve)])
    revision = store.revision
    once = {device("vf0"), device("vf2")}
    await book.set_state(store, HOST, "uid-train", "prepared", now=NOW, unclean=once)
    assert store.revision == revision + 1
    read = await book.read(store, HOST)
    assert read.unclean == (OutOfServiceRecord(device("vf0"), "used once", "vmi/train (claim train) in here", NOW),)
    await book.set_state(store, HOST, "uid-train", "prepared", now="later", unclean=once)
    await book.set_state(store, HOST, "uid-serve", "released", now="later", unclean=once)
    assert (await book.read(store, HOST)).unclean == read.unclean, "only what is prepared, and once"
    await book.release(store, HOST, "uid-train")
    with pytest.raises(OutOfService, match="node-a/vf0 must be cleaned first"):
        await book.book(store, HOST, [booking("vf0", claim("other"))])


async def test_cleared_only_without_a_holder(store: Memory) -> None:
    await book.book(store, HOST, [booking("vf0", claim("train"))])
    await book.set_state(store, HOST, "uid-train", "prepared", unclean={device("vf0")})
    with pytest.raises(AlreadyHeld, match="node-a/vf0 is held by vmi/train"):
        await out_of_service.clear(store, HOST, device("vf0"))
    await book.release(store, HOST, "uid-train")
    assert await out_of_service.clear(store, HOST, device("vf0"))
    assert not await out_of_service.clear(store, HOST, device("vf0"))
    await book.book(store, HOST, [booking("vf0", claim("serve"))])


async def test_many_at_once_all_find_their_place(store: Memory) -> None:
    await asyncio.gather(
        *(out_of_service.reserve(store, HOST, device(f"vf{number}"), by="admin", now=NOW) for number in range(8))
    )
    assert len((await book.read(store, HOST)).reserved) == 8


@dataclass(frozen=True)
class Case:
    """Four devices a, b, c, d of one provider, and one (x) of another that is never touched."""

    count: int
    held: Sequence[str] = ()
    person: Sequence[str] = ()
    counted: Sequence[str] = ()
    unclean: Sequence[str] = ()
    wanted: Sequence[str] = ()  # have an out-of-service record of the count afterwards
    still: Sequence[str] = field(default=("same",))  # unclean afterwards; "same": as before


CASES = {
    "none of none": Case(0),
    "two of four, in order": Case(2, wanted="ab"),
    "all": Case(4, wanted="abcd"),
    "more than there are": Case(9, wanted="abcd"),
    "below nothing": Case(-1),
    "free ones first": Case(2, held="ac", wanted="bd"),
    "then held ones": Case(3, held="ac", wanted="bda"),
    "what is marked stays": Case(1, counted="c", wanted="c"),
    "what is marked and free stays, and more comes": Case(2, counted="c", wanted="ca"),
    "an out-of-service record goes from a held one to a free one": Case(1, held="a", counted="a", wanted="b"),
    "fewer": Case(1, counted="bc", wanted="b"),
    "none any more": Case(0, counted="abcd"),
    "a person's count": Case(2, person="b", wanted="a"),
    "a person's stay": Case(0, person="bc"),
    "a person's and the unclean are enough": Case(2, person="b", unclean="c", counted="a"),
    "one both reserved and unclean counts once": Case(2, person="b", unclean="b", wanted="a"),
    "one both unclean and counted counts once": Case(2, unclean="b", counted="b", wanted="a"),
    "unclean ones count": Case(2, unclean="ab"),
    "below the unclean ones: they were cleaned": Case(1, unclean="abc", still="c"),
    "all were cleaned": Case(0, unclean="abcd", counted="a", still=""),
    "a held device cannot be clean": Case(0, held="a", unclean="ab", still="a"),
    "what a person reserved is not cleaned by counting": Case(0, person="a", unclean="ab", still="a"),
}


def of_case(case: Case) -> Page:
    return page([booking(name, claim(name)) for name in case.held], {
        "reserved": [*(record(name) for name in case.person), *(record(name, "placement") for name in case.counted),
                     record("x", "placement")],
        "unclean": [*(record(name) for name in case.unclean), record("x")]})


@pytest.mark.parametrize("name", CASES)
def test_reserved_count_becomes_records(name: str) -> None:
    case, devices = CASES[name], [device(each) for each in "abcd"]
    new = Page(out_of_service.with_reserved_count(of_case(case), devices, case.count, now=NOW, by="nova"))
    counted = {one.device.device for one in new.reserved if one.origin == out_of_service.PLACEMENT} - {"x"}
    assert counted == set(case.wanted)
    assert {one.device.device for one in new.reserved if not one.origin} == set(case.person)
    assert {one.device.device for one in new.unclean} == {*(case.unclean if case.still == ("same",) else case.still), "x"}
    assert any(one.device.device == "x" for one in new.reserved), "another provider's devices are left alone"
    out = {one.device for one in (*new.reserved, *new.unclean)} & set(devices)
    assert len(out) == case.count or case.count not in range(5) or set(case.person) | set(case.held), "as far as possible"
    again = out_of_service.with_reserved_count(new, devices, case.count, now="later", by="nova")
    assert again is new.object, "and twice is once"


async def test_a_reserved_count_is_written(store: Memory) -> None:
    devices = [device(each) for each in "abcd"]
    await book.book(store, HOST, [booking("a", claim("train"))])
    await out_of_service.set_reserved(store, HOST, devices, 1, now=NOW, by="nova")
    assert (await book.read(store, HOST)).reserved == (
        OutOfServiceRecord(device("b"), "1 of these 4 devices are reserved", "nova", NOW, "placement"),)
    await out_of_service.reserve(store, HOST, device("b"), by="admin", reason="mine", now=NOW)
    await out_of_service.set_reserved(store, HOST, devices, 0, now=NOW, by="nova")
    assert [(one.device, one.by) for one in (await book.read(store, HOST)).reserved] == [(device("b"), "admin")]


def test_who_only_repeats_a_count_cleans_nothing() -> None:
    read, devices = page(marks={"unclean": [record("a"), record("b")]}), [device(each) for each in "abcd"]
    assert Page(out_of_service.with_reserved_count(read, devices, 0, now=NOW, by="nova")).unclean == ()
    assert out_of_service.with_reserved_count(read, devices, 0, now=NOW, by="nova", cleaned=False) is read.object
    more = Page(out_of_service.with_reserved_count(read, devices, 3, now=NOW, by="nova", cleaned=False))
    assert [one.device.device for one in more.reserved] == ["c"]
