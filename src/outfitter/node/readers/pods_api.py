"""The kubelet's pods API v1alpha1 over `node_pods`: ListPods, GetPod and WatchPods. Pods are sent as protobuf, which has no
field `assignedDevices`: it is sent as the annotation `outfitter.dev/assigned-devices`, as on a Kubernetes API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from outfitter.api.kinds import Object
from outfitter.api.protobuf import encoder
from outfitter.errors import TooManyRequests
from outfitter.node.kubelet.proto import pods_v1alpha1_pb2 as pb
from outfitter.node.readers.node_pods import NodePods, PodEvent, PodWatch
from outfitter.node.readers.pod_annotation import with_annotation
from outfitter.node.readers.rate_limit import RateLimit

SERVICE = "v1alpha1.Pods"
TYPES = {"ADDED": pb.ADDED, "MODIFIED": pb.MODIFIED, "DELETED": pb.DELETED}


class PodsService:
    def __init__(self, pods: NodePods, limit: RateLimit) -> None:
        self._pods, self._limit = pods, limit
        self._encoded: dict[str, tuple[str, bytes]] = {}  # uid -> revision and message

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        def unary(call: Any, request: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                self._limit.checked(call), request_deserializer=request.FromString, response_serializer=_serialized)

        return [grpc.method_handlers_generic_handler(SERVICE, {
            "ListPods": unary(self._list, pb.ListPodsRequest), "GetPod": unary(self._get, pb.GetPodRequest),
            "WatchPods": grpc.unary_stream_rpc_method_handler(
                self._watch, request_deserializer=pb.WatchPodsRequest.FromString, response_serializer=_serialized)})]

    async def _list(self, request: Any, context: Any) -> Any:
        return pb.ListPodsResponse(pods=[self._message(pod) for pod in self._pods.pods()])

    async def _get(self, request: Any, context: Any) -> Any:
        pod = self._pods.pod(request.podUID)
        if pod is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"pod with UID {request.podUID} not found")
            raise AssertionError  # abort has raised
        return pb.GetPodResponse(pod=self._message(pod))

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        watch = PodWatch()
        self._pods.watch(watch)
        try:
            for pod in self._pods.pods():
                yield pb.WatchPodsEvent(type=pb.ADDED, pod=self._message(pod))
            yield pb.WatchPodsEvent(type=pb.INITIAL_SYNC_COMPLETE)
            async for event in watch.events():
                yield pb.WatchPodsEvent(type=TYPES[event.type], pod=self._of_event(event))
        except TooManyRequests as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)
        finally:
            watch.close()

    def _of_event(self, event: PodEvent) -> bytes:
        if event.type != "DELETED":
            return self._message(event.pod)
        meta = event.pod["metadata"]
        self._encoded.pop(meta["uid"], None)
        return encoder.encode("v1", "Pod", {"metadata": {name: meta[name] for name in ("name", "namespace", "uid")}})

    def _message(self, pod: Object) -> bytes:
        uid, revision = pod["metadata"]["uid"], pod["metadata"].get("resourceVersion", "")
        known = self._encoded.get(uid)
        if known is None or known[0] != revision:
            known = (revision, encoder.encode("v1", "Pod", with_annotation(pod, self._pods.sources.assigned(pod))))
            self._encoded[uid] = known
        if len(self._encoded) > 2 * len(self._pods.pods()) + 10:
            shown = {each["metadata"]["uid"] for each in self._pods.pods()}
            self._encoded = {uid: value for uid, value in self._encoded.items() if uid in shown}
        return known[1]


def _serialized(answer: Any) -> bytes:
    return bytes(answer.SerializeToString())
