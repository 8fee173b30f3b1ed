"""What a machine's cloud-init finds on its drive: who the machine is, its tagged devices, and what the user wrote for it.

A machine without a cloud-init volume has a config drive of its own if any of its devices is tagged: the tag would reach nobody
otherwise."""

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
NAME = 63  # letters of a host's name


def needs_drive(spec: Mapping[str, Any]) -> bool:
    """Whether a machine has a drive: it has a volume for one, or a tag that its guest is to be told."""
    devices = (spec.get("domain") or {}).get("devices") or {}
    tagged = [entry for list_ in (*device_refs.LISTS, "interfaces") for entry in devices.get(list_) or ()]
    tagged += [entry for _, entry, _, bus in disk.listed(spec) if bus == "virtio"]
    return cloudinit.volume(spec) is not None or any(
        entry.get("tag") and entry.get("state") != "absent" for entry in tagged)


class Missing(StartFailed):
    """A Secret was not handed in."""


def metadata(instance: Object, tagged: Sequence[Tagged], files: Files) -> str:
    """The drive's metadata, in the words of its kind; the same for the same machine."""
    spec, volume = instance["spec"], cloudinit.volume(instance["spec"])
    keys = _public_keys(spec, files)
    flavor, devices = vm.flavor_name(instance), device_tags.guest_metadata(tagged)
    said: dict[str, Any]
    if volume is not None and volume.kind == "cloudInitNoCloud":
        said = {"instance-id": identity(instance), "local-hostname": _hostname(instance)}
        said |= {"instance-type": flavor} if flavor else {}
        said |= {"public-keys": keys} if keys else {}
        said |= {"devices": devices} if devices else {}
    else:
        meta = instance["metadata"]
        said = {"uuid": identity(instance), "instance_id": f"{meta['name']}.{meta['namespace']}",
                "hostname": _hostname(instance)}
        said |= {"instance_type": flavor} if flavor else {}
        said |= {"public_keys": keys} if keys else {}
        said |= {"devices": devices}
    return json.dumps(said, indent=2) + "\n"


def drive(instance: Object, path: str, metadata: str, files: Files) -> Drive:
    """Missing: a Secret that it is made from is not among the files."""
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
    """By which cloud-init knows a machine that it has set up already. A machine that is stopped and started is the same one,
    though its instance is another."""
    said = ((instance["spec"].get("domain") or {}).get("firmware") or {}).get("uuid")
    owner = vm.owner(instance, kinds.VM.kind)
    return str(said or (owner or instance["metadata"])["uid"])


def _hostname(instance: Object) -> str:
    return str(instance["spec"].get("hostname") or instance["metadata"]["name"].partition(".")[0][:NAME])


def _data(volume: CloudInitVolume, part: CloudInitPart, files: Files) -> bytes | None:
    if name := volume.secret(part):
        found = next((files[path] for key in part.keys if (path := f"{cloudinit.SECRETS}/{volume.name}/{key}") in files), None)
        if found is None:
            raise Missing(f"{volume.path()}.{part.secret}: what Secret {name} has was not handed to the launcher")
        return cloudinit.as_bytes(found)
    if text := volume.source.get(part.text):
        return str(text).encode()
    if encoded := volume.source.get(part.base64):
        try:
            return cloudinit.decoded(encoded)
        except ValueError as error:
            raise StartFailed(f"{volume.path()}.{part.base64} is not base64: {error}") from error
    return None


def _public_keys(spec: Mapping[str, Any], files: Files) -> dict[str, str]:
    folders = [f"{ask.folder}/" for ask in cloudinit.secrets(spec) if not ask.keys]
    found = [text for folder in folders for path, text in sorted(files.items()) if path.startswith(folder) and text]
    return {str(number): text for number, text in enumerate(found)}
