"""Pods and nodes, as far as we run them."""

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
            yield Cause(f"{here}.assignedDevices", "Forbidden: a container that ends before the others begin uses theirs; "
                                                   "write it at one that stays", "FieldValueForbidden")
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
    """Devices that were chosen for a container beforehand."""
    asked = container.get("resources") or {}
    seen: set[str] = set()
    for index, entry in enumerate(container.get("assignedDevices") or ()):
        here = f"{path}.assignedDevices[{index}]"
        resource, ids = entry.get("resourceName"), entry.get("deviceIDs")
        if not resource or not ids:
            missing = "resourceName" if not resource else "deviceIDs"
            says = "the extended resource that the devices count as" if not resource else "at least one device"
            yield Cause(f"{here}.{missing}", f"Required value: {says}", "FieldValueRequired")
            continue
        if "/" not in resource:
            yield Cause(f"{here}.resourceName", f'Invalid value: "{resource}": an extended resource has a domain, for example '
                                                f"example.com/{resource}")
        if resource in seen:
            yield Cause(f"{here}.resourceName", f'Duplicate value: "{resource}"', "FieldValueDuplicate")
        seen.add(resource)
        for number, each in enumerate(ids):
            if not each:
                yield Cause(f"{here}.deviceIDs[{number}]", "Required value: host/device, or a device", "FieldValueRequired")
            elif each in ids[:number]:
                yield Cause(f"{here}.deviceIDs[{number}]", f'Duplicate value: "{each}"', "FieldValueDuplicate")
        for list_ in ("requests", "limits"):
            number_asked = str((asked.get(list_) or {}).get(resource, len(ids)))
            if number_asked != str(len(ids)):
                yield Cause(f"{here}.deviceIDs", f"Invalid value: {len(ids)} devices: resources.{list_} asks for "
                                                 f"{number_asked}; write the same number, or leave it out")


def node(obj: Mapping[str, Any]) -> Iterator[Cause]:
    name = str(obj["metadata"].get("name", ""))
    if name.endswith(POOLS):
        yield Cause("metadata.name", f'Invalid value: "{name}": names that end in {POOLS} are for pages of pools')


def same_place(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    """A pod that was given a node stays there, and keeps its claims."""
    spec = new.get("spec") or {}
    was = old["spec"].get("nodeName")
    if was and spec.get("nodeName") != was:
        yield Cause("spec.nodeName", f'Invalid value: field is immutable: the pod was given "{was}"')
    if spec.get("resourceClaims") != old["spec"].get("resourceClaims"):
        yield Cause("spec.resourceClaims", "Invalid value: field is immutable")
