"""The server on a real port: TLS, who is let in, streams, and its end."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509

from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
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
