"""How long keys wait in a queue and are worked on: what the queue measures of itself for whoever serves it as metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from outfitter.store.clock import Clock

# Seconds, from 10 ns to 10 s: the bounds that Kubernetes' own queues have.
BOUNDS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)


class Durations:
    """How many took how long at most."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0  # seconds, of all of them

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def up_to(self) -> Iterator[tuple[float, int]]:
        """For each bound, and then without one, how many took no longer."""
        so_far = 0
        for bound, count in zip((*BOUNDS, float("inf")), self._counts, strict=True):
            so_far += count
            yield bound, so_far


class QueueMetrics:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._added: dict[str, float] = {}
        self._taken: dict[str, float] = {}
        self.waits, self.works = Durations(), Durations()

    def added(self, key: str) -> None:
        self._added[key] = self._clock.monotonic()

    def taken(self, key: str) -> None:
        self._taken[key] = now = self._clock.monotonic()
        self.waits.add(now - self._added.pop(key, now))

    def done(self, key: str) -> None:
        if (since := self._taken.pop(key, None)) is not None:
            self.works.add(self._clock.monotonic() - since)

    def in_work(self) -> list[float]:
        """For how long each key that is being worked on has been so, in seconds."""
        now = self._clock.monotonic()
        return [now - since for since in self._taken.values()]
