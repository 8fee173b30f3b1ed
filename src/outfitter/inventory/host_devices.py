"""The devices of a host at one moment: offered ones, withheld ones and why, and held ones that are no longer offered.

A held device that is no longer listed in device_spec or no longer on the bus is still published as it was, with a taint that
prevents new allocations. Pure; called by the host audit and the CLI."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from outfitter.api.device import PCI_BUS_ID
from outfitter.api.kinds import Object
from outfitter.api.providers import Provider
from outfitter.inventory import providers, slices
from outfitter.inventory.assignable import AssignableDevice, WithheldDevice, assignable
from outfitter.inventory.config import HostSettings
from outfitter.inventory.pci import HostDevice
from outfitter.inventory.pci_ids import PciIds
from outfitter.inventory.scan import Scan

Left = Literal["unlisted", "vanished"]


@dataclass(frozen=True, slots=True)
class HostDevices:
    offered: tuple[AssignableDevice, ...]
    withheld: tuple[WithheldDevice, ...]
    left: Mapping[str, Left]  # held devices that are no longer offered as before: name -> why
    kept: tuple[Object, ...]  # those of `left` that are not offered, as they were published
    names: Mapping[str, str]  # PCI address or mdev UUID -> name of its device
    groups: Mapping[str, str]  # device -> its provider in Placement
    once: frozenset[str]  # one-time-use devices
    orphans: tuple[HostDevice, ...]  # listed virtual functions without a parent

    def address(self, device: str) -> str:
        """The current or last known address of a device, for people."""
        return next((where for where, name in self.names.items() if name == device), device)


def host_devices(
    host: str, settings: HostSettings, found: Scan, published: Sequence[Object] = (), *, held: Collection[str] = (),
    running: Collection[str] = (),
) -> HostDevices:
    """`published`: the devices in the host's current slices; `held`: names of booked devices; `running`: addresses and UUIDs
    that are attached to domains on the host. Invalid when device_spec is impossible on this host."""
    before = {device["name"]: device for device in published}
    there = {device.name for device in found.devices} | {mdev.name for mdev in found.mdevs}
    vanished = _vanished_functions(before, there, set(held), set(running))
    division = assignable((*found.devices, *vanished.values()), found.mdevs, settings.device_spec)
    offered = {entry.name: entry for entry in division.offered}
    left: dict[str, Left] = dict.fromkeys(vanished, "vanished")
    for name, device in before.items():
        if name not in offered and (name in held or not set(running).isdisjoint(_identifiers(device))):
            left[name] = "unlisted" if name in there else "vanished"
    entries = settings.device_spec.match(found.devices) if settings.device_spec is not None else {}
    return HostDevices(
        division.offered, tuple(entry for entry in division.withheld if entry.device.name not in vanished), left,
        tuple(before[name] for name in left if name not in offered), _names(found, division.offered, before, left),
        {entry.name: providers.provider_name(host, entry.device) for entry in division.offered
         if isinstance(entry.device, HostDevice)},
        frozenset(entry.name for entry in division.offered if entry.entry is not None and entry.entry.one_time_use),
        tuple(device for device in found.devices if device.kind.is_vf and device.parent is None
              and device.address in entries and not entries[device.address].physical_network),
    )


def _vanished_functions(
    before: Mapping[str, Object], there: set[str], held: set[str], running: set[str]
) -> dict[str, HostDevice]:
    """Held functions that are no longer on the bus, as they were published. Each gets an IOMMU group of its own, as the number
    of its former group may be in use by another one now."""
    out: dict[str, HostDevice] = {}
    for name, device in before.items():
        function = slices.published_function(device) if name not in there else None
        if function is not None and (name in held or not running.isdisjoint(_identifiers(device))):
            out[name] = replace(function, iommu_group=-1 - len(out))
    return out


def _identifiers(published: Object) -> list[str]:
    """The addresses of a published device, or its UUID."""
    attributes = published.get("attributes") or {}
    texts = [(attributes.get(key) or {}).get("string") for key in (PCI_BUS_ID, "mdevUUID")]
    return [*(text for text in texts if text), *slices.members(published)]


def _names(
    found: Scan, offered: Sequence[AssignableDevice], before: Mapping[str, Object], left: Collection[str]
) -> dict[str, str]:
    """Scanned devices take precedence over published ones; a kept device keeps all members of its former group."""
    names = {where: name for name, device in before.items() for where in _identifiers(device)}
    names |= {device.address: device.name for device in found.devices}
    names |= {mdev.uuid: mdev.name for mdev in found.mdevs}
    names |= {where: name for name in left for where in _identifiers(before[name])}
    names |= {member.address: entry.name for entry in offered for member in entry.members}
    return names


def devices(
    seen: HostDevices, published: Sequence[Object], held: Collection[str], taints: Mapping[str, Sequence[Object]],
    names: PciIds, *, tree: Sequence[Provider] = (),
) -> list[Object]:
    """The devices to publish: offered ones, then kept ones, each with its taints and counters (`tree`: the host's providers). A
    held device keeps the attributes that only its own driver provides (it is bound to vfio-pci now)."""
    before = {device["name"]: device for device in published}
    counters = slices.counters(seen.offered, seen.kept, tree)
    out = []
    for device in (*slices.describe(seen.offered, names), *seen.kept):
        name, old = device["name"], before.get(device["name"])
        entry = device
        if old is not None and name in seen.left:
            entry = old
        elif old is not None and name in held:
            entry = _keep_volatile(device, old)
        out.append(_tainted(counters.on(entry), old, taints.get(name, ())))
    return out


def _keep_volatile(device: Object, old: Object) -> Object:
    attributes = {key: value for key, value in device["attributes"].items() if key not in slices.VOLATILE}
    attributes |= {key: old["attributes"][key] for key in slices.VOLATILE if key in old["attributes"]}
    return {**device, "attributes": attributes} | ({"capacity": old["capacity"]} if "capacity" in old else {})


def _tainted(device: Object, old: Object | None, taints: Sequence[Object]) -> Object:
    """The device with these taints; an existing taint keeps its timeAdded."""
    out = {key: value for key, value in device.items() if key != "taints"}
    times = {taint["key"]: taint["timeAdded"] for taint in (old or {}).get("taints") or () if "timeAdded" in taint}
    if taints:
        out["taints"] = [{**taint, **({"timeAdded": times[taint["key"]]} if taint["key"] in times else {})} for taint in taints]
    return out
