"""The node agent's connection to the launcher of one pod (`api.launcher_protocol`). What comes from the other end is not
trusted: a guest that escaped into its launcher writes it. Called by `launchers.py`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from outfitter.api.launcher import launcher_protocol as protocol
from outfitter.api.launcher.launcher_protocol import LauncherAnswer, LauncherHello, LauncherRequest, LauncherState
from outfitter.api.rejection import RejectionCode, carrying
from outfitter.errors import HypervisorAway, HypervisorError, OutfitterError

R = TypeVar("R")
CONNECT_PATIENCE = 5.0  # seconds for the launcher's hello
CALL_PATIENCE = 60.0  # seconds for an answer: libvirt may start a domain in many
RETRY = 1.0


class NoLauncher(Exception):
    """No process listens at a socket, or there is no socket: nothing runs there."""


def away(message: str, retry_after: float = RETRY) -> HypervisorAway:
    return carrying(HypervisorAway(message, retry_after=retry_after), RejectionCode.LAUNCHER_AWAY)


class LauncherConnection:
    """`changed` is called when the domain may have changed, and when the connection is lost."""

    def __init__(
        self, pod: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changed: Callable[[], None],
        patience: float = CALL_PATIENCE,
    ) -> None:
        self.pod, self._reader, self._writer, self._changed, self._patience = pod, reader, writer, changed, patience
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._state: LauncherState | None = None  # as last read; None: it may have changed
        self.known: LauncherState | None = None  # as last read, however old
        self._reading: asyncio.Task[None] | None = None
        self.lost: HypervisorAway | None = None  # why nothing can be called any more

    @classmethod
    async def open(
        cls, pod: str, path: Path, changed: Callable[[], None], *, connect_patience: float = CONNECT_PATIENCE,
        patience: float = CALL_PATIENCE,
    ) -> LauncherConnection:
        """NoLauncher, or HypervisorAway: it listens and does not answer as it should."""
        client = await connected_socket(path, connect_patience)
        reader, writer = await asyncio.open_unix_connection(sock=client, limit=protocol.MAX_MESSAGE)
        connection = cls(pod, reader, writer, changed, patience)
        try:
            async with asyncio.timeout(connect_patience):
                await connection._greet()
        except (TimeoutError, OSError) as error:
            writer.transport.abort()
            raise away(f"the launcher of pod {pod} accepted the connection and does not answer: {error}") from error
        except OutfitterError:
            writer.transport.abort()
            raise
        connection._reading = asyncio.ensure_future(connection._read())
        return connection

    async def _greet(self) -> None:
        self._writer.write(protocol.encode(LauncherRequest(hello=LauncherHello(protocol.version_text()))))
        answer = await self._message()
        if answer is None:
            raise away(f"the launcher of pod {self.pod} closed the connection")
        if answer.error is not None:
            raise protocol.error_of(answer.error)
        protocol.check_version(answer.hello.version if answer.hello is not None else "none")

    async def _message(self) -> LauncherAnswer | None:
        try:
            line = await self._reader.readline()
        except ValueError:
            raise away(f"the launcher of pod {self.pod} sent a message of more than {protocol.MAX_MESSAGE} bytes") from None
        return protocol.decode(line, LauncherAnswer) if line.endswith(b"\n") else None

    async def _read(self) -> None:
        why = away(f"the launcher of pod {self.pod} has ended or closed the connection")
        try:
            while (answer := await self._message()) is not None:
                self._handle(answer)
        except OSError as error:
            why = away(f"the connection to the launcher of pod {self.pod} broke: {error}")
        except OutfitterError as error:
            why = away(f"the launcher of pod {self.pod} sends what is not the launcher protocol: {error.message}", 30.0)
        self._lose(why)

    def _handle(self, answer: LauncherAnswer) -> None:
        if answer.changed is not None:
            self._state = None
            self._changed()
            return
        future = self._calls.pop(answer.id, None)
        if future is None or future.done():
            return
        if answer.error is not None:
            future.set_exception(protocol.error_of(answer.error))
        else:
            future.set_result(answer.result)

    def _lose(self, why: HypervisorAway) -> None:
        if self.lost is not None:
            return
        self.lost = why
        self._writer.transport.abort()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(why)
        self._calls.clear()
        self._changed()

    async def call(self, method: str, type_: type[R], params: Any = None) -> R:
        """HypervisorAway: no answer in time. Else what the launcher raised."""
        if self.lost is not None:
            raise self.lost
        number = next(self._ids)
        content = protocol.raw(params if params is not None else {})
        message = protocol.encode(LauncherRequest(id=number, method=method, params=content))
        if len(message) > protocol.MAX_MESSAGE:
            raise HypervisorError(f"{method}: the message has {len(message)} bytes, and may have {protocol.MAX_MESSAGE}: the "
                                  "VMI is too large")
        future: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        try:
            self._writer.write(message)
            async with asyncio.timeout(self._patience):  # wait_for of Python 3.11 may swallow that the caller is cancelled
                result = await future
        except TimeoutError as error:
            why = away(f"the launcher of pod {self.pod} has not answered {method} for {self._patience:.0f} s")
            self._lose(why)
            raise why from error
        finally:
            self._calls.pop(number, None)
        return protocol.decode(result, type_)

    async def state(self) -> LauncherState:
        """The domain and how it ended; read again only after a change."""
        if self._state is None:
            self._state = state = await self.call("state", LauncherState)
            self.known = state
            return state
        return self._state

    def stale(self) -> None:
        """After a call that changes the domain: its event may come later than its answer."""
        self._state = None

    async def close(self) -> None:
        self._changed = _nothing
        self._lose(away(f"the connection to the launcher of pod {self.pod} was closed"))
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading


def _nothing() -> None:
    """After `close` nothing is reported."""


async def connected_socket(path: Path, patience: float) -> socket.socket:
    """A socket that is connected to a launcher. The launcher can replace the file in its folder: a link to another socket of
    the host is not followed. The path of a pod's volume is too long for a socket's address, one below /proc/self/fd is not."""
    try:
        found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NoLauncher(str(error)) from error
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise NoLauncher(f"{path} is not a socket")
        async with asyncio.timeout(patience):
            await asyncio.get_running_loop().sock_connect(client, f"/proc/self/fd/{found}")
    except (ConnectionRefusedError, FileNotFoundError) as error:
        client.close()
        raise NoLauncher(str(error)) from error
    except (TimeoutError, OSError) as error:
        client.close()
        raise away(f"the launcher at {path} cannot be reached: {error}") from error
    except BaseException:
        client.close()
        raise
    finally:
        os.close(found)
    return client
