"""The protobuf fields of the kinds of resource.k8s.io, as numbers: Kubernetes 1.37. Read by `message_fields`, which has the
format. v1beta2 has the messages of v1."""

from __future__ import annotations

from collections.abc import Mapping

V1: Mapping[str, str] = {
    "AllocatedDeviceStatus": (
        "driver:1 pool:2 device:3 shareID:7? conditions:4:Condition[] data:5:RawExtension networkData:6:NetworkDeviceData"),
    "AllocationResult": "devices:1:DeviceAllocationResult nodeSelector:3:NodeSelector allocationTimestamp:5:Time",
    "CELDeviceSelector": "expression:1",
    "CapacityRequestPolicy": "default:1:Quantity validValues:3:Quantity[] validRange:4:CapacityRequestPolicyRange",
    "CapacityRequestPolicyRange": "min:1:Quantity max:2:Quantity step:3:Quantity",
    "CapacityRequirements": "requests:1:Quantity{}",
    "Counter": "value:1:Quantity",
    "CounterSet": "name:1 counters:2:Counter{}",
    "Device": (
        "name:1 attributes:2:DeviceAttribute{} capacity:3:DeviceCapacity{} consumesCounters:4:DeviceCounterConsumption[] "
        "nodeName:5? nodeSelector:6:NodeSelector allNodes:7:bool? taints:8:DeviceTaint[] bindsToNode:9:bool? "
        "bindingConditions:10[] bindingFailureConditions:11[] allowMultipleAllocations:12:bool? "
        "nodeAllocatableResources:14:NodeAllocatableResource{}"),
    "DeviceAllocationConfiguration": "source:1 requests:2[] deviceConfiguration:3:DeviceConfiguration!",
    "DeviceAllocationResult": "results:1:DeviceRequestAllocationResult[] config:2:DeviceAllocationConfiguration[]",
    "DeviceAttribute": "int:2:int? bool:3:bool? string:4? version:5? ints:6:int[] bools:7:bool[] strings:8[] versions:9[]",
    "DeviceCapacity": "value:1:Quantity requestPolicy:2:CapacityRequestPolicy",
    "DeviceClaim": "requests:1:DeviceRequest[] constraints:2:DeviceConstraint[] config:3:DeviceClaimConfiguration[]",
    "DeviceClaimConfiguration": "requests:1[] deviceConfiguration:2:DeviceConfiguration!",
    "DeviceClass": "metadata:1:ObjectMeta spec:2:DeviceClassSpec",
    "DeviceClassConfiguration": "deviceConfiguration:1:DeviceConfiguration!",
    "DeviceClassSpec": "selectors:1:DeviceSelector[] config:2:DeviceClassConfiguration[] extendedResourceName:4?",
    "DeviceConfiguration": "opaque:1:OpaqueDeviceConfiguration",
    "DeviceConstraint": "requests:1[] matchAttribute:2? distinctAttribute:3?",
    "DeviceCounterConsumption": "counterSet:1 counters:2:Counter{} compatibilityGroups:3[]",
    "DeviceDerivedAttribute": "name:1 expression:2",
    "DeviceRequest": "name:1 exactly:2:ExactDeviceRequest firstAvailable:3:DeviceSubRequest[]",
    "DeviceRequestAllocationResult": (
        "request:1 driver:2 pool:3 device:4 adminAccess:5:bool? tolerations:6:DeviceToleration[] bindingConditions:7[] "
        "bindingFailureConditions:8[] shareID:9? consumedCapacity:10:Quantity{} skipNodeOperations:11[]"),
    "DeviceSelector": "cel:1:CELDeviceSelector",
    "DeviceSubRequest": (
        "name:1 deviceClassName:2 selectors:3:DeviceSelector[] allocationMode:4 count:5:int "
        "tolerations:6:DeviceToleration[] capacity:7:CapacityRequirements derivedAttributes:8:DeviceDerivedAttribute[]"),
    "DeviceTaint": "key:1 value:2 effect:3 timeAdded:4:Time",
    "DeviceTaintRule": "metadata:1:ObjectMeta spec:2:DeviceTaintRuleSpec status:3:DeviceTaintRuleStatus",
    "DeviceTaintRuleSpec": "deviceSelector:1:DeviceTaintSelector taint:2:DeviceTaint",
    "DeviceTaintRuleStatus": "conditions:1:Condition[]",
    "DeviceTaintSelector": "driver:2? pool:3? device:4?",
    "DeviceToleration": "key:1 operator:2 value:3 effect:4 tolerationSeconds:5:int?",
    "ExactDeviceRequest": (
        "deviceClassName:1 selectors:2:DeviceSelector[] allocationMode:3 count:4:int adminAccess:5:bool? "
        "tolerations:6:DeviceToleration[] capacity:7:CapacityRequirements derivedAttributes:8:DeviceDerivedAttribute[]"),
    "NetworkDeviceData": "interfaceName:1 ips:2[] hardwareAddress:3",
    "NodeAllocatableMapping": "capacityKey:1? capacityMultiplier:2:Quantity deviceMultiplier:3:Quantity",
    "NodeAllocatableOverhead": "perPod:1:Quantity perContainer:2:Quantity",
    "NodeAllocatableResource": "mapping:3:NodeAllocatableMapping overhead:4:NodeAllocatableOverhead",
    "OpaqueDeviceConfiguration": "driver:1 parameters:2:RawExtension",
    "ResourceClaim": "metadata:1:ObjectMeta spec:2:ResourceClaimSpec status:3:ResourceClaimStatus",
    "ResourceClaimConsumerReference": "apiGroup:1 resource:3 name:4 uid:5",
    "ResourceClaimSpec": "devices:1:DeviceClaim",
    "ResourceClaimStatus": (
        "allocation:1:AllocationResult reservedFor:2:ResourceClaimConsumerReference[] devices:4:AllocatedDeviceStatus[]"),
    "ResourceClaimTemplate": "metadata:1:ObjectMeta spec:2:ResourceClaimTemplateSpec",
    "ResourceClaimTemplateSpec": "metadata:1:ObjectMeta spec:2:ResourceClaimSpec",
    "ResourcePool": "name:1 generation:2:int resourceSliceCount:3:int",
    "ResourceSlice": "metadata:1:ObjectMeta spec:2:ResourceSliceSpec",
    "ResourceSliceSpec": (
        "driver:1 pool:2:ResourcePool nodeName:3? nodeSelector:4:NodeSelector allNodes:5:bool? devices:6:Device[] "
        "perDeviceNodeSelection:7:bool? sharedCounters:8:CounterSet[] partitionTypeAttribute:9? skipNodeOperations:10[]"),
}
V1BETA1: Mapping[str, str] = {  # where they differ from v1
    "BasicDevice": (
        "attributes:1:DeviceAttribute{} capacity:2:DeviceCapacity{} consumesCounters:3:DeviceCounterConsumption[] "
        "nodeName:4? nodeSelector:5:NodeSelector allNodes:6:bool? taints:7:DeviceTaint[] bindsToNode:8:bool? "
        "bindingConditions:9[] bindingFailureConditions:10[] allowMultipleAllocations:11:bool? "
        "nodeAllocatableResources:14:NodeAllocatableResource{}"),
    "Device": "name:1 basic:2:BasicDevice",
    "DeviceRequest": (
        "name:1 deviceClassName:2 selectors:3:DeviceSelector[] allocationMode:4 count:5:int adminAccess:6:bool? "
        "firstAvailable:7:DeviceSubRequest[] tolerations:8:DeviceToleration[] capacity:9:CapacityRequirements "
        "derivedAttributes:10:DeviceDerivedAttribute[]"),
    "DeviceSubRequest": (
        "name:1 deviceClassName:2 selectors:3:DeviceSelector[] allocationMode:4 count:5:int "
        "tolerations:7:DeviceToleration[] capacity:8:CapacityRequirements derivedAttributes:9:DeviceDerivedAttribute[]"),
    "ResourceSliceSpec": (
        "driver:1 pool:2:ResourcePool nodeName:3 nodeSelector:4:NodeSelector allNodes:5:bool devices:6:Device[] "
        "perDeviceNodeSelection:7:bool? sharedCounters:8:CounterSet[] partitionTypeAttribute:9? skipNodeOperations:10[]"),
}
V1ALPHA3: Mapping[str, str] = {  # besides those of v1
    "PartitionTypeStatus": "attribute:4 type:1 total:2:int? allocatable:3:int?",
    "PoolStatus": (
        "driver:1 poolName:2 generation:9:int resourceSliceCount:8:int? totalDevices:4:int? allocatedDevices:5:int? "
        "availableDevices:6:int? unavailableDevices:7:int? nodeName:3? validationError:10? "
        "partitionSummary:11:PartitionTypeStatus[] shareableSummary:13:ShareableSummaryStatus"),
    "ResourcePoolStatusRequest": (
        "metadata:1:ObjectMeta spec:2:ResourcePoolStatusRequestSpec status:3:ResourcePoolStatusRequestStatus"),
    "ResourcePoolStatusRequestSpec": "driver:1 poolName:2? limit:3:int? defaultPartitionTypeAttribute:4?",
    "ResourcePoolStatusRequestStatus": "poolCount:6:int? pools:2:PoolStatus[] conditions:3:Condition[]",
    "ShareableCapacityStatus": "name:1 total:2:Quantity consumed:3:Quantity available:4:Quantity",
    "ShareableSummaryStatus": (
        "fullyAvailableDevices:1:int? partiallyAvailableDevices:2:int? capacity:3:ShareableCapacityStatus[]"),
}
