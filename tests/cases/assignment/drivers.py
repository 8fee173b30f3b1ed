"""Played DRA drivers: gRPC servers on sockets in `plugins_registry`, which answer as the case says; and what counts the agent's
calls to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from outfitter.node.dra_manager.dra_driver import DriverServices, ReportedHealth
from outfitter.node.dra_manager.driver_client import DriverClient
from outfitter.node.kubelet.proto import dra_health_v1_pb2, dra_health_v1alpha1_pb2, dra_v1_pb2, dra_v1beta1_pb2
from outfitter.node.kubelet.proto import plugin_registration_v1_pb2 as registration_pb
from tests.cases.assignment.plugins import Wire, service

PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
PLUGINS = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}
HEALTH = {"v1": dra_health_v1_pb2, "v1alpha1": dra_health_v1alpha1_pb2}
WORDS = {"Unknown": 0, "Healthy": 1, "Unhealthy": 2}


class CountedDriver(DriverClient):
    """The agent's client of a driver, whose calls are counted."""

    def __init__(self, socket: Path, services: DriverServices, wire: Wire) -> None:
        super().__init__(socket, services)
        self._path, self._wire = socket, wire

    async def _call(self, *args: Any) -> Any:
        with self._wire.call():
            return await super()._call(*args)

    def watch_health(self) -> AsyncIterator[Sequence[ReportedHealth]]:
        return self._wire.stream(self._path, super().watch_health())


class PlayedDriver:
    def __init__(self, name: str, keys: Mapping[str, Any], folder: Path, seen: Callable[[str, str], Awaitable[None]],
                 allocated: Callable[[str], Sequence[Mapping[str, str]]]) -> None:
        """`seen`: called at each call, before it is answered. `allocated`: the results of a claim."""
        self.name, self.keys, self._seen, self._allocated = name, dict(keys), seen, allocated
        self.socket = folder / "plugins_registry" / f"{name}.sock"
        self.pool = folder.name
        self.calls: list[tuple[str, Any]] = []
        self.notified: tuple[bool, str] | None = None
        self.asked = asyncio.Event()  # set when it was notified
        self._server: grpc.aio.Server | None = None
        self._streams: list[asyncio.Queue[None]] = []
        self.sent: list[list[int]] = []  # of each open stream, also what is about to be sent

    @property
    def running(self) -> bool:
        return self._server is not None

    async def listen(self) -> None:
        await self.stop()
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([
            *(service(f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin", {
                PREPARE: (self._prepare(pb), pb.NodePrepareResourcesRequest),
                UNPREPARE: (self._unprepare(pb), pb.NodeUnprepareResourcesRequest)}) for version, pb in PLUGINS.items()),
            *(service(f"{version}.DRAResourceHealth", {}, {
                "NodeWatchResources": (self._watch(pb), pb.NodeWatchResourcesRequest)}) for version, pb in HEALTH.items()),
            service("pluginregistration.Registration", {
                "GetInfo": (self._info, registration_pb.InfoRequest),
                "NotifyRegistrationStatus": (self._notify, registration_pb.RegistrationStatus)})])
        server.add_insecure_port(f"unix:{self.socket}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            self.socket.unlink(missing_ok=True)
            await server.stop(None)

    def update(self, changes: Mapping[str, Any]) -> None:
        self.keys |= changes
        if "health" in changes:
            for queue, sent in zip(self._streams, self.sent, strict=True):
                queue.put_nowait(None)
                sent[0] += 1

    def counts(self) -> list[int]:
        return sorted(each[0] for each in self.sent)

    def slice(self) -> dict[str, Any]:
        return {"metadata": {"name": f"{self.keys['driver']}-{self.pool}"}, "spec": {
            "driver": self.keys["driver"], "nodeName": self.pool,
            "pool": {"name": self.pool, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": str(device)} for device in self.keys.get("devices") or ()]}}

    # -- its services

    async def _answer(self, method: str, request: Any, context: Any) -> dict[str, tuple[str, str]]:
        """Claim uid -> its name and error, of those that it answers."""
        self.calls.append((method, [claim.name for claim in request.claims]))
        await self._seen(method, self.name)
        fails = (self.keys.get("fails") or {}).get(method, {})
        if not isinstance(fails, Mapping):
            await context.abort(grpc.StatusCode.UNKNOWN, str(fails))
        skips = (self.keys.get("skips") or {}).get(method) or ()
        return {claim.uid: (claim.name, str(fails.get(claim.name, ""))) for claim in request.claims if claim.name not in skips}

    def _prepare(self, pb: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            out = pb.NodePrepareResourcesResponse()
            for uid, (name, error) in (await self._answer(PREPARE, request, context)).items():
                out.claims[uid].error = error
                for result in self._allocated(name) if not error else ():
                    if result["driver"] == self.keys["driver"]:
                        cdi = [f"{result['driver']}/dev={result['device']}"] if self.keys.get("cdi", True) else []
                        out.claims[uid].devices.add(request_names=[result["request"]], pool_name=self.pool,
                                                    device_name=result["device"], cdi_device_ids=cdi)
            return out

        return call

    def _unprepare(self, pb: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            out = pb.NodeUnprepareResourcesResponse()
            for uid, (_, error) in (await self._answer(UNPREPARE, request, context)).items():
                out.claims[uid].error = error
            return out

        return call

    def _watch(self, pb: Any) -> Any:
        async def watch(request: Any, context: Any) -> AsyncIterator[Any]:
            queue: asyncio.Queue[None] = asyncio.Queue()
            queue.put_nowait(None)
            sent = [1]
            self._streams.append(queue)
            self.sent.append(sent)
            try:
                while True:
                    await queue.get()
                    yield pb.NodeWatchResourcesResponse(devices=[pb.DeviceHealth(
                        device=pb.DeviceIdentifier(pool_name=self.pool, device_name=str(device)), health=WORDS[word],
                        health_check_timeout_seconds=int(self.keys.get("health_timeout", 3600)))
                        for device, word in (self.keys.get("health") or {}).items()])
            finally:
                self._streams.remove(queue)
                self.sent.remove(sent)

        return watch

    async def _info(self, request: Any, context: Any) -> Any:
        services = self.keys.get("services") or ["v1.DRAPlugin", *(["v1.DRAResourceHealth"] if "health" in self.keys else [])]
        return registration_pb.PluginInfo(type="DRAPlugin", name=self.keys["driver"], endpoint=str(self.socket),
                                          supported_versions=services)

    async def _notify(self, request: Any, context: Any) -> Any:
        self.notified = request.plugin_registered, request.error
        self.asked.set()
        return registration_pb.RegistrationStatusResponse()
