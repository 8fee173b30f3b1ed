"""PCI functions of a host: address, kind, and what sysfs reports of each. Values only; `scan` creates them."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outfitter.inventory.mdev import MdevType

# Domain, bus, slot and function; a domain has more than four digits behind some controllers.
ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])")
ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
VFIO = "vfio-pci"  # the driver for passthrough to a VM
# Vendor variants of it in the kernel: mlx5_vfio_pci, nvgrace-gpu-vfio-pci.
VENDOR_VFIO = re.compile(r".+[-_]vfio[-_]pci")
# VFIO accepts an IOMMU group that also contains bridges of these classes, or functions with these drivers.
BETWEEN_BUSES = ("0604", "0607", "0609")  # prefixes of class codes
HARMLESS = ("pci-stub", "pcieport")


class FunctionKind(enum.StrEnum):
    """The SR-IOV kind of a function."""

    PCI = "PCI"  # an ordinary function
    PF = "PF"  # supports virtual functions, whether it has any or not
    VF = "VF"  # a virtual function
    VDPA = "VDPA"  # a VF with a vdpa device
    VENDOR_VF = "VENDOR_VF"  # a VF whose vendor driver supports passthrough without rebinding

    @property
    def is_vf(self) -> bool:
        return self in (FunctionKind.VF, FunctionKind.VDPA, FunctionKind.VENDOR_VF)


@dataclass(frozen=True, slots=True)
class HostDevice:
    """One PCI function of a host, as sysfs reports it."""

    address: str  # "0000:81:02.3"; may change when a card is added
    kind: FunctionKind
    vendor: str | None  # "8086"; four hex digits; None, here and for the next two, when unknown
    product: str | None  # "1889"
    class_code: str | None  # "020000"
    revision: str | None  # "02"
    driver: str | None  # the host driver bound to it; None when none is
    parent: str | None  # of a VF: the address of its PF
    numa: int | None  # None when the firmware does not report it; never -1
    pcie_root: str | None  # "pci0000:80"; None when the path does not show one
    iommu_group: int | None  # functions of one group are assigned together; None without an IOMMU
    members: tuple[str, ...]  # the other endpoints of its IOMMU group, by address
    serial: str | None  # of the function; of its PF for a VF without one
    interfaces: tuple[str, ...]  # its network interfaces on the host: "ens1f0"
    name: str  # stable, a DNS label: see `device_name`
    total_vfs: int | None = None  # of a PF: how many VFs it supports
    num_vfs: int | None = None  # of a PF: how many VFs it has
    vf_index: int | None = None  # of a VF: its index at its PF
    card_serial: str | None = None  # from the vital product data of the card, or of the PF; network cards only
    mdev_types: tuple[MdevType, ...] = ()  # mediated device types that it supports
    speed: int | None = None  # Mbit/s of its first interface that reports a speed

    @property
    def is_bridge(self) -> bool:
        """A bridge, not an endpoint that could be assigned."""
        return self.class_code is not None and self.class_code.startswith("06")

    @property
    def self_vfio(self) -> bool:
        """Whether its driver supports passthrough without rebinding: vfio-pci, or one of its vendor."""
        return is_vfio_driver(self.driver) or (self.driver is not None and self.kind is FunctionKind.VENDOR_VF)


def is_vfio_driver(driver: str | None) -> bool:
    """Whether a driver is vfio-pci or a vendor's variant of it."""
    return driver is not None and (driver == VFIO or VENDOR_VFIO.fullmatch(driver) is not None)


def blocks_iommu_group(class_code: str | None, driver: str | None) -> bool:
    """Whether a function of this class with this driver prevents passthrough of the others in its IOMMU group."""
    return (driver is not None and not is_vfio_driver(driver) and driver not in HARMLESS
            and not (class_code or "").startswith(BETWEEN_BUSES))


def order(address: str) -> tuple[int, ...]:
    """A sort key: addresses by number, other texts after them."""
    parts = ADDRESS.fullmatch(address)
    return tuple(int(part, 16) for part in parts.groups()) if parts else (1 << 32,)


def label(address: str) -> str:
    """The address as a DNS label: "0000:3b:01.0" -> "pci-0000-3b-01-0"."""
    return "pci-" + address.replace(":", "-").replace(".", "-")


def routing(address: str) -> tuple[str, int]:
    """Domain, and the routing id: bus, slot and function as one number, in which SR-IOV counts VFs."""
    parts = ADDRESS.fullmatch(address)
    if parts is None:
        raise ValueError(f"{address!r} is not a PCI address")
    domain, bus, slot, function = parts.groups()
    return domain, int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)


def at(domain: str, routing_id: int) -> str:
    """The address of a routing id; the inverse of `routing`."""
    return f"{domain}:{routing_id >> 8:02x}:{routing_id >> 3 & 0x1F:02x}.{routing_id & 7}"
