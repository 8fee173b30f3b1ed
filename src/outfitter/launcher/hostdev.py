"""PCI passthrough: hostdev elements of a domain. Called by `devices`; the simplest module of a device kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from xml.etree import ElementTree as ET

from outfitter.api.hypervisor import DomainHostDevice
from outfitter.launcher.device_assignment import AssignedDevice, address_parts

CLAIMED_ALIASES = ("ua-dra-gpu-", "ua-dra-hostdevice-")  # prefixes, of devices of claims (`devices.NAMES`)


def source(name: str, address: str) -> ET.Element:
    """The source element of a PCI function, with the digits as given."""
    domain, bus, slot, function = address_parts(name, address)
    out = ET.Element("source")
    ET.SubElement(out, "address", domain=f"0x{domain}", bus=f"0x{bus}", slot=f"0x{slot}", function=f"0x{function}")
    return out


def functions(given: AssignedDevice) -> list[tuple[str, int]]:
    """The functions of a device and their function numbers in the guest: as on the host if they share a slot, otherwise
    consecutive. The function that names the device comes first."""
    if not given.functions:
        return [(given.address, 0)]
    ordered = sorted(set(given.functions), key=lambda address: (address.lower() != given.address.lower(), address.lower()))
    numbers = [int(address[-1]) for address in ordered]
    if len({address.rpartition(".")[0].lower() for address in ordered}) == 1 and 0 in numbers:
        return list(zip(ordered, numbers, strict=True))
    return [(address, number) for number, address in enumerate(ordered)]


def element(name: str, address: str, alias: str, guest: ET.Element | None) -> ET.Element:
    out = ET.Element("hostdev", type="pci", managed="no")
    out.append(source(name, address))
    ET.SubElement(out, "alias", name=alias)
    if guest is not None:
        out.append(guest)
    return out


def sources(domain: ET.Element) -> tuple[str, ...]:
    """The host devices of a domain: addresses of PCI functions and UUIDs of mediated devices, in its order."""
    return tuple(place for address in _addresses(domain) if (place := _place(address)))


def claimed(domain: ET.Element) -> tuple[DomainHostDevice, ...]:
    """The GPUs and host devices of claims that a domain has."""
    return tuple(found for device in domain.iterfind("devices/hostdev") for found in claimed_in(device))


def claimed_in(device: ET.Element) -> Iterator[DomainHostDevice]:
    """The element of a device, if it is of a claim."""
    alias, address = device.find("alias"), device.find("source/address")
    name = alias.get("name", "") if alias is not None else ""
    if name.startswith(CLAIMED_ALIASES) and address is not None and (place := _place(address)):
        yield DomainHostDevice(name, place)


def replace_sources(domain: ET.Element, others: Mapping[str, str]) -> None:
    """Exchange host devices of a domain for others; what the guest sees of them stays."""
    wanted = {place.lower(): other for place, other in others.items()}
    for address in _addresses(domain):
        if (other := wanted.get(_place(address).lower())) is None:
            continue
        if address.get("uuid"):
            address.set("uuid", other)
        else:
            address.attrib.update(source("", other)[0].attrib)


def _place(address: ET.Element) -> str:
    """The PCI address or UUID in a source; "" for another."""
    if uuid := address.get("uuid"):
        return uuid
    if address.get("bus") is None or address.get("type", "pci") != "pci":
        return ""
    domain, bus, slot, function = (int(address.get(part) or "0", 0) for part in ("domain", "bus", "slot", "function"))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


def _addresses(domain: ET.Element) -> Iterable[ET.Element]:
    for device in domain.iterfind("devices/*"):
        if device.get("type") != "usb":
            yield from device.iterfind("source/address")
