"""Limits of one connection: what is refused before the application sees it, with which answer, and that the others go on."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from outfitter.api import kinds
from outfitter.apiserver import http_connection
from outfitter.inventory.server_limits import ServerLimits
from tests.apiserver.asgi import CONFIG_MAPS, PATIENCE, config_map
from tests.apiserver.live_server import AUTHORIZED, LiveServer, RawClient, live_server, until

LIMITS = ServerLimits(max_header_bytes=4096, max_header_fields=20)
GET = f"GET {CONFIG_MAPS} HTTP/1.1\r\n{AUTHORIZED}\r\n"


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with live_server(tmp_path, LIMITS) as server:
        yield server


def sized(total: int) -> str:
    """A request whose line and headers have so many bytes."""
    begin = f"GET /healthz HTTP/1.1\r\n{AUTHORIZED}X: "
    return begin + "x" * (total - len(begin) - 4) + "\r\n\r\n"


class Refused(NamedTuple):
    sent: str | bytes
    status: int
    kube_reason: str
    says: str
    reason: str  # of the metric


BEGIN = f"GET /healthz HTTP/1.1\r\n{AUTHORIZED}"
POST = f"POST {CONFIG_MAPS} HTTP/1.1\r\n{AUTHORIZED}"
REFUSED = {
    "a byte too many": Refused(sized(4097), 431, "RequestHeadersTooLarge", "more than 4096 bytes", "header_bytes"),
    "a header that does not end": Refused(BEGIN + "X: " + "x" * 9000, 431, "RequestHeadersTooLarge", "4096", "header_bytes"),
    "a name that does not end": Refused(BEGIN + "x" * 9000, 431, "RequestHeadersTooLarge", "4096", "header_bytes"),
    "a URL that does not end": Refused("GET /" + "x" * 9000, 431, "RequestHeadersTooLarge", "4096", "header_bytes"),
    "a field too many": Refused(BEGIN + "a: b\r\n" * 19 + "\r\n", 431, "RequestHeadersTooLarge", "20 header fields",
                                "header_fields"),
    "fields after the body": Refused(POST + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + "a: b\r\n" * 30 + "\r\n", 431,
                                     "RequestHeadersTooLarge", "20 header fields", "header_fields"),
    "no HTTP": Refused(b"\x00\x01\x02 hello\r\n\r\n", 400, "BadRequest", "not HTTP/1.1", "malformed"),
    "the first bytes of HTTP/2": Refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "BadRequest", "HTTP/1.1", "malformed"),
    "a length of 3,000 digits": Refused(POST + f"Content-Length: {'9' * 3000}\r\n\r\n", 400, "BadRequest", "", "malformed"),
    "a length of 3,000 zeros": Refused(POST + f"Content-Length: {'0' * 3000}5\r\n\r\n", 400, "BadRequest", "digits",
                                       "malformed"),
    "a negative length": Refused(POST + "Content-Length: -1\r\n\r\n", 400, "BadRequest", "", "malformed"),
    "two lengths": Refused(POST + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "BadRequest", "", "malformed"),
    "a length that is no number": Refused(POST + "Content-Length: ten\r\n\r\n", 400, "BadRequest", "", "malformed"),
    "a length and chunks": Refused(POST + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "BadRequest", "",
                                   "malformed"),
    "an unknown encoding": Refused(POST + "Transfer-Encoding: zip\r\n\r\n", 400, "BadRequest", "", "malformed"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
async def test_refused_before_the_application_sees_it(live: LiveServer, case: Refused) -> None:
    client = await live.connect()
    client.send(case.sent)
    answer = await client.answer()
    await client.rest()
    assert (answer.status, answer.json["reason"], answer.json["code"]) == (case.status, case.kube_reason, case.status)
    assert case.says in answer.json["message"]
    assert live.refused(case.reason) == 1
    other = await live.connect()
    other.send(GET)
    assert (await other.answer()).status == 200


async def test_as_much_as_allowed_is_served(live: LiveServer) -> None:
    client = await live.connect()
    for _ in range(3):  # each request is counted for itself
        client.send(sized(4096))
        assert (await client.answer()).status == 200
        client.send(BEGIN + "a: b\r\n" * 18 + "\r\n")
        assert (await client.answer()).status == 200
    body = json.dumps({**config_map("a"), "data": {"k": "x" * 200_000}})
    client.send(f"{POST}Content-Length: {len(body)}\r\n\r\n{body}{GET}")
    assert [(await client.answer()).status, (await client.answer()).status] == [201, 200]


async def test_a_body_in_tiny_chunks_is_refused_and_in_small_ones_served(live: LiveServer) -> None:
    body = json.dumps(config_map("a") | {"data": {"k": "x" * 20_000}})

    def chunked(size: int) -> str:
        parts = [body[start:start + size] for start in range(0, len(body), size)]
        chunks = "".join(f"{len(part):x}\r\n{part}\r\n" for part in [*parts, ""])
        return f"{POST}Transfer-Encoding: chunked\r\n\r\n{chunks}"

    client = await live.connect()
    client.send(chunked(100))
    assert (await client.answer()).status == 201
    for sent in (chunked(1), POST + "Transfer-Encoding: chunked\r\n\r\n1;" + "x" * 300_000):
        client = await live.connect()
        client.send(sent)
        answer = await client.answer()
        assert (answer.status, answer.json["message"]) == (400, "the body is sent in chunks of too few bytes")
    assert live.refused("malformed") == 2


async def test_requests_that_wait_on_a_connection_are_bounded(live: LiveServer) -> None:
    client = await live.connect()
    client.send("GET /healthz HTTP/1.1\r\n\r\n" * 10)
    assert [(await client.answer()).status for _ in range(10)] == [200] * 10
    client.send("GET /healthz HTTP/1.1\r\n\r\n" * 5000)
    await client.rest()
    assert live.refused("pipelined_requests") == 1


async def test_a_watch_ends_when_its_client_goes_with_requests_waiting(live: LiveServer) -> None:
    client = await live.connect()
    client.send(f"GET {CONFIG_MAPS}?watch=1 HTTP/1.1\r\n{AUTHORIZED}\r\n" + GET * 3)
    watchers = live.store.watch_cache(kinds.CONFIG_MAP).watchers
    await until(lambda: watchers)
    client.writer.transport.abort()
    await until(lambda: not watchers)


# -- time

async def test_headers_that_drip_are_refused_in_time(live: LiveServer) -> None:
    client = await live.connect()
    client.send("GET /healthz HTTP/1.1\r\nHos")
    for _ in range(9):  # every byte comes in time, the headers do not
        await live.advance(1)
        client.send("t")
        await live.received()
    await live.advance(1)
    answer = await client.refusal()
    assert (answer.status, answer.json["reason"]) == (408, "Timeout")
    assert live.refused("read_header_timeout") == 1


async def test_a_client_that_asks_nothing_is_disconnected(live: LiveServer) -> None:
    client = await live.connect()
    await until(lambda: live.listener.connections)
    await live.advance(10)
    assert await client.rest() == b""
    assert live.refused("read_header_timeout") == 1


async def test_blank_lines_between_requests_do_not_hold_a_connection(live: LiveServer) -> None:
    client = await live.connect()
    client.send(GET)
    assert (await client.answer()).status == 200
    client.send("\r\n")
    await live.received()
    await live.advance(10)
    assert (await client.refusal()).status == 408


async def test_a_handshake_that_does_not_end_is_disconnected(live: LiveServer) -> None:
    client = await live.connect_plain()
    await live.open(1)
    await live.advance(10)
    assert await client.rest() == b""
    await live.open(0)
    assert live.refused("read_header_timeout") == 1


async def test_a_body_that_never_comes_is_refused_in_time(live: LiveServer) -> None:
    client = await live.connect()
    client.send(POST + "Content-Length: 100\r\n\r\n{")
    await live.received()
    await live.advance(30)
    await live.advance(30)
    answer = await client.refusal()
    assert (answer.status, answer.json["reason"]) == (408, "Timeout")
    assert live.refused("read_body_timeout") == 1
    await live.open(0)


async def test_a_watch_without_changes_has_no_deadline(live: LiveServer) -> None:
    client = await live.connect()
    client.send(f"GET {CONFIG_MAPS}?watch=1 HTTP/1.1\r\n{AUTHORIZED}\r\n\r\n")  # with a blank line too many
    await until(lambda: live.store.watch_cache(kinds.CONFIG_MAP).watchers)
    await live.advance(1000)
    await live.store.create(kinds.CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default"}})
    async with asyncio.timeout(PATIENCE):
        assert b'"ADDED"' in await client.reader.readuntil(b"}\n")
    assert not live.listener.refusals.counts


# -- clients that do not read

async def churn(live: LiveServer) -> None:
    """Change an object until the server has to hold what the client does not read."""
    data, number = "x" * 100_000, 0
    await live.open(1)
    [connection] = live.listener.connections
    while not connection.flow.write_paused:
        number += 1
        obj = {"metadata": {"name": f"n{number}", "namespace": "default"}, "data": {"k": data}}
        await live.store.create(kinds.CONFIG_MAP, obj)
        await asyncio.sleep(0.001)


async def unread(live: LiveServer, path: str) -> RawClient:
    """A client with small buffers that asks and does not read."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", live.server.port))
    client = await live.connect(sock=plain, limit=1024)
    client.send(f"GET {path} HTTP/1.1\r\n{AUTHORIZED}\r\n")
    await live.received()
    return client


