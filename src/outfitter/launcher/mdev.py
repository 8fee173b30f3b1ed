"""Mediated devices in a domain, and which of a machine's GPUs are its display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.errors import StartFailed
from outfitter.launcher.device_assignment import AssignedDevice, ResolvedDevices


@dataclass(frozen=True, slots=True)
class Display:
    """Whether a GPU shows a screen, and whether it does so before the guest's driver is loaded."""

    on: bool = False
    ramfb: bool = False


NONE = Display()


def displays(gpus: Sequence[ResolvedDevices], entries: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], Display]:
    """The displays, by the index of an entry and the number of its device. `gpus` are in the order of the domain.

    If no entry says anything of a display, the first mediated device of all shows the screen. Otherwise every entry is what it
    says: on unless it is switched off, with a frame buffer unless that is. A whole card shows a screen only when it is told to
    in so many words. Of several devices that one entry got, the first does. A guest can have one frame buffer alone."""
    said = {index: (entry.get("virtualGPUOptions") or {}).get("display") for index, entry in enumerate(entries)}
    out: dict[tuple[int, int], Display] = {}
    if all(option is None for option in said.values()):
        mediated = [(gpu.ask.index, number) for gpu in gpus for number, given in enumerate(gpu.devices) if given.kind == "mdev"]
        return {mediated[0]: Display(True, True)} if mediated else {}
    for gpu in gpus:
        option = said[gpu.ask.index]
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
    """Make a device of the domain its display."""
    if display.on:
        hostdev.set("display", "on")
    if display.ramfb:
        hostdev.set("ramfb", "on")
