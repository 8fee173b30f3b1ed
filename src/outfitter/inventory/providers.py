"""The provider tree of a host in Placement's model (document 002): a resource provider for each PCI device or PF, named after
host and address, with one resource class. VFs are inventory of the provider of their PF.

Pure: `plan` takes the offered devices, the stored tree and the holders, and returns the tree to store, or all reasons why the
host must not start with this configuration. Called by the host audit and `outfit config check`."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from outfitter.api.providers import Inventory, Provider
from outfitter.errors import StartupRefused
from outfitter.inventory import placement_names
from outfitter.inventory.assignable import AssignableDevice, WithheldDevice
from outfitter.inventory.config import HostSettings
from outfitter.inventory.device_spec import DeviceSpecEntry
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.pci import FunctionKind, HostDevice

MANAGED = "COMPUTE_MANAGED_PCI_DEVICE"  # on every provider that we own; providers without it belong to others
MIGRATABLE, ONCE, SRIOV = "HW_PCI_LIVE_MIGRATABLE", "HW_PCI_ONE_TIME_USE", "HW_NIC_SRIOV"
DERIVED = {MIGRATABLE, ONCE, SRIOV}  # traits that follow from other keys of device_spec
PHYSNET = "CUSTOM_PHYSNET_"
MAX_NAMED = 8  # devices named in one message
_NAMESPACE = uuid.UUID("7f0d6a0e-2d3c-5b7e-9a56-0f9d8f6a4c11")

# The resource class of a device of a physical network by its kind, and the class that each vnic type of a port requests.
NETWORK_CLASSES: Mapping[FunctionKind, str] = {
    FunctionKind.VF: "SRIOV_NET_VF",
    FunctionKind.VENDOR_VF: "SRIOV_NET_VF",
    FunctionKind.VDPA: "VDPA_NETDEV",
    FunctionKind.PF: "PCI_NETDEV",
    FunctionKind.PCI: "PCI_NETDEV",
}


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device of this host that has a holder."""

    device: str  # its name
    holder: str  # for people
    virtual: bool = False  # it is a VF
    address: str = ""  # current or last known


@dataclass(frozen=True, slots=True)
class Plan:
    """The tree to store, and warnings for people."""

    providers: tuple[Provider, ...]
    warnings: tuple[str, ...] = ()


def resource_class(device: HostDevice, entry: DeviceSpecEntry | None) -> str:
    """The resource class of a device."""
    if entry is not None and entry.physical_network:
        return NETWORK_CLASSES[device.kind]
    if entry is not None and entry.resource_class:
        return entry.resource_class
    return placement_names.generated_class(device.vendor or "", device.product or "")


def traits(device: HostDevice, entry: DeviceSpecEntry | None) -> frozenset[str]:
    """The traits of a device: those of the entry, and those derived from its other keys."""
    if entry is None:
        return frozenset()
    out = set(entry.traits)
    if entry.live_migratable:
        out.add(MIGRATABLE)
    if entry.one_time_use:
        out.add(ONCE)
    if entry.physical_network:
        out.add(PHYSNET + placement_names.normal_trait(entry.physical_network).removeprefix("CUSTOM_"))
        if device.kind is FunctionKind.PF:
            out.add(SRIOV)
    return frozenset(out)


def provider_name(host: str, device: HostDevice) -> str:
    """`<host>_<address>` of the function that is the provider: the PF of a VF, otherwise the function itself."""
    address = device.parent if device.kind.is_vf and device.parent is not None else device.address
    return f"{host}_{address.upper()}"


def provider_uuid(name: str) -> str:
    """Derived from the name: a provider that is deleted and recreated has the same UUID."""
    return str(uuid.uuid5(_NAMESPACE, name))


@dataclass(frozen=True, slots=True)
class _Counted:
    """A device in the inventory of its provider."""

    name: str  # the device's
    device: HostDevice
    entry: DeviceSpecEntry

    @property
    def counted_as(self) -> str:
        return resource_class(self.device, self.entry)

    @property
    def traits(self) -> frozenset[str]:
        return traits(self.device, self.entry)

    def __str__(self) -> str:
        return f"{self.device.address} (entry {self.entry.index})"


