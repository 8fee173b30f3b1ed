"""What the server refuses before a request reaches the application, or in place of it: counted by reason for /metrics, and
logged at most once a minute for each reason, so that an attack does not fill the log."""

from __future__ import annotations

import logging
import math
from collections import Counter

from outfitter.store.clock import Clock

log = logging.getLogger(__name__)
LOG_EVERY = 60.0  # seconds


class Refusals:
    def __init__(self, clock: Clock) -> None:
        self.counts: Counter[tuple[str]] = Counter()  # by reason, as a metric's labels
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}  # when a reason was logged last, and its count then

    def add(self, reason: str, message: str = "") -> None:
        """Count one; without a message it is not logged."""
        self.counts[reason,] += 1
        when, count = self._logged.get(reason, (-math.inf, 0))
        now = self._clock.monotonic()
        if message and now - when >= LOG_EVERY:
            number = self.counts[reason,]
            self._logged[reason] = now, number
            log.warning("refused: %s (reason %s, %d since the last such line)", message, reason, number - count)
