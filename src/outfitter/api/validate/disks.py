"""Disks of a VMI: each refers to one volume and has a supported bus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.validate import node_placement
from outfitter.errors import Cause

BUSES = ("virtio", "sata", "scsi", "usb")
DEFAULT_BUS = "sata"


def check(spec: Mapping[str, Any], root: str) -> Iterator[Cause]:
    volumes = dict.fromkeys(str(volume.get("name") or "") for volume in spec.get("volumes") or ())
    seen: dict[str, str] = {}
    for index, disk in enumerate((spec["domain"].get("devices") or {}).get("disks") or ()):
        here, name = f"{root}.domain.devices.disks[{index}]", str(disk.get("name") or "")
        if name not in volumes:
            known = ", ".join(filter(None, volumes)) or "nothing"
            yield Cause(f"{here}.name", f"{here}.name '{name}' not found: a disk has the name of its volume, and "
                                        f"{root}.volumes has {known}")
        elif seen.setdefault(name, here) != here:
            yield Cause(f"{here}.name", f"{here} and {seen[name]} must not have the same Name.")
        yield from _bus(disk, here)


def _bus(disk: Mapping[str, Any], path: str) -> Iterator[Cause]:
    for kind in ("disk", "cdrom"):
        if disk.get(kind) is None:
            continue
        bus = disk[kind].get("bus") or DEFAULT_BUS
        if bus not in BUSES:
            yield node_placement.unsupported(f"{path}.{kind}.bus", bus, BUSES)
        elif kind == "cdrom" and bus == "virtio":
            yield Cause(f"{path}.{kind}.bus", "Bus type virtio is invalid for CD-ROM device: it has no media that can be "
                                              "ejected; use sata, scsi or usb")
        elif kind == "disk" and bus == "sata" and disk[kind].get("readonly"):
            yield Cause(f"{path}.{kind}.bus", "sata hard-disks do not support read-only: use virtio, scsi or usb")
