"""Devices that a running VMI has by its status and that are gone: they left the bus of its host, or their driver no longer
publishes them. Pure; called by the device status controller and by `outfit why`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outfitter.api.device import DeviceId, left_the_bus
from outfitter.api.kubevirt import device_refs, device_status, network_info
from outfitter.api.rejection import Rejection, RejectionCode

CODES = (RejectionCode.DEVICE_VANISHED, RejectionCode.DEVICE_NOT_PUBLISHED)
Published = Callable[[DeviceId], Mapping[str, Any] | None]  # the device as its pool lists it; None: it does not


@dataclass(frozen=True, slots=True)
class LostDevice:
    name: str  # in the spec of the VMI
    rejection: Rejection


def devices_of(vmi: Mapping[str, Any]) -> dict[DeviceId, str]:
    """The devices in its status -> their names in the spec. Not every writer records driver and pool: such an entry is left
    out."""
    entries = [(str(entry.get("name")), entry.get("deviceResourceClaimStatus") or {}) for list_ in device_refs.LISTS
               for entry in device_status.statuses(vmi, list_)]
    entries += network_info.interface_devices(vmi).items()
    return {DeviceId(given["driver"], given["pool"], given["name"]): name for name, given in entries
            if given.get("driver") and given.get("pool") and given.get("name")}


def lost_devices(vmi: Mapping[str, Any], published: Published) -> list[LostDevice]:
    """In the order of its status."""
    out = []
    for device, name in devices_of(vmi).items():
        found = published(device)
        if found is None:
            out.append(LostDevice(name, Rejection.of(RejectionCode.DEVICE_NOT_PUBLISHED, device)))
        elif left_the_bus(found):
            host = (vmi.get("status") or {}).get("nodeName") or device.pool
            out.append(LostDevice(name, Rejection.of(RejectionCode.DEVICE_VANISHED, device, host=host)))
    return out
