"""A host device as it is prepared: the functions that are bound to vfio-pci for it, or its mediated device."""

from __future__ import annotations

from dataclasses import dataclass

from outfitter.api.device import DRIVER, PCI_BUS_ID, hardware_key, hardware_of
from outfitter.api.kinds import Object
from outfitter.inventory import slices
from outfitter.inventory.assignable import AssignableDevice
from outfitter.inventory.host_devices import HostDevices
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.pci import FunctionKind

AS_IS = (FunctionKind.VENDOR_VF, FunctionKind.VDPA)  # passed through by the driver that has them


@dataclass(frozen=True, slots=True)
class PassthroughDevice:
    name: str
    address: str | None  # by which a VM gets it; None for a mediated device
    functions: tuple[str, ...] = ()  # addresses to bind: the whole IOMMU group
    uuid: str | None = None  # of a mediated device
    managed: bool = True  # False: the operator binds the functions
    numa: int | None = None
    pcie_root: str | None = None
    pci_id: str = ""  # vendor and product: "10de:20b5"; empty for a mediated device, or when unknown
    mdev_types: frozenset[str] = frozenset()  # id and name of the type of a mediated device
    hardware: frozenset[str] = frozenset()  # as bookings record it: addresses of the whole IOMMU group, or the UUID


def of(seen: HostDevices) -> dict[str, PassthroughDevice]:
    """Every device that a host offers, or only keeps until it is free, by name."""
    out = {published["name"]: _kept(published) for published in seen.kept}
    return out | {one.name: _offered(one) for one in seen.offered}


def _offered(one: AssignableDevice) -> PassthroughDevice:
    device, managed = one.device, one.entry is None or one.entry.managed
    if isinstance(device, Mdev):
        return PassthroughDevice(one.name, None, uuid=device.uuid, numa=device.numa, pcie_root=device.pcie_root,
                                 mdev_types=frozenset({device.type_id, device.type_name} - {""}),
                                 hardware=frozenset({hardware_key(device.uuid)}))
    functions = tuple(member.address for member in one.members if member.kind not in AS_IS)
    return PassthroughDevice(one.name, device.address, functions, managed=managed, numa=device.numa, pcie_root=device.pcie_root,
                             pci_id=f"{device.vendor}:{device.product}" if device.vendor and device.product else "",
                             hardware=frozenset(member.address for member in one.members) | {device.address})


def _kept(published: Object) -> PassthroughDevice:
    texts = {name: value.get("string") for name, value in (published.get("attributes") or {}).items()}
    address = texts.get(PCI_BUS_ID)
    as_is = texts.get("kind") in AS_IS or address is None
    return PassthroughDevice(published["name"], address, () if as_is else tuple(slices.members(published)) or (str(address),),
                  uuid=texts.get("mdevUUID"), pcie_root=texts.get(f"{slices.STANDARD}/pcieRoot"),
                  hardware=hardware_of(published, DRIVER))
