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
    """One entry: the devices that it selects, and their properties."""

    index: int  # its position; each mapping of a JSON list counts
    text: str  # as JSON, for messages
    resource_class: str | None = None  # as in Placement; None: generated from the device's ids
    traits: frozenset[str] = frozenset()  # as in Placement, without those that are derived
    physical_network: str | None = None
    remote_managed: bool = False
    managed: bool = True  # we bind it to vfio-pci and back; False: an administrator has bound it
    trusted: bool | None = None  # None, here and for the next two: not set
    live_migratable: bool | None = None
    one_time_use: bool | None = None
    devname: str | None = None  # selects the function with this network interface
    vendor: str | None = None  # four lower-case hex digits; None, here and for the next two: any
    product: str | None = None
    pattern: Pattern | None = None

    def has_ids(self, device: HostDevice) -> bool:
        return (self.vendor is None or self.vendor == device.vendor) and (
            self.product is None or self.product == device.product)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """All entries, in the order in which they are matched."""

    entries: tuple[DeviceSpecEntry, ...]

    def match(self, devices: Sequence[HostDevice]) -> dict[str, DeviceSpecEntry]:
        """Address -> the first entry that matches the device, for those that match. Invalid when an entry is impossible on this
        host."""
        singles = [(entry, _single_address(entry, devices)) for entry in self.entries]
        mistakes = [cause for entry, single in singles if entry.remote_managed for cause in _remote(entry, single, devices)]
        if mistakes:
            raise errors.Invalid("; ".join(f"{cause.field}: {cause.message}" for cause in mistakes), mistakes)
        matches: dict[str, DeviceSpecEntry] = {}
        for device in devices:
            parts = pci_address_spec.split(device.address)
            if parts is None:
                continue
            for entry, single in singles:
                if entry.has_ids(device) and _is_at(entry, single, device, parts) and _has_serial(entry, device):
                    matches[device.address] = entry
                    break
        return matches

    def compare(self, devices: Sequence[HostDevice]) -> dict[str, list[Comparison]]:
        """Address -> comparison of the device with each entry. For explanations; `match` is faster."""
        singles = [(entry, _single_address(entry, devices)) for entry in self.entries]
        return {device.address: [_compare(entry, single, device) for entry, single in singles] for device in devices}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The criteria of an entry for one device, as texts for people."""

    met: tuple[str, ...]
    unmet: tuple[str, ...]  # empty: the entry matches


def _compare(entry: DeviceSpecEntry, single: str | None, device: HostDevice) -> Comparison:
    parts = pci_address_spec.split(device.address)
    criteria: dict[str, bool] = {}
    if parts is None:
        criteria[f"a domain up to {pci_address_spec.MAX_DOMAIN:X}"] = False
    if entry.vendor is not None:
        criteria[f"vendor_id {entry.vendor}"] = entry.vendor == device.vendor
    if entry.product is not None:
        criteria[f"product_id {entry.product}"] = entry.product == device.product
    if entry.pattern is not None or entry.devname is not None:
        place = f"address {entry.pattern}" if entry.devname is None else f"interface {entry.devname}"
        criteria[place] = parts is not None and _is_at(entry, single, device, parts)
    if entry.remote_managed:
        criteria["a serial number (remote_managed)"] = _has_serial(entry, device)
    return Comparison(met=tuple(criterion for criterion, met in criteria.items() if met),
                      unmet=tuple(criterion for criterion, met in criteria.items() if not met))


def _single_address(entry: DeviceSpecEntry, devices: Sequence[HostDevice]) -> str | None:
    """The single address that an entry selects; None when it may select several."""
    if entry.devname is None:
        return entry.pattern.single if entry.pattern else None
    return next((device.address for device in devices if entry.devname in device.interfaces), None)


def _is_at(entry: DeviceSpecEntry, single: str | None, device: HostDevice, parts: tuple[str, ...]) -> bool:
    """Whether the device is at the entry's address, or is a VF of the PF at that address."""
    if single is not None:
        return single in (device.address, device.parent)
    return entry.devname is None and (entry.pattern is None or entry.pattern.matches(parts))


def _has_serial(entry: DeviceSpecEntry, device: HostDevice) -> bool:
    """A remote_managed device must have a serial number, by which its manager identifies it."""
    return not entry.remote_managed or bool(device.card_serial or device.serial)


def _remote(entry: DeviceSpecEntry, single: str | None, devices: Sequence[HostDevice]) -> list[errors.Cause]:
    """Mistakes of remote_managed on this host: VFs can be managed remotely, their PF cannot."""
    where = f"device_spec[{entry.index}]"
    if entry.devname is not None and single is None:
        return [errors.Cause(f"{where}.devname", f"no device has the interface {entry.devname!r}, which remote_managed needs")]
    pf = next((device for device in devices if device.address == single and device.kind is FunctionKind.PF), None)
    if pf is None:
        return []
    products = {device.product for device in devices if device.parent == single}
    if entry.vendor in (None, pf.vendor):
        if entry.product is not None and (entry.product in products or (not products and entry.product != pf.product)):
            return []
        if entry.product in (None, pf.product):
            hint = f"; give the product_id of its VFs ({', '.join(sorted(p for p in products if p))})" if products else ""
            return [errors.Cause(f"{where}.remote_managed", f"{single} is a PF, and only VFs can be managed remotely{hint}")]
    return [
        errors.Cause(
            where,
            f"the ids {entry.vendor or pci_address_spec.ANY}:{entry.product or pci_address_spec.ANY} are neither those of "
            f"the PF {single} ({pf.vendor}:{pf.product}) nor of its VFs",
        )
    ]
