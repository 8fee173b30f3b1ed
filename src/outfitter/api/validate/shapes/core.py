"""The core kinds but for Pod, Lease and NetworkAttachmentDefinition."""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.api.validate.shapes.common import (
    AMOUNTS,
    CONDITION,
    CONDITIONS,
    LABELS,
    NAMED,
    REFERENCE,
    TEXTS,
    Shape,
    Time,
    fields,
)

TAINT: Shape = fields(str, "key value effect") | {"timeAdded": Time}
_SOURCE: Shape = {"configMap": fields(str, "kubeletConfigKey name namespace resourceVersion uid")}
_NODE_STATUS: Shape = {
    "conditions": [{**CONDITION, "lastHeartbeatTime": Time}], "capacity": AMOUNTS, "allocatable": AMOUNTS, "phase": str,
    "addresses": [fields(str, "address type")], "declaredFeatures": TEXTS, "volumesInUse": TEXTS,
    "config": fields(_SOURCE, "active assigned lastKnownGood") | {"error": str},
    "daemonEndpoints": {"kubeletEndpoint": {"Port": int}}, "features": {"supplementalGroupsPolicy": bool},
    "images": [{"names": TEXTS, "sizeBytes": int}], "volumesAttached": [fields(str, "devicePath name")],
    "nodeInfo": fields(str, "architecture bootID containerRuntimeVersion kernelVersion kubeProxyVersion kubeletVersion "
                            "machineID operatingSystem osImage systemUUID") | {"swap": {"capacity": int}},
    "runtimeHandlers": [{"features": fields(bool, "recursiveReadOnlyMounts userNamespaces"), "name": str}]}
SHAPES: Mapping[str, Shape] = {
    "Namespace": {"spec": {"finalizers": TEXTS}, "status": {"phase": str, "conditions": CONDITIONS}},
    "Node": {"spec": fields(str, "externalID podCIDR providerID") | {
        "unschedulable": bool, "taints": [TAINT], "podCIDRs": TEXTS, "configSource": _SOURCE}, "status": _NODE_STATUS},
    "ConfigMap": {"data": LABELS, "binaryData": LABELS, "immutable": bool},
    "Secret": {"data": LABELS, "stringData": LABELS, "type": str, "immutable": bool},
    "ServiceAccount": {"secrets": [REFERENCE], "imagePullSecrets": [NAMED], "automountServiceAccountToken": bool},
    "Event": fields(str, "reason message type action reportingComponent reportingInstance") | fields(
        Time, "firstTimestamp lastTimestamp eventTime") | {
        "involvedObject": REFERENCE, "related": REFERENCE, "source": fields(str, "component host"), "count": int,
        "series": {"count": int, "lastObservedTime": Time}},
    "Lease": {"spec": fields(str, "holderIdentity strategy preferredHolder") | fields(
        int, "leaseDurationSeconds leaseTransitions") | fields(Time, "acquireTime renewTime")},
    "NetworkAttachmentDefinition": {"spec": {"config": str}},
}
