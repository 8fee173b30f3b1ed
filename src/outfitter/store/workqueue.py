"""What is to be looked at, by key. A key that waits is held once; a key that is being worked on is not handed out again
until it is done, and comes back once if it was added meanwhile. Failures come back later and later.

Keys come in the order in which they were added. With `age` those of what is oldest come first: in a burst of machines the
first is finished, stage by stage, before the last is begun. Every few turns the key that has waited longest comes all the
same, so that something old that never comes to rest keeps nobody from being looked at."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any

from outfitter.store.clock import Clock
from outfitter.store.queue_metrics import QueueMetrics

Age = Callable[[str], int]  # of what a key stands for: the smaller, the older
TURNS = 4  # of so many keys one is that which has waited longest, whatever its age


class WorkQueue:
    def __init__(
        self, clock: Clock, *, base: float = 0.005, most: float = 60.0, per_second: float = 50.0, burst: int = 100,
        age: Age | None = None,
    ) -> None:
        self._clock, self._age = clock, age
        self._base, self._most = base, most
        self._per_second, self._burst = per_second, burst
        self._tokens, self._filled = float(burst), clock.monotonic()
        self._waiting: OrderedDict[str, int] = OrderedDict()  # key -> the number under which it was added
        self._numbers = itertools.count()
        self._oldest: list[tuple[int, int, str]] = []  # a heap of age, number and key; also of keys that were taken meanwhile
        self._turn = 0
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._failures: dict[str, int] = {}
        self._timers: dict[str, tuple[float, asyncio.Task[None]]] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self.added = self.retried = 0
        self.metrics = QueueMetrics(clock)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is being worked on; what is due later does not count."""
        return not self._waiting and not self._working

    def add(self, key: str) -> None:
        if key in self._waiting or key in self._again:
            return
        self.added += 1
        self.metrics.added(key)
        if key in self._working:
            self._again.add(key)
            return
        self._put(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Later; an earlier time that is already set stays."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock.monotonic() + seconds
        if key in self._timers:
            if self._timers[key][0] <= due:
                return
            self._timers[key][1].cancel()
        self._timers[key] = (due, _start(self._later(key, seconds)))

    def retry(self, key: str) -> float:
        """After a failure: twice as long as last time, and no faster than the bucket allows. The wait, in seconds."""
        self.retried += 1
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        wait = max(min(self._most, self._base * float(2 ** min(failures, 30))), self._draw())
        self.add_after(key, wait)
        return wait

    def forget(self, key: str) -> None:
        """It went well: the next failure waits shortly again."""
        self._failures.pop(key, None)

    async def take(self) -> str:
        while not self._waiting:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._ring()
                raise
        return self._next()

    def take_more(self, most: int) -> list[str]:
        """What waits besides, for somebody who works on several at once; each must be done like one that was taken."""
        return [self._next() for _ in range(min(most, len(self._waiting)))]

    def done(self, key: str) -> None:
        self._working.discard(key)
        self.metrics.done(key)
        if key in self._again:
            self._again.discard(key)
            self._put(key)

    def close(self) -> None:
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _put(self, key: str) -> None:
        self._waiting[key] = number = next(self._numbers)
        if self._age is not None:
            heapq.heappush(self._oldest, (self._age(key), number, key))
        self._ring()

    def _next(self) -> str:
        """The key whose turn it is; something waits."""
        self._turn = (self._turn + 1) % TURNS
        while self._turn and self._oldest:
            _, number, key = heapq.heappop(self._oldest)
            if self._waiting.get(key) == number:
                del self._waiting[key]
                break
        else:
            key, _ = self._waiting.popitem(last=False)
            if len(self._oldest) > 2 * len(self._waiting):  # most of them were taken
                self._oldest = [one for one in self._oldest if self._waiting.get(one[2]) == one[1]]
                heapq.heapify(self._oldest)
        self._working.add(key)
        self.metrics.taken(key)
        return key

    def _ring(self) -> None:
        while self._getters:
            waiter = self._getters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _later(self, key: str, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._timers.pop(key, None)
        self.add(key)

    def _draw(self) -> float:
        """Take one from the bucket; how long to wait for it."""
        now = self._clock.monotonic()
        self._tokens = min(float(self._burst), self._tokens + (now - self._filled) * self._per_second) - 1
        self._filled = now
        return max(0.0, -self._tokens / self._per_second)


def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)
