"""Which PCI functions of a host are assignable: the list `device_spec`, in Nova's syntax. An entry selects devices and says how
they are offered; the first entry that matches a device applies. Pure: entries and devices in, matches and comparisons out.

`device_spec_parser` reads the entries, `assignable` applies them. docs/device-spec.md documents the syntax for users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outfitter import errors
from outfitter.inventory import pci_address_spec
from outfitter.inventory.pci import FunctionKind, HostDevice
from outfitter.inventory.pci_address_spec import Pattern


@dataclass(frozen=True, slots=True)
class DeviceSpecEntry:
    """One entry: the devices it takes, and what it says of them."""

    index: int  # its place, counting each mapping of a JSON list as one
    text: str  # as JSON, for messages
    resource_class: str | None = None  # as Placement knows it; None: made from the device's ids
    traits: frozenset[str] = frozenset()  # as Placement knows them, without those that are added by themselves
    physical_network: str | None = None
    remote_managed: bool = False
    managed: bool = True  # we bind it to vfio-pci and give it back; else somebody else did
    trusted: bool | None = None  # None, as for the next two: not written
    live_migratable: bool | None = None
    one_time_use: bool | None = None
    devname: str | None = None  # the network interface whose function is meant
    vendor: str | None = None  # four hex digits in small letters; None for any, as for the next two
    product: str | None = None
    pattern: Pattern | None = None

    def has_ids(self, device: HostDevice) -> bool:
        return (self.vendor is None or self.vendor == device.vendor) and (
            self.product is None or self.product == device.product)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """All entries, in the order in which they are tried."""

    entries: tuple[DeviceSpecEntry, ...]

    def match(self, devices: Sequence[HostDevice]) -> dict[str, DeviceSpecEntry]:
        """Address -> the entry that takes the device, for those that are taken. Invalid when an entry makes no sense on
        this host."""
        meant = [(entry, _meant(entry, devices)) for entry in self.entries]
        mistakes = [cause for entry, single in meant if entry.remote_managed for cause in _remote(entry, single, devices)]
        if mistakes:
            raise errors.Invalid("; ".join(f"{cause.field}: {cause.message}" for cause in mistakes), mistakes)
        taken: dict[str, DeviceSpecEntry] = {}
        for device in devices:
            parts = pci_address_spec.split(device.address)
            if parts is None:
                continue
            for entry, single in meant:
                if entry.has_ids(device) and _is_there(entry, single, device, parts) and _is_known(entry, device):
                    taken[device.address] = entry
                    break
        return taken

    def compare(self, devices: Sequence[HostDevice]) -> dict[str, list[Comparison]]:
        """Address -> how the device compares with each entry. For explanations: `match` is the fast one."""
        meant = [(entry, _meant(entry, devices)) for entry in self.entries]
        return {device.address: [_compare(entry, single, device) for entry, single in meant] for device in devices}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What an entry wants of a device, for a person."""

    met: tuple[str, ...]
    unmet: tuple[str, ...]  # empty: it fits


def _compare(entry: DeviceSpecEntry, single: str | None, device: HostDevice) -> Comparison:
    parts = pci_address_spec.split(device.address)
    wishes: dict[str, bool] = {}
    if parts is None:
        wishes[f"a domain up to {pci_address_spec.MAX_DOMAIN:X}"] = False
    if entry.vendor is not None:
        wishes[f"vendor_id {entry.vendor}"] = entry.vendor == device.vendor
    if entry.product is not None:
        wishes[f"product_id {entry.product}"] = entry.product == device.product
    if entry.pattern is not None or entry.devname is not None:
        place = f"address {entry.pattern}" if entry.devname is None else f"interface {entry.devname}"
        wishes[place] = parts is not None and _is_there(entry, single, device, parts)
    if entry.remote_managed:
        wishes["a card with a serial number (remote_managed)"] = _is_known(entry, device)
    return Comparison(met=tuple(wish for wish, met in wishes.items() if met),
                      unmet=tuple(wish for wish, met in wishes.items() if not met))


def _meant(entry: DeviceSpecEntry, devices: Sequence[HostDevice]) -> str | None:
    """The one address that an entry speaks of, if it does so."""
    if entry.devname is None:
        return entry.pattern.single if entry.pattern else None
    return next((device.address for device in devices if entry.devname in device.interfaces), None)


def _is_there(entry: DeviceSpecEntry, single: str | None, device: HostDevice, parts: tuple[str, ...]) -> bool:
    """Whether a device is where the entry says, or is a VF of the PF that stands there."""
    if single is not None:
        return single in (device.address, device.parent)
    return entry.devname is None and (entry.pattern is None or entry.pattern.matches(parts))


def _is_known(entry: DeviceSpecEntry, device: HostDevice) -> bool:
    """A card that is managed from elsewhere is known there by its serial number."""
    return not entry.remote_managed or bool(device.card_serial or device.serial)


def _remote(entry: DeviceSpecEntry, single: str | None, devices: Sequence[HostDevice]) -> list[errors.Cause]:
    """What is wrong with remote_managed on this host: a PF is managed from here, its VFs may not be."""
    where = f"device_spec[{entry.index}]"
    if entry.devname is not None and single is None:
        return [errors.Cause(f"{where}.devname", f"no device has the interface {entry.devname!r}, which remote_managed needs")]
    card = next((device for device in devices if device.address == single and device.kind is FunctionKind.PF), None)
    if card is None:
        return []
    products = {device.product for device in devices if device.parent == single}
    if entry.vendor in (None, card.vendor):
        if entry.product is not None and (entry.product in products or (not products and entry.product != card.product)):
            return []
        if entry.product in (None, card.product):
            tip = f"; give the product_id of its VFs ({', '.join(sorted(p for p in products if p))})" if products else ""
            return [errors.Cause(f"{where}.remote_managed", f"{single} is a PF, and only VFs can be managed remotely{tip}")]
    return [
        errors.Cause(
            where,
            f"the ids {entry.vendor or pci_address_spec.ANY}:{entry.product or pci_address_spec.ANY} are neither those of "
            f"the PF {single} ({card.vendor}:{card.product}) nor of its VFs",
        )
    ]
