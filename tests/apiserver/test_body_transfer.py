"""Large bodies in transfer are bounded together; a small one never waits for them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.inventory.server_limits import ServerLimits
from tests.apiserver.asgi import CONFIG_MAPS, config_map
from tests.apiserver.live_server import AUTHORIZED, live_server, until

POST = f"POST {CONFIG_MAPS} HTTP/1.1\r\n{AUTHORIZED}"


@pytest.mark.parametrize("chunked", [False, True])
async def test_large_bodies_in_flight_are_bounded(tmp_path: Path, chunked: bool) -> None:
    async with live_server(tmp_path, ServerLimits(max_inflight_bytes=4 << 20)) as live:
        body = json.dumps(config_map("a") | {"data": {"k": "x" * 900_000}})
        slow = await live.connect()
        if chunked:
            part = "x" * 500_000
            slow.send(POST + "Transfer-Encoding: chunked\r\n\r\n" + f"{len(part):x}\r\n{part}\r\n" * 6)
        else:
            slow.send(POST + f"Content-Length: {3 << 20}\r\n\r\n{{")
        await until(lambda: live.app.inflight.taken > 2_500_000)
        other = await live.connect()
        other.send(POST + f"Content-Length: {2 << 20}\r\n\r\n")
        small = await live.connect()
        small.send(f"GET {CONFIG_MAPS} HTTP/1.1\r\n{AUTHORIZED}\r\n")
        assert (await small.answer()).status == 200
        answer = await other.refusal()
        assert (answer.status, answer.json["reason"]) == (429, "TooManyRequests")
        assert answer.json["details"] == {"retryAfterSeconds": 1}
        assert live.refused("max_inflight_bytes") == 1
        slow.writer.transport.abort()
        await until(lambda: not live.app.inflight.taken)
        small.send(POST + f"Content-Length: {len(body)}\r\n\r\n{body}")
        assert (await small.answer()).status == 201


async def test_large_responses_that_are_not_read_are_bounded(tmp_path: Path) -> None:
    async with live_server(tmp_path, ServerLimits(max_inflight_bytes=12 << 20)) as live:
        for number in range(10):
            obj = {"metadata": {"name": f"n{number}", "namespace": "default"}, "data": {"k": "x" * 900_000}}
            await live.store.create(kinds.CONFIG_MAP, obj)
        first, second = await live.connect(limit=1024), await live.connect()
        for client in (first, second):
            client.send(f"GET {CONFIG_MAPS} HTTP/1.1\r\n{AUTHORIZED}\r\n")
            await until(lambda: live.app.inflight.taken)
        assert (await second.answer()).status == 429
        async with asyncio.timeout(60):
            await first.reader.readexactly(9_000_000)
        second.send(f"GET {CONFIG_MAPS}/n1 HTTP/1.1\r\n{AUTHORIZED}\r\n")
        await until(lambda: not live.app.inflight.taken)
        assert len((await second.answer()).body) > 900_000
