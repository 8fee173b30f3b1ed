"""The provider tree: how a host's devices are counted for those who ask in Placement's words (document 002).

A provider for each PCI device or physical function, named after host and address; virtual functions are counted on the
provider of their parent. One resource class for each provider. Pure: what is offered, what stands in the stored tree and who
holds what come in; the tree to store comes out, or every reason why the host must not start with this configuration."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from outfitter.api.providers import Inventory, Provider
from outfitter.errors import StartupRefused
from outfitter.inventory import placement_names
from outfitter.inventory.assignable import AssignableDevice
from outfitter.inventory.config import HostSettings
from outfitter.inventory.device_spec import DeviceSpecEntry
from outfitter.inventory.pci import FunctionKind, HostDevice

MANAGED = "COMPUTE_MANAGED_PCI_DEVICE"  # on every provider that we keep: others have no business here, and we none elsewhere
MIGRATABLE, ONCE, SRIOV = "HW_PCI_LIVE_MIGRATABLE", "HW_PCI_ONE_TIME_USE", "HW_NIC_SRIOV"
MARKS = {MIGRATABLE, ONCE, SRIOV}  # traits that follow from something else than a name in device_spec
PHYSNET = "CUSTOM_PHYSNET_"
MAX_NAMED = 8  # devices in one sentence
_NAMESPACE = uuid.UUID("7f0d6a0e-2d3c-5b7e-9a56-0f9d8f6a4c11")

# What a device of a physical network is counted as, by its kind, and with which of the vnic types of a port it is asked for.
NETWORK_CLASSES: Mapping[FunctionKind, str] = {
    FunctionKind.VF: "SRIOV_NET_VF",
    FunctionKind.VENDOR_VF: "SRIOV_NET_VF",
    FunctionKind.VDPA: "VDPA_NETDEV",
    FunctionKind.PF: "PCI_NETDEV",
    FunctionKind.PCI: "PCI_NETDEV",
}


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """Somebody has a device of this host."""

    device: str  # its name
    holder: str  # for a person
    virtual: bool = False  # it is a virtual function
    address: str = ""  # where it stands or stood


@dataclass(frozen=True, slots=True)
class Plan:
    """The tree to store, and what a person should know about it."""

    providers: tuple[Provider, ...]
    warnings: tuple[str, ...] = ()


def resource_class(device: HostDevice, entry: DeviceSpecEntry | None) -> str:
    """What a device is counted as."""
    if entry is not None and entry.physical_network:
        return NETWORK_CLASSES[device.kind]
    if entry is not None and entry.resource_class:
        return entry.resource_class
    return placement_names.generated_class(device.vendor or "", device.product or "")


def traits(device: HostDevice, entry: DeviceSpecEntry | None) -> frozenset[str]:
    """What can be asked of a device: the entry's own words, and what follows from its marks."""
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
    """`<host>_<address>` of the function that is a provider: a virtual function's parent, else itself."""
    address = device.parent if device.kind.is_vf and device.parent is not None else device.address
    return f"{host}_{address.upper()}"


def provider_uuid(name: str) -> str:
    """The same as long as the name is: a provider that went and came back is known again."""
    return str(uuid.uuid5(_NAMESPACE, name))


@dataclass(frozen=True, slots=True)
class _Counted:
    """A device on its provider."""

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
    orphans: Sequence[HostDevice] = (),
) -> Plan:
    """The providers of a host. `stored`: the host's tree as it stands; `held`: who has what now; `orphans`: listed virtual
    functions without a parent. StartupRefused, with every reason, when the host must not start like this."""
    ours = [provider for provider in stored if MANAGED in provider.traits]
    others = tuple(provider for provider in stored if MANAGED not in provider.traits)
    if not settings.report_in_placement:
        if ours:
            raise _refused(host, [_switched_off(ours)])
        return Plan(others)
    planner = _TreePlanner(host, settings, offered, held)
    planner.stored = {provider.name: provider for provider in ours}
    made = planner.plan(orphans)
    return Plan((*others, *made), tuple(planner.warnings))


