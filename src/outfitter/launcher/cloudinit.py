"""The config drive of a VM for cloud-init: instance metadata, tagged devices, user data and network data.

A VM without a cloud-init volume has a config drive if one of its devices is tagged, as the guest could not see the tag
otherwise. Pure; called by `domain`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.hypervisor import Drive
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import cloudinit, device_refs, vm
from outfitter.api.kubevirt.cloudinit import NETWORK, USER, CloudInitPart, CloudInitVolume
from outfitter.errors import StartFailed
from outfitter.launcher import device_tags, disk
from outfitter.launcher.device_tags import Tagged

Files = Mapping[str, str]
LABELS: Mapping[cloudinit.Kind, str] = {"cloudInitNoCloud": "cidata", "cloudInitConfigDrive": "config-2"}
LATEST = "openstack/latest"
NAME = 63  # characters of a host name


def needs_drive(spec: Mapping[str, Any]) -> bool:
    """Whether a VM has a config drive: it has a cloud-init volume or a tagged device."""
    devices = (spec.get("domain") or {}).get("devices") or {}
    tagged = [entry for list_ in (*device_refs.LISTS, "interfaces") for entry in devices.get(list_) or ()]
    tagged += [entry for _, entry, _, bus in disk.listed(spec) if bus == "virtio"]
    return cloudinit.volume(spec) is not None or any(
        entry.get("tag") and entry.get("state") != "absent" for entry in tagged)


class Missing(StartFailed):
    """The content of a Secret is not among the files."""


def metadata(instance: Object, tagged: Sequence[Tagged], files: Files) -> str:
    """The metadata file of the drive, in the format of its data source; deterministic."""
    spec, volume = instance["spec"], cloudinit.volume(instance["spec"])
    keys = _public_keys(spec, files)
    flavor, devices = vm.flavor_name(instance), device_tags.guest_metadata(tagged)
    content: dict[str, Any]
    if volume is not None and volume.kind == "cloudInitNoCloud":
        content = {"instance-id": identity(instance), "local-hostname": _hostname(instance)}
        content |= {"instance-type": flavor} if flavor else {}
        content |= {"public-keys": keys} if keys else {}
        content |= {"devices": devices} if devices else {}
    else:
        meta = instance["metadata"]
        content = {"uuid": identity(instance), "instance_id": f"{meta['name']}.{meta['namespace']}",
                "hostname": _hostname(instance)}
        content |= {"instance_type": flavor} if flavor else {}
        content |= {"public_keys": keys} if keys else {}
        content |= {"devices": devices}
    return json.dumps(content, indent=2) + "\n"


def drive(instance: Object, path: str, metadata: str, files: Files) -> Drive:
    """The config drive. Missing when the content of a Secret is not among the files."""
    volume = cloudinit.volume(instance["spec"])
    if volume is None:
        return Drive(path, LABELS["cloudInitConfigDrive"], ((f"{LATEST}/meta_data.json", metadata.encode()),))
    user, network = _data(volume, USER, files), _data(volume, NETWORK, files)
    if volume.kind == "cloudInitNoCloud":
        names = "meta-data", "user-data", "network-config"
    else:
        names = f"{LATEST}/meta_data.json", f"{LATEST}/user_data", f"{LATEST}/network_data.json"
    contents = [metadata.encode(), user or b"", *([network] if network else [])]
    return Drive(path, LABELS[volume.kind], tuple(zip(names, contents, strict=False)))


def identity(instance: Object) -> str:
    """The instance id, by which cloud-init recognises a VM that it has configured. A VM that is stopped and started keeps it,
    though its VMI is another."""
    configured = ((instance["spec"].get("domain") or {}).get("firmware") or {}).get("uuid")
    owner = vm.owner(instance, kinds.VM.kind)
    return str(configured or (owner or instance["metadata"])["uid"])


def _hostname(instance: Object) -> str:
    return str(instance["spec"].get("hostname") or instance["metadata"]["name"].partition(".")[0][:NAME])


def _data(volume: CloudInitVolume, part: CloudInitPart, files: Files) -> bytes | None:
    if name := volume.secret(part):
        paths = (f"{cloudinit.SECRETS}/{volume.name}/{key}" for key in part.keys)
        content = next((files[path] for path in paths if path in files), None)
        if content is None:
            raise Missing(f"{volume.path()}.{part.secret}: the content of Secret {name} was not passed to the launcher")
        return cloudinit.as_bytes(content)
    if text := volume.source.get(part.text):
        return str(text).encode()
    if encoded := volume.source.get(part.base64):
        try:
            return cloudinit.decoded(encoded)
        except ValueError as error:
            raise StartFailed(f"{volume.path()}.{part.base64} is not base64: {error}") from error
    return None


def _public_keys(spec: Mapping[str, Any], files: Files) -> dict[str, str]:
    folders = [f"{secret.folder}/" for secret in cloudinit.secrets(spec) if not secret.keys]
    keys = [text for folder in folders for path, text in sorted(files.items()) if path.startswith(folder) and text]
    return {str(number): text for number, text in enumerate(keys)}
