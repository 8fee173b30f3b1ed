"""The API server on a port of this host: TLS, client certificates, and an orderly end, inside the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from outfitter.apiserver import auth
from outfitter.apiserver.app import ABORT, App
from outfitter.errors import StartupRefused

log = logging.getLogger(__name__)
GRACE = 3  # seconds that open requests get when the server stops


class Protocol(HttpToolsProtocol):
    """Hands the client's certificate to the application, which uvicorn does not."""

    _peer: Any = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        self._peer = tls.getpeercert() if tls else None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {auth.PEER: self._peer, ABORT: self.transport.abort}  # type: ignore[dict-item]


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the caller."""
        yield


class Server:
    """Serves an `App` until stopped. Only on the loopback: what it serves can hand out hardware."""

    def __init__(
        self,
        app: App,
        *,
        certfile: str | os.PathLike[str],
        keyfile: str | os.PathLike[str],
        ca: str | os.PathLike[str],
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        if not _loopback(host):
            raise StartupRefused(f"the API server listens on this host alone: {host} is not a loopback address, 127.0.0.1 "
                                 "is")
        self._app, self._host, self._port = app, host, port
        self._files = (certfile, keyfile, ca)
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Where it listens; the one it was given when that was not 0."""
        return self._port

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"https://{host}:{self._port}"

    async def start(self) -> None:
        """Return when it listens. StartupRefused when it cannot."""
        listener = self._listen()
        try:
            context = self._context()
            config = uvicorn.Config(
                self._app, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
                timeout_graceful_shutdown=GRACE, timeout_keep_alive=60, proxy_headers=False,
                ssl_context_factory=lambda *_: context, interface="asgi3",
            )
        except BaseException:
            listener.close()
            raise
        self._server = _Uvicorn(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="kube-api-server")
        while not self._server.started:
            if self._serving.done():
                listener.close()
                await self._serving
                raise StartupRefused(f"the API server on {self.url} ended as it started: the log says why")
            await asyncio.sleep(0.005)
        log.info("the API server listens on %s", self.url)

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._host, self._port))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            why = "another program listens there" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
            raise StartupRefused(f"the API server cannot listen on {self._host}:{self._port}: {why}; choose another with "
                                 "--port, or a free one with --port 0") from error
        self._port = listener.getsockname()[1]
        return listener

    def _context(self) -> ssl.SSLContext:
        certfile, keyfile, ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_OPTIONAL  # a client may come with a token instead
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(certfile, keyfile)
            context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            raise StartupRefused(f"the API server cannot use its certificates ({certfile}, {keyfile}, {ca}): "
                                 f"{error}") from error
        return context

    async def stop(self) -> None:
        """End the watches, finish what is under way for a few seconds, then close. May be called twice."""
        if self._server is None or self._serving is None:
            return
        self._app.stop()
        self._server.should_exit = True
        try:
            await self._serving
        finally:
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            self._server = self._serving = None


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
