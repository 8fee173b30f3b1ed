"""The work queue: a key is held once, worked on by one, and comes back as often as it must."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from outfitter.store.clock import ManualClock
from outfitter.store.workqueue import TURNS, WorkQueue
from tests.store.backends import settle


@pytest.fixture
async def queue(clock: ManualClock) -> AsyncIterator[WorkQueue]:
    made = WorkQueue(clock)
    yield made
    made.close()
    await settle()


async def drained(queue: WorkQueue) -> list[str]:
    """What can be taken now."""
    keys = []
    while len(queue):
        keys.append(await queue.take())
        queue.done(keys[-1])
    return keys


async def test_keys_come_in_the_order_they_were_added_and_once(queue: WorkQueue) -> None:
    for key in ("b", "a", "b", "c", "a"):
        queue.add(key)
    assert len(queue) == 3
    assert await drained(queue) == ["b", "a", "c"]
    assert queue.idle


async def test_key_in_work_is_not_returned_again_until_done(queue: WorkQueue) -> None:
    queue.add("a")
    assert await queue.take() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    second = asyncio.create_task(queue.take())
    await settle()
    assert not second.done()
    assert not queue.idle
    queue.done("a")
    assert await second == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_what_is_oldest_comes_first(clock: ManualClock) -> None:
    """The next step of the oldest VM is taken before the first step of newer ones."""
    queue = WorkQueue(clock, age=lambda key: int(key[1:]))
    for number in (7, 3, 9):
        queue.add(f"m{number}")
    assert await queue.take() == "m3"
    queue.add("m3")
    queue.done("m3")
    assert await queue.take() == "m3"
    queue.done("m3")
    assert queue.take_more(2) == ["m7", "m9"]


async def test_a_key_that_is_always_added_again_does_not_starve_others(clock: ManualClock) -> None:
    queue = WorkQueue(clock, age=lambda key: int(key[1:]))
    for number in (0, 5, 4):
        queue.add(f"m{number}")
    taken = []
    for _ in range(2 * TURNS):
        taken.append(await queue.take())
        queue.add("m0")
        queue.done(taken[-1])
    assert taken[TURNS - 1] == "m5"  # it came first
    assert taken[2 * TURNS - 1] == "m4"
    assert set(taken) == {"m0", "m5", "m4"}
    assert len(queue) == 1


async def test_many_workers_never_share_a_key(queue: WorkQueue) -> None:
    working: set[str] = set()
    seen: list[str] = []

    async def worker() -> None:
        while True:
            key = await queue.take()
            assert key not in working
            working.add(key)
            for _ in range(3):
                await asyncio.sleep(0)
                queue.add(key) if len(seen) < 40 else None
            seen.append(key)
            working.discard(key)
            queue.done(key)

    workers = [asyncio.create_task(worker()) for _ in range(8)]
    for number in range(5):
        queue.add(f"k{number}")
    await settle(400)
    assert len(seen) >= 40
    assert {seen.count(f"k{number}") >= 8 for number in range(5)} == {True}  # none starves
    assert queue.idle
    for task in workers:
        assert not task.done()
        task.cancel()


async def test_what_is_due_later_comes_when_it_is_due(queue: WorkQueue, clock: ManualClock) -> None:
    queue.add_after("a", 10)
    queue.add_after("b", 5)
    queue.add_after("now", 0)
    await settle()
    assert await drained(queue) == ["now"]
    clock.advance(5)
    await settle()
    assert await drained(queue) == ["b"]
    clock.advance(4.9)
    await settle()
    assert len(queue) == 0
    clock.advance(0.2)
    await settle()
    assert await drained(queue) == ["a"]


async def test_the_earlier_of_two_times_counts(queue: WorkQueue, clock: ManualClock) -> None:
    queue.add_after("a", 10)
    queue.add_after("a", 3)
    queue.add_after("a", 20)
    await settle()
    clock.advance(3)
    await settle()
    assert await drained(queue) == ["a"]
    clock.advance(60)
    await settle()
    assert len(queue) == 0


async def test_failures_are_retried_with_backoff(clock: ManualClock) -> None:
    queue = WorkQueue(clock, base=1, most=10)
    assert [queue.retry("a") for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert queue.retry("other") == 1
    queue.forget("a")
    assert queue.retry("a") == 1
    await settle()
    clock.advance(1)
    await settle()
    assert sorted(await drained(queue)) == ["a", "other"]
    assert queue.retried == 8
    queue.close()


async def test_many_failures_at_once_are_spread(clock: ManualClock) -> None:
    queue = WorkQueue(clock, base=0.001, per_second=10, burst=5)
    waits = [queue.retry(f"k{number}") for number in range(10)]
    assert waits[:5] == [0.001] * 5
    assert waits[5:] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    clock.advance(100)  # the bucket fills again, and not beyond its rim
    assert [queue.retry(f"m{number}") for number in range(6)] == pytest.approx([0.001] * 5 + [0.1])
    queue.close()
    await settle()


async def test_a_failure_while_in_work_waits_for_both(queue: WorkQueue, clock: ManualClock) -> None:
    queue.add("a")
    await queue.take()
    queue.retry("a")
    await settle()
    clock.advance(1)
    await settle()
    assert len(queue) == 0  # due, but still in work
    queue.done("a")
    assert await drained(queue) == ["a"]


@pytest.mark.parametrize("moment", ["before the key came", "after the key came"])
async def test_cancelled_get_loses_no_key(queue: WorkQueue, moment: str) -> None:
    gives_up, waits = asyncio.create_task(queue.take()), asyncio.create_task(queue.take())
    await settle()
    if moment == "after the key came":
        queue.add("a")  # rings for the first, which has not run yet
        gives_up.cancel()
    else:
        gives_up.cancel()
        await settle()
        queue.add("a")
    await settle()
    assert gives_up.cancelled()
    assert waits.done()
    assert waits.result() == "a"


async def test_closing_forgets_what_is_due_later(clock: ManualClock) -> None:
    queue = WorkQueue(clock)
    queue.add_after("a", 5)
    await settle()
    queue.close()
    clock.advance(10)
    await settle()
    assert len(queue) == 0


async def test_it_counts(queue: WorkQueue) -> None:
    for key in ("a", "a", "b"):
        queue.add(key)
    assert queue.added == 2


async def test_it_measures_how_long_keys_wait_and_are_worked_on(queue: WorkQueue, clock: ManualClock) -> None:
    """A key that comes back while it is worked on waits from the moment it was added."""
    queue.add("a")
    queue.add("b")
    clock.advance(0.05)
    assert await queue.take() == "a"
    clock.advance(2)
    assert queue.take_more(1) == ["b"]
    queue.add("a")
    clock.advance(3)
    assert sorted(queue.metrics.in_work()) == [3, 5]
    queue.done("a")
    queue.done("b")
    assert await queue.take() == "a"
    waits, works = queue.metrics.waits, queue.metrics.works
    assert waits.total == pytest.approx(0.05 + 2.05 + 3)
    assert works.total == pytest.approx(5 + 3)
    assert dict(waits.up_to()) == {1e-8: 0, 1e-7: 0, 1e-6: 0, 1e-5: 0, 1e-4: 0, 1e-3: 0, 0.01: 0, 0.1: 1, 1.0: 1, 10.0: 3,
                                   float("inf"): 3}
    assert queue.metrics.in_work() == [0]
