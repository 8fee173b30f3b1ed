"""What the guest is told of its tagged devices: the document `openstack/latest/meta_data.json` of a config drive."""

from __future__ import annotations

import json
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


def document(meta: Mapping[str, Any], spec: Mapping[str, Any], tagged: Sequence[Tagged]) -> str:
    """The document as text; the same for the same machine."""
    devices = []
    for one in tagged:
        told: dict[str, Any] = {"type": one.kind, "bus": "pci", "address": one.address, "tags": [one.tag]}
        told |= {"mac": one.mac} if one.mac else {}
        told |= {"serial": one.serial} if one.serial else {}
        told |= {"numaNode": one.cell} if one.cell is not None else {}
        devices.append(told)
    name = spec.get("hostname") or meta["name"]
    return json.dumps({"uuid": meta["uid"], "instance_id": f"{meta['name']}.{meta['namespace']}", "hostname": name,
                       "devices": devices}, indent=2) + "\n"
