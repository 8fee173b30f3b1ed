"""A backend under test, and ways to wait without sleeping."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.store.base import Event, Listing, Store
from outfitter.store.clock import ManualClock

T = TypeVar("T")
FINALIZER = "outfitter.dev/test"
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
PATIENCE = 60.0  # seconds until a test that hears nothing fails instead of hanging


@dataclass
class Backend:
    """A store to test, and where in it the test may write."""

    store: Store
    clock: ManualClock | None  # None: the backend keeps its own time
    namespace: str
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def unique(self, prefix: str) -> str:
        """A unique name, for kinds without a namespace."""
        return f"{prefix}-{self.namespace}-{next(self._numbers)}"

    def config(self, name: str, data: dict[str, str] | None = None, **meta: object) -> Object:
        return {"metadata": {"name": name, "namespace": self.namespace, **meta}, "data": data or {}}

    def pod(self, name: str, *, node: str = "", **meta: object) -> Object:
        spec: Object = {"containers": [{"name": "main", "image": "example.org/app:1"}]}
        if node:
            spec["nodeName"] = node
        return {"metadata": {"name": name, "namespace": self.namespace, **meta}, "spec": spec}

    def claim(self, name: str, **meta: object) -> Object:
        requests = [{"name": "nic", "exactly": {"deviceClassName": "nics", "allocationMode": "ExactCount", "count": 1}}]
        return {"metadata": {"name": name, "namespace": self.namespace, **meta}, "spec": {"devices": {"requests": requests}}}

    async def events(
        self, count: int, kind: kinds.Kind, *, since: str, labels: str = "", fields: str = "", bookmarks: bool = False,
        everywhere: bool = False,
    ) -> list[Event]:
        """The next changes after a revision; fails when they do not come."""
        found: list[Event] = []
        namespace = "" if everywhere or not kind.namespaced else self.namespace
        stream = self.store.watch(kind, namespace, since=since, labels=labels, fields=fields, bookmarks=bookmarks)
        async with asyncio.timeout(PATIENCE), closing(stream):
            async for event in stream:
                found.append(event)
                if len(found) == count:
                    break
        return found


@contextlib.asynccontextmanager
async def closing(stream: AsyncIterator[Event]) -> AsyncIterator[None]:
    """A watch is an async generator, which ends when it is closed; the Protocol promises only the iterator."""
    try:
        yield
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


async def soon(what: Awaitable[T]) -> T:
    """What it gives; fails when it does not come."""
    async with asyncio.timeout(PATIENCE):
        return await what


async def settle(rounds: int = 30) -> None:
    """Let every task that can go on do so."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def config(name: str, value: str = "", namespace: str = "default", **meta: object) -> Object:
    """A ConfigMap with one value."""
    return {"metadata": {"name": name, "namespace": namespace, **meta}, "data": {"v": value}}


def revision(obj: Object) -> str:
    return str(obj["metadata"]["resourceVersion"])


def names(listing: Listing) -> list[str]:
    return [item["metadata"]["name"] for item in listing.items]


async def absent(store: Store, kind: Kind, name: str, namespace: str = "") -> bool:
    try:
        await store.get(kind, name, namespace)
    except errors.NotFound:
        return True
    return False
