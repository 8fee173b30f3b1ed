"""History: every booking that left a page has its record, whatever was killed when; and it does not grow without end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.page import Booking, Holder, Page
from outfitter.errors import AlreadyHeld, Conflict, Expired, NotFound, Unavailable
from outfitter.ledger import book, heal, history
from outfitter.store.base import Listing, Propagation, Replace, Store
from outfitter.store.clock import ManualClock, SystemClock, rfc3339
from outfitter.store.kube import Kube
from outfitter.store.memory import Memory
from tests import kubernetes
from tests.ledger.bookings import (
    HOST,
    LATER,
    NOW,
    OTHER,
    SINCE,
    Wary,
    booking,
    claim,
    consumer,
    device,
    domain,
    memory,
    resources,
)
from tests.ledger.unchecked_pages import UncheckedPages

TRAIN, SERVE = claim("train"), claim("serve")
MIGRATION = Holder("Migration", "", "m", "uid-m")


async def history_of(store: Store, name: str, host: str = HOST) -> list[str]:
    """A device's history in words, the newest first."""
    return [f"{one.holder.name} {one.booked} {one.how or one.state} {one.ended}".strip()
            for one in await history.entries(store, device(name, host))]


async def test_what_ends_is_remembered() -> None:
    store = memory()
    await book.book(store, HOST, [booking("vf0", TRAIN), booking("vf1", TRAIN)])
    assert await history_of(store, "vf0") == [f"train {SINCE} booked"]
    await book.set_state(store, HOST, "uid-train", "prepared", now=NOW)
    revision = store.revision
    await book.release(store, HOST, "uid-train", device=device("vf0"), now=LATER)
    assert store.revision == revision + 2, "one small object besides the page"
    await book.book(store, HOST, [booking("vf0", SERVE, since="2026-01-03T00:00:01Z")])
    assert await history_of(store, "vf0") == ["serve 2026-01-03T00:00:01Z booked", f"train {SINCE} released {LATER}"]
    assert await history_of(store, "vf1") == [f"train {SINCE} prepared"]
    now, past = await history.entries(store, device("vf0"))
    assert past == history.HistoryEntry(HOST, device("vf0"), TRAIN, "nic", {"whole": True}, SINCE, NOW, LATER, "released", "")
    assert (now.state, now.ended, now.how) == ("booked", "", "")
    (record,) = (await store.list(kinds.PAST_BOOKING, labels="outfitter.dev/host=node-a,outfitter.dev/device=vf0")).items
    assert record["metadata"]["name"].startswith("vf0-")
    assert record["spec"] == {
        "host": HOST, "device": {"driver": "pci.example.com", "pool": HOST, "device": "vf0"}, "request": "nic",
        "holder": {"kind": "ResourceClaim", "namespace": "here", "name": "train", "uid": "uid-train", "purpose": "vmi/train"},
        "amount": {"whole": True}, "booked": SINCE, "prepared": NOW, "ended": LATER, "how": "released"}


async def test_without_a_time_the_stores_clock_is_used() -> None:
    store = memory()
    await book.book(store, HOST, [booking("vf0", TRAIN)])
    await book.release(store, HOST, "uid-train")
    assert await history_of(store, "vf0") == [f"train {SINCE} released 2026-01-01T00:00:00Z"]
    plain = Wary(atomic=False)
    await book.book(plain, HOST, [booking("vf0", TRAIN)])
    await book.release(plain, HOST, "uid-train")
    (record,) = (await plain.list(kinds.PAST_BOOKING)).items
    assert "ended" not in record["spec"]
    assert await history_of(plain, "vf0") == [f"train {SINCE} released {record['metadata']['creationTimestamp']}"]


async def test_the_same_holder_in_the_same_second_is_one_record() -> None:
    store = memory()
    for end in (NOW, LATER):
        await book.book(store, HOST, [booking("vf0", TRAIN)])
        await book.release(store, HOST, "uid-train", now=end)
    assert await history_of(store, "vf0") == [f"train {SINCE} released {LATER}"]


