"""Reads the pod-resources API v1 of a node, of ours or of a kubelet: for `outfit node pods` and the CNI helper. Blocking,
with a time limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from outfitter.errors import CommandFailed, NotFound
from outfitter.node.kubelet.proto import pod_resources_v1_pb2 as pb
from outfitter.node.readers.pod_devices import ReadableClaim, ReadableContainer, ReadableDevice, ReadablePod

SOCKET = "pod-resources/kubelet.sock"
SERVICE = "v1.PodResourcesLister"
TIMEOUT = 10.0  # seconds


def pods(folder: Path) -> list[ReadablePod]:
    """All pods of the node. CommandFailed: the socket does not answer."""
    return [_pod(pod) for pod in _call(folder, "List", pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse).pod_resources]


def pod(folder: Path, namespace: str, name: str) -> ReadablePod:
    """NotFound: the pod is not on the node, or has no devices yet."""
    request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
    try:
        return _pod(_call(folder, "Get", request, pb.GetPodResourcesResponse).pod_resources)
    except CommandFailed as error:
        cause = error.__cause__
        if isinstance(cause, grpc.RpcError) and cause.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND):
            raise NotFound(str(cause.details())) from error
        raise


def _call(folder: Path, method: str, request: Any, answer: Any) -> Any:
    path = folder / SOCKET
    if not path.exists():
        raise CommandFailed(f"there is no socket {path}: neither a kubelet nor outfitter shows pods there (--kubelet-dir)")
    with grpc.insecure_channel(f"unix:{path}") as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/{method}", request_serializer=lambda message: message.SerializeToString(),
                                        response_deserializer=answer.FromString)
        try:
            return call(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise CommandFailed(f"{path}: {error.details()}") from error


def _pod(message: Any) -> ReadablePod:
    return ReadablePod("", message.namespace, message.name, tuple(_container(part) for part in message.containers))


def _container(message: Any) -> ReadableContainer:
    devices: dict[str, dict[str, tuple[int, ...]]] = {}
    for entry in message.devices:  # one for each id and NUMA node
        for id_ in entry.device_ids:
            known = devices.setdefault(entry.resource_name, {})
            known[id_] = (*known.get(id_, ()), *(node.ID for node in entry.topology.nodes))
    claims = tuple(ReadableClaim(claim.claim_namespace, claim.claim_name, tuple(
        ReadableDevice(device.driver_name, device.pool_name, device.device_name, tuple(cdi.name for cdi in device.cdi_devices),
                       device.share_id) for device in claim.claim_resources)) for claim in message.dynamic_resources)
    return ReadableContainer(message.name, devices, claims, tuple(message.cpu_ids))
