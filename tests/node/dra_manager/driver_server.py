"""A DRA driver in a test: a gRPC server on a unix socket, with messages made from the protobuf definitions at test time. It
answers each claim with the devices that it was given for it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, message_factory

from tests.node.kubelet import kubelet_client

PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
PLUGIN = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
CODES = {"Unknown": 0, "Healthy": 1, "Unhealthy": 2}
_POOL = descriptor_pool.DescriptorPool()
for _file in kubelet_client.published_definitions() or kubelet_client.our_definitions():
    _POOL.AddSerializedFile(_file)


@dataclass(frozen=True)
class Info:
    """As the watcher of plugins_registry knows it."""

    name: str
    endpoint: Path
    versions: tuple[str, ...]


@dataclass(eq=False)
class DriverServer:
    name: str
    socket: Path
    devices: dict[str, list[str]] = field(default_factory=dict)  # claim ("": any) -> its devices, pool "n1", request "r"
    versions: tuple[str, ...] = ("v1.DRAPlugin", "v1.DRAResourceHealth")
    calls: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)  # service, method, claims
    errors: dict[tuple[str, str], str] = field(default_factory=dict)  # method and claim ("": the call) -> its error
    skips: set[tuple[str, str]] = field(default_factory=set)
    extra: str = ""  # the uid of a claim that is in its answers without being asked for
    hangs: asyncio.Event = field(default_factory=asyncio.Event)  # cleared: calls wait
    spoils: Callable[[str, Any], Any] | None = None  # method and answer -> another answer, or its bytes
    endpoint: str = ""  # what it says of itself, if not `socket`
    deaf: bool = False  # it does not accept its registration status
    registry: Path | None = None  # the folder in which it is found by a registration socket
    notified: list[tuple[bool, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hangs.set()
        self._server: grpc.aio.Server | None = None
        self._streams: dict[str, list[asyncio.Queue[Any]]] = defaultdict(list)  # by service
        self.health: dict[str, tuple[str, int]] = {}  # device -> health and timeout

    @property
    def info(self) -> Info:
        return Info(self.name, self.socket, self.versions)

    async def start(self) -> DriverServer:
        self._server = grpc.aio.server()
        for service in PLUGIN:
            self._add(f"k8s.io.kubelet.pkg.apis.dra.{service}", {PREPARE: self._prepare, UNPREPARE: self._unprepare})
        for service in HEALTH:
            self._add(service, {"NodeWatchResources": self._watch})
        self._add("pluginregistration.Registration", {"GetInfo": self._get_info, "NotifyRegistrationStatus": self._notify})
        sockets = [self.socket, *([self.registry / f"{self.name[:40]}-reg.sock"] if self.registry else [])]
        for socket in sockets:
            socket.parent.mkdir(parents=True, exist_ok=True)
            self._server.add_insecure_port(f"unix:{socket}")
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)
            for socket in (self.socket, *([self.registry / f"{self.name[:40]}-reg.sock"] if self.registry else [])):
                socket.unlink(missing_ok=True)

    def _get_info(self, service: str, method: str, answer: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            out = answer(type="DRAPlugin", name=self.name, endpoint=self.endpoint or str(self.socket),
                         supported_versions=self.versions)
            return self._spoilt(method, out)

        return call

    def _notify(self, service: str, method: str, answer: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            self.notified.append((request.plugin_registered, request.error))
            if self.deaf:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "what is that?")
            return answer()

        return call

    def _add(self, service: str, methods: dict[str, Callable[..., Any]]) -> None:
        assert self._server is not None
        handlers: dict[str, Any] = {}
        for name, method in methods.items():
            described = _POOL.FindServiceByName(service).FindMethodByName(name)
            messages = [message_factory.GetMessageClass(each) for each in (described.input_type, described.output_type)]
            wrap = grpc.unary_stream_rpc_method_handler if name == "NodeWatchResources" else grpc.unary_unary_rpc_method_handler
            handlers[name] = wrap(method(service, name, messages[1]), request_deserializer=messages[0].FromString,
                                  response_serializer=_written)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])

    def _prepare(self, service: str, method: str, answer: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            out = await self._answer(service, method, answer, request, context)
            for claim in request.claims:
                for device in self.devices.get(claim.name, self.devices.get("", ())) if claim.uid in out.claims else ():
                    out.claims[claim.uid].devices.add(request_names=["r"], pool_name="n1", device_name=device,
                                                      cdi_device_ids=[f"{self.name}/dev={device}"])
            return self._spoilt(method, out)

        return call

    def _unprepare(self, service: str, method: str, answer: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            return self._spoilt(method, await self._answer(service, method, answer, request, context))

        return call

    def _spoilt(self, method: str, answer: Any) -> Any:
        return answer if self.spoils is None else self.spoils(method, answer)

    async def _answer(self, service: str, method: str, answer: Any, request: Any, context: Any) -> Any:
        self.calls.append((service.removeprefix("k8s.io.kubelet.pkg.apis.dra."), method,
                           tuple(claim.name for claim in request.claims)))
        await self.hangs.wait()
        if error := self.errors.get((method, "")):
            await context.abort(grpc.StatusCode.INTERNAL, error)
        out = answer()
        for claim in request.claims:
            if (method, claim.name) not in self.skips:
                out.claims[claim.uid].error = self.errors.get((method, claim.name), "")
        if self.extra:
            out.claims[self.extra].error = ""
        return out

    def _watch(self, service: str, method: str, answer: Any) -> Any:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            queue: asyncio.Queue[Any] = asyncio.Queue()
            self._streams[service].append(queue)
            queue.put_nowait(self.health)
            while (health := await queue.get()) is not None:
                out = answer()
                for device, (word, timeout) in health.items():
                    out.devices.add(device={"pool_name": "n1", "device_name": device}, health=CODES[word],
                                    health_check_timeout_seconds=timeout, message=f"{device} is {word}")
                yield self._spoilt(method, out)

        return call

    def report(self, **health: tuple[str, int]) -> None:
        self.health = health
        self._send(dict(health))

    def end_streams(self) -> None:
        self._send(None)

    def _send(self, message: Any) -> None:
        for queue in [queue for queues in self._streams.values() for queue in queues]:
            queue.put_nowait(message)

    def streams(self) -> Sequence[str]:
        return [service for service, queues in self._streams.items() if queues]

    def claims(self, method: str) -> list[tuple[str, ...]]:
        return [claims for _, name, claims in self.calls if name == method]


def _written(answer: Any) -> bytes:
    written: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
    return written
