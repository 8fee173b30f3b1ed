"""A node whose readers are fed by the test: pods with devices of plugins and claims, as values."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from outfitter.api.kinds import Object
from outfitter.node.readers.node_pods import NodePods
from outfitter.node.readers.pod_devices import ResourceDevice
from outfitter.node.readers.reader_sockets import ReaderSockets
from outfitter.store.clock import SystemClock

Assigned = Mapping[str, Mapping[str, tuple[str, ...]]]


class GivenSources:
    def __init__(self) -> None:
        self.claims: dict[str, Object] = {}
        self.plugins: dict[str, dict[str, ResourceDevice]] = {}
        self._numa: dict[str, dict[str, tuple[int, ...]]] = {}

    def assigned(self, pod: Object) -> Assigned:
        return {container["name"]: {entry["resourceName"]: tuple(entry["deviceIDs"]) for entry in container["assignedDevices"]}
                for container in pod["spec"]["containers"] if container.get("assignedDevices")}

    def claim(self, namespace: str, name: str) -> Object | None:
        return self.claims.get(f"{namespace}/{name}")

    def cdi_ids(self, claim: Object, result: Mapping[str, Any]) -> tuple[str, ...]:
        return (f"{result['driver']}/dev={result['device']}",)

    def numa_nodes(self, resource: str) -> Mapping[str, tuple[int, ...]]:
        now = {name: device.numa_nodes for name, device in self.plugins.get(resource, {}).items()}
        if self._numa.get(resource) != now:
            self._numa[resource] = now
        return self._numa[resource]

    def resources(self) -> Mapping[str, Mapping[str, ResourceDevice]]:
        return self.plugins


def pod(name: str, assigned: Assigned, namespace: str = "default", **spec: Any) -> Object:
    containers = [{"name": container, "assignedDevices": [
        {"resourceName": resource, "deviceIDs": list(ids)} for resource, ids in devices.items()]}
        for container, devices in assigned.items()]
    return {"metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}", "resourceVersion": "1",
                         "creationTimestamp": "2026-11-18T09:00:00Z"},
            "spec": {"nodeName": "n1", "containers": containers, **spec}, "status": {"phase": "Pending"}}


def changed(old: Object, **status: Any) -> Object:
    meta = {**old["metadata"], "resourceVersion": str(int(old["metadata"]["resourceVersion"]) + 1)}
    return {**old, "metadata": meta, "status": {**old["status"], **status}}


def node() -> tuple[NodePods, GivenSources]:
    sources = GivenSources()
    return NodePods("n1", sources, SystemClock()), sources


@contextlib.asynccontextmanager
async def served(pods: NodePods, folder: Path) -> AsyncIterator[None]:
    sockets = ReaderSockets(pods, folder, clock=SystemClock())
    await sockets.start()
    try:
        yield
    finally:
        await sockets.stop()
