"""Which devices a machine got, and who says so. Pure: the instance, the launcher's environment and its files in.

A device that was claimed is looked for in three places: status.deviceStatus, device metadata files, the environment. The first
that speaks of it is believed, and every other that does must say the same. A device by resource name is in the status where the
scheduler made a claim for it, and must be in the environment if that speaks of its resource; one of a plugin is in the
environment alone. A machine that would start with fewer devices than it asks for, with others or with one of them twice is
refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outfitter.api.kubevirt import device_refs, device_status, network_info, vm
from outfitter.api.kubevirt.network_info import Wire
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
NETWORK_INFO = network_info.FILE  # which function was given to which network
ONE_PORT = 8  # functions that a port of the guest takes
LISTS: tuple[List, ...] = ("hostDevices", "gpus", "interfaces")  # in the order of the domain


def devices_of(instance: Mapping[str, Any], env: Env, files: Files) -> tuple[ResolvedDevices, ...]:
    """What every entry of hostDevices, gpus and (for virtual functions) interfaces got, in this order and that of the spec."""
    if (flavor := vm.flavor_name(instance)) and not vm.flavored(instance):
        raise StartFailed(f"spec.flavor: the devices of {flavor} are not in status.flavor: the VM does not start without them")
    asks = requested_devices(instance)
    known = {ask.path: given for ask in asks if ask.resource for given in _named(instance, ask)}
    plugins = environment.PluginDevices(env, asks, known.values())
    out: list[ResolvedDevices] = []
    for ask in asks:
        if ask.list == "interfaces":
            taken = {each for one in out for given in one.devices for each in given.identity}
            found = _interface(instance, ask, env, files, taken)
            out += [found] if found else []
        elif ask.by_claim:
            out.append(_claimed(instance, ask, env, files))
        elif ask.resource:
            given = known.get(ask.path)
            out.append(_confirmed(ask, given, plugins) if given else ResolvedDevices(ask, plugins.take(ask), ENVIRONMENT))
        else:
            raise StartFailed(f"{ask.path}: {ask.word} names neither a deviceName nor a claim and its request")
    _nothing_else(instance, asks)
    _each_once(out)
    return tuple(out)


def migration_target_devices(instance: Mapping[str, Any], env: Env, files: Files) -> tuple[ResolvedDevices, ...]:
    """What the domain has that a migration arrives in: the devices of its new host, which the status tells of apart. Until it
    does there are none: those of the old host are taken out before the guest leaves it."""
    status = instance.get("status") or {}
    told = (status.get("migrationState") or {}).get("targetDeviceStatus")
    return () if told is None else devices_of({**instance, "status": {**status, "deviceStatus": told}}, env, files)


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


def _claimed(instance: Mapping[str, Any], ask: RequestedDevice, env: Env, files: Files) -> ResolvedDevices:
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
        readers = {STATUS: lambda: _of_status(instance, ask), **readers}
    told: list[tuple[str, tuple[AssignedDevice, ...]]] = []
    silent: list[str] = []
    for source, read in readers.items():
        try:
            told.append((source, read()))
        except DeviceNotAssigned as error:
            silent.append(error.message)
        except StartFailed:
            if not told:  # what an earlier source told stands, whatever a later one fails at
                raise
    if not told:
        first, *rest = silent
        what = "it" if ask.word in first else ask.word
        raise StartFailed(f"{first}: the machine does not start without {what} ({ask.path}; {'; '.join(rest)})")
    source, devices = told[0]
    for other, others in told[1:]:
        if not same_devices(devices, others):
            raise StartFailed(f"{ask.path}: {source} says that {ask.word} is {_said(devices)}, but {other} says "
                              f"{_said(others)}: the machine does not start before they agree")
    return ResolvedDevices(ask, devices, source)


def _named(instance: Mapping[str, Any], ask: RequestedDevice) -> tuple[AssignedDevice, ...]:
    """The device that the status tells of for an entry by resource name, if it does."""
    try:
        found = _of_status(instance, ask)
    except DeviceNotAssigned:
        return ()
    if len(found) > 1:
        raise StartFailed(f"{ask.path}: {STATUS} tells of {len(found)} devices for {ask.word}, which asks for one "
                          f"{ask.resource}")
    return found


def _confirmed(ask: RequestedDevice, given: AssignedDevice, plugins: environment.PluginDevices) -> ResolvedDevices:
    """Of one resource the environment lists what all entries got, in whichever order: this one's is among them."""
    listed = plugins.listed(ask)
    if listed and given.address.lower() not in {each.lower() for each in listed.get(given.kind) or ()}:
        said = ", ".join(each for texts in listed.values() for each in texts)
        raise StartFailed(f"{ask.path}: {STATUS} says that {ask.word} is {_said([given])}, but {ENVIRONMENT} says that "
                          f"{ask.resource} is {said}: the machine does not start before they agree")
    return ResolvedDevices(ask, (given,), STATUS)


def _own(ask: RequestedDevice, devices: tuple[AssignedDevice, ...]) -> tuple[AssignedDevice, ...]:
    """Of what answers a request that which is for this entry: a flavor's devices share one."""
    if ask.number is None:
        return devices
    if len(devices) <= ask.number:
        raise DeviceNotAssigned(f"{ask.word} is not among the {len(devices)} devices for request {ask.request}")
    return devices[ask.number:ask.number + 1]


def _said(devices: Sequence[AssignedDevice]) -> str:
    return " and ".join("+".join(device.functions or (device.address,)) for device in devices)


