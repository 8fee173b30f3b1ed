"""The protobuf fields of the core kinds besides Pod, of Lease and of what all kinds share, as numbers: Kubernetes 1.37. Read by
`message_fields`, which has the format."""

from __future__ import annotations

from collections.abc import Mapping

CORE: Mapping[str, str] = {
    "AttachedVolume": "name:1 devicePath:2",
    "Binding": "metadata:1:ObjectMeta target:2:ObjectReference",
    "ConfigMap": "metadata:1:ObjectMeta immutable:4:bool? data:2{} binaryData:3:bytes{}",
    "ConfigMapNodeConfigSource": "namespace:1 name:2 uid:3 resourceVersion:4 kubeletConfigKey:5",
    "ContainerImage": "names:1[] sizeBytes:2:int",
    "DaemonEndpoint": "Port:1:int",
    "Event": (
        "metadata:1:ObjectMeta involvedObject:2:ObjectReference reason:3 message:4 source:5:EventSource "
        "firstTimestamp:6:Time lastTimestamp:7:Time count:8:int type:9 eventTime:10:MicroTime series:11:EventSeries "
        "action:12 related:13:ObjectReference reportingComponent:14 reportingInstance:15"),
    "EventSeries": "count:1:int lastObservedTime:2:MicroTime",
    "EventSource": "component:1 host:2",
    "Namespace": "metadata:1:ObjectMeta spec:2:NamespaceSpec status:3:NamespaceStatus",
    "NamespaceCondition": "type:1 status:2 lastTransitionTime:4:Time reason:5 message:6",
    "NamespaceSpec": "finalizers:1[]",
    "NamespaceStatus": "phase:1 conditions:2:NamespaceCondition[]",
    "Node": "metadata:1:ObjectMeta spec:2:NodeSpec status:3:NodeStatus",
    "NodeAddress": "type:1 address:2",
    "NodeCondition": "type:1 status:2 lastHeartbeatTime:3:Time lastTransitionTime:4:Time reason:5 message:6",
    "NodeConfigSource": "configMap:2:ConfigMapNodeConfigSource",
    "NodeConfigStatus": "assigned:1:NodeConfigSource active:2:NodeConfigSource lastKnownGood:3:NodeConfigSource error:4",
    "NodeDaemonEndpoints": "kubeletEndpoint:1:DaemonEndpoint",
    "NodeFeatures": "supplementalGroupsPolicy:1:bool?",
    "NodePodPreemptionPolicy": "disableResizePreemption:1[]",
    "NodeRuntimeHandler": "name:1 features:2:NodeRuntimeHandlerFeatures",
    "NodeRuntimeHandlerFeatures": "recursiveReadOnlyMounts:1:bool? userNamespaces:2:bool?",
    "NodeSpec": (
        "podCIDR:1 podCIDRs:7[] providerID:3 unschedulable:4:bool taints:5:Taint[] configSource:6:NodeConfigSource "
        "externalID:2 podPreemptionPolicy:8:NodePodPreemptionPolicy"),
    "NodeStatus": (
        "capacity:1:Quantity{} allocatable:2:Quantity{} phase:3 conditions:4:NodeCondition[] addresses:5:NodeAddress[] "
        "daemonEndpoints:6:NodeDaemonEndpoints nodeInfo:7:NodeSystemInfo images:8:ContainerImage[] volumesInUse:9[] "
        "volumesAttached:10:AttachedVolume[] config:11:NodeConfigStatus runtimeHandlers:12:NodeRuntimeHandler[] "
        "features:13:NodeFeatures declaredFeatures:14[]"),
    "NodeSwapStatus": "capacity:1:int?",
    "NodeSystemInfo": (
        "machineID:1 systemUUID:2 bootID:3 kernelVersion:4 osImage:5 containerRuntimeVersion:6 kubeletVersion:7 "
        "kubeProxyVersion:8 operatingSystem:9 architecture:10 swap:11:NodeSwapStatus runningInUserNamespace:12:bool?"),
    "ObjectReference": "kind:1 namespace:2 name:3 uid:4 apiVersion:5 resourceVersion:6 fieldPath:7",
    "Secret": "metadata:1:ObjectMeta immutable:5:bool? data:2:bytes{} stringData:4{} type:3",
    "ServiceAccount": (
        "metadata:1:ObjectMeta secrets:2:ObjectReference[] imagePullSecrets:3:LocalObjectReference[] "
        "automountServiceAccountToken:4:bool?"),
    "Taint": "key:1 value:2 effect:3 timeAdded:4:Time",
}
META: Mapping[str, str] = {
    "Condition": "type:1 status:2 observedGeneration:3:int lastTransitionTime:4:Time reason:5 message:6",
    "DeleteOptions": (
        "gracePeriodSeconds:1:int? preconditions:2:Preconditions orphanDependents:3:bool? propagationPolicy:4? dryRun:5[] "
        "ignoreStoreReadErrorWithClusterBreakingPotential:6:bool?"),
    "Preconditions": "uid:1? resourceVersion:2?",
}
COORDINATION: Mapping[str, str] = {
    "Lease": "metadata:1:ObjectMeta spec:2:LeaseSpec",
    "LeaseSpec": (
        "holderIdentity:1? leaseDurationSeconds:2:int? acquireTime:3:MicroTime renewTime:4:MicroTime "
        "leaseTransitions:5:int? strategy:6? preferredHolder:7?"),
}