async def test_a_watcher_that_does_not_read_is_dropped_and_resumes(live: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    client = await unread(live, f"{CONFIG_MAPS}?watch=1")
    await until(lambda: live.store.watch_cache(kinds.CONFIG_MAP).watchers)
    async with asyncio.timeout(PATIENCE):
        await churn(live)
    [connection] = live.listener.connections
    assert connection.transport.get_write_buffer_size() < 4 * http_connection.PART
    with caplog.at_level(logging.WARNING):
        await live.advance(30)
        await until(lambda: not live.store.watch_cache(kinds.CONFIG_MAP).watchers)
    assert live.refused("write_timeout") == 1
    assert "did not read its response for 30 s" in caplog.text
    await live.open(0)
    stream = re.sub(rb"\r\n[0-9a-f]+\r\n", b"", await client.rest())
    last = json.loads(stream.split(b"\n")[-2])["object"]["metadata"]["resourceVersion"]  # behind it is half an event
    again = await live.connect()
    again.send(f"GET {CONFIG_MAPS}?watch=1&resourceVersion={last} HTTP/1.1\r\n{AUTHORIZED}\r\n")
    async with asyncio.timeout(PATIENCE):
        assert f'"name":"n{int(last) + 1}"'.encode() in await again.reader.readuntil(b'"resourceVersion"')


async def test_a_client_that_does_not_read_a_list_is_dropped(live: LiveServer) -> None:
    for number in range(40):
        await live.store.create(kinds.CONFIG_MAP, {"metadata": {"name": f"n{number}", "namespace": "default"},
                                                   "data": {"k": "x" * 500_000}})
    await unread(live, CONFIG_MAPS)
    await until(lambda: any(each.flow.write_paused for each in live.listener.connections))
    await live.advance(30)
    await live.open(0)
    assert live.refused("write_timeout") == 1


# -- upgrades

@pytest.mark.parametrize("path", ["/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/blue/console",
                                  "/api/v1/namespaces/default/pods/a/exec"])
async def test_a_refused_upgrade_is_answered_with_a_status_and_logs_nothing(
    live: LiveServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = await live.connect()
    with caplog.at_level(logging.INFO):
        client.send(f"GET {path} HTTP/1.1\r\n{AUTHORIZED}Connection: Upgrade\r\nUpgrade: websocket\r\n"
                    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        answer = await client.refusal()
    assert (answer.status, answer.json["kind"], answer.json["reason"]) == (404, "Status", "NotFound")
    assert "is not served" in answer.json["message"]
    assert caplog.text == ""
