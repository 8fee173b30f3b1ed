"""Calls a DRA driver over its unix socket: DRAPlugin v1 or v1beta1, and DRAResourceHealth v1 or v1alpha1. Implements
`dra_driver.DraDriver`."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from outfitter.errors import NotReady
from outfitter.node.device_manager.dra_checkpoint import ClaimDeviceState
from outfitter.node.dra_manager.device_health import MOST_DEVICES
from outfitter.node.dra_manager.dra_driver import ClaimAnswer, DeviceHealth, DriverServices, ReportedHealth
from outfitter.node.kubelet.claim_reference import ClaimReference
from outfitter.node.kubelet.proto import dra_health_v1_pb2, dra_health_v1alpha1_pb2, dra_v1_pb2, dra_v1beta1_pb2
from outfitter.node.kubelet.unix_channel import unix_channel

CALL = 45.0  # seconds for a driver's answer, as the kubelet's
HEALTH_TIMEOUT = 30.0  # seconds, where a driver does not say
LARGEST = 16 << 20  # bytes of a message: several 100,000 devices
LONGEST_MESSAGE = 1024  # characters of a device's health, as the kubelet's
UNREADABLE = "the answer is not a message of this API"  # gRPC returns None for one
PREFIX = "k8s.io.kubelet.pkg.apis.dra"
_MESSAGES: dict[str, Any] = {
    "v1.DRAPlugin": dra_v1_pb2, "v1beta1.DRAPlugin": dra_v1beta1_pb2,
    "v1.DRAResourceHealth": dra_health_v1_pb2, "v1alpha1.DRAResourceHealth": dra_health_v1alpha1_pb2}
_HEALTH = {0: DeviceHealth.UNKNOWN, 1: DeviceHealth.HEALTHY, 2: DeviceHealth.UNHEALTHY}


class DriverClient:
    def __init__(self, socket: Path, services: DriverServices, *, seconds: float = CALL) -> None:
        """`seconds`: for an answer."""
        self._services, self._pb, self._seconds = services, _MESSAGES[services.plugin], seconds
        self._channel = unix_channel(socket, largest=LARGEST)

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, ClaimAnswer]:
        answer = await self._call("NodePrepareResources", self._pb.NodePrepareResourcesRequest(claims=self._claims(claims)),
                                  self._pb.NodePrepareResourcesResponse)
        return {uid: ClaimAnswer(tuple(map(_device, found.devices)), found.error) for uid, found in answer.claims.items()}

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, str]:
        answer = await self._call("NodeUnprepareResources", self._pb.NodeUnprepareResourcesRequest(claims=self._claims(claims)),
                                  self._pb.NodeUnprepareResourcesResponse)
        return {uid: found.error for uid, found in answer.claims.items()}

    async def watch_health(self) -> AsyncIterator[Sequence[ReportedHealth]]:
        pb = _MESSAGES[self._services.health]
        method: Any = self._channel.unary_stream(
            f"/{self._services.health}/NodeWatchResources", request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.NodeWatchResourcesResponse.FromString)
        try:
            async for answer in method(pb.NodeWatchResourcesRequest()):
                if answer is None:
                    raise NotReady(f"NodeWatchResources: {UNREADABLE}")
                yield [_health(device) for device in itertools.islice(answer.devices, MOST_DEVICES + 1)]
        except grpc.aio.AioRpcError as error:
            raise self._failure("NodeWatchResources", error) from error

    async def connections(self) -> AsyncIterator[bool]:
        while True:
            state = self._channel.get_state(try_to_connect=True)
            if state is grpc.ChannelConnectivity.SHUTDOWN:
                return
            yield state is grpc.ChannelConnectivity.READY
            await self._channel.wait_for_state_change(state)

    async def close(self) -> None:
        await self._channel.close()

    def _claims(self, claims: Sequence[ClaimReference]) -> list[Any]:
        return [self._pb.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]

    async def _call(self, name: str, request: Any, answer: Any) -> Any:
        method: Any = self._channel.unary_unary(
            f"/{PREFIX}.{self._services.plugin}/{name}", request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString)
        try:
            found = await method(request, timeout=self._seconds)
        except grpc.aio.AioRpcError as error:
            raise self._failure(name, error) from error
        if found is None:
            raise NotReady(f"{name}: {UNREADABLE}")
        return found

    def _failure(self, method: str, error: grpc.aio.AioRpcError) -> NotReady:
        """In the driver's own words."""
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return NotReady(f"{method}: no answer within {self._seconds:g} s")
        return NotReady(f"{method}: {error.details() or error.code().name}")


def _device(device: Any) -> ClaimDeviceState:
    share = device.share_id if "share_id" in device.DESCRIPTOR.fields_by_name and device.HasField("share_id") else None
    return ClaimDeviceState(device.pool_name, device.device_name, tuple(device.request_names), tuple(device.cdi_device_ids),
                            share)


def _health(device: Any) -> ReportedHealth:
    seconds = float(device.health_check_timeout_seconds)
    return ReportedHealth(device.device.pool_name, device.device.device_name, _HEALTH.get(device.health, DeviceHealth.UNKNOWN),
                          seconds if seconds > 0 else HEALTH_TIMEOUT, device.message[:LONGEST_MESSAGE])
