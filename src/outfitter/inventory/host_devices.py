"""A host at one moment: what it offers, what it withholds and why, and what it no longer offers though somebody has it.

A device that somebody has stays where people can see it: when it is no longer listed or no longer on the bus it is published
as it was, and nobody new gets it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from outfitter.api.device import PCI_BUS_ID
from outfitter.api.kinds import Object
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
    left: Mapping[str, Left]  # devices that somebody has and that are not as they were: name -> what became of them
    kept: tuple[Object, ...]  # those of them that are no longer offered, as they were published
    names: Mapping[str, str]  # PCI address or UUID -> name of the device that it belongs to
    groups: Mapping[str, str]  # device -> the provider on which it is counted
    once: frozenset[str]  # devices that are given away once, and then must be cleaned
    orphans: tuple[HostDevice, ...]  # listed virtual functions without a parent

    def address(self, device: str) -> str:
        """Where a device stands or stood, for a person."""
        return next((where for where, name in self.names.items() if name == device), device)


def host_devices(
    host: str, settings: HostSettings, found: Scan, published: Sequence[Object] = (), *, held: Collection[str] = (),
    running: Collection[str] = (),
) -> HostDevices:
    """`published`: devices of the host's slices as they stand; `held`: names of those that are booked; `running`: addresses and
    UUIDs that machines on the host really have. Invalid: device_spec asks of this host what cannot be."""
    before = {device["name"]: device for device in published}
    there = {device.name for device in found.devices} | {mdev.name for mdev in found.mdevs}
    ghosts = _ghosts(before, there, set(held), set(running))
    answer = assignable((*found.devices, *ghosts.values()), found.mdevs, settings.device_spec)
    offered = {one.name: one for one in answer.offered}
    left: dict[str, Left] = dict.fromkeys(ghosts, "vanished")
    for name, device in before.items():
        if name not in offered and (name in held or not set(running).isdisjoint(_places(device))):
            left[name] = "unlisted" if name in there else "vanished"
    entries = settings.device_spec.match(found.devices) if settings.device_spec is not None else {}
    return HostDevices(
        answer.offered, tuple(one for one in answer.withheld if one.device.name not in ghosts), left,
        tuple(before[name] for name in left if name not in offered), _names(found, answer.offered, before, left),
        {one.name: providers.provider_name(host, one.device) for one in answer.offered if isinstance(one.device, HostDevice)},
        frozenset(one.name for one in answer.offered if one.entry is not None and one.entry.one_time_use),
        tuple(device for device in found.devices if device.kind.is_vf and device.parent is None
              and device.address in entries and not entries[device.address].physical_network),
    )


def _ghosts(before: Mapping[str, Object], there: set[str], held: set[str], running: set[str]) -> dict[str, HostDevice]:
    """Functions that somebody has and that are no longer on the bus, as they were published. Each is in a group of its own: the
    number of the one it was in may be another's by now."""
    out: dict[str, HostDevice] = {}
    for name, device in before.items():
        ghost = slices.published_function(device) if name not in there else None
        if ghost is not None and (name in held or not running.isdisjoint(_places(device))):
            out[name] = replace(ghost, iommu_group=-1 - len(out))
    return out


def _places(published: Object) -> list[str]:
    """Where a published device is found: its addresses, or its UUID."""
    attributes = published.get("attributes") or {}
    texts = [(attributes.get(key) or {}).get("string") for key in (PCI_BUS_ID, "mdevUUID")]
    return [*(text for text in texts if text), *slices.members(published)]


def _names(
    found: Scan, offered: Sequence[AssignableDevice], before: Mapping[str, Object], left: Collection[str]
) -> dict[str, str]:
    """What is there goes before what was published; but what is only kept is still the whole group that it was."""
    names = {where: name for name, device in before.items() for where in _places(device)}
    names |= {device.address: device.name for device in found.devices}
    names |= {mdev.uuid: mdev.name for mdev in found.mdevs}
    names |= {where: name for name in left for where in _places(before[name])}
    names |= {member.address: one.name for one in offered for member in one.members}
    return names


def devices(
    seen: HostDevices, published: Sequence[Object], held: Collection[str], taints: Mapping[str, Sequence[Object]], names: PciIds
) -> list[Object]:
    """What the slices say: what is offered, then what is only kept, each with its taints. While somebody has a device it says
    what it said before of what only its own driver tells."""
    before = {device["name"]: device for device in published}
    counters = slices.counters(seen.offered, seen.kept)
    out = []
    for device in (*slices.describe(seen.offered, names), *seen.kept):
        name, old = device["name"], before.get(device["name"])
        said = device
        if old is not None and name in seen.left:
            said = old
        elif old is not None and name in held:
            said = _steady(device, old)
        out.append(_tainted(counters.on(said), old, taints.get(name, ())))
    return out


def _steady(device: Object, old: Object) -> Object:
    attributes = {key: value for key, value in device["attributes"].items() if key not in slices.VOLATILE}
    attributes |= {key: old["attributes"][key] for key in slices.VOLATILE if key in old["attributes"]}
    return {**device, "attributes": attributes} | ({"capacity": old["capacity"]} if "capacity" in old else {})


def _tainted(device: Object, old: Object | None, taints: Sequence[Object]) -> Object:
    """With these taints; one that was there already keeps its time."""
    out = {key: value for key, value in device.items() if key != "taints"}
    times = {taint["key"]: taint["timeAdded"] for taint in (old or {}).get("taints") or () if "timeAdded" in taint}
    if taints:
        out["taints"] = [{**taint, **({"timeAdded": times[taint["key"]]} if taint["key"] in times else {})} for taint in taints]
    return out
