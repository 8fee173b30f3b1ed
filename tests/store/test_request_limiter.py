"""A server that is too busy is left alone by every caller of a process, for as long as it asks, and then asked less."""

from __future__ import annotations

import asyncio

import pytest

from outfitter.store.clock import ManualClock
from outfitter.store.request_limiter import JITTER, LONGEST_WAIT, MAX_CALLS, RequestLimiter
from tests.store.backends import settle


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(clock: ManualClock) -> RequestLimiter:
    return RequestLimiter(clock, jitter=lambda: 0.0)


async def send(limiter: RequestLimiter, sent: list[int], number: int, *, watch: bool = False) -> None:
    await limiter.begin(counted=not watch)
    sent.append(number)
    limiter.end(counted=not watch)


async def test_a_refusal_holds_back_every_request(limiter: RequestLimiter, clock: ManualClock) -> None:
    limiter.refused("PATCH", 429, 7)
    sent: list[int] = []
    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(send(limiter, sent, number, watch=number == 2))
        await settle()
        clock.advance(6.9)
        await settle()
        assert sent == []
        clock.advance(0.2)
    assert sorted(sent) == [0, 1, 2]
    assert limiter.held_back == pytest.approx(21)
    assert limiter.requests == {("429", "PATCH"): 1}


@pytest.mark.parametrize(("asked", "waits"), [(0, 0.1), (5, 5), (3600, LONGEST_WAIT)])
def test_delays_are_as_asked_and_capped(limiter: RequestLimiter, asked: float, waits: float) -> None:
    limiter.refused("GET", 429, asked)
    assert limiter.delay == pytest.approx(waits)


def test_a_delay_is_never_shorter_than_asked_for_and_differs_between_processes(clock: ManualClock) -> None:
    delays = []
    for draw in (0.0, 0.5, 1.0):
        limiter = RequestLimiter(clock, jitter=lambda draw=draw: draw)  # type: ignore[misc]
        limiter.refused("GET", 429, 4)
        delays.append(limiter.delay)
    assert delays == pytest.approx([4, 4 + 2 * JITTER, 4 + 4 * JITTER])


def test_refusals_in_a_row_wait_longer_and_allow_less(limiter: RequestLimiter, clock: ManualClock) -> None:
    delays, limits = [], []
    for _ in range(8):
        limiter.refused("GET", 429, 0)
        limiter.refused("GET", 429, 0)  # was sent together with the first: it says nothing new
        delays.append(round(limiter.delay, 3))
        limits.append(limiter.limit)
        clock.advance(limiter.delay)
    assert delays == [0.1, 0.4, 1.6, 6.4, 25.6, 30, 30, 30]
    assert limits == [32, 16, 8, 4, 2, 1, 1, 1]
    limiter.answered("GET", 200)
    limiter.refused("GET", 429, 0)
    assert limiter.delay == pytest.approx(0.1)


def test_successes_allow_more_again(limiter: RequestLimiter) -> None:
    limiter.refused("GET", 429, 0)
    for _ in range(MAX_CALLS * MAX_CALLS):
        limiter.answered("GET", 200)
    assert limiter.limit == MAX_CALLS


async def test_no_more_requests_at_once_than_allowed(clock: ManualClock) -> None:
    limiter = RequestLimiter(clock, most=2, jitter=lambda: 0.0)
    running, most = 0, 0
    may_end = asyncio.Event()

    async def request() -> None:
        nonlocal running, most
        await limiter.begin()
        running += 1
        most = max(most, running)
        await may_end.wait()
        running -= 1
        limiter.end()

    tasks = [asyncio.ensure_future(request()) for _ in range(7)]
    await settle()
    assert (running, most) == (2, 2)
    tasks[3].cancel()  # one that waits
    may_end.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in done].count(asyncio.CancelledError) == 1
    assert most == 2
