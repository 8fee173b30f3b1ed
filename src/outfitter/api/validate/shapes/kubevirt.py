"""kubevirt.io kinds. Amounts of VMs are parsed by the checks of `vms`, whose messages name the limits."""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.api.validate import node_placement
from outfitter.api.validate.shapes.common import (
    CONDITIONS,
    LABELS,
    NUMBER,
    QUANTITY,
    RESOURCE_CLAIMS,
    TEXTS,
    Shape,
    Time,
    fields,
)
from outfitter.api.validate.shapes.dra import TEMPLATE

DEVICE_ENTRY: Shape = {"name": str, "deviceName": str, "claimName": str, "requestName": str, "deviceRequestName": str,
                       "claim": {"name": str, "request": str}, "tag": str, "pciAddress": str,
                       "virtualGPUOptions": {"display": {"enabled": bool, "ramFB": {"enabled": bool}}}}
INTERFACE: Shape = {"name": str, "state": str, "bridge": dict, "masquerade": dict, "sriov": dict, "binding": {"name": str},
                    "macAddress": str, "pciAddress": str, "model": str, "tag": str, "bootOrder": int, "acpiIndex": int,
                    "ports": [{"name": str, "port": int, "protocol": str}], "portRanges": [dict],
                    **fields(dict, "dhcpOptions macvtap passt passtBinding slirp")}
NETWORK: Shape = {"name": str, "pod": dict, "multus": {"networkName": str, "default": bool},
                  "resourceClaim": {"claimName": str, "requestName": str}}
DISK: Shape = {"name": str, "disk": {"bus": str, "readonly": bool, "pciAddress": str},
               "cdrom": {"bus": str, "readonly": bool}, "lun": dict,
               "serial": str, "tag": str, "bootOrder": int}
CLOUD_INIT: Shape = {"userData": str, "userDataBase64": str, "secretRef": {"name": str},
                     "networkData": str, "networkDataBase64": str, "networkDataSecretRef": {"name": str}}
VOLUME: Shape = {
    "name": str, "hostDisk": {"path": str}, "cloudInitNoCloud": CLOUD_INIT, "cloudInitConfigDrive": CLOUD_INIT} | fields(
    dict, "configMap containerDisk containerPath dataVolume downwardAPI downwardMetrics emptyDisk ephemeral memoryDump "
          "persistentVolumeClaim secret serviceAccount sysprep")
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
    "volumes": [VOLUME], "utilityVolumes": [dict], "accessCredentials": [CREDENTIAL],
    "domain": {"memory": {"guest": QUANTITY, "maxGuest": QUANTITY, "hugepages": {"pageSize": str}, "reservedOverhead": dict},
               "cpu": {"cores": int, "sockets": int, "threads": int, "maxSockets": int, "dedicatedCpuPlacement": bool,
                       "isolateEmulatorThread": bool, "model": str, "features": [{"name": str, "policy": str}],
                       "numa": {"guestMappingPassthrough": dict}, "realtime": dict},
               "resources": {"requests": {"*": NUMBER}, "limits": {"*": NUMBER}, "overcommitGuestOverhead": bool},
               "machine": {"type": str}, "firmware": FIRMWARE, "clock": CLOCK,
               "features": dict.fromkeys(("acpi", "apic", "smm"), SWITCH),
               "chassis": dict, "launchSecurity": dict, "ioThreadsPolicy": str, "ioThreads": dict, "rebootPolicy": str,
               "devices": {"gpus": [DEVICE_ENTRY], "hostDevices": [DEVICE_ENTRY], "interfaces": [INTERFACE],
                           "disks": [DISK], "autoattachGraphicsDevice": bool, "autoattachInputDevice": bool,
                           "autoattachMemBalloon": bool, "autoattachPodInterface": bool, "autoattachSerialConsole": bool,
                           "autoattachVSOCK": bool, "blockMultiQueue": bool, "networkInterfaceMultiqueue": bool,
                           "useVirtioTransitional": bool, "logSerialConsole": bool, "disableHotplug": bool, "rng": dict,
                           "tpm": dict, "watchdog": dict, "clientPassthrough": dict, "downwardMetrics": dict,
                           "panicDevices": [dict], "video": {"type": str}, "sound": dict, "inputs": [{
                               "name": str, "type": str, "bus": str}], "filesystems": [{"name": str}]}}}
DEVICE_STATUSES = [{"name": str, "deviceResourceClaimStatus": {
    "name": str, "resourceClaimName": str, "driver": str, "pool": str, "product": str, "attributes": {
        "pciAddress": str, "mdevUUID": str, "mDevUUID": str, "members": TEXTS, "numaNode": int}},
    "hotplugDevice": {"claimName": str, "attachPodName": str, "phase": str}}]
