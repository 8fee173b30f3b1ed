"""Pods and nodes: the fields that Outfitter uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.page import POOLS
from outfitter.api.validate import names, node_placement, resources
from outfitter.errors import Cause

POLICIES = ("Always", "OnFailure", "Never")


def pod(obj: Mapping[str, Any]) -> Iterator[Cause]:
    spec = obj.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    if not isinstance(containers, list) or not containers:
        yield Cause("spec.containers", "Required value: a pod runs at least one container", "FieldValueRequired")
        return
    assert isinstance(spec, Mapping)
    yield from node_placement.check(spec, "spec")
    seen: set[str] = set()
    for index, container in enumerate(containers):
        here = f"spec.containers[{index}]"
        yield from names.label(container.get("name"), f"{here}.name")
        if container.get("name") and container["name"] in seen:
            yield Cause(f"{here}.name", f'Duplicate value: "{container["name"]}"', "FieldValueDuplicate")
        seen.add(container.get("name"))
        yield from _assigned(container, here)
        yield from _amounts(container, here)
    for index, container in enumerate(spec.get("initContainers") or ()):
        here = f"spec.initContainers[{index}]"
        yield from _amounts(container, here)
        yield from _assigned(container, here)
        if container.get("assignedDevices") and container.get("restartPolicy") != "Always":
            yield Cause(
                f"{here}.assignedDevices",
                "Forbidden: an init container that ends before the others start uses their "
                "devices; assign them to a container that keeps running",
                "FieldValueForbidden",
            )
    if spec.get("restartPolicy", "Always") not in POLICIES:
        yield Cause("spec.restartPolicy", f'Unsupported value: "{spec["restartPolicy"]}": supported values: '
                                          + ", ".join(f'"{policy}"' for policy in POLICIES), "FieldValueNotSupported")
    listed: set[str] = set()
    for index, entry in enumerate(spec.get("resourceClaims") or ()):
        here = f"spec.resourceClaims[{index}]"
        yield from names.label(entry.get("name"), f"{here}.name")
        if entry.get("name") and entry["name"] in listed:
            yield Cause(f"{here}.name", f'Duplicate value: "{entry["name"]}"', "FieldValueDuplicate")
        listed.add(entry.get("name"))
        if bool(entry.get("resourceClaimName")) == bool(entry.get("resourceClaimTemplateName")):
            yield Cause(here, "Invalid value: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
    for index, container in enumerate(containers):
        for number, use in enumerate((container.get("resources") or {}).get("claims") or ()):
            if use.get("name") not in listed:
                yield Cause(f"spec.containers[{index}].resources.claims[{number}].name",
                            f'Not found: "{use.get("name")}": it is not in spec.resourceClaims', "FieldValueNotFound")


def _amounts(container: Mapping[str, Any], path: str) -> Iterator[Cause]:
    for list_ in ("requests", "limits"):
        for name, amount in ((container.get("resources") or {}).get(list_) or {}).items():
            yield from resources.quantities(f"{path}.resources.{list_}.{name}", amount)


def _assigned(container: Mapping[str, Any], path: str) -> Iterator[Cause]:
    """Devices that are pre-assigned to a container."""
    container_resources = container.get("resources") or {}
    seen: set[str] = set()
    for index, entry in enumerate(container.get("assignedDevices") or ()):
        here = f"{path}.assignedDevices[{index}]"
        resource, ids = entry.get("resourceName"), entry.get("deviceIDs")
        if not resource or not ids:
            missing = "resourceName" if not resource else "deviceIDs"
            expected = "the extended resource of the devices" if not resource else "at least one device"
            yield Cause(f"{here}.{missing}", f"Required value: {expected}", "FieldValueRequired")
            continue
        if "/" not in resource:
            yield Cause(
                f"{here}.resourceName",
                f'Invalid value: "{resource}": an extended resource needs a domain, for example example.com/{resource}',
            )
        if resource in seen:
            yield Cause(f"{here}.resourceName", f'Duplicate value: "{resource}"', "FieldValueDuplicate")
        seen.add(resource)
        first = {device_id: number for number, device_id in reversed(list(enumerate(ids)))}
        for number, device_id in enumerate(ids):
            if not device_id:
                yield Cause(f"{here}.deviceIDs[{number}]", "Required value: host/device, or a device", "FieldValueRequired")
            elif first[device_id] != number:
                yield Cause(f"{here}.deviceIDs[{number}]", f'Duplicate value: "{device_id}"', "FieldValueDuplicate")
        for list_ in ("requests", "limits"):
            number_requested = str((container_resources.get(list_) or {}).get(resource, len(ids)))
            if number_requested != str(len(ids)):
                yield Cause(f"{here}.deviceIDs", f"Invalid value: {len(ids)} devices: resources.{list_} requests "
                                                 f"{number_requested}; write the same number, or omit it")


def node(obj: Mapping[str, Any]) -> Iterator[Cause]:
    name = str(obj["metadata"].get("name", ""))
    if name.endswith(POOLS):
        yield Cause("metadata.name", f'Invalid value: "{name}": names that end in {POOLS} are reserved for the pages of pools')


def same_place(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    """nodeName of a bound pod and resourceClaims are immutable."""
    spec = new.get("spec") or {}
    was = old["spec"].get("nodeName")
    if was and spec.get("nodeName") != was:
        yield Cause("spec.nodeName", f'Invalid value: field is immutable: the pod is bound to "{was}"')
    if spec.get("resourceClaims") != old["spec"].get("resourceClaims"):
        yield Cause("spec.resourceClaims", "Invalid value: field is immutable")
