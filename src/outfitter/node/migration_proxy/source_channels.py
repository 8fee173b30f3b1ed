"""The side of the source: unix sockets in the folder of the source's pod, on which libvirt and QEMU there connect, and a TLS
connection to the target's agent for each. Called by `migration_proxy.py`.

The folder is the launcher's, which is not trusted: nothing in it is followed, and a file there is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from pathlib import Path

from outfitter.api.hypervisor import MigrationTarget
from outfitter.api.launcher import launcher_paths
from outfitter.errors import HypervisorError, NotReady
from outfitter.node.migration_proxy import proxy_protocol as protocol
from outfitter.node.migration_proxy.byte_relay import ByteStream, keep_alive, relay
from outfitter.node.migration_proxy.target_listener import LIMIT, MAX_CONNECTIONS

log = logging.getLogger(__name__)
CONNECT_PATIENCE = 5.0  # seconds for a connection to the target's agent


class SourceChannels:
    """Of one migration."""

    def __init__(self, folder: Path, target: MigrationTarget, context: ssl.SSLContext) -> None:
        self._folder, self.target, self._context = folder, target, context
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[object]] = set()

    async def probe(self) -> None:
        """NotReady: the target's agent does not accept connections of this migration, or not yet."""
        (await self._dial(protocol.PROBE)).abort()

    async def open(self) -> None:
        """HypervisorError: the sockets cannot be created."""
        if self._servers:
            return
        try:
            folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise HypervisorError(f"the folder of the pod cannot be opened: {error}") from error
        try:
            for channel, name in launcher_paths.CHANNELS.items():
                self._servers.append(await self._listen(folder, channel, name))
        except OSError as error:
            await self.close()
            raise HypervisorError(f"the node agent cannot listen in {self._folder}: {error}") from error
        finally:
            os.close(folder)

    async def _listen(self, folder: int, channel: str, name: str) -> asyncio.Server:
        """The socket is for the group of the folder, which the kubelet gives to the pod. Its path is too long for an address:
        one below /proc/self/fd is not."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        old = os.umask(0o007)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{name}")
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(old)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connected(channel, ByteStream(reader, writer))

        return await asyncio.start_unix_server(connected, sock=listener, limit=LIMIT)

    async def _connected(self, channel: str, launcher: ByteStream) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MAX_CONNECTIONS:
            launcher.abort()
            return
        self._connections.add(task)
        try:
            await relay(launcher, await self._dial(channel))
        except NotReady as error:
            log.warning("migration %s: %s", self.target.migration, error.message)
        except asyncio.CancelledError:  # by `close`; asyncio would log it as an error
            launcher.abort()
        finally:
            self._connections.discard(task)
            launcher.abort()

    async def _dial(self, channel: str) -> ByteStream:
        host, _, port = self.target.address.rpartition(":")
        stream: ByteStream | None = None
        try:
            async with asyncio.timeout(CONNECT_PATIENCE):
                stream = ByteStream(*await asyncio.open_connection(
                    host.strip("[]"), int(port), ssl=self._context, server_hostname=self.target.migration, limit=LIMIT))
                keep_alive(stream)
                stream.writer.write(protocol.hello(channel))
                await stream.writer.drain()
                why = protocol.refusal(await stream.reader.readline())
        except (OSError, ValueError, TimeoutError) as error:
            why = str(error) or f"no answer for {CONNECT_PATIENCE:.0f} s"
        except asyncio.CancelledError:
            if stream is not None:
                stream.abort()
            raise
        if why and stream is not None:
            stream.abort()
        if why or stream is None:
            raise NotReady(f"the node agent of the target does not accept the connection at {self.target.address}: {why}")
        return stream

    async def close(self) -> None:
        """Breaks what is being copied."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        tasks = [task for task in self._connections if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                for name in launcher_paths.CHANNELS.values():
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder)
            finally:
                os.close(folder)
