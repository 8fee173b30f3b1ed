"""How long the lists and maps of an object may be: Kubernetes' and KubeVirt's bounds where they have one, else ours. Checked
before everything else, so that no other check meets a list that would take long. docs/limits.md lists them."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from outfitter.errors import Cause

METADATA_ITEMS = 1_000  # ours
POD_ITEMS = 256  # ours
PAGE_BOOKINGS = 2_000  # ours: a page is below 1 MB with names of usual length; API servers reject objects above 1.5 MB
PAGE_RECORDS = 4_096  # devices of a host that are out of service, ours
VMI_ITEMS = 256  # KubeVirt's, and ours for the lists that it does not bound
SELECTOR_TEXT = 16 * 1024  # bytes of all CEL expressions of an object, ours: about 5 ms of the event loop for 1 KiB
SELECTOR_OVERHEAD = 64  # bytes that each expression counts besides its text
OPAQUE_BYTES = 10 * 1024  # of opaque parameters as JSON, Kubernetes'
SLICE_DEVICES, SLICE_DEVICES_WITH_MORE = 128, 64  # Kubernetes'; the second if one has taints or consumes counters
DEVICE_ENTRIES = 32  # attributes and capacities of a device, Kubernetes'

Bounds = Mapping[str, int]  # path below the object, through lists and "*" of maps -> the most items
METADATA_LISTS = ("labels", "finalizers", "ownerReferences", "managedFields")
_PLACEMENT: Bounds = {
    **dict.fromkeys(("tolerations", "nodeSelector", "topologySpreadConstraints"), POD_ITEMS),
    **{f"affinity.nodeAffinity.{terms}": POD_ITEMS for terms in (
        "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms", "preferredDuringSchedulingIgnoredDuringExecution")},
    **{f"affinity.nodeAffinity.{term}.{part}": POD_ITEMS for part in ("matchExpressions", "matchFields") for term in (
        "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
        "preferredDuringSchedulingIgnoredDuringExecution.preference")},
}
_CONTAINER: Bounds = {
    "assignedDevices": POD_ITEMS, "assignedDevices.deviceIDs": PAGE_BOOKINGS, "env": METADATA_ITEMS, "ports": METADATA_ITEMS,
    "resources.claims": POD_ITEMS, "resources.requests": POD_ITEMS, "resources.limits": POD_ITEMS}
_POD: Bounds = {
    **_PLACEMENT, **dict.fromkeys(("containers", "initContainers", "resourceClaims", "volumes"), POD_ITEMS),
    **{f"{list_}.{path}": most for list_ in ("containers", "initContainers") for path, most in _CONTAINER.items()},
}
_EXACT: Bounds = {"selectors": 32, "derivedAttributes": 32, "tolerations": 16, "capacity.requests": DEVICE_ENTRIES}
_CLAIM: Bounds = {
    "devices.requests": 32, "devices.constraints": 32, "devices.config": 32, "devices.requests.firstAvailable": 8,
    "devices.constraints.requests": 32, "devices.config.requests": 32,
    **{f"devices.requests.{kind}.{path}": most for kind in ("exactly", "firstAvailable") for path, most in _EXACT.items()},
}
_VMI: Bounds = {
    **_PLACEMENT, **dict.fromkeys(("volumes", "networks", "resourceClaims", "accessCredentials"), VMI_ITEMS),
    **{f"domain.devices.{list_}": VMI_ITEMS for list_ in ("disks", "interfaces", "gpus", "hostDevices", "filesystems",
                                                          "inputs")},
    "domain.devices.interfaces.ports": VMI_ITEMS, "domain.cpu.features": VMI_ITEMS,
    "domain.resources.requests": POD_ITEMS, "domain.resources.limits": POD_ITEMS,
}


def _below(prefix: str, bounds: Bounds) -> dict[str, int]:
    return {f"{prefix}.{path}": most for path, most in bounds.items()}


BOUNDS: Mapping[str, Bounds] = {
    "LedgerPage": dict.fromkeys(("spec.reserved", "spec.quarantined", "spec.unclean"), PAGE_RECORDS),
    "Node": {"spec.taints": POD_ITEMS},
    "Flavor": {"spec.extraSpecs": POD_ITEMS},
    "KubeVirt": _below("spec.configuration", dict.fromkeys((
        "developerConfiguration.featureGates", "developerConfiguration.disabledFeatureGates",
        "permittedHostDevices.pciHostDevices", "permittedHostDevices.mediatedDevices", "permittedHostDevices.usb",
        "network.binding"), METADATA_ITEMS)),
    "Pod": _below("spec", _POD),
    "DeviceClass": {"spec.selectors": 32, "spec.config": 32},
    "ResourceClaim": {**_below("spec", _CLAIM), "status.reservedFor": 256},
    "ResourceClaimTemplate": _below("spec.spec", _CLAIM),
    "ResourceSlice": {
        "spec.devices": SLICE_DEVICES, "spec.sharedCounters": 8, "spec.sharedCounters.counters": 32,
        "spec.devices.taints": 16, "spec.devices.consumesCounters": 2, "spec.devices.consumesCounters.counters": 32,
        "spec.devices.bindingConditions": 4, "spec.devices.bindingFailureConditions": 4,
        "spec.nodeSelector.nodeSelectorTerms": POD_ITEMS},
    "ResourcePoolStatusRequest": {"status.pools": 1000, "status.conditions": 10},
    "VirtualMachineInstance": _below("spec", _VMI),
    "VirtualMachine": {**_below("spec.template.spec", _VMI), "spec.resourceClaimTemplates": 32,
                       **_below("spec.resourceClaimTemplates.spec.spec", _CLAIM)},
}
# Where CEL expressions are, and opaque parameters.
_IN_CLAIM = tuple(f"devices.requests.{kind}.selectors" for kind in ("exactly", "firstAvailable"))
SELECTORS: Mapping[str, tuple[str, ...]] = {
    "DeviceClass": ("spec.selectors",),
    "ResourceClaim": tuple(f"spec.{path}" for path in _IN_CLAIM),
    "ResourceClaimTemplate": tuple(f"spec.spec.{path}" for path in _IN_CLAIM),
    "VirtualMachine": tuple(f"spec.resourceClaimTemplates.spec.spec.{path}" for path in _IN_CLAIM),
}
OPAQUE: Mapping[str, tuple[str, ...]] = {
    kind: tuple(f"{prefix}.config.opaque.parameters".split(".")) for kind, prefix in (
        ("DeviceClass", "spec"), ("ResourceClaim", "spec.devices"), ("ResourceClaimTemplate", "spec.spec.devices"),
        ("VirtualMachine", "spec.resourceClaimTemplates.spec.spec.devices"))}
KUBEVIRT = ("VirtualMachineInstance", "VirtualMachine")  # their message is KubeVirt's
Walk = tuple[tuple[str, ...], int]
_WALKS: Mapping[str, tuple[Walk, ...]] = {
    kind: tuple((tuple(path.split(".")), most) for path, most in bounds.items()) for kind, bounds in BOUNDS.items()}


class _BoundTree(NamedTuple):
    """The bounds of a kind by field: shared beginnings of their paths are walked once."""

    most: int  # items of the value itself
    fields: Mapping[str, _BoundTree]


def _tree(walks: Iterable[Walk]) -> _BoundTree:
    most, below = sys.maxsize, defaultdict[str, list[Walk]](list)
    for path, limit in walks:
        if path:
            below[path[0]].append((path[1:], limit))
        else:
            most = limit
    return _BoundTree(most, {field: _tree(rest) for field, rest in below.items()})


_TREES: Mapping[str, _BoundTree] = {
    kind: _tree([*((("metadata", name), METADATA_ITEMS) for name in METADATA_LISTS), *_WALKS.get(kind, ())])
    for kind in ("", *BOUNDS)}


def check(kind: str, obj: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[Cause]:
    """The lists that are too long. One that was too long before the update may stay."""
    causes = list(_check(kind, obj, old))
    if causes and old is not None:
        before = {cause.field for cause in _check(kind, old)}
        causes = [cause for cause in causes if cause.field not in before]
    return causes


def _check(kind: str, obj: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> Iterator[Cause]:
    """`old`: a part that is the identical value there was checked before."""
    if old is not None:
        obj = {name: part for name, part in obj.items() if part is not old.get(name)}
    if _exceeds_below(obj, _TREES.get(kind, _TREES[""]).fields):
        yield from _too_long(kind, obj)
    if kind in OPAQUE:
        yield from _opaque(obj, OPAQUE[kind])
    if kind in SELECTORS:
        yield from _selectors(kind, obj)
    if kind == "ResourceSlice":
        yield from _devices(obj)


def _exceeds(value: Any, tree: _BoundTree) -> bool:
    """Whether a list or map is too long. The fast path of every write; `_too_long` finds the causes."""
    return isinstance(value, list | dict) and (len(value) > tree.most or _exceeds_below(value, tree.fields))


def _exceeds_below(value: Any, fields: Mapping[str, _BoundTree]) -> bool:
    if type(value) is dict:
        for field, tree in fields.items():
            if (inner := value.get(field)) and _exceeds(inner, tree):
                return True
    elif type(value) is list and fields:
        for item in value[:METADATA_ITEMS]:
            if _exceeds_below(item, fields):
                return True
    return False


def _too_long(kind: str, obj: Mapping[str, Any]) -> Iterator[Cause]:
    meta = obj.get("metadata")
    if isinstance(meta, Mapping):
        for name in METADATA_LISTS:
            items = meta.get(name)
            if items and isinstance(items, list | dict) and len(items) > METADATA_ITEMS:
                yield too_many(f"metadata.{name}", len(items), METADATA_ITEMS)
    for path, most in _WALKS.get(kind, ()):
        for field, items in _at(obj, path, ""):
            if isinstance(items, list | dict) and len(items) > most:
                yield too_many(field, len(items), most) if kind not in KUBEVIRT else Cause(
                    field, f"{field} list exceeds the {most} element limit in length")


def too_many(field: str, count: int, most: int) -> Cause:
    return Cause(field, f"Too many: {count}: must have at most {most} items", "FieldValueTooMany")


def _at(value: Any, path: tuple[str, ...], field: str) -> Iterator[tuple[str, Any]]:
    """What is at a path, with the concrete path. Lists on the way are gone through as far as they may be long."""
    if not path:
        if value is not None:
            yield field, value
    elif isinstance(value, list):
        for index, item in enumerate(value[:METADATA_ITEMS]):
            yield from _at(item, path, f"{field}[{index}]")
    elif isinstance(value, Mapping) and (inner := value.get(path[0])) is not None:
        yield from _at(inner, path[1:], f"{field}.{path[0]}" if field else path[0])


def _selectors(kind: str, obj: Mapping[str, Any]) -> Iterator[Cause]:
    texts: dict[str, None] = {}
    for path in SELECTORS[kind]:
        for _, selectors in _at(obj, tuple(path.split(".")), ""):
            for selector in selectors[:METADATA_ITEMS] if isinstance(selectors, list) else ():
                cel = selector.get("cel") if isinstance(selector, Mapping) else None
                text = cel.get("expression") if isinstance(cel, Mapping) else None
                if isinstance(text, str):
                    texts[text] = None
    size = sum(len(text) + SELECTOR_OVERHEAD for text in texts)
    if len(texts) > 1 and size > SELECTOR_TEXT:  # one by itself has its own bound
        yield Cause("spec", f"Too long: the CEL expressions of an object may have {SELECTOR_TEXT} bytes together, each counted "
                            f"once and with {SELECTOR_OVERHEAD} more: these have {size}", "FieldValueTooLong")


def _opaque(obj: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Cause]:
    for field, parameters in _at(obj, path, ""):
        size = len(msgspec.json.encode(parameters))
        if size > OPAQUE_BYTES:
            yield Cause(field, f"Too long: {size} bytes: may not be more than {OPAQUE_BYTES} bytes", "FieldValueTooLong")


def _devices(obj: Mapping[str, Any]) -> Iterator[Cause]:
    spec = obj.get("spec")
    devices = spec.get("devices") if isinstance(spec, Mapping) else None
    if not isinstance(devices, list) or len(devices) > SLICE_DEVICES:
        return
    if len(devices) > SLICE_DEVICES_WITH_MORE and any(
        isinstance(device, Mapping) and (device.get("taints") or device.get("consumesCounters")) for device in devices
    ):
        yield too_many("spec.devices", len(devices), SLICE_DEVICES_WITH_MORE)
    for index, device in enumerate(devices):
        if isinstance(device, Mapping):
            count = sum(len(part) for name in ("attributes", "capacity") if isinstance(part := device.get(name), Mapping))
            if count > DEVICE_ENTRIES:
                yield too_many(f"spec.devices[{index}].attributes", count, DEVICE_ENTRIES)