class _TreePlanner:
    def __init__(
        self, host: str, settings: HostSettings, offered: Sequence[AssignableDevice], held: Sequence[HeldDevice]
    ) -> None:
        self.host, self.settings = host, settings
        self.stored: Mapping[str, Provider] = {}
        self.holders: dict[str, list[str]] = defaultdict(list)  # device -> who has it
        for each in held:
            self.holders[each.device].append(each.holder)
        self.virtual = {each.device for each in held if each.virtual}
        self.addresses = {each.device: each.address or each.device for each in held}
        self.counted: dict[str, list[_Counted]] = defaultdict(list)  # provider -> devices
        self.homes: dict[str, str] = {}  # device -> its provider
        self.whole: dict[str, _Counted] = {}  # address of a function that is no virtual one -> the device that it is part of
        for one in offered:
            if isinstance(one.device, HostDevice) and one.entry is not None and self._reported(one.entry):
                mine, home = _Counted(one.name, one.device, one.entry), provider_name(host, one.device)
                self.counted[home].append(mine)
                self.homes[one.name] = home
                self.whole |= {function.address: mine for function in one.members if not function.kind.is_vf}
        self.refusals: list[str] = []
        self.warnings: list[str] = []

    def _reported(self, entry: DeviceSpecEntry) -> bool:
        return self.settings.report_networks or not entry.physical_network

    def plan(self, orphans: Sequence[HostDevice]) -> list[Provider]:
        self._check_entries()
        self.refusals += [f"{device.address} is a virtual function whose parent device is not known, so there is no provider "
                          "to count it on; leave it out of device_spec, or find out why the host does not show its physfn"
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

    # -- what is wrong with the configuration itself

    def _check_entries(self) -> None:
        entries = self.settings.device_spec.entries if self.settings.device_spec is not None else ()
        for entry in entries:
            if entry.devname:
                self.refusals.append(
                    f"entry {entry.index} of device_spec, {entry.text}, chooses by devname, which may name another device "
                    "after a reboot; write the PCI address instead while report_in_placement is on")

    def _consistent(self, name: str, devices: Sequence[_Counted]) -> bool:
        """Whether the devices of one provider can be counted together; else why not is told."""
        before = len(self.refusals)
        virtual = [each for each in devices if each.device.kind.is_vf]
        if virtual and (parent := self.whole.get(virtual[0].device.parent or "")):
            self._both(parent, virtual)
        else:
            self._siblings("resource_class", virtual, {each.name: each.counted_as for each in virtual})
            self._siblings("traits", virtual, {each.name: ", ".join(sorted(each.traits)) or "none" for each in virtual})
        once = [each for each in virtual if each.entry.one_time_use is not None]
        if once:
            self.refusals.append(f"only whole devices (type-PCI) and physical functions (type-PF) may set one_time_use, and "
                                 f"{_names(once)} of provider {name} are virtual functions and do not qualify; take it out of "
                                 f"{_entries(once)}")
        return len(self.refusals) == before

    def _both(self, parent: _Counted, children: Sequence[_Counted]) -> None:
        held = [child for child in children if self.holders.get(child.name)]
        if self.holders.get(parent.name):
            advice = (f"{parent.device.address} is held by {self._who(parent.name)}, so keep it listed and take its virtual "
                      "functions out")
        elif held:
            who = ", ".join(f"{child.device.address} by {self._who(child.name)}" for child in held)
            advice = (f"virtual functions are held ({who}), so take {parent.device.address} out and keep at least these listed")
        else:
            advice = "none of them is held, so list whichever you want: the physical function, or its virtual functions"
        self.refusals.append(f"device_spec lists both the physical function {parent} and its virtual functions "
                             f"{_names(children)}, which is not supported: only one of the two can be offered; {advice}")

    def _siblings(self, what: str, devices: Sequence[_Counted], values: Mapping[str, str]) -> None:
        by_value: dict[str, list[_Counted]] = defaultdict(list)
        for each in devices:
            by_value[values[each.name]].append(each)
        if len(by_value) > 1:
            shown = "; ".join(f"{value} for {_names(group)}" for value, group in by_value.items())
            self.refusals.append(f"virtual functions of one parent cannot have different {what} values: device_spec says "
                                 f"{shown}; make {_entries(devices)} agree")

    # -- a provider and what stood there before

    def _provider(self, name: str, devices: Sequence[_Counted]) -> Provider:
        first, old = devices[0], self.stored.get(name)
        listed = {each.name for each in devices}
        wanted = Provider(
            name=name, uuid=old.uuid if old else provider_uuid(name), parent=self.host, generation=old.generation if old else 0,
            inventories={first.counted_as: Inventory(total=len(devices))}, traits=first.traits | {MANAGED},
            configured=first.traits - MARKS, devices=tuple(each.name for each in devices),
        )
        if old is None:
            return wanted
        used = self._held_of(old)
        gone = {device: who for device, who in used.items() if device not in listed}
        if used and not self._changed(old, wanted, used):
            self._not_swapped(devices, gone)
        for device, who in gone.items():
            self._warn_kept(device, who)
        class_, inventory = next(iter(wanted.inventories.items()))
        total = max(inventory.total, len(used))
        if total != inventory.total:
            self.warnings.append(f"needed to adjust inventories of {class_} on resource provider {name} from {inventory.total} "
                                 f"to {total} due to existing placement allocations ({_people(used)})")
        reserved = old.inventories[class_].reserved if class_ in old.inventories else 0
        return _next(old, replace(wanted, inventories={class_: Inventory(total=total, reserved=min(reserved, total))},
                                  devices=(*wanted.devices, *sorted(gone))))

    def _changed(self, old: Provider, wanted: Provider, used: Mapping[str, Sequence[str]]) -> bool:
        """Whether class or traits of a provider that is in use would change, which is then told."""
        before = len(self.refusals)
        for class_ in sorted(old.inventories.keys() - wanted.inventories.keys()):
            self.refusals.append(
                f"inventory of {class_} on resource provider {old.name} is in use by {_people(used)}, and device_spec now "
                f"makes it {', '.join(wanted.inventories)}; keep the class until they are gone")
        if old.configured != wanted.configured:
            self.refusals.append(
                f"the traits of resource provider {old.name} are {_words(old.configured)} and device_spec now says "
                f"{_words(wanted.configured)}, but its devices are in use by {_people(used)}; keep the traits until they are "
                "gone")
        return len(self.refusals) > before

    def _not_swapped(self, devices: Sequence[_Counted], gone: Mapping[str, Sequence[str]]) -> None:
        """A held physical function may not give way to its virtual ones under the same class, nor they to it."""
        virtual = devices[0].device.kind.is_vf
        for device, who in gone.items():
            if (device in self.virtual) != virtual:
                self.refusals.append(
                    f"{device} is in use by {', '.join(who)}, and device_spec now lists {_names(devices)} in its place; a "
                    "physical function and its virtual ones exclude each other: list it until it is free")

    def _kept(self, old: Provider, used: Mapping[str, Sequence[str]]) -> Provider:
        """Nothing of it is listed any more, but somebody has a device of it."""
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
        """The devices of a stored provider that somebody has, but for those that are counted elsewhere by now."""
        return {device: self.holders[device] for device in provider.devices
                if self.holders.get(device) and self.homes.get(device, provider.name) == provider.name}

    def _who(self, device: str) -> str:
        return ", ".join(self.holders[device])


def _next(old: Provider, new: Provider) -> Provider:
    """A provider's generation rises when something that others can see changes."""
    seen = (old.inventories, old.traits, old.parent)
    return new if seen == (new.inventories, new.traits, new.parent) else replace(new, generation=old.generation + 1)


def _switched_off(ours: Sequence[Provider]) -> str:
    names = ", ".join(provider.name for provider in ours[:4]) + (" and more" if len(ours) > 4 else "")
    return (f"report_in_placement is off, but it was enabled before and {len(ours)} providers stand in the tree ({names}); "
            "disabling it again is not supported: switch it on, or first take all devices out of device_spec and start once")


def _refused(host: str, reasons: Sequence[str]) -> StartupRefused:
    if len(reasons) == 1:
        return StartupRefused(f"host {host} does not start: {reasons[0]}", reasons)
    lines = "".join(f"\n  {reason}" for reason in reasons)
    return StartupRefused(f"host {host} does not start, for {len(reasons)} reasons:{lines}", reasons)


def _names(devices: Sequence[_Counted]) -> str:
    more = len(devices) - MAX_NAMED
    return ", ".join(str(each) for each in devices[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _entries(devices: Iterable[_Counted]) -> str:
    numbers = sorted({each.entry.index for each in devices})
    return ("entry " if len(numbers) == 1 else "entries ") + ", ".join(str(number) for number in numbers)


def _people(used: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(dict.fromkeys(who for holders in used.values() for who in holders))


def _words(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
