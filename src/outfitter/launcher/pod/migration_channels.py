"""The sockets over which a launcher's VM migrates, in the folder that the launcher shares with the node agent. On the source
the agent listens on them. On the target the launcher does, from `expect` on: for libvirt it passes bytes on to its daemon,
whose own socket is in no shared folder. Memory goes to a socket that QEMU, or a simulated hypervisor, listens on. Used by
`vm_launcher.py`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from outfitter.api.hypervisor import MigrationTarget
from outfitter.api.launcher import launcher_paths
from outfitter.api.launcher.launcher_protocol import ExpectedVmi
from outfitter.errors import HypervisorError
from outfitter.launcher.migration.simulated_channel import CHANNEL_SCHEME, ChannelSimulated

log = logging.getLogger(__name__)
CHUNK = 1 << 16  # bytes


class MigrationChannels:
    def __init__(self, folder: Path, hypervisor: ChannelSimulated | str) -> None:
        """`hypervisor`: the simulated one, or the URI of libvirt."""
        self._folder, self._hypervisor = folder, hypervisor
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[object]] = set()

    def _path(self, channel: str) -> Path:
        return self._folder / launcher_paths.CHANNELS[channel]

    async def open(self, drive: str) -> ExpectedVmi:
        """Of a target: listen, unless it does. HypervisorError: nothing can arrive here."""
        if isinstance(self._hypervisor, ChannelSimulated):
            if self._server is None:
                self._server = await self._listen("memory", self._hypervisor.receive_over)
            return ExpectedVmi(drive)
        uri = urlsplit(self._hypervisor)
        daemon = parse_qs(uri.query).get("socket", [""])[0]
        if not daemon:
            raise HypervisorError(f"VMs cannot migrate to {self._hypervisor}: the URI names no socket of libvirt")
        if self._server is None:
            self._server = await self._listen("libvirt", functools.partial(relay, daemon))
        return ExpectedVmi(drive, uri.path.strip("/"))

    def target(self, expected: ExpectedVmi) -> MigrationTarget:
        """Of a source: where its hypervisor copies the domain to."""
        memory = quote(str(self._path("memory")))
        if isinstance(self._hypervisor, ChannelSimulated):
            return MigrationTarget(f"{CHANNEL_SCHEME}{memory}", expected.drive)
        address = f"qemu+unix:///{expected.driver or 'session'}?socket={quote(str(self._path('libvirt')))}"
        return MigrationTarget(address, expected.drive, data=f"unix://{memory}")

    async def close(self, *, arrived: bool = False) -> None:
        """Of a target: nothing more arrives. Connections of a domain that has arrived end by themselves: over them the source
        learns so, and would run it on otherwise."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for serving in () if arrived else self._relays:
            serving.cancel()
        for channel in launcher_paths.CHANNELS if server is not None else ():
            with contextlib.suppress(OSError):
                self._path(channel).unlink()

    async def _listen(
        self, channel: str, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> asyncio.Server:
        path = self._path(channel)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving = asyncio.current_task()
            assert serving is not None
            self._relays.add(serving)
            try:
                await serve(reader, writer)
            except asyncio.CancelledError:  # by `close`; asyncio would log it as an error
                writer.close()
            finally:
                self._relays.discard(serving)

        old = os.umask(0o177)
        try:
            path.unlink(missing_ok=True)
            return await asyncio.start_unix_server(connected, str(path))
        except OSError as error:
            raise HypervisorError(f"the launcher cannot listen at {path}: {error}") from error
        finally:
            os.umask(old)


async def relay(daemon: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on to a unix socket and back, until one side closes."""
    writers = [writer]
    try:
        there_reader, there_writer = await asyncio.open_unix_connection(daemon)
        writers.append(there_writer)
        both = [asyncio.ensure_future(_copy(reader, there_writer)), asyncio.ensure_future(_copy(there_reader, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
    except OSError as error:
        log.warning("a migration's connection to libvirt ended: %s", error)
    finally:
        for one in writers:
            one.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while content := await reader.read(CHUNK):
            writer.write(content)
            await writer.drain()
