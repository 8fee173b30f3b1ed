"""Field types of the kinds that we read. Checked before all other validation, which relies on them. Fields that are not listed
may have any type and are kept."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from outfitter.api.validate import node_placement
from outfitter.errors import Cause

# field -> str, int, bool, dict, list, a nested Shape, or [Shape] for a list of such; "field!" is required, "*" is every field
# of a map. "!" is only used where no other check requires the field: in status and in our own kinds.
Shape = Mapping[str, Any]
QUANTITY = (str, int)
NUMBER = (str, int, float)  # a quantity that may be fractional: cpu: 0.5
MOST = 2 ** 63  # integers must fit int64, which clients in Go use
WHOLE = (int,)  # how `_compile` writes int: its range is checked too
WORDS: Mapping[Any, str] = {
    QUANTITY: "an amount", NUMBER: "an amount", str: "text", int: "a whole number", bool: "true or false", dict: "an object",
    list: "a list"}
TEXTS = [str]
LABELS: Shape = {"*": str}

METADATA: Shape = {
    "name!": str, "namespace": str, "generateName": str, "uid": str, "resourceVersion": str, "labels": dict,
    "annotations": dict, "finalizers": TEXTS,
    "ownerReferences": [{"apiVersion": str, "kind": str, "name": str, "uid": str, "controller": bool}],
}
CONDITIONS = [{"type!": str, "status": str, "reason": str, "message": str}]
RESOURCE_CLAIMS = [{"name": str, "resourceClaimName": str, "resourceClaimTemplateName": str}]
DEVICE_ENTRY: Shape = {"name": str, "deviceName": str, "claimName": str, "requestName": str, "deviceRequestName": str,
                       "claim": {"name": str, "request": str}, "tag": str, "pciAddress": str,
                       "virtualGPUOptions": {"display": {"enabled": bool, "ramFB": {"enabled": bool}}}}
INTERFACE: Shape = {"name": str, "state": str, "bridge": dict, "masquerade": dict, "sriov": dict, "binding": {"name": str},
                    "macAddress": str, "pciAddress": str, "model": str, "tag": str, "bootOrder": int, "acpiIndex": int,
                    "ports": [{"name": str, "port": int, "protocol": str}]}
NETWORK: Shape = {"name": str, "pod": dict, "multus": {"networkName": str, "default": bool},
                  "resourceClaim": {"claimName": str, "requestName": str}}
DISK: Shape = {"name": str, "disk": {"bus": str, "readonly": bool, "pciAddress": str},
               "cdrom": {"bus": str, "readonly": bool}, "lun": dict,
               "serial": str, "tag": str, "bootOrder": int}
CLOUD_INIT: Shape = {"userData": str, "userDataBase64": str, "secretRef": {"name": str},
                     "networkData": str, "networkDataBase64": str, "networkDataSecretRef": {"name": str}}
VOLUME: Shape = {"name": str, "hostDisk": {"path": str}, "cloudInitNoCloud": CLOUD_INIT, "cloudInitConfigDrive": CLOUD_INIT}
CREDENTIAL: Shape = {"sshPublicKey": {"source": {"secret": {"secretName": str}}, "propagationMethod": dict}}
SWITCH: Shape = {"enabled": bool}
FIRMWARE: Shape = {"uuid": str, "serial": str, "bootloader": {"bios": dict, "efi": {"secureBoot": bool, "persistent": bool}}}
TIMER: Shape = {"present": bool, "tickPolicy": str, "track": str}
CLOCK: Shape = {"timezone": str, "utc": {"offsetSeconds": int},
                "timer": dict.fromkeys(("hpet", "hyperv", "kvm", "pit", "rtc"), TIMER)}
INSTANCE_SPEC: Shape = {
    **node_placement.SHAPE, "resourceClaims": RESOURCE_CLAIMS, "schedulerName": str, "flavor": {"name": str},
    "networks": [NETWORK], "startStrategy": str, "terminationGracePeriodSeconds": int, "priorityClassName": str,
    "evictionStrategy": str, "architecture": str, "serviceAccountName": str, "subdomain": str,
    "dnsPolicy": str, "dnsConfig": dict, "readinessProbe": dict, "livenessProbe": dict, "hostname": str,
    "volumes": [VOLUME], "accessCredentials": [CREDENTIAL],
    "domain": {"memory": {"guest": QUANTITY, "maxGuest": QUANTITY, "hugepages": {"pageSize": str}},
               "cpu": {"cores": int, "sockets": int, "threads": int, "maxSockets": int, "dedicatedCpuPlacement": bool,
                       "isolateEmulatorThread": bool, "model": str, "features": [{"name": str, "policy": str}],
                       "numa": {"guestMappingPassthrough": dict}, "realtime": dict},
               "resources": {"requests": {"*": NUMBER}, "limits": {"*": NUMBER}, "overcommitGuestOverhead": bool},
               "machine": {"type": str}, "firmware": FIRMWARE, "clock": CLOCK,
               "features": dict.fromkeys(("acpi", "apic", "smm"), SWITCH),
               "chassis": dict, "launchSecurity": dict, "ioThreadsPolicy": str,
               "devices": {"gpus": [DEVICE_ENTRY], "hostDevices": [DEVICE_ENTRY], "interfaces": [INTERFACE],
                           "disks": [DISK], "autoattachGraphicsDevice": bool, "autoattachInputDevice": bool,
                           "autoattachMemBalloon": bool, "autoattachPodInterface": bool, "autoattachSerialConsole": bool,
                           "autoattachVSOCK": bool, "blockMultiQueue": bool, "networkInterfaceMultiqueue": bool,
                           "useVirtioTransitional": bool, "logSerialConsole": bool, "disableHotplug": bool, "rng": dict,
                           "tpm": dict, "watchdog": dict, "video": {"type": str}, "sound": dict, "inputs": [{
                               "name": str, "type": str, "bus": str}], "filesystems": [{"name": str}]}}}
DEVICE_STATUSES = [{"name": str, "deviceResourceClaimStatus": {
    "name": str, "resourceClaimName": str, "driver": str, "pool": str, "product": str, "attributes": {
        "pciAddress": str, "mdevUUID": str, "mDevUUID": str, "members": TEXTS, "numaNode": int}}}]
FLAVORED: Shape = {"name": str, "vcpus": int, "memory": str, "disk": str, "claimName": str, "hostCells": [int],
                   "pinned": {"*": int}, "cpus": {"*": [int]}, "devices": [{"name!": str, "alias": str, "count!": int}]}
SELECTORS = [{"cel": {"expression": str}}]
EXACTLY: Shape = {"deviceClassName": str, "allocationMode": str, "count": int, "adminAccess": bool, "selectors": SELECTORS,
                  "tolerations": node_placement.TOLERATIONS, "capacity": {"requests": {"*": NUMBER}}}
OPAQUE: Shape = {"driver": str, "parameters": dict}
CLAIM_SPEC: Shape = {"devices": {
    "requests": [{"name": str, "exactly": EXACTLY, "firstAvailable": [{"name": str, **EXACTLY}]}],
    "constraints": [{"requests": TEXTS, "matchAttribute": str, "distinctAttribute": str}],
    "config": [{"requests": TEXTS, "opaque": OPAQUE}]}}
TEMPLATE: Shape = {"metadata": {"labels": LABELS, "annotations": LABELS}, "spec": CLAIM_SPEC}
RESULT: Shape = {"request!": str, "driver!": str, "pool!": str, "device!": str}
DEVICE: Shape = {"driver!": str, "pool!": str, "device!": str}
HOLDER: Shape = {"kind!": str, "namespace": str, "name!": str, "uid!": str, "purpose": str}
AMOUNT: Shape = {"whole": bool, "adminAccess": bool, "shareID": str, "capacity": {"*": str}, "counters": {"*": {"*": str}},
                 "resources": {"*": int}, "cells": {"*": int}, "cpus": {"*": [int]}, "guestCells": [int]}
RECORDS = [{"device!": DEVICE, "reason": str, "by": str, "since": str, "origin": str}]
CONTAINER: Shape = {
    "name": str, "resources": {"claims": [{"name": str, "request": str}], "requests": {"*": NUMBER}, "limits": {"*": NUMBER}},
    "assignedDevices": [{"resourceName": str, "deviceIDs": TEXTS}],
}
TAINT: Shape = {"key": str, "value": str, "effect": str, "timeAdded": str}
POD: Shape = {
    "spec": {
        **node_placement.SHAPE,
        "nodeName": str,
        "schedulerName": str,
        "restartPolicy": str,
        "terminationGracePeriodSeconds": int,
        "containers": [CONTAINER],
        "initContainers": [CONTAINER],
        "resourceClaims": RESOURCE_CLAIMS,
    },
    "status": {
        "phase": str,
        "conditions": CONDITIONS,
        "resourceClaimStatuses": [{"name!": str, "resourceClaimName": str}],
        "extendedResourceClaimStatus": {
            "resourceClaimName": str,
            "requestMappings": [{"containerName": str, "resourceName!": str, "requestName": str}],
        },
    },
}
SHAPES: Mapping[str, Shape] = {
    "Namespace": {"spec": {"finalizers": TEXTS}, "status": {"phase": str}},
    "Node": {"spec": {"unschedulable": bool, "taints": [TAINT]},
             "status": {"conditions": CONDITIONS, "allocatable": dict}},
    "Pod": POD,
    "ConfigMap": {"data": dict, "binaryData": dict},
    "Secret": {"data": dict, "stringData": dict, "type": str},
    "Lease": {"spec": {"holderIdentity": str, "leaseDurationSeconds": int, "leaseTransitions": int}},
    "Event": {"involvedObject": {"name": str, "uid": str}, "source": dict, "count": int},
    "DeviceClass": {"spec": {"selectors": SELECTORS, "extendedResourceName": str, "config": [{"opaque": OPAQUE}]}},
    "DeviceTaintRule": {"spec": {"deviceSelector": {"driver": str, "pool": str, "device": str}, "taint": TAINT},
                        "status": {"conditions": CONDITIONS}},
    "ResourceClaim": {"spec": CLAIM_SPEC, "status": {
        "allocation": {"devices": {"results": [RESULT]}}, "reservedFor": [{"resource": str, "name!": str, "uid!": str}]}},
    "ResourceClaimTemplate": {"spec": TEMPLATE},
    "ResourceSlice": {"spec!": {"driver!": str, "nodeName": str, "allNodes": bool,
                                "nodeSelector": node_placement.NODE_SELECTOR, "perDeviceNodeSelection": bool,
                                "pool!": {"name!": str, "generation": int, "resourceSliceCount": int},
                                "sharedCounters": [{"name!": str, "counters!": {"*": {}}}],
                                "devices": [{"name!": str, "attributes": dict, "capacity": dict, "nodeName": str,
                                             "allNodes": bool, "nodeSelector": node_placement.NODE_SELECTOR,
                                             "taints": [{"key!": str, "effect": str}],
                                             "consumesCounters": [{"counterSet!": str, "counters!": {"*": {}}}]}]}},
    "VirtualMachineInstance": {
        "spec": INSTANCE_SPEC,
        "status": {"phase": str, "nodeName": str, "conditions": CONDITIONS, "flavor": FLAVORED,
                   "stateChangeRequests": [{"action!": str, "requestedAt": str}],
                   "phaseTransitionTimestamps": [{"phase!": str, "phaseTransitionTimestamp!": str}],
                   "deviceStatus": {"gpuStatuses": DEVICE_STATUSES, "hostDeviceStatuses": DEVICE_STATUSES,
                                    "interfaceStatuses": DEVICE_STATUSES}},
    },
    "VirtualMachine": {
        "spec": {"running": bool, "runStrategy": str, "template": {
            "metadata": {"labels": LABELS, "annotations": LABELS}, "spec": INSTANCE_SPEC},
            "resourceClaimTemplates": [
                {"name": str, "spec": TEMPLATE, "resourceClaimTemplateName": str, "persistWhenStopped": bool}]},
        "status": {"printableStatus": str, "created": bool, "ready": bool, "conditions": CONDITIONS,
                   "stateChangeRequests": [{"action!": str, "uid": str, "data": {"*": str}}]},
    },
    "VirtualMachineInstanceMigration": {"spec": {"vmiName": str}, "status": {"phase": str, "conditions": CONDITIONS}},
    "KubeVirt": {
        "spec": {"configuration": {
            "developerConfiguration": {"featureGates": TEXTS, "disabledFeatureGates": TEXTS}, "vmRolloutStrategy": str,
            "migrations": {"parallelMigrationsPerCluster": int},
            "network": {"binding": {"*": {"networkAttachmentDefinition": str, "sidecarImage": str,
                                          "domainAttachmentType": str}}},
            "permittedHostDevices": {
                "pciHostDevices": [{"pciVendorSelector": str, "resourceName": str, "externalResourceProvider": bool}],
                "mediatedDevices": [{"mdevNameSelector": str, "resourceName": str, "externalResourceProvider": bool}],
                "usb": [{"resourceName": str, "selectors": [{"vendor": str, "product": str}]}]}},
            "workloadUpdateStrategy": {"workloadUpdateMethods": TEXTS, "batchEvictionSize": int, "batchEvictionInterval": str}},
        "status": {"phase": str, "conditions": CONDITIONS},
    },
    "NetworkAttachmentDefinition": {"spec": {"config": str}},
    "LedgerPage": {"spec": {
        "host": str, "reserved": RECORDS, "quarantined": RECORDS, "unclean": RECORDS,
        "bookings": [{"device!": DEVICE, "request": str, "state!": str, "since!": str, "prepared": str, "amount": AMOUNT,
                      "holder!": HOLDER, "hardware": TEXTS}]}},
    "PastBooking": {"spec!": {
        "host!": str, "device!": DEVICE, "holder!": HOLDER, "request": str, "amount": AMOUNT, "booked!": str, "prepared": str,
        "ended": str, "how": str}},
    "ProviderTree": {"spec!": {"providers": [{
        "name!": str, "uuid": str, "parent": str, "generation": int, "traits": TEXTS, "configured": TEXTS, "devices": TEXTS,
        "inventories": {"*": {"total!": int, "reserved": int, "min_unit": int, "max_unit": int, "step_size": int}}}]}},
    "HostInventory": {"spec!": {
        "withheld": [{"name!": str, "reason!": str}], "left": [{"device!": str, "what!": str}], "warnings": TEXTS,
        "published": {"driver": str, "devices": TEXTS}, "cells": [{"id!": int, "cpus!": str, "socket": int}]}},
    "Flavor": {"spec!": {"vcpus": int, "memory": str, "disk": str, "extraSpecs": {"*": str}}},
}


def check(kind: str, obj: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> Iterator[Cause]:
    """`old`: the object that is replaced. A part that is the identical value there was checked before."""
    parts = obj if old is None else {name: part for name, part in obj.items() if part is not old.get(name)}
    if obj.get("metadata") is None or not _good(parts, _compiled(kind)):
        yield from _object(obj, {"metadata!": METADATA, **SHAPES.get(kind, {})}, "")


class _SchemaFields(NamedTuple):
    """A shape compiled for fast checks."""

    known: Mapping[str, Any]  # field -> a type, _Fields, or [either] for a list of such
    needed: tuple[str, ...]
    every: Any  # the rule for every field; None: unlisted fields are not checked


@functools.cache
def _compiled(kind: str) -> _SchemaFields:
    """The compiled shape of a kind. That metadata is required is checked elsewhere."""
    compiled: _SchemaFields = _compile({"metadata": METADATA, **SHAPES.get(kind, {})})
    return compiled


def _compile(shape: Any) -> Any:
    if isinstance(shape, list):
        return [_compile(shape[0])]
    if not isinstance(shape, Mapping):
        return WHOLE if shape is int else shape
    known = {key.rstrip("!"): _compile(wanted) for key, wanted in shape.items() if key != "*"}
    return _SchemaFields(known, tuple(key[:-1] for key in shape if key.endswith("!")), _compile(shape.get("*")))


def _good(value: Any, wanted: Any) -> bool:
    """Whether a value has the right type. The fast path of every write; `_object` finds the causes."""
    if type(value) is wanted:
        return True
    if type(wanted) is _SchemaFields:
        if type(value) is not dict:
            return False
        for field in wanted.needed:
            if value.get(field) is None:
                return False
        known = wanted.known
        for field, inner in value.items():
            rule = known.get(field)
            if rule is not None and inner is not None and type(inner) is not rule and not _good(inner, rule):
                return False
        return wanted.every is None or all(_good(inner, wanted.every) for inner in value.values())
    if type(wanted) is list:
        if type(value) is not list:
            return False
        rule = wanted[0]
        return all(type(item) is rule or _good(item, rule) for item in value)
    return _fits(value, wanted)


def without_wrong(kind: str, obj: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without fields of the wrong type, for further checks. A list with a wrong item is dropped whole, since the indices
    of its other items would change."""
    out = _right(obj, {"metadata": METADATA, **SHAPES.get(kind, {})})
    assert isinstance(out, dict)
    return out


