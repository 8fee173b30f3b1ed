"""A monitor on a node: a gRPC client made from protobuf definitions, the published ones where they are found, else ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import message_factory

from tests.node.kubelet import kubelet_client
from tests.node.kubelet.kubelet_client import KubeletClient

LISTER, PODS = "v1.PodResourcesLister", "v1alpha1.Pods"
Devices = dict[str, dict[str, dict[str, list[str]]]]  # pod -> container -> resource -> ids


class ReaderClient(KubeletClient):
    def __init__(self, definitions: list[bytes], folder: Path) -> None:
        super().__init__(definitions)
        self.folder = folder

    async def lister(self, method: str, **fields: Any) -> Any:
        return await self.call(self.folder / "pod-resources" / "kubelet.sock", LISTER, method, fields)

    async def pods(self, method: str, **fields: Any) -> Any:
        return await self.call(self.folder / "pods-api" / "pods-api.sock", PODS, method, fields)

    async def watch(self) -> AsyncIterator[Any]:
        described = self._pool.FindServiceByName(PODS).FindMethodByName("WatchPods")
        request = message_factory.GetMessageClass(described.input_type)()
        answer = message_factory.GetMessageClass(described.output_type)
        async with grpc.aio.insecure_channel(f"unix:{self.folder / 'pods-api' / 'pods-api.sock'}") as channel:
            call: Any = channel.unary_stream(f"/{PODS}/WatchPods", request_serializer=lambda it: it.SerializeToString(),
                                             response_deserializer=answer.FromString)
            async for event in call(request):
                yield event

    async def claims(self) -> dict[str, dict[str, dict[str, list[str]]]]:
        """Pod -> container -> driver/pool/device -> CDI ids."""
        found = (await self.lister("List")).pod_resources
        return {pod.name: {container.name: {
            f"{device.driver_name}/{device.pool_name}/{device.device_name}": [cdi.name for cdi in device.cdi_devices]
            for claim in container.dynamic_resources for device in claim.claim_resources}
            for container in pod.containers} for pod in found}


def definitions(which: str) -> list[bytes]:
    found = kubelet_client.our_definitions() if which == "ours" else kubelet_client.published_definitions()
    if found is None:
        pytest.skip("needs the published protobuf files of the kubelet; scripts/kubelet-protos fetches them")
    return found


BOTH = ["ours", pytest.param("published", marks=pytest.mark.parts)]
