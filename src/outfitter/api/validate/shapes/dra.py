"""resource.k8s.io kinds, in the version that they are stored in."""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.api.validate import node_placement
from outfitter.api.validate.shapes.common import AMOUNTS, CONDITIONS, TEMPLATE_METADATA, TEXTS, Amount, Shape, Time, fields

SELECTORS = [{"cel": {"expression": str}}]
_SUBREQUEST: Shape = {
    "deviceClassName": str, "allocationMode": str, "count": int, "selectors": SELECTORS,
    "tolerations": node_placement.TOLERATIONS, "capacity": {"requests": AMOUNTS}}
EXACTLY: Shape = {**_SUBREQUEST, "adminAccess": bool}
OPAQUE: Shape = {"driver": str, "parameters": dict}
REQUEST: Shape = {"name": str, "exactly": EXACTLY, "firstAvailable": [{"name": str, **_SUBREQUEST}]}
CLAIM_SPEC: Shape = {"devices": {
    "requests": [REQUEST],
    "constraints": [fields(str, "matchAttribute distinctAttribute") | {"requests": TEXTS}],
    "config": [{"requests": TEXTS, "opaque": OPAQUE}]}}
TEMPLATE: Shape = {"metadata": TEMPLATE_METADATA, "spec": CLAIM_SPEC}
CLASS_SPEC: Shape = {"selectors": SELECTORS, "extendedResourceName": str, "config": [{"opaque": OPAQUE}]}
_BINDING: Shape = fields(TEXTS, "bindingConditions bindingFailureConditions")
RESULT: Shape = fields(str, "request! driver! pool! device! shareID") | _BINDING | {
    "adminAccess": bool, "consumedCapacity": AMOUNTS, "tolerations": node_placement.TOLERATIONS}
CLAIM_STATUS: Shape = {
    "allocation": {
        "devices": {"results": [RESULT], "config": [{"source": str, "requests": TEXTS, "opaque": OPAQUE}]},
        "nodeSelector": node_placement.NODE_SELECTOR, "allocationTimestamp": Time},
    "reservedFor": [fields(str, "apiGroup resource name! uid!")],
    "devices": [fields(str, "driver! pool! device! shareID") | {
        "data": dict, "conditions": CONDITIONS, "networkData": fields(str, "interfaceName hardwareAddress") | {"ips": TEXTS}}]}
DEVICE_TAINT: Shape = fields(str, "key value effect") | {"timeAdded": Time}
_COUNTERS: Shape = {"*": {"value!": Amount}}
DEVICE: Shape = fields(bool, "allNodes bindsToNode allowMultipleAllocations") | _BINDING | {
    "name!": str, "nodeName": str, "nodeSelector": node_placement.NODE_SELECTOR, "taints": [DEVICE_TAINT],
    "attributes": {"*": {"bool": bool, "bools": [bool], "int": int, "ints": [int], "string": str, "strings": TEXTS,
                         "version": str, "versions": TEXTS}},
    "capacity": {"*": {"value!": Amount, "requestPolicy": {
        "default": Amount, "validValues": [Amount], "validRange": fields(Amount, "min max step")}}},
    "consumesCounters": [{"counterSet!": str, "counters!": _COUNTERS}],
    "nodeAllocatableResourceMappings": {"*": {"allocationMultiplier": Amount, "capacityKey": str}}}
SLICE_SPEC: Shape = fields(bool, "allNodes perDeviceNodeSelection") | {
    "driver!": str, "nodeName": str, "nodeSelector": node_placement.NODE_SELECTOR,
    "pool!": {"name!": str, "generation": int, "resourceSliceCount": int},
    "sharedCounters": [{"name!": str, "counters!": _COUNTERS}], "devices": [DEVICE]}
POOL_STATUS: Shape = fields(str, "driver! poolName! nodeName validationError") | fields(
    int, "generation resourceSliceCount totalDevices allocatedDevices availableDevices unavailableDevices") | {
    # Kubernetes 1.37; accepted, and not computed by us
    "partitionSummary": [fields(str, "attribute type") | fields(int, "total allocatable")],
    "shareableSummary": fields(int, "fullyAvailableDevices partiallyAvailableDevices") | {
        "capacity": [{"name": str} | fields(Amount, "total consumed available")]}}
SHAPES: Mapping[str, Shape] = {
    "DeviceClass": {"spec": CLASS_SPEC},
    "DeviceTaintRule": {"spec": {"deviceSelector": fields(str, "driver pool device"), "taint": DEVICE_TAINT},
                        "status": {"conditions": CONDITIONS}},
    "ResourceClaim": {"spec": CLAIM_SPEC, "status": CLAIM_STATUS},
    "ResourceClaimTemplate": {"spec": TEMPLATE},
    "ResourcePoolStatusRequest": {
        "spec!": fields(str, "driver! poolName defaultPartitionTypeAttribute") | {"limit": int},
        "status": {"poolCount": int, "pools": [POOL_STATUS], "conditions": CONDITIONS}},
    "ResourceSlice": {"spec!": SLICE_SPEC},
}
