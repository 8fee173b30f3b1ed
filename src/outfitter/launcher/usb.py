"""USB host devices in a domain. Called by `devices`."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from outfitter.launcher.device_assignment import AssignedDevice


def element(given: AssignedDevice, alias: str) -> ET.Element:
    out = ET.Element("hostdev", mode="subsystem", type="usb", managed="no")
    bus, _, device = given.address.partition(":")
    ET.SubElement(ET.SubElement(out, "source"), "address", bus=bus, device=device)
    ET.SubElement(out, "alias", name=alias)
    return out
