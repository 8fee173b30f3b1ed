"""Hosts, aliases and flavors in few words, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api.device import DRIVER, DeviceId
from outfitter.api.providers import Inventory, Provider
from outfitter.inventory.pci import FunctionKind
from outfitter.ledger.placement_view import Row
from outfitter.scheduling.nova import alias, extra_specs
from outfitter.scheduling.nova.extra_specs import FlavorRequest
from outfitter.scheduling.nova.host_state import HostState, PciDevice
from outfitter.scheduling.nova.numa_topology import NumaCell

CLASS = "CUSTOM_PCI_10DE_2235"
IDS = {"vendor_id": "10de", "product_id": "2235"}


def ask(text: str, *aliases: Mapping[str, str], placement: bool = True, vcpus: int = 1, **extra: str) -> FlavorRequest:
    """What a flavor asks for; the alias "gpu" is there if none is given. Requests are r0, r1 and so on."""
    numbers = itertools.count()
    known = alias.parse(list(aliases) or [{"name": "gpu", **IDS}], in_placement=placement)
    specs = {extra_specs.ALIAS: text, **{key.replace("__", ":"): value for key, value in extra.items()}}
    return extra_specs.read(specs, known, new_id=lambda: f"r{next(numbers)}", in_placement=placement, vcpus=vcpus)


def device(bus: int, function: int = 0, *, host: str = "oak", provider: str | None = None, **more: Any) -> PciDevice:
    address = f"0000:{bus:02x}:00.{function}"
    known = {"kind": FunctionKind.PCI, "vendor": "10de", "product": "2235", **more}
    return PciDevice(DeviceId(DRIVER, host, f"d-{bus}-{function}"), address,
                  provider=f"{host}_{bus:02X}" if provider is None else provider, **known)


def row(name: str, devices: Sequence[PciDevice], *, traits: Sequence[str] = (), resource_class: str = CLASS, reserved: int = 0,
        used: int | None = None) -> Row:
    """A provider with these devices; those that are blocked count as used, unless it is said how many are."""
    inventories = {resource_class: Inventory(total=len(devices), reserved=reserved)}
    count = sum(bool(each.blocked) for each in devices) if used is None else used
    return Row(Provider(name, f"uuid-{name}", "oak", 1, inventories, frozenset(traits), devices=tuple(
        each.id.device for each in devices)), inventories, {resource_class: count}, {})


def host(name: str, *devices: PciDevice, cells: Sequence[NumaCell] = (), **more: Any) -> HostState:
    """A host whose devices are counted where they say."""
    homes = dict.fromkeys(each.provider for each in devices if each.provider)
    rows = more.pop("rows", {home: row(home, [each for each in devices if each.provider == home]) for home in homes})
    return HostState(name, devices, rows, tuple(cells), **more)
