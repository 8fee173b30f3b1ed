"""The values of a hosts file: simulated hosts and their hardware. The sysfs tree is built on demand and not kept, and hosts
that are repeated by `count` share one `Hardware`, so that thousands of hosts need little memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from outfitter.inventory import pci
from outfitter.inventory.host_tree import MemoryTree
from outfitter.inventory.simulation import sysfs
from outfitter.inventory.simulation.driver_profile import DriverProfile

DEFAULT_PUBLISHER = "pci.outfitter.dev"

# IOMMU groups of the VFs of a PF: one for each, one for all, the PF's, or none.
Grouping = Literal["own", "shared", "parent", "none"]


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node: CPUs and their local memory."""

    id: int
    cpus: str  # a CPU list: "0-7,16-23"
    memory: int  # bytes
    socket: int  # the CPU package of the node
    distances: tuple[int, ...] = ()  # to each node of the host, by number; (): not reported


@dataclass(frozen=True, slots=True)
class VirtualFunctions:
    """The VFs of a PF."""

    count: int  # current VFs (sriov_numvfs)
    total: int  # supported VFs (sriov_totalvfs)
    product: str
    drivers: tuple[str | None, ...]  # one for each VF
    offset: int  # from the PF's routing id to the first VF's
    stride: int  # from one VF's to the next
    iommu_groups: Grouping
    interfaces: tuple[str | None, ...]  # one for each VF


@dataclass(frozen=True, slots=True)
class SimulatedMdevType:
    """A mediated device type of a function."""

    id: str  # "nvidia-232"
    name: str
    description: str
    device_api: str
    available: int  # how many more can be created
    instances: tuple[str, ...]  # UUIDs of existing ones


@dataclass(frozen=True, slots=True)
class PciFunction:
    """A listed function; its VFs are described by `vfs`, not listed."""

    address: str
    vendor: str
    product: str
    class_code: str
    revision: str
    driver: str | None
    numa: int | None
    pcie_root: str
    iommu_group: int | Literal["own", "none"]
    serial: str | None
    interface: str | None
    vfs: VirtualFunctions | None
    mdev_types: tuple[SimulatedMdevType, ...]
    profile: DriverProfile | None = None  # how it is published; None: as it is

    def vf_addresses(self) -> Iterator[str]:
        if self.vfs is not None:
            domain, start = pci.routing(self.address)
            for index in range(self.vfs.count):
                yield pci.at(domain, start + self.vfs.offset + index * self.vfs.stride)


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface of the host. If a PCI function has an interface of that name, it is that one."""

    name: str
    mac: str | None  # None: derived from the names
    bridge: str | None
    speed: int | None  # Mbit/s
    physical_network: str | None


@dataclass(frozen=True, slots=True)
class Bridge:
    """A bridge that interfaces of VMs can be attached to."""

    name: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware of a host; shared by hosts repeated by `count`."""

    cpus: int
    memory: int  # bytes
    numa: tuple[NumaNode, ...]
    pci: tuple[PciFunction, ...]
    nics: tuple[Nic, ...]
    bridges: tuple[Bridge, ...]


@dataclass(frozen=True, slots=True)
class SimulatedHost:
    """One host of the hosts file."""

    name: str
    publisher: str  # the DRA driver of its ResourceSlices
    label_pairs: tuple[tuple[str, str], ...]
    hardware: Hardware
    repeat: int | None = None  # its index among hosts repeated by `count`; None without `count`

    @property
    def labels(self) -> dict[str, str]:
        """Labels for its Node object."""
        return dict(self.label_pairs)

    @property
    def driver_profiles(self) -> dict[str, DriverProfile]:
        """Address -> driver profile of that function."""
        return {function.address: function.profile for function in self.hardware.pci if function.profile is not None}

    def capacity(self) -> dict[str, str]:
        """Capacity of its Node object, as Kubernetes quantities."""
        return {"cpu": str(self.hardware.cpus), "memory": quantity(self.hardware.memory)}

    def tree(self) -> MemoryTree:
        """Its sysfs tree, built at each call."""
        return sysfs.build(self)

    def serial(self, function: PciFunction) -> str | None:
        """The serial number of a function; on repeated hosts with the index of the host, as for MACs and mdev UUIDs."""
        if function.serial is None or self.repeat is None:
            return function.serial
        return f"{function.serial}-{self.repeat}"

    def mac(self, nic: Nic) -> str:
        if nic.mac is None:
            number = uuid.uuid5(uuid.NAMESPACE_DNS, f"{nic.name}.{self.name}").int & 0xFFFFFFFFFF | 0x02 << 40
        else:
            number = int(nic.mac.replace(":", ""), 16)
            number = number & ~0xFFFFFF | (number + (self.repeat or 0)) & 0xFFFFFF
        return ":".join(f"{number:012x}"[at:at + 2] for at in range(0, 12, 2))

    def mdev(self, instance: str) -> str:
        return instance if self.repeat is None else str(uuid.uuid5(uuid.UUID(instance), self.name))


def quantity(amount: int) -> str:
    """Bytes as a Kubernetes quantity, in the largest unit that divides it."""
    for suffix, unit in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if amount and amount % unit == 0:
            return f"{amount // unit}{suffix}"
    return str(amount)
