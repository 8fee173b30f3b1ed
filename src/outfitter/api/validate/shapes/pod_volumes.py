"""Volumes of a pod."""

from __future__ import annotations

from outfitter.api.validate import node_placement
from outfitter.api.validate.shapes.common import AMOUNTS, LABELS, NAMED, TEMPLATE_METADATA, TEXTS, Amount, Shape, fields

FIELD: Shape = fields(str, "apiVersion fieldPath")
RESOURCE_FIELD: Shape = fields(str, "containerName resource") | {"divisor": Amount}
_ITEMS = [{"key": str, "mode": int, "path": str}]
_CONFIG_MAP: Shape = {"items": _ITEMS, "name": str, "optional": bool}
_FILES = [{"fieldRef": FIELD, "mode": int, "path": str, "resourceFieldRef": RESOURCE_FIELD}]
_MODE: Shape = {"defaultMode": int}
_DISK: Shape = {"fsType": str, "readOnly": bool}
_CLAIM_SPEC: Shape = fields(str, "storageClassName volumeAttributesClassName volumeMode volumeName") | {
    "accessModes": TEXTS, "dataSource": fields(str, "apiGroup kind name"),
    "dataSourceRef": fields(str, "apiGroup kind name namespace"), "resources": {"limits": AMOUNTS, "requests": AMOUNTS},
    "selector": node_placement.LABEL_SELECTOR}
_PROJECTION: Shape = {
    "clusterTrustBundle": fields(str, "name path signerName") | {
        "labelSelector": node_placement.LABEL_SELECTOR, "optional": bool},
    "configMap": _CONFIG_MAP, "downwardAPI": {"items": _FILES},
    "podCertificate": fields(str, "certificateChainPath credentialBundlePath keyPath keyType signerName") | {
        "maxExpirationSeconds": int, "userAnnotations": LABELS},
    "secret": _CONFIG_MAP, "serviceAccountToken": {"audience": str, "expirationSeconds": int, "path": str}}
VOLUME: Shape = {
    "name": str,
    "awsElasticBlockStore": _DISK | {"partition": int, "volumeID": str},
    "azureDisk": _DISK | fields(str, "cachingMode diskName diskURI kind"),
    "azureFile": fields(str, "secretName shareName") | {"readOnly": bool},
    "cephfs": fields(str, "path secretFile user") | {"monitors": TEXTS, "readOnly": bool, "secretRef": NAMED},
    "cinder": _DISK | {"secretRef": NAMED, "volumeID": str},
    "configMap": _CONFIG_MAP | _MODE,
    "csi": _DISK | {"driver": str, "nodePublishSecretRef": NAMED, "volumeAttributes": LABELS},
    "downwardAPI": _MODE | {"items": _FILES},
    "emptyDir": {"medium": str, "sizeLimit": Amount},
    "ephemeral": {"volumeClaimTemplate": {"metadata": TEMPLATE_METADATA, "spec": _CLAIM_SPEC}},
    "fc": _DISK | {"lun": int, "targetWWNs": TEXTS, "wwids": TEXTS},
    "flexVolume": _DISK | {"driver": str, "options": LABELS, "secretRef": NAMED},
    "flocker": fields(str, "datasetName datasetUUID"),
    "gcePersistentDisk": _DISK | {"partition": int, "pdName": str},
    "gitRepo": fields(str, "directory repository revision"),
    "glusterfs": fields(str, "endpoints path") | {"readOnly": bool},
    "hostPath": fields(str, "path type"),
    "image": fields(str, "pullPolicy reference"),
    "iscsi": _DISK | fields(bool, "chapAuthDiscovery chapAuthSession") | fields(
        str, "initiatorName iqn iscsiInterface targetPortal") | {"lun": int, "portals": TEXTS, "secretRef": NAMED},
    "nfs": fields(str, "path server") | {"readOnly": bool},
    "persistentVolumeClaim": {"claimName": str, "readOnly": bool},
    "photonPersistentDisk": fields(str, "fsType pdID"),
    "portworxVolume": _DISK | {"volumeID": str},
    "projected": _MODE | {"sources": [_PROJECTION]},
    "quobyte": fields(str, "group registry tenant user volume") | {"readOnly": bool},
    "rbd": _DISK | fields(str, "image keyring pool user") | {"monitors": TEXTS, "secretRef": NAMED},
    "scaleIO": _DISK | fields(str, "gateway protectionDomain storageMode storagePool system volumeName") | {
        "secretRef": NAMED, "sslEnabled": bool},
    "secret": _MODE | {"items": _ITEMS, "optional": bool, "secretName": str},
    "storageos": _DISK | fields(str, "volumeName volumeNamespace") | {"secretRef": NAMED},
    "vsphereVolume": fields(str, "fsType storagePolicyID storagePolicyName volumePath"),
}
