"""Clocks: the only way by which the product reads the time or sleeps. `SystemClock` in production, `ManualClock` in tests and
simulations."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; for timeouts and ages."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """Advances only by `advance`; sleepers are woken in the order of their deadlines."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), waiter))
        await waiter

    def advance(self, seconds: float) -> None:
        """Advance the time and wake the sleepers whose deadline has passed."""
        self._elapsed += seconds
        self._now += timedelta(seconds=seconds)
        while self._sleepers and self._sleepers[0][0] <= self._elapsed + 1e-9:
            _, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                waiter.set_result(None)


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """The result of some work. TimeoutError: it took longer on this clock, and is cancelled."""
    task = asyncio.ensure_future(work)
    limit = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({task, limit}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()
        limit.cancel()


def rfc3339(moment: datetime) -> str:
    """As Kubernetes writes times: whole seconds, "2026-01-01T00:00:00Z"."""
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return in_utc.isoformat()[:19] + "Z"  # a third of the time that strftime takes


def rfc3339_micro(moment: datetime) -> str:
    """As Kubernetes writes MicroTime (leases)."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z"
