"""How fast the stream of a plugin is read: one that sends without end must not keep the agent busy. Its next message waits in
the connection, and the plugin with it. Used for lists of device plugins and for health reports of DRA drivers."""

from __future__ import annotations

from outfitter.store.clock import Clock

UPDATES, UPDATES_PER_SECOND = 50, 10.0  # messages that are read at once, and then per second
DEVICES_PER_UPDATE = 2000  # a message of more devices counts as several


class UpdateRate:
    """Of one stream: a bucket of tokens."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._tokens, self._at = clock, float(UPDATES), clock.monotonic()

    async def wait(self, devices: int) -> None:
        """After a message with so many devices was read, until the next one may be."""
        now = self._clock.monotonic()
        self._tokens = min(float(UPDATES), self._tokens + (now - self._at) * UPDATES_PER_SECOND)
        self._tokens, self._at = self._tokens - 1 - devices // DEVICES_PER_UPDATE, now
        if self._tokens < 0:
            await self._clock.sleep(-self._tokens / UPDATES_PER_SECOND)
