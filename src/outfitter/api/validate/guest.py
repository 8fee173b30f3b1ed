"""Host name, eviction strategy, firmware UUID, boot order, guest PCI addresses and ports of a VMI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.kubevirt import guest_address
from outfitter.api.validate import names, node_placement
from outfitter.errors import Cause

EVICTIONS = ("None", "LiveMigrate", "LiveMigrateIfPossible", "External")
THREADS = ("shared", "auto", "supplementalPool")
PROTOCOLS = ("TCP", "UDP")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def check(spec: Mapping[str, Any], root: str) -> Iterator[Cause]:
    domain = spec["domain"]
    devices = domain.get("devices") or {}
    if spec.get("hostname"):
        yield from names.label(spec["hostname"], f"{root}.hostname")
    for value, field, among in ((spec.get("evictionStrategy"), "evictionStrategy", EVICTIONS),
                                (domain.get("ioThreadsPolicy"), "domain.ioThreadsPolicy", THREADS)):
        if value and value not in among:
            yield node_placement.unsupported(f"{root}.{field}", value, among)
    uuid = (domain.get("firmware") or {}).get("uuid")
    if uuid and not _UUID.fullmatch(uuid):
        yield Cause(f"{root}.domain.firmware.uuid", f'Invalid value: "{uuid}": must be a UUID such as '
                                                    "5d307ca9-b3ef-428c-8861-06e72d69f223")
    yield from _order(devices, f"{root}.domain.devices")
    yield from _addresses(spec, f"{root}.domain.devices")
    for index, interface in enumerate(devices.get("interfaces") or ()):
        for number, port in enumerate(interface.get("ports") or ()):
            yield from _port(port, f"{root}.domain.devices.interfaces[{index}].ports[{number}]")


def _addresses(spec: Mapping[str, Any], root: str) -> Iterator[Cause]:
    """PCI addresses in the guest."""
    devices = spec["domain"].get("devices") or {}
    given = [(f"{list_}[{index}].pciAddress", entry.get("pciAddress")) for list_ in ("interfaces", "gpus", "hostDevices")
             for index, entry in enumerate(devices.get(list_) or ())]
    given += [(f"disks[{index}].disk.pciAddress", (disk.get("disk") or {}).get("pciAddress"))
              for index, disk in enumerate(devices.get("disks") or ())]
    for field, address in given:
        if not address:
            continue
        if guest_address.parse(address) is None:
            yield Cause(f"{root}.{field}", f'Invalid value: "{address}": malformed PCI address; write for example 0000:81:01.0')
        elif guest_address.has_pcie(spec) and (why := guest_address.address_error(address)):
            yield Cause(f"{root}.{field}", f"Invalid value: {why}")


def _order(devices: Mapping[str, Any], root: str) -> Iterator[Cause]:
    """bootOrder must be positive and unique."""
    first: dict[int, str] = {}
    for list_ in ("disks", "interfaces"):
        for index, device in enumerate(devices.get(list_) or ()):
            here, order = f"{root}.{list_}[{index}].bootOrder", device.get("bootOrder")
            if order is not None and order < 1:
                yield Cause(here, f"Invalid value: {order}: must be greater than zero")
            elif order is not None and first.setdefault(order, here) != here:
                yield Cause(here, f"Duplicate value: {order}: {first[order]} has it already", "FieldValueDuplicate")


def _port(port: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if port.get("port") is None:
        yield Cause(f"{path}.port", "Required value: a number from 1 to 65535", "FieldValueRequired")
    elif not 1 <= port["port"] <= 65535:
        yield Cause(f"{path}.port", f"Invalid value: {port['port']}: must be a number from 1 to 65535")
    if port.get("protocol") and port["protocol"] not in PROTOCOLS:
        yield node_placement.unsupported(f"{path}.protocol", port["protocol"], PROTOCOLS)
