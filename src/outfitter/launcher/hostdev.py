"""PCI functions of the host in a domain."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree as ET

from outfitter.launcher.device_assignment import AssignedDevice, address_parts


def source(name: str, address: str) -> ET.Element:
    """Where a function is on the host; the digits stay as they were told."""
    domain, bus, slot, function = address_parts(name, address)
    out = ET.Element("source")
    ET.SubElement(out, "address", domain=f"0x{domain}", bus=f"0x{bus}", slot=f"0x{slot}", function=f"0x{function}")
    return out


def functions(given: AssignedDevice) -> list[tuple[str, int]]:
    """The functions of a device and the number that each has in the guest: as on the host if they are those of one card, else
    counted on. The one that the device is named after comes first."""
    if not given.functions:
        return [(given.address, 0)]
    ordered = sorted(set(given.functions), key=lambda each: (each.lower() != given.address.lower(), each.lower()))
    own = [int(each[-1]) for each in ordered]
    if len({each.rpartition(".")[0].lower() for each in ordered}) == 1 and 0 in own:
        return list(zip(ordered, own, strict=True))
    return [(each, number) for number, each in enumerate(ordered)]


def element(name: str, address: str, alias: str, guest: ET.Element | None) -> ET.Element:
    out = ET.Element("hostdev", type="pci", managed="no")
    out.append(source(name, address))
    ET.SubElement(out, "alias", name=alias)
    if guest is not None:
        out.append(guest)
    return out


def sources(domain: ET.Element) -> tuple[str, ...]:
    """What a domain has of its host: addresses of PCI functions and UUIDs of mediated devices, in its order."""
    found = []
    for told in _addresses(domain):
        if uuid := told.get("uuid"):
            found.append(uuid)
        elif told.get("bus") is not None and told.get("type", "pci") == "pci":
            domain_, bus, slot, function = (int(told.get(part) or "0", 0) for part in ("domain", "bus", "slot", "function"))
            found.append(f"{domain_:04x}:{bus:02x}:{slot:02x}.{function:x}")
    return tuple(found)


def _addresses(domain: ET.Element) -> Iterable[ET.Element]:
    for device in domain.iterfind("devices/*"):
        if device.get("type") != "usb":
            yield from device.iterfind("source/address")