async def test_what_goes_along_is_in_the_same_commit() -> None:
    store = memory()
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
    config = await store.create(kinds.CONFIG_MAP, {"metadata": {"name": "note", "namespace": "here"}})
    await book.book(store, HOST, [booking("vf0", TRAIN)])
    stale = {**config, "metadata": {**config["metadata"], "resourceVersion": "1"}}
    with pytest.raises(Conflict):
        await book.release(store, HOST, "uid-train", also=[Replace(kinds.CONFIG_MAP, stale)])
    assert (await store.list(kinds.PAST_BOOKING)).items == []
    await book.release(store, HOST, "uid-train", also=[Replace(kinds.CONFIG_MAP, {**config, "data": {"a": "b"}})])
    assert len((await store.list(kinds.PAST_BOOKING)).items) == 1


async def test_moving_to_another_holder_ends_one_booking_and_begins_another() -> None:
    store = memory()
    await book.book(store, HOST, [booking("vf0", consumer("a")), resources(consumer("a"), VCPU=2)])
    await book.set_state(store, HOST, "uid-a", "prepared", now=NOW)
    await book.move(store, HOST, "uid-a", MIGRATION, now=LATER)
    assert await history_of(store, "vf0") == [f"m {LATER} prepared", f"a {SINCE} moved to Migration m {LATER}"]
    assert {one.holder.name for one in (await book.read(store, HOST)).bookings} == {"m"}


@pytest.mark.parametrize("atomic", [True, False], ids=["one commit", "one by one"])
async def test_moving_to_another_host_books_there_first(atomic: bool) -> None:
    store = Wary(atomic=atomic)
    await book.book(store, HOST, [booking("vf0", TRAIN), booking("vf1", SERVE)])
    await book.book(store, OTHER, [booking("vf9", SERVE, host=OTHER)])
    before = store.writes
    with pytest.raises(AlreadyHeld):
        await book.transfer(store, HOST, OTHER, "uid-train", [booking("vf9", TRAIN, host=OTHER)])
    assert store.writes == before, "nothing was given up for a place that is taken"
    await book.transfer(store, HOST, OTHER, "uid-train", [booking("vf5", TRAIN, host=OTHER)], now=NOW)
    assert store.writes - before == (1 if atomic else 3)
    assert await history_of(store, "vf0") == [f"train {SINCE} moved to node-b {NOW}"]
    assert await history_of(store, "vf5", OTHER) == [f"train {SINCE} booked"]
    assert await history_of(store, "vf1") == [f"serve {SINCE} booked"]


async def test_moving_on_the_same_host() -> None:
    store = memory()
    await book.book(store, HOST, [booking("vf0", TRAIN), booking("vf1", TRAIN)])
    await book.transfer(store, HOST, HOST, "uid-train", [booking("vf1", TRAIN), booking("vf2", TRAIN)], now=NOW)
    assert [one.device.device for one in (await book.read(store, HOST)).bookings] == ["vf1", "vf2"]
    await book.transfer(store, HOST, HOST, "uid-train", [booking("vf3", SERVE)], now=NOW)
    assert [str(one.holder) for one in (await book.read(store, HOST)).bookings] == [str(SERVE)]
    assert await history_of(store, "vf1") == [f"train {SINCE} moved to node-a {NOW}"]


class Interrupted(Memory):
    """Another writer books on the page of a host after every reading, for a while."""

    left = 0  # for how many readings

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        obj = await super().get(kind, name, namespace)
        if kind == kinds.LEDGER_PAGE and self.left:
            self.left -= 1
            new = Page(obj).holding([booking(f"x{self.left}", SERVE, host=name)])
            await self.replace(kinds.LEDGER_PAGE, new)
        return obj


async def test_moving_tries_again() -> None:
    store = Interrupted(rules=UncheckedPages())
    await book.book(store, HOST, [booking("vf0", TRAIN)])
    await book.book(store, OTHER, [booking("vf9", SERVE, host=OTHER)])
    store.left = 3
    await book.transfer(store, HOST, OTHER, "uid-train", [booking("vf5", TRAIN, host=OTHER)], now=NOW)
    assert (await book.read(store, HOST)).of("uid-train") == ()
    assert len((await book.read(store, OTHER)).of("uid-train")) == 1
    assert len((await store.list(kinds.PAST_BOOKING)).items) == 1
    store.left = 1000
    with pytest.raises(Conflict):
        await book.transfer(store, OTHER, HOST, "uid-train", [booking("vf0", TRAIN)])


# -- killed at any moment