def plan(
    host: str,
    settings: HostSettings,
    offered: Sequence[AssignableDevice],
    stored: Sequence[Provider] = (),
    held: Sequence[HeldDevice] = (),
    *,
    withheld: Sequence[WithheldDevice] = (),
    orphans: Sequence[HostDevice] = (),
) -> Plan:
    """The providers of a host. `stored`: the current tree; `held`: devices with holders; `withheld`: devices that are not
    offered, listed or not; `orphans`: listed VFs without a PF.
    StartupRefused, with all reasons, when the host must not start with this configuration."""
    ours = [provider for provider in stored if MANAGED in provider.traits]
    others = tuple(provider for provider in stored if MANAGED not in provider.traits)
    if not settings.report_in_placement:
        if ours:
            raise _refused(host, [_switched_off(ours)])
        return Plan(others)
    planner = _TreePlanner(host, settings, offered, held)
    planner.stored = {provider.name: provider for provider in ours}
    planner.add_withheld(withheld)
    made = planner.plan(orphans)
    return Plan((*others, *made), (*planner.warnings, *_useless_aliases(settings, offered)))


def _useless_aliases(settings: HostSettings, offered: Sequence[AssignableDevice]) -> Iterator[str]:
    """A warning for each alias by ids whose devices device_spec gives another class than the one made from the ids: with
    pci_in_placement it matches none of them."""
    if not settings.pci_in_placement:
        return
    classes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for offer in offered:
        if isinstance(offer.device, HostDevice) and offer.device.vendor and offer.device.product:
            classes[offer.device.vendor, offer.device.product].add(resource_class(offer.device, offer.entry))
    for alias in settings.alias:
        ids = alias.get("vendor_id", "").lower(), alias.get("product_id", "").lower()
        asked = placement_names.generated_class(*ids)
        if ids in classes and not alias.get("resource_class", "").strip() and asked not in classes[ids]:
            yield (f"alias {alias.get('name')} matches no device with ids {':'.join(ids)}: with pci_in_placement an alias "
                   f"without resource_class asks for {asked}, and device_spec gives them {_listed(classes[ids])}; write "
                   f"resource_class: {min(classes[ids])} in the alias")


