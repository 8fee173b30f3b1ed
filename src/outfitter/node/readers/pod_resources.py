"""The pod-resources API v1 over the values of `node_pods`: List, Get and GetAllocatableResources, as the kubelet answers
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import grpc

from outfitter.node.kubelet.proto import pod_resources_v1_pb2 as pb
from outfitter.node.readers.node_pods import NodePods
from outfitter.node.readers.pod_devices import ReadableClaim, ReadableContainer, ReadablePod
from outfitter.node.readers.rate_limit import RateLimit

SERVICE = "v1.PodResourcesLister"


class PodResourcesService:
    def __init__(self, pods: NodePods, limit: RateLimit) -> None:
        self._pods, self._limit = pods, limit
        self._serialized: dict[str, tuple[ReadablePod, bytes]] = {}  # by uid: most pods are as they were at the last List

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        methods: Mapping[str, tuple[Any, Any]] = {
            "List": (self._list, pb.ListPodResourcesRequest), "Get": (self._get, pb.GetPodResourcesRequest),
            "GetAllocatableResources": (self._allocatable, pb.AllocatableResourcesRequest)}
        return [grpc.method_handlers_generic_handler(SERVICE, {
            name: grpc.unary_unary_rpc_method_handler(
                self._limit.checked(call), request_deserializer=request.FromString, response_serializer=_serialized)
            for name, (call, request) in methods.items()})]

    async def _list(self, request: Any, context: Any) -> Any:
        """As bytes: messages that are joined are one message with the fields of all."""
        before, self._serialized = self._serialized, {}
        for pod in self._pods.readable():
            known = before.get(pod.uid)
            if known is None or (known[0] is not pod and known[0] != pod):
                known = (pod, pb.ListPodResourcesResponse(pod_resources=[_pod(pod)]).SerializeToString())
            self._serialized[pod.uid] = known
        return b"".join(message for _, message in self._serialized.values())

    async def _get(self, request: Any, context: Any) -> Any:
        found = self._pods.find(request.pod_namespace, request.pod_name)
        if found is None:
            await context.abort(grpc.StatusCode.UNKNOWN,
                                f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
        return pb.GetPodResourcesResponse(pod_resources=_pod(found))

    async def _allocatable(self, request: Any, context: Any) -> Any:
        """Healthy devices, in use or not."""
        return pb.AllocatableResourcesResponse(devices=[
            part for resource, devices in sorted(self._pods.sources.resources().items())
            for id_, device in devices.items() if device.healthy for part in _devices(resource, id_, device.numa_nodes)])


def _serialized(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else bytes(answer.SerializeToString())


def _pod(pod: ReadablePod | None) -> Any:
    assert pod is not None
    return pb.PodResources(name=pod.name, namespace=pod.namespace, containers=[_container(each) for each in pod.containers])


def _container(container: ReadableContainer) -> Any:
    return pb.ContainerResources(
        name=container.name, cpu_ids=container.cpu_ids,
        devices=[part for resource, devices in container.devices.items() for id_, nodes in devices.items()
                 for part in _devices(resource, id_, nodes)],
        dynamic_resources=[_claim(claim) for claim in container.claims])


def _devices(resource: str, id_: str, numa_nodes: Iterable[int]) -> list[Any]:
    """One entry per id and NUMA node, as the kubelet has them."""
    places: list[Any] = [pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)]) for node in numa_nodes] or [None]
    return [pb.ContainerDevices(resource_name=resource, device_ids=[id_], topology=place) for place in places]


def _claim(claim: ReadableClaim) -> Any:
    out = pb.DynamicResource(claim_name=claim.name, claim_namespace=claim.namespace)
    for device in claim.devices:
        part = out.claim_resources.add(
            cdi_devices=[pb.CDIDevice(name=name) for name in device.cdi_ids], driver_name=device.driver,
            pool_name=device.pool, device_name=device.device)
        if device.share_id:
            part.share_id = device.share_id
    return out
