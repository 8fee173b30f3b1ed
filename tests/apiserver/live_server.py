"""A server on a real port with a manual clock and limits of a test's own, and raw connections to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.apiserver.listener import TICK, Listener
from outfitter.apiserver.server import Server
from outfitter.inventory.server_limits import ServerLimits
from outfitter.store import pki
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.apiserver.asgi import PATIENCE
from tests.apiserver.running import certify, tls

AUTHORIZED = "Host: x\r\nAuthorization: Bearer admin\r\n"


@dataclass
class Answer:
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """One connection, on which bytes are sent as a test has them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: str | bytes) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        data = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                while part := await self.reader.read(1 << 16):
                    data += part
        return data

    async def answer(self) -> Answer:
        """The next response, which has a Content-Length."""
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].split("\r\n")[0])
            return Answer(int(head.split()[1]), await self.reader.readexactly(length))

    async def refusal(self) -> Answer:
        """A response after which the server closes."""
        answer = await self.answer()
        assert await self.rest() == b""
        return answer


@dataclass
class LiveServer:
    server: Server
    app: App
    store: Memory
    clock: ManualClock
    ca: pki.Pair
    folder: Path
    clients: list[RawClient] = field(default_factory=list)

    @property
    def listener(self) -> Listener:
        assert self.server.listener is not None
        return self.server.listener

    def refused(self, reason: str) -> int:
        return self.listener.refusals.counts[reason,]

    async def connect(
        self, *, address: str = "127.0.0.1", sock: socket.socket | None = None, limit: int = 1 << 16
    ) -> RawClient:
        """A connection from an address, or on a socket that is connected, which reads ahead no more than `limit` bytes."""
        if sock is None:
            sock = socket.create_connection(("127.0.0.1", self.server.port), PATIENCE, (address, 0))
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=sock, ssl=tls(self.ca, self.folder), server_hostname="127.0.0.1",
                                                       limit=limit)
        return self._kept(RawClient(reader, writer))

    async def connect_plain(self) -> RawClient:
        """Without a TLS handshake."""
        return self._kept(RawClient(*await asyncio.open_connection("127.0.0.1", self.server.port)))

    def _kept(self, client: RawClient) -> RawClient:
        self.clients.append(client)
        return client

    async def advance(self, seconds: float) -> None:
        """Advance the clock, and wait until deadlines were checked."""
        checked = self.listener.state.default_headers
        self.clock.advance(max(seconds, TICK))
        await until(lambda: self.listener.state.default_headers is not checked)

    async def received(self) -> None:
        """Until the server has read all that was sent so far: it answers a later request on another connection."""
        client = await self.connect()
        client.send("GET /healthz HTTP/1.1\r\n\r\n")
        await client.answer()
        client.writer.close()

    async def open(self, number: int) -> None:
        """Until so many connections are open."""
        await until(lambda: self.listener.open == number)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # the server does not tell
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def live_server(folder: Path, limits: ServerLimits) -> AsyncIterator[LiveServer]:
    clock = ManualClock()
    store = Memory()
    ca, files = certify(folder)
    app = App(store, tokens={"admin": User("admin", (MASTERS,))})
    server = Server(app, **files, limits=limits, clock=clock)
    await server.start()
    live = LiveServer(server, app, store, clock, ca, folder)
    try:
        yield live
    finally:
        for client in live.clients:
            client.writer.transport.abort()
        await server.stop()
        await store.close()
