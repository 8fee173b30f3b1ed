"""What a pod takes of a node: its containers' requests, overhead and pod-level resources, summed as kube-scheduler does. Pure;
used by the node filter, usage totals and device counting."""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.scheduling.filter.resource_amounts import Object, add, resource_list, whole_units

POD_LEVEL = ("cpu", "memory")  # and huge pages: what a pod may ask for as a whole
HUGE_PAGES = "hugepages-"


def _requests(resources: Object, path: str) -> dict[str, int]:
    """What is asked for; a limit without a request is one."""
    limits = resource_list(resources.get("limits") or {}, f"{path}.limits")
    return limits | resource_list(resources.get("requests") or {}, f"{path}.requests")


def requests(pod: Object) -> dict[str, int]:
    """What a pod takes of a node, with its place among the pods. Invalid for an amount that cannot be read.

    All containers at once, or the neediest moment of the start if that is more: there each init container runs beside the
    sidecars before it. What the pod asks for as a whole stands instead of its containers; overhead comes on top. Extended
    resources that it has by a claim are counted as devices, and not here."""
    spec = pod.get("spec") or {}
    by_claim = {mapping["resourceName"] for mapping in (
        (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()}
    total: dict[str, int] = {}
    for index, container in enumerate(spec.get("containers") or ()):
        add(total, _requests(container.get("resources") or {}, f"spec.containers[{index}].resources"))
    sidecars: dict[str, int] = {}
    start: dict[str, int] = {}
    for index, container in enumerate(spec.get("initContainers") or ()):
        asked = _requests(container.get("resources") or {}, f"spec.initContainers[{index}].resources")
        if container.get("restartPolicy") == "Always":
            add(total, asked)
            add(sidecars, asked)
            moment = sidecars
        else:
            add(asked, sidecars)
            moment = asked
        for name, amount in moment.items():
            start[name] = max(start.get(name, 0), amount)
    for name, amount in start.items():
        total[name] = max(total.get(name, 0), amount)
    total |= _as_a_whole(spec.get("resources") or {}, total)
    add(total, resource_list(spec.get("overhead") or {}, "spec.overhead"))
    return {"pods": 1} | {name: whole_units(name, nano) for name, nano in total.items()
                          if nano and name != "pods" and name not in by_claim}


def _as_a_whole(resources: Object, containers: Mapping[str, int]) -> dict[str, int]:
    """What the pod itself asks for. Of cpu and memory a limit alone counts only where no container asks for any."""
    asked = resource_list(resources.get("requests") or {}, "spec.resources.requests")
    for name, limit in resource_list(resources.get("limits") or {}, "spec.resources.limits").items():
        if name.startswith(HUGE_PAGES) or name not in containers:
            asked.setdefault(name, limit)
    return {name: amount for name, amount in asked.items() if name in POD_LEVEL or name.startswith(HUGE_PAGES)}


def key(pod: Object) -> str:
    meta = pod["metadata"]
    return meta.get("uid") or f"{meta.get('namespace', '')}/{meta['name']}"