Work = Callable[[Store, str], Awaitable[object]]
A = consumer("a")
FOUND = [heal.AttachedDevice(device("vf0"), A), heal.AttachedDevice(device("gpu1"), A)]
WORKS: dict[str, Work] = {
    "release": lambda store, now: book.release(store, HOST, "uid-train", now=now),
    "release one device": lambda store, now: book.release(store, HOST, "uid-train", device=device("vf0"), now=now),
    "move": lambda store, now: book.move(store, HOST, "uid-train", MIGRATION, now=now),
    "transfer": lambda store, now: book.transfer(
        store, HOST, OTHER, "uid-train", [booking("vf5", TRAIN, host=OTHER)], now=now),
    "transfer on one host": lambda store, now: book.transfer(
        store, HOST, HOST, "uid-train", [booking("vf1", TRAIN), booking("vf7", TRAIN)], now=now),
    "heal": lambda store, now: heal.heal_page(store, HOST, FOUND, group={
        device(name): name[:-1] for name in ("vf0", "vf1", "vf2", "gpu0", "gpu1")}, now=now),
}


async def _begin(atomic: bool) -> Wary:
    store = Wary(atomic=atomic)
    await book.book(store, HOST, [
        booking("vf0", TRAIN), booking("vf1", TRAIN), booking("gpu0", A), booking("gpu1", consumer("b")),
        booking("vf2", domain("gone"), "prepared"), resources(A, VCPU=2)])
    await book.book(store, OTHER, [booking("vf9", SERVE, host=OTHER)])
    return store


async def _check(store: Wary, end: str) -> None:
    """Every booking that ever stood stands, or has its record; never both."""
    standing = {history.name_of(read.host, one) for read in map(Page, (await store.list(kinds.LEDGER_PAGE)).items)
                for one in read.bookings}
    records = {one["metadata"]["name"]: one for one in (await store.list(kinds.PAST_BOOKING)).items}
    missing = {what for name, what in store.stood.items() if name not in standing and name not in records}
    assert missing == set(), "ended without a record"
    both = {store.stood[name] for name in standing & records.keys()}
    assert both == set(), "a record of what still stands"
    assert {one["spec"]["ended"] for one in records.values()} <= {NOW, end}


@pytest.mark.parametrize("atomic", [True, False], ids=["one commit", "one by one"])
@pytest.mark.parametrize("name", WORKS)
async def test_killed_before_or_after_any_write_and_done_again(name: str, atomic: bool) -> None:
    whole = await _begin(atomic)
    begun = whole.writes
    await WORKS[name](whole, NOW)
    await _check(whole, NOW)
    count = whole.writes - begun
    assert count == 1 if atomic else count >= 2
    for number in range(count):
        for after in (False, True):
            store = await _begin(atomic)
            store.fail_at, store.after = begun + number, after
            with pytest.raises(Unavailable, match="killed"):
                await WORKS[name](store, NOW)
            await WORKS[name](store, LATER)
            await _check(store, LATER)
            await WORKS[name](store, LATER)
            await _check(store, LATER)


async def test_a_record_of_what_still_stands_is_not_shown_and_gets_its_right_end() -> None:
    store = await _begin(atomic=False)
    store.fail_at = store.writes + 2  # both records are written, the page is not
    with pytest.raises(Unavailable):
        await book.move(store, HOST, "uid-train", MIGRATION, now=NOW)
    assert len((await store.list(kinds.PAST_BOOKING)).items) == 2
    assert await history_of(store, "vf0") == [f"train {SINCE} booked"], "it still stands"
    await book.release(store, HOST, "uid-train", now=LATER)
    assert await history_of(store, "vf0") == [f"train {SINCE} released {LATER}"]


class Contended(Memory):
    """Not atomic, and another writer writes the same record between a look and a write."""

    atomic = False
    times = 1

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        if kind == kinds.PAST_BOOKING and self.times:
            self.times -= 1
            await super().patch(kind, obj["metadata"]["name"], {"metadata": {"labels": {"n": str(self.times)}}})
        return await super().replace(kind, obj)


