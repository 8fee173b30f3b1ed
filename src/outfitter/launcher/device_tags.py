"""Tagged devices in the guest's metadata, in the format of OpenStack's config drive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

TaggedKind = Literal["nic", "hostdev", "disk"]


@dataclass(frozen=True, slots=True)
class Tagged:
    kind: TaggedKind
    tag: str
    address: str  # on the guest's PCI bus
    mac: str | None = None
    serial: str | None = None  # of a disk
    cell: int | None = None  # the guest's NUMA node


def guest_metadata(tagged: Sequence[Tagged]) -> Sequence[Mapping[str, Any]]:
    """The list `devices` of the metadata."""
    devices = []
    for device in tagged:
        entry: dict[str, Any] = {"type": device.kind, "bus": "pci", "address": device.address, "tags": [device.tag]}
        entry |= {"mac": device.mac} if device.mac else {}
        entry |= {"serial": device.serial} if device.serial else {}
        entry |= {"numaNode": device.cell} if device.cell is not None else {}
        devices.append(entry)
    return devices
