"""The gRPC service of one resource: `v1beta1.DevicePlugin`, called by the kubelet. ListAndWatch sends the devices at its start
and whenever one of them, its health or its NUMA node changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc

from outfitter.api.rejection import RejectionCode
from outfitter.errors import OutfitterError
from outfitter.node.device_manager.plugin_resource import HEALTHY, ContainerAllocation, PluginDevice
from outfitter.node.device_plugin.plugin_resources import preferred
from outfitter.node.device_plugin.pod_allocations import PodAllocations
from outfitter.node.kubelet.claim_driver import describe
from outfitter.node.kubelet.proto import device_plugin_v1beta1_pb2 as pb
from outfitter.store.clock import Clock, within

log = logging.getLogger(__name__)
SERVICE = "v1beta1.DevicePlugin"
LOOK_EVERY = 1.0  # seconds between two looks for changes, which read nothing but memory


class DevicePluginService:
    def __init__(self, resource: str, allocations: PodAllocations, *, clock: Clock, allocated: Callable[[], None]) -> None:
        """`allocated`: called after an Allocate, so that its pod is looked for."""
        self._resource, self._allocations, self._clock, self._allocated = resource, allocations, clock, allocated
        self._ending = asyncio.Event()

    def end_streams(self) -> None:
        """ListAndWatch ends by itself: as a call in progress it would hold up the end of the process."""
        self._ending.set()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        unary: dict[str, tuple[Any, Any]] = {
            "GetDevicePluginOptions": (self._options, pb.Empty),
            "GetPreferredAllocation": (self._preferred, pb.PreferredAllocationRequest),
            "Allocate": (self._allocate, pb.AllocateRequest),
            "PreStartContainer": (self._prestart, pb.PreStartContainerRequest)}
        return [grpc.method_handlers_generic_handler(SERVICE, {
            **{name: grpc.unary_unary_rpc_method_handler(call, request_deserializer=request.FromString,
                                                         response_serializer=_written)
               for name, (call, request) in unary.items()},
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._watch, request_deserializer=pb.Empty.FromString, response_serializer=_written)})]

    async def _options(self, request: Any, context: Any) -> Any:
        return pb.DevicePluginOptions(get_preferred_allocation_available=True)

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        sent: Sequence[PluginDevice] | None = None
        while not self._ending.is_set():
            devices = self._allocations.devices(self._resource)
            if devices != sent:
                yield pb.ListAndWatchResponse(devices=[_device(device) for device in devices])
            sent = devices
            with contextlib.suppress(TimeoutError):
                await within(self._clock, LOOK_EVERY, self._ending.wait())

    async def _preferred(self, request: Any, context: Any) -> Any:
        numa = self._allocations.numa()
        return pb.PreferredAllocationResponse(container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=preferred(
            numa, each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size))
            for each in request.container_requests])

    async def _allocate(self, request: Any, context: Any) -> Any:
        answers = []
        for each in request.container_requests:
            try:
                answers.append(_answer(await self._allocations.allocate(self._resource, list(each.devices_ids))))
            except OutfitterError as error:
                message = describe(error, RejectionCode.PREPARE_FAILED)
                log.warning("%s: Allocate of %s is refused: %s", self._allocations.host.name, self._resource, message)
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        self._allocated()
        return pb.AllocateResponse(container_responses=answers)

    async def _prestart(self, request: Any, context: Any) -> Any:
        return pb.PreStartContainerResponse()


_written: Callable[[Any], bytes] = lambda message: message.SerializeToString()  # noqa: E731


def _device(device: PluginDevice) -> Any:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in device.numa_nodes]) if device.numa_nodes else None
    return pb.Device(ID=device.id, health=HEALTHY if device.healthy else "Unhealthy", topology=topology)


def _answer(allocation: ContainerAllocation) -> Any:
    return pb.ContainerAllocateResponse(
        envs=allocation.envs,
        devices=[pb.DeviceSpec(container_path=inside, host_path=outside, permissions=permissions)
                 for inside, outside, permissions in allocation.devices],
        cdi_devices=[pb.CDIDevice(name=name) for name in allocation.cdi_ids])
