"""A pod as cases read it."""

from __future__ import annotations

from typing import Any

from outfitter.api.kinds import Object


def pod_name(pod: Object) -> str:
    meta = pod["metadata"]
    return str(meta["name"] if meta["namespace"] == "default" else f"{meta['namespace']}/{meta['name']}")


def pod_path(name: str) -> str:
    namespace, _, short = name.rpartition("/")
    return f"/api/v1/namespaces/{namespace or 'default'}/pods/{short}"


def assigned(pod: Object) -> dict[str, dict[str, list[str]]]:
    """Container -> resource -> ids, as the API has them."""
    out: dict[str, dict[str, list[str]]] = {}
    for container in containers(pod):
        for entry in container.get("assignedDevices") or ():
            out.setdefault(container["name"], {}).setdefault(entry["resourceName"], []).extend(entry["deviceIDs"])
    return out


def containers(pod: Object) -> list[Object]:
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


def limits(container: Object) -> dict[str, int]:
    found = ((container.get("resources") or {}).get("limits") or {}).items()
    return {name: int(count) for name, count in found if "/" in name}


def has_all(pod: Object) -> bool:
    """Whether every container has all devices that it asks for in the API."""
    have = assigned(pod)
    return all(len(have.get(each["name"], {}).get(name, ())) == count
               for each in containers(pod) for name, count in limits(each).items())


def container_statuses(pod: Object) -> list[Object]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def started(pod: Object) -> bool:
    return any({"running", "terminated"} & (each.get("state") or {}).keys() for each in container_statuses(pod))


def spec_changes(written: Any, now: Any, path: str = "spec") -> list[str]:
    """Where a spec is not what was written any more. Fields, and ids, may have been added."""
    if isinstance(written, dict) and isinstance(now, dict):
        return [line for key, value in written.items() for line in spec_changes(value, now.get(key), f"{path}.{key}")]
    if path.endswith(".assignedDevices"):
        have = {entry["resourceName"]: entry["deviceIDs"] for entry in now or ()}
        return [f"{path} lacks {entry}" for entry in written
                if not set(entry["deviceIDs"]) <= set(have.get(entry["resourceName"], ()))]
    if isinstance(written, list) and isinstance(now, list) and len(written) == len(now):
        return [line for number, (one, other) in enumerate(zip(written, now, strict=True))
                for line in spec_changes(one, other, f"{path}[{number}]")]
    return [] if written == now else [f"{path} was {written!r} and is {now!r}"]
