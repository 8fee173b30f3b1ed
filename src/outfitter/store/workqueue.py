"""A rate limited work queue of keys, as in client-go. A waiting key is queued once. A key that is being processed is not taken
again until it is done; if it was added meanwhile, it is queued once more then. Failed keys are retried with exponential
backoff.

Keys are taken in the order in which they were added. With `age`, keys of the oldest objects are taken first: in a burst of VMs
the first one passes all its stages before the last one is begun. One of every TURNS keys is the one that has waited longest, so
that an old object that is added again and again does not starve the others. Called by the controllers' manager."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any

from outfitter.store.clock import Clock
from outfitter.store.queue_metrics import QueueMetrics

Age = Callable[[str], int]  # of the object of a key: the smaller, the older
TURNS = 4  # one of so many keys is the one that has waited longest, whatever its age


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
        self._oldest: list[tuple[int, int, str]] = []  # heap of age, number and key; may contain keys that were taken
        self._turn = 0
        self._processing: set[str] = set()
        self._added_meanwhile: set[str] = set()
        self._failures: dict[str, int] = {}
        self._timers: dict[str, tuple[float, asyncio.Task[None]]] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self.added = self.retried = 0
        self.metrics = QueueMetrics(clock)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no key waits and none is processed; delayed keys do not count."""
        return not self._waiting and not self._processing

    def add(self, key: str) -> None:
        if key in self._waiting or key in self._added_meanwhile:
            return
        self.added += 1
        self.metrics.added(key)
        if key in self._processing:
            self._added_meanwhile.add(key)
            return
        self._put(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Add the key after a delay; an earlier deadline of the same key is kept."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock.monotonic() + seconds
        if key in self._timers:
            if self._timers[key][0] <= due:
                return
            self._timers[key][1].cancel()
        self._timers[key] = (due, _start(self._add_later(key, seconds)))

    def retry(self, key: str) -> float:
        """Add a failed key again with exponential backoff, limited by the token bucket. Returns the delay in seconds."""
        self.retried += 1
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        wait = max(min(self._most, self._base * float(2 ** min(failures, 30))), self._take_token())
        self.add_after(key, wait)
        return wait

    def forget(self, key: str) -> None:
        """Reset the backoff of a key after success."""
        self._failures.pop(key, None)

    async def take(self) -> str:
        while not self._waiting:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()
                raise
        return self._next()

    def take_more(self, most: int) -> list[str]:
        """Up to `most` further waiting keys, for a worker that processes a batch. `done` must be called for each."""
        return [self._next() for _ in range(min(most, len(self._waiting)))]

    def done(self, key: str) -> None:
        self._processing.discard(key)
        self.metrics.done(key)
        if key in self._added_meanwhile:
            self._added_meanwhile.discard(key)
            self._put(key)

    def close(self) -> None:
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _put(self, key: str) -> None:
        self._waiting[key] = number = next(self._numbers)
        if self._age is not None:
            heapq.heappush(self._oldest, (self._age(key), number, key))
        self._wake_one()

    def _next(self) -> str:
        """The next key; there must be one."""
        self._turn = (self._turn + 1) % TURNS
        while self._turn and self._oldest:
            _, number, key = heapq.heappop(self._oldest)
            if self._waiting.get(key) == number:
                del self._waiting[key]
                break
        else:
            key, _ = self._waiting.popitem(last=False)
            if len(self._oldest) > 2 * len(self._waiting):  # most entries are of keys that were taken
                self._oldest = [entry for entry in self._oldest if self._waiting.get(entry[2]) == entry[1]]
                heapq.heapify(self._oldest)
        self._processing.add(key)
        self.metrics.taken(key)
        return key

    def _wake_one(self) -> None:
        while self._getters:
            waiter = self._getters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _add_later(self, key: str, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._timers.pop(key, None)
        self.add(key)

    def _take_token(self) -> float:
        """Take one token from the bucket; returns the seconds to wait for it."""
        now = self._clock.monotonic()
        self._tokens = min(float(self._burst), self._tokens + (now - self._filled) * self._per_second) - 1
        self._filled = now
        return max(0.0, -self._tokens / self._per_second)


def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)
