"""Known field names of VMs, VMIs, migrations, KubeVirt and Flavor, as trees for `api.known_fields`: KubeVirt's names, those of
the design documents, and our own. A misspelt name would otherwise be stored and ignored, and a VM would start without its
device. Trees are complete for devices, networks and claims; `None` accepts anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Kind
from outfitter.api.validate import node_placement

Tree = dict[str, Any]


def _leaves(names: str) -> Tree:
    return dict.fromkeys(names.split())


def _of_shape(shape: Any) -> Any:
    """The field names of a schema."""
    if isinstance(shape, list):
        return _of_shape(shape[0])
    if not isinstance(shape, Mapping) or "*" in shape:
        return None
    return {name: _of_shape(inner) for name, inner in shape.items()}


_DISPLAY = {"enabled": None, "ramFB": _leaves("enabled")}
_DEVICE = _leaves("name deviceName claimName requestName deviceRequestName tag pciAddress") | {"claim": _leaves("name request")}
_INTERFACE = _leaves("acpiIndex bootOrder bridge dhcpOptions macAddress macvtap masquerade model name passt passtBinding "
                     "pciAddress portRanges ports slirp sriov state tag") | {"binding": _leaves("name")}
_NETWORK = _leaves("name pod") | {
    "multus": _leaves("networkName default"), "resourceClaim": _leaves("claimName requestName")}
_LISTS = {"gpus": _DEVICE | {"virtualGPUOptions": {"display": _DISPLAY}}, "hostDevices": _DEVICE, "interfaces": _INTERFACE}
_DEVICES = _leaves("autoattachGraphicsDevice autoattachInputDevice autoattachMemBalloon autoattachPodInterface "
                   "autoattachSerialConsole autoattachVSOCK blockMultiQueue clientPassthrough disableHotplug disks "
                   "downwardMetrics filesystems inputs logSerialConsole networkInterfaceMultiqueue panicDevices rng sound tpm "
                   "useVirtioTransitional video watchdog") | _LISTS
# The device lists are accepted one level too high as well: validation reports where they belong.
_DOMAIN = _leaves("chassis clock features firmware ioThreads ioThreadsPolicy launchSecurity machine rebootPolicy "
                  "gpus hostDevices interfaces") | {
    "devices": _DEVICES,
    "cpu": _leaves("cores dedicatedCpuPlacement features isolateEmulatorThread maxSockets model numa realtime sockets threads"),
    "memory": _leaves("guest hugepages maxGuest reservedOverhead"),
    "resources": _leaves("limits overcommitGuestOverhead requests"),
}
_CLOUD_INIT = _leaves("networkData networkDataBase64 networkDataSecretRef secretRef userData userDataBase64")
_VOLUME = _leaves("configMap containerDisk containerPath dataVolume downwardAPI downwardMetrics emptyDisk ephemeral hostDisk "
                  "memoryDump name persistentVolumeClaim secret serviceAccount sysprep") | {
    "cloudInitConfigDrive": _CLOUD_INIT, "cloudInitNoCloud": _CLOUD_INIT}
_CLAIMS = _leaves(
    "name resourceClaimName resourceClaimTemplateName source"
)  # `source`: validation reports that it is not needed
INSTANCE = _leaves("accessCredentials architecture dnsConfig dnsPolicy evictionStrategy hostname livenessProbe "
                   "priorityClassName readinessProbe schedulerName serviceAccountName startStrategy subdomain "
                   "terminationGracePeriodSeconds utilityVolumes") | _of_shape(node_placement.SHAPE) | {
    "domain": _DOMAIN, "networks": _NETWORK, "volumes": _VOLUME, "resourceClaims": _CLAIMS, "flavor": _leaves("name")}
MACHINE = _leaves("dataVolumeTemplates instancetype preference runStrategy running updateVolumesStrategy") | {
    "template": {"metadata": None, "spec": INSTANCE},
    "resourceClaimTemplates": _leaves("name persistWhenStopped resourceClaimTemplateName") | {
        "spec": {"metadata": None, "spec": None}}}
_PERMITTED = _leaves("resourceName externalResourceProvider")
_CONFIGURATION = _leaves(
    "additionalGuestMemoryOverheadRatio apiConfiguration architectureConfiguration autoCPULimitNamespaceLabelSelector "
    "changedBlockTrackingLabelSelectors commonInstancetypesDeployment confidentialCompute controllerConfiguration cpuModel "
    "cpuRequest defaultRuntimeClass emulatedMachines evictionStrategy handlerConfiguration hypervisors imagePullPolicy "
    "instancetype ksmConfiguration liveUpdateConfiguration machineType mediatedDevicesConfiguration memBalloonStatsPeriod "
    "migrations minCPUModel obsoleteCPUModels ovmfPath persistentReservationConfiguration roleAggregationStrategy "
    "seccompConfiguration selinuxLauncherType smbios supportContainerResources supportedGuestAgentVersions tlsConfiguration "
    "virtTemplateDeployment virtualMachineInstancesPerNode virtualMachineOptions vmRolloutStrategy vmStateStorageClass "
    "webhookConfiguration") | {
    "developerConfiguration": _leaves(
        "clusterProfiler cpuAllocationRatio disabledFeatureGates diskVerification featureGates logVerbosity memoryOvercommit "
        "minimumClusterTSCFrequency minimumReservePVCBytes nodeSelectors pvcTolerateLessSpaceUpToPercent useEmulation"),
    "network": _leaves("defaultNetworkInterface permitBridgeInterfaceOnPodNetwork permitSlirpInterface") | {"binding": {
        "*": _leaves("computeResourceOverhead domainAttachmentType downwardAPI migration networkAttachmentDefinition "
                     "sidecarImage")}},
    "permittedHostDevices": {
        "pciHostDevices": _PERMITTED | _leaves("pciVendorSelector"),
        "mediatedDevices": _PERMITTED | _leaves("mdevNameSelector"),
        "usb": _PERMITTED | {"selectors": _leaves("vendor product")}},
}
SETTINGS = _leaves(
    "certificateRotateStrategy customizeComponents imagePullPolicy imagePullSecrets imageRegistry imageTag infra "
    "monitorAccount monitorNamespace productComponent productName productVersion serviceMonitorNamespace synchronizationPort "
    "uninstallStrategy workloads") | {
    "configuration": _CONFIGURATION,
    "workloadUpdateStrategy": _leaves("batchEvictionInterval batchEvictionSize workloadUpdateMethods")}
TOP: Mapping[Kind, Tree] = {
    kinds.VMI: {"spec": INSTANCE, "status": None},
    kinds.VM: {"spec": MACHINE, "status": None},
    kinds.MIGRATION: {"spec": _leaves("addedNodeSelector priority receive sendTo vmiName"), "status": None},
    kinds.KUBEVIRT: {"spec": SETTINGS, "status": None},
    kinds.FLAVOR: {"spec": _leaves("vcpus memory disk extraSpecs"), "status": None},
}