class _TreePlanner:
    def __init__(
        self, host: str, settings: HostSettings, offered: Sequence[AssignableDevice], held: Sequence[HeldDevice]
    ) -> None:
        self.host, self.settings = host, settings
        self.stored: Mapping[str, Provider] = {}
        self.holders: dict[str, list[str]] = defaultdict(list)  # device -> its holders
        for booked in held:
            self.holders[booked.device].append(booked.holder)
        self.virtual = {device.device for device in held if device.virtual}
        self.addresses = {device.device: device.address or device.device for device in held}
        self.counted: dict[str, list[_Counted]] = defaultdict(list)  # provider -> devices
        self.provider_of: dict[str, str] = {}  # device -> its provider
        self.physical: dict[str, _Counted] = {}  # address of a function that is no VF -> its device
        for device in offered:
            if isinstance(device.device, HostDevice) and device.entry is not None and self._reported(device.entry):
                counted = _Counted(device.name, device.device, device.entry)
                provider = provider_name(host, device.device)
                self.counted[provider].append(counted)
                self.provider_of[device.name] = provider
                self.physical |= {function.address: counted for function in device.members if not function.kind.is_vf}
        self.refusals: list[str] = []
        self.warnings: list[str] = []

    def add_withheld(self, withheld: Sequence[WithheldDevice]) -> None:
        """A listed PF must not be listed together with its VFs, though their being there keeps it from being offered."""
        for entry, device in ((one.entry, one.device) for one in withheld):
            if entry is None or isinstance(device, Mdev) or not self._reported(entry):
                continue
            if device.kind is FunctionKind.PF:
                self.physical.setdefault(device.address, _Counted(device.name, device, entry))

    def _reported(self, entry: DeviceSpecEntry) -> bool:
        return self.settings.report_networks or not entry.physical_network

    def plan(self, orphans: Sequence[HostDevice]) -> list[Provider]:
        self._check_entries()
        self.refusals += [f"{device.address} is a virtual function whose parent device is not known, so it belongs to no "
                          "provider; remove it from device_spec, or find out why its physfn link is missing"
                          for device in orphans]
        providers: list[Provider] = []
        for name, devices in self.counted.items():
            if self._consistent(name, devices):
                providers.append(self._provider(name, devices))
        for name, old in self.stored.items():
            if name not in self.counted and (used := self._held_of(old)):
                providers.append(self._kept(old, used))
        if self.refusals:
            raise _refused(self.host, self.refusals)
        return sorted(providers, key=lambda provider: provider.name)

    # -- mistakes of the configuration itself

    def _check_entries(self) -> None:
        entries = self.settings.device_spec.entries if self.settings.device_spec is not None else ()
        for entry in entries:
            if entry.devname:
                self.refusals.append(
                    f"entry {entry.index} of device_spec, {entry.text}, selects by devname, which may be another device "
                    "after a reboot; use the PCI address instead while report_in_placement is on")

    def _consistent(self, name: str, devices: Sequence[_Counted]) -> bool:
        """Whether the devices can belong to one provider; if not, the reasons are added to `refusals`."""
        before = len(self.refusals)
        vfs = [device for device in devices if device.device.kind.is_vf]
        if vfs and (parent := self.physical.get(vfs[0].device.parent or "")):
            self._refuse_pf_and_vfs(parent, vfs)
        else:
            self._refuse_different("resource_class", vfs, {vf.name: vf.counted_as for vf in vfs})
            self._refuse_different("traits", vfs, {vf.name: ", ".join(sorted(vf.traits)) or "none" for vf in vfs})
        once = [vf for vf in vfs if vf.entry.one_time_use is not None]
        if once:
            self.refusals.append(f"only whole devices (type-PCI) and physical functions (type-PF) may set one_time_use, and "
                                 f"{_names(once)} of provider {name} are virtual functions and do not qualify; remove it from "
                                 f"{_entries(once)}")
        return len(self.refusals) == before

    def _refuse_pf_and_vfs(self, parent: _Counted, children: Sequence[_Counted]) -> None:
        held = [child for child in children if self.holders.get(child.name)]
        if self.holders.get(parent.name):
            advice = (f"{parent.device.address} is held by {self._who(parent.name)}, so keep it listed and remove its virtual "
                      "functions")
        elif held:
            who = ", ".join(f"{child.device.address} by {self._who(child.name)}" for child in held)
            advice = (f"virtual functions are held ({who}), so remove {parent.device.address} and keep at least these listed")
        else:
            advice = "none of them is held, so list either the physical function or its virtual functions"
        self.refusals.append(f"device_spec lists both the physical function {parent} and its virtual functions "
                             f"{_names(children)}, which is not supported: only one of the two can be offered; {advice}")

    def _refuse_different(self, what: str, devices: Sequence[_Counted], values: Mapping[str, str]) -> None:
        by_value: dict[str, list[_Counted]] = defaultdict(list)
        for device in devices:
            by_value[values[device.name]].append(device)
        if len(by_value) > 1:
            shown = "; ".join(f"{value} for {_names(group)}" for value, group in by_value.items())
            self.refusals.append(f"virtual functions of one parent cannot have different {what} values: device_spec has "
                                 f"{shown}; make {_entries(devices)} agree")

    # -- a provider and its stored state

    def _provider(self, name: str, devices: Sequence[_Counted]) -> Provider:
        first, old = devices[0], self.stored.get(name)
        listed = {device.name for device in devices}
        wanted = Provider(
            name=name, uuid=old.uuid if old else provider_uuid(name), parent=self.host, generation=old.generation if old else 0,
            inventories={first.counted_as: Inventory(total=len(devices))}, traits=first.traits | {MANAGED},
            configured=first.traits - DERIVED, devices=tuple(device.name for device in devices),
        )
        if old is None:
            return wanted
        used = self._held_of(old)
        gone = {device: who for device, who in used.items() if device not in listed}
        if used and not self._refuse_change(old, wanted, used):
            self._refuse_swap(devices, gone)
        for device, who in gone.items():
            self._warn_kept(device, who)
        class_, inventory = next(iter(wanted.inventories.items()))
        total = max(inventory.total, len(used))
        if total != inventory.total:
            self.warnings.append(f"needed to adjust inventories of {class_} on resource provider {name} from {inventory.total} "
                                 f"to {total} due to existing placement allocations ({_holders(used)})")
        reserved = old.inventories[class_].reserved if class_ in old.inventories else 0
        return _next(old, replace(wanted, inventories={class_: Inventory(total=total, reserved=min(reserved, total))},
                                  devices=(*wanted.devices, *sorted(gone))))

    def _refuse_change(self, old: Provider, wanted: Provider, used: Mapping[str, Sequence[str]]) -> bool:
        """Whether class or traits of a provider in use would change; the reasons are added to `refusals`."""
        before = len(self.refusals)
        for class_ in sorted(old.inventories.keys() - wanted.inventories.keys()):
            self.refusals.append(
                f"inventory of {class_} on resource provider {old.name} is in use by {_holders(used)}, and device_spec now "
                f"gives it {', '.join(wanted.inventories)}; keep the class until they are released")
        if old.configured != wanted.configured:
            self.refusals.append(
                f"the traits of resource provider {old.name} are {_listed(old.configured)} and device_spec now says "
                f"{_listed(wanted.configured)}, but its devices are in use by {_holders(used)}; keep the traits until they are "
                "released")
        return len(self.refusals) > before

    def _refuse_swap(self, devices: Sequence[_Counted], gone: Mapping[str, Sequence[str]]) -> None:
        """A held PF must not be replaced by its VFs in the same class, nor held VFs by their PF."""
        virtual = devices[0].device.kind.is_vf
        for device, who in gone.items():
            if (device in self.virtual) != virtual:
                self.refusals.append(
                    f"{device} is in use by {', '.join(who)}, and device_spec now lists {_names(devices)} instead; a "
                    "physical function and its virtual functions exclude each other: list it until it is released")

    def _kept(self, old: Provider, used: Mapping[str, Sequence[str]]) -> Provider:
        """A provider of which no device is listed any more, but some are held."""
        for device, who in used.items():
            self._warn_kept(device, who)
        inventories = {name: Inventory(total=len(used), reserved=min(inventory.reserved, len(used)))
                       for name, inventory in old.inventories.items()}
        return _next(old, replace(old, inventories=inventories, devices=tuple(sorted(used))))

    def _warn_kept(self, device: str, who: Sequence[str]) -> None:
        self.warnings.append(f"device spec is not found for device {self.addresses[device]} ({device}): it is no longer listed "
                             f"or no longer there; the device is allocated by {', '.join(who)}, and we are keeping this device "
                             "in the placement view until it is free")

    def _held_of(self, provider: Provider) -> dict[str, list[str]]:
        """The held devices of a stored provider, except those that belong to another provider now."""
        return {device: self.holders[device] for device in provider.devices
                if self.holders.get(device) and self.provider_of.get(device, provider.name) == provider.name}

    def _who(self, device: str) -> str:
        return ", ".join(self.holders[device])


