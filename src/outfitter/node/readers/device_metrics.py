"""Numbers of a node's readers for Prometheus, so that a monitor can attach pod and container to a device. Served by
`outfitter.metrics`; everything is read when it is scraped. A device of a claim has its driver as resource and "pool/device" as
device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from outfitter.node.readers.node_pods import NodePods
from outfitter.node.readers.pod_devices import ReadablePod

HOLDER_LABELS = ("node", "resource", "device", "namespace", "pod", "container")
STATE_LABELS = ("node", "resource", "state")


Pods = Sequence[tuple[str, ReadablePod]]  # with their nodes


def readable(readers: Iterable[NodePods]) -> Pods:
    return [(node.node, pod) for node in readers for pod in node.readable()]


def holders(pods: Pods) -> dict[tuple[str, ...], float]:
    """Who has which device; 1 each."""
    out: dict[tuple[str, ...], float] = {}
    for node, pod in pods:
        for container in pod.containers:
            place = (pod.namespace, pod.name, container.name)
            for resource, devices in container.devices.items():
                out.update({(node, resource, device, *place): 1 for device in devices})
            for claim in container.claims:
                out.update({(node, device.driver, f"{device.pool}/{device.device}", *place): 1 for device in claim.devices})
    return out


def states(readers: Iterable[NodePods], pods: Pods) -> Counter[tuple[str, ...]]:
    """Devices of device plugins by state: `healthy` and `unhealthy` are all of them, `assigned` those that a pod has."""
    out: Counter[tuple[str, ...]] = Counter()
    for node in readers:
        for resource, devices in node.sources.resources().items():
            healthy = sum(device.healthy for device in devices.values())
            out[node.node, resource, "healthy"] += healthy
            out[node.node, resource, "unhealthy"] += len(devices) - healthy
    for name, pod in pods:
        for container in pod.containers:
            for resource, ids in container.devices.items():
                out[name, resource, "assigned"] += len(ids)
    return out
