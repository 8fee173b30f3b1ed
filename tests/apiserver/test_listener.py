"""Which connections are accepted: so many of one address, so many in all, and again once others are gone."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outfitter.apiserver.refusals import LOG_EVERY
from outfitter.inventory.server_limits import ServerLimits
from tests.apiserver.live_server import LiveServer, RawClient, live_server

HEALTHZ = "GET /healthz HTTP/1.1\r\n\r\n"


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveServer]:
    async with live_server(tmp_path, ServerLimits(max_connections=5, max_connections_per_address=3)) as server:
        yield server


async def served(client: RawClient) -> bool:
    client.send(HEALTHZ)
    return (await client.answer()).status == 200


async def refused(live: LiveServer, address: str) -> bool:
    """A connection from an address is closed before its handshake."""
    try:
        client = await live.connect(address=address)
    except ConnectionError:
        return True
    return await client.rest() == b""


async def test_connections_of_an_address_and_in_total_are_limited(live: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    clients = [await live.connect(address="127.0.0.1") for _ in range(3)]
    with caplog.at_level(logging.WARNING):
        assert [await refused(live, "127.0.0.1") for _ in range(4)] == [True] * 4
    assert live.refused("max_connections_per_address") == 4
    [line] = [record.getMessage() for record in caplog.records]  # not one for each
    assert "a connection of 127.0.0.1: it has 3 open, as many as server.max_connections_per_address allows" in line
    clients += [await live.connect(address=f"127.0.0.{number}") for number in (2, 3)]
    assert all([await served(client) for client in clients])
    assert await refused(live, "127.0.0.4")
    assert live.refused("max_connections") == 1
    clients[0].writer.close()
    await live.open(4)
    assert await served(await live.connect(address="127.0.0.1"))


async def test_a_handshake_under_way_is_a_connection(live: LiveServer) -> None:
    plain = [await live.connect_plain() for _ in range(3)]
    await live.open(3)
    assert await refused(live, "127.0.0.1")
    plain[0].send(b"this is no TLS\r\n\r\n")
    await live.open(2)
    assert live.refused("tls_handshake") == 1
    assert await served(await live.connect())


async def test_a_reason_is_logged_once_a_minute_with_its_number(live: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    add = live.listener.refusals.add
    with caplog.at_level(logging.WARNING):
        for _ in range(7):
            add("header_bytes", "too large")
        live.clock.advance(LOG_EVERY)
        add("header_bytes", "too large")
    assert [record.getMessage() for record in caplog.records] == [
        "refused: too large (reason header_bytes, 1 since the last such line)",
        "refused: too large (reason header_bytes, 7 since the last such line)",
    ]
