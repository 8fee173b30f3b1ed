"""A published device's identity and the two attributes by which a hypervisor finds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

DRIVER = "pci.outfitter.dev"  # who publishes what we scan
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"

# The spellings under which drivers publish an address, best first. A PCIe root is no address, whatever others made of it.
ADDRESS_NAMES = (PCI_BUS_ID, "pciBusID", "pciAddress")
MDEV_NAMES = ("resource.kubernetes.io/mdevUUID", "mdevUUID", "resource.kubernetes.io/mDevUUID", "mDevUUID")


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """Which device; the same words in slices, claims and pages."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"

    @property
    def short(self) -> str:
        """As people say it: the pool is the host."""
        return f"{self.pool}/{self.device}"


def text_attribute(device: Mapping[str, Any], driver: str, names: Iterable[str]) -> str | None:
    """The first of these attributes that the device has as text. A plain name may also stand under the driver's domain."""
    attributes = device.get("attributes") or {}
    for name in names:
        for spelling in (name, f"{driver}/{name}"):
            value = attributes.get(spelling)
            if isinstance(value, Mapping) and isinstance(value.get("string"), str) and value["string"]:
                return str(value["string"])
    return None


def newest_pools(slices: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Slices by driver and pool, of the newest generation only, and only pools all of whose slices are there."""
    pools: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in slices:
        spec = entry["spec"]
        name = (spec["driver"], spec["pool"]["name"])
        have = pools.setdefault(name, [])
        if have and _generation(have[0]) < _generation(entry):
            have.clear()
        if not have or _generation(have[0]) == _generation(entry):
            have.append(entry)
    return {
        name: sorted(have, key=lambda entry: str(entry["metadata"]["name"]))
        for name, have in pools.items()
        if len(have) == (have[0]["spec"]["pool"].get("resourceSliceCount") or 1)
    }


def _generation(entry: Mapping[str, Any]) -> int:
    return int(entry["spec"]["pool"].get("generation") or 0)
