"""Keeps a socket below `device-plugins` in the kubelet's folder for each resource, and each registered: the kubelet removes all
sockets there when it starts, which is how a plugin finds out that it must register again. Also reads which resources there are,
and has allocations compared with the kubelet's pods. Started and stopped by `outfit node`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from outfitter.errors import CommandFailed, NotReady, OutfitterError
from outfitter.node.device_manager.device_manager import FOLDER
from outfitter.node.device_manager.plugin_resource import VERSION
from outfitter.node.device_manager.registration import SERVICE, SOCKET
from outfitter.node.device_plugin.plugin_resources import DeviceSelector
from outfitter.node.device_plugin.plugin_service import DevicePluginService
from outfitter.node.device_plugin.pod_allocations import PodAllocations, PodList
from outfitter.node.kubelet.proto import device_plugin_v1beta1_pb2 as pb
from outfitter.node.kubelet.unix_channel import unix_channel
from outfitter.node.kubelet.unix_server import UnixServer
from outfitter.node.readers import pod_resources_client
from outfitter.store.clock import Clock

log = logging.getLogger(__name__)
CHECK_EVERY = 1.0  # seconds between two looks at the sockets
SYNC_EVERY = 5.0  # seconds between two looks at the kubelet's pods
SELECT_EVERY = 30.0  # seconds between two looks at the KubeVirt object
REGISTER = 10.0  # seconds for a Register call
STOP_GRACE = 6.0  # seconds for calls in progress when the process ends
_Identity = tuple[int, int]  # inode and time of a socket: another after a restart of the kubelet


@dataclass(slots=True)
class _ServedResource:
    server: UnixServer
    service: DevicePluginService
    registered: _Identity | None = None  # the kubelet's socket at which it is


class DevicePluginSockets:
    def __init__(
        self, allocations: PodAllocations, folder: Path, *, clock: Clock,
        selectors: Callable[[], Awaitable[tuple[DeviceSelector, ...]]], changed: Callable[[], None],
    ) -> None:
        """`folder`: the kubelet's. `selectors`: what is served now. `changed`: the slices of the host must be published again,
        since other devices are offered here."""
        self.allocations, self._folder, self._clock = allocations, folder / FOLDER, clock
        self._selectors, self._changed = selectors, changed
        self._served: dict[str, _ServedResource] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._due = 0.0  # when allocations are compared next, monotonic
        self._reported: dict[str, str] = {}  # subject -> what was logged of it last

    async def start(self) -> None:
        """A kubelet that is not there is waited for."""
        self._tasks = [asyncio.create_task(self._keep(self._serve, CHECK_EVERY)),
                       asyncio.create_task(self._keep(self._sync, CHECK_EVERY)),
                       asyncio.create_task(self._keep(self.select, SELECT_EVERY))]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for served in self._served.values():
            served.service.end_streams()
        await asyncio.gather(*(served.server.stop(STOP_GRACE) for served in self._served.values()))
        self._served.clear()

    async def select(self) -> None:
        """Read what is to be served."""
        host, wanted = self.allocations.host, await self._selectors()
        if wanted != host.plugin_selectors:
            host.plugin_selectors = wanted
            self._changed()

    async def _keep(self, work: Callable[[], Awaitable[None]], every: float) -> None:
        while True:
            try:
                await work()
                self._report(work.__name__, "")
            except OutfitterError as error:
                self._report(work.__name__, error.message)
            await self._clock.sleep(every)

    # -- sockets

    async def _serve(self) -> None:
        wanted = self.allocations.resources()
        for resource in [name for name in self._served if name not in wanted]:
            await self._served.pop(resource).server.stop(0)
        kubelet = _identity(self._folder / SOCKET)
        if wanted and kubelet is None:
            raise NotReady(f"there is no socket {self._folder / SOCKET}: waiting for the kubelet, which creates it")
        for resource in wanted if kubelet is not None else ():
            try:
                await self._serve_resource(resource, kubelet)
                self._report(resource, "")
            except OutfitterError as error:
                self._report(resource, error.message)

    async def _serve_resource(self, resource: str, kubelet: _Identity | None) -> None:
        served = self._served.get(resource)
        if served is None:
            service = DevicePluginService(resource, self.allocations, clock=self._clock, allocated=self.look_soon)
            served = self._served[resource] = _ServedResource(
                UnixServer(self._folder / socket_name(resource), service.handlers()), service)
        if not served.server.is_served():
            await served.server.stop(0)
            await served.server.start()
            served.registered = None
        if served.registered != kubelet:
            await self._register(resource, served.server.path.name)
            served.registered = kubelet
            log.info("%s: registered at the kubelet", resource)

    async def _register(self, resource: str, endpoint: str) -> None:
        """NotReady: the kubelet refuses, or does not answer."""
        async with unix_channel(self._folder / SOCKET) as channel:
            call: Any = channel.unary_unary(f"/{SERVICE}/Register", request_serializer=pb.RegisterRequest.SerializeToString,
                                            response_deserializer=pb.Empty.FromString)
            options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
            try:
                await call(pb.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=options),
                           timeout=REGISTER)
            except grpc.aio.AioRpcError as error:
                raise NotReady(f"the kubelet does not register {resource}: {error.details() or error.code().name}") from error

    # -- pods

    def look_soon(self) -> None:
        """A pod ended, or a device was allocated."""
        self._due = 0.0

    async def _sync(self) -> None:
        if self._clock.monotonic() >= self._due:
            self._due = self._clock.monotonic() + SYNC_EVERY
            if self.allocations.resources():
                await self.allocations.sync()

    def _report(self, subject: str, message: str) -> None:
        if message and message != self._reported.get(subject):
            log.warning("%s: %s", self.allocations.host.name, message)
        self._reported[subject] = message


async def kubelet_pods(folder: Path) -> PodList:
    """What the kubelet of this folder shows. NotReady: it does not answer."""
    try:
        pods = await asyncio.to_thread(pod_resources_client.pods, folder)
    except CommandFailed as error:
        raise NotReady(f"the kubelet does not show its pods: {error.message}") from error
    users: Mapping[tuple[str, str], tuple[str, str]] = {
        (resource, each): (pod.namespace, pod.name) for pod in pods for container in pod.containers
        for resource, devices in container.devices.items() for each in devices}
    return PodList(frozenset((pod.namespace, pod.name) for pod in pods), users)


def socket_name(resource: str) -> str:
    return f"outfitter-{re.sub(r'[^A-Za-z0-9]+', '-', resource)}.sock"


def _identity(path: Path) -> _Identity | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
