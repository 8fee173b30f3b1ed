"""The side of the target: a TCP port that is open while a VM may arrive on this node. A connection names its migration (the
TLS server name) and must have a certificate of the authority that the source's agent wrote into that migration's record; it is
passed on to a socket of the target's pod, and nowhere else. Called by `migration_proxy.py`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from outfitter.errors import HypervisorError, OutfitterError
from outfitter.node.migration_proxy import proxy_protocol as protocol
from outfitter.node.migration_proxy.byte_relay import ByteStream, keep_alive, relay
from outfitter.node.migration_proxy.proxy_certificate import ProxyCertificate

log = logging.getLogger(__name__)
PATIENCE = 10.0  # seconds for TLS, and for the first line
MAX_CONNECTIONS = 64  # of all migrations to this node; each has a few
LIMIT = 1 << 20  # bytes that are read ahead
Dial = Callable[[str, str], Awaitable[ByteStream]]  # pod and channel -> a socket of that pod; OutfitterError: there is none


@dataclass(frozen=True, slots=True)
class ExpectedArrival:
    pod: str  # uid of the target's pod
    source: str  # PEM, of the source's agent
    context: ssl.SSLContext


class TargetListener:
    def __init__(self, address: tuple[str, int], certificate: ProxyCertificate, dial: Dial) -> None:
        """`address`: where it listens; port 0 takes a free one."""
        self._address, self._certificate, self._dial = address, certificate, dial
        self._server: asyncio.Server | None = None
        self._opened: set[str] = set()  # migrations for which the port is open
        self._expected: dict[str, ExpectedArrival] = {}  # by the uid of the migration
        self._connections: dict[asyncio.Task[object], str] = {}  # -> the migration

    async def open(self, migration: str) -> int:
        """Listen for a migration: the port. HypervisorError: nothing can listen there."""
        self._opened.add(migration)
        if self._server is None:
            host, port = self._address
            try:
                self._server = await asyncio.start_server(
                    self._connected, host or None, port, ssl=self._front(), ssl_handshake_timeout=PATIENCE, limit=LIMIT)
            except OSError as error:
                raise HypervisorError(f"the node agent cannot listen for migrations at {host}:{port}: {error}; choose another "
                                      "--migration-address") from error
        return int(self._server.sockets[0].getsockname()[1])

    def expect(self, migration: str, pod: str, source: str) -> None:
        """Accept connections of the agent whose authority this is. Repeated calls change nothing."""
        known = self._expected.get(migration)
        if known is None or (known.pod, known.source) != (pod, source):
            self._expected[migration] = ExpectedArrival(pod, source, self._certificate.server_context(source))

    def forget(self, migration: str, *, arrived: bool) -> None:
        """It has ended, and the port is closed after the last one. Connections of one that has not arrived are broken. The
        others end by themselves: over them the source learns that the domain has arrived, and would run it on otherwise."""
        self._expected.pop(migration, None)
        self._opened.discard(migration)
        for task in [task for task, of in self._connections.items() if of == migration and not arrived]:
            task.cancel()
        if not self._opened and self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self._expected.clear()
        self._opened.clear()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- one connection

    def _front(self) -> ssl.SSLContext:
        """Trusts no one: who names a migration that is expected gets that one's context."""
        front = self._certificate.server_context("")

        def choose(connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
            arrival = self._expected.get(name or "")
            if arrival is None:
                return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
            connection.context = arrival.context
            return None

        front.sni_callback = choose
        return front

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        source = ByteStream(reader, writer)
        chosen = writer.get_extra_info("ssl_object").context
        migration = next((uid for uid, arrival in self._expected.items() if arrival.context is chosen), "")
        if not migration or len(self._connections) >= MAX_CONNECTIONS:
            source.abort()
            return
        self._connections[task] = migration
        try:
            await self._serve(source, self._expected[migration].pod)
        except (OSError, TimeoutError) as error:
            log.info("a connection of migration %s ended: %s", migration, error)
        except asyncio.CancelledError:  # by `forget` or `close`; asyncio would log it as an error
            source.abort()
        finally:
            del self._connections[task]
            with contextlib.suppress(OSError):
                writer.close()

    async def _serve(self, source: ByteStream, pod: str) -> None:
        keep_alive(source)
        try:
            async with asyncio.timeout(PATIENCE):
                channel = protocol.parse_hello(await source.reader.readline())
        except ValueError:  # a line that does not end
            channel = None
        if channel is None:
            source.abort()
            return
        if channel == protocol.PROBE:
            await _answer(source, protocol.ACCEPTED)
            return
        try:
            there = await self._dial(pod, channel)
        except OutfitterError as error:
            await _answer(source, protocol.refused(error.message))
            return
        await _answer(source, protocol.ACCEPTED)
        await relay(source, there)


async def _answer(source: ByteStream, line: bytes) -> None:
    source.writer.write(line)
    await source.writer.drain()
