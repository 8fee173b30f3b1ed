"""A container runtime that runs nothing, for a real kubelet: the CRI over a unix socket, from the published protobuf file.
Sandboxes and containers are entries of a table; a container runs from its start until it is stopped."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.node.kubelet.kubelet_client import SCRIPT

READY, NOT_READY = 0, 1  # PodSandboxState
CREATED, RUNNING, EXITED = 0, 1, 2  # ContainerState


def published_cri() -> bytes | None:
    found = subprocess.run([SCRIPT, "--path"], capture_output=True, text=True, check=False)
    if found.returncode:
        return None
    files = descriptor_pb2.FileDescriptorSet.FromString(
        (Path(found.stdout.strip()) / "cri" / "runtime-v1.binpb").read_bytes()).file
    return files[0].SerializeToString()


class FakeRuntime:
    def __init__(self, socket: Path, definitions: bytes) -> None:
        self.socket = socket
        self._pool = descriptor_pool.DescriptorPool()
        self._pool.AddSerializedFile(definitions)
        self._ids = itertools.count(1)
        self.calls: list[str] = []
        self.sandboxes: dict[str, dict[str, Any]] = {}
        self.containers: dict[str, dict[str, Any]] = {}
        self._server = grpc.aio.server()
        for service in ("runtime.v1.RuntimeService", "runtime.v1.ImageService"):
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {
                method.name: self._handler(method) for method in self._pool.FindServiceByName(service).methods
                if not method.server_streaming})])

    async def start(self) -> None:
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    def cdi_devices(self) -> dict[str, list[str]]:
        """By container: what the kubelet asks the runtime to add to it."""
        return {each["config"].metadata.name: [device.name for device in each["config"].CDI_devices]
                for each in self.containers.values()}

    def given(self, name: str) -> tuple[dict[str, str], list[str], list[str]]:
        """Of a container: its environment, device nodes of the host, and CDI devices."""
        [config] = [each["config"] for each in self.containers.values() if each["config"].metadata.name == name]
        texts = {env.key: env.value.decode() if isinstance(env.value, bytes) else env.value for env in config.envs}
        return (texts, [device.host_path for device in config.devices],
                [device.name for device in config.CDI_devices])

    def _handler(self, method: Any) -> Any:
        answer = message_factory.GetMessageClass(method.output_type)
        work: Callable[[Any], dict[str, Any]] = getattr(self, f"_{method.name}", lambda request: {})

        async def call(request: Any, context: Any) -> Any:
            self.calls.append(method.name)
            return answer(**work(request))

        return grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
            response_serializer=lambda message: message.SerializeToString())

    # -- the runtime

    def _Version(self, request: Any) -> dict[str, Any]:
        return {"version": "0.1.0", "runtime_name": "fake", "runtime_version": "1.0.0", "runtime_api_version": "v1"}

    def _Status(self, request: Any) -> dict[str, Any]:
        return {"status": {"conditions": [{"type": "RuntimeReady", "status": True}, {"type": "NetworkReady", "status": True}]}}

    def _RunPodSandbox(self, request: Any) -> dict[str, Any]:
        name = f"sandbox-{next(self._ids)}"
        self.sandboxes[name] = {"config": request.config, "created_at": time.time_ns(), "state": READY}
        return {"pod_sandbox_id": name}

    def _StopPodSandbox(self, request: Any) -> dict[str, Any]:
        if request.pod_sandbox_id in self.sandboxes:
            self.sandboxes[request.pod_sandbox_id]["state"] = NOT_READY
        return {}

    def _RemovePodSandbox(self, request: Any) -> dict[str, Any]:
        self.sandboxes.pop(request.pod_sandbox_id, None)
        return {}

    def _sandbox(self, name: str) -> dict[str, Any]:
        found = self.sandboxes[name]
        return {"id": name, "metadata": found["config"].metadata, "state": found["state"], "created_at": found["created_at"],
                "labels": dict(found["config"].labels), "annotations": dict(found["config"].annotations)}

    def _PodSandboxStatus(self, request: Any) -> dict[str, Any]:
        return {"status": {**self._sandbox(request.pod_sandbox_id), "network": {"ip": "10.1.0.2"}}}

    def _ListPodSandbox(self, request: Any) -> dict[str, Any]:
        found = [self._sandbox(name) for name in self.sandboxes]
        return {"items": [each for each in found if request.filter.id in ("", each["id"]) and _selects(request.filter, each)]}

    def _CreateContainer(self, request: Any) -> dict[str, Any]:
        name = f"container-{next(self._ids)}"
        self.containers[name] = {"config": request.config, "sandbox": request.pod_sandbox_id, "created_at": time.time_ns(),
                                 "state": CREATED, "started_at": 0, "finished_at": 0}
        return {"container_id": name}

    def _StartContainer(self, request: Any) -> dict[str, Any]:
        self.containers[request.container_id] |= {"state": RUNNING, "started_at": time.time_ns()}
        return {}

    def _StopContainer(self, request: Any) -> dict[str, Any]:
        if (found := self.containers.get(request.container_id)) is not None and found["state"] == RUNNING:
            found |= {"state": EXITED, "finished_at": time.time_ns()}
        return {}

    def _RemoveContainer(self, request: Any) -> dict[str, Any]:
        self.containers.pop(request.container_id, None)
        return {}

    def _container(self, name: str) -> dict[str, Any]:
        found = self.containers[name]
        config = found["config"]
        return {"id": name, "metadata": config.metadata, "image": config.image, "image_ref": config.image.image,
                "state": found["state"], "created_at": found["created_at"], "labels": dict(config.labels),
                "annotations": dict(config.annotations)}

    def _ContainerStatus(self, request: Any) -> dict[str, Any]:
        found = self.containers[request.container_id]
        return {"status": {**self._container(request.container_id), "started_at": found["started_at"],
                           "finished_at": found["finished_at"], "exit_code": 0, "log_path": found["config"].log_path}}

    def _ListContainers(self, request: Any) -> dict[str, Any]:
        found = [{**self._container(name), "pod_sandbox_id": each["sandbox"]} for name, each in self.containers.items()]
        wanted = request.filter
        return {"containers": [each for each in found if wanted.id in ("", each["id"]) and _selects(wanted, each)
                               and wanted.pod_sandbox_id in ("", each["pod_sandbox_id"])]}

    # -- images: all are there

    def _ImageStatus(self, request: Any) -> dict[str, Any]:
        return {"image": {"id": request.image.image, "repo_tags": [request.image.image], "size": 1}}

    def _PullImage(self, request: Any) -> dict[str, Any]:
        return {"image_ref": request.image.image}

    def _ImageFsInfo(self, request: Any) -> dict[str, Any]:
        usage = {"timestamp": time.time_ns(), "fs_id": {"mountpoint": "/"}, "used_bytes": {"value": 1},
                 "inodes_used": {"value": 1}}
        return {"image_filesystems": [usage], "container_filesystems": [usage]}


def _selects(wanted: Any, found: dict[str, Any]) -> bool:
    """Whether a filter with labels, and perhaps a state, selects a sandbox or container."""
    labels = all(found["labels"].get(key) == value for key, value in wanted.label_selector.items())
    return labels and (not wanted.HasField("state") or wanted.state.state == found["state"])
