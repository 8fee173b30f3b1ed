"""A PCI function as we speak of it: its address, its kind and what is known of it."""

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
VFIO = "vfio-pci"  # the driver that hands a function to a VM
# The kernel's other drivers that do, each for the cards of one vendor: mlx5_vfio_pci, nvgrace-gpu-vfio-pci.
VENDOR_VFIO = re.compile(r".+[-_]vfio[-_]pci")
# VFIO takes the rest of a group beside bridges from one bus to another, and beside what has a driver that does not use it.
BETWEEN_BUSES = ("0604", "0607", "0609")  # how their classes begin
HARMLESS = ("pci-stub", "pcieport")


class FunctionKind(enum.StrEnum):
    """What a function is to SR-IOV."""

    PCI = "PCI"  # an ordinary function
    PF = "PF"  # can split itself into virtual functions, whether it did or not
    VF = "VF"  # one of these
    VDPA = "VDPA"  # a VF that carries a vdpa device
    VENDOR_VF = "VENDOR_VF"  # a VF held by a driver of its vendor that hands it to a VM without rebinding

    @property
    def is_vf(self) -> bool:
        return self in (FunctionKind.VF, FunctionKind.VDPA, FunctionKind.VENDOR_VF)


@dataclass(frozen=True, slots=True)
class HostDevice:
    """One PCI function of a host, as its tree tells it."""

    address: str  # "0000:81:02.3"; moves when somebody adds a card
    kind: FunctionKind
    vendor: str | None  # "8086"; four hex digits; None, as for the next two, when the host does not tell
    product: str | None  # "1889"
    class_code: str | None  # "020000"
    revision: str | None  # "02"
    driver: str | None  # the host driver bound to it; None when none is
    parent: str | None  # of a VF: the address of its PF
    numa: int | None  # None when the firmware does not say; never -1
    pcie_root: str | None  # "pci0000:80"; None when the path does not show one
    iommu_group: int | None  # functions of one group travel together; None without an IOMMU
    members: tuple[str, ...]  # the other endpoints of its IOMMU group, by address
    serial: str | None  # of the function; a VF that has none has the one of its PF
    interfaces: tuple[str, ...]  # network interfaces that the host has on it: "ens1f0"
    name: str  # ours for life, a DNS label: see `identity`
    total_vfs: int | None = None  # of a PF: how many it could have
    num_vfs: int | None = None  # of a PF: how many are switched on
    vf_index: int | None = None  # of a VF: its number at its PF
    card_serial: str | None = None  # of the card, from its vital product data, or its PF's; network cards only
    mdev_types: tuple[MdevType, ...] = ()  # mediated devices that it can make
    speed: int | None = None  # Mbit/s of its first interface that tells one

    @property
    def is_bridge(self) -> bool:
        """Part of the host's plumbing, and no endpoint that could be given away."""
        return self.class_code is not None and self.class_code.startswith("06")

    @property
    def self_vfio(self) -> bool:
        """Its driver hands it to a VM as it is: vfio-pci, or one of its vendor's."""
        return is_vfio_driver(self.driver) or (self.driver is not None and self.kind is FunctionKind.VENDOR_VF)


def is_vfio_driver(driver: str | None) -> bool:
    """Whether a driver is one that gives its function to a machine: vfio-pci, or a vendor's variant of it."""
    return driver is not None and (driver == VFIO or VENDOR_VFIO.fullmatch(driver) is not None)


def blocks_iommu_group(class_code: str | None, driver: str | None) -> bool:
    """Whether the others of its IOMMU group cannot be given to a machine while a function of this class has this driver."""
    return (driver is not None and not is_vfio_driver(driver) and driver not in HARMLESS
            and not (class_code or "").startswith(BETWEEN_BUSES))


def order(address: str) -> tuple[int, ...]:
    """Sorts addresses by number, and what is no address behind them."""
    parts = ADDRESS.fullmatch(address)
    return tuple(int(part, 16) for part in parts.groups()) if parts else (1 << 32,)


def label(address: str) -> str:
    """The address as a DNS label: "0000:3b:01.0" -> "pci-0000-3b-01-0"."""
    return "pci-" + address.replace(":", "-").replace(".", "-")


def routing(address: str) -> tuple[str, int]:
    """Domain, and bus, slot and function as the one number that SR-IOV counts in."""
    parts = ADDRESS.fullmatch(address)
    if parts is None:
        raise ValueError(f"{address!r} is no PCI address")
    domain, bus, slot, function = parts.groups()
    return domain, int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)


def at(domain: str, routing_id: int) -> str:
    """The opposite of `routing`."""
    return f"{domain}:{routing_id >> 8:02x}:{routing_id >> 3 & 0x1F:02x}.{routing_id & 7}"
