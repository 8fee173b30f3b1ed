"""Determines the host devices of a VMI from its sources. Pure: the VMI, the launcher's environment and its files in. Called by
`domain`.

A claimed device has three sources: status.deviceStatus, device metadata files, the environment. The first that has it is used,
and every other that has it must agree. A device by resource name is in the status if the scheduler created a claim for it, and
must be in the environment if that lists its resource; a device of a plugin is in the environment only. StartFailed when the VM
would have fewer devices than requested, others, or one of them twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outfitter.api.device import DeviceId
from outfitter.api.kubevirt import device_refs, device_status, network_info, vm
from outfitter.api.kubevirt.attachment_pods import ATTACHED, HOTPLUG
from outfitter.api.kubevirt.network_info import Wire
from outfitter.api.rejection import Rejection, RejectionCode, carrying
from outfitter.errors import StartFailed
from outfitter.launcher import environment, metadata
from outfitter.launcher.device_assignment import (
    WORDS,
    AssignedDevice,
    DeviceNotAssigned,
    List,
    RequestedDevice,
    ResolvedDevices,
    checked,
    same_devices,
)
from outfitter.launcher.environment import Env
from outfitter.launcher.metadata import Files

STATUS, METADATA, ENVIRONMENT = "status.deviceStatus", "device metadata", "the environment"
NETWORK_INFO = network_info.FILE  # maps networks to PCI functions
ONE_PORT = 8  # functions of one guest port
LISTS: tuple[List, ...] = ("hostDevices", "gpus", "interfaces")  # in the order of the domain


def devices_of(instance: Mapping[str, Any], env: Env, files: Files) -> tuple[ResolvedDevices, ...]:
    """The devices of every entry of hostDevices, gpus and (for VFs) interfaces, in this order and that of the spec."""
    if (flavor := vm.flavor_name(instance)) and not vm.flavored(instance):
        raise StartFailed(f"spec.flavor: the devices of {flavor} are not in status.flavor: the VM does not start without them")
    asks = requested_devices(instance)
    known = {ask.path: given for ask in asks if ask.resource for given in _from_status_by_resource(instance, ask)}
    plugins = environment.PluginDevices(env, asks, known.values())
    out: list[ResolvedDevices] = []
    for ask in asks:
        if ask.list == "interfaces":
            taken = {each for one in out for given in one.devices for each in given.identity}
            found = _interface(instance, ask, env, files, taken)
            out += [found] if found else []
        elif ask.by_claim:
            out.append(claimed_device(instance, ask, env, files))
        elif ask.resource:
            given = known.get(ask.path)
            out.append(_checked_with_plugins(ask, given, plugins) if given
                       else ResolvedDevices(ask, plugins.take(ask), ENVIRONMENT))
        else:
            raise StartFailed(f"{ask.path}: {ask.word} names neither a deviceName nor a claim and its request")
    _check_no_others(instance, asks)
    _check_each_once(out)
    return tuple(out)


def migration_target_devices(instance: Mapping[str, Any], env: Env, files: Files) -> tuple[ResolvedDevices, ...]:
    """The devices of the target domain of a migration: those in status.migrationState.targetDeviceStatus. Without it there are
    none: the devices of the source host are detached before the migration."""
    status = instance.get("status") or {}
    target = (status.get("migrationState") or {}).get("targetDeviceStatus")
    return () if target is None else devices_of({**instance, "status": {**status, "deviceStatus": target}}, env, files)


def plugged_later(instance: Mapping[str, Any], *, arriving: bool) -> frozenset[tuple[str, str]]:
    """Devices, by list and name, that the domain is not to have when it arrives by a migration: the node agent plugs them
    afterwards, as the device status says of each that is not plugged yet."""
    status: Mapping[str, Any] = instance.get("status") or {}
    found = ((status.get("migrationState") or {}).get("targetDeviceStatus") if arriving else status.get("deviceStatus")) or {}
    return frozenset((list_, str(entry.get("name"))) for list_, field in device_status.STATUS_LISTS.items()
                     for entry in found.get(field) or ()
                     if entry.get(HOTPLUG) and entry[HOTPLUG].get("phase") != ATTACHED)


def requested_devices(instance: Mapping[str, Any]) -> list[RequestedDevice]:
    refs = [RequestedDevice(ref.list, ref.index, ref.name, ref.device_name, ref.claim, ref.request, ref.number)
            for ref in device_refs.device_refs(instance)]
    networks = _networks(instance)
    for index, interface in enumerate(_interfaces(instance)):
        if interface.get("sriov") is not None and interface.get("state") != "absent":
            claim = networks.get(interface.get("name", ""), {}).get("resourceClaim") or {}
            refs.append(RequestedDevice("interfaces", index, str(interface.get("name", "")), None, claim.get("claimName"),
                            claim.get("requestName")))
    return sorted(refs, key=lambda ask: (LISTS.index(ask.list), ask.index))


def _interfaces(instance: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (((instance.get("spec") or {}).get("domain") or {}).get("devices") or {}).get("interfaces") or ()


def _networks(instance: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each.get("name", ""): each for each in (instance.get("spec") or {}).get("networks") or ()}


def claimed_device(instance: Mapping[str, Any], ask: RequestedDevice, env: Env, files: Files) -> ResolvedDevices:
    """The devices of an entry that names a claim. StartFailed: a source has none, or they disagree."""
    listed: Sequence[Mapping[str, Any]] = (instance.get("spec") or {}).get("resourceClaims") or ()
    entry = next((each for each in listed if each.get("name") == ask.claim), {})
    if ask.number is not None:
        entry = {"name": device_refs.FLAVOR_CLAIM, "resourceClaimName": vm.flavored(instance).get("claimName")}
    names = _claim_names(instance, ask, entry)
    readers: dict[str, Callable[[], tuple[AssignedDevice, ...]]] = {
        METADATA: lambda: _own(ask, metadata.claimed(ask, entry, names[0] if names else None, files)),
        ENVIRONMENT: lambda: _own(ask, environment.claimed(ask, names, env)),
    }
    if ask.list == "interfaces":
        readers[NETWORK_INFO] = lambda: _network_info(ask, files)
    else:
        readers = {STATUS: lambda: _from_status(instance, ask), **readers}
    reported: list[tuple[str, tuple[AssignedDevice, ...]]] = []
    without: list[str] = []
    for source, read in readers.items():
        try:
            reported.append((source, read()))
        except DeviceNotAssigned as error:
            without.append(error.message)
        except StartFailed:
            if not reported:  # an earlier source is used, even if a later one is invalid
                raise
    if not reported:
        first, *rest = without
        what = "it" if ask.word in first else ask.word
        raise StartFailed(f"{first}: the VM does not start without {what} ({ask.path}; {'; '.join(rest)})")
    source, devices = reported[0]
    for other, others in reported[1:]:
        if not same_devices(devices, others):
            raise carrying(StartFailed(f"{ask.path}: {source} has {_addresses(devices)} for {ask.word}, but {other} has "
                                       f"{_addresses(others)}: the VM does not start before they agree"),
                           RejectionCode.SOURCES_DISAGREE)
    return ResolvedDevices(ask, devices, source)


def _from_status_by_resource(instance: Mapping[str, Any], ask: RequestedDevice) -> tuple[AssignedDevice, ...]:
    """The device in the status for an entry by resource name, if there is one."""
    try:
        found = _from_status(instance, ask)
    except DeviceNotAssigned:
        return ()
    if len(found) > 1:
        raise StartFailed(f"{ask.path}: {STATUS} has {len(found)} devices for {ask.word}, which requests one "
                          f"{ask.resource}")
    return found


def _checked_with_plugins(ask: RequestedDevice, given: AssignedDevice, plugins: environment.PluginDevices) -> ResolvedDevices:
    """Check the device of the status against the environment, which lists the devices of all entries of a resource, in any
    order."""
    listed = plugins.listed(ask)
    if listed and given.address.lower() not in {each.lower() for each in listed.get(given.kind) or ()}:
        others = ", ".join(address for addresses in listed.values() for address in addresses)
        raise carrying(StartFailed(f"{ask.path}: {STATUS} has {_addresses([given])} for {ask.word}, but {ENVIRONMENT} has "
                                   f"{others} for {ask.resource}: the VM does not start before they agree"),
                       RejectionCode.SOURCES_DISAGREE)
    return ResolvedDevices(ask, (given,), STATUS)


def _own(ask: RequestedDevice, devices: tuple[AssignedDevice, ...]) -> tuple[AssignedDevice, ...]:
    """The devices of a request that belong to this entry: devices of a flavor share one request."""
    if ask.number is None:
        return devices
    if len(devices) <= ask.number:
        raise DeviceNotAssigned(f"{ask.word} is not among the {len(devices)} devices for request {ask.request}")
    return devices[ask.number:ask.number + 1]


def _addresses(devices: Sequence[AssignedDevice]) -> str:
    return " and ".join("+".join(device.functions or (device.address,)) for device in devices)


def _claim_names(instance: Mapping[str, Any], ask: RequestedDevice, entry: Mapping[str, Any]) -> list[str]:
    """Possible names of the claim object, from spec and status."""
    status = instance.get("status") or {}
    found = [entry.get("resourceClaimName")]
    found += [each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or ()
              if each.get("name") == ask.claim]
    if ask.list != "interfaces":
        found += [(each.get("deviceResourceClaimStatus") or {}).get("resourceClaimName")
                  for each in device_status.statuses(instance, ask.list) if each.get("name") == ask.name]
    return list(dict.fromkeys(name for name in found if name))


def _from_status(instance: Mapping[str, Any], ask: RequestedDevice) -> tuple[AssignedDevice, ...]:
    assert ask.list != "interfaces"
    entries = [entry for entry in device_status.statuses(instance, ask.list) if entry.get("name") == ask.name]
    has_status = bool((instance.get("status") or {}).get("deviceStatus"))
    prefix = f"{_mismatch(ask.list)}: " if has_status else "no device status found: "
    if not entries:
        raise DeviceNotAssigned(f"{prefix}{ask.word} is not in {STATUS}")
    out = []
    for entry in entries:
        where = device_status.address_of(entry)
        if where is None:
            raise DeviceNotAssigned(f"{prefix}{ask.word} has neither pciAddress nor mdevUUID in {STATUS}")
        claim_status = entry.get("deviceResourceClaimStatus") or {}
        members = tuple(map(str, (claim_status.get("attributes") or {}).get("members") or ())) if where[0] == "pci" else ()
        identity = "/".join(str(claim_status.get(key) or "") for key in ("driver", "pool", "name"))
        functions = members if len(members) > 1 else ()
        out.append(checked(ask, AssignedDevice(where[0], str(where[1]), functions, _node(claim_status), identity)))
    return tuple(out)


def _node(claim_status: Mapping[str, Any]) -> int | None:
    node = (claim_status.get("attributes") or {}).get("numaNode")
    return node if isinstance(node, int) and node >= 0 else None


def _interface(
    instance: Mapping[str, Any], ask: RequestedDevice, env: Env, files: Files, taken: set[str]
) -> ResolvedDevices | None:
    """The VF of a network interface; None while it is being hotplugged into a running VM."""
    network = _networks(instance).get(ask.name)
    if network is None:
        raise StartFailed(f"{ask.path}: no entry of spec.networks is called {ask.name}")
    if network.get("resourceClaim") is not None:
        found = claimed_device(instance, ask, env, files)
        if len(found.devices) > 1 or len(found.devices[0].functions) > ONE_PORT:
            raise StartFailed(f"{ask.path}: {found.source} has {_addresses(found.devices)} for {ask.word}, but an interface is "
                              f"one device of at most {ONE_PORT} functions: request count 1")
        return found
    status = instance.get("status") or {}
    reported = any(each.get("name") == ask.name and "multus-status" in str(each.get("infoSource", ""))
                   for each in status.get("interfaces") or ())
    readers: dict[str, Callable[[], tuple[AssignedDevice, ...]]] = {
        NETWORK_INFO: lambda: _network_info(ask, files), ENVIRONMENT: lambda: environment.network(ask, ask.name, env, taken)}
    without: list[str] = []
    for source, read in readers.items():
        try:
            return ResolvedDevices(ask, read(), source)
        except DeviceNotAssigned as error:
            without.append(error.message)
    if status.get("phase") == "Running" and not reported:
        return None
    raise StartFailed(f"{ask.path}: found no SR-IOV networks to PCI-Address mapping for {ask.name}: {'; '.join(without)}")


def network_wires(files: Files) -> dict[str, Wire]:
    """How interfaces are attached, by network; empty without a valid network-info file."""
    try:
        return network_info.read(files.get(NETWORK_INFO) or "{}")
    except ValueError:
        return {}


def _network_info(ask: RequestedDevice, files: Files) -> tuple[AssignedDevice, ...]:
    text = files.get(NETWORK_INFO)
    if text is None:
        raise DeviceNotAssigned(f"there is no {NETWORK_INFO}")
    if not text.strip() and not ask.by_claim:
        raise StartFailed(f"{ask.path}: {NETWORK_INFO} is empty: no network plugin has reported a function for {ask.name} yet")
    try:
        wire = network_info.read(text or "{}").get(ask.name)
    except ValueError as error:
        raise StartFailed(f"{ask.path}: {NETWORK_INFO} cannot be read: {error}") from error
    if wire is not None and wire.type == "none":
        raise StartFailed(f"{ask.path}: {wire.why}")
    if wire is None or not wire.address:
        raise DeviceNotAssigned(f"{NETWORK_INFO} names no PCI address for {ask.name}")
    return (checked(ask, AssignedDevice("pci", wire.address)),)


def _check_no_others(instance: Mapping[str, Any], asks: Sequence[RequestedDevice]) -> None:
    """StartFailed when the status has a device that the spec does not request."""
    for list_ in device_refs.LISTS:
        names = {ask.name for ask in asks if ask.list == list_}
        for entry in device_status.statuses(instance, list_):
            if entry.get("name") not in names:
                raise StartFailed(
                    f"{STATUS}.{device_status.STATUS_LISTS[list_]}: {_mismatch(list_)}: {entry.get('name')!r} is not among "
                    f"spec.domain.devices.{list_}"
                )


def _mismatch(list_: List) -> str:
    return f"the number of DRA {WORDS[list_]}/s do not match the number of devices"


def _check_each_once(found: Sequence[ResolvedDevices]) -> None:
    """StartFailed when the VM would have a function twice; with HardwareHeld where two names of it were allocated."""
    holders: dict[str, tuple[str, AssignedDevice]] = {}
    for one in found:
        for given in one.devices:
            for address in given.identity:
                if address in holders:
                    word, other = holders[address]
                    error = StartFailed(f"{one.ask.path}: {one.ask.word} and {word} would both be {address}"
                                        if word != one.ask.word else
                                        f"{one.ask.path}: {word} would get {address} twice in {len(one.devices)} devices")
                    error.rejection = _two_names(given, other, address)
                    raise error
                holders[address] = one.ask.word, given


def _two_names(given: AssignedDevice, other: AssignedDevice, address: str) -> Rejection | None:
    """Where two devices that were allocated are one function; None for shares of one device."""
    if not given.id or not other.id or given.id == other.id:
        return None
    driver, _, rest = given.id.partition("/")
    pool, _, name = rest.rpartition("/")  # names of pools may contain slashes
    return Rejection.of(RejectionCode.HARDWARE_HELD, DeviceId(driver, pool, name), hardware=(address,), other=other.id)
