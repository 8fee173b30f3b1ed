"""Pods and nodes: the fields that Outfitter uses, in spec and status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.assignment import assigned_devices
from outfitter.api.ledger_page.page import POOLS
from outfitter.api.validate import names, node_placement, resources
from outfitter.errors import Cause, Invalid

POLICIES = ("Always", "OnFailure", "Never")
_ANNOTATION = f"metadata.annotations[{assigned_devices.ANNOTATION}]"


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
        yield from names.label(container.get("name"), f"{here}.name")
        if container.get("name") and container["name"] in seen:
            yield Cause(f"{here}.name", f'Duplicate value: "{container["name"]}"', "FieldValueDuplicate")
        seen.add(container.get("name"))
        yield from _amounts(container, here)
        yield from _assigned(container, here)
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
        for field in ("resourceClaimName", "resourceClaimTemplateName"):
            if entry.get(field):
                yield from names.subdomain(entry[field], f"{here}.{field}")
    for part in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(part) or ()):
            for number, use in enumerate((container.get("resources") or {}).get("claims") or ()):
                if use.get("name") not in listed:
                    yield Cause(f"spec.{part}[{index}].resources.claims[{number}].name",
                                f'Not found: "{use.get("name")}": it is not in spec.resourceClaims', "FieldValueNotFound")
    yield from _assigned_by_annotation(obj, spec)
    yield from _amounts(spec, "spec")
    yield from _nonnegative(spec.get("overhead"), "spec.overhead")
    if spec.get("nodeName"):
        yield from names.subdomain(spec["nodeName"], "spec.nodeName")
    yield from _gates(spec)


def _gates(spec: Mapping[str, Any]) -> Iterator[Cause]:
    gates = spec.get("schedulingGates") or ()
    for index, gate in enumerate(gates):
        yield from names.key(gate.get("name"), f"spec.schedulingGates[{index}].name")
    if gates and spec.get("nodeName"):
        yield Cause("spec.nodeName", "Forbidden: cannot be set until all schedulingGates have been cleared",
                    "FieldValueForbidden")


def _amounts(container: Mapping[str, Any], path: str) -> Iterator[Cause]:
    for list_ in ("requests", "limits"):
        yield from _nonnegative((container.get("resources") or {}).get(list_), f"{path}.resources.{list_}")


def _nonnegative(amounts: Any, path: str) -> Iterator[Cause]:
    for name, amount in (amounts or {}).items():
        yield from resources.quantities(f"{path}.{name}", amount)


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
            elif len(device_id) > assigned_devices.LONGEST_ID:
                yield Cause(f"{here}.deviceIDs[{number}]", "Too long: may not be more than "
                                                           f"{assigned_devices.LONGEST_ID} characters", "FieldValueTooLong")
            elif first[device_id] != number:
                yield Cause(f"{here}.deviceIDs[{number}]", f'Duplicate value: "{device_id}"', "FieldValueDuplicate")
        if not any(resource in (container_resources.get(list_) or {}) for list_ in ("requests", "limits")):
            yield Cause(f"{here}.resourceName", f'Invalid value: "{resource}": the container does not request it: add it to '
                                                f"resources.limits, for example {resource}: {len(ids)}")
        for list_ in ("requests", "limits"):
            requested = str((container_resources.get(list_) or {}).get(resource, len(ids)))
            if requested.isdecimal() and int(requested) < len(ids):
                yield Cause(f"{here}.deviceIDs", f"Invalid value: {len(ids)} devices: resources.{list_} requests "
                                                 f"{requested}; write at most as many, the node assigns the others")


def _assigned_by_annotation(obj: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Cause]:
    """The same, where it is an annotation; a container has what both places contain."""
    here = _ANNOTATION
    try:
        found = assigned_devices.of_annotation(obj)
    except Invalid as error:
        yield Cause(here, f"Invalid value: {error.message}")
        return
    by_name = {container.get("name"): container for part in CONTAINERS for container in spec.get(part) or ()}
    for name, devices in found.items():
        if name not in by_name:
            yield Cause(here, f'Not found: "{name}": the pod has no such container', "FieldValueNotFound")
            continue
        in_field = {resource: ids for resource, ids in _in_field(by_name[name]).items() if resource in devices}
        both = {resource: tuple(dict.fromkeys((*in_field.get(resource, ()), *ids))) for resource, ids in devices.items()}
        yield from _assigned({**by_name[name], assigned_devices.FIELD: assigned_devices.entries(both)}, f"{here}.{name}")


def _in_field(container: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    try:
        return assigned_devices.of_container(container)
    except KeyError:
        return {}  # reported as a field that is missing


def node(obj: Mapping[str, Any]) -> Iterator[Cause]:
    name = str(obj["metadata"].get("name", ""))
    if name.endswith(POOLS):
        yield Cause("metadata.name", f'Invalid value: "{name}": names that end in {POOLS} are reserved for the pages of pools')
    taints = (obj.get("spec") or {}).get("taints") or ()
    yield from node_placement.taints(taints, "spec.taints", node_placement.EFFECTS)
    seen: set[tuple[Any, Any]] = set()
    for index, taint in enumerate(taints):
        pair = (taint.get("key"), taint.get("effect"))
        if pair in seen:
            yield Cause(f"spec.taints[{index}]", f'Duplicate value: "{pair[0]}:{pair[1]}": taints must be unique by key and '
                                                 "effect pair", "FieldValueDuplicate")
        seen.add(pair)
    yield from node_status(obj)


def node_status(obj: Mapping[str, Any]) -> Iterator[Cause]:
    status = obj.get("status") or {}
    for field in ("capacity", "allocatable"):
        yield from _nonnegative(status.get(field), f"status.{field}")


def pod_status(obj: Mapping[str, Any]) -> Iterator[Cause]:
    """Claims that were made for the pod belong to entries of its spec."""
    listed = {entry.get("name") for entry in (obj.get("spec") or {}).get("resourceClaims") or ()}
    status = obj.get("status") or {}
    seen: set[str] = set()
    for index, entry in enumerate(status.get("resourceClaimStatuses") or ()):
        here, name = f"status.resourceClaimStatuses[{index}]", entry["name"]
        if name not in listed:
            yield Cause(f"{here}.name", f'Invalid value: "{name}": must match the name of an entry in `spec.resourceClaims`')
        if name in seen:
            yield Cause(f"{here}.name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
        seen.add(name)
        if entry.get("resourceClaimName") is not None:
            yield from names.subdomain(entry["resourceClaimName"], f"{here}.resourceClaimName")
    extended = status.get("extendedResourceClaimStatus")
    if extended is not None:
        yield from names.subdomain(extended.get("resourceClaimName"), "status.extendedResourceClaimStatus.resourceClaimName")


# -- updates of a spec: what Kubernetes lets users change, and nothing else

UNSET: tuple[Any, ...] = (None, [], {}, "")  # mean the same
CONTAINERS = ("containers", "initContainers")
CHANGEABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions "
    "to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative),"
    "`assignedDevices` of containers (only additions)"
)


def changed_spec(new: Mapping[str, Any], old: Mapping[str, Any], *, binds: bool) -> Iterator[Cause]:
    """`binds`: whether the writer may set nodeName of a pod that has none, as the scheduler does."""
    spec, was = new.get("spec") or {}, old.get("spec") or {}
    differs = {name for name in {*spec, *was} if spec.get(name) != was.get(name)}
    spec, was = ({name: _set(each[name]) for name in differs | {"schedulingGates"} if each.get(name) not in UNSET}
                 for each in (spec, was))
    if spec == was:
        return
    for part in CONTAINERS:
        if len(spec.get(part, ())) != len(was.get(part, ())):
            yield Cause(f"spec.{part}", "Forbidden: pod updates may not add or remove containers", "FieldValueForbidden")
            return
    yield from _deadline(spec.get("activeDeadlineSeconds"), was.get("activeDeadlineSeconds"))
    yield from _tolerations(spec.get("tolerations", ()), was.get("tolerations", ()))
    gates = [gate.get("name") for gate in was.get("schedulingGates", ())]
    for index, gate in enumerate(spec.get("schedulingGates", ())):
        if gate.get("name") not in gates:
            yield Cause(f"spec.schedulingGates[{index}].name", "Forbidden: only deletion is allowed, but found new scheduling "
                                                               f"gate '{gate.get('name')}'", "FieldValueForbidden")
    may = {"activeDeadlineSeconds", "tolerations", "schedulingGates"}
    if gates:
        may |= {"nodeSelector", "affinity"}
        yield from _narrowed(spec, was)
    if binds and not was.get("nodeName"):
        may.add("nodeName")
    if (was.get("terminationGracePeriodSeconds") or 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        may.add("terminationGracePeriodSeconds")
    changed = [name for name in sorted(differs - may) if _imageless(name, spec) != _imageless(name, was)]
    if changed:
        yield _forbidden(", ".join(changed))


def unassigned(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    """Devices may be added to those that a container has, in the field or the annotation; none is taken from it."""
    try:
        had = assigned_devices.of_pod(old)
        has = assigned_devices.of_pod(new)
    except (Invalid, KeyError):
        return  # of the new one it is reported; of the stored one nothing is known
    for part in CONTAINERS:
        before = {container.get("name"): container for container in (old.get("spec") or {}).get(part) or ()}
        for index, container in enumerate((new.get("spec") or {}).get(part) or ()):
            name = container.get("name")
            for resource, ids in had.get(name, {}).items():
                gone = [each for each in ids if each not in has.get(name, {}).get(resource, ())]
                in_field = set(gone) & set(_in_field(before.get(name, {})).get(resource, ()))
                path = f"spec.{part}[{index}].{assigned_devices.FIELD}" if in_field else _ANNOTATION
                if gone:
                    yield Cause(path, f"Forbidden: {', '.join(gone)} of {resource} is assigned, and stays with the pod",
                                "FieldValueForbidden")


def _forbidden(changed: str) -> Cause:
    return Cause("spec", f"Forbidden: pod updates may not change fields other than {CHANGEABLE}; changed: {changed}",
                 "FieldValueForbidden")


def _set(value: Any) -> Any:
    """A value without null fields and empty lists, which mean the same as none."""
    if isinstance(value, dict):
        return {name: _set(inner) for name, inner in value.items() if inner is not None and inner != []}
    return [_set(item) for item in value] if isinstance(value, list) else value


def _imageless(name: str, spec: Mapping[str, Any]) -> Any:
    if name in CONTAINERS:
        return [{key: value for key, value in {**container, "image": ""}.items() if key != assigned_devices.FIELD}
                for container in spec.get(name, ())]
    return spec.get(name)


def _deadline(seconds: int | None, before: int | None) -> Iterator[Cause]:
    field = "spec.activeDeadlineSeconds"
    if seconds == before:
        return
    if seconds is None:
        yield Cause(field, "Invalid value: null: must not update from a positive integer to nil value")
    elif not 0 <= seconds < 2 ** 31:
        yield Cause(field, f"Invalid value: {seconds}: must be between 0 and {2 ** 31 - 1}, inclusive")
    elif before is not None and seconds > before:
        yield Cause(field, f"Invalid value: {seconds}: must be less than or equal to previous value")


def _tolerations(entries: Any, before: Any) -> Iterator[Cause]:
    def timeless(toleration: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: value for name, value in toleration.items() if name != "tolerationSeconds"}

    kept = [timeless(entry) for entry in entries]
    if not all(timeless(entry) in kept for entry in before):
        yield Cause("spec.tolerations", "Forbidden: existing toleration can not be modified except its tolerationSeconds",
                    "FieldValueForbidden")


def _narrowed(spec: Mapping[str, Any], was: Mapping[str, Any]) -> Iterator[Cause]:
    """A pod with scheduling gates may get further requirements on its node, and no others."""
    selector = spec.get("nodeSelector") or {}
    if any(selector.get(name) != value for name, value in (was.get("nodeSelector") or {}).items()):
        yield Cause("spec.nodeSelector", "Invalid value: only additions to spec.nodeSelector are allowed (no mutations or "
                                         "deletions)")
    affinity, before = spec.get("affinity") or {}, was.get("affinity") or {}
    for part in ("podAffinity", "podAntiAffinity"):
        if affinity.get(part) != before.get(part):
            yield _forbidden(f"affinity.{part}")
    required, required_before = ((each.get("nodeAffinity") or {}).get(node_placement.REQUIRED) for each in (affinity, before))
    if not required_before:
        return
    terms, terms_before = ((each or {}).get("nodeSelectorTerms", []) for each in (required, required_before))
    at = f"spec.affinity.nodeAffinity.{node_placement.REQUIRED}.nodeSelectorTerms"
    if len(terms) != len(terms_before):
        yield Cause(at, "Invalid value: no additions/deletions to non-empty NodeSelectorTerms list are allowed")
    elif not all(map(_only_adds, terms, terms_before)):
        yield Cause(at, "Invalid value: only additions are allowed (no mutations or deletions)")


def _only_adds(term: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    parts = ("matchExpressions", "matchFields")
    if not any(before.get(part) for part in parts):
        return not any(term.get(part) for part in parts)
    return all(term.get(part, [])[:len(before.get(part, []))] == before.get(part, []) for part in parts)
