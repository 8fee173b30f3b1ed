"""Mediated devices in a domain, and which of a VM's GPUs are displays. Called by `devices`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.errors import StartFailed
from outfitter.launcher.device_assignment import AssignedDevice, ResolvedDevices


@dataclass(frozen=True, slots=True)
class Display:
    """Whether a GPU is a display, and whether it has a boot framebuffer (ramfb) until the guest's driver is loaded."""

    on: bool = False
    ramfb: bool = False


NONE = Display()


def displays(gpus: Sequence[ResolvedDevices], entries: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], Display]:
    """The displays, by the index of an entry and the number of its device. `gpus` are in the order of the domain.

    If no entry has display options, the first mediated device is the display. Otherwise the options of each entry apply: on
    unless disabled, with ramfb unless disabled. A GPU that is passed through whole is a display only when `enabled` is true. Of
    several devices of one entry the first one is the display. A guest can have one ramfb only."""
    options = {index: (entry.get("virtualGPUOptions") or {}).get("display") for index, entry in enumerate(entries)}
    out: dict[tuple[int, int], Display] = {}
    if all(option is None for option in options.values()):
        mediated = [(gpu.ask.index, number) for gpu in gpus for number, given in enumerate(gpu.devices) if given.kind == "mdev"]
        return {mediated[0]: Display(True, True)} if mediated else {}
    for gpu in gpus:
        option = options[gpu.ask.index]
        if option is None or option.get("enabled") is False:
            continue
        number = next((number for number, given in enumerate(gpu.devices)
                       if given.kind == "mdev" or option.get("enabled") is True), None)
        if number is not None:
            out[gpu.ask.index, number] = Display(True, (option.get("ramFB") or {}).get("enabled") is not False)
    if sum(display.ramfb for display in out.values()) > 1:
        raise StartFailed("spec.domain.devices.gpus: configuring multiple displays with ramfb is not valid: switch "
                          "virtualGPUOptions.display.ramFB off for all but one")
    return out


def element(given: AssignedDevice, alias: str, model: str, guest: ET.Element | None) -> ET.Element:
    out = ET.Element("hostdev", mode="subsystem", type="mdev", model=model)
    ET.SubElement(ET.SubElement(out, "source"), "address", uuid=given.address)
    ET.SubElement(out, "alias", name=alias)
    if guest is not None:
        out.append(guest)
    return out


def show(hostdev: ET.Element, display: Display) -> None:
    """Set the display attributes of a hostdev element."""
    if display.on:
        hostdev.set("display", "on")
    if display.ramfb:
        hostdev.set("ramfb", "on")
