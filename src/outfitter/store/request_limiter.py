"""How much a process asks of its API server: all controllers and informers of a process share one limiter.

A server that answers 429 or 503 is left alone for as long as it asks, by every caller and not only by the one that was refused;
afterwards fewer requests run at once, and each that succeeds allows a little more (additive increase, multiplicative decrease).
Delays are capped, so that no answer stops a process for long, and jittered, so that thousands of agents that were refused
together do not come back together. Watches wait as the others do before they begin; open ones are not counted.

Used by `rest_client`. Leader election has a client, and so a limiter, of its own: a Lease must be renewed while other requests
wait."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable

from outfitter.store.clock import Clock

MAX_CALLS = 64  # concurrent requests; watches are not counted
LONGEST_WAIT = 30.0  # seconds; no refusal holds requests back for longer, whatever it asks for
JITTER = 0.25  # a delay is longer than was asked for by up to this part of it
FIRST_DELAY = 0.1  # seconds after a refusal that does not name a delay; four times as long after each further one in a row


class RequestLimiter:
    """`jitter` is a number from 0 to 1."""

    def __init__(self, clock: Clock, *, most: int = MAX_CALLS, jitter: Callable[[], float] = random.random) -> None:
        self._clock, self._most, self._jitter = clock, most, jitter
        self._limit = float(most)
        self._open = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._until = 0.0  # monotonic: nothing is sent before
        self._refusals = 0  # in a row
        self.requests: Counter[tuple[str, str]] = Counter()  # (status code, method) -> answers; "<error>": no answer
        self.held_back = 0.0  # seconds that requests waited because the server had refused others, in total

    @property
    def limit(self) -> int:
        """How many requests may run at once."""
        return max(1, int(self._limit))

    @property
    def delay(self) -> float:
        """Seconds for which nothing is sent."""
        return max(0.0, self._until - self._clock.monotonic())

    async def begin(self, *, counted: bool = True) -> None:
        """Wait until a request may be sent. `counted`: it is one of those that run at once, until `end`."""
        if counted:
            if self._open >= self.limit:
                await self._wait_for_slot()
            self._open += 1
        if self._until:
            try:
                await self._hold_back()
            except BaseException:
                self.end(counted=counted)
                raise

    def end(self, *, counted: bool = True) -> None:
        if counted:
            self._open -= 1
            if self._waiting:
                self._wake()

    def answered(self, method: str, code: int) -> None:
        """The server did what was asked, or refused it for a reason of its own (a conflict)."""
        self.requests[str(code), method] += 1
        self._refusals = 0
        if self._limit < self._most:
            self._limit = min(float(self._most), self._limit + 1 / self._limit)
            self._wake()

    def failed(self, method: str) -> None:
        """No answer."""
        self.requests["<error>", method] += 1

    def refused(self, method: str, code: int, retry_after: float) -> None:
        """The server is too busy, and asks to be left alone for this many seconds (0: it does not say)."""
        self.requests[str(code), method] += 1
        now = self._clock.monotonic()
        if now >= self._until:  # of requests that were sent together, only the first refusal counts
            self._refusals += 1
            self._limit = max(1.0, self._limit / 2)
        least = FIRST_DELAY * 4 ** min(self._refusals - 1, 6) if self._refusals else 0.0
        wait = min(LONGEST_WAIT, max(retry_after, least))
        self._until = max(self._until, now + wait * (1 + JITTER * self._jitter()))

    async def _hold_back(self) -> None:
        while (wait := self.delay) > 0:
            self.held_back += wait
            await self._clock.sleep(wait)

    async def _wait_for_slot(self) -> None:
        while self._open >= self.limit:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()
                raise

    def _wake(self) -> None:
        free = self.limit - self._open
        while self._waiting and free > 0:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1
