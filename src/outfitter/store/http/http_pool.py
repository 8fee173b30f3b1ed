"""Connections to one HTTP/1.1 server: opens them, by TLS and through a proxy where that is asked for, and keeps those that are
idle for the next request.

Repeats nothing: a request is sent once, on a connection that was open when it was taken. Every failure is an OSError. Called by
`rest_client`."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from outfitter.store.http.client_connection import ClientConnection, HttpAnswer

CONNECT_TIMEOUT = 10.0  # seconds, with TLS
KEPT_IDLE = 15.0  # seconds for which a connection without a request stays open
NEXT_ADDRESS = 0.25  # seconds after which the next address of a host is tried beside the first (RFC 8305)
KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))  # a dead peer ends a silent watch in 60 s
PORTS = {"http": 80, "https": 443}
PROXY_ANSWER = 1 << 16  # bytes
AddressInfo = tuple[int, int, int, str, tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server or a proxy listens."""

    scheme: str
    host: str
    port: int
    path: str = ""  # of a server: before the path of every request
    authorization: str = ""  # of a proxy: the value of Proxy-Authorization

    @classmethod
    def of(cls, url: str) -> Endpoint:
        parts = urlsplit(url)
        authorization = ""
        if parts.username is not None or parts.password is not None:
            pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
            authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return cls(parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme], parts.path.rstrip("/"), authorization)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


