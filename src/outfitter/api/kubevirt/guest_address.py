"""Where in the guest a user wants a device (`pciAddress`). The door refuses what no machine can have, the launcher the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

LAST_BUS = 0xA0  # of a machine whose buses we lay out; those behind it are kept for NUMA nodes
HOST_BRIDGE, CHIPSET = 0x00, 0x1F  # slots of its own bus that a machine comes with
SLOTS = 0x20
_TEXT = re.compile(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
WRITTEN = "it is written 0000:bus:slot.function, such as 0000:05:00.0"


class Address(NamedTuple):
    domain: int
    bus: int
    slot: int
    function: int


def parse(text: str) -> Address | None:
    found = _TEXT.fullmatch(text)
    return Address(*(int(part, 16) for part in found.groups())) if found else None


def has_pcie(spec: Mapping[str, Any]) -> bool:
    """Whether a machine has PCI Express, whose addresses we lay out."""
    kind = ((spec.get("domain") or {}).get("machine") or {}).get("type") or ""
    return spec.get("architecture") != "s390x" and (not kind or "q35" in kind or kind.startswith("virt"))


def address_error(text: str) -> str | None:
    """Why nothing can be there in a machine whose addresses we lay out; None: it may, unless something else is."""
    at = parse(text)
    if at is None or at.domain or at.slot >= SLOTS:
        return f"{text} is no address that a guest's device can have: {WRITTEN}"
    if at.bus == 0 and at.slot in (HOST_BRIDGE, CHIPSET):
        return f"{text} is taken by the machine's chipset: choose another slot, or slot 0 of another bus"
    if at.bus > LAST_BUS:
        return f"{text}: a guest has the buses 00 to {LAST_BUS:02x}"
    if at.slot and at.bus == 1:
        return f"{text}: bus 01 has slot 00 alone; buses from 02 on may have others"
    return None
