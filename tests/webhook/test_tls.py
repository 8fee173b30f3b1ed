"""The port of the webhook: many connections of one API server, and a certificate that is replaced while it serves."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator

import pytest

from outfitter.api import kinds
from outfitter.inventory.server_limits import ServerLimits
from outfitter.roles.webhook import CLIENT_IDLE, ServerTls, webhook_server
from outfitter.roles.webhook_app import WebhookApp
from outfitter.store.clock import ManualClock, SystemClock
from outfitter.webhook import certificate
from outfitter.webhook.certificate import WebhookCertificates
from tests.webhook.reviews import Webhook, review, running

HOSTS = ("127.0.0.1",)
FEW = ServerLimits(max_connections=12, max_connections_per_address=2)
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def webhook(clock: ManualClock) -> AsyncIterator[Webhook]:
    async with running(clock) as started:
        yield started


def made() -> WebhookCertificates:
    renewal = certificate.renewal(None, HOSTS, SystemClock().now())
    assert renewal is not None
    return renewal.certificates


async def connect(port: int, trusted: WebhookCertificates) -> Connection:
    return await asyncio.open_connection(
        "127.0.0.1", port, ssl=ssl.create_default_context(cadata=trusted.bundle.decode()), server_hostname="127.0.0.1")


async def ask(connection: Connection) -> bool:
    """Whether a review is answered on a connection, which stays open."""
    reader, writer = connection
    body = json.dumps(review("DELETE", kinds.LEDGER_PAGE, None, {"metadata": {"name": "a"}, "spec": {}})).encode()
    writer.write(b"POST /validate HTTP/1.1\r\nHost: webhook\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.partition(b":")[2]) for line in head.splitlines() if line.lower().startswith(b"content-length:"))
    response = json.loads(await reader.readexactly(length))
    return bool(response["response"]["allowed"])


async def test_one_api_server_uses_as_many_connections_as_there_may_be(webhook: Webhook) -> None:
    server = webhook_server(WebhookApp(webhook.webhook), "127.0.0.1", 0, FEW, SystemClock())
    current = made()
    ServerTls(server).use(current)
    await server.start()
    try:
        connections = [await connect(server.port, current) for _ in range(FEW.max_connections)]
        assert await asyncio.gather(*map(ask, connections)) == [True] * FEW.max_connections
        assert server.listener is not None
        assert server.listener.config.timeout_keep_alive > CLIENT_IDLE
        for _, writer in connections:
            writer.close()
    finally:
        await server.stop()


async def test_a_new_certificate_is_for_new_connections(webhook: Webhook) -> None:
    server = webhook_server(WebhookApp(webhook.webhook), "127.0.0.1", 0, FEW, SystemClock())
    old, new = made(), made()
    tls = ServerTls(server)
    tls.use(old)
    await server.start()
    try:
        opened = await connect(server.port, old)
        tls.use(new)
        assert await ask(opened), "an open connection goes on"
        later = await connect(server.port, new)
        assert await ask(later)
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(server.port, old)
        for _, writer in (opened, later):
            writer.close()
    finally:
        await server.stop()