def _next(old: Provider, new: Provider) -> Provider:
    """The new provider; its generation is raised when its inventories, traits or parent change."""
    visible = (old.inventories, old.traits, old.parent)
    return new if visible == (new.inventories, new.traits, new.parent) else replace(new, generation=old.generation + 1)


def _switched_off(ours: Sequence[Provider]) -> str:
    names = ", ".join(provider.name for provider in ours[:4]) + (" and more" if len(ours) > 4 else "")
    return (f"report_in_placement is off, but it was enabled before and {len(ours)} providers are in the tree ({names}); "
            "disabling it again is not supported: switch it on, or first remove all devices from device_spec and start once")


def _refused(host: str, reasons: Sequence[str]) -> StartupRefused:
    if len(reasons) == 1:
        return StartupRefused(f"host {host} does not start: {reasons[0]}", reasons)
    lines = "".join(f"\n  {reason}" for reason in reasons)
    return StartupRefused(f"host {host} does not start, for {len(reasons)} reasons:{lines}", reasons)


def _names(devices: Sequence[_Counted]) -> str:
    more = len(devices) - MAX_NAMED
    return ", ".join(str(device) for device in devices[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _entries(devices: Iterable[_Counted]) -> str:
    numbers = sorted({device.entry.index for device in devices})
    return ("entry " if len(numbers) == 1 else "entries ") + ", ".join(str(number) for number in numbers)


def _holders(used: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(dict.fromkeys(who for holders in used.values() for who in holders))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