@pytest.mark.parametrize("times", [1, 3, 1000])
async def test_two_that_write_the_same_record(times: int) -> None:
    store = Contended(rules=UncheckedPages())
    store.times = times
    await book.book(store, HOST, [booking("vf0", TRAIN)])
    await history.write_record(store, history.past_booking(HOST, booking("vf0", TRAIN), ended=SINCE, how="found gone"))
    if times < history.TRIES:
        await book.release(store, HOST, "uid-train", now=NOW)
        assert await history_of(store, "vf0") == [f"train {SINCE} released {NOW}"]
    else:
        with pytest.raises(Conflict):
            await book.release(store, HOST, "uid-train", now=NOW)
        assert len((await book.read(store, HOST)).bookings) == 1


# -- names and labels

LONG = "n" + "-long" * 40
NAMES: dict[str, tuple[str, str]] = {
    "as usual": ("node-a", "pci-0000-3a-00-0-00-0-vf3"),
    "a long host": (LONG, "vf0"),
    "a domain": ("node-a.rack-7.example.com", "vf0"),
    "the host itself": ("node-a", ""),
    "letters of others": ("node-a", "GPU_0.a/b"),
}


@pytest.mark.parametrize("name", NAMES)
async def test_every_record_is_admitted_and_found(name: str) -> None:
    host, its_name = NAMES[name]
    store, which = memory(), DeviceId("pci.example.com", host, its_name)
    await book.book(store, host, [Booking(which, TRAIN, "nic", "booked", SINCE)])
    await book.release(store, host, "uid-train", now=NOW)
    assert [one.how for one in await history.entries(store, which)] == ["released"]
    assert [one.how for one in await history.entries(store, which, host=host)] == ["released"]
    assert await history.entries(store, which, host="another") == []


def test_record_names_are_unique_per_booking() -> None:
    one = booking("vf0", TRAIN)
    others = [booking("vf1", TRAIN), booking("vf0", SERVE), replace(one, since=NOW), booking("vf0", TRAIN, shareID="x"),
              replace(one, device=one.device._replace(driver="other")), replace(one, device=one.device._replace(pool="other"))]
    made = {history.name_of(HOST, each) for each in (one, *others)} | {history.name_of(OTHER, one)}
    assert len(made) == len(others) + 2
    assert history.name_of(HOST, replace(one, state="prepared", prepared=NOW)) == history.name_of(HOST, one)


async def test_a_device_whose_pool_is_no_host_is_found_everywhere() -> None:
    store, pooled = memory(), DeviceId("other.example.com", "fabric", "nic0")
    await book.book(store, HOST, [Booking(pooled, TRAIN, "nic", "booked", SINCE)])
    await book.book(store, OTHER, [booking("vf9", SERVE, host=OTHER)])
    assert [(one.host, one.holder.name) for one in await history.entries(store, pooled)] == [(HOST, "train")]
    assert await history.entries(store, pooled, host=OTHER) == []


# -- what is old goes


async def _fill(store: Store, count: int, host: str = HOST) -> None:
    """One record a day, from the first of January on."""
    for number in range(count):
        ended = rfc3339(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number))
        await history.write_record(
            store, history.past_booking(host, booking(f"vf{number:03}", TRAIN, host=host), ended=ended, how="released")
        )


async def _left(store: Store, host: str = HOST) -> list[str]:
    specs = [one["spec"] for one in (await store.list(kinds.PAST_BOOKING)).items]
    return [spec["device"]["device"] for spec in specs if spec["host"] == host]


async def test_each_host_can_see_to_its_own() -> None:
    store = memory()
    await _fill(store, 3)
    await _fill(store, 3, "other")
    assert await history.expire(store, "2027-01-01T00:00:00Z", timedelta(days=3), host="other") == 3
    assert (len(await _left(store)), await _left(store, "other")) == (3, [])


async def test_what_ended_long_ago_goes() -> None:
    store = memory()
    await _fill(store, 10)
    assert await history.expire(store, "2026-01-10T00:00:00Z", timedelta(days=3)) == 6
    assert await _left(store) == ["vf006", "vf007", "vf008", "vf009"], "what ended just so long ago stays"
    assert await history.expire(store, "2026-01-10T00:00:00Z", timedelta(days=3)) == 0


async def test_what_is_still_held_is_not_old() -> None:
    store = memory()
    await book.book(store, HOST, [booking("vf0", TRAIN)])
    assert await history.expire(store, "2036-01-01T00:00:00Z", timedelta(days=1)) == 0
    assert await history_of(store, "vf0") == [f"train {SINCE} booked"]