def _claim_names(instance: Mapping[str, Any], ask: RequestedDevice, entry: Mapping[str, Any]) -> list[str]:
    """How the claim object is called, as far as anything here says so."""
    status = instance.get("status") or {}
    found = [entry.get("resourceClaimName")]
    found += [each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or ()
              if each.get("name") == ask.claim]
    if ask.list != "interfaces":
        found += [(each.get("deviceResourceClaimStatus") or {}).get("resourceClaimName")
                  for each in device_status.statuses(instance, ask.list) if each.get("name") == ask.name]
    return list(dict.fromkeys(name for name in found if name))


def _of_status(instance: Mapping[str, Any], ask: RequestedDevice) -> tuple[AssignedDevice, ...]:
    assert ask.list != "interfaces"
    entries = [entry for entry in device_status.statuses(instance, ask.list) if entry.get("name") == ask.name]
    told = bool((instance.get("status") or {}).get("deviceStatus"))
    unlike = f"{_mismatch(ask.list)}: " if told else "no device status found: "
    if not entries:
        raise DeviceNotAssigned(f"{unlike}{ask.word} is not in {STATUS}")
    out = []
    for entry in entries:
        where = device_status.address_of(entry)
        if where is None:
            raise DeviceNotAssigned(f"{unlike}{ask.word} has neither pciAddress nor mdevUUID in {STATUS}")
        said = entry.get("deviceResourceClaimStatus") or {}
        members = tuple(map(str, (said.get("attributes") or {}).get("members") or ())) if where[0] == "pci" else ()
        out.append(checked(ask, AssignedDevice(where[0], str(where[1]), members if len(members) > 1 else (), _node(said),
                                      "/".join(str(said.get(key) or "") for key in ("driver", "pool", "name")))))
    return tuple(out)


def _node(said: Mapping[str, Any]) -> int | None:
    node = (said.get("attributes") or {}).get("numaNode")
    return node if isinstance(node, int) and node >= 0 else None


def _interface(
    instance: Mapping[str, Any], ask: RequestedDevice, env: Env, files: Files, taken: set[str]
) -> ResolvedDevices | None:
    """The virtual function of a network interface; None: it is being plugged into a machine that runs and is not there yet."""
    network = _networks(instance).get(ask.name)
    if network is None:
        raise StartFailed(f"{ask.path}: no entry of spec.networks is called {ask.name}")
    if network.get("resourceClaim") is not None:
        found = _claimed(instance, ask, env, files)
        if len(found.devices) > 1 or len(found.devices[0].functions) > ONE_PORT:
            raise StartFailed(f"{ask.path}: {found.source} says that {ask.word} is {_said(found.devices)}, but an interface is "
                              f"one device of at most {ONE_PORT} functions: ask for count 1")
        return found
    status = instance.get("status") or {}
    reported = any(each.get("name") == ask.name and "multus-status" in str(each.get("infoSource", ""))
                   for each in status.get("interfaces") or ())
    readers: dict[str, Callable[[], tuple[AssignedDevice, ...]]] = {
        NETWORK_INFO: lambda: _network_info(ask, files), ENVIRONMENT: lambda: environment.network(ask, ask.name, env, taken)}
    silent: list[str] = []
    for source, read in readers.items():
        try:
            return ResolvedDevices(ask, read(), source)
        except DeviceNotAssigned as error:
            silent.append(error.message)
    if status.get("phase") == "Running" and not reported:
        return None
    raise StartFailed(f"{ask.path}: found no SR-IOV networks to PCI-Address mapping for {ask.name}: {'; '.join(silent)}")


def network_wires(files: Files) -> dict[str, Wire]:
    """How network cards are plugged in, by network; nothing where nobody says so in a way that can be read."""
    try:
        return network_info.read(files.get(NETWORK_INFO) or "{}")
    except ValueError:
        return {}


def _network_info(ask: RequestedDevice, files: Files) -> tuple[AssignedDevice, ...]:
    text = files.get(NETWORK_INFO)
    if text is None:
        raise DeviceNotAssigned(f"there is no {NETWORK_INFO}")
    if not text.strip() and not ask.by_claim:
        raise StartFailed(f"{ask.path}: {NETWORK_INFO} is empty: no network plugin has said yet which function {ask.name} gets")
    try:
        wire = network_info.read(text or "{}").get(ask.name)
    except ValueError as error:
        raise StartFailed(f"{ask.path}: {NETWORK_INFO} cannot be read: {error}") from error
    if wire is not None and wire.type == "none":
        raise StartFailed(f"{ask.path}: {wire.why}")
    if wire is None or not wire.address:
        raise DeviceNotAssigned(f"{NETWORK_INFO} names no PCI address for {ask.name}")
    return (checked(ask, AssignedDevice("pci", wire.address)),)


def _nothing_else(instance: Mapping[str, Any], asks: Sequence[RequestedDevice]) -> None:
    """The status tells of no device that the spec does not ask for."""
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


def _each_once(found: Sequence[ResolvedDevices]) -> None:
    holders: dict[str, str] = {}
    for one in found:
        for given in one.devices:
            for address in given.identity:
                if address in holders:
                    raise StartFailed(f"{one.ask.path}: {one.ask.word} and {holders[address]} would both be {address}"
                                  if holders[address] != one.ask.word else
                                  f"{one.ask.path}: {one.ask.word} would get {address} twice in {len(one.devices)} devices")
                holders[address] = one.ask.word
