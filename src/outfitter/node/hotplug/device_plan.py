"""What is to be done about the GPUs and host devices of a VMI that runs: its spec and its device status against its domain.
Pure. Called by `device_hotplug`.

A device is matched by its addresses, not by its alias: a name may end like the number of another one's function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from outfitter.api.hypervisor import DomainHostDevice
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, device_status, migration
from outfitter.api.kubevirt.attachment_pods import ATTACHED, HOTPLUG
from outfitter.api.kubevirt.device_refs import DeviceRef, List


class DeviceKey(NamedTuple):
    list: List
    name: str


class PendingDevice(NamedTuple):
    """Why a device is not plugged or unplugged yet."""

    code: str
    message: str


class ReportedDevices(NamedTuple):
    lists: Object  # of status.deviceStatus that change
    plugged: list[DeviceKey]
    gone: list[DeviceKey]


@dataclass(frozen=True, slots=True)
class DevicePlan:
    waits: tuple[DeviceRef, ...]  # without an entry in the status: not booked yet
    attach: tuple[DeviceRef, ...]
    detach: tuple[tuple[DeviceKey, DomainHostDevice], ...]

    @property
    def nothing(self) -> bool:
        return not (self.waits or self.attach or self.detach)


def plan(instance: Object, have: Sequence[DomainHostDevice]) -> DevicePlan:
    """Entries without the mark of a plugged device are those that the domain was started with: they are only unplugged."""
    refs = {DeviceKey(ref.list, ref.name): ref for ref in device_refs.device_refs(instance)}
    entries, sources = _entries(instance), {device.source.lower() for device in have}
    written = [ref for ref in device_refs.written_refs(instance) if ref.by_claim]
    waits = [ref for ref in written if DeviceKey(ref.list, ref.name) not in entries]
    attach = [refs[key] for key, listed in entries.items() if key in refs and any(entry.get(HOTPLUG) for entry in listed)
              and not _places(listed) <= sources]
    detach = [(key, device) for key, listed in entries.items() if key not in refs
              for device in have if device.source.lower() in _places(listed)]
    return DevicePlan(tuple(waits), tuple(attach), tuple(detach))


def leaving(instance: Object, have: Sequence[DomainHostDevice]) -> dict[str, list[DomainHostDevice]]:
    """What a domain has of the devices that are reattached by the migration under way, by name. Those that travel are not
    among them."""
    entries, out = _entries(instance), dict[str, list[DomainHostDevice]]()
    for list_, name in migration.reattached(instance):
        places = _places(entries.get(DeviceKey(list_, name), ()))
        if found := [device for device in have if device.source.lower() in places]:
            out.setdefault(name, []).extend(found)
    return out


def reported(instance: Object, have: Sequence[DomainHostDevice]) -> ReportedDevices:
    """What changes in the status, now that the domain has these devices."""
    keys = {DeviceKey(ref.list, ref.name) for ref in device_refs.device_refs(instance)}
    sources = {device.source.lower() for device in have}
    entries, changed = _entries(instance), dict[str, Any]()
    plugged: list[DeviceKey] = []
    gone = [key for key, listed in entries.items() if key not in keys and not _places(listed) & sources]
    for key, listed in entries.items():
        hotplug = listed[0].get(HOTPLUG)
        if key in keys and hotplug and hotplug.get("phase") != ATTACHED and _places(listed) <= sources:
            plugged.append(key)
    for list_ in device_refs.LISTS:
        before = [dict(entry) for entry in device_status.statuses(instance, list_)]
        after = [_attached(entry) if DeviceKey(list_, str(entry.get("name"))) in plugged else entry for entry in before
                 if DeviceKey(list_, str(entry.get("name"))) not in gone]
        if after != before:
            changed[device_status.STATUS_LISTS[list_]] = after or None
    return ReportedDevices(changed, plugged, gone)


def _entries(instance: Object) -> dict[DeviceKey, list[Mapping[str, Any]]]:
    """The status by device; one of several devices has several entries."""
    out: dict[DeviceKey, list[Mapping[str, Any]]] = {}
    for list_ in device_refs.LISTS:
        for entry in device_status.statuses(instance, list_):
            if device_status.address_of(entry) is not None:
                out.setdefault(DeviceKey(list_, str(entry.get("name"))), []).append(entry)
    return out


def _places(entries: Sequence[Mapping[str, Any]]) -> set[str]:
    """PCI addresses of all functions, and UUIDs."""
    out: set[str] = set()
    for entry in entries:
        where = device_status.address_of(entry)
        attributes = (entry.get("deviceResourceClaimStatus") or {}).get("attributes") or {}
        if where is not None:
            out |= {str(place).lower() for place in (where[1], *(attributes.get("members") or ())) if where[0] == "pci" or (
                place == where[1])}
    return out


def _attached(entry: Object) -> Object:
    return {**entry, HOTPLUG: {**entry[HOTPLUG], "phase": ATTACHED}}
