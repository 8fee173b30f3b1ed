"""The launcher's unix socket: the protocol of `api.launcher_protocol` for one `VmLauncher`. Only root and the launcher's own
user may connect, and every limit is checked before anything is done."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from outfitter.api.launcher import launcher_protocol as protocol
from outfitter.api.launcher.launcher_protocol import (
    LauncherAnswer,
    LauncherHello,
    LauncherRequest,
    MigrateVmi,
    NicCall,
    PlugNic,
    StartVmi,
    VmCall,
)
from outfitter.errors import BadRequest, OutfitterError, StartupRefused
from outfitter.launcher.pod.vm_launcher import VmLauncher

log = logging.getLogger(__name__)
MAX_PATH = 107  # bytes of a unix socket's path
MAX_CONNECTIONS = 8  # the agent has one; another may be open while it is restarted
MAX_REQUESTS = 16  # of a connection that are not answered yet
HELLO_PATIENCE = 10.0  # seconds for the first line
CLOSE_PATIENCE = 5.0  # seconds for answers that are being written when the launcher ends
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class LauncherServer:
    def __init__(self, launcher: VmLauncher, path: Path, *, hello_patience: float = HELLO_PATIENCE) -> None:
        self._launcher, self._path, self._hello_patience = launcher, path, hello_patience
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def start(self) -> None:
        """StartupRefused: nothing can listen there."""
        if len(os.fsencode(self._path)) > MAX_PATH:
            raise StartupRefused(f"{self._path} is too long for a unix socket, which may have {MAX_PATH} bytes: choose a "
                                 "shorter --socket")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._remove()
            old = os.umask(0o177)
            try:
                listener = socket.socket(socket.AF_UNIX)
                listener.bind(str(self._path))
            finally:
                os.umask(old)
            self._server = await asyncio.start_unix_server(self._connected, sock=listener, limit=protocol.MAX_MESSAGE)
        except OSError as error:
            raise StartupRefused(f"the launcher cannot listen at {self._path}: {error}") from error

    def _remove(self) -> None:
        """A socket of an earlier process. Another file is not ours."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise StartupRefused(f"{self._path} exists and is not a socket: choose another --socket")
            self._path.unlink()

    async def close(self) -> None:
        """Answers that are being written are completed; the socket is removed."""
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*(connection.close() for connection in list(self._connections)))
        with contextlib.suppress(OSError):
            self._remove()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self._launcher, reader, writer, self._hello_patience)
        if (why := _refused(writer)) or len(self._connections) >= MAX_CONNECTIONS:
            log.warning("a connection was refused: %s", why or f"{MAX_CONNECTIONS} are open")
            writer.transport.abort()
            return
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)


def _refused(writer: asyncio.StreamWriter) -> str:
    """Why a peer may not connect; empty if it may."""
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as peer:
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return "" if uid in (0, os.geteuid()) else f"user {uid} is neither root nor the launcher's user {os.geteuid()}"


class _Connection:
    def __init__(
        self, launcher: VmLauncher, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello_patience: float
    ) -> None:
        self._launcher, self._reader, self._writer, self._hello_patience = launcher, reader, writer, hello_patience
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        try:
            async with asyncio.timeout(self._hello_patience):
                await self._greet()
            self._launcher.on_change(self._changed)
            try:
                while (line := await self._line()) is not None:
                    await self._accept(protocol.decode(line, LauncherRequest))
            finally:
                self._launcher.remove_listener(self._changed)
        except (OutfitterError, TimeoutError, OSError) as error:
            log.warning("a connection was ended: %s", str(error) or "no hello came in time")
            if isinstance(error, OutfitterError):
                self._send(LauncherAnswer(error=protocol.fault_of(error)))
        finally:
            for task in self._tasks:
                task.cancel()
            with contextlib.suppress(OSError):
                self._writer.close()

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_PATIENCE)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_PATIENCE):
                await self._writer.drain()
            self._writer.close()

    async def _greet(self) -> None:
        line = await self._line()
        if line is None:
            return
        hello = protocol.decode(line, LauncherRequest).hello
        if hello is None:
            raise BadRequest(f"the first line is a hello with the protocol's version, {protocol.version_text()}")
        self._send(LauncherAnswer(hello=LauncherHello(protocol.version_text())))
        protocol.check_version(hello.version)

    async def _line(self) -> bytes | None:
        """None: the peer has closed."""
        try:
            line = await self._reader.readline()
        except ValueError:
            raise BadRequest(f"a message may have {protocol.MAX_MESSAGE} bytes, and this one is longer") from None
        return line if line.endswith(b"\n") else None

    async def _accept(self, request: LauncherRequest) -> None:
        if len(self._tasks) >= MAX_REQUESTS:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.ensure_future(self._answer(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: LauncherRequest) -> None:
        try:
            self._send(LauncherAnswer(id=request.id, result=protocol.raw(await self._call(request))))
        except OutfitterError as error:
            self._send(LauncherAnswer(id=request.id, error=protocol.fault_of(error)))
        except Exception as error:
            log.exception("%s: this is a fault of outfitter", request.method)
            fault = OutfitterError(f"{request.method} failed in the launcher: {error!r}")
            self._send(LauncherAnswer(id=request.id, error=protocol.fault_of(fault)))
        with contextlib.suppress(OSError):
            await self._writer.drain()

    async def _call(self, request: LauncherRequest) -> Any:
        launcher = self._launcher
        without: dict[str, Callable[[], Awaitable[Any]]] = {"state": launcher.state, "abilities": launcher.abilities}
        if request.method in without:
            return await without[request.method]()
        methods: dict[str, tuple[Callable[[Any], Awaitable[Any]], type]] = {
            "start": (launcher.start, StartVmi),
            "pause": (launcher.pause, VmCall), "unpause": (launcher.unpause, VmCall), "reset": (launcher.reset, VmCall),
            "reboot": (launcher.reboot, VmCall), "stop": (launcher.stop, VmCall),
            "attach": (launcher.attach, PlugNic), "detach": (launcher.detach, NicCall), "link": (launcher.link, NicCall),
            "expect": (launcher.expect, StartVmi), "migrate": (launcher.migrate, MigrateVmi),
            "migration": (launcher.migration, VmCall), "abort": (launcher.abort, VmCall)}
        if request.method in methods:
            method, params = methods[request.method]
            return await method(protocol.decode(request.params, params))
        raise BadRequest(f"this launcher has no method {request.method[:40]!r}; it has {', '.join([*without, *methods])}")

    def _changed(self, uid: str) -> None:
        self._send(LauncherAnswer(changed=uid))

    def _send(self, message: LauncherAnswer) -> None:
        if self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > protocol.MAX_MESSAGE:
            log.warning("a connection was ended: its peer does not read")
            self._writer.transport.abort()
            return
        self._writer.write(protocol.encode(message))
