"""The PCI address of a device in the guest (`pciAddress`). Admission rejects impossible addresses; the launcher rejects
conflicts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

LAST_BUS = 0xA0  # highest bus of a domain with PCIe; higher ones are kept for NUMA expander buses
HOST_BRIDGE, CHIPSET = 0x00, 0x1F  # slots of bus 0 that the machine type uses
SLOTS = 0x20
_TEXT = re.compile(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
WRITTEN = "write 0000:bus:slot.function, such as 0000:05:00.0"


class Address(NamedTuple):
    domain: int
    bus: int
    slot: int
    function: int


def parse(text: str) -> Address | None:
    match = _TEXT.fullmatch(text)
    return Address(*(int(part, 16) for part in match.groups())) if match else None


def has_pcie(spec: Mapping[str, Any]) -> bool:
    """Whether the machine type has PCI Express, whose addresses the launcher assigns."""
    kind = ((spec.get("domain") or {}).get("machine") or {}).get("type") or ""
    return spec.get("architecture") != "s390x" and (not kind or "q35" in kind or kind.startswith("virt"))


def address_error(text: str) -> str | None:
    """Why a PCIe guest cannot have a device at this address; None: it can, unless another device is there."""
    at = parse(text)
    if at is None or at.domain or at.slot >= SLOTS:
        return f"{text} is not a valid address of a guest device: {WRITTEN}"
    if at.bus == 0 and at.slot in (HOST_BRIDGE, CHIPSET):
        return f"{text} is used by the chipset: choose another slot, or slot 0 of another bus"
    if at.bus > LAST_BUS:
        return f"{text}: a guest has the buses 00 to {LAST_BUS:02x}"
    if at.slot and at.bus == 1:
        return f"{text}: bus 01 has slot 00 alone; buses from 02 on may have others"
    return None
