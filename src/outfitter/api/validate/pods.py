"""Pods and nodes, as far as we run them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.validate import names
from outfitter.errors import Cause

POLICIES = ("Always", "OnFailure", "Never")


def pod(obj: Mapping[str, Any]) -> Iterator[Cause]:
    spec = obj.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    if not isinstance(containers, list) or not containers:
        yield Cause("spec.containers", "Required value: a pod runs at least one container", "FieldValueRequired")
        return
    assert isinstance(spec, Mapping)
    seen: set[str] = set()
    for index, container in enumerate(containers):
        here = f"spec.containers[{index}]"
        yield from names.label(container.get("name"), f"{here}.name")
        if container.get("name") and container["name"] in seen:
            yield Cause(f"{here}.name", f'Duplicate value: "{container["name"]}"', "FieldValueDuplicate")
        seen.add(container.get("name"))
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


def same_place(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    """A pod that was given a node stays there, and keeps its claims."""
    spec = new.get("spec") or {}
    was = old["spec"].get("nodeName")
    if was and spec.get("nodeName") != was:
        yield Cause("spec.nodeName", f'Invalid value: field is immutable: the pod was given "{was}"')
    if spec.get("resourceClaims") != old["spec"].get("resourceClaims"):
        yield Cause("spec.resourceClaims", "Invalid value: field is immutable")
