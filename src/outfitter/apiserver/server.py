"""An ASGI application on a port over TLS, with limits and an orderly end, in the caller's event loop: `TlsServer`, whose
certificate can be replaced while it serves, for the webhook; and `Server`, with certificates in files, for the embedded API
server."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import resource
import socket
import ssl
from typing import Protocol

import uvicorn

from outfitter.apiserver.body_transfer import InflightBytes, Receive, Send
from outfitter.apiserver.http_connection import HttpConnection
from outfitter.apiserver.listener import Listener
from outfitter.apiserver.request import Scope
from outfitter.errors import StartupRefused
from outfitter.inventory.server_limits import DEFAULT, ServerLimits
from outfitter.store.clock import Clock, SystemClock

log = logging.getLogger(__name__)
GRACE = 3.0  # seconds that requests get when the server stops
LINGER = 0.25  # seconds that clients get then to read the rest, if nothing else is to be done for them
OTHER_FILES = 256  # files and sockets of this process beside the connections


class ServedApp(Protocol):
    """The API server's application, the aggregated API or the webhook."""

    inflight: InflightBytes

    def stop(self) -> None:
        """End what would go on for long."""
        ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class TlsServer:
    """Serves until stopped."""

    def __init__(
        self, app: ServedApp, *, name: str, host: str, port: int, remedy: str, limits: ServerLimits = DEFAULT,
        clock: Clock | None = None, keep_alive: int = 60,
    ) -> None:
        """`host`: "" for all addresses. `name`: what it is in messages; `remedy`: how a user chooses where it listens.
        `keep_alive`: seconds after which a connection without a request is closed."""
        self._app, self._host, self._port, self._name, self._remedy = app, host, port, name, remedy
        self._limits, self._clock = limits, clock or SystemClock()
        self._keep_alive = keep_alive
        self._context: ssl.SSLContext | None = None
        self.listener: Listener | None = None

    @property
    def port(self) -> int:
        """Where it listens; the one it was given when that was not 0."""
        return self._port

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"https://{host}:{self._port}"

    def use(self, context: ssl.SSLContext) -> None:
        """The certificate, and what is trusted, of connections from now on."""
        self._context = context
        if self.listener is not None:
            self.listener.context = context

    def end_connections(self) -> None:
        """End those that are open, each after the request that it answers: for when what they were trusted by has changed."""
        for connection in list(self.listener.connections) if self.listener is not None else ():
            connection.finish()

    async def start(self) -> None:
        """Return when it listens. StartupRefused when it cannot."""
        assert self._context is not None
        listening = self._listen()
        try:
            config = uvicorn.Config(self._app, ws="none", lifespan="off", log_config=None, access_log=False,
                                    timeout_keep_alive=self._keep_alive, interface="asgi3", proxy_headers=False)
            config.load()
            self.listener = Listener(config, self._context, self._limits, self._clock)
        except BaseException:
            listening.close()
            raise
        self._app.inflight = InflightBytes(self._limits.max_inflight_bytes, self.listener.refusals.add)
        _allow_files(self._limits.max_connections + OTHER_FILES)
        self.listener.start(listening)
        log.info("%s listens on %s", self._name, self.url)

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host or not self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if not self._host:  # all addresses, of both families
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((self._host, self._port))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            why = "another program listens there" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
            raise StartupRefused(
                f"{self._name} cannot listen on {self._host}:{self._port}: {why}; {self._remedy}") from error
        self._port = listener.getsockname()[1]
        return listener

    async def stop(self) -> None:
        """Finish what is under way for a few seconds, then close. May be called twice."""
        if self.listener is None:
            return
        listener, self.listener = self.listener, None
        await listener.close()
        self._app.stop()
        loop = asyncio.get_running_loop()
        begin = loop.time()
        idle_since: dict[HttpConnection, float] = {}
        while listener.connections and loop.time() < begin + GRACE:
            for connection in list(listener.connections):
                if connection.finish():
                    idle_since[connection] = loop.time()
                elif loop.time() - idle_since.setdefault(connection, loop.time()) >= LINGER:
                    connection.transport.abort()
            await asyncio.sleep(0.01)
        for connection in list(listener.connections):
            connection.transport.abort()
        if listener.state.tasks:
            await asyncio.wait(listener.state.tasks, timeout=GRACE)
        for task in listener.state.tasks:
            task.cancel()


class Server(TlsServer):
    """Serves an application until stopped. Only on the loopback: what it serves can hand out hardware."""

    def __init__(
        self,
        app: ServedApp,
        *,
        certfile: str | os.PathLike[str],
        keyfile: str | os.PathLike[str],
        ca: str | os.PathLike[str],
        host: str = "127.0.0.1",
        port: int = 0,
        limits: ServerLimits = DEFAULT,
        clock: Clock | None = None,
    ) -> None:
        if not _loopback(host):
            raise StartupRefused(f"the API server listens on this host alone: {host} is not a loopback address, 127.0.0.1 "
                                 "is")
        super().__init__(app, name="the API server", host=host, port=port, limits=limits, clock=clock,
                         remedy="choose another with --port, or a free one with --port 0")
        self._files = (certfile, keyfile, ca)

    async def start(self) -> None:
        self.use(self._tls())
        await super().start()

    def _tls(self) -> ssl.SSLContext:
        certfile, keyfile, ca = self._files
        context = server_context()
        try:
            context.load_cert_chain(certfile, keyfile)
            context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            raise StartupRefused(f"the API server cannot use its certificates ({certfile}, {keyfile}, {ca}): "
                                 f"{error}") from error
        return context


def _allow_files(number: int) -> None:
    """Raise this process's limit of open files so far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < number:
        log.warning("at most %d files can be open at once (ulimit -n): fewer connections than the limit of the server", most)


def server_context() -> ssl.SSLContext:
    """How all our servers use TLS. The certificate, and the authority of client certificates, are still to be loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL  # a client may come with a token instead
    context.set_alpn_protocols(["http/1.1"])
    return context


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
