"""The device that a claim has, as its driver publishes it for the host of the VM.

A pool may be known to several hosts, and drivers on different hosts may use the same names: what counts is what the host can
reach. Nothing is guessed: an unfinished or contradictory publication is a reason to wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.device import ADDRESS_NAMES, MDEV_NAMES, DeviceId, newest, text_attribute
from outfitter.api.kinds import Object
from outfitter.controllers.manager import ControllerContext
from outfitter.errors import Invalid
from outfitter.scheduling.dra.published_device import published_device
from outfitter.scheduling.filter import node_affinity

Device = Mapping[str, Any]
POOL = "pool"


class DeviceLookup:
    """Looks into the slices and nodes that the process follows anyway."""

    def __init__(self, context: ControllerContext) -> None:
        self.slices = context.informer(kinds.RESOURCE_SLICE)
        self.nodes = context.informer(kinds.NODE)
        self.slices.add_index(POOL, lambda part: [_pool(part["spec"]["driver"], part["spec"]["pool"]["name"])])

    def find(self, result: Mapping[str, Any], host: str | None) -> Device | str:
        """The device of an allocation's result, or why it is not known. Without a host any will do."""
        slices = self.slices.by(POOL, _pool(result["driver"], result["pool"]))
        try:
            return find(result, slices, host, self.nodes.get(host) if host else None)
        except Invalid as error:
            return f"a slice of pool {result['pool']} of {result['driver']} cannot be read: {error.message}"

    def published(self, device: DeviceId, host: str) -> Device | None:
        """A device that is in use on a host, if its driver still publishes it."""
        slices = self.slices.by(POOL, _pool(device.driver, device.pool))
        return published_device(device.device, slices, host, self.nodes.get(host))


def find(result: Mapping[str, Any], slices: Sequence[Object], host: str | None, node: Object | None) -> Device | str:
    """`slices` are all of the result's pool, `node` is the host's object if there is one."""
    missing = f"{result['driver']} has not published device {result['device']} of pool {result['pool']}"
    parts = newest(slices)
    if not parts:
        return missing
    near = [part for part in parts if not host or any(_reaches(part["spec"], one, host, node) for one in _devices(part))]
    wanted = {int(part["spec"]["pool"].get("resourceSliceCount") or 1) for part in parts}
    if wanted.isdisjoint((len(parts), len(near))):  # a driver may count those of each host for itself
        return (f"{missing}: the pool is not complete, generation {parts[0]['spec']['pool'].get('generation') or 0} has "
                f"{len(parts)} slices where {max(wanted)} are announced")
    named = [(part, device) for part in parts for device in _devices(part) if device["name"] == result["device"]]
    found = [device for part, device in named if not host or _reaches(part["spec"], device, host, node)]
    if not found:
        return f"{missing} for {host}" if named else missing
    places = {(text_attribute(one, result["driver"], ADDRESS_NAMES), text_attribute(one, result["driver"], MDEV_NAMES))
              for one in found}
    if len(places) > 1:
        return f"{result['driver']} has published device {result['device']} of pool {result['pool']} twice, at different places"
    return found[0]


def _devices(part: Object) -> Sequence[Device]:
    listed: Sequence[Device] = part["spec"].get("devices") or ()
    return listed


def _reaches(part: Mapping[str, Any], device: Device, host: str, node: Object | None) -> bool:
    """Whether a host can use a device."""
    labels = (node["metadata"].get("labels") or {}) if node is not None else None
    return node_affinity.reaches(device if part.get("perDeviceNodeSelection") else part, host, labels)


def _pool(driver: str, pool: str) -> str:
    return f"{driver}\x00{pool}"
