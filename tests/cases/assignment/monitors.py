"""Played readers of a node: a monitor on pod-resources and the pods API, a script on `/pods`, and a CNI plugin."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
from click.testing import CliRunner

from outfitter.api.kinds import Object
from outfitter.cli import main
from tests.node.kubelet import kubelet_client
from tests.node.readers.reader_client import ReaderClient

WAIT = 120.0  # seconds of real time
SYNCED = "INITIAL_SYNC_COMPLETE"
EVENTS = {1: "ADDED", 2: "MODIFIED", 3: "DELETED", 4: SYNCED}
Devices = dict[str, dict[str, dict[str, list[str]]]]  # pod -> container -> resource -> ids


def _no_server(**_: object) -> None:
    raise AssertionError("no server is started")


class Monitor(ReaderClient):
    """Of one node."""

    def __init__(self, folder: Path) -> None:
        super().__init__(kubelet_client.our_definitions(), folder)

    async def pod_resources(self) -> Any:
        return (await self.lister("List")).pod_resources

    async def devices(self) -> Devices:
        return {pod_name(pod.namespace, pod.name): containers(pod) for pod in await self.pod_resources()}

    async def get(self, pod: str) -> dict[str, dict[str, list[str]]] | None:
        namespace, _, name = pod.rpartition("/")
        try:
            answer = await self.lister("Get", pod_name=name, pod_namespace=namespace or "default")
        except grpc.aio.AioRpcError:
            return None
        return containers(answer.pod_resources)

    async def allocatable(self) -> tuple[dict[str, list[str]], dict[str, dict[str, set[int]]]]:
        """Resource -> ids, and resource -> id -> NUMA nodes."""
        devices = (await self.lister("GetAllocatableResources")).devices
        return ids_of(devices), numa_of(devices)

    async def listed(self) -> list[PodView]:
        return [PodView(raw) for raw in (await self.pods("ListPods")).pods]

    async def known(self, uid: str) -> bool:
        try:
            await self.pods("GetPod", podUID=uid)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            return False
        return True

    async def page(self) -> dict[str, Object]:
        """The pods on /pods, by name."""
        reader, writer = await asyncio.open_unix_connection(str(self.folder / "pods-api" / "http.sock"))
        writer.write(b"GET /pods HTTP/1.1\r\nhost: local\r\nconnection: close\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        if b"chunked" in head.lower():
            body = _unchunked(body)
        return {pod_name(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in json.loads(body)["items"]}

    async def cni(self, pod: str, resources: list[str]) -> dict[str, list[str]] | None:
        """What a CNI plugin gets; None: an error."""
        namespace, _, name = pod.rpartition("/")
        config = json.dumps({"cniVersion": "1.0.0", "resources": resources, "kubeletDir": str(self.folder)})
        arguments = f"K8S_POD_NAMESPACE={namespace or 'default'};K8S_POD_NAME={name}"
        run = CliRunner(env={"CNI_ARGS": arguments}).invoke
        result = await asyncio.to_thread(run, main.commands(_no_server), ["cni-devices"], input=config)
        answer = json.loads(result.output)
        return answer["devices"] if result.exit_code == 0 else None


class PodStream:
    """A WatchPods stream that is read all the time."""

    def __init__(self, monitor: Monitor, seen: Callable[[str, PodView | None], None]) -> None:
        """`seen`: called with each event."""
        self._monitor, self._seen = monitor, seen
        self.versions: dict[str, str] = {}  # uid -> revision
        self.synced = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for event in self._monitor.watch():
                kind, pod = EVENTS[event.type], PodView(event.pod) if event.pod else None
                if pod is None:
                    self.synced = True
                elif kind == "DELETED":
                    self.versions.pop(pod.uid, None)
                else:
                    self.versions[pod.uid] = pod.revision
                self._seen(kind, pod)

    async def caught_up(self) -> None:
        """Until it has all that ListPods shows now."""
        until = time.monotonic() + WAIT
        while True:
            wanted = {pod.uid: pod.revision for pod in await self._monitor.listed()}
            if self.synced and self.versions == wanted:
                return
            if self._task.done() or time.monotonic() > until:
                raise AssertionError(f"WatchPods has {self.versions}, ListPods {wanted}")
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class PodView:
    """A pod in protobuf: the fields by their numbers in k8s.io/api/core/v1."""

    def __init__(self, raw: bytes) -> None:
        fields = _fields(raw)
        meta = _fields(fields[1][0])
        self.name = pod_name(_text(meta, 3), _text(meta, 1))
        self.uid, self.revision = _text(meta, 5), _text(meta, 6)
        status = _fields(fields[3][0]) if 3 in fields else {}
        statuses = [*status.get(8, []), *status.get(10, [])]  # of containers and of init containers
        states = [_fields(each).get(2, [b""])[0] for each in statuses]
        self.runs = any({2, 3} & _fields(state).keys() for state in states)  # running or terminated


def containers(pod: Any) -> dict[str, dict[str, list[str]]]:
    return {container.name: ids_of(container.devices) for container in pod.containers}


def ids_of(devices: Any) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for each in devices:
        known = out.setdefault(each.resource_name, [])
        known += [device for device in each.device_ids if device not in known]
    return out


def numa_of(devices: Any) -> dict[str, dict[str, set[int]]]:
    out: dict[str, dict[str, set[int]]] = {}
    for each in devices:
        for device in each.device_ids:
            nodes = {node.ID for node in each.topology.nodes} if each.HasField("topology") else set()
            out.setdefault(each.resource_name, {}).setdefault(device, set()).update(nodes)
    return out


def pod_name(namespace: str, name: str) -> str:
    return name if namespace in ("", "default") else f"{namespace}/{name}"


def _text(fields: dict[int, list[bytes]], number: int) -> str:
    return fields.get(number, [b""])[0].decode()


def _fields(raw: bytes) -> dict[int, list[bytes]]:
    """The fields of a message that are messages or texts."""
    out: dict[int, list[bytes]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(raw):
        key = varint()
        kind = key & 7
        if kind == 0:
            varint()
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            size = varint()
            out.setdefault(key >> 3, []).append(raw[at:at + size])
            at += size
    return out


def _unchunked(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            break
        out, body = out + body[:length], body[length + 2:]
    return out
