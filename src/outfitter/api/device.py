"""A published device's identity and the attributes by which a hypervisor finds it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

DRIVER = "pci.outfitter.dev"  # who publishes what we scan
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"

# The spellings under which drivers publish an address, best first. A PCIe root is no address, whatever others made of it.
ADDRESS_NAMES = (PCI_BUS_ID, "pciBusID", "pciAddress")
NUMA_NODE = "resource.kubernetes.io/numaNode"
MDEV_NAMES = ("resource.kubernetes.io/mdevUUID", "mdevUUID", "resource.kubernetes.io/mDevUUID", "mDevUUID")
_Slice = TypeVar("_Slice", bound=Mapping[str, Any])
_MEMBERS = re.compile(r"members([2-9]|[1-9][0-9]+)?")


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


def members(device: Mapping[str, Any], driver: str) -> list[str]:
    """The addresses of all functions of a device that is more than one: in "members", and what has no room there in "members2"
    and so on. Empty: it is one function."""
    plain = {str(key).removeprefix(f"{driver}/") for key in device.get("attributes") or {}}
    names = sorted((key for key in plain if _MEMBERS.fullmatch(key)), key=lambda key: int(key.removeprefix("members") or 1))
    texts = [text_attribute(device, driver, (name,)) or "" for name in names]
    return [address for text in texts for address in text.split(",") if address]


def numa_node(device: Mapping[str, Any]) -> int | None:
    """The NUMA node that a device is on; None when nobody says."""
    value = (device.get("attributes") or {}).get(NUMA_NODE)
    node = value.get("int") if isinstance(value, Mapping) else None
    return node if isinstance(node, int) and node >= 0 else None


def newest_pools(slices: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Slices by driver and pool, of the newest generation only, and only pools all of whose slices are there."""
    pools: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in slices:
        pools.setdefault((entry["spec"]["driver"], entry["spec"]["pool"]["name"]), []).append(entry)
    found = {name: newest(have) for name, have in pools.items()}
    return {name: have for name, have in found.items() if len(have) == (have[0]["spec"]["pool"].get("resourceSliceCount") or 1)}


def newest(slices: Iterable[_Slice]) -> list[_Slice]:
    """Of the slices of one pool those of its newest generation, in the order of their names; not necessarily all of them."""
    out: list[_Slice] = []
    for entry in slices:
        if out and _generation(out[0]) < _generation(entry):
            out.clear()
        if not out or _generation(out[0]) == _generation(entry):
            out.append(entry)
    return sorted(out, key=lambda entry: str(entry["metadata"]["name"]))


def _generation(entry: Mapping[str, Any]) -> int:
    return int(entry["spec"]["pool"].get("generation") or 0)
