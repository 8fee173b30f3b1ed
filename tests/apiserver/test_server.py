"""The server on a real port: TLS, who is let in, streams, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509

from outfitter.api import kinds
from outfitter.apiserver import server as server_module
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.apiserver.listener import Listener
from outfitter.apiserver.server import Server
from outfitter.errors import StartupRefused
from outfitter.store import pki
from outfitter.store.memory import Memory
from tests.apiserver.asgi import CONFIG_MAPS, PATIENCE, config_map
from tests.apiserver.running import Files, certify, client_of, tls

HEADERS = {"Authorization": "Bearer admin"}


@dataclass
class Live:
    server: Server
    store: Memory
    ca: pki.Pair
    folder: Path
    files: Files

    @property
    def listener(self) -> Listener:
        assert self.server.listener is not None
        return self.server.listener

    def session(self, client: pki.Pair | None = None) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=tls(self.ca, self.folder, client))
        return aiohttp.ClientSession(self.server.url, connector=connector, timeout=aiohttp.ClientTimeout(PATIENCE))


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    ca, files = certify(tmp_path)
    store = Memory()
    tokens = {"admin": User("admin", (MASTERS,)), "bob": User("bob")}
    server = Server(App(store, tokens=tokens), **files)
    await server.start()
    yield Live(server, store, ca, tmp_path, files)
    await server.stop()
    await store.close()


async def test_token_authenticates(live: Live) -> None:
    async with live.session() as session:
        async with session.post(CONFIG_MAPS, json=config_map("a"), headers=HEADERS) as reply:
            assert reply.status == 201
        for token, status in (("bob", 403), ("nobody", 401)):
            async with session.get(CONFIG_MAPS, headers={"Authorization": f"Bearer {token}"}) as reply:
                assert (reply.status, (await reply.json())["code"]) == (status, status)
        async with session.get("/version") as reply:
            assert reply.status == 200


async def test_client_certificate_authenticates(live: Live) -> None:
    async with live.session(client_of(live.ca, "root", MASTERS)) as session, session.get(CONFIG_MAPS) as reply:
        assert reply.status == 200
    async with live.session(client_of(live.ca, "carol", "people")) as session, session.get(CONFIG_MAPS) as reply:
        assert 'User "carol" cannot list' in (await reply.json())["message"]


async def test_certificate_of_another_ca_is_rejected(live: Live, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger, _ = certify(tmp_path / "other")
    async with live.session(client_of(stranger, "root", MASTERS)) as session:
        with pytest.raises(aiohttp.ClientError):
            async with session.get(CONFIG_MAPS):
                pass
    end = x509.load_pem_x509_certificate(live.ca.cert).not_valid_after_utc
    server = pki.server(live.ca, "root", hosts=["x"], valid_from=end - timedelta(days=2), valid_until=end)
    async with live.session(server) as session:
        with pytest.raises(aiohttp.ClientError):
            async with session.get(CONFIG_MAPS):
                pass


async def test_a_watch_streams_and_the_server_stops_in_time(live: Live) -> None:
    async with live.session() as session, session.get(CONFIG_MAPS, params={"watch": "1"}, headers=HEADERS) as stream:
        assert stream.headers["Transfer-Encoding"] == "chunked"
        async with session.post(CONFIG_MAPS, json=config_map("a"), headers=HEADERS) as reply:
            assert reply.status == 201
        event = json.loads(await stream.content.readline())
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")
        async with asyncio.timeout(PATIENCE):
            await live.server.stop()
            assert await stream.content.read() == b""
    async with live.session() as session:
        with pytest.raises(aiohttp.ClientConnectorError):  # whoever may have the port by now is not of our authority
            await session.get("/healthz")


WATCH = f"GET {CONFIG_MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer admin\r\n\r\n"
IDLE = {
    "a connection without a request": "",
    "half of a request": "GET /heal",
    "a connection between requests": "GET /healthz HTTP/1.1\r\n\r\n",
    "a body that does not come": f"POST {CONFIG_MAPS} HTTP/1.1\r\nAuthorization: Bearer admin\r\nContent-Length: 9\r\n\r\n",
    "a watch": WATCH,
}


@pytest.mark.parametrize("sent", IDLE.values(), ids=IDLE.keys())
async def test_idle_clients_do_not_delay_the_stop_nor_fill_the_log(
    live: Live, sent: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "GRACE", 10 * PATIENCE)
    loop = asyncio.get_running_loop()
    hasty = socket.create_connection(("127.0.0.1", live.server.port), PATIENCE)  # says nothing, not even of TLS
    idle = ssl.MemoryBIO(), ssl.MemoryBIO()
    stuck = tls(live.ca, live.folder).wrap_bio(*idle, server_hostname="127.0.0.1")  # reads nothing after the handshake
    with socket.create_connection(("127.0.0.1", live.server.port), PATIENCE) as wire, hasty:
        wire.setblocking(False)
        while True:
            try:
                stuck.do_handshake()
                break
            except ssl.SSLWantReadError:
                await loop.sock_sendall(wire, idle[1].read())
                idle[0].write(await loop.sock_recv(wire, 65_536))
        stuck.write(sent.encode()) if sent else None
        await loop.sock_sendall(wire, idle[1].read())
        async with live.session() as session, session.get("/healthz") as reply:  # by then what was sent is read
            assert reply.status == 200
        with caplog.at_level(logging.WARNING):
            async with asyncio.timeout(PATIENCE):
                await live.server.stop()
    assert caplog.text == ""


@pytest.mark.parametrize("iterations", range(6))
async def test_a_client_that_connects_while_the_server_stops_is_disconnected(live: Live, iterations: int) -> None:
    with socket.create_connection(("127.0.0.1", live.server.port), PATIENCE) as client:
        for _ in range(iterations):  # of the event loop: it accepts the connection in one, and begins the handshake in another
            await asyncio.sleep(0)
        await live.server.stop()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


async def test_a_client_that_does_not_read_does_not_delay_the_stop(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "GRACE", 10 * PATIENCE)
    _, writer = await asyncio.open_connection("127.0.0.1", live.server.port, ssl=tls(live.ca, live.folder), limit=1024)
    writer.write(WATCH.encode())
    data = {"k": "x" * 500_000}
    for number in range(1000):
        if any(connection.flow.write_paused for connection in live.listener.connections):
            break
        await live.store.create(kinds.CONFIG_MAP, {"metadata": {"name": f"n{number}", "namespace": "default"}, "data": data})
        await asyncio.sleep(0.001)
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(PATIENCE):
            await live.server.stop()
    assert caplog.text == ""
    writer.transport.abort()


async def test_a_body_too_large_is_refused_at_once(live: Live) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", live.server.port, ssl=tls(live.ca, live.folder))
    head = f"POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer admin\r\nContent-Length: 99999999\r\n\r\n"
    writer.write(head.encode() + b"x" * 1000)
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()  # until the server closes
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["reason"] == "RequestEntityTooLarge"
    writer.close()


async def test_what_is_no_http_is_answered_and_forgotten(live: Live) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", live.server.port, ssl=tls(live.ca, live.folder))
    writer.write(b"\x00\x01\x02 hello\r\n\r\n")
    async with asyncio.timeout(PATIENCE):
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
    writer.close()
    async with live.session() as session, session.get("/healthz") as reply:
        assert await reply.text() == "ok"


async def test_a_port_in_use_is_refused_with_a_reason(live: Live) -> None:
    again = Server(App(Memory()), port=live.server.port, **live.files)
    with pytest.raises(StartupRefused, match=f"127.0.0.1:{live.server.port}: another program listens there"):
        await again.start()
    await again.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org", ""])
def test_only_loopback_is_served(host: str) -> None:
    with pytest.raises(StartupRefused, match="loopback"):
        Server(App(Memory()), host=host, certfile="x", keyfile="x", ca="x")


async def test_certificates_that_are_not_there_are_refused(tmp_path: Path) -> None:
    server = Server(App(Memory()), certfile=tmp_path / "no", keyfile=tmp_path / "no", ca=tmp_path / "no")
    with pytest.raises(StartupRefused, match="certificates"):
        await server.start()


async def test_signals_stay_with_the_caller(tmp_path: Path) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    server = Server(App(Memory()), **certify(tmp_path)[1])
    await server.start()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    await server.stop()
    await server.stop()


async def test_http2_client_is_negotiated_to_http1(live: Live) -> None:
    context = tls(live.ca, live.folder)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection("127.0.0.1", live.server.port, ssl=context)
    connection = writer.get_extra_info("ssl_object")
    assert connection.selected_alpn_protocol() == "http/1.1"
    assert connection.version() in ("TLSv1.2", "TLSv1.3")
    writer.close()
