"""Limits the calls to a reader's socket: 100 per second, above it ResourceExhausted, as the kubelet does. The kubelet's
burst of 10 would reject a monitor that asks for each pod once, so here a whole second may come at once."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

PER_SECOND = 100.0
Call = Callable[[Any, Any], Awaitable[Any]]


class RateLimit:
    """Of all calls to one socket: a bucket of tokens. It protects this process, so it counts real time."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._tokens, self._at = PER_SECOND, monotonic()

    def allow(self) -> bool:
        now = self._monotonic()
        self._tokens, self._at = min(PER_SECOND, self._tokens + (now - self._at) * PER_SECOND), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def checked(self, call: Call) -> Call:
        async def limited(request: Any, context: Any) -> Any:
            if not self.allow():
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            return await call(request, context)

        return limited
