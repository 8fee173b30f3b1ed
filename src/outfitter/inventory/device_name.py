"""Stable device names: a DNS label made of the slots from the PCIe root down to the function.

Not the PCI address, because bus numbers change when a card is added; not the serial number, which depends on the bound driver
and the kernel. The slots on the way are fixed by the hardware. Called by `scan`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from outfitter.inventory import pci

MAX_NAME = 63  # characters of a DNS label


@dataclass(frozen=True, slots=True)
class PciLocation:
    """The location of a function."""

    address: str
    path: str  # its resolved folder below /sys/devices
    parent: str | None = None  # of a VF: the address of its PF
    vf_index: int | None = None  # of a VF: its index at its PF


def names(locations: Iterable[PciLocation]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Address -> unique name; and the addresses of functions that are named by their address, because their path has no PCIe
    root or equals that of another function (which no valid tree has)."""
    known = {location.address: location for location in locations}
    pf_labels = {location.address: location_label(location.path) for location in known.values() if location.vf_index is None}
    labels = dict(pf_labels)
    for location in known.values():
        if location.vf_index is not None:
            above = pf_labels.get(location.parent or "")
            labels[location.address] = location_label(location.path) if above is None else f"{above}-vf{location.vf_index}"
    names_by_address = {address: pci.label(address) if text is None else _cut(text) for address, text in labels.items()}
    by_address = {address for address, text in labels.items() if text is None}
    while clashes := {name for name, count in Counter(names_by_address.values()).items() if count > 1}:
        # The label of an address may equal the location label of another function; then that one is named by address too.
        by_address |= {address for address, name in names_by_address.items() if name in clashes}
        names_by_address = {address: pci.label(address) if name in clashes else name
                            for address, name in names_by_address.items()}
    return names_by_address, tuple(sorted(by_address, key=pci.order))


def location_label(path: str) -> str | None:
    """The root and each slot below it: ".../pci0000:3a/0000:3a:00.0/0000:3b:00.0" -> "pci-0000-3a-00-0-00-0". None if the
    path shows no root, or no function below it."""
    parts = path.split("/")
    start = next((number for number, part in enumerate(parts) if pci.ROOT.fullmatch(part)), None)
    if start is None:
        return None
    root = parts[start][3:]
    text = "pci-" + root.replace(":", "-")
    hops = 0
    for number, part in enumerate(parts[start + 1:]):
        hop = pci.ADDRESS.fullmatch(part)
        if hop is None:
            continue  # a nested root, as behind Intel VMD
        domain, bus, slot, function = hop.groups()
        # Simulated hosts have no bridges to other buses in their paths; there the bus number is included.
        text += f"-{slot}-{function}" if number or f"{domain}:{bus}" == root else f"-{bus}-{slot}-{function}"
        hops += 1
    return text if hops else None


def _cut(text: str) -> str:
    if len(text) <= MAX_NAME:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{text[:MAX_NAME - len(digest) - 1].rstrip('-')}-{digest}"
