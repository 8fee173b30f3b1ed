"""Accepts connections for the API server: counts them from the moment they are accepted, by client address and in total, makes
the TLS handshake, and ends those that exceed a deadline. Called by `server.Server`.

A connection above a limit is closed at once: an answer would cost the handshake that the limit saves."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import Counter
from email.utils import formatdate

import uvicorn
from uvicorn.server import ServerState

from outfitter.apiserver.http_connection import HttpConnection
from outfitter.apiserver.refusals import Refusals
from outfitter.inventory.server_limits import ServerLimits
from outfitter.store.clock import Clock

AT_ONCE = 100  # connections that are accepted before other work is done
CLOSE_TIMEOUT = 5.0  # seconds for which a client may leave the end of TLS unanswered
TICK = 1.0  # seconds between two checks of deadlines
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext, limits: ServerLimits, clock: Clock) -> None:
        self.config, self.limits, self.clock = config, limits, clock
        self.refusals = Refusals(clock)
        self.state = ServerState()
        self.open = 0  # connections, with those whose handshake is under way
        self._by_address: Counter[str] = Counter()
        self.context = context  # of connections that are accepted from now on
        self._handshakes: dict[asyncio.Task[None], float] = {}  # and their deadlines
        self._socket: socket.socket | None = None
        self._paused = False  # no file descriptors are left; it goes on with the next tick
        self._ticking: asyncio.Task[None] | None = None

    @property
    def connections(self) -> set[HttpConnection]:
        return self.state.connections  # type: ignore[return-value]  # uvicorn's own types of them

    def start(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self._socket = listening
        self._set_date()
        self._ticking = asyncio.create_task(self._tick(), name="http-deadlines")
        asyncio.get_running_loop().add_reader(listening, self._accept)

    async def close(self) -> None:
        """Accept no more, and end the handshakes; open connections stay."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._ticking is not None:
            self._ticking.cancel()
        if handshakes := list(self._handshakes):
            for _ in range(2):  # asyncio leaves a connection open whose handshake is cancelled before it has begun
                await asyncio.sleep(0)
            for task in handshakes:
                task.cancel()
            await asyncio.wait(handshakes)
            await asyncio.sleep(0)  # the event loop closes the connections in its next iteration

    def release(self, address: str) -> None:
        self.open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            if self._socket is None:
                return
            try:
                accepted, (address, *_rest) = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_FILES:
                    raise
                self.refusals.add("file_descriptors", "new connections, as no more files can be opened (ulimit -n)")
                asyncio.get_running_loop().remove_reader(self._socket)
                self._paused = True
                return
            if self._admitted(address):
                accepted.setblocking(False)
                self.open += 1
                self._by_address[address] += 1
                task = asyncio.create_task(self._handshake(accepted, address), name="tls-handshake")
                self._handshakes[task] = self.clock.monotonic() + self.limits.read_header_timeout
                task.add_done_callback(self._handshakes.pop)
            else:
                accepted.close()

    def _admitted(self, address: str) -> bool:
        if self.open >= self.limits.max_connections:
            self.refusals.add("max_connections", f"a connection of {address}: {self.limits.max_connections} are open, as many "
                              "as server.max_connections allows")
            return False
        if self._by_address[address] >= self.limits.max_connections_per_address:
            self.refusals.add("max_connections_per_address", f"a connection of {address}: it has "
                              f"{self.limits.max_connections_per_address} open, as many as server.max_connections_per_address "
                              "allows")
            return False
        return True

    async def _handshake(self, accepted: socket.socket, address: str) -> None:
        connection = HttpConnection(self, address)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self.context,
                ssl_handshake_timeout=self.limits.read_header_timeout + TICK, ssl_shutdown_timeout=CLOSE_TIMEOUT)
        except (OSError, asyncio.CancelledError) as error:  # also what TLS raises: ssl.SSLError is an OSError
            connection.release()
            if self._socket is not None:
                timed_out = isinstance(error, asyncio.CancelledError)
                self.refusals.add("read_header_timeout" if timed_out else "tls_handshake")

    async def _tick(self) -> None:
        while True:
            await self.clock.sleep(TICK)
            self._set_date()
            now = self.clock.monotonic()
            for task, deadline in list(self._handshakes.items()):
                if now >= deadline:
                    task.cancel()
            for connection in list(self.connections):
                connection.check_deadlines(now)
            if self._paused and self._socket is not None:
                self._paused = False
                asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _set_date(self) -> None:
        self.state.default_headers = [(b"date", formatdate(self.clock.now().timestamp(), usegmt=True).encode())]
