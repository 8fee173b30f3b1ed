"""GPUs and host devices that a guest agrees to lose while its VM migrates: which ones the owner of the VM declares, which ones
the target's pod of a migration was planned for, and how `status.deviceStatus` marks them. Pure; used by admission, the plan of
a migration, the migration controller and the node agents.

    metadata: {annotations: {outfitter.dev/reattach-on-migration: "gpu1,disk2"}}    # of a VMI, or of a VM's template; "*": all

A marked entry is that of a device which the node agent is to plug (`attachment_pods.HOTPLUG`): in the record of a migration
(`targetDeviceStatus`) of one that is reattached, in `deviceStatus` of one that the guest was asked to release for it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, device_status
from outfitter.api.kubevirt.attachment_pods import HOTPLUG

DECLARED = "outfitter.dev/reattach-on-migration"  # annotation of a VMI, from the template of its VM
ALL = "*"
PLANNED = "outfitter.dev/reattached-devices"  # annotation of a target's pod: JSON, a list of LIST/NAME
Key = tuple[device_refs.List, str]  # list and name of a device


def declared(meta: Mapping[str, Any]) -> str | None:
    """The annotation in the metadata of a VMI or of a template."""
    text = (meta.get("annotations") or {}).get(DECLARED)
    return text if isinstance(text, str) else None


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def declares(vmi: Mapping[str, Any], name: str) -> bool:
    """Whether the guest of a VMI agrees to lose this device for a moment."""
    text = declared(vmi["metadata"])
    return text is not None and (text.strip() == ALL or name in names(text))


def format_error(text: str) -> str:
    """What is wrong with the annotation; "": nothing."""
    listed = names(text)
    if listed == [ALL]:
        return ""
    if "" in listed:
        return 'a name is empty; it must be "*", or names of GPUs and host devices, separated by commas: gpu1,disk2'
    if ALL in listed:
        return '"*" stands for all devices, and alone; it must be "*", or names separated by commas: gpu1,disk2'
    if twice := next((name for name in listed if listed.count(name) > 1), None):
        return f'"{twice}" is in it twice; write each name once'
    return ""


def unknown(text: str, spec: Mapping[str, Any]) -> list[str]:
    """Names in the annotation that no GPU or host device by claim has."""
    known = {ref.name for ref in device_refs.written_refs({"spec": spec}) if ref.by_claim}
    return [name for name in names(text) if name not in (ALL, *known)]


# -- of a migration


def planned(keys: Iterable[Key]) -> str:
    """The annotation PLANNED for these devices."""
    return json.dumps([f"{list_}/{name}" for list_, name in sorted(keys)])


def planned_for(pod: Mapping[str, Any]) -> frozenset[Key]:
    """The devices that a target's pod was planned to reattach: its claims are narrowed accordingly. None where the annotation
    was edited and cannot be read."""
    try:
        listed = json.loads((pod["metadata"].get("annotations") or {}).get(PLANNED) or "[]")
    except ValueError:
        listed = []
    parts = [str(entry).partition("/") for entry in listed] if isinstance(listed, list) else []
    return frozenset((list_, name) for list_ in device_refs.LISTS for found, _, name in parts if found == list_)


def marked(status: Mapping[str, Any], keys: Collection[Key], claims: Mapping[Key, str], pod: str) -> Object:
    """A device status in which these devices are to be plugged: each of its claim, an entry of the VMI's resourceClaims, by
    the pod that holds it. One that an attachment pod holds keeps that."""
    out = dict(status)
    for list_, field in device_status.STATUS_LISTS.items():
        if listed := status.get(field):
            out[field] = [_marked(entry, claims[key], pod) if (key := (list_, str(entry.get("name")))) in keys else entry
                          for entry in listed]
    return out


def _marked(entry: Mapping[str, Any], claim: str, pod: str) -> Object:
    holder = (entry.get(HOTPLUG) or {}).get("attachPodName") or pod
    return {**entry, HOTPLUG: {"claimName": claim, "attachPodName": holder}}


def marks(status: Mapping[str, Any]) -> dict[Key, str]:
    """The marked devices of a device status, each with its claim."""
    return {(list_, str(entry.get("name"))): str(entry[HOTPLUG].get("claimName") or "")
            for list_, field in device_status.STATUS_LISTS.items() for entry in status.get(field) or () if entry.get(HOTPLUG)}