class HttpPool:
    """`server_name`: the name in the server's certificate, when it is not the host of `server`."""

    def __init__(self, server: str, *, proxy: str = "", server_name: str = "") -> None:
        self.server = Endpoint.of(server)
        self._proxy = Endpoint.of(proxy) if proxy else None
        self._server_name = server_name or self.server.host
        self._idle: list[tuple[float, ClientConnection]] = []  # since when; the one that was used last at the end
        self._contexts: dict[ClientConnection, ssl.SSLContext | None] = {}  # of all that are open
        self._timer: asyncio.TimerHandle | None = None
        self._forwarded = self._proxy is not None and self.server.scheme == "http"

    def target(self, path: str) -> str:
        """What the first line of a request names: with a proxy that forwards requests the whole address."""
        start = f"http://{self.server.authority}" if self._forwarded else ""
        return f"{start}{self.server.path}{path}"

    def fixed_headers(self) -> list[tuple[str, str]]:
        """Headers that every request needs to get there."""
        own = self._proxy.authorization if self._forwarded and self._proxy is not None else ""
        return [("Host", self.server.authority), *([("Proxy-Authorization", own)] if own else [])]

    async def send(
        self, head: bytes, body: bytes, context: ssl.SSLContext | None, *, stream: bool, silence: float | None
    ) -> HttpAnswer:
        """One request, on a connection with this TLS context (None: without TLS)."""
        connection = self._take(context) or await self._open(context)
        return await connection.send(head, body, stream=stream, silence=silence)

    async def close(self) -> None:
        for connection in list(self._contexts):
            connection.abort()
        self._contexts.clear()
        self._idle.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await asyncio.sleep(0)  # the event loop closes the connections in its next iteration

    # -- idle connections

    @property
    def idle(self) -> int:
        """How many connections wait for a request."""
        return sum(connection.is_reusable for _, connection in self._idle)

    def _take(self, context: ssl.SSLContext | None) -> ClientConnection | None:
        while self._idle:
            _, connection = self._idle.pop()
            if connection.is_reusable and self._contexts.get(connection) is context:
                return connection
            connection.abort()  # also those of a certificate that was replaced
        return None

    def _released(self, connection: ClientConnection) -> None:
        if connection not in self._contexts:  # the pool was closed
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time(), connection))
        if self._timer is None:
            self._timer = loop.call_later(KEPT_IDLE, self._close_idle)

    def _close_idle(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        latest = loop.time() - KEPT_IDLE
        for since, connection in self._idle:
            if since <= latest:
                connection.abort()
        self._idle = [entry for entry in self._idle if entry[0] > latest]
        if self._idle:
            self._timer = loop.call_later(self._idle[0][0] - latest, self._close_idle)

    # -- opening

    async def _open(self, context: ssl.SSLContext | None) -> ClientConnection:
        connection = ClientConnection(self._released, self._lost)
        self._contexts[connection] = context
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                if self._proxy is None:
                    await self._connect(connection, self.server, context, self._server_name)
                elif self._forwarded:
                    await self._connect(connection, self._proxy, _proxy_context(self._proxy, None), self._proxy.host)
                else:
                    await self._tunnel(connection, self._proxy, context)
        except TimeoutError as error:
            connection.abort()
            raise TimeoutError(f"no connection within {CONNECT_TIMEOUT:g} s") from error
        except BaseException:
            connection.abort()
            raise
        return connection

    def _lost(self, connection: ClientConnection) -> None:
        self._contexts.pop(connection, None)

    async def _connect(
        self, protocol: asyncio.BaseProtocol, to: Endpoint, context: ssl.SSLContext | None, name: str
    ) -> asyncio.Transport:
        connected = await _connected_socket(to)
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: protocol, sock=connected, ssl=context, server_hostname=name if context is not None else None)
        except Exception:  # when it is cancelled, asyncio still uses the socket: ClientConnection ends it
            connected.close()
            raise
        return transport

    async def _tunnel(self, connection: ClientConnection, proxy: Endpoint, context: ssl.SSLContext | None) -> None:
        """TLS to the server through a proxy."""
        loop, tunnel = asyncio.get_running_loop(), _TunnelProtocol()
        transport = await self._connect(tunnel, proxy, _proxy_context(proxy, context), proxy.host)
        try:
            host = self.server.authority if self.server.port != PORTS["https"] else f"{self.server.authority}:{PORTS['https']}"
            own = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
            transport.write(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n{own}\r\n".encode())
            await tunnel.established
            assert context is not None
            secure = await loop.start_tls(transport, connection, context, server_hostname=self._server_name)
        except BaseException:
            transport.abort()
            raise
        if secure is None:
            raise ConnectionResetError("the proxy closed the connection")
        connection.connection_made(secure)


class _TunnelProtocol(asyncio.Protocol):
    """Waits for a proxy's answer to CONNECT."""

    def __init__(self) -> None:
        self.established: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seen = b""

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if self.established.done() or (b"\r\n\r\n" not in self._seen and len(self._seen) < PROXY_ANSWER):
            return
        first = self._seen.partition(b"\r\n")[0].decode("latin-1")
        if first.split(" ")[1:2] == ["200"]:
            self.established.set_result(None)
        else:
            self.established.set_exception(ConnectionRefusedError(f"the proxy answered: {first[:200]}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.established.done():
            self.established.set_exception(ConnectionResetError(f"the proxy closed the connection{f': {exc}' if exc else ''}"))


def _proxy_context(proxy: Endpoint, of_server: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """The CAs that are trusted for the server are for its proxy too, as in client-go."""
    return None if proxy.scheme == "http" else of_server or ssl.create_default_context()


async def addresses(to: Endpoint) -> Sequence[AddressInfo]:
    return await asyncio.get_running_loop().getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)


async def _connected_socket(to: Endpoint) -> socket.socket:
    """Of several addresses the first that answers; one that is silent does not hold the next one up for long."""
    loop, found = asyncio.get_running_loop(), await addresses(to)
    if len(found) == 1:
        return await _connected(found[0])
    attempts: list[asyncio.Task[socket.socket]] = []
    failed: BaseException | None = None
    try:
        for number, info in enumerate(found, 1):
            attempts.append(loop.create_task(_connected(info)))
            last = number == len(found)
            waiting = {attempt for attempt in attempts if not attempt.done()}
            while waiting:
                done, waiting = await asyncio.wait(
                    waiting, timeout=None if last else NEXT_ADDRESS, return_when=asyncio.FIRST_COMPLETED)
                for attempt in done:
                    if (failed := attempt.exception()) is None:
                        attempts.remove(attempt)
                        return attempt.result()
                if not last:
                    break
    finally:
        for attempt in attempts:
            attempt.cancel()
            attempt.add_done_callback(_close_late)
    raise failed or ConnectionRefusedError(f"{to.host} has no address")


async def _connected(info: AddressInfo) -> socket.socket:
    family, type_, number, _, address = info
    new = socket.socket(family, type_, number)
    try:
        new.setblocking(False)
        new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        new.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            if hasattr(socket, name):
                new.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        await asyncio.get_running_loop().sock_connect(new, address)
    except BaseException:
        new.close()
        raise
    return new


def _close_late(attempt: asyncio.Task[socket.socket]) -> None:
    """One that connected while it was cancelled."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
