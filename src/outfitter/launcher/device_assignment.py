"""Nouns between the sources and the domain: what a machine asks of the host, and what it was given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outfitter.api.device import ADDRESS_NAMES, MDEV_NAMES, members, numa_node, text_attribute
from outfitter.errors import StartFailed

Kind = Literal["pci", "mdev", "usb"]
List = Literal["gpus", "hostDevices", "interfaces"]
WORDS: Mapping[List, str] = {"gpus": "GPU", "hostDevices": "HostDevice", "interfaces": "Interface"}
_ADDRESS = re.compile(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_USB = re.compile(r"([0-9]{1,3}):([0-9]{1,3})")


@dataclass(frozen=True, slots=True)
class RequestedDevice:
    """One entry of gpus[], hostDevices[] or (for a virtual function) interfaces[]."""

    list: List
    index: int
    name: str
    resource: str | None  # asked for by resource name, from a device plugin
    claim: str | None  # the name in spec.resourceClaims
    request: str | None
    number: int | None = None  # of a flavor's device: which of those that answer the request; None: all of them are its

    @property
    def path(self) -> str:
        if self.number is not None:
            return "spec.flavor"
        return f"spec.domain.devices.{self.list}[{self.index}]"

    @property
    def word(self) -> str:
        return f"{WORDS[self.list]} {self.name}"

    @property
    def by_claim(self) -> bool:
        return self.resource is None and (self.claim is not None or self.request is not None)


@dataclass(frozen=True, slots=True)
class AssignedDevice:
    """One device of the host."""

    kind: Kind
    address: str  # as it was told: a PCI address, the UUID of a mediated device, "bus:device" of USB
    functions: tuple[str, ...] = ()  # all PCI functions that travel together, if there are more than this one
    numa: int | None = None  # None when nobody says
    id: str = ""  # "driver/pool/device", where it is known

    @property
    def identity(self) -> tuple[str, ...]:
        """All that the machine would have of the host."""
        return tuple(sorted({each.lower() for each in (self.address, *self.functions)}))


@dataclass(frozen=True, slots=True)
class ResolvedDevices:
    """What an entry got, at least one device, and who says so."""

    ask: RequestedDevice
    devices: tuple[AssignedDevice, ...]
    source: str


class DeviceNotAssigned(StartFailed):
    """A source does not speak of a device. Another may."""


def same_devices(these: Sequence[AssignedDevice], those: Sequence[AssignedDevice]) -> bool:
    """Whether two sources tell of the same devices. One may know of the first function of a card alone."""
    pairs = list(zip(*(sorted(each, key=lambda given: given.address.lower()) for each in (these, those)), strict=False))
    return len(these) == len(those) and all(
        one.kind == two.kind and one.address.lower() == two.address.lower()
        and (not one.functions or not two.functions or one.identity == two.identity) for one, two in pairs)


def address_parts(name: str, address: str) -> tuple[str, str, str, str]:
    """Domain, bus, slot and function of a PCI address, with the digits as they were written."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise StartFailed(f"failed to create PCI device for {name}: failed to parse pci address {address}: it is written "
                          "domain:bus:slot.function, such as 0000:3b:01.0")
    return found[1], found[2], found[3], found[4]


def checked(ask: RequestedDevice, device: AssignedDevice) -> AssignedDevice:
    """The device, if a hypervisor could find it by what was told."""
    if device.kind == "pci":
        for address in (device.address, *device.functions):
            address_parts(ask.name, address)
    if device.kind == "mdev" and _UUID.fullmatch(device.address) is None:
        raise StartFailed(f"failed to create mediated device for {ask.name}: {device.address} is no UUID")
    if device.kind == "usb" and _USB.fullmatch(device.address) is None:
        raise StartFailed(f"failed to create USB device for {ask.name}: {device.address} is not written bus:device")
    return device


def from_attributes(ask: RequestedDevice, device: Mapping[str, Any]) -> AssignedDevice | None:
    """A device with the attributes that its driver published; None: they do not say where it is. A mediated device may also
    name its parent's address; it stays mediated. A network interface is a PCI function, never mediated."""
    driver = str(device.get("driver") or "")
    node = numa_node(device)
    name = "/".join(str(device.get(key) or "") for key in ("driver", "pool", "name"))
    uuid = text_attribute(device, driver, MDEV_NAMES)
    if uuid and ask.list != "interfaces":
        return AssignedDevice("mdev", uuid, (), node, name)
    address = text_attribute(device, driver, ADDRESS_NAMES)
    if not address:
        return None
    functions = tuple(members(device, driver))
    return AssignedDevice("pci", address, functions if len(functions) > 1 else (), node, name)
