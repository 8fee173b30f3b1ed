"""The authority of kube-apiserver's front proxy on real connections: when it is replaced, certificates of the old one no longer
count, also on connections that are open."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.apiserver.aggregated.app import AggregatedApi
from outfitter.apiserver.server import TlsServer
from outfitter.roles.webhook import ServerTls
from outfitter.store import pki
from outfitter.store.clock import SystemClock
from outfitter.webhook import certificate
from tests.apiserver.aggregated.proxied import SeamStore, config_map
from tests.apiserver.asgi import PATIENCE

BEGIN, END = SystemClock().now() - timedelta(hours=1), SystemClock().now() + timedelta(hours=1)
REQUEST = b"GET /apis HTTP/1.1\r\nHost: x\r\nX-Remote-User: bob\r\n\r\n"


class FrontProxyCa:
    """An authority, and a front proxy that it has signed."""

    def __init__(self, folder: Path, name: str) -> None:
        self.pair = pki.authority(name, valid_from=BEGIN, valid_until=END)
        self.client, _ = pki.client(self.pair, "front-proxy", valid_from=BEGIN, valid_until=END).save(folder, name)

    @property
    def config_map(self) -> kinds.Object:
        return config_map(client_ca_file=self.pair.cert.decode())


@pytest.fixture
async def served(api: AggregatedApi) -> AsyncIterator[tuple[TlsServer, asyncio.Queue[str], bytes]]:
    server = TlsServer(api, name="it", host="127.0.0.1", port=0, remedy="")
    tls, known = ServerTls(server), asyncio.Queue[str]()
    renewal = certificate.renewal(None, ["127.0.0.1"], SystemClock().now())
    assert renewal is not None
    tls.use(renewal.certificates)
    api.front_proxy.on_client_ca(tls.trust)
    api.front_proxy.on_client_ca(known.put_nowait)
    await server.start()
    yield server, known, renewal.certificates.bundle
    await server.stop()


async def connect(server: TlsServer, bundle: bytes, proxy: FrontProxyCa) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context(cadata=bundle.decode())
    context.load_cert_chain(proxy.client, proxy.client.with_suffix(".key"))
    return await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname="127.0.0.1")


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(REQUEST)
    return (await reader.readuntil(b"\r\n"))[9:12]


async def test_certificates_of_a_replaced_authority_no_longer_count(
    served: tuple[TlsServer, asyncio.Queue[str], bytes], ruled: SeamStore, tmp_path: Path
) -> None:
    server, known, bundle = served
    old, new = FrontProxyCa(tmp_path, "old"), FrontProxyCa(tmp_path, "new")
    async with asyncio.timeout(PATIENCE):
        await ruled.create(kinds.CONFIG_MAP, old.config_map)
        await known.get()
        reader, writer = await connect(server, bundle, old)
        assert await ask(reader, writer) == b"200"
        await ruled.replace(kinds.CONFIG_MAP, new.config_map)
        await known.get()
        assert (await reader.read()).endswith(b"}"), "the rest of the answer, and then the end of the connection"
        writer.close()
        again, opened = await connect(server, bundle, old)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):  # TLS 1.3 reports a refused certificate with the first read
            await ask(again, opened)
        opened.close()
        reader, writer = await connect(server, bundle, new)
        assert await ask(reader, writer) == b"200"
        writer.close()
