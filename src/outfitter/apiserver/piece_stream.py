"""An answer that is sent in pieces as they come, until its source ends, the client is gone or the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable


class PieceStream:
    def __init__(self, first: bytes, pieces: AsyncGenerator[bytes, None]) -> None:
        """`first`: taken from the source before the answer begins, so that its errors are answers."""
        self._first, self._pieces = first, pieces
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def run(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        if self._stopped:
            return
        self._task = asyncio.create_task(self._forward(send))
        try:
            await asyncio.wait({self._task})
        finally:
            self._task.cancel()
            await self._pieces.aclose()
        if not self._task.cancelled():
            self._task.result()

    async def _forward(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        await send(self._first)
        async for piece in self._pieces:
            await send(piece)
