"""The gRPC services of a DRA driver: plugin registration v1, and DRAPlugin v1 and v1beta1 over one `ClaimDriver`.

A call that the kubelet gives up (after 45 s) is finished all the same: a device is never left between two states, and the
next call finds what was done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc

from outfitter.api.rejection import RejectionCode
from outfitter.errors import OutfitterError
from outfitter.node.kubelet import health_service
from outfitter.node.kubelet.claim_driver import CdiDevice, ClaimDriver, describe
from outfitter.node.kubelet.claim_reference import ClaimReference
from outfitter.node.kubelet.proto import dra_v1_pb2, dra_v1beta1_pb2, plugin_registration_v1_pb2

T = TypeVar("T")
log = logging.getLogger(__name__)
PLUGIN_TYPE = "DRAPlugin"
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", *health_service.SERVICES)  # the kubelet takes the first that it knows


class RegistrationService:
    """Who the driver is, and whether the kubelet accepted it."""

    def __init__(self, driver: str, endpoint: str) -> None:
        self._driver, self._endpoint = driver, endpoint
        self.registered: bool | None = None  # None: the kubelet has not said
        self.error = ""

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        pb = plugin_registration_v1_pb2
        return [_service("pluginregistration.Registration", {
            "GetInfo": (self._get_info, pb.InfoRequest), "NotifyRegistrationStatus": (self._status, pb.RegistrationStatus)})]

    async def _get_info(self, request: Any, context: Any) -> Any:
        return plugin_registration_v1_pb2.PluginInfo(
            type=PLUGIN_TYPE, name=self._driver, endpoint=self._endpoint, supported_versions=VERSIONS)

    async def _status(self, request: Any, context: Any) -> Any:
        self.registered, self.error = request.plugin_registered, request.error
        if self.registered:
            log.info("the kubelet has registered the DRA driver %s", self._driver)
        else:
            log.error("the kubelet rejects the DRA driver %s and will try again: %s", self._driver, self.error)
        return plugin_registration_v1_pb2.RegistrationStatusResponse()


class DraService:
    """NodePrepareResources and NodeUnprepareResources. Each claim of a call has an answer of its own."""

    def __init__(self, driver: ClaimDriver) -> None:
        self._driver = driver
        self._calls: set[asyncio.Task[Any]] = set()  # what is being done, also for calls that were given up

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return [_service(f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin", {
            "NodePrepareResources": (self._prepare(pb), pb.NodePrepareResourcesRequest),
            "NodeUnprepareResources": (self._unprepare(pb), pb.NodeUnprepareResourcesRequest),
        }) for version, pb in (("v1", dra_v1_pb2), ("v1beta1", dra_v1beta1_pb2))]

    async def finish(self) -> None:
        """Wait for what is being done."""
        while self._calls:
            await asyncio.wait(self._calls)

    def _prepare(self, pb: Any) -> Any:
        async def prepare(request: Any, context: Any) -> Any:
            answer = pb.NodePrepareResourcesResponse()
            for claim in request.claims:
                devices, error = await self._do(self._driver.prepare(_reference(claim)), RejectionCode.PREPARE_FAILED)
                answer.claims[claim.uid].CopyFrom(pb.NodePrepareResourceResponse(
                    devices=[_device(pb, device) for device in devices or ()], error=error))
            return answer

        return prepare

    def _unprepare(self, pb: Any) -> Any:
        async def unprepare(request: Any, context: Any) -> Any:
            answer = pb.NodeUnprepareResourcesResponse()
            for claim in request.claims:
                _, error = await self._do(self._driver.unprepare(_reference(claim)), RejectionCode.RELEASE_FAILED)
                answer.claims[claim.uid].CopyFrom(pb.NodeUnprepareResourceResponse(error=error))
            return answer

        return unprepare

    async def _do(self, work: Coroutine[Any, Any, T], code: RejectionCode) -> tuple[T | None, str]:
        """The result, or why there is none. Goes on when the call is given up."""
        task = asyncio.ensure_future(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(task), ""
        except OutfitterError as error:
            return None, describe(error, code)
        except asyncio.CancelledError:
            task.add_done_callback(_log_given_up)
            raise
        except Exception as error:  # of this claim: the others have an answer
            log.exception("a claim was not processed")
            return None, f"{code}: {type(error).__name__}: {error}"


def _log_given_up(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    log.warning("a call that the kubelet gave up has ended%s", f": {error}" if error else "")


def _reference(claim: Any) -> ClaimReference:
    return ClaimReference(claim.namespace, claim.name, claim.uid)


def _device(pb: Any, device: CdiDevice) -> Any:
    out = pb.Device(request_names=[device.request], pool_name=device.pool, device_name=device.device,
                    cdi_device_ids=[device.cdi_id])
    if device.share_id and pb is dra_v1_pb2:  # v1beta1 has no such field
        out.share_id = device.share_id
    return out


def _service(name: str, methods: dict[str, tuple[Callable[..., Any], Any]]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(name, {
        method: grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=request.FromString, response_serializer=lambda answer: answer.SerializeToString())
        for method, (call, request) in methods.items()})
