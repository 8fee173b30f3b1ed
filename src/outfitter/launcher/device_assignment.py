"""Host devices of a VMI as values: the requested devices of its spec, and the devices assigned to them. Used by `sources` and
`devices`."""

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
    resource: str | None  # deviceName: the resource of a device plugin; None for a claim
    claim: str | None  # the name in spec.resourceClaims
    request: str | None
    number: int | None = None  # of a flavor's device: its index among the devices of the request; None: all of them

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
    """One host device."""

    kind: Kind
    address: str  # as reported: a PCI address, the UUID of a mediated device, "bus:device" of USB
    functions: tuple[str, ...] = ()  # all PCI functions of the device, if there are more than this one
    numa: int | None = None  # None when unknown
    id: str = ""  # "driver/pool/device", where known

    @property
    def identity(self) -> tuple[str, ...]:
        """The addresses of all its functions, for comparison."""
        return tuple(sorted({address.lower() for address in (self.address, *self.functions)}))


@dataclass(frozen=True, slots=True)
class ResolvedDevices:
    """The devices of an entry, at least one, and the source that reports them."""

    ask: RequestedDevice
    devices: tuple[AssignedDevice, ...]
    source: str


class DeviceNotAssigned(StartFailed):
    """A source has no entry for a device. Another source may have one."""


def same_devices(these: Sequence[AssignedDevice], those: Sequence[AssignedDevice]) -> bool:
    """Whether two sources report the same devices. One may report only the first function of a device."""
    pairs = list(zip(*(sorted(devices, key=lambda device: device.address.lower()) for devices in (these, those)), strict=False))
    return len(these) == len(those) and all(
        one.kind == two.kind and one.address.lower() == two.address.lower()
        and (not one.functions or not two.functions or one.identity == two.identity) for one, two in pairs)


def address_parts(name: str, address: str) -> tuple[str, str, str, str]:
    """Domain, bus, slot and function of a PCI address, with the digits as written."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise StartFailed(f"failed to create PCI device for {name}: failed to parse pci address {address}: it must be "
                          "domain:bus:slot.function, such as 0000:3b:01.0")
    return match[1], match[2], match[3], match[4]


def checked(ask: RequestedDevice, device: AssignedDevice) -> AssignedDevice:
    """The device, if its address is valid; otherwise StartFailed."""
    if device.kind == "pci":
        for address in (device.address, *device.functions):
            address_parts(ask.name, address)
    if device.kind == "mdev" and _UUID.fullmatch(device.address) is None:
        raise StartFailed(f"failed to create mediated device for {ask.name}: {device.address} is not a UUID")
    if device.kind == "usb" and _USB.fullmatch(device.address) is None:
        raise StartFailed(f"failed to create USB device for {ask.name}: {device.address} is not bus:device")
    return device


def from_attributes(ask: RequestedDevice, device: Mapping[str, Any]) -> AssignedDevice | None:
    """The host device with these published attributes; None when they have no address. A mediated device may also have its
    parent's address; it is still a mediated device. A network interface is a PCI function, never mediated."""
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