async def test_a_record_without_an_end_is_as_old_as_itself() -> None:
    clock = ManualClock()
    store = Memory(clock=clock, rules=UncheckedPages())
    await history.write_record(store, history.past_booking(HOST, booking("vf0", TRAIN), ended="", how="released"))
    clock.advance(86400.0)
    assert await history.expire(store, rfc3339(clock.now()), timedelta(days=2)) == 0
    clock.advance(2 * 86400.0)
    assert await history.expire(store, rfc3339(clock.now()), timedelta(days=2)) == 1


async def test_each_host_keeps_only_the_newest() -> None:
    store = memory()
    await _fill(store, 10)
    await _fill(store, 3, OTHER)
    assert await history.expire(store, "2026-01-10T00:00:00Z", timedelta(days=365), most=4) == 6
    assert await _left(store) == ["vf006", "vf007", "vf008", "vf009"]
    assert len(await _left(store, OTHER)) == 3


async def test_in_small_steps_and_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "STEP", 2)
    store = memory()
    await _fill(store, 10)
    gone = await asyncio.gather(*(history.expire(store, "2026-01-10T00:00:00Z", timedelta(days=3)) for _ in range(3)))
    assert sum(gone) == 6
    assert len(await _left(store)) == 4
    assert len(await history.entries(store, device("vf007"))) == 1


class Forgetful(Memory):
    """Does not remember a list that was begun."""

    async def list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0, continue_: str = ""
    ) -> Listing:
        if continue_:
            raise Expired("too old")
        return await super().list(kind, namespace, labels=labels, fields=fields, limit=limit, continue_=continue_)

    async def delete(
        self, kind: Kind, name: str, namespace: str = "", *, uid: str | None = None, revision: str | None = None,
        propagation: Propagation | None = None, grace: int | None = None, dry_run: bool = False,
    ) -> Object:
        if name.startswith("vf001"):
            raise NotFound("another was faster")
        return await super().delete(kind, name, namespace, uid=uid, revision=revision)


async def test_a_round_that_is_cut_short_does_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "STEP", 3)
    store = Forgetful(rules=UncheckedPages())
    await _fill(store, 6)
    assert await history.expire(store, "2027-01-01T00:00:00Z", timedelta(days=3)) == 2
    assert await history.expire(store, "2027-01-01T00:00:00Z", timedelta(days=3)) == 2, "the next round goes on"


@pytest.mark.cluster
async def test_on_a_real_api_server(cluster: kubernetes.Cluster) -> None:
    """One object at a time, and the server's own rules for names and labels."""
    clock, host = SystemClock(), f"node-{uuid.uuid4().hex[:8]}"
    store = Kube(cluster.access(), clock=clock)
    try:
        await book.book(store, host, [booking("vf0", TRAIN, host=host), booking("vf1", TRAIN, host=host)])
        await book.move(store, host, "uid-train", consumer("a"), now=NOW)
        await book.release(store, host, "uid-a", device=device("vf0", host), now=LATER)
        assert await history_of(store, "vf0", host) == [f"a {NOW} released {LATER}", f"train {SINCE} moved to Consumer a {NOW}"]
        assert await history_of(store, "vf1", host) == [f"a {NOW} booked", f"train {SINCE} moved to Consumer a {NOW}"]
        mine = f"outfitter.dev/host={host}"
        assert len((await store.list(kinds.PAST_BOOKING, labels=mine)).items) == 3
        assert await history.expire(store, "2026-01-03T12:00:00Z", timedelta(days=1)) >= 2
        assert len((await store.list(kinds.PAST_BOOKING, labels=mine)).items) == 1
    finally:
        await store.close()


async def test_malformed_records_expire() -> None:
    """As an API server keeps them."""
    store = Memory(clock=ManualClock())
    for number, spec in enumerate(({"host": 3, "ended": 4}, "x", None, {"host": {}, "ended": "2020-01-01T00:00:00Z"})):
        await store.create(kinds.PAST_BOOKING, {"metadata": {"name": f"bad-{number}"}, "spec": spec})
    assert await history.expire(store, NOW, timedelta(days=2)) == 1
    assert await history.expire(store, NOW, timedelta(days=2), most=0) == 3

