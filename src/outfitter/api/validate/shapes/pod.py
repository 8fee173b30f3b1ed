"""Pods: every field of Kubernetes' Pod, so that unknown ones can be reported."""

from __future__ import annotations

from outfitter.api.validate import node_placement
from outfitter.api.validate.shapes.common import (
    AMOUNTS,
    CONDITION,
    NAMED,
    QUANTITY,
    RESOURCE_CLAIMS,
    TEXTS,
    Shape,
    Time,
    fields,
)
from outfitter.api.validate.shapes.pod_volumes import FIELD, RESOURCE_FIELD, VOLUME

_KEY: Shape = {"key": str, "name": str, "optional": bool}
_OPTIONAL: Shape = {"name": str, "optional": bool}
_ENV: Shape = {"name": str, "value": str, "valueFrom": {
    "configMapKeyRef": _KEY, "fieldRef": FIELD, "resourceFieldRef": RESOURCE_FIELD, "secretKeyRef": _KEY,
    "fileKeyRef": fields(str, "key path volumeName") | {"optional": bool}}}
_ACTION: Shape = {
    "exec": {"command": TEXTS}, "tcpSocket": {"host": str, "port": QUANTITY},
    "httpGet": fields(str, "host path scheme") | {"port": QUANTITY, "httpHeaders": [fields(str, "name value")]}}
_HANDLER: Shape = {**_ACTION, "sleep": {"seconds": int}}
_PROBE: Shape = {**_ACTION, "grpc": {"port": int, "service": str}} | fields(
    int, "failureThreshold initialDelaySeconds periodSeconds successThreshold terminationGracePeriodSeconds timeoutSeconds")
_SECURITY: Shape = {
    "runAsGroup": int, "runAsUser": int, "runAsNonRoot": bool, "appArmorProfile": fields(str, "localhostProfile type"),
    "seccompProfile": fields(str, "localhostProfile type"), "seLinuxOptions": fields(str, "level role type user"),
    "windowsOptions": fields(str, "gmsaCredentialSpec gmsaCredentialSpecName runAsUserName") | {"hostProcess": bool}}
RESOURCES: Shape = {"claims": [fields(str, "name request")], "limits": AMOUNTS, "requests": AMOUNTS}
CONTAINER: Shape = fields(
    str, "name image imagePullPolicy restartPolicy terminationMessagePath terminationMessagePolicy workingDir",
) | fields(bool, "stdin stdinOnce tty") | fields(_PROBE, "livenessProbe readinessProbe startupProbe") | {
    "args": TEXTS, "command": TEXTS, "env": [_ENV], "resources": RESOURCES,
    "envFrom": [{"configMapRef": _OPTIONAL, "prefix": str, "secretRef": _OPTIONAL}],
    "lifecycle": {"postStart": _HANDLER, "preStop": _HANDLER, "stopSignal": str},
    "ports": [fields(int, "containerPort hostPort") | fields(str, "hostIP name protocol")],
    "resizePolicy": [fields(str, "resourceName restartPolicy")],
    "restartPolicyRules": [{"action": str, "exitCodes": {"operator": str, "values": [int]}}],
    "securityContext": _SECURITY | fields(bool, "allowPrivilegeEscalation privileged readOnlyRootFilesystem") | {
        "capabilities": {"add": TEXTS, "drop": TEXTS}, "procMount": str},
    "volumeDevices": [fields(str, "devicePath name")],
    "volumeMounts": [fields(str, "mountPath mountPropagation name recursiveReadOnly subPath subPathExpr") | {"readOnly": bool}],
    "assignedDevices": [{"resourceName": str, "deviceIDs": TEXTS}],  # of the design documents
}
_STATE: Shape = {
    "running": {"startedAt": Time}, "waiting": fields(str, "message reason"),
    "terminated": fields(str, "containerID message reason") | fields(int, "exitCode signal") | fields(
        Time, "finishedAt startedAt")}
_CONTAINER_STATUS: Shape = fields(str, "name image imageID containerID stopSignal") | fields(bool, "ready started") | {
    "allocatedResources": AMOUNTS, "resources": RESOURCES, "restartCount": int, "state": _STATE, "lastState": _STATE,
    "allocatedResourcesStatus": [{"name": str, "resources": [fields(str, "health message resourceID")]}],
    "user": {"linux": {"gid": int, "uid": int, "supplementalGroups": [int]}},
    "volumeMounts": [fields(str, "mountPath name recursiveReadOnly") | {
        "readOnly": bool, "volumeStatus": {"image": {"imageRef": str}}}]}
SPEC: Shape = {
    **node_placement.SHAPE,
    **fields(str, "nodeName schedulerName restartPolicy serviceAccount serviceAccountName hostname hostnameOverride subdomain "
                  "dnsPolicy preemptionPolicy priorityClassName runtimeClassName"),
    **fields(int, "activeDeadlineSeconds terminationGracePeriodSeconds priority"),
    **fields(bool, "automountServiceAccountToken enableServiceLinks hostIPC hostNetwork hostPID hostUsers setHostnameAsFQDN "
                   "shareProcessNamespace"),
    "containers": [CONTAINER],
    "initContainers": [CONTAINER],
    "ephemeralContainers": [{**CONTAINER, "targetContainerName": str}],
    "resourceClaims": RESOURCE_CLAIMS,
    "overhead": AMOUNTS,
    "resources": RESOURCES,
    "volumes": [VOLUME],
    "dnsConfig": {"nameservers": TEXTS, "options": [fields(str, "name value")], "searches": TEXTS},
    "hostAliases": [{"hostnames": TEXTS, "ip": str}],
    "imagePullSecrets": [NAMED],
    "os": NAMED,
    "readinessGates": [{"conditionType": str}],
    "schedulingGates": [NAMED],
    "schedulingGroup": {"podGroupName": str},
    "securityContext": _SECURITY | fields(str, "fsGroupChangePolicy seLinuxChangePolicy supplementalGroupsPolicy") | {
        "fsGroup": int, "supplementalGroups": [int], "sysctls": [fields(str, "name value")]},
}
STATUS: Shape = fields(str, "phase message reason hostIP podIP nominatedNodeName qosClass resize") | fields(
    [_CONTAINER_STATUS], "containerStatuses initContainerStatuses ephemeralContainerStatuses") | {
    "conditions": [{**CONDITION, "lastProbeTime": Time}],
    "startTime": Time,
    "observedGeneration": int,
    "hostIPs": [{"ip": str}],
    "podIPs": [{"ip": str}],
    "allocatedResources": AMOUNTS,
    "resources": RESOURCES,
    "resourceClaimStatuses": [{"name!": str, "resourceClaimName": str}],
    "extendedResourceClaimStatus": {
        "resourceClaimName": str,
        "requestMappings": [{"containerName": str, "resourceName!": str, "requestName": str}]},
    "nodeAllocatableResourceClaimStatuses": [{"containers": TEXTS, "resourceClaimName": str, "resources": AMOUNTS}],
}
SHAPE: Shape = {"spec": SPEC, "status": STATUS}
