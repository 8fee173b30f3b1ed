"""What a function is called for life: a DNS label made of the way from its PCIe root down to it.

Addresses will not do, because bus numbers move when somebody adds a card; nor will serial numbers, which come and go with
the driver that is bound and the kernel that runs. The slots that one passes on the way stay as they are soldered."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from outfitter.inventory import pci

MAX_NAME = 63  # characters of a DNS label


@dataclass(frozen=True, slots=True)
class PciLocation:
    """Where a function stands."""

    address: str
    path: str  # its folder below /sys/devices, links followed
    parent: str | None = None  # of a VF: the address of its PF
    vf_index: int | None = None  # of a VF: its number at its PF


def names(places: Iterable[PciLocation]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Address -> name, no two alike; and the addresses of functions whose ways look the same (which no sound tree has), or
    show nothing: these are named by address."""
    known = {place.address: place for place in places}
    whole = {place.address: location_label(place.path) for place in known.values() if place.vf_index is None}
    ways = dict(whole)
    for place in known.values():
        if place.vf_index is not None:
            above = whole.get(place.parent or "")
            ways[place.address] = location_label(place.path) if above is None else f"{above}-vf{place.vf_index}"
    found = {address: pci.label(address) if text is None else _cut(text) for address, text in ways.items()}
    fallen = {address for address, text in ways.items() if text is None}
    while clashes := {name for name, count in Counter(found.values()).items() if count > 1}:
        # What an address is called may be another's way; then that one goes by its address too, and so on.
        fallen |= {address for address, name in found.items() if name in clashes}
        found = {address: pci.label(address) if name in clashes else name for address, name in found.items()}
    return found, tuple(sorted(fallen, key=pci.order))


def location_label(path: str) -> str | None:
    """The root and each hop from it: ".../pci0000:3a/0000:3a:00.0/0000:3b:00.0" -> "pci-0000-3a-00-0-00-0". None if the
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
            continue  # a root in a root, as behind Intel's volume management
        domain, bus, slot, function = hop.groups()
        # The bridges to another bus are left out on simulated hosts. Then the bus tells apart what they would.
        text += f"-{slot}-{function}" if number or f"{domain}:{bus}" == root else f"-{bus}-{slot}-{function}"
        hops += 1
    return text if hops else None


def _cut(text: str) -> str:
    if len(text) <= MAX_NAME:
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{text[:MAX_NAME - len(mark) - 1].rstrip('-')}-{mark}"
