"""A card, its functions and a GPU, and the plan that is made of them, for tests of provider trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from outfitter.api.providers import Provider
from outfitter.inventory import assignable, providers
from outfitter.inventory.config import HostSettings
from outfitter.inventory.pci import FunctionKind, HostDevice
from outfitter.inventory.providers import HeldDevice, Plan
from tests.inventory.spec_entries import parse_entries

PF, VF0, VF1, VF2, GPU = "0000:3b:00.0", "0000:3b:01.0", "0000:3b:01.1", "0000:3b:01.2", "0000:65:00.0"
CARD, SLOT = f"a_{PF.upper()}", f"a_{GPU.upper()}"  # their providers
VFS, WHOLE, GPUS = "CUSTOM_PCI_8086_1889", "CUSTOM_PCI_8086_1592", "CUSTOM_PCI_10DE_2204"
Spec = Sequence[Mapping[str, str]]
LISTED: Spec = [{"product_id": "1889"}]  # the virtual functions
BOTH: Spec = [{"product_id": "1592"}, {"product_id": "1889"}]


def function(address: str, name: str, kind: FunctionKind = FunctionKind.PCI, **fields: object) -> HostDevice:
    plain = HostDevice(address=address, kind=kind, vendor="10de", product="2204", class_code="030000", revision="a1",
                   driver="vfio-pci", parent=None, numa=0, pcie_root="pci0000:64", iommu_group=50, members=(),
                   serial=None, interfaces=(), name=name)
    return replace(plain, **fields)  # type: ignore[arg-type]


def card(vfs: int = 2, kind: FunctionKind = FunctionKind.VF) -> list[HostDevice]:
    """A network card, "nic", and its virtual functions, "nic-vf0" and so on."""
    return [function(PF, "nic", FunctionKind.PF, vendor="8086", product="1592", interfaces=("ens1f0",), iommu_group=1),
            *(function(f"0000:3b:{1 + number // 8:02x}.{number % 8}", f"nic-vf{number}", kind, vendor="8086", product="1889",
                       parent=PF, iommu_group=2 + number) for number in range(vfs))]


def gpu(address: str = GPU, name: str = "gpu", **fields: object) -> HostDevice:
    return function(address, name, **{"iommu_group": 100, **fields})  # type: ignore[arg-type]


def planned(
    devices: Sequence[HostDevice], spec: Spec, stored: Sequence[Provider] = (), held: Sequence[HeldDevice] = (), *,
    orphans: Sequence[HostDevice] = (), **switches: bool
) -> Plan:
    listed = parse_entries(spec, report=True)
    settings = HostSettings(device_spec=listed, **{"report_in_placement": True, **switches})  # type: ignore[arg-type]
    return providers.plan("a", settings, assignable.assignable(devices, spec=listed).offered, stored, held, orphans=orphans)


def vf(number: int, holder: str = "Consumer s1") -> HeldDevice:
    return HeldDevice(f"nic-vf{number}", holder, virtual=True, address=f"0000:3b:01.{number}")


NIC, ONE = HeldDevice("nic", "Consumer s9", address=PF), HeldDevice("gpu", "Consumer s1", address=GPU)
