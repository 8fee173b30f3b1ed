"""What the guest is told of its tagged devices, as OpenStack's config drives say it."""

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
    devices = []
    for one in tagged:
        entry: dict[str, Any] = {"type": one.kind, "bus": "pci", "address": one.address, "tags": [one.tag]}
        entry |= {"mac": one.mac} if one.mac else {}
        entry |= {"serial": one.serial} if one.serial else {}
        entry |= {"numaNode": one.cell} if one.cell is not None else {}
        devices.append(entry)
    return devices