FLAVORED: Shape = {"name": str, "vcpus": int, "memory": str, "disk": str, "claimName": str, "hostCells": [int],
                   "pinned": {"*": int}, "cpus": {"*": [int]}, "devices": [{"name!": str, "alias": str, "count!": int}]}
DEVICE_STATUS: Shape = fields(DEVICE_STATUSES, "gpuStatuses hostDeviceStatuses interfaceStatuses")
MIGRATION_STATE: Shape = {
    **fields(str, "migrationUid sourceNode sourcePod targetNode targetPod targetNodeAddress targetCertificate "
                  "sourceCertificate failureReason failureCode abortStatus mode"),
    **fields(bool, "completed failed abortRequested targetNodeDomainDetected sourceDomainLeft"),
    **fields(Time, "startTimestamp endTimestamp targetNodeDomainReadyTimestamp"),
    "targetDeviceStatus": DEVICE_STATUS, "targetSources": LABELS,
    "targetFlavor": {key: FLAVORED[key] for key in ("claimName", "hostCells", "pinned", "cpus")},
    "progress": {"totalBytes": int, "remainingBytes": int, "processedBytes": int, "iteration": int}}
VMI_STATUS: Shape = {
    "phase": str, "nodeName": str, "conditions": CONDITIONS, "flavor": FLAVORED, "activePods": LABELS,
    "stateChangeRequests": [{"action!": str, "requestedAt": Time}],
    "phaseTransitionTimestamps": [{"phase!": str, "phaseTransitionTimestamp!": Time}],
    "deviceStatus": DEVICE_STATUS, "migrationState": MIGRATION_STATE,
    "resourceClaimStatuses": [{"name!": str, "resourceClaimName": str}],
    "failedLaunches": [fields(str, "podUID nodeName reason message") | {"time": Time}],
    "interfaces": [fields(str, "name mac infoSource linkState podInterfaceName ipAddress")]}
VM_STATUS: Shape = {
    "printableStatus": str, "created": bool, "ready": bool, "conditions": CONDITIONS, "observedGeneration": int,
    "runStrategy": str, "stateChangeRequests": [{"action!": str, "uid": str, "data": LABELS}],
    "startFailure": {"consecutiveFailCount": int, "lastFailedVMIUID": str, "retryAfterTimestamp": Time}}
_PERMITTED: Shape = {"resourceName": str, "externalResourceProvider": bool}
KUBEVIRT_SPEC: Shape = {
    "configuration": {
        "developerConfiguration": {"featureGates": TEXTS, "disabledFeatureGates": TEXTS}, "vmRolloutStrategy": str,
        "migrations": {
            **fields(int, "parallelMigrationsPerCluster parallelOutboundMigrationsPerNode completionTimeoutPerGiB "
                          "progressTimeout"),
            "bandwidthPerMigration": QUANTITY, "allowAutoConverge": bool, "allowPostCopy": bool},
        "network": {"binding": {"*": fields(str, "networkAttachmentDefinition sidecarImage domainAttachmentType")}},
        "permittedHostDevices": {
            "pciHostDevices": [{"pciVendorSelector": str, **_PERMITTED}],
            "mediatedDevices": [{"mdevNameSelector": str, **_PERMITTED}],
            "usb": [{"selectors": [fields(str, "vendor product")], **_PERMITTED}]}},
    "workloadUpdateStrategy": {"workloadUpdateMethods": TEXTS, "batchEvictionSize": int, "batchEvictionInterval": str}}
SHAPES: Mapping[str, Shape] = {
    "VirtualMachineInstance": {"spec": INSTANCE_SPEC, "status": VMI_STATUS},
    "VirtualMachine": {"spec": {
        "running": bool, "runStrategy": str, "updateVolumesStrategy": str, "instancetype": dict, "preference": dict,
        "dataVolumeTemplates": [dict],
        "template": {"metadata": {"labels": LABELS, "annotations": LABELS}, "spec": INSTANCE_SPEC},
        "resourceClaimTemplates": [
            {"name": str, "spec": TEMPLATE, "resourceClaimTemplateName": str, "persistWhenStopped": bool}]},
        "status": VM_STATUS},
    "VirtualMachineInstanceMigration": {"spec": {
        "vmiName": str, "priority": str, "addedNodeSelector": LABELS, "receive": dict, "sendTo": dict},
        "status": {"phase": str, "conditions": CONDITIONS, "migrationState": MIGRATION_STATE,
                   "phaseTransitionTimestamps": [{"phase!": str, "phaseTransitionTimestamp!": Time}]}},
    "KubeVirt": {"spec": KUBEVIRT_SPEC,
                 "status": {"phase": str, "conditions": CONDITIONS, "observedGeneration": int}},
}