_WRONG = object()


def _right(value: Any, wanted: Any) -> Any:
    if isinstance(wanted, list):
        items = [_right(item, wanted[0]) for item in value] if isinstance(value, list) else [_WRONG]
        return _WRONG if any(item is _WRONG for item in items) else items
    if not isinstance(wanted, dict):
        return value if _fits(value, wanted) else _WRONG
    if not isinstance(value, dict):
        return _WRONG
    known = {key.rstrip("!"): inner for key, inner in wanted.items()}
    pairs = {field: inner if inner is None or known.get(field, known.get("*")) is None else
             _right(inner, known.get(field, known.get("*"))) for field, inner in value.items()}
    return {field: inner for field, inner in pairs.items() if inner is not _WRONG}


def _object(value: Mapping[str, Any], shape: Shape, path: str) -> Iterator[Cause]:
    for key, wanted in shape.items():
        if key == "*":
            for field, inner in value.items():
                yield from _value(inner, wanted, f"{path}.{field}")
            continue
        needed = key[-1] == "!"
        field = key[:-1] if needed else key
        inner = value.get(field)
        if inner is not None:
            yield from _value(inner, wanted, f"{path}.{field}" if path else field)
        elif needed:
            yield Cause(f"{path}.{field}" if path else field, "Required value", "FieldValueRequired")


def _value(value: Any, wanted: Any, path: str) -> Iterator[Cause]:
    if isinstance(wanted, list):
        if not isinstance(value, list):
            yield _wrong(path, value, list)
            return
        for index, item in enumerate(value):
            yield from _value(item, wanted[0], f"{path}[{index}]")
    elif isinstance(wanted, dict):
        if isinstance(value, dict):
            yield from _object(value, wanted, path)
        else:
            yield _wrong(path, value, dict)
    elif not _fits(value, wanted):
        yield _wrong(path, value, wanted)


def _fits(value: Any, wanted: Any) -> bool:
    if wanted is int or wanted is WHOLE:
        return type(value) is int and -MOST <= value < MOST
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))


def _wrong(path: str, value: Any, wanted: Any) -> Cause:
    shown = json.dumps(value, ensure_ascii=False, default=repr)
    hint = "; put it in quotes" if wanted is str and isinstance(value, bool | int | float) else ""
    if wanted is int and type(value) is int:
        hint = f" from {-MOST} to {MOST - 1}"
    return Cause(path, f"Invalid value: {shown[:60]}: must be {WORDS[wanted]}{hint}", "FieldValueTypeInvalid")
