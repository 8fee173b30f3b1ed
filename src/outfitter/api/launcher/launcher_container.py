"""What a kubelet needs to run a launcher pod: image, command, volumes and security context of the container `compute`. Pure.
Embedded mode has no kubelet, and its pods have none of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import cloudinit, device_refs, network_info
from outfitter.api.launcher import launcher_paths

USER = 107  # of QEMU, as in KubeVirt's images
# libvirt raises the limit of locked memory for a QEMU that has VFIO devices, and that takes this capability.
PASSTHROUGH_CAPABILITIES = ("SYS_RESOURCE",)


@dataclass(frozen=True, slots=True)
class LauncherSettings:
    """How launcher pods are run, for all VMs."""

    image: str
    pull_policy: str = "IfNotPresent"
    hypervisor: str = "libvirt"  # or "simulated"
    kvm_resource: str = ""  # the extended resource by which a device plugin gives /dev/kvm; "": VMs are emulated


def runnable(pod: Object, instance: Mapping[str, Any], settings: LauncherSettings) -> Object:
    """The launcher pod of `launcher_pod`, as a kubelet runs it."""
    passthrough = _has_host_devices(pod, instance)
    volumes = list(_volumes(instance))
    compute, *others = pod["spec"]["containers"]
    container = {
        **compute,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["outfit", "launcher"],
        "args": ["--socket", f"{launcher_paths.FOLDER}/{launcher_paths.SOCKET}", "--state", launcher_paths.STATE,
                 "--hypervisor", settings.hypervisor],
        "resources": _resources(compute["resources"], settings.kvm_resource),
        "securityContext": _security_context(root=passthrough),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount for _, mount in volumes],
    }
    spec = {
        **pod["spec"],
        "containers": [container, *others],
        "volumes": [volume for volume, _ in volumes],
        "enableServiceLinks": False,  # variables of Services would look like settings
        "securityContext": {"fsGroup": USER, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    return {**pod, "spec": spec}


def _has_host_devices(pod: Object, instance: Mapping[str, Any]) -> bool:
    """Whether VFIO devices are in the container: their nodes belong to root, and the guest's memory is locked."""
    interfaces = network_info.interfaces(instance)
    return bool(pod["spec"].get("resourceClaims") or device_refs.device_refs(instance)
                or any(interface.get("sriov") is not None for interface in interfaces))


def _security_context(*, root: bool) -> Object:
    user = 0 if root else USER
    drop: Object = {"drop": ["ALL"]}
    return {
        "runAsUser": user, "runAsGroup": user, "runAsNonRoot": not root, "allowPrivilegeEscalation": False,
        "capabilities": drop | ({"add": list(PASSTHROUGH_CAPABILITIES)} if root else {}),
    }


def _resources(asked: Object, kvm_resource: str) -> Object:
    if not kvm_resource:
        return asked
    return {**asked, **{part: {**(asked.get(part) or {}), kvm_resource: "1"} for part in ("requests", "limits")}}


def _volumes(instance: Mapping[str, Any]) -> Iterator[tuple[Object, Object]]:
    """Volumes of the pod, each with its mount in the container. Secrets are mounted, so that neither the launcher nor the node
    agent may read Secrets of the API server."""
    yield _empty_dir(launcher_paths.VOLUME, launcher_paths.FOLDER)
    yield _empty_dir("vm", launcher_paths.STATE, medium="Memory")  # a config drive has Secrets in it
    folders: dict[str, list[str]] = {}  # folder -> Secrets in it: user data and network data may be in two
    for reference in cloudinit.secrets(instance["spec"]):
        folders.setdefault(reference.folder, []).append(reference.secret)
    for index, (folder, secrets) in enumerate(folders.items()):
        sources = [{"secret": {"name": secret}} for secret in dict.fromkeys(secrets)]
        yield ({"name": f"secret-{index}", "projected": {"defaultMode": 0o440, "sources": sources}},
               {"name": f"secret-{index}", "mountPath": folder, "readOnly": True})
    for index, folder in enumerate(dict.fromkeys(_host_disk_folders(instance))):
        yield ({"name": f"host-disk-{index}", "hostPath": {"path": folder, "type": "Directory"}},
               {"name": f"host-disk-{index}", "mountPath": folder})


def _empty_dir(name: str, path: str, **how: str) -> tuple[Object, Object]:
    return {"name": name, "emptyDir": how}, {"name": name, "mountPath": path}


def _host_disk_folders(instance: Mapping[str, Any]) -> Iterator[str]:
    for volume in instance["spec"].get("volumes") or ():
        if path := (volume.get("hostDisk") or {}).get("path"):
            yield str(PurePosixPath(path).parent)
