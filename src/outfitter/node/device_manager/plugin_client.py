"""Calls a device plugin over its unix socket (API v1beta1). Implements `plugin_resource.DevicePlugin`. How long a
call may take is limited by the device manager."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from outfitter.errors import NotReady, Unavailable
from outfitter.node.device_manager import allocate_response
from outfitter.node.device_manager.plugin_device_list import MOST_DEVICES
from outfitter.node.device_manager.plugin_resource import HEALTHY, ContainerAllocation, PluginDevice, PluginOptions
from outfitter.node.kubelet.proto import device_plugin_v1beta1_pb2 as pb
from outfitter.node.kubelet.unix_channel import unix_channel

SERVICE = "v1beta1.DevicePlugin"
LARGEST = 16 << 20  # bytes of a message: more devices than are used (`plugin_device_list.MOST_DEVICES`)
UNREADABLE = "the answer is not a message of this API"  # gRPC returns None for one
LONGEST_MESSAGE = 1024  # characters of what a plugin says
GONE = "the device plugin is gone"
ENDED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class PluginClient:
    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel = unix_channel(socket, largest=LARGEST)

    async def connect(self) -> None:
        """A call connects: whether the plugin answers is seen by the first one."""

    async def options(self) -> PluginOptions:
        answer = await self._call("GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions)
        return PluginOptions(answer.pre_start_required, answer.get_preferred_allocation_available)

    async def watch(self) -> AsyncIterator[Sequence[PluginDevice]]:
        method: Any = self._channel.unary_stream(f"/{SERVICE}/ListAndWatch", request_serializer=_written,
                                                 response_deserializer=pb.ListAndWatchResponse.FromString)
        try:
            async for answer in method(pb.Empty()):
                if answer is None:
                    raise NotReady(UNREADABLE)
                if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
                    raise Unavailable(f"{GONE}: it sent lists faster than they are read")  # what is left of them is old
                yield [_device(device) for device in itertools.islice(answer.devices, MOST_DEVICES + 1)]
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from error

    async def preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        asked = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, must_include_deviceIDs=must,
                                                       allocation_size=size)
        answer = await self._call("GetPreferredAllocation", pb.PreferredAllocationRequest(container_requests=[asked]),
                                  pb.PreferredAllocationResponse)
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else ()

    async def allocate(self, ids: Sequence[str]) -> ContainerAllocation:
        asked = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        answer = await self._call("Allocate", asked, pb.AllocateResponse)
        if not answer.container_responses:
            raise NotReady(f"no containers return in allocation response of {self._socket.name}")
        return allocate_response.allocation(answer.container_responses[0], ids)

    async def prestart(self, ids: Sequence[str]) -> None:
        await self._call("PreStartContainer", pb.PreStartContainerRequest(devices_ids=ids), pb.PreStartContainerResponse)

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self, name: str, request: Any, answer: Any) -> Any:
        method: Any = self._channel.unary_unary(f"/{SERVICE}/{name}", request_serializer=_written,
                                                response_deserializer=answer.FromString)
        try:
            found = await method(request)
        except grpc.aio.AioRpcError as error:
            raise _failure(error) from error
        if found is None:
            raise NotReady(UNREADABLE)
        return found


def _failure(error: grpc.aio.AioRpcError) -> NotReady | Unavailable:
    """In the plugin's own words."""
    if error.code() in ENDED:
        return Unavailable(f"{GONE}: {error.details()}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return NotReady(f"the socket does not serve {SERVICE}: {error.details()}"[:LONGEST_MESSAGE])
    return NotReady((error.details() or f"it failed with {error.code().name}")[:LONGEST_MESSAGE])


_written: Callable[[Any], bytes] = lambda message: message.SerializeToString()  # noqa: E731


def _device(device: Any) -> PluginDevice:
    nodes = tuple(node.ID for node in device.topology.nodes) if device.HasField("topology") else ()
    return PluginDevice(device.ID, device.health == HEALTHY, nodes)
