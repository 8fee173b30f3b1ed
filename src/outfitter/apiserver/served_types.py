"""Types of fields that the OpenAPI documents show beyond those that admission checks (`api.validate.schema`): what the product
reads and writes, and what Kubernetes has beside it. Nothing is rejected because of them. Called by `openapi`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfitter.api.validate import node_placement, schema
from outfitter.api.validate.schema import NUMBER, QUANTITY, TEXTS, Shape

_TEXT_MAP: Shape = {"*": str}
_METADATA: Shape = {
    "selfLink": str, "generation": int, "creationTimestamp": str, "deletionTimestamp": str, "deletionGracePeriodSeconds": int,
    "labels": _TEXT_MAP, "annotations": _TEXT_MAP, "ownerReferences": [{"blockOwnerDeletion": bool}],
    "managedFields": [{"manager": str, "operation": str, "apiVersion": str, "time": str, "fieldsType": str, "fieldsV1": dict,
                       "subresource": str}],
}
_CONDITIONS = [{**dict.fromkeys(("type", "status", "lastTransitionTime", "reason", "message"), str), "observedGeneration": int}]
_REFERENCE: Shape = dict.fromkeys(("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"), str)
_NAMED: Shape = {"name": str}
_NODE_TERMS: Shape = node_placement.NODE_SELECTOR
_DEVICE_TAINTS = [{"key": str, "value": str, "effect": str, "timeAdded": str}]

# resource.k8s.io
_EXACTLY: Shape = schema.EXACTLY
_COUNTERS: Shape = {"*": {"value": QUANTITY}}
_CLAIM_SPEC: Shape = {
    "controller": str, "devices": {"requests": [{"name": str, **_EXACTLY}]}}  # the latter: before v1beta2
_DEVICE: Shape = {
    "name": str, "nodeName": str, "allNodes": bool, "bindsToNode": bool, "bindingConditions": TEXTS,
    "bindingFailureConditions": TEXTS, "allowMultipleAllocations": bool, "nodeSelector": _NODE_TERMS, "taints": _DEVICE_TAINTS,
    "attributes": {"*": {"bool": bool, "bools": [bool], "int": int, "ints": [int], "string": str, "strings": TEXTS,
                         "version": str, "versions": TEXTS}},
    "capacity": {"*": {"value": QUANTITY, "requestPolicy": {
        "default": QUANTITY, "validValues": [QUANTITY],
        "validRange": {"min": QUANTITY, "max": QUANTITY, "step": QUANTITY}}}},
    "consumesCounters": [{"counterSet": str, "counters": _COUNTERS}],
    "nodeAllocatableResourceMappings": {"*": {"allocationMultiplier": QUANTITY, "capacityKey": str}},
}
_RESULT: Shape = {
    "request": str, "driver": str, "pool": str, "device": str, "adminAccess": bool, "bindingConditions": TEXTS,
    "bindingFailureConditions": TEXTS, "shareID": str, "consumedCapacity": {"*": QUANTITY},
    "tolerations": node_placement.TOLERATIONS,
}
_CLAIM_STATUS: Shape = {
    "allocation": {"devices": {"results": [_RESULT], "config": [{"source": str, "requests": TEXTS, "opaque": schema.OPAQUE}]},
                   "nodeSelector": _NODE_TERMS, "allocationTimestamp": str},
    "reservedFor": [{"apiGroup": str}],
    "devices": [{"driver": str, "pool": str, "device": str, "shareID": str, "data": dict, "conditions": _CONDITIONS,
                 "networkData": {"interfaceName": str, "ips": TEXTS, "hardwareAddress": str}}],
}

# kubevirt.io
_DEVICE_STATUS: Shape = {
    "gpuStatuses": schema.DEVICE_STATUSES, "hostDeviceStatuses": schema.DEVICE_STATUSES,
    "interfaceStatuses": schema.DEVICE_STATUSES}
_VMI_STATUS: Shape = {
    "activePods": _TEXT_MAP, "conditions": _CONDITIONS, "deviceStatus": _DEVICE_STATUS, "resourceClaimStatuses": [
        {"name": str, "resourceClaimName": str}],
    "migrationState": {"targetDeviceStatus": _DEVICE_STATUS},
    "failedLaunches": [{"podUID": str, "nodeName": str, "reason": str, "message": str, "time": str}],
    "interfaces": [{"name": str, "mac": str, "infoSource": str, "linkState": str, "podInterfaceName": str}],
}
_VM_STATUS: Shape = {
    "conditions": _CONDITIONS, "observedGeneration": int, "runStrategy": str,
    "startFailure": {"consecutiveFailCount": int, "lastFailedVMIUID": str, "retryAfterTimestamp": str},
}

# our own
_WITHHELD: Shape = {"address": str, "class": str, "driver": str, "iommuGroup": int, "kind": str, "numVfs": int, "numaNode": int,
                    "product": str, "totalVfs": int, "vendor": str}

SERVED: Mapping[str, Shape] = {
    "Namespace": {"status": {"conditions": _CONDITIONS}},
    "Node": {"status": {
        "conditions": _CONDITIONS, "capacity": {"*": NUMBER}, "allocatable": {"*": NUMBER},
        "nodeInfo": dict.fromkeys(("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion",
                                   "kubeletVersion", "machineID", "operatingSystem", "osImage", "systemUUID"), str)}},
    "Pod": {
        "spec": {"automountServiceAccountToken": bool, "readinessGates": [{"conditionType": str}], "priorityClassName": str,
                 "containers": [{"image": str, "env": [{"name": str, "value": str}]}]},
        "status": {"conditions": _CONDITIONS, "message": str, "reason": str, "startTime": str, "nominatedNodeName": str,
                   "containerStatuses": [{"name": str, "image": str, "imageID": str, "ready": bool, "restartCount": int,
                                          "started": bool, "state": {"running": {"startedAt": str}}}]}},
    "Event": {"reason": str, "message": str, "type": str, "action": str, "firstTimestamp": str, "lastTimestamp": str,
              "eventTime": str, "reportingComponent": str, "reportingInstance": str, "involvedObject": _REFERENCE,
              "related": _REFERENCE, "source": {"component": str, "host": str},
              "series": {"count": int, "lastObservedTime": str}},
    "ConfigMap": {"data": _TEXT_MAP, "binaryData": _TEXT_MAP, "immutable": bool},
    "Secret": {"data": _TEXT_MAP, "stringData": _TEXT_MAP, "immutable": bool},
    "ServiceAccount": {"secrets": [_REFERENCE], "imagePullSecrets": [_NAMED], "automountServiceAccountToken": bool},
    "Lease": {"spec": {"acquireTime": str, "renewTime": str, "strategy": str, "preferredHolder": str}},
    "DeviceClass": {"spec": {"suitableNodes": _NODE_TERMS}},
    "DeviceTaintRule": {"status": {"conditions": _CONDITIONS}},
    "ResourceClaim": {"spec": _CLAIM_SPEC, "status": _CLAIM_STATUS},
    "ResourceClaimTemplate": {"spec": {"metadata": {**schema.METADATA, **_METADATA}, "spec": _CLAIM_SPEC}},
    "ResourceSlice": {"spec": {
        "perDeviceNodeSelection": bool, "nodeSelector": _NODE_TERMS, "sharedCounters": [{"name": str, "counters": _COUNTERS}],
        "devices": [{**_DEVICE, "basic": _DEVICE}]}},  # basic: before v1beta2
    "VirtualMachineInstance": {"status": _VMI_STATUS},
    "VirtualMachine": {"status": _VM_STATUS},
    "VirtualMachineInstanceMigration": {"status": {"conditions": _CONDITIONS}},
    "KubeVirt": {"spec": {"configuration": {"permittedHostDevices": {"usb": [{"externalResourceProvider": bool}]}}},
                 "status": {"conditions": _CONDITIONS, "observedGeneration": int}},
    "LedgerPage": {"spec": {"bookings": [{"node": str, "hardware": TEXTS}]}},
    "ProviderTree": {"spec": {"providers": [{"inventories": {"*": {"allocation_ratio": NUMBER}}}]}},
    "HostInventory": {"spec": {"withheld": [_WITHHELD]}},
}


def served_types(kind: str) -> dict[str, Any]:
    """The fields of a kind with their types, as far as known."""
    known = {"apiVersion": str, "kind": str, "metadata": merged(schema.METADATA, _METADATA)}
    return {**known, **merged(schema.SHAPES.get(kind, {}), SERVED.get(kind, {}))}


def merged(checked: Any, served: Any = None) -> Any:
    """Two shapes as one, without the "!" of required fields. What admission checks has precedence; a plain object there gets
    the fields that are known here."""
    lists = [shape for shape in (checked, served) if isinstance(shape, list)]
    if lists:
        return [merged(*(shape[0] for shape in lists))]
    if isinstance(checked, Mapping) or isinstance(served, Mapping):
        plain = {key.rstrip("!"): wanted for key, wanted in checked.items()} if isinstance(checked, Mapping) else {}
        more = served if isinstance(served, Mapping) else {}
        return {name: merged(plain.get(name), more.get(name)) for name in {**plain, **more}}
    return served if checked is None else checked
