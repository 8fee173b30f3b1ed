"""Durations of a work queue: how long keys wait and how long they are processed. Served as Prometheus metrics by
`outfitter.metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from outfitter.store.clock import Clock

# Seconds, from 10 ns to 10 s: the buckets of client-go's work queue metrics.
BOUNDS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)


class Durations:
    """A histogram of durations in seconds."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0  # sum of all durations in seconds

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        return sum(self._counts)

    def up_to(self) -> Iterator[tuple[float, int]]:
        """Cumulative counts: for each bound, and then for infinity, how many durations were not longer."""
        cumulative = 0
        for bound, count in zip((*BOUNDS, float("inf")), self._counts, strict=True):
            cumulative += count
            yield bound, cumulative


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
        """The age in seconds of each key that is being processed."""
        now = self._clock.monotonic()
        return [now - since for since in self._taken.values()]
