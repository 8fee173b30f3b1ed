"""Devices of the host in a domain: PCI functions and mediated devices that were claimed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.api import machine
from outfitter.errors import Refused

_ADDRESS = re.compile(r"(?P<domain>[0-9a-fA-F]{4}):(?P<bus>[0-9a-fA-F]{2}):(?P<slot>[0-9a-fA-F]{2})\.(?P<function>[0-7])")
ALIASES: Mapping[machine.List, str] = {"gpus": "dra-gpu", "hostDevices": "dra-hostdevice"}
WORDS: Mapping[machine.List, str] = {"gpus": "GPU", "hostDevices": "HostDevice"}
ORDER: tuple[machine.List, ...] = ("hostDevices", "gpus")


def hostdevs(instance: Mapping[str, Any]) -> Iterator[ET.Element]:
    """One element for each device that the instance got by claim, in a fixed order: host devices first, then GPUs, each in the
    order of the spec. Refused when the status does not account for every one."""
    refs = machine.device_refs(instance)
    for list_ in ORDER:
        for ref in (ref for ref in refs if ref.list == list_):
            if not ref.by_claim:
                raise Refused(f"{ref.path}: {ref.name} is asked for by deviceName, which is not supported yet: use a claim")
            yield from _claimed(instance, ref)


def sources(domain: ET.Element) -> tuple[str, ...]:
    """What a domain has of its host: addresses of PCI functions and UUIDs of mediated devices, in its order."""
    found = []
    for source in domain.iterfind("devices/*/source/address"):
        if uuid := source.get("uuid"):
            found.append(uuid)
        elif source.get("bus") is not None and source.get("type", "pci") == "pci":
            domain_, bus, slot, function = (int(source.get(part) or "0", 0) for part in ("domain", "bus", "slot", "function"))
            found.append(f"{domain_:04x}:{bus:02x}:{slot:02x}.{function:x}")
    return tuple(found)


def _claimed(instance: Mapping[str, Any], ref: machine.DeviceRef) -> Iterator[ET.Element]:
    entries = [entry for entry in machine.statuses(instance, ref.list) if entry.get("name") == ref.name]
    if not entries:
        raise Refused(f"{WORDS[ref.list]} {ref.name} is not in status.deviceStatus: the machine does not start without it")
    for number, entry in enumerate(entries):
        where = machine.address_of(entry)
        if where is None:
            raise Refused(f"{WORDS[ref.list]} {ref.name} has neither pciAddress nor mdevUUID in status.deviceStatus")
        alias = f"ua-{ALIASES[ref.list]}-{ref.name}" + (f"-{number}" if number else "")
        yield _pci(ref.name, where[1], alias) if where[0] == "pci" else _mdev(where[1], alias)


def _pci(name: str, address: str, alias: str) -> ET.Element:
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        raise Refused(f"failed to create PCI device for {name}: failed to parse pci address {address}: it is written "
                      "domain:bus:slot.function, such as 0000:3b:01.0")
    hostdev = ET.Element("hostdev", mode="subsystem", type="pci", managed="no")
    source = ET.SubElement(hostdev, "source")
    ET.SubElement(source, "address", domain=f"0x{parts['domain']}", bus=f"0x{parts['bus']}", slot=f"0x{parts['slot']}",
                  function=f"0x{parts['function']}")
    ET.SubElement(hostdev, "alias", name=alias)
    return hostdev


def _mdev(uuid: str, alias: str) -> ET.Element:
    hostdev = ET.Element("hostdev", mode="subsystem", type="mdev", model="vfio-pci")
    ET.SubElement(ET.SubElement(hostdev, "source"), "address", uuid=uuid)
    ET.SubElement(hostdev, "alias", name=alias)
    return hostdev
