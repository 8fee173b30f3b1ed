"""Finds plugins by their sockets in `plugins_registry` (sub-folders too): asks each who it is, has it registered by what serves
its type, and reports to it whether it was. A socket that appears is registered, one that is removed is deregistered, a
recreated one both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from outfitter.errors import NotReady, OutfitterError
from outfitter.node.kubelet.proto import plugin_registration_v1_pb2 as pb
from outfitter.store.clock import Clock

log = logging.getLogger(__name__)
FOLDER = "plugins_registry"
SERVICE = "pluginregistration.Registration"
SCAN_EVERY = 1.0  # seconds
GET_INFO, NOTIFY = 10.0, 5.0  # seconds for the plugin's answers
RETRY_FIRST, RETRY_MOST = 0.5, 122.0  # seconds; doubled each time


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """Who a plugin is."""

    type: str
    name: str  # resource, or driver
    endpoint: Path  # where it is called
    versions: tuple[str, ...]


class PluginHandler(Protocol):
    """Registers plugins of one type."""

    async def add(self, info: PluginInfo) -> None:
        """NotReady: why it is not registered."""
        ...

    async def remove(self, info: PluginInfo) -> None: ...


class PluginWatcher:
    def __init__(self, folder: Path, handlers: Mapping[str, PluginHandler], *, clock: Clock) -> None:
        """`folder`: the kubelet's. `handlers` by the type of plugin."""
        self._folder, self._handlers, self._clock = folder / FOLDER, handlers, clock
        self._sockets: dict[tuple[Path, int], asyncio.Task[PluginInfo | None]] = {}  # and inode -> its registration
        self._scan: asyncio.Task[None] | None = None
        self._removing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._scan = asyncio.create_task(self._run())

    async def stop(self) -> None:
        tasks = [*([self._scan] if self._scan else []), *self._sockets.values(), *self._removing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            found = set(_sockets(self._folder))
            for key in [key for key in self._sockets if key not in found]:
                removing = asyncio.create_task(self._remove(self._sockets.pop(key)))
                self._removing.add(removing)
                removing.add_done_callback(self._removing.discard)
            for key in sorted(found - self._sockets.keys()):
                self._sockets[key] = asyncio.create_task(self._register(key[0]))
            await self._clock.sleep(SCAN_EVERY)

    async def _remove(self, registration: asyncio.Task[PluginInfo | None]) -> None:
        if not registration.done():
            registration.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            info = await registration
            if info is not None:
                await self._handlers[info.type].remove(info)

    async def _register(self, socket: Path) -> PluginInfo | None:
        """Until it is registered."""
        delay = RETRY_FIRST
        while True:
            try:
                return await self._register_once(socket)
            except (OutfitterError, grpc.aio.AioRpcError) as error:
                text = error.message if isinstance(error, OutfitterError) else error.details()
                log.warning("%s is not registered, and tried again in %.1f s: %s", socket, delay, text)
            await self._clock.sleep(delay)
            delay = min(delay * 2, RETRY_MOST)

    async def _register_once(self, socket: Path) -> PluginInfo:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=[("grpc.enable_retries", 0)]) as channel:
            answer = await _call(channel, "GetInfo", pb.InfoRequest(), pb.PluginInfo, GET_INFO)
            info = PluginInfo(answer.type, answer.name, Path(answer.endpoint or socket), tuple(answer.supported_versions))
            try:
                handler = self._handlers.get(info.type)
                if handler is None:
                    raise NotReady(f"plugins of the type {info.type!r} are not supported; supported are "
                                   f"{', '.join(self._handlers)}")
                await handler.add(info)
            except OutfitterError as error:
                status = pb.RegistrationStatus(plugin_registered=False, error=error.message)
                await _call(channel, "NotifyRegistrationStatus", status, pb.RegistrationStatusResponse, NOTIFY)
                raise
            await _call(channel, "NotifyRegistrationStatus", pb.RegistrationStatus(plugin_registered=True),
                        pb.RegistrationStatusResponse, NOTIFY)
            return info


async def _call(channel: grpc.aio.Channel, name: str, request: Any, answer: Any, timeout: float) -> Any:
    method: Any = channel.unary_unary(f"/{SERVICE}/{name}", request_serializer=lambda message: message.SerializeToString(),
                                      response_deserializer=answer.FromString)
    return await method(request, timeout=timeout)


def _sockets(folder: Path) -> Iterator[tuple[Path, int]]:
    """The sockets below a folder; names with a leading dot are skipped, links are not followed."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        with contextlib.suppress(OSError):
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                yield from _sockets(Path(entry.path))
            elif stat.S_ISSOCK(found.st_mode):
                yield Path(entry.path), found.st_ino
