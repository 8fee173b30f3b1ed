"""A device plugin as a process of its own, which registers many devices of one resource below a kubelet's folder. It prints
when it got which Allocate call, on the clock that all processes of the host share.

    python -m bench.device_plugin FOLDER RESOURCE DEVICES"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from outfitter.node.kubelet.proto import device_plugin_v1beta1_pb2 as pb


def _text(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


class ManyDevices:
    def __init__(self, number: int) -> None:
        self._list = pb.ListAndWatchResponse(devices=[
            pb.Device(ID=f"dev-{place:05d}", health="Healthy", topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=place % 2)]))
            for place in range(number)])

    async def options(self, request: Any, context: Any) -> Any:
        return pb.DevicePluginOptions()

    async def watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield self._list
        await asyncio.Event().wait()

    async def allocate(self, request: Any, context: Any) -> Any:
        print("allocate", time.monotonic(), *request.container_requests[0].devices_ids, flush=True)
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(envs={"DEVICES": "1"})])


async def serve(folder: Path, resource: str, number: int) -> None:
    plugins, plugin, server = folder / "device-plugins", ManyDevices(number), grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
            plugin.options, request_deserializer=pb.Empty.FromString, response_serializer=_text),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(
            plugin.watch, request_deserializer=pb.Empty.FromString, response_serializer=_text),
        "Allocate": grpc.unary_unary_rpc_method_handler(
            plugin.allocate, request_deserializer=pb.AllocateRequest.FromString, response_serializer=_text)})])
    name = resource.replace("/", "-") + ".sock"
    server.add_insecure_port(f"unix:{plugins / name}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{plugins / 'kubelet.sock'}") as channel:
        call: Any = channel.unary_unary("/v1beta1.Registration/Register", request_serializer=_text,
                                        response_deserializer=pb.Empty.FromString)
        await call(pb.RegisterRequest(version="v1beta1", endpoint=name, resource_name=resource))
    print("registered", flush=True)
    await server.wait_for_termination()


class PluginProcess:
    """The calls that it got, as it printed them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def next_allocate(self) -> float:
        """When the next Allocate call came that was not read yet."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline().split()[1])


@contextmanager
def running_plugin(folder: Path, resource: str, number: int) -> Iterator[PluginProcess]:
    process = subprocess.Popen([sys.executable, "-m", "bench.device_plugin", str(folder), resource, str(number)],
                               stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "registered":
            raise SystemExit(f"the plugin of {resource} could not register below {folder}")
        yield PluginProcess(process)
    finally:
        process.terminate()
        process.wait(30)


def wait_for(socket: Path) -> None:
    """Until what plugins register at listens: at its start it removes the sockets of others."""
    until = time.monotonic() + 300.0
    while not socket.exists() and time.monotonic() < until:
        time.sleep(0.1)


if __name__ == "__main__":
    wait_for(Path(sys.argv[1]) / "device-plugins" / "kubelet.sock")
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
