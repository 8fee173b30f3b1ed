"""The kubelet's side of plugin registration and DRA: a gRPC client made from protobuf definitions at test time, with messages
of its own. The published definitions of k8s.io/kubelet where they are found (`scripts/kubelet-protos`), else ours."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from outfitter.node.kubelet.proto import (
    device_plugin_v1beta1_pb2,
    dra_health_v1_pb2,
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
    plugin_registration_v1_pb2,
    pod_resources_v1_pb2,
    pods_v1alpha1_pb2,
)

SCRIPT = Path(__file__).parents[3] / "scripts" / "kubelet-protos"
REGISTRATION = "pluginregistration.Registration"
OURS = {"pluginregistration-v1": plugin_registration_v1_pb2, "dra-v1": dra_v1_pb2, "dra-v1beta1": dra_v1beta1_pb2,
        "dra-health-v1": dra_health_v1_pb2, "dra-health-v1alpha1": dra_health_v1alpha1_pb2,
        "deviceplugin-v1beta1": device_plugin_v1beta1_pb2, "podresources-v1": pod_resources_v1_pb2,
        "pods-v1alpha1": pods_v1alpha1_pb2}
HEALTH = ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
TIMEOUT = 45.0  # seconds, as the kubelet's
DIALLED = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]  # each channel dials, as other processes do


def our_definitions() -> list[bytes]:
    return [module.DESCRIPTOR.serialized_pb for module in OURS.values()]


def published_definitions() -> list[bytes] | None:
    """None: they are not in the cache folder."""
    found = subprocess.run([SCRIPT, "--path"], capture_output=True, text=True, check=False)
    if found.returncode:
        return None
    sets = [descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
            for path in sorted(Path(found.stdout.strip()).glob("*.binpb"))]
    return [file.SerializeToString() for each in sets for file in each.file]


class KubeletClient:
    """One per set of definitions; each call has a connection of its own, as after a restart of the kubelet."""

    def __init__(self, definitions: list[bytes]) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        for file in definitions:
            self._pool.AddSerializedFile(file)

    def messages(self, service: str, method: str) -> tuple[Any, Any]:
        """Of the request and the answer."""
        described = self._pool.FindServiceByName(service).FindMethodByName(method)
        return message_factory.GetMessageClass(described.input_type), message_factory.GetMessageClass(described.output_type)

    async def call(self, path: Path | str, service: str, method: str, fields: Mapping[str, Any], *,
                   timeout: float = TIMEOUT) -> Any:
        asked, answer = self.messages(service, method)
        request = asked(**fields)
        async with grpc.aio.insecure_channel(f"unix:{path}", options=DIALLED) as channel:
            call: Any = channel.unary_unary(f"/{service}/{method}", request_serializer=lambda it: it.SerializeToString(),
                                            response_deserializer=answer.FromString)
            return await call(request, timeout=timeout)

    @contextlib.asynccontextmanager
    async def stream(self, path: Path | str, service: str, method: str) -> AsyncIterator[AsyncIterator[Any]]:
        """The messages of a stream."""
        request, answer = self.messages(service, method)
        async with grpc.aio.insecure_channel(f"unix:{path}", options=DIALLED) as channel:
            call: Any = channel.unary_stream(f"/{service}/{method}", request_serializer=lambda it: it.SerializeToString(),
                                             response_deserializer=answer.FromString)
            stream = call(request())
            try:
                yield aiter(stream)
            finally:
                stream.cancel()

    async def register(self, socket: Path) -> Any:
        """As the kubelet's plugin watcher: ask who it is, then report that it is registered. The plugin's info."""
        info = await self.call(socket, REGISTRATION, "GetInfo", {})
        await self.call(socket, REGISTRATION, "NotifyRegistrationStatus", {"plugin_registered": True})
        return info

    async def prepare(self, info: Any, *claims: Mapping[str, str], version: str = "v1", timeout: float = TIMEOUT) -> Any:
        """The answer's `claims`: uid -> devices and error."""
        return (await self._dra(info, "NodePrepareResources", claims, version, timeout)).claims

    async def unprepare(self, info: Any, *claims: Mapping[str, str], version: str = "v1", timeout: float = TIMEOUT) -> Any:
        return (await self._dra(info, "NodeUnprepareResources", claims, version, timeout)).claims

    async def _dra(self, info: Any, method: str, claims: Any, version: str, timeout: float) -> Any:
        assert f"{version}.DRAPlugin" in info.supported_versions
        return await self.call(info.endpoint, f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin", method,
                               {"claims": [dict(claim) for claim in claims]}, timeout=timeout)
