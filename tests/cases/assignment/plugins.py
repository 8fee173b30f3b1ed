"""Played device plugins: gRPC servers on sockets below a kubelet folder, which count what they are called for and answer as the
case says; and what counts the agent's calls, so that the runner knows when none is under way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from outfitter.node.device_manager.plugin_client import PluginClient
from outfitter.node.device_manager.plugin_resource import PluginDevice
from outfitter.node.kubelet.proto import device_plugin_v1beta1_pb2 as pb
from outfitter.node.kubelet.proto import plugin_registration_v1_pb2 as registration_pb

T = TypeVar("T")
WAIT = 120.0  # seconds of real time for anything
DIALLED = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]  # each channel dials, as other processes do


class Wire:
    """Calls of the agents to plugins that are under way, and what they have received of each stream."""

    def __init__(self) -> None:
        self.calls = 0
        self.received: dict[Path, list[list[int]]] = {}  # socket -> messages of each open stream

    def connect(self, socket: Path) -> PluginClient:
        return CountedClient(socket, self)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1

    def stream(self, socket: Path, messages: AsyncIterator[T]) -> AsyncIterator[T]:
        """The messages of a stream, counted when each has been dealt with."""
        count, streams = [0], self.received.setdefault(socket, [])
        streams.append(count)

        async def counted() -> AsyncIterator[T]:
            try:
                async for message in messages:
                    yield message
                    count[0] += 1
            finally:
                streams.remove(count)

        return counted()


class CountedClient(PluginClient):
    def __init__(self, socket: Path, wire: Wire) -> None:
        super().__init__(socket)
        self._path, self._wire = socket, wire

    async def _call(self, *args: Any) -> Any:
        with self._wire.call():
            return await super()._call(*args)

    def watch(self) -> AsyncIterator[Sequence[PluginDevice]]:
        return self._wire.stream(self._path, super().watch())


class PlayedPlugin:
    def __init__(self, name: str, keys: Mapping[str, Any], folder: Path,
                 seen: Callable[[str, str], Awaitable[None]]) -> None:
        """`seen`: called with the method and this plugin's name at each call, before it is answered."""
        self.name, self.keys, self._folder, self._seen = name, dict(keys), folder, seen
        self.watched = keys.get("via") == "watcher"
        self.socket = folder / ("plugins_registry" if self.watched else "device-plugins") / f"{name}.sock"
        self.calls: list[tuple[str, Any]] = []
        self.notified: tuple[bool, str] | None = None
        self.asked = asyncio.Event()  # set when it was notified
        self._server: grpc.aio.Server | None = None
        self._streams: list[asyncio.Queue[None]] = []
        self.sent: list[list[int]] = []  # of each open stream, also what is about to be sent

    @property
    def running(self) -> bool:
        return self._server is not None

    @property
    def devices(self) -> Mapping[str, Sequence[int]]:
        return self.keys.get("devices") or {}

    # -- its life

    async def listen(self) -> None:
        await self.stop()
        self.asked.clear()
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([
            service("v1beta1.DevicePlugin", {
                "GetDevicePluginOptions": (self._options, pb.Empty), "GetPreferredAllocation": (
                    self._preferred, pb.PreferredAllocationRequest),
                "Allocate": (self._allocate, pb.AllocateRequest),
                "PreStartContainer": (self._prestart, pb.PreStartContainerRequest)}, {"ListAndWatch": (self._watch, pb.Empty)}),
            service("pluginregistration.Registration", {
                "GetInfo": (self._info, registration_pb.InfoRequest),
                "NotifyRegistrationStatus": (self._notify, registration_pb.RegistrationStatus)})])
        server.add_insecure_port(f"unix:{self.socket}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        self.socket.unlink(missing_ok=True)
        await server.stop(None)

    async def register(self) -> str | None:
        """Call Register, unless it is found by its socket. The error; None: registered."""
        if self.watched:
            return None
        return await register(self._folder, self.keys.get("version", "v1beta1"), self.keys["resource"], self.socket.name)

    def update(self, changes: Mapping[str, Any]) -> None:
        if "devices" in changes and "unhealthy" not in changes:
            self.keys.pop("unhealthy", None)
        self.keys |= changes
        if "devices" in changes or "unhealthy" in changes:
            for queue, sent in zip(self._streams, self.sent, strict=True):
                queue.put_nowait(None)
                sent[0] += 1

    def counts(self) -> list[int]:
        return sorted(each[0] for each in self.sent)

    # -- its services

    def _list(self) -> Any:
        unhealthy = set(map(str, self.keys.get("unhealthy") or ()))
        return pb.ListAndWatchResponse(devices=[
            pb.Device(ID=str(each), health="Unhealthy" if str(each) in unhealthy else "Healthy",
                      topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes]) if nodes else None)
            for each, nodes in self.devices.items()])

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        queue: asyncio.Queue[None] = asyncio.Queue()
        queue.put_nowait(None)
        sent = [1]
        self._streams.append(queue)
        self.sent.append(sent)
        try:
            while True:
                await queue.get()
                yield self._list()
        finally:
            self._streams.remove(queue)
            self.sent.remove(sent)

    async def _begin(self, method: str, what: Any, context: Any) -> None:
        self.calls.append((method, what))
        await self._seen(method, self.name)
        text = (self.keys.get("fails") or {}).get(method)
        if text is not None:
            await context.abort(grpc.StatusCode.UNKNOWN, str(text))

    async def _options(self, request: Any, context: Any) -> Any:
        await self._begin("GetDevicePluginOptions", None, context)
        return pb.DevicePluginOptions(pre_start_required=bool(self.keys.get("prestart")),
                                      get_preferred_allocation_available=self._prefers)

    @property
    def _prefers(self) -> bool:
        return "prefers" in self.keys or "GetPreferredAllocation" in (self.keys.get("fails") or {})

    async def _preferred(self, request: Any, context: Any) -> Any:
        answers = []
        for each in request.container_requests:
            await self._begin("GetPreferredAllocation", {
                "available": list(each.available_deviceIDs), "must": list(each.must_include_deviceIDs),
                "size": each.allocation_size}, context)
            answers.append(pb.ContainerPreferredAllocationResponse(deviceIDs=map(str, self.keys.get("prefers") or ())))
        return pb.PreferredAllocationResponse(container_responses=answers)

    async def _allocate(self, request: Any, context: Any) -> Any:
        for each in request.container_requests:
            await self._begin("Allocate", list(each.devices_ids), context)
        answer = self.keys.get("answer") or (lambda ids: pb.ContainerAllocateResponse(envs={"DEVICES": ",".join(ids)}))
        answers = [] if "Allocate" in (self.keys.get("empty") or ()) else [
            answer(each.devices_ids) for each in request.container_requests]
        return pb.AllocateResponse(container_responses=answers)

    async def _prestart(self, request: Any, context: Any) -> Any:
        await self._begin("PreStartContainer", list(request.devices_ids), context)
        return pb.PreStartContainerResponse()

    async def _info(self, request: Any, context: Any) -> Any:
        return registration_pb.PluginInfo(type="DevicePlugin", name=self.keys["resource"], endpoint=str(self.socket),
                                          supported_versions=[self.keys.get("version", "v1beta1")])

    async def _notify(self, request: Any, context: Any) -> Any:
        self.notified = request.plugin_registered, request.error
        self.asked.set()
        return registration_pb.RegistrationStatusResponse()


async def register(folder: Path, version: str, resource: str, endpoint: str) -> str | None:
    """One Register call. The error; None: registered."""
    path = folder / "device-plugins" / "kubelet.sock"
    async with grpc.aio.insecure_channel(f"unix:{path}", options=DIALLED) as channel:
        call: Any = channel.unary_unary("/v1beta1.Registration/Register", request_serializer=_text,
                                        response_deserializer=pb.Empty.FromString)
        try:
            await call(pb.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource))
        except grpc.aio.AioRpcError as error:
            return error.details() or str(error.code())
    return None


def _text(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def service(name: str, methods: Mapping[str, tuple[Any, Any]], streams: Mapping[str, tuple[Any, Any]] | None = None) -> Any:
    return grpc.method_handlers_generic_handler(name, {
        **{method: grpc.unary_unary_rpc_method_handler(call, request_deserializer=request.FromString, response_serializer=_text)
           for method, (call, request) in methods.items()},
        **{method: grpc.unary_stream_rpc_method_handler(call, request_deserializer=request.FromString,
                                                        response_serializer=_text)
           for method, (call, request) in (streams or {}).items()}})
