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
from outfitter.node.device_manager.plugin_resource import SocketId, socket_id
from outfitter.node.kubelet.proto import plugin_registration_v1_pb2 as pb
from outfitter.node.kubelet.unix_channel import unix_channel
from outfitter.store.clock import Clock

log = logging.getLogger(__name__)
FOLDER = "plugins_registry"
SERVICE = "pluginregistration.Registration"
SCAN_EVERY = 1.0  # seconds
GET_INFO, NOTIFY = 10.0, 5.0  # seconds for the plugin's answers
RETRY_FIRST, RETRY_MOST = 0.5, 122.0  # seconds; doubled each time


SocketKey = tuple[Path, SocketId]  # a socket that is created again is another one


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
        self._sockets: dict[SocketKey, asyncio.Task[None]] = {}  # -> its registration
        self._registered: dict[SocketKey, PluginInfo] = {}
        self._scan: asyncio.Task[None] | None = None
        self._removing: dict[Path, asyncio.Task[None]] = {}

    async def start(self) -> None:
        self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)  # as the kubelet's
        self._scan = asyncio.create_task(self._run())

    async def stop(self) -> None:
        tasks = [*([self._scan] if self._scan else []), *self._sockets.values(), *self._removing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            found = set(_sockets(self._folder))
            for key in [key for key in self._sockets if key not in found]:
                self._removing[key[0]] = asyncio.create_task(self._remove(key, self._sockets.pop(key)))
            for path in [path for path, removing in self._removing.items() if removing.done()]:
                del self._removing[path]
            for key in sorted(found - self._sockets.keys()):
                self._sockets[key] = asyncio.create_task(self._register(key, self._removing.pop(key[0], None)))
            await self._clock.sleep(SCAN_EVERY)

    async def _remove(self, key: SocketKey, registration: asyncio.Task[None]) -> None:
        registration.cancel()
        await asyncio.wait({registration})
        if (info := self._registered.pop(key, None)) is not None:
            await self._handlers[info.type].remove(info)

    async def _register(self, key: SocketKey, removing: asyncio.Task[None] | None) -> None:
        """Until it is registered. `removing`: of the socket that had this path before."""
        socket, delay = key[0], RETRY_FIRST
        if removing is not None:
            await asyncio.wait({removing})
        while True:
            try:
                await self._register_once(key)
            except (OutfitterError, grpc.aio.AioRpcError) as error:
                text = error.message if isinstance(error, OutfitterError) else error.details()
                log.warning("%s is not registered, and tried again in %.1f s: %s", socket, delay, text)
            else:
                return
            await self._clock.sleep(delay)
            delay = min(delay * 2, RETRY_MOST)

    async def _register_once(self, key: SocketKey) -> None:
        socket, _ = key
        async with unix_channel(socket) as channel:
            answer = await _call(channel, "GetInfo", pb.InfoRequest(), pb.PluginInfo, GET_INFO)
            if answer is None:  # what gRPC returns for it
                raise NotReady("GetInfo: the answer is not a message of this API")
            info = PluginInfo(answer.type, answer.name, Path(answer.endpoint or socket), tuple(answer.supported_versions))
            try:
                handler = self._handlers.get(info.type)
                if handler is None:
                    raise NotReady(f"plugins of the type {info.type!r} are not supported; supported are "
                                   f"{', '.join(self._handlers)}")
                await handler.add(info)
            except OutfitterError as error:
                await _notify(channel, socket, pb.RegistrationStatus(plugin_registered=False, error=error.message))
                raise
            self._registered[key] = info  # also if it is removed, or does not answer, while it is notified
            await _notify(channel, socket, pb.RegistrationStatus(plugin_registered=True))


async def _notify(channel: grpc.aio.Channel, socket: Path, status: Any) -> None:
    """A plugin that does not answer is registered all the same, or not, as a kubelet does it."""
    try:
        await _call(channel, "NotifyRegistrationStatus", status, pb.RegistrationStatusResponse, NOTIFY)
    except grpc.aio.AioRpcError as error:
        log.warning("%s did not accept its registration status: %s", socket, error.details())


async def _call(channel: grpc.aio.Channel, name: str, request: Any, answer: Any, timeout: float) -> Any:
    method: Any = channel.unary_unary(f"/{SERVICE}/{name}", request_serializer=lambda message: message.SerializeToString(),
                                      response_deserializer=answer.FromString)
    return await method(request, timeout=timeout)


def _sockets(folder: Path) -> Iterator[SocketKey]:
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
                yield Path(entry.path), socket_id(found)
