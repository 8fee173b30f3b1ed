"""What is taken already: whole devices, shares of devices, and how much of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from outfitter.api import rejection
from outfitter.api.device import DeviceId, are_partitions
from outfitter.api.ledger_page.booking import Booking
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.scheduling.dra import consumable_capacity
from outfitter.scheduling.dra.node_devices import NodeDevices
from outfitter.scheduling.dra.slices import PublishedDevice

Allocation = Mapping[str, Any]  # a v1 AllocationResult
Occupant = Booking | Rejection | None  # what a device is taken by; None: not known


class AllocatedDevices:
    """Kept by its owner from call to call, and changed as allocations come and go: asking is cheap at any size.

    Admin access holds nothing, so its results are passed over."""

    def __init__(self, allocations: Iterable[Allocation] = ()) -> None:
        self.whole: dict[DeviceId, Occupant] = {}
        self.shares: dict[DeviceId, int] = {}  # a device that is shared -> how many have a part of it
        self.consumed: dict[DeviceId, dict[str, int]] = {}  # how much of it, in nano-units
        self.hardware: dict[str, dict[str, list[Booking]]] = {}  # host -> PCI address or UUID -> bookings that hold it
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

    def blocked(self, site: NodeDevices) -> int:
        """The devices of a node that no other holder gets whole or in part: held ones, and all that is the hardware of a
        held one under another name."""
        mask, whole = 0, self.whole
        for index, device in enumerate(site.devices):
            if device.id in whole:
                mask |= 1 << index
        for index, others in site.twins.items():
            if self._held_here(site, index):
                mask |= others
        for key, bookings in (self.hardware.get(site.name) or {}).items():
            for index in _bits(site.hardware.get(key, 0) & ~mask):
                if any(_other_name(booking, site.devices[index]) for booking in bookings):
                    mask |= 1 << index
        return mask

    def why_blocked(self, site: NodeDevices, index: int) -> Rejection | None:
        """Why no other request gets a device of a node; None if one can."""
        device = site.devices[index]
        return self.why_taken(device.id) or self.why_hardware_held(site, index)

    def why_hardware_held(self, site: NodeDevices, index: int) -> Rejection | None:
        """What holds the hardware of a device of a node under another name; None: nothing does."""
        device, here = site.devices[index], self.hardware.get(site.name) or {}
        for key in sorted(device.hardware):
            for booking in here.get(key, ()):
                if _other_name(booking, device):
                    return rejection.hardware_held(device.id, device.hardware.intersection(booking.hardware), booking)
        for other in _bits(site.twins.get(index, 0)):
            if self._held_here(site, other):
                twin = site.devices[other]
                taken = self.why_taken(twin.id) or Rejection(RejectionCode.HELD, twin.id)
                detail = {"hardware": tuple(sorted(device.hardware & twin.hardware)), "other": str(twin.id)}
                causes = () if taken.code is RejectionCode.HELD and not taken.detail else (taken,)
                return Rejection(RejectionCode.HARDWARE_HELD, device.id, taken.holder, taken.since, detail, causes)
        return None

    def why_hardware_prepared(self, device: PublishedDevice, host: str) -> Rejection | None:
        """What has the hardware of a device prepared on a host under another name; None: nothing has."""
        here = self.hardware.get(host) or {}
        return next((rejection.hardware_held(device.id, device.hardware.intersection(booking.hardware), booking)
                     for key in sorted(device.hardware) for booking in here.get(key, ())
                     if booking.prepared and _other_name(booking, device)), None)

    def barred(self, site: NodeDevices) -> Mapping[DeviceId, Rejection]:
        """Devices of a node that are not held themselves and that no other request gets: pre-assigned ones, and those whose
        hardware is held under another name."""
        blocked = self.blocked(site) if site.twins or self.hardware.get(site.name) else 0
        found = {site.devices[index].id: why for index in _bits(blocked)
                 if (why := self.why_hardware_held(site, index)) is not None}
        return {**self.kept, **found} if found else self.kept

    def _held_here(self, site: NodeDevices, index: int) -> bool:
        """Whether a device is held on this node; what a pool without a host has given to another one is not."""
        device = site.devices[index].id
        occupant = self.whole.get(device)
        if isinstance(occupant, Booking) and occupant.node:
            return occupant.node == site.name
        return self.touches(device) and bool(site.slices[index].node)

    def hold(self, booking: Booking, page: str) -> None:
        """A booking of a page."""
        if not booking.counted:
            return
        for key in booking.hardware:
            self.hardware.setdefault(booking.node or page, {}).setdefault(key, []).append(booking)
        if booking.shared:
            self._share(booking.device, booking.amount.get("capacity") or {})
        else:
            self.whole[booking.device] = booking

    def drop(self, booking: Booking, page: str) -> None:
        """The reverse of `hold`."""
        if not booking.counted:
            return
        here = self.hardware.get(booking.node or page) or {}
        for key in booking.hardware:
            here[key].remove(booking)
            if not here[key]:
                del here[key]
        if booking.shared:
            self._return_share(booking.device, booking.amount.get("capacity") or {})
        else:
            self.whole.pop(booking.device, None)

    def add(self, allocation: Allocation, occupant: Occupant = None) -> None:
        for result in _results(allocation):
            device = DeviceId(result["driver"], result["pool"], result["device"])
            if result.get("shareID"):
                self._share(device, result.get("consumedCapacity") or {})
            else:
                self.whole[device] = occupant

    def remove(self, allocation: Allocation) -> None:
        for result in _results(allocation):
            device = DeviceId(result["driver"], result["pool"], result["device"])
            if result.get("shareID"):
                self._return_share(device, result.get("consumedCapacity") or {})
            else:
                self.whole.pop(device, None)

    def _share(self, device: DeviceId, amounts: Mapping[str, Any]) -> None:
        self.shares[device] = self.shares.get(device, 0) + 1
        self.consume(device, amounts)

    def _return_share(self, device: DeviceId, amounts: Mapping[str, Any]) -> None:
        if self.shares.get(device, 0) > 1:
            self.shares[device] -= 1
            self.consume(device, amounts, sign=-1)
        else:
            self.shares.pop(device, None)
            self.consumed.pop(device, None)

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


def _other_name(booking: Booking, device: PublishedDevice) -> bool:
    """Whether a booking of its hardware is one under another name, and not of a partition of it."""
    return booking.device != device.id and not are_partitions(
        booking.device, booking.amount.get("counters") or (), device.id, [use.set for use in device.uses])


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _results(allocation: Allocation) -> Iterable[Mapping[str, Any]]:
    return (one for one in (allocation.get("devices") or {}).get("results") or () if not one.get("adminAccess"))
