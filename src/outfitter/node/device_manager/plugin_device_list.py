"""What a device plugin sends with ListAndWatch, checked: a plugin may be wrong about its devices, and others must not suffer
from that. Pure; called by the device manager for every list.

    read_list("example.com/gpu", devices)  # the devices that can be used, and what is wrong with others"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outfitter.api.assignment.assigned_devices import LONGEST_ID
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.node.device_manager.plugin_resource import PluginDevice

MOST_DEVICES = 65_536  # of one resource
MOST_NUMA_NODES = 1024  # as many as a Linux kernel may have
MOST_NAMED = 3  # ids in a message
_ID = re.compile(rf"[^\x00-\x1f\x7f]{{1,{LONGEST_ID}}}")


@dataclass(frozen=True, slots=True)
class PluginDeviceList:
    devices: tuple[PluginDevice, ...]
    problem: Rejection | None = None  # what of the list is not used, and why


def read_list(resource: str, devices: Sequence[PluginDevice]) -> PluginDeviceList:
    """Devices whose ids cannot be written anywhere are skipped. A device that is listed twice, with two healths or topologies,
    is not healthy. NUMA nodes that no host has are dropped."""
    if len(devices) > MOST_DEVICES:
        return PluginDeviceList((), refused(resource, f"it lists more than {MOST_DEVICES} devices: none is used"))
    known: dict[str, PluginDevice] = {}
    malformed, ambiguous, nowhere = list[str](), list[str](), list[str]()
    for device in devices:
        if not _ID.fullmatch(device.id):
            malformed.append(device.id)
            continue
        nodes = tuple(node for node in device.numa_nodes if 0 <= node < MOST_NUMA_NODES)
        if nodes != device.numa_nodes:
            nowhere.append(device.id)
        usable = device if nodes == device.numa_nodes else replace(device, numa_nodes=nodes)
        if known.get(device.id, usable) != usable:
            ambiguous.append(device.id)
            usable = replace(usable, healthy=False)
        known[device.id] = usable
    wrong = [f"{what}: {_named(ids)}" for what, ids in (
        (f"ids that are not 1 to {LONGEST_ID} printable characters are skipped", malformed),
        ("ids that are listed twice, and differently, count as unhealthy", ambiguous),
        ("NUMA nodes that no host has are ignored", nowhere)) if ids]
    return PluginDeviceList(tuple(known.values()), refused(resource, "; ".join(wrong)) if wrong else None)


def refused(resource: str, message: str) -> Rejection:
    return Rejection.of(RejectionCode.DEVICE_PLUGIN_REFUSED, resource=resource[:LONGEST_ID], message=message)


def _named(ids: Sequence[str]) -> str:
    some = ", ".join(repr(each[:40]) for each in ids[:MOST_NAMED])
    return some + (f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else "")
