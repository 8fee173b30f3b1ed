"""The API server as an agent of a case reaches it: it can refuse writes, be away, and be written to by others just before an
agent's write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from outfitter.api import kinds
from outfitter.errors import Unavailable
from outfitter.store.base import Event
from outfitter.store.memory import Memory

READS, WRITES = ("get", "list"), ("create", "create_unsynced", "replace", "patch", "delete", "commit")
POD = kinds.POD


class AgentStore:
    """`outfitter.store.base.Store`."""

    def __init__(self, store: Memory) -> None:
        self._store = store
        self.atomic = False  # as a server behind HTTP
        self.mode = ""  # "", "read_only" or "away"
        self.before_write: Callable[[str], Awaitable[None]] | None = None  # called with the name of a pod
        self._away = asyncio.Event()
        self.broken: set[Any] = set()  # kinds whose watch was ended, until it is open again: that waits for the clock

    def set_mode(self, mode: str) -> None:
        self.mode = mode
        if mode == "away":
            self._away.set()
            self._away = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        if name not in (*READS, *WRITES):
            return getattr(self._store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.mode == "away" or (self.mode == "read_only" and name in WRITES):
                raise Unavailable(f"the API server is {self.mode}")
            if name == "patch" and args[0] == POD:
                pod = f"{args[3] if len(args) > 3 else kwargs.get('namespace', '')}/{args[1]}"
                await self._written(pod)
            return await getattr(self._store, name)(*args, **kwargs)

        return call

    async def _written(self, name: str) -> None:
        if self.before_write is not None:
            await self.before_write(name)

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncIterator[Event]:
        if self.mode == "away":
            self.broken.add(args[0])
            raise Unavailable("the API server is away")
        self.broken.discard(args[0])
        away, events = asyncio.ensure_future(self._away.wait()), self._store.watch(*args, **kwargs)
        try:
            while True:
                following = asyncio.ensure_future(anext(events))
                try:
                    await asyncio.wait({away, following}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not following.done():
                        following.cancel()
                if not following.done() or following.cancelled():
                    self.broken.add(args[0])
                    raise Unavailable("the API server is away")
                try:
                    event = following.result()
                except StopAsyncIteration:
                    return
                yield event
        finally:
            away.cancel()

    async def close(self) -> None:
        """The product closes its store."""
