"""The protobuf fields of v1.Pod and of all messages in it, as numbers: Kubernetes 1.37. Read by `message_fields`, which has the
format. A new release of Kubernetes adds fields; numbers never change."""

from __future__ import annotations

from collections.abc import Mapping

MESSAGES: Mapping[str, str] = {
    "AWSElasticBlockStoreVolumeSource": "volumeID:1 fsType:2 partition:3:int readOnly:4:bool",
    "Affinity": "nodeAffinity:1:NodeAffinity podAffinity:2:PodAffinity podAntiAffinity:3:PodAntiAffinity",
    "AppArmorProfile": "type:1 localhostProfile:2?",
    "AzureDiskVolumeSource": "diskName:1 diskURI:2 cachingMode:3? fsType:4? readOnly:5:bool? kind:6?",
    "AzureFileVolumeSource": "secretName:1 shareName:2 readOnly:3:bool",
    "CSIVolumeSource": (
        "driver:1 readOnly:2:bool? fsType:3? volumeAttributes:4{} nodePublishSecretRef:5:LocalObjectReference"),
    "Capabilities": "add:1[] drop:2[]",
    "CephFSVolumeSource": "monitors:1[] path:2 user:3 secretFile:4 secretRef:5:LocalObjectReference readOnly:6:bool",
    "CinderVolumeSource": "volumeID:1 fsType:2 readOnly:3:bool secretRef:4:LocalObjectReference",
    "ClusterTrustBundleProjection": (
        "name:1? signerName:2? labelSelector:3:LabelSelector optional:5:bool? path:4 user:6:int?"),
    "ConfigMapEnvSource": "localObjectReference:1:LocalObjectReference! optional:2:bool?",
    "ConfigMapKeySelector": "localObjectReference:1:LocalObjectReference! key:2 optional:3:bool?",
    "ConfigMapProjection": "localObjectReference:1:LocalObjectReference! items:2:KeyToPath[] optional:4:bool?",
    "ConfigMapVolumeSource": (
        "localObjectReference:1:LocalObjectReference! items:2:KeyToPath[] defaultMode:3:int? optional:4:bool? "
        "defaultUser:5:int?"),
    "Container": (
        "name:1 image:2 command:3[] args:4[] workingDir:5 ports:6:ContainerPort[] envFrom:19:EnvFromSource[] "
        "env:7:EnvVar[] resources:8:ResourceRequirements resizePolicy:23:ContainerResizePolicy[] restartPolicy:24? "
        "restartPolicyRules:25:ContainerRestartRule[] volumeMounts:9:VolumeMount[] volumeDevices:21:VolumeDevice[] "
        "livenessProbe:10:Probe readinessProbe:11:Probe startupProbe:22:Probe lifecycle:12:Lifecycle "
        "terminationMessagePath:13 terminationMessagePolicy:20 imagePullPolicy:14 securityContext:15:SecurityContext "
        "stdin:16:bool stdinOnce:17:bool tty:18:bool"),
    "ContainerExtendedResourceRequest": "containerName:1 resourceName:2 requestName:3",
    "ContainerPort": "name:1 hostPort:2:int containerPort:3:int protocol:4 hostIP:5",
    "ContainerResizePolicy": "resourceName:1 restartPolicy:2",
    "ContainerRestartRule": "action:1 exitCodes:2:ContainerRestartRuleOnExitCodes",
    "ContainerRestartRuleOnExitCodes": "operator:1 values:2:int[]",
    "ContainerState": (
        "waiting:1:ContainerStateWaiting running:2:ContainerStateRunning terminated:3:ContainerStateTerminated"),
    "ContainerStateRunning": "startedAt:1:Time",
    "ContainerStateTerminated": (
        "exitCode:1:int signal:2:int reason:3 message:4 startedAt:5:Time finishedAt:6:Time containerID:7"),
    "ContainerStateWaiting": "reason:1 message:2",
    "ContainerStatus": (
        "name:1 state:2:ContainerState lastState:3:ContainerState ready:4:bool restartCount:5:int image:6 imageID:7 "
        "containerID:8 started:9:bool? allocatedResources:10:Quantity{} resources:11:ResourceRequirements "
        "volumeMounts:12:VolumeMountStatus[] user:13:ContainerUser allocatedResourcesStatus:14:ResourceStatus[] "
        "stopSignal:15?"),
    "ContainerUser": "linux:1:LinuxContainerUser",
    "DownwardAPIProjection": "items:1:DownwardAPIVolumeFile[]",
    "DownwardAPIVolumeFile": (
        "path:1 fieldRef:2:ObjectFieldSelector resourceFieldRef:3:ResourceFieldSelector mode:4:int? user:5:int?"),
    "DownwardAPIVolumeSource": "items:1:DownwardAPIVolumeFile[] defaultMode:2:int? defaultUser:3:int?",
    "EmptyDirVolumeSource": "medium:1 sizeLimit:2:Quantity mode:3:int?",
    "EnvFromSource": "prefix:1 configMapRef:2:ConfigMapEnvSource secretRef:3:SecretEnvSource",
    "EnvVar": "name:1 value:2 valueFrom:3:EnvVarSource",
    "EnvVarSource": (
        "fieldRef:1:ObjectFieldSelector resourceFieldRef:2:ResourceFieldSelector configMapKeyRef:3:ConfigMapKeySelector "
        "secretKeyRef:4:SecretKeySelector fileKeyRef:5:FileKeySelector"),
    "EphemeralContainer": "ephemeralContainerCommon:1:EphemeralContainerCommon! targetContainerName:2",
    "EphemeralContainerCommon": (
        "name:1 image:2 command:3[] args:4[] workingDir:5 ports:6:ContainerPort[] envFrom:19:EnvFromSource[] "
        "env:7:EnvVar[] resources:8:ResourceRequirements resizePolicy:23:ContainerResizePolicy[] restartPolicy:24? "
        "restartPolicyRules:25:ContainerRestartRule[] volumeMounts:9:VolumeMount[] volumeDevices:21:VolumeDevice[] "
        "livenessProbe:10:Probe readinessProbe:11:Probe startupProbe:22:Probe lifecycle:12:Lifecycle "
        "terminationMessagePath:13 terminationMessagePolicy:20 imagePullPolicy:14 securityContext:15:SecurityContext "
        "stdin:16:bool stdinOnce:17:bool tty:18:bool"),
    "EphemeralVolumeSource": "volumeClaimTemplate:1:PersistentVolumeClaimTemplate",
    "EvictionResponder": "name:1 priority:2:int?",
    "ExecAction": "command:1[]",
    "FCVolumeSource": "targetWWNs:1[] lun:2:int? fsType:3 readOnly:4:bool wwids:5[]",
    "FileKeySelector": "volumeName:1 path:2 key:3 optional:4:bool?",
    "FlexVolumeSource": "driver:1 fsType:2 secretRef:3:LocalObjectReference readOnly:4:bool options:5{}",
    "FlockerVolumeSource": "datasetName:1 datasetUUID:2",
    "GCEPersistentDiskVolumeSource": "pdName:1 fsType:2 partition:3:int readOnly:4:bool",
    "GRPCAction": "port:1:int service:2? mode:3?",
    "GitRepoVolumeSource": "repository:1 revision:2 directory:3",
    "GlusterfsVolumeSource": "endpoints:1 path:2 readOnly:3:bool",
    "HTTPGetAction": "path:1 port:2:IntOrString host:3 scheme:4 httpHeaders:5:HTTPHeader[] protocol:6?",
    "HTTPHeader": "name:1 value:2",
    "HostAlias": "ip:1 hostnames:2[]",
    "HostIP": "ip:1",
    "HostPathVolumeSource": "path:1 type:2?",
    "ISCSIVolumeSource": (
        "targetPortal:1 iqn:2 lun:3:int iscsiInterface:4 fsType:5 readOnly:6:bool portals:7[] chapAuthDiscovery:8:bool "
        "chapAuthSession:11:bool secretRef:10:LocalObjectReference initiatorName:12?"),
    "ImageVolumeSource": "reference:1 pullPolicy:2",
    "ImageVolumeStatus": "imageRef:1",
    "KeyToPath": "key:1 path:2 mode:3:int? user:4:int?",
    "LabelSelector": "matchLabels:1{} matchExpressions:2:LabelSelectorRequirement[]",
    "LabelSelectorRequirement": "key:1 operator:2 values:3[]",
    "Lifecycle": "postStart:1:LifecycleHandler preStop:2:LifecycleHandler stopSignal:3?",
    "LifecycleHandler": "exec:1:ExecAction httpGet:2:HTTPGetAction tcpSocket:3:TCPSocketAction sleep:4:SleepAction",
    "LinuxContainerUser": "uid:1:int gid:2:int supplementalGroups:3:int[]",
    "LocalObjectReference": "name:1",
    "ManagedFieldsEntry": "manager:1 operation:2 apiVersion:3 time:4:Time fieldsType:6 fieldsV1:7:FieldsV1 subresource:8",
    "NFSVolumeSource": "server:1 path:2 readOnly:3:bool",
    "NodeAffinity": (
        "requiredDuringSchedulingIgnoredDuringExecution:1:NodeSelector "
        "preferredDuringSchedulingIgnoredDuringExecution:2:PreferredSchedulingTerm[]"),
    "NodeAllocatableMappedResources": "name:1 quantity:2:Quantity",
    "NodeAllocatableOverheadResources": "name:1 perPod:2:Quantity perContainer:3:Quantity",
    "NodeAllocatableResourceClaimStatus": (
        "resourceClaimName:1 containers:2[] mapping:4:NodeAllocatableMappedResources[] "
        "overhead:5:NodeAllocatableOverheadResources[]"),
    "NodeSelector": "nodeSelectorTerms:1:NodeSelectorTerm[]",
    "NodeSelectorRequirement": "key:1 operator:2 values:3[]",
    "NodeSelectorTerm": "matchExpressions:1:NodeSelectorRequirement[] matchFields:2:NodeSelectorRequirement[]",
    "ObjectFieldSelector": "apiVersion:1 fieldPath:2",
    "ObjectMeta": (
        "name:1 generateName:2 namespace:3 selfLink:4 uid:5 resourceVersion:6 generation:7:int creationTimestamp:8:Time "
        "deletionTimestamp:9:Time deletionGracePeriodSeconds:10:int? labels:11{} annotations:12{} "
        "ownerReferences:13:OwnerReference[] finalizers:14[] managedFields:17:ManagedFieldsEntry[]"),
    "OwnerReference": "apiVersion:5 kind:1 name:3 uid:4 controller:6:bool? blockOwnerDeletion:7:bool?",
    "PersistentVolumeClaimSpec": (
        "accessModes:1[] selector:4:LabelSelector resources:2:VolumeResourceRequirements volumeName:3 storageClassName:5? "
        "volumeMode:6? dataSource:7:TypedLocalObjectReference dataSourceRef:8:TypedObjectReference "
        "volumeAttributesClassName:9?"),
    "PersistentVolumeClaimTemplate": "metadata:1:ObjectMeta spec:2:PersistentVolumeClaimSpec",
    "PersistentVolumeClaimVolumeSource": "claimName:1 readOnly:2:bool",
    "PhotonPersistentDiskVolumeSource": "pdID:1 fsType:2",
    "Pod": "metadata:1:ObjectMeta spec:2:PodSpec status:3:PodStatus",
    "PodAffinity": (
        "requiredDuringSchedulingIgnoredDuringExecution:1:PodAffinityTerm[] "
        "preferredDuringSchedulingIgnoredDuringExecution:2:WeightedPodAffinityTerm[]"),
    "PodAffinityTerm": (
        "labelSelector:1:LabelSelector namespaces:2[] topologyKey:3 namespaceSelector:4:LabelSelector matchLabelKeys:5[] "
        "mismatchLabelKeys:6[]"),
    "PodAntiAffinity": (
        "requiredDuringSchedulingIgnoredDuringExecution:1:PodAffinityTerm[] "
        "preferredDuringSchedulingIgnoredDuringExecution:2:WeightedPodAffinityTerm[]"),
    "PodCertificateProjection": (
        "signerName:1 keyType:2 maxExpirationSeconds:3:int? credentialBundlePath:4 keyPath:5 certificateChainPath:6 "
        "userAnnotations:7{} user:8:int?"),
    "PodCondition": (
        "type:1 observedGeneration:7:int status:2 lastProbeTime:3:Time lastTransitionTime:4:Time reason:5 message:6"),
    "PodDNSConfig": "nameservers:1[] searches:2[] options:3:PodDNSConfigOption[]",
    "PodDNSConfigOption": "name:1 value:2?",
    "PodExtendedResourceClaimStatus": "requestMappings:1:ContainerExtendedResourceRequest[] resourceClaimName:2",
    "PodIP": "ip:1",
    "PodOS": "name:1",
    "PodReadinessGate": "conditionType:1",
    "PodResourceClaim": "name:1 resourceClaimName:3? resourceClaimTemplateName:4?",
    "PodResourceClaimStatus": "name:1 resourceClaimName:2?",
    "PodSchedulingGate": "name:1",
    "PodSchedulingGroup": "podGroupName:1?",
    "PodSecurityContext": (
        "seLinuxOptions:1:SELinuxOptions windowsOptions:8:WindowsSecurityContextOptions runAsUser:2:int? "
        "runAsGroup:6:int? runAsNonRoot:3:bool? supplementalGroups:4:int[] supplementalGroupsPolicy:12? fsGroup:5:int? "
        "sysctls:7:Sysctl[] fsGroupChangePolicy:9? seccompProfile:10:SeccompProfile appArmorProfile:11:AppArmorProfile "
        "seLinuxChangePolicy:13?"),
    "PodSpec": (
        "volumes:1:Volume[] initContainers:20:Container[] containers:2:Container[] "
        "ephemeralContainers:34:EphemeralContainer[] restartPolicy:3 terminationGracePeriodSeconds:4:int? "
        "activeDeadlineSeconds:5:int? dnsPolicy:6 nodeSelector:7{} serviceAccountName:8 serviceAccount:9 "
        "automountServiceAccountToken:21:bool? nodeName:10 hostNetwork:11:bool hostPID:12:bool hostIPC:13:bool "
        "shareProcessNamespace:27:bool? securityContext:14:PodSecurityContext imagePullSecrets:15:LocalObjectReference[] "
        "hostname:16 subdomain:17 affinity:18:Affinity schedulerName:19 tolerations:22:Toleration[] "
        "hostAliases:23:HostAlias[] priorityClassName:24 priority:25:int? dnsConfig:26:PodDNSConfig "
        "readinessGates:28:PodReadinessGate[] runtimeClassName:29? enableServiceLinks:30:bool? preemptionPolicy:31? "
        "overhead:32:Quantity{} topologySpreadConstraints:33:TopologySpreadConstraint[] setHostnameAsFQDN:35:bool? "
        "os:36:PodOS hostUsers:37:bool? schedulingGates:38:PodSchedulingGate[] resourceClaims:39:PodResourceClaim[] "
        "resources:40:ResourceRequirements hostnameOverride:41? schedulingGroup:43:PodSchedulingGroup "
        "evictionResponders:44:EvictionResponder[]"),
    "PodStatus": (
        "observedGeneration:17:int phase:1 conditions:2:PodCondition[] message:3 reason:4 nominatedNodeName:11 hostIP:5 "
        "hostIPs:16:HostIP[] podIP:6 podIPs:12:PodIP[] startTime:7:Time initContainerStatuses:10:ContainerStatus[] "
        "containerStatuses:8:ContainerStatus[] qosClass:9 ephemeralContainerStatuses:13:ContainerStatus[] resize:14 "
        "resourceClaimStatuses:15:PodResourceClaimStatus[] extendedResourceClaimStatus:18:PodExtendedResourceClaimStatus "
        "allocatedResources:19:Quantity{} resources:20:ResourceRequirements "
        "nodeAllocatableResourceClaimStatuses:21:NodeAllocatableResourceClaimStatus[] volumeHealth:22:PodVolumeHealth[]"),
    "PodVolumeHealth": "name:1 healthConditions:2:VolumeHealthCondition[] lastTransitionTime:3:Time",
    "PortworxVolumeSource": "volumeID:1 fsType:2 readOnly:3:bool",
    "PreferredSchedulingTerm": "weight:1:int preference:2:NodeSelectorTerm",
    "Probe": (
        "handler:1:ProbeHandler! initialDelaySeconds:2:int timeoutSeconds:3:int periodSeconds:4:int "
        "successThreshold:5:int failureThreshold:6:int terminationGracePeriodSeconds:7:int?"),
    "ProbeHandler": "exec:1:ExecAction httpGet:2:HTTPGetAction tcpSocket:3:TCPSocketAction grpc:4:GRPCAction",
    "ProjectedVolumeSource": "sources:1:VolumeProjection[] defaultMode:2:int? defaultUser:3:int?",
    "QuobyteVolumeSource": "registry:1 volume:2 readOnly:3:bool user:4 group:5 tenant:6",
    "RBDVolumeSource": (
        "monitors:1[] image:2 fsType:3 pool:4 user:5 keyring:6 secretRef:7:LocalObjectReference readOnly:8:bool"),
    "ResourceClaim": "name:1 request:2",
    "ResourceFieldSelector": "containerName:1 resource:2 divisor:3:Quantity",
    "ResourceHealth": "resourceID:1 health:2 message:6?",
    "ResourceRequirements": "limits:1:Quantity{} requests:2:Quantity{} claims:3:ResourceClaim[]",
    "ResourceStatus": "name:1 resources:2:ResourceHealth[]",
    "SELinuxOptions": "user:1 role:2 type:3 level:4",
    "ScaleIOVolumeSource": (
        "gateway:1 system:2 secretRef:3:LocalObjectReference sslEnabled:4:bool protectionDomain:5 storagePool:6 "
        "storageMode:7 volumeName:8 fsType:9 readOnly:10:bool"),
    "SeccompProfile": "type:1 localhostProfile:2?",
    "SecretEnvSource": "localObjectReference:1:LocalObjectReference! optional:2:bool?",
    "SecretKeySelector": "localObjectReference:1:LocalObjectReference! key:2 optional:3:bool?",
    "SecretProjection": "localObjectReference:1:LocalObjectReference! items:2:KeyToPath[] optional:4:bool?",
    "SecretVolumeSource": "secretName:1 items:2:KeyToPath[] defaultMode:3:int? optional:4:bool? defaultUser:5:int?",
    "SecurityContext": (
        "capabilities:1:Capabilities privileged:2:bool? seLinuxOptions:3:SELinuxOptions "
        "windowsOptions:10:WindowsSecurityContextOptions runAsUser:4:int? runAsGroup:8:int? runAsNonRoot:5:bool? "
        "readOnlyRootFilesystem:6:bool? allowPrivilegeEscalation:7:bool? procMount:9? seccompProfile:11:SeccompProfile "
        "appArmorProfile:12:AppArmorProfile"),
    "ServiceAccountTokenProjection": "audience:1 expirationSeconds:2:int? path:3 user:4:int?",
    "SleepAction": "seconds:1:int",
    "StorageOSVolumeSource": "volumeName:1 volumeNamespace:2 fsType:3 readOnly:4:bool secretRef:5:LocalObjectReference",
    "Sysctl": "name:1 value:2",
    "TCPSocketAction": "port:1:IntOrString host:2",
    "Toleration": "key:1 operator:2 value:3 effect:4 tolerationSeconds:5:int?",
    "TopologySpreadConstraint": (
        "maxSkew:1:int topologyKey:2 whenUnsatisfiable:3 labelSelector:4:LabelSelector minDomains:5:int? "
        "nodeAffinityPolicy:6? nodeTaintsPolicy:7? matchLabelKeys:8[]"),
    "TypedLocalObjectReference": "apiGroup:1? kind:2 name:3",
    "TypedObjectReference": "apiGroup:1? kind:2 name:3 namespace:4?",
    "Volume": "name:1 volumeSource:2:VolumeSource!",
    "VolumeDevice": "name:1 devicePath:2",
    "VolumeHealthCondition": "status:1 reason:2 message:3",
    "VolumeMount": (
        "name:1 readOnly:2:bool recursiveReadOnly:7? mountPath:3 subPath:4 mountPropagation:5? subPathExpr:6 "
        "bindMountOptions:8[]"),
    "VolumeMountStatus": "name:1 mountPath:2 readOnly:3:bool recursiveReadOnly:4? volumeStatus:5:VolumeStatus",
    "VolumeProjection": (
        "secret:1:SecretProjection downwardAPI:2:DownwardAPIProjection configMap:3:ConfigMapProjection "
        "serviceAccountToken:4:ServiceAccountTokenProjection clusterTrustBundle:5:ClusterTrustBundleProjection "
        "podCertificate:6:PodCertificateProjection"),
    "VolumeResourceRequirements": "limits:1:Quantity{} requests:2:Quantity{}",
    "VolumeSource": (
        "hostPath:1:HostPathVolumeSource emptyDir:2:EmptyDirVolumeSource "
        "gcePersistentDisk:3:GCEPersistentDiskVolumeSource awsElasticBlockStore:4:AWSElasticBlockStoreVolumeSource "
        "gitRepo:5:GitRepoVolumeSource secret:6:SecretVolumeSource nfs:7:NFSVolumeSource iscsi:8:ISCSIVolumeSource "
        "glusterfs:9:GlusterfsVolumeSource persistentVolumeClaim:10:PersistentVolumeClaimVolumeSource "
        "rbd:11:RBDVolumeSource flexVolume:12:FlexVolumeSource cinder:13:CinderVolumeSource cephfs:14:CephFSVolumeSource "
        "flocker:15:FlockerVolumeSource downwardAPI:16:DownwardAPIVolumeSource fc:17:FCVolumeSource "
        "azureFile:18:AzureFileVolumeSource configMap:19:ConfigMapVolumeSource "
        "vsphereVolume:20:VsphereVirtualDiskVolumeSource quobyte:21:QuobyteVolumeSource "
        "azureDisk:22:AzureDiskVolumeSource photonPersistentDisk:23:PhotonPersistentDiskVolumeSource "
        "projected:26:ProjectedVolumeSource portworxVolume:24:PortworxVolumeSource scaleIO:25:ScaleIOVolumeSource "
        "storageos:27:StorageOSVolumeSource csi:28:CSIVolumeSource ephemeral:29:EphemeralVolumeSource "
        "image:30:ImageVolumeSource"),
    "VolumeStatus": "image:1:ImageVolumeStatus",
    "VsphereVirtualDiskVolumeSource": "volumePath:1 fsType:2 storagePolicyName:3 storagePolicyID:4",
    "WeightedPodAffinityTerm": "weight:1:int podAffinityTerm:2:PodAffinityTerm",
    "WindowsSecurityContextOptions": "gmsaCredentialSpecName:1? gmsaCredentialSpec:2? runAsUserName:3? hostProcess:4:bool?",
}
