"""What readers see of a pod: containers, their devices by resource or claim, and exclusive CPUs. Values and a pure function
that makes them from a pod object; called by `node_pods`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims
from outfitter.api.kubevirt.device_refs import EXTENDED


@dataclass(frozen=True, slots=True)
class ReadableDevice:
    """A device of a claim."""

    driver: str
    pool: str
    device: str
    cdi_ids: tuple[str, ...] = ()
    share_id: str = ""


@dataclass(frozen=True, slots=True)
class ReadableClaim:
    namespace: str
    name: str
    devices: tuple[ReadableDevice, ...]


@dataclass(frozen=True, slots=True)
class ReadableContainer:
    name: str
    devices: Mapping[str, Mapping[str, tuple[int, ...]]]  # resource -> id -> its NUMA nodes; (): unknown
    claims: tuple[ReadableClaim, ...] = ()
    cpu_ids: tuple[int, ...] = ()  # exclusive ones


@dataclass(frozen=True, slots=True)
class ReadablePod:
    uid: str
    namespace: str
    name: str
    containers: tuple[ReadableContainer, ...]  # sidecars, then containers; plain init containers have ended by then


@dataclass(frozen=True, slots=True)
class ResourceDevice:
    """A device of a device plugin, as readers see it."""

    numa_nodes: tuple[int, ...] = ()
    healthy: bool = True


class DeviceSources(Protocol):
    """Where the devices of a node's pods are known."""

    def assigned(self, pod: Object) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Container -> resource -> ids of device plugins' devices."""
        ...

    def claim(self, namespace: str, name: str) -> Object | None: ...

    def cdi_ids(self, claim: Object, result: Mapping[str, Any]) -> tuple[str, ...]:
        """By which a container runtime adds an allocated device; empty while it is not prepared."""
        ...

    def numa_nodes(self, resource: str) -> Mapping[str, tuple[int, ...]]:
        """Of a plugin's devices by id; none where they are not known. The identical value until the plugin lists others."""
        ...

    def resources(self) -> Mapping[str, Mapping[str, ResourceDevice]]:
        """Resource -> id -> device: what the plugins of the node report now."""
        ...


def compute_pod_devices(pod: Object, sources: DeviceSources) -> ReadablePod:
    meta, spec = pod["metadata"], pod.get("spec") or {}
    sidecars = [container for container in spec.get("initContainers") or () if container.get("restartPolicy") == "Always"]
    assigned = sources.assigned(pod)
    numa_nodes = {resource: sources.numa_nodes(resource) for devices in assigned.values() for resource in devices}
    containers = tuple(
        ReadableContainer(
            container["name"],
            {resource: {device: numa_nodes[resource].get(device, ()) for device in ids}
             for resource, ids in sorted(assigned.get(container["name"], {}).items())},
            tuple(_claims(pod, container, sources)), _cpu_ids(pod, container, sources))
        for container in (*sidecars, *(spec.get("containers") or ())))
    return ReadablePod(meta["uid"], meta["namespace"], meta["name"], containers)


def _claims(pod: Object, container: Object, sources: DeviceSources) -> Iterator[ReadableClaim]:
    """The claims of a container; of a claim only the requests that the container names."""
    for entry, name in pod_claims.claim_names(pod):
        claim = sources.claim(pod["metadata"]["namespace"], name) if name else None
        if name is None or claim is None:
            continue
        requests = _requests(pod, container, entry)
        results = [result for result in pod_claims.allocation_results(claim)
                   if None in requests or str(result["request"]).partition("/")[0] in requests]
        if results:
            yield ReadableClaim(pod["metadata"]["namespace"], name, tuple(
                ReadableDevice(result["driver"], result["pool"], result["device"], sources.cdi_ids(claim, result),
                               result.get("shareID") or "") for result in results))


def _requests(pod: Object, container: Object, entry: str) -> set[str | None]:
    """The requests of a pod's claim that a container uses; None: all of them."""
    if entry == EXTENDED:
        status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
        return {mapping["requestName"] for mapping in status.get("requestMappings") or ()
                if mapping.get("containerName") == container["name"]}
    return {wanted.get("request") or None for wanted in (container.get("resources") or {}).get("claims") or ()
            if wanted.get("name") == entry}


def _cpu_ids(pod: Object, container: Object, sources: DeviceSources) -> tuple[int, ...]:
    """Dedicated CPUs that a claim of the container was given by number."""
    out: set[int] = set()
    for entry, name in pod_claims.claim_names(pod):
        claim = sources.claim(pod["metadata"]["namespace"], name) if name and _requests(pod, container, entry) else None
        for cpus in (pod_claims.cells_of(claim or {}).get("cpus") or {}).values():
            out.update(cpus)
    return tuple(sorted(out))
