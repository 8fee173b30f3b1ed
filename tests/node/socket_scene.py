"""Scenarios of hosts with device plugins or DRA drivers, which are called over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.controllers.scenario import PATIENCE, Scene

T = TypeVar("T")
LOOKS = 5  # at a scene for each half second of its clock


@dataclass
class SocketScene(Scene):
    """Whose sockets are read in real time, while the product's clock is advanced so slowly that no answer is too late by it."""

    async def reach(self, check: Callable[[], Awaitable[T | None]], what: str) -> T:
        assert self.clock is not None
        until = asyncio.get_running_loop().time() + PATIENCE
        while asyncio.get_running_loop().time() < until:
            for _ in range(LOOKS):
                await self.settle()
                if found := await check():
                    return found
                await asyncio.sleep(0.01)
            self.clock.advance(0.5)
        raise AssertionError(f"not reached: {what}\n{await self.picture()}")
