"""A client that calls the API server's application without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from outfitter.api.kinds import Object
from outfitter.apiserver.server import ServedApp

PATIENCE = 60.0  # seconds until a test that hears nothing fails instead of hanging
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
A = f"{CONFIG_MAPS}/a"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
INSTANCES = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


@dataclass
class Client:
    app: ServedApp
    token: str = "admin"
    extensions: Object = field(default_factory=dict)

    def scope(self, method: str, path: str, headers: dict[str, str], query: dict[str, str]) -> Object:
        raw, _, text = path.partition("?")
        text = "&".join(filter(None, [text, urlencode(query)]))
        if self.token:
            headers = {"authorization": f"Bearer {self.token}", **headers}
        return {
            "type": "http", "method": method, "path": raw, "raw_path": quote(raw, safe="/%").encode(),
            "query_string": text.encode(), "extensions": self.extensions,
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        }

    async def call(
        self, method: str, path: str, body: Any = None, *, type: str = "application/json", accept: str = "",
        headers: dict[str, str] | None = None, query: Mapping[str, str] | None = None, **words: str,
    ) -> Reply:
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        heads = {**({"content-type": type} if sent else {}), **({"accept": accept} if accept else {}), **(headers or {})}
        messages: list[Object] = []
        gone = asyncio.Event()
        parts = [{"type": "http.request", "body": sent, "more_body": False}]

        async def receive() -> Object:
            if parts:
                return parts.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Object) -> None:
            messages.append(message)

        async with asyncio.timeout(PATIENCE):
            await self.app(self.scope(method, path, heads, {**(query or {}), **words}), receive, send)
        gone.set()
        start, *rest = messages
        assert start["type"] == "http.response.start"
        assert rest[-1]["more_body"] is False, "the answer was not completed"
        data = b"".join(message["body"] for message in rest)
        return Reply(start["status"], [(key.decode(), value.decode()) for key, value in start["headers"]], data)

    async def get(self, path: str, **rest: Any) -> Reply:
        return await self.call("GET", path, **rest)

    async def post(self, path: str, body: Any, **rest: Any) -> Reply:
        return await self.call("POST", path, body, **rest)

    async def put(self, path: str, body: Any, **rest: Any) -> Reply:
        return await self.call("PUT", path, body, **rest)

    async def delete(self, path: str, body: Any = None, **rest: Any) -> Reply:
        return await self.call("DELETE", path, body, **rest)

    async def patch(self, path: str, body: Any, type: str = MERGE, **rest: Any) -> Reply:
        return await self.call("PATCH", path, body, type=type, **rest)

    def watch(self, path: str, *, accept: str = "", **query: str) -> Stream:
        return Stream(self, path, accept, {"watch": "1", **query})


class Stream:
    """An open watch. `stall()` makes the client stop reading, as a slow one would."""

    def __init__(self, client: Client, path: str, accept: str, query: dict[str, str]) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.status = 0
        self.sizes: list[int] = []  # events in each piece
        self._lines: list[bytes] = []
        self._gone = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        headers = {"accept": accept} if accept else {}
        scope = client.scope("GET", path, headers, query)
        self._task = asyncio.create_task(self._run(client.app, scope))

    async def _run(self, app: ServedApp, scope: Object) -> None:
        begun = False

        async def receive() -> Object:
            nonlocal begun
            if not begun:
                begun = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Object) -> None:
            await self._reading.wait()
            if message["type"] == "http.response.start":
                self.status = message["status"]
            else:
                self.sizes.append(message["body"].count(b"\n"))
                self.pieces.put_nowait(message["body"])

        try:
            await app(scope, receive, send)
        finally:
            self.pieces.put_nowait(None)

    def stall(self) -> None:
        self._reading.clear()

    def resume(self) -> None:
        self._reading.set()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gone.set()
        self._reading.set()
        async with asyncio.timeout(PATIENCE):
            await self._task

    async def next(self) -> Object:
        """The next event."""
        async with asyncio.timeout(PATIENCE):
            while not self._lines:
                piece = await self.pieces.get()
                assert piece is not None, "the watch ended"
                self._lines = piece.splitlines()
        event: Object = json.loads(self._lines.pop(0))
        return event

    async def rest(self) -> list[Object]:
        """All events until the watch ends."""
        return [event async for event in self._rest()]

    async def _rest(self) -> AsyncIterator[Object]:
        async with asyncio.timeout(PATIENCE):
            while True:
                for line in self._lines:
                    yield json.loads(line)
                self._lines = []
                piece = await self.pieces.get()
                if piece is None:
                    return
                self._lines = piece.splitlines()


def brief(event: Object) -> tuple[str, str]:
    """What happened to which: ("ADDED", "a")."""
    return event["type"], event["object"].get("metadata", {}).get("name", "")


def config_map(name: str, **meta: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}, "data": {"k": "v"}}


def claim(name: str) -> Object:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}}


def instance(name: str) -> Object:
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name},
            "spec": {"domain": {"devices": {}}}}
