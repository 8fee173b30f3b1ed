"""A small server that does what a real one does not do on demand: it breaks off, refuses and stutters."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from outfitter.api import kinds
from outfitter.store import base, kubeconfig, pki
from outfitter.store.clock import ManualClock
from outfitter.store.rest_config import RestConfig

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
POD = {"metadata": {"name": "a", "namespace": "n"}, "spec": {"futureField": {"deep": [1]}}}
BIG = {"metadata": {"name": "big"}, "data": "x" * 3_000_000}


class Impatient(ManualClock):
    """Sleeps no real time, and remembers how long it was asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)


class SimulatedServer:
    """A server that gives the queued answers, one after another (the last one repeatedly)."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.seen: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.seen.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        runner = web.AppRunner(web.Application(client_max_size=1 << 30), handle_signals=False, shutdown_timeout=0.1)
        runner.app.router.add_route("*", "/{path:.*}", self.handle)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()


def answers_with(status: int, body: Any, **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        text = body if isinstance(body, str) else json.dumps(body)
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return web.Response(status=status, text=text, headers=named)

    return answer


def status(code: int, reason: str, message: str = "the server's words", **details: Any) -> Answer:
    return answers_with(code, {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message,
                       "details": details})


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def streams(*parts: bytes, cut: bool = False) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(0)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


def event(kind: str, obj: Any) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def access_to(server: str, tmp_path: Path, user: dict[str, Any] | None = None) -> RestConfig:
    content = pki.kubeconfig(server)
    content["users"][0]["user"] = user or {}
    (tmp_path / "config").write_text(json.dumps(content))
    return kubeconfig.load(tmp_path / "config", clock=ManualClock(), env={})


async def until(ready: Callable[[], bool]) -> None:
    """Wait for what a server or an informer does; by real time, whatever clock they have."""
    async with asyncio.timeout(300):
        while not ready():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def changes(store: base.Store, **kwargs: Any) -> list[base.Event]:
    return [change async for change in store.watch(kinds.POD, "n", since="1", **kwargs)]
