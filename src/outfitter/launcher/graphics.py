"""Serial console and graphics of a domain. Called by `devices`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.launcher import pci_layout
from outfitter.launcher.machine_type import MachineType


def console(devices: Mapping[str, Any], machine: MachineType) -> Iterator[ET.Element]:
    if devices.get("autoattachSerialConsole") is False:
        return
    if machine.architecture.serial:
        serial = ET.Element("serial", type="pty")
        ET.SubElement(serial, "target", type=machine.architecture.serial, port="0")
        yield serial
    out = ET.Element("console", type="pty")
    ET.SubElement(out, "target", type="serial" if machine.architecture.serial else "sclp", port="0")
    yield out


def needs_graphics(devices: Mapping[str, Any]) -> bool:
    """Whether the VM requests an emulated display."""
    return devices.get("autoattachGraphicsDevice") is True or bool((devices.get("video") or {}).get("type"))


def screen(devices: Mapping[str, Any], machine: MachineType, *, shown: bool) -> Iterator[ET.Element]:
    """VNC and the video device. `shown`: a GPU is the display, so there is no emulated video device."""
    if not shown and not needs_graphics(devices):
        return
    graphics = ET.Element("graphics", type="vnc")
    ET.SubElement(graphics, "listen", type="socket")  # no TCP port
    yield graphics
    video = ET.Element("video")
    if shown:
        ET.SubElement(video, "model", type="none")
    else:
        default = "vga" if machine.architecture.name == "x86_64" else "virtio"
        ET.SubElement(video, "model", type=(devices.get("video") or {}).get("type") or default)
        if machine.express:
            video.append(pci_layout.fixed(pci_layout.VIDEO))
    yield video
