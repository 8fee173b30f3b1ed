"""What is taken already: whole devices, shares of devices, and how much of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outfitter.api import rejection
from outfitter.api.booking import Booking
from outfitter.api.device import DeviceId
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.scheduling.dra import consumable_capacity

Allocation = Mapping[str, Any]  # a v1 AllocationResult
Occupant = Booking | Rejection | None  # what a device is taken by; None: not known


class AllocatedDevices:
    """Kept by its owner from call to call, and changed as allocations come and go: asking is cheap at any size.

    Admin access holds nothing, so its results are passed over."""

    def __init__(self, allocations: Iterable[Allocation] = ()) -> None:
        self.whole: dict[DeviceId, Occupant] = {}
        self.shares: dict[DeviceId, int] = {}  # a device that is shared -> how many have a part of it
        self.consumed: dict[DeviceId, dict[str, int]] = {}  # how much of it, in nano-units
        self.kept: dict[DeviceId, Rejection] = {}  # free, and only for requests that name them (`ClaimDeviceRequest.only`)
        for one in allocations:
            self.add(one)

    def why_taken(self, device: DeviceId) -> Rejection | None:
        """Why no other request gets a device; None if one can. Made when it is read: bookings come and go more often."""
        if device not in self.whole:
            return self.kept.get(device)
        occupant = self.whole[device]
        if isinstance(occupant, Booking):
            return rejection.held(occupant)
        return occupant if occupant is not None else Rejection(RejectionCode.HELD, device)

    def add(self, allocation: Allocation, occupant: Occupant = None) -> None:
        for result in _results(allocation):
            device = DeviceId(result["driver"], result["pool"], result["device"])
            if result.get("shareID"):
                self.shares[device] = self.shares.get(device, 0) + 1
                self.consume(device, result.get("consumedCapacity") or {})
            else:
                self.whole[device] = occupant

    def remove(self, allocation: Allocation) -> None:
        for result in _results(allocation):
            device = DeviceId(result["driver"], result["pool"], result["device"])
            if not result.get("shareID"):
                self.whole.pop(device, None)
            elif self.shares.get(device, 0) <= 1:
                self.shares.pop(device, None)
                self.consumed.pop(device, None)
            else:
                self.shares[device] -= 1
                self.consume(device, result.get("consumedCapacity") or {}, sign=-1)

    def consume(self, device: DeviceId, amounts: Mapping[str, Any], sign: int = 1) -> None:
        used = self.consumed.setdefault(device, {})
        for name, text in amounts.items():
            used[name] = used.get(name, 0) + sign * consumable_capacity.number(text, f"consumedCapacity[{name}]").nano

    def parted(self, device: DeviceId) -> bool:
        """A part of it is held."""
        return device in self.shares or device in self.consumed

    def touches(self, device: DeviceId) -> bool:
        """It is held, whole or in part."""
        return device in self.whole or self.parted(device)


def _results(allocation: Allocation) -> Iterable[Mapping[str, Any]]:
    return (one for one in (allocation.get("devices") or {}).get("results") or () if not one.get("adminAccess"))
