"""An informer whose server streams lists (Kubernetes' WatchList) has what one has that reads pages, and falls back to pages."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.store import kube
from outfitter.store.informer import Informer
from tests.store.backends import settle, soon
from tests.store.kube.simulated_server import Impatient, SimulatedServer, status, until

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def item(name: str, revision: int) -> Object:
    return {"metadata": {"name": name, "namespace": "n", "uid": f"u-{name}", "creationTimestamp": "2026-01-01T00:00:00Z",
                         "resourceVersion": str(revision)}}


def bookmark(revision: int, *, end: bool = False) -> Object:
    annotations = {"annotations": {"k8s.io/initial-events-end": "true"}} if end else {}
    return {"metadata": {"resourceVersion": str(revision), **annotations}}


class StreamingServer:
    """Answers lists, watches and streamed lists as kube-apiserver does, and keeps a watch open until `close`."""

    def __init__(self) -> None:
        self.initial: list[tuple[str, Object]] = []  # of a streamed list, until its stream ends
        self.listed: list[Object] = []  # by pages
        self.refuses: Answer | None = None
        self.asked: list[str] = []
        self.queries: list[dict[str, str]] = []
        self.cut = False  # the stream ends where `initial` does
        self.closing = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        if not request.query.get("watch"):
            self.asked.append("list")
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": self.listed})
        if not request.query.get("sendInitialEvents"):
            self.asked.append(f"watch {request.query['resourceVersion']}")
            return await self._stream(request, [], end=False)
        self.asked.append("stream")
        if self.refuses is not None:
            return await self.refuses(request)
        return await self._stream(request, self.initial, end=self.cut)

    async def _stream(self, request: web.Request, events: list[tuple[str, Object]], *, end: bool) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for type_, obj in events:
            await response.write(json.dumps({"type": type_, "object": obj}).encode() + b"\n")
        if not end:
            await self.closing.wait()
        return response


@pytest.fixture
async def server(simulated: SimulatedServer) -> AsyncIterator[StreamingServer]:
    streaming = StreamingServer()
    simulated.answers = [streaming]
    yield streaming
    streaming.closing.set()


@contextlib.asynccontextmanager
async def running(store: kube.Kube, clock: Impatient, **selectors: Any) -> AsyncIterator[Informer[Object]]:
    informer = Informer[Object](store, kinds.CONFIG_MAP, clock=clock, **selectors)
    task = asyncio.ensure_future(informer.run())
    try:
        await soon(informer.synced())
        yield informer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(informer: Informer[Object]) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in informer.items())


async def test_one_request_lists_and_watches(backend: kube.Kube, clock: Impatient, server: StreamingServer) -> None:
    server.initial = [
        ("ADDED", item("a", 3)), ("ADDED", item("b", 4)), ("BOOKMARK", bookmark(4)), ("BOOKMARK", bookmark(6, end=True)),
        ("MODIFIED", item("a", 8)), ("DELETED", item("b", 9)), ("ADDED", item("c", 10))]
    async with running(backend, clock, fields="spec.nodeName=n0", labels="app=x") as informer:
        await until(lambda: informer.revision == "10")
        assert names(informer) == ["a", "c"]
        assert server.asked == ["stream"]
    assert server.queries == [{"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan",
                               "allowWatchBookmarks": "true", "fieldSelector": "spec.nodeName=n0", "labelSelector": "app=x"}]


async def test_nothing_is_shown_before_the_end_of_the_list(
    backend: kube.Kube, clock: Impatient, server: StreamingServer
) -> None:
    """Half of a list would look as if the others were deleted."""
    server.initial = [("ADDED", item("a", 3))]
    informer = Informer[Object](backend, kinds.CONFIG_MAP, clock=clock)
    task = asyncio.ensure_future(informer.run())
    await until(lambda: bool(server.asked))
    await settle()
    assert (names(informer), informer.revision) == ([], "")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


REFUSALS = {
    "the gate is off": status(422, "Invalid", "sendInitialEvents: Forbidden: the feature gate is off"),
    "a server that does not know it": status(400, "BadRequest", "unknown parameter"),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_server_that_refuses_is_not_asked_again(
    backend: kube.Kube, clock: Impatient, server: StreamingServer, name: str
) -> None:
    server.refuses, server.listed = REFUSALS[name], [item("a", 3)]
    for _ in range(2):
        async with running(backend, clock) as informer:
            assert (names(informer), informer.revision) == (["a"], "7")
            await until(lambda: server.asked[-1].startswith("watch"))
    assert server.asked == ["stream", "list", "watch 7", "list", "watch 7"]


async def test_a_stream_that_breaks_is_replaced_by_pages(
    backend: kube.Kube, clock: Impatient, server: StreamingServer
) -> None:
    """As behind a proxy that ends long answers: the stream would never come to its end."""
    server.initial, server.cut, server.listed = [("ADDED", item("a", 3))], True, [item("b", 4)]
    async with running(backend, clock) as informer:
        assert names(informer) == ["b"]
        assert server.asked[:2] == ["stream", "list"]
