"""Devices from the environment variables of the launcher's container. Called by `sources`.

A device plugin lists the devices of a resource in PCI_RESOURCE_<NAME>, MDEV_PCI_RESOURCE_<NAME> or USB_RESOURCE_<NAME>. A DRA
driver may use the same with <CLAIM>_<REQUEST> as name. Network device plugins use PCIDEVICE_<NAME>."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from outfitter.api.launcher.launcher_environment import MDEV, NETWORK, NETWORK_RESOURCE, PCI, addresses, variable_suffix
from outfitter.api.rejection import RejectionCode, carrying
from outfitter.errors import StartFailed
from outfitter.launcher.device_assignment import WORDS, AssignedDevice, DeviceNotAssigned, Kind, RequestedDevice, checked

Env = Mapping[str, str]
PREFIXES: Mapping[Kind, str] = {"pci": PCI, "mdev": MDEV, "usb": "USB_RESOURCE"}


class PluginDevices:
    """Assigns the devices of device plugins to entries, each device once, in the order of the domain. `known`: devices that the
    status assigns already."""

    def __init__(self, env: Env, asks: Sequence[RequestedDevice], known: Iterable[AssignedDevice] = ()) -> None:
        self._env = env
        self._asks = asks
        self._used: set[str] = {each for given in known for each in given.identity}

    def listed(self, ask: RequestedDevice) -> dict[Kind, tuple[str, ...]]:
        """The addresses that the environment lists for a resource, by kind of device; empty when there are none."""
        assert ask.resource is not None
        listed = {kind: addresses(self._env, prefix, ask.resource) for kind, prefix in PREFIXES.items()
                  if kind != "usb" or ask.list == "hostDevices"}
        return {kind: texts for kind, texts in listed.items() if texts}

    def take(self, ask: RequestedDevice) -> tuple[AssignedDevice, ...]:
        """StartFailed, with a code: the environment lists no device for the entry, or something that is none."""
        try:
            return self._take(ask)
        except StartFailed as error:
            raise carrying(error, RejectionCode.PLUGIN_ANSWER_INVALID) from None

    def _take(self, ask: RequestedDevice) -> tuple[AssignedDevice, ...]:
        assert ask.resource is not None
        listed = self.listed(ask)
        kinds = list(listed)
        if len(kinds) > 1:
            raise StartFailed(
                f"{self._mismatch(ask)}: "
                f"{' and '.join(PREFIXES[kind] + '_' + variable_suffix(ask.resource) for kind in kinds)} are both set"
            )
        for kind in kinds:
            units = _units(listed[kind], sum(each.resource == ask.resource for each in self._asks)) if kind == "pci" else [
                (text,) for text in listed[kind]]
            free = [unit for unit in units if not {each.lower() for each in unit} & self._used]
            if free:
                self._used |= {each.lower() for each in free[0]}
                return (checked(ask, AssignedDevice(kind, free[0][0], free[0] if len(free[0]) > 1 else ())),)
        names = " and ".join(f"{prefix}_{variable_suffix(ask.resource)}" for prefix in PREFIXES.values())
        have = f"{PREFIXES[kinds[0]]}_{variable_suffix(ask.resource)} has no more than {len(listed[kinds[0]])}" if kinds else (
            f"{names} list none")
        raise StartFailed(f"{self._mismatch(ask)}: {have}")

    def _mismatch(self, ask: RequestedDevice) -> str:
        wanted = sum(each.resource == ask.resource for each in self._asks)
        return (f"{ask.path}: failed to create {ask.word}: the number of device plugin {WORDS[ask.list]}/s do not match the "
                f"number of devices: {wanted} of {ask.resource} {'is' if wanted == 1 else 'are'} asked for")


def _units(listed: Iterable[str], wanted: int) -> list[tuple[str, ...]]:
    """The functions of each device. Where more functions are listed than requested, and they belong to exactly as many slots,
    each with function 0, a slot is one device: the audio function of a GPU goes with it, not to the next entry."""
    by_slot: dict[str, list[str]] = {}
    for address in listed:
        by_slot.setdefault(address.rpartition(".")[0].lower(), []).append(address)
    single = [(address,) for functions in by_slot.values() for address in functions]
    whole = [tuple(sorted(functions, key=str.lower)) for functions in by_slot.values()]
    if len(whole) == wanted < len(single) and all(unit[0].endswith(".0") for unit in whole):
        return whole
    return [(address,) for address in dict.fromkeys(listed)]


def claimed(ask: RequestedDevice, claims: Iterable[str], env: Env) -> tuple[AssignedDevice, ...]:
    """The devices that variables list for a claim and its request. `claims` are possible names of the claim object."""
    names = []
    for claim in claims if ask.request else ():
        for kind in ("mdev", "pci"):
            prefix = PREFIXES[kind]
            if listed := addresses(env, prefix, claim, ask.request or ""):
                return tuple(checked(ask, AssignedDevice(kind, address)) for address in listed)
            names.append(f"{prefix}_{variable_suffix(claim, ask.request or '')}")
    raise DeviceNotAssigned(f"the environment has no {' and no '.join(sorted(names))}" if names else
                 "the environment is not read, because the name of the claim is not known")


def network(ask: RequestedDevice, name: str, env: Env, taken: set[str]) -> tuple[AssignedDevice, ...]:
    """The next VF of the resource of a network."""
    resource = env.get(f"{NETWORK_RESOURCE}_{name}")
    if not resource:
        raise DeviceNotAssigned(f"the environment has no {NETWORK_RESOURCE}_{name}")
    for address in addresses(env, NETWORK, resource):
        if address.lower() not in taken:
            return (checked(ask, AssignedDevice("pci", address)),)
    raise StartFailed(f"{ask.path}: {NETWORK}_{variable_suffix(resource)} has no address left for {ask.word}")
