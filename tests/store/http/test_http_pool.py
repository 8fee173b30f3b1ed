"""The HTTP client on servers that answer byte by byte what a case says, over plain connections, TLS and proxies."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outfitter.store import pki
from outfitter.store.http import client_connection, http_pool
from outfitter.store.http.client_connection import HttpAnswer
from outfitter.store.http.http_pool import HttpPool

BEGIN = datetime.now(UTC) - timedelta(hours=1)
END = BEGIN + timedelta(days=1)
HEAD = b"GET /it HTTP/1.1\r\nHost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LIMIT = 60.0  # seconds, for what takes none


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]


@dataclass
class ScriptedServer:
    """Answers every request on every connection with `script`, and closes the connection when that returns False."""

    script: Script
    url: str = ""
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)  # up to the empty line
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # a client closed its connection
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                if not await self.script(reader, writer):
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self.ended.set()
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def serving(self, context: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.url = f"http{'s' if context else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)  # transports are closed then


def answers(*parts: bytes, closes: bool = False) -> Script:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if closes:
            writer.close()
            await writer.wait_closed()
        return not closes

    return script


@contextlib.asynccontextmanager
async def pool_of(url: str, **options: str) -> AsyncIterator[HttpPool]:
    pool = HttpPool(url, **options)
    try:
        yield pool
    finally:
        await pool.close()


async def send(
    pool: HttpPool, body: bytes = b"", *, stream: bool = False, context: ssl.SSLContext | None = None, silence: float = LIMIT
) -> HttpAnswer:
    return await asyncio.wait_for(pool.send(HEAD, body, context, stream=stream, silence=silence), LIMIT)


async def read(pool: HttpPool, *, stream: bool) -> tuple[int, bytes]:
    answer = await send(pool, stream=stream)
    return answer.status, await asyncio.wait_for(answer.read(), LIMIT) if stream else answer.body


# Answers that are read, whole and as a stream

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE: dict[str, tuple[Script, int, bytes]] = {
    "with a length": (answers(OK), 200, b"ok"),
    "byte by byte": (answers(*(OK[at : at + 1] for at in range(len(OK)))), 200, b"ok"),
    "in chunks": (answers(CHUNKED + b"2\r\nab\r\n", b"3;x=y\r\ncde\r\n0\r\n\r\n"), 200, b"abcde"),
    "in chunks with a trailer": (answers(CHUNKED + b"2\r\nab\r\n0\r\nX: y\r\n\r\n"), 200, b"ab"),
    "until the connection ends": (answers(b"HTTP/1.1 200 OK\r\n\r\nab", b"c", closes=True), 200, b"abc"),
    "after a 100": (answers(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" + OK), 200, b"ok"),
    "without a body": (answers(b"HTTP/1.1 204 No Content\r\n\r\n"), 204, b""),
    "of length 0": (answers(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), 404, b""),
    "of HTTP/1.0": (answers(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"), 200, b"ok"),
    "compressed": (answers(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (
        len(gzip.compress(b"x" * 999, mtime=0)), gzip.compress(b"x" * 999, mtime=0))), 200, b"x" * 999),
    "large": (answers(b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n", b"y" * 5_000_000), 200, b"y" * 5_000_000),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", WHOLE)
async def test_answers(name: str, stream: bool) -> None:
    script, status, body = WHOLE[name]
    server = ScriptedServer(script)
    async with server.serving(), pool_of(server.url) as pool:
        assert await read(pool, stream=stream) == (status, body)


async def test_headers() -> None:
    fields = b"Warning: one\r\nContent-Length: 0\r\nwarning: two\r\nRetry-After: 7\r\n"
    server = ScriptedServer(answers(b"HTTP/1.1 200 OK\r\n%s\r\n" % fields))
    async with server.serving(), pool_of(server.url) as pool:
        headers = (await send(pool)).headers
    assert headers.all("Warning") == ["one", "two"]
    assert (headers["retry-after"], headers.get("X-Other"), headers.get("WARNING")) == ("7", None, "one")
    assert {name.lower() for name in headers} == {"warning", "content-length", "retry-after"}
    assert len(headers) == 3


# Answers that cannot be read

BROKEN: dict[str, tuple[Script, str]] = {
    "nothing": (answers(closes=True), "closed|reset"),
    "half of the headers": (answers(b"HTTP/1.1 200 OK\r\nConte", closes=True), "closed|reset"),
    "half of the body": (answers(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", closes=True), "closed|reset"),
    "half of a chunk": (answers(CHUNKED + b"9\r\nhalf", closes=True), "closed|reset"),
    "no last chunk": (answers(CHUNKED + b"4\r\nhalf\r\n", closes=True), "closed|reset"),
    "no HTTP": (answers(b"SSH-2.0-OpenSSH_9.2\r\n"), "not HTTP/1.1"),
    "a length that is none": (answers(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"), "not HTTP/1.1"),
    "headers without end": (answers(b"HTTP/1.1 200 OK\r\n", *[b"A: %s\r\n" % (b"b" * 60_000)] * 20), "too long"),
    "a body that is not compressed": (
        answers(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"), "not HTTP/1.1"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", BROKEN)
async def test_answers_that_break_off(name: str, stream: bool) -> None:
    script, text = BROKEN[name]
    server = ScriptedServer(script)
    async with server.serving(), pool_of(server.url) as pool:
        with pytest.raises(OSError, match=text):
            await read(pool, stream=stream)
    assert len(server.requests) == 1, "a request is sent once"


async def test_a_silent_server_is_not_waited_for() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await reader.read()
        return False

    server = ScriptedServer(silent)
    async with server.serving(), pool_of(server.url) as pool:
        with pytest.raises(TimeoutError, match=r"no answer for 0\.05 s"):
            await send(pool, silence=0.05)
        await asyncio.wait_for(server.ended.wait(), LIMIT)


async def test_a_request_that_is_cancelled_closes_its_connection() -> None:
    begun = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        begun.set()
        await reader.read()
        return False

    server = ScriptedServer(silent)
    async with server.serving(), pool_of(server.url) as pool:
        sending = asyncio.ensure_future(send(pool))
        await asyncio.wait_for(begun.wait(), LIMIT)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await asyncio.wait_for(server.ended.wait(), LIMIT)


# Connections that are used again, and those that are not


async def test_a_connection_is_used_again() -> None:
    server = ScriptedServer(answers(OK))
    async with server.serving(), pool_of(server.url) as pool:
        for _ in range(5):
            assert (await send(pool)).body == b"ok"
        assert server.connections == 1
        await asyncio.gather(*(send(pool) for _ in range(4)))
        assert server.connections == 4, "one for each request that runs"
        await asyncio.gather(*(send(pool) for _ in range(4)))
        assert server.connections == 4


NOT_AGAIN: dict[str, Script] = {
    "closed by the server": answers(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")),
    "of HTTP/1.0": answers(OK.replace(b"1.1", b"1.0")),
    "with bytes behind the answer": answers(OK + OK),
}


@pytest.mark.parametrize("name", NOT_AGAIN)
async def test_connections_that_are_not_used_again(name: str) -> None:
    server = ScriptedServer(NOT_AGAIN[name])
    async with server.serving(), pool_of(server.url) as pool:
        for _ in range(3):
            assert (await send(pool)).body == b"ok"
            await asyncio.sleep(0)
        assert server.connections == 3


async def test_an_idle_connection_that_the_server_closed() -> None:
    server = ScriptedServer(answers(OK, closes=True))  # without a word in its headers
    async with server.serving(), pool_of(server.url) as pool:
        assert (await send(pool)).body == b"ok"
        async with asyncio.timeout(LIMIT):
            while pool.idle:  # noqa: ASYNC110  # until the client sees it
                await asyncio.sleep(0.001)
        assert (await send(pool)).body == b"ok"
        assert server.connections == 2


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pool, "KEPT_IDLE", 0.01)
    server = ScriptedServer(answers(OK))
    async with server.serving(), pool_of(server.url) as pool:
        await asyncio.gather(*(send(pool) for _ in range(3)))
        await asyncio.wait_for(server.ended.wait(), LIMIT)
        async with asyncio.timeout(LIMIT):
            while pool.idle:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


async def test_a_closed_pool_closes_its_connections() -> None:
    server = ScriptedServer(answers(OK))
    async with server.serving():
        async with pool_of(server.url) as pool:
            await send(pool)
        await asyncio.wait_for(server.ended.wait(), LIMIT)


# Bodies

LARGE = bytes(range(256)) * 20_000  # 5 MB


async def test_a_large_body_is_sent_whole() -> None:
    received = bytearray()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        received.extend(await reader.readexactly(len(LARGE)))
        writer.write(OK)
        return True

    server = ScriptedServer(script)
    async with server.serving(), pool_of(server.url) as pool:
        assert (await send(pool, LARGE)).body == b"ok"
        assert received == LARGE
        assert (await send(pool, LARGE)).body == b"ok"
        assert server.connections == 1


async def test_an_answer_before_the_whole_body_was_sent() -> None:
    """As 413 of a server that does not want it: the answer counts, and the connection is not used again."""
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(3600)
        return False

    server = ScriptedServer(script)
    async with server.serving(), pool_of(server.url) as pool:
        assert (await send(pool, LARGE * 10)).status == 413
        assert pool.idle == 0


async def test_a_stream_is_read_no_faster_than_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "MOST_BUFFERED", 1000)
    total, sent = 400, 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        nonlocal sent
        writer.write(CHUNKED)
        for _ in range(total):
            writer.write(b"10000\r\n%s\r\n" % (b"z" * 0x10000))
            await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")
        return True

    server = ScriptedServer(script)
    async with server.serving(), pool_of(server.url) as pool:
        answer = await send(pool, stream=True)
        before = -1
        while sent != before:  # until neither side can go on
            before = sent
            await asyncio.sleep(0.2)
        assert sent < total, "what is not read stays with the server"
        assert len(await asyncio.wait_for(answer.read(), LIMIT)) == total * 0x10000


# TLS

CA = pki.authority("test", valid_from=BEGIN, valid_until=END)
OTHER_CA = pki.authority("other", valid_from=BEGIN, valid_until=END)
SERVER = pki.server(CA, "server", hosts=["127.0.0.1", "inner.test"], valid_from=BEGIN, valid_until=END)


def server_context(folder: Path, *, asks_for_certificates: bool = False) -> ssl.SSLContext:
    (folder / "server.pem").write_bytes(SERVER.cert + b"\n" + SERVER.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=CA.cert.decode())
    context.load_cert_chain(folder / "server.pem")
    if asks_for_certificates:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(folder: Path, name: str = "", ca: pki.Pair = CA) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca.cert.decode())
    if name:
        pair = pki.client(CA, name, valid_from=BEGIN, valid_until=END)
        (folder / f"{name}.pem").write_bytes(pair.cert + b"\n" + pair.key)
        context.load_cert_chain(folder / f"{name}.pem")
    return context


async def test_client_certificates_have_connections_of_their_own(tmp_path: Path) -> None:
    users: list[str] = []

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        subject = dict(entry[0] for entry in writer.get_extra_info("peercert")["subject"])
        users.append(subject["commonName"])
        writer.write(OK)
        return True

    server = ScriptedServer(script)
    ann, bob = client_context(tmp_path, "ann"), client_context(tmp_path, "bob")
    async with server.serving(server_context(tmp_path, asks_for_certificates=True)), pool_of(server.url) as pool:
        for context in (ann, ann, bob, bob):
            assert (await send(pool, context=context)).body == b"ok"
    assert users == ["ann", "ann", "bob", "bob"]
    assert server.connections == 2


@pytest.mark.parametrize("iterations", range(12))
async def test_a_request_that_is_cancelled_while_it_connects_leaves_nothing_open(tmp_path: Path, iterations: int) -> None:
    server = ScriptedServer(answers(OK))
    async with server.serving(server_context(tmp_path)), pool_of(server.url) as pool:
        context = client_context(tmp_path)
        sending = asyncio.ensure_future(send(pool, context=context))
        for _ in range(iterations):  # of the event loop: it connects in one, and begins the handshake in another
            await asyncio.sleep(0)
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        assert (await send(pool, context=context)).body == b"ok"  # also when its socket has the number of the one before


async def test_large_bodies_over_tls(tmp_path: Path) -> None:
    """More than a buffer of the connection holds, in parts of any size."""
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        body = await reader.readexactly(len(LARGE))
        writer.write(CHUNKED)
        at = 0
        for size in range(1, len(body)):
            part, at = body[at : at + size * 97], at + size * 97
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            if not part:
                return True
        return False

    server, context = ScriptedServer(script), client_context(tmp_path)
    async with server.serving(server_context(tmp_path)), pool_of(server.url) as pool:
        for _ in range(3):
            assert (await send(pool, LARGE, context=context)).body == LARGE
    assert server.connections == 1


async def test_a_server_of_another_authority_is_refused(tmp_path: Path) -> None:
    server = ScriptedServer(answers(OK))
    async with server.serving(server_context(tmp_path)), pool_of(server.url) as pool:
        with pytest.raises(ssl.SSLCertVerificationError):
            await send(pool, context=client_context(tmp_path, ca=OTHER_CA))
    assert server.requests == []


@pytest.mark.parametrize("name", ["inner.test", "outer.test"])
async def test_the_name_in_the_certificate(tmp_path: Path, name: str) -> None:
    server = ScriptedServer(answers(OK))
    async with server.serving(server_context(tmp_path)), pool_of(server.url, server_name=name) as pool:
        if name == "inner.test":
            assert (await send(pool, context=client_context(tmp_path))).body == b"ok"
        else:
            with pytest.raises(ssl.SSLCertVerificationError, match=r"outer\.test"):
                await send(pool, context=client_context(tmp_path))


# Proxies


def tunnel(target: str, first: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> ScriptedServer:
    """A proxy that connects each request to `target` after it answered `first`."""
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(first)
        if b" 200 " not in first:
            await writer.drain()
            return True
        behind_reader, behind_writer = await asyncio.open_connection(*target.rpartition("/")[2].split(":"))

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    sink.write(data)
            sink.transport.abort()

        try:
            await asyncio.gather(copy(reader, behind_writer), copy(behind_reader, writer))
        finally:
            behind_writer.transport.abort()
        return False

    return ScriptedServer(script)


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
async def test_tls_through_a_proxy(tmp_path: Path, secure: bool) -> None:
    server = ScriptedServer(answers(OK))
    async with server.serving(server_context(tmp_path)):
        proxy = tunnel(server.url)
        async with proxy.serving(server_context(tmp_path) if secure else None):
            named = proxy.url.replace("://", "://us%20er:secret@")
            async with pool_of(server.url, proxy=named) as pool:
                context = client_context(tmp_path)
                for _ in range(3):
                    assert (await send(pool, context=context)).body == b"ok"
    lines = proxy.requests[0].split(b"\r\n")
    assert lines[0] == b"CONNECT %s HTTP/1.1" % server.url.rpartition("/")[2].encode()
    assert b"Proxy-Authorization: Basic dXMgZXI6c2VjcmV0" in lines
    assert server.requests == [HEAD] * 3, "the server does not see the proxy's password"
    assert (proxy.connections, server.connections) == (1, 1)


async def test_a_proxy_that_refuses(tmp_path: Path) -> None:
    proxy = tunnel("", b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
    async with proxy.serving(), pool_of("https://api.invalid:6443", proxy=proxy.url) as pool:
        with pytest.raises(ConnectionRefusedError, match="407 Proxy Authentication Required"):
            await send(pool, context=client_context(tmp_path))


def test_what_a_forwarding_proxy_is_asked_for() -> None:
    pool = HttpPool("http://api.invalid:8080/prefix/", proxy="http://u:p@127.0.0.1:1")
    assert pool.target("/api") == "http://api.invalid:8080/prefix/api"
    assert pool.fixed_headers() == [("Host", "api.invalid:8080"), ("Proxy-Authorization", "Basic dTpw")]


# Addresses

ADDRESSES = {"https://h": "h", "https://h:6443": "h:6443", "http://h:80": "h", "http://h:443": "h:443",
             "https://[fd00::1]:443": "[fd00::1]", "https://[fd00::1]:6443": "[fd00::1]:6443"}


@pytest.mark.parametrize("url", ADDRESSES)
def test_the_host_header(url: str) -> None:
    assert HttpPool(url).fixed_headers() == [("Host", ADDRESSES[url])]


async def test_the_next_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ScriptedServer(answers(OK))
    async with server.serving():
        port = server.url.rpartition(":")[2]
        real = await http_pool.addresses(http_pool.Endpoint.of(server.url))

        async def two(_: http_pool.Endpoint) -> list[http_pool.AddressInfo]:
            return [(*real[0][:4], ("127.0.0.1", 1)), *real]  # no server listens at port 1

        monkeypatch.setattr(http_pool, "addresses", two)
        async with pool_of(f"http://two.addresses.test:{port}") as pool:
            assert (await send(pool)).body == b"ok"
