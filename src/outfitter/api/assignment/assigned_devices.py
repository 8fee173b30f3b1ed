"""AssignedDevices of a pod's containers: which devices of which resource each of them has. One accessor for the two places:

    spec.containers[].assignedDevices     [{resourceName, deviceIDs}], on the embedded server
    metadata.annotations[ANNOTATION]      {"<container>": [{resourceName, deviceIDs}]} as JSON, on a server that drops unknown
                                          fields

A custom scheduler writes it before it binds the pod, else the node agent does at pod admission. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.kinds import Object
from outfitter.errors import Invalid

ANNOTATION = "outfitter.dev/assigned-devices"
FIELD = "assignedDevices"
PARTS = ("initContainers", "containers")
LONGEST_ID = 512  # characters of a device's id: no driver or device plugin publishes longer ones
EXAMPLE = 'right is {"train": [{"resourceName": "example.com/gpu", "deviceIDs": ["gpu-0"]}]}'
ContainerDevices = Mapping[str, tuple[str, ...]]  # resource -> ids
PodDevices = Mapping[str, ContainerDevices]  # container -> its devices


def of_container(container: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """What the container's field contains."""
    out: dict[str, tuple[str, ...]] = {}
    for entry in container.get(FIELD) or ():
        name = entry["resourceName"]
        out[name] = tuple(dict.fromkeys((*out.get(name, ()), *entry["deviceIDs"])))
    return out


def of_annotation(pod: Mapping[str, Any]) -> dict[str, dict[str, tuple[str, ...]]]:
    """What the annotation contains. Invalid: it cannot be read."""
    text = (pod["metadata"].get("annotations") or {}).get(ANNOTATION)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"annotation {ANNOTATION} is not JSON: {error}; {EXAMPLE}") from error
    if wrong := _wrong(found):
        raise Invalid(f"annotation {ANNOTATION}: {wrong}; {EXAMPLE}")
    return {name: of_container({FIELD: entries}) for name, entries in found.items()}


def _wrong(found: Any) -> str:
    """What is wrong with the annotation, whose types no schema has checked; "": nothing."""
    if not isinstance(found, dict):
        return "must be an object of lists, one for each container"
    for name, entries in found.items():
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            return f"{name} must be a list of objects with resourceName and deviceIDs"
        for index, entry in enumerate(entries):
            resource, ids = entry.get("resourceName"), entry.get("deviceIDs")
            if not isinstance(resource, str):
                return f"{name}[{index}].resourceName must be a text"
            if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
                return f"{name}[{index}].deviceIDs of {resource} must be a list of texts"
    return ""


def of_pod(pod: Mapping[str, Any]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Both places together; containers without devices are not listed. Invalid: the annotation cannot be read."""
    out = of_annotation(pod)
    for container in containers(pod):
        for resource, ids in of_container(container).items():
            known = out.setdefault(container["name"], {})
            known[resource] = tuple(dict.fromkeys((*ids, *known.get(resource, ()))))
    return {name: devices for name, devices in out.items() if any(devices.values())}


def by_claim(pod: Mapping[str, Any]) -> frozenset[str]:
    """The resources that a pod has by a claim, which DRA drivers prepare: no device plugin gives them."""
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return frozenset(mapping["resourceName"] for mapping in status.get("requestMappings") or ())


def of_plugins(pod: Mapping[str, Any]) -> dict[str, dict[str, tuple[str, ...]]]:
    """What a pod has of device plugins. Invalid: the annotation cannot be read."""
    others = by_claim(pod)
    found = of_pod(pod)
    return found if not others else _without(found, others)


def readable_of_plugins(pod: Mapping[str, Any]) -> dict[str, dict[str, tuple[str, ...]]]:
    """The same, and nothing where the annotation cannot be read: a user may have changed it while the pod runs."""
    try:
        return of_plugins(pod)
    except Invalid:
        return {}


def with_claims(pod: Mapping[str, Any], devices: PodDevices) -> PodDevices:
    """Devices of plugins, and what a scheduler assigned of resources that the pod has by a claim."""
    resources, assigned = by_claim(pod), of_pod(pod)
    return {name: {**{resource: ids for resource, ids in assigned.get(name, {}).items() if resource in resources},
                   **devices.get(name, {})} for name in {**assigned, **devices}}


def _without(devices: PodDevices, resources: frozenset[str]) -> dict[str, dict[str, tuple[str, ...]]]:
    left = {name: {resource: ids for resource, ids in by_resource.items() if resource not in resources}
            for name, by_resource in devices.items()}
    return {name: by_resource for name, by_resource in left.items() if by_resource}


def containers(pod: Mapping[str, Any]) -> Iterator[Object]:
    """All containers in the order in which they get devices: the init containers first."""
    for part in PARTS:
        yield from (pod.get("spec") or {}).get(part) or ()


def is_plain_init(pod: Mapping[str, Any], container: Mapping[str, Any]) -> bool:
    """Whether a container ends before those after it start."""
    first = (pod.get("spec") or {}).get("initContainers") or ()
    return any(each is container for each in first) and container.get("restartPolicy") != "Always"


def drop_disabled(pod: Object, old: Mapping[str, Any] | None) -> None:
    """Remove the field from a pod where the gate `DeviceAssignment` is off, unless the stored pod has it: as Kubernetes treats
    fields behind gates."""
    if old is None or not any(container.get(FIELD) for container in containers(old)):
        for container in containers(pod):
            container.pop(FIELD, None)


def entries(devices: ContainerDevices) -> list[Object]:
    return [{"resourceName": resource, "deviceIDs": list(ids)} for resource, ids in sorted(devices.items()) if ids]


def change(pod: Mapping[str, Any], devices: PodDevices, *, field: bool) -> Object:
    """A merge patch that gives the pod's containers these devices. `field`: into their specs, else into the annotation."""
    if not field:
        text = json.dumps({name: entries(each) for name, each in devices.items()}, sort_keys=True)
        return {"metadata": {"annotations": {ANNOTATION: text}}}
    spec = {part: [{**container, FIELD: entries(devices[container["name"]])} if devices.get(container["name"]) else container
                   for container in pod["spec"][part]] for part in PARTS if pod["spec"].get(part)}
    return {"spec": spec}
