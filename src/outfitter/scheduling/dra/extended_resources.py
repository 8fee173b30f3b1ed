"""Extended resources that come from devices. A container that asks for `example.com/gpu: 2` gets two devices of the DeviceClass
that maps that name, on a host that does not offer the resource itself: as Kubernetes does it, by a claim that the scheduler
makes for the pod. What is asked for which container is in the pod's status."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api.kubevirt import device_refs
from outfitter.cel.library import quantity

Object = Mapping[str, Any]
Resources = Callable[[str], Object | None]  # an extended resource's name -> the DeviceClass that maps it
ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
FURTHER = "-further"  # suffix of the request for what a container asks for beyond its pre-assigned devices
IMPLICIT = "deviceclass.resource.kubernetes.io/"  # and the name of a class: an extended resource that every class maps


def nothing(_: str) -> Object | None:
    """No class maps anything."""
    return None


def mapped(classes: Iterable[Object]) -> Resources:
    """Which class stands for a resource. Of several the youngest does, and of several that came at once the first by name."""
    found: dict[str, Object] = {}
    by_name = {class_["metadata"]["name"]: class_ for class_ in classes}
    for name in sorted(by_name, reverse=True):
        resource = (by_name[name].get("spec") or {}).get("extendedResourceName")
        if resource and (resource not in found or _made(by_name[name]) >= _made(found[resource])):
            found[resource] = by_name[name]

    def class_of(resource: str) -> Object | None:
        explicit = found.get(resource)
        return explicit or (by_name.get(resource.removeprefix(IMPLICIT)) if resource.startswith(IMPLICIT) else None)

    return class_of


def _made(class_: Object) -> str:
    return str(class_["metadata"].get("creationTimestamp") or "")


@dataclass(frozen=True, slots=True)
class ExtendedResourceRequest:
    """What a claim for a pod's extended resources asks for."""

    requests: tuple[dict[str, Any], ...]
    mappings: tuple[dict[str, str], ...]  # as the pod's status tells them
    only: Mapping[str, Sequence[str]]  # request -> the ids of its pre-assigned devices


def asked(container: Object) -> dict[str, int]:
    """How much of each resource a container asks for, in whole pieces; what is not whole is skipped. Pre-assigned
    devices count as asked for."""
    resources = container.get("resources") or {}
    out = {}
    for name, text in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
        try:
            nano = quantity.parse(str(text)).nano
        except ValueError:
            continue  # the resource filter reports that
        if nano % quantity.NANO == 0:
            out[name] = nano // quantity.NANO
    return {**{name: len(ids) for name, ids in chosen(container).items()}, **out}


def chosen(container: Object) -> dict[str, list[str]]:
    """The pre-assigned devices of a container: resource -> ids."""
    out: dict[str, list[str]] = {}
    for entry in container.get("assignedDevices") or ():
        out.setdefault(entry["resourceName"], []).extend(entry["deviceIDs"])
    return out


def presets(pod: Object, class_of: Resources | None = None) -> Iterator[tuple[str, str]]:
    """Every (resource, id) of the pre-assigned devices of a pod; with `class_of` those of resources that a class maps. Others
    are of a device plugin, and the node that has it checks them."""
    for _, container, _ in _containers(pod):
        for name, ids in chosen(container).items():
            if class_of is None or class_of(name) is not None:
                yield from ((name, each) for each in ids)


def names(pod: Object, class_of: Resources) -> frozenset[str]:
    """The resources that a pod asks for and a class maps."""
    return frozenset(name for _, container, _ in _containers(pod) for name, count in asked(container).items()
                     if count and class_of(name) is not None)


def _containers(pod: Object) -> Iterator[tuple[int, Object, bool]]:
    """All containers, numbered with the init containers first, and whether they stay: those that end before the others begin
    do not."""
    spec = pod.get("spec") or {}
    first = spec.get("initContainers") or ()
    for index, container in enumerate([*first, *(spec.get("containers") or ())]):
        yield index, container, index >= len(first) or container.get("restartPolicy") == "Always"


def wanted(pod: Object, resources: Collection[str], class_of: Resources) -> ExtendedResourceRequest:
    """The requests for these resources. A container that ends before others begin uses the devices of those that come after
    it, and of what is missing then the most that any such container needs is asked for once."""
    requests: list[dict[str, Any]] = []
    mappings: list[dict[str, str]] = []
    only: dict[str, list[str]] = {}
    containers = list(_containers(pod))
    for resource in sorted(resources):
        class_ = class_of(resource)
        if class_ is None:
            continue
        stays: dict[int, tuple[str, int]] = {}  # container -> its request, and how many
        for index, container, stay in containers:
            if stay and (count := asked(container).get(resource, 0)):
                stays[index] = _name(index, container, resource), count
                mappings.append(_mapping(container, resource, stays[index][0]))
                if ids := chosen(container).get(resource):
                    only[stays[index][0]] = ids
                    if len(ids) < count:  # the others are chosen here
                        mappings.append(_mapping(container, resource, stays[index][0] + FURTHER))
        spare, brief = _brief(containers, resource, stays)
        mappings += brief
        for name, count in [*([spare] if spare else ()), *stays.values()]:
            given = min(count, len(only.get(name) or ()))
            parts = {name: given, name + FURTHER: count - given} if given else {name: count}
            requests += [_request(part, class_, number) for part, number in parts.items() if number]
    return ExtendedResourceRequest(tuple(sorted(requests, key=lambda one: str(one["name"]))), tuple(mappings), only)


def _brief(containers: Sequence[tuple[int, Object, bool]], resource: str, stays: Mapping[int, tuple[str, int]]) -> tuple[
        tuple[str, int] | None, list[dict[str, str]]]:
    """The one request for containers that do not stay (None: those that come after them have enough), and what they use."""
    spare: tuple[str, int] | None = None
    uses: list[tuple[Object, str]] = []  # "" is the spare one
    for index, container, stay in containers:
        missing = 0 if stay else asked(container).get(resource, 0)
        for later, (name, count) in stays.items():
            if later >= index and missing > 0:
                uses.append((container, name))
                missing -= count
        if missing > 0:
            uses.append((container, ""))
            if spare is None or missing > spare[1]:
                spare = _name(index, container, resource), missing
    return spare, [_mapping(container, resource, name or (spare[0] if spare else "")) for container, name in uses]


def _name(index: int, container: Object, resource: str) -> str:
    return f"container-{index}-request-{sorted(asked(container)).index(resource)}"


def _request(name: str, class_: Object, count: int) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": class_["metadata"]["name"], "allocationMode": "ExactCount",
                                      "count": count}}


def _mapping(container: Object, resource: str, request: str) -> dict[str, str]:
    return {"containerName": container["name"], "resourceName": resource, "requestName": request}


def claim(pod: Object, asks: ExtendedResourceRequest) -> dict[str, Any]:
    """The claim that carries the requests. It belongs to the pod and gets its name when it is made: no claim is called so."""
    meta = pod["metadata"]
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {
            "name": device_refs.EXTENDED, "namespace": meta["namespace"], "annotations": {ANNOTATION: "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta.get("uid", ""),
                                 "controller": True}],
        },
        "spec": {"devices": {"requests": list(asks.requests)}},
    }
