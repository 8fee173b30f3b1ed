"""One holder at a time: taking over, giving back, and stopping the work in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest

from outfitter import errors
from outfitter.api.kinds import LEASE, Kind, Object
from outfitter.store.clock import ManualClock
from outfitter.store.leader_election import LeaderElection, Terms
from outfitter.store.memory import Memory
from tests.store.backends import Backend, settle

TERMS = Terms(duration=15, renew=10, every=2)


class Moody(Memory):
    """Answers, fails or does not answer, as its mood is set."""

    mood = "well"
    reads = 0

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        self.reads += 1
        await self._answer()
        return await super().get(kind, name, namespace)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        await self._answer()
        return await super().replace(kind, obj, subresource=subresource, dry_run=dry_run)

    async def _answer(self) -> None:
        if self.mood == "silent":
            await asyncio.get_running_loop().create_future()
        if self.mood == "failing":
            raise errors.Unavailable("no")
        if self.mood == "slow":
            await self.clock.sleep(4.5)


class Work:
    """What the holder does; reports whether it is being done."""

    def __init__(self) -> None:
        self.running = self.cancelled = False

    async def __call__(self) -> None:
        self.running = True
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.running = False


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Moody]:
    made = Moody(clock=clock)
    yield made
    await made.close()


def lease(store: Memory, holder: str, clock: ManualClock) -> LeaderElection:
    return LeaderElection(store, LEASE, "default", "leader", holder, clock=clock, terms=TERMS)


async def spec(store: Memory) -> Object:
    found: Object = (await Memory.get(store, LEASE, "leader", "default"))["spec"]
    return found


async def tick(clock: ManualClock, seconds: float) -> None:
    """Time passes for all."""
    while seconds > 0:
        clock.advance(min(1, seconds))
        seconds -= 1
        await settle()


async def test_the_first_one_has_it(store: Moody, clock: ManualClock) -> None:
    ann, bob = lease(store, "ann", clock), lease(store, "bob", clock)
    assert await ann.acquire()
    assert not await bob.acquire()
    assert await spec(store) == {
        "holderIdentity": "ann", "leaseDurationSeconds": 15, "leaseTransitions": 0,
        "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z",
    }
    clock.advance(5)
    assert await ann.acquire()
    assert (await spec(store))["renewTime"] == "2026-01-01T00:00:05.000000Z"
    assert (await spec(store))["acquireTime"] == "2026-01-01T00:00:00.000000Z"


async def test_who_does_not_renew_loses_it(store: Moody, clock: ManualClock) -> None:
    ann, bob = lease(store, "ann", clock), lease(store, "bob", clock)
    await ann.acquire()
    assert not await bob.acquire()
    clock.advance(14)
    assert not await bob.acquire()
    clock.advance(2)
    assert await bob.acquire()
    assert not await ann.acquire()
    assert (await spec(store))["holderIdentity"] == "bob"
    assert (await spec(store))["leaseTransitions"] == 1
    assert (await spec(store))["acquireTime"] == "2026-01-01T00:00:16.000000Z"


async def test_who_renews_keeps_it(store: Moody, clock: ManualClock) -> None:
    ann, bob = lease(store, "ann", clock), lease(store, "bob", clock)
    for _ in range(10):
        assert await ann.acquire()
        assert not await bob.acquire()
        clock.advance(10)


async def test_the_holder_renews_without_reading(store: Moody, clock: ManualClock) -> None:
    ann, bob = lease(store, "ann", clock), lease(store, "bob", clock)
    assert await ann.acquire()
    store.reads = 0
    clock.advance(2)
    assert await ann.acquire()
    assert (store.reads, (await spec(store))["renewTime"]) == (0, "2026-01-01T00:00:02.000000Z")
    assert not await bob.acquire()
    clock.advance(TERMS.duration)
    assert await bob.acquire()
    assert not await ann.acquire(), "it was taken meanwhile"
    assert (await spec(store))["holderIdentity"] == "bob"
    await Memory.delete(store, LEASE, "leader", "default")
    assert await bob.acquire(), "deleted: created again"


async def test_lease_age_counts_from_when_it_was_observed(store: Moody, clock: ManualClock) -> None:
    old = {"holderIdentity": "ann", "leaseDurationSeconds": 15, "renewTime": "2001-01-01T00:00:00.000000Z"}
    await store.create(LEASE, {"metadata": {"name": "leader", "namespace": "default"}, "spec": old})
    bob = lease(store, "bob", clock)
    assert not await bob.acquire()
    clock.advance(16)
    assert await bob.acquire()


async def test_released_lease_is_free_at_once(store: Moody, clock: ManualClock) -> None:
    ann, bob = lease(store, "ann", clock), lease(store, "bob", clock)
    await ann.acquire()
    await bob.release()  # not his to give
    assert not await bob.acquire()
    await ann.release()
    assert (await spec(store))["holderIdentity"] == ""
    assert await bob.acquire()


async def test_releasing_a_lease_never_fails(store: Moody, clock: ManualClock) -> None:
    await lease(store, "ann", clock).release()
    store.mood = "failing"
    await lease(store, "ann", clock).release()


async def test_on_every_backend(backend: Backend) -> None:
    clock = ManualClock()
    ann, bob = (
        LeaderElection(backend.store, LEASE, backend.namespace, "leader", name, clock=clock, terms=TERMS)
        for name in ("ann", "bob")
    )
    assert await ann.acquire()
    assert await ann.acquire()
    assert not await bob.acquire()
    clock.advance(16)
    assert await bob.acquire()
    assert not await ann.acquire()
    await bob.release()
    assert await ann.acquire()
    held = (await backend.store.get(LEASE, "leader", backend.namespace))["spec"]
    assert (held["holderIdentity"], held["leaseTransitions"]) == ("ann", 1)


async def test_two_at_once(store: Moody, clock: ManualClock) -> None:
    electors = [lease(store, name, clock) for name in ("ann", "bob", "eve")]
    got = await asyncio.gather(*(elector.acquire() for elector in electors))
    assert got.count(True) == 1


async def test_second_candidate_leads_when_the_first_is_gone(store: Moody, clock: ManualClock) -> None:
    first, second = Work(), Work()
    holding = asyncio.create_task(lease(store, "ann", clock).hold(first))
    await settle()
    waiting = asyncio.create_task(lease(store, "bob", clock).hold(second))
    await tick(clock, 60)
    assert (first.running, second.running) == (True, False)
    holding.cancel()  # its process dies, and gives nothing back
    await settle()
    assert first.cancelled
    await tick(clock, 12)
    assert not second.running
    await tick(clock, 6)
    assert second.running
    waiting.cancel()
    await asyncio.gather(holding, waiting, return_exceptions=True)


async def test_a_candidate_looks_when_the_lease_ends(store: Moody, clock: ManualClock) -> None:
    """Not at the next of its regular looks, which would be a second later."""
    work = Work()
    await lease(store, "ann", clock).acquire()
    waiting = asyncio.create_task(lease(store, "bob", clock).hold(work))
    await settle()
    await tick(clock, TERMS.duration - 1)
    assert not work.running
    await tick(clock, 1)
    assert work.running
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("mood", ["failing", "silent"])
async def test_work_stops_before_another_may_begin(store: Moody, clock: ManualClock, mood: str) -> None:
    work = Work()
    holding = asyncio.create_task(lease(store, "ann", clock).hold(work))
    await settle()
    await tick(clock, 20)
    assert work.running
    store.mood = mood
    while work.running:
        await tick(clock, 1)
    renewed = datetime.fromisoformat((await spec(store))["renewTime"])  # others count from here, or from later
    assert timedelta(seconds=TERMS.renew) <= clock.now() - renewed < timedelta(seconds=TERMS.renew + 1.5)
    await asyncio.wait_for(holding, 60)
    assert work.cancelled


async def test_a_short_failure_stops_nothing(store: Moody, clock: ManualClock) -> None:
    work = Work()
    holding = asyncio.create_task(lease(store, "ann", clock).hold(work))
    await settle()
    for mood in ("failing", "well", "silent", "well"):
        store.mood = mood
        await tick(clock, 6)
        assert work.running
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def test_a_leader_of_a_slow_server_keeps_the_lease(store: Moody, clock: ManualClock) -> None:
    work = Work()
    holding = asyncio.create_task(lease(store, "ann", clock).hold(work))
    await settle()
    store.mood = "slow"
    await tick(clock, 120)
    assert (work.running, work.cancelled) == (True, False)
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def test_work_stops_when_another_candidate_took_the_lease(store: Moody, clock: ManualClock) -> None:
    work = Work()
    holding = asyncio.create_task(lease(store, "ann", clock).hold(work))
    await settle()
    await store.patch(LEASE, "leader", {"spec": {"holderIdentity": "bob", "leaseDurationSeconds": 1000}}, "default")
    await tick(clock, 13)
    assert work.cancelled
    await asyncio.wait_for(holding, 60)
    assert (await spec(store))["holderIdentity"] == "bob"


async def test_work_that_ends_ends_the_holding(store: Moody, clock: ManualClock) -> None:
    async def quick() -> None:
        await asyncio.sleep(0)

    async def broken() -> None:
        raise RuntimeError("no")

    elector = lease(store, "ann", clock)
    await asyncio.wait_for(elector.hold(quick), 60)
    with pytest.raises(RuntimeError, match="no"):
        await asyncio.wait_for(elector.hold(broken), 60)
