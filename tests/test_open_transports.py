from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.apiserver.running import certify, tls


async def serve(context: ssl.SSLContext | None = None) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)


async def connect(server: asyncio.Server, context: ssl.SSLContext | None = None) -> asyncio.Transport:
    address = server.sockets[0].getsockname()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *address, ssl=context)
    return transport


def test_connection_left_open_fails_its_test() -> None:
    async def leave() -> None:
        server = await serve()
        await connect(server)
        server.close()

    with pytest.raises(ResourceWarning, match=r"open connection of Protocol from .* to \('127.0.0.1', \d+\)"):
        asyncio.run(leave())


def test_connection_that_was_closed_is_waited_for(tmp_path: Path) -> None:
    async def close() -> None:
        authority, files = certify(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files["certfile"], files["keyfile"])
        server = await serve(context)
        transport = await connect(server, tls(authority, tmp_path))
        transport.close()  # over when the server has ended its side as well
        server.close()

    asyncio.run(close())
