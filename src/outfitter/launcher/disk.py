"""Disks in a domain: files of the host, and the config drive. Called by `devices`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.api.kubevirt import cloudinit
from outfitter.errors import StartFailed

OWN_DRIVE = "config-drive"  # name of the config drive of a VM without a cloud-init volume
PREFIXES: Mapping[str, str] = {"virtio": "vd", "sata": "sd", "scsi": "sd", "usb": "sd"}
SATA_PORTS = 6  # per controller
KINDS = ("disk", "cdrom")


def listed(spec: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any], str, str]]:
    """Index, entry, kind and bus of every disk. The default is a disk on sata."""
    for index, disk in enumerate(((spec.get("domain") or {}).get("devices") or {}).get("disks") or ()):
        if disk.get("lun") is not None:
            raise StartFailed(f"{path(index)}.lun is not supported: use disk or cdrom")
        kind = next((kind for kind in KINDS if disk.get(kind) is not None), "disk")
        bus = str((disk.get(kind) or {}).get("bus") or "sata")
        if bus not in PREFIXES:
            raise StartFailed(f"{path(index)}.{kind}.bus: {bus} is not supported: use {', '.join(PREFIXES)}")
        if kind == "cdrom" and bus == "virtio":
            raise StartFailed(f"{path(index)}.cdrom.bus: virtio has no media that can be ejected: use sata, scsi or usb")
        if kind == "disk" and bus == "sata" and (disk.get(kind) or {}).get("readonly"):
            raise StartFailed(f"{path(index)}.disk.readonly: a disk on sata cannot be read-only: use virtio, scsi or usb")
        yield index, disk, kind, bus


def path(index: int) -> str:
    return f"spec.domain.devices.disks[{index}]"


def source(disk: Mapping[str, Any], index: int, spec: Mapping[str, Any], drive: str) -> str:
    """The file of a disk; `drive` is the image of the config drive. StartFailed when its volume is missing or unsupported."""
    for number, volume in enumerate(spec.get("volumes") or ()):
        if volume.get("name") != disk.get("name"):
            continue
        if volume.get("hostDisk") is not None:
            file = str(volume["hostDisk"].get("path") or "")
            if not file.startswith("/"):
                raise StartFailed(f"spec.volumes[{number}].hostDisk.path: {file!r} is not an absolute path of a host file")
            return file
        if any(volume.get(kind) is not None for kind in cloudinit.KINDS):
            return drive
        kinds = ", ".join(sorted(key for key in volume if key != "name")) or "nothing"
        raise MissingVolume(
            f"spec.volumes[{number}]: {kinds} cannot be attached: use hostDisk or {' or '.join(cloudinit.KINDS)}"
        )
    raise StartFailed(f"{path(index)}: no entry of spec.volumes is called {disk.get('name')!r}")


def unlisted_drive(spec: Mapping[str, Any]) -> str:
    """The name of the config drive, if it is not among the disks of the spec."""
    volume = cloudinit.volume(spec)
    disks = ((spec.get("domain") or {}).get("devices") or {}).get("disks") or ()
    if volume is None:
        return OWN_DRIVE
    return "" if any(disk.get("name") == volume.name for disk in disks) else volume.name


class MissingVolume(StartFailed):
    """A volume that is not supported here. A simulated VM starts without it."""


def element(disk: Mapping[str, Any], kind: str, *, target: tuple[str, str], file: str, alias: str,
            guest: ET.Element | None) -> ET.Element:
    """`target`: the disk's name and its bus."""
    out = ET.Element("disk", type="file", device=kind)
    driver = ET.SubElement(out, "driver", name="qemu", type="raw")
    for key in ("cache", "io"):
        if disk.get(key):
            driver.set(key, str(disk[key]))
    ET.SubElement(out, "source", file=file)
    ET.SubElement(out, "target", dev=target[0], bus=target[1])
    if kind == "cdrom" or (disk.get(kind) or {}).get("readonly"):
        ET.SubElement(out, "readonly")
    if disk.get("serial"):
        ET.SubElement(out, "serial").text = str(disk["serial"])
    if disk.get("bootOrder"):
        ET.SubElement(out, "boot", order=str(disk["bootOrder"]))
    ET.SubElement(out, "alias", name=alias)
    if guest is not None:
        out.append(guest)
    return out


def drive_address(bus: str, number: int) -> ET.Element | None:
    """The address of the n-th disk of a bus (from 0) on its controller; None where the hypervisor chooses it. libvirt would
    derive it from the target letters that all buses share, and add controllers, which would change the guest's bus numbers."""
    if bus not in ("sata", "scsi"):
        return None
    controller, unit = divmod(number, SATA_PORTS) if bus == "sata" else (0, number)
    return ET.Element("address", type="drive", controller=str(controller), bus="0", target="0", unit=str(unit))


class Targets:
    """Counts the disks of each bus, and of each prefix: vda, vdb, ..., vdz, vdaa."""

    def __init__(self) -> None:
        self._buses: Counter[str] = Counter()

    def next(self, bus: str) -> tuple[str, int]:
        """The name of the next disk, and its number on the bus."""
        prefix, on_bus = PREFIXES[bus], self._buses[bus]
        self._buses[bus] += 1
        number = sum(count for each, count in self._buses.items() if PREFIXES[each] == prefix)
        letters = ""
        while number:
            number, rest = divmod(number - 1, 26)
            letters = chr(ord("a") + rest) + letters
        return prefix + letters, on_bus
