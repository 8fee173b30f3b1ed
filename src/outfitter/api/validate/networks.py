"""Networks and interfaces of a VMI, which are matched by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from outfitter.api.kubevirt import feature_gates, network_info
from outfitter.api.kubevirt.feature_gates import Gates
from outfitter.api.validate import devices
from outfitter.errors import Cause

TYPES = ("pod", "multus", "resourceClaim")
MODELS = ("e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", "virtio")
STATES = ("", "up", "down", "absent")
MAX_NAME = 63  # characters of an interface's name, ours: it is in aliases of the domain, files and messages
MAX_ACPI_INDEX = 16 * 1024 - 1  # QEMU's
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NOT_UNPLUGGED = [binding for binding in network_info.BINDINGS if binding not in ("bridge", "sriov")]
_DEFINITION = re.compile(r"[^/\s]{1,253}(/[^/\s]{1,253})?")
_MAC = re.compile(r"[0-9a-fA-F]{2}([:-])[0-9a-fA-F]{2}(\1[0-9a-fA-F]{2}){4}")


def check(
    spec: Mapping[str, Any], root: str, open_: Gates, own_claims: Collection[str] = (), vm_uid: str = "",
) -> Iterator[Cause]:
    """`vm_uid`: of a VM that exists, whose interfaces without a MAC address have generated ones."""
    networks = spec.get("networks") or ()
    interfaces = (spec["domain"].get("devices") or {}).get("interfaces") or ()
    at = f"{root}.domain.devices.interfaces"
    yield from _sources(networks, root)
    yield from _states(interfaces, networks, at)
    yield from _names(networks, interfaces, root, at)
    yield from _interfaces(interfaces, at, vm_uid)
    yield from _bindings(networks, interfaces, at)
    listed = {entry.get("name") for entry in spec.get("resourceClaims") or ()} | set(own_claims)
    yield from _by_claim(spec, listed, root, open_)


def _sources(networks: Any, root: str) -> Iterator[Cause]:
    for index, network in enumerate(networks):
        here = f"{root}.networks[{index}]"
        given = [type_ for type_ in TYPES if network.get(type_) is not None]
        if not given:
            yield Cause(here, f"should have a network type: one of {', '.join(TYPES)}", "FieldValueRequired")
        elif len(given) > 1:
            yield Cause(here, f"should have only one network type: it has {' and '.join(given)}", "FieldValueRequired")
        if network.get("multus") is not None:
            yield from _definition(network["multus"].get("networkName"), here)
    of_pod = [network for network in networks if network.get("pod") is not None]
    default = [network for network in networks if (network.get("multus") or {}).get("default")]
    if len(of_pod) > 1:
        yield Cause(f"{root}.interfaces", f"more than one interface is connected to a pod network: {_called(of_pod)}; a "
                                          "VMI has one", "FieldValueDuplicate")
    if len(default) > 1:
        yield Cause(f"{root}.networks", f"Multus CNI should only have one default network: {_called(default)}")
    if of_pod and default:
        yield Cause(f"{root}.networks", "Pod network cannot be defined when Multus default network is defined: "
                                        f"{_called([*of_pod, *default])}")


def _definition(name: Any, here: str) -> Iterator[Cause]:
    """The reference to a NetworkAttachmentDefinition. One that does not exist is waited for."""
    if not name:
        yield Cause(here, "CNI delegating plugin must have a networkName: multus.networkName names a "
                          "NetworkAttachmentDefinition, as name or namespace/name", "FieldValueRequired")
    elif not _DEFINITION.fullmatch(name):
        yield Cause(f"{here}.multus.networkName", f'Invalid value: "{name}": must name a NetworkAttachmentDefinition, as name '
                                                  "or namespace/name")


def _called(networks: Any) -> str:
    return ", ".join(str(network.get("name")) for network in networks)


def _states(interfaces: Any, networks: Any, at: str) -> Iterator[Cause]:
    first = next((network.get("name") for network in networks
                  if network.get("pod") is not None or (network.get("multus") or {}).get("default")), None)
    for index, interface in enumerate(interfaces):
        here, name, state = f"{at}[{index}].state", interface.get("name"), interface.get("state") or ""
        if state not in STATES:
            yield Cause(here, f"logical {name} interface state value is unsupported: {state}; it may be up, down or absent")
        if interface.get("sriov") is not None and state in ("up", "down"):
            yield Cause(here, f'"{name}" interface\'s state "{state}" is not supported for SR-IOV NICs')
        if state == "absent" and any(interface.get(binding) is not None for binding in _NOT_UNPLUGGED):
            yield Cause(here, f'"{name}" interface\'s state "absent" is supported only for bridge binding and SR-IOV')
        if state == "absent" and name is not None and name == first:
            yield Cause(here, f'"{name}" interface\'s state "absent" is not supported on default networks')


def absent_at_creation(spec: Any, root: str) -> Iterator[Cause]:
    """An SR-IOV NIC can be unplugged from a VM that runs. One that is absent from the start is omitted instead."""
    devices_ = (spec.get("domain") or {}).get("devices") if isinstance(spec, Mapping) else None
    for index, interface in enumerate((devices_ or {}).get("interfaces") or ()):
        if interface.get("state") == "absent" and interface.get("bridge") is None and interface.get("sriov") is not None:
            yield Cause(f"{root}.domain.devices.interfaces[{index}].state",
                        f'"{interface.get("name")}" interface\'s state "absent" is supported only for bridge binding when a VM '
                        "is created: remove the interface and its network; an SR-IOV NIC is set to absent once the VM runs")


def _names(networks: Any, interfaces: Any, root: str, at: str) -> Iterator[Cause]:
    called = {"networks": [network.get("name") or "" for network in networks],
              "interfaces": [interface.get("name") or "" for interface in interfaces]}
    known = {list_: set(names) for list_, names in called.items()}
    seen: set[str] = set()
    for index, name in enumerate(called["networks"]):
        here = f"{root}.networks[{index}].name"
        if name in seen:
            yield Cause(here, f'Network with name "{name}" already exists, every network must have a unique name',
                        "FieldValueDuplicate")
        seen.add(name)
        if name not in known["interfaces"]:
            yield Cause(here, f"{here} '{name}' not found: no interface of that name is on it", "FieldValueRequired")
    seen = set()
    for index, name in enumerate(called["interfaces"]):
        here = f"{at}[{index}].name"
        if name in seen:
            yield Cause(here, f'Only one interface can be connected to one specific network: there are two "{name}"',
                        "FieldValueDuplicate")
        seen.add(name)
        if name not in known["networks"]:
            yield Cause(here, f"{here} '{name}' not found: {root}.networks has no network of that name")
        if not _NAME.fullmatch(name):
            yield Cause(here, f'Invalid value: "{name}": a network interface has a name of letters, digits, - and _ only')
        elif len(name) > MAX_NAME:
            yield Cause(here, f"Too long: the name of a network interface may have {MAX_NAME} characters, this one has "
                              f"{len(name)}", "FieldValueTooLong")


def _interfaces(interfaces: Any, at: str, vm_uid: str) -> Iterator[Cause]:
    """Binding, MAC address and model of interfaces. Without a binding the default is bridge."""
    taken = {network_info.generated_mac(vm_uid, interface["name"]): f'interface "{interface["name"]}"'
             for interface in interfaces
             if vm_uid and interface.get("name") and network_info.specified_mac(interface) is None}
    for index, interface in enumerate(interfaces):
        here = f"{at}[{index}]"
        if address := network_info.specified_mac(interface):
            if address in taken:
                yield Cause(f"{here}.macAddress", f'Duplicate value: "{address}" is the MAC address of {taken[address]} too: '
                                                  "each NIC of a VM has its own", "FieldValueDuplicate")
            taken.setdefault(address, f'interface "{interface.get("name")}"')
        if len(given := [binding for binding in network_info.BINDINGS if interface.get(binding) is not None]) > 1:
            yield Cause(here, f"logical {interface.get('name')} interface must have exactly one binding method or binding "
                              f"plugin: it has {' and '.join(given)}")
        mac, model = interface.get("macAddress"), interface.get("model")
        if mac and not _MAC.fullmatch(mac):
            yield Cause(f"{here}.macAddress", f'Invalid value: "{mac}": must be six bytes such as 02:00:00:12:34:56')
        elif mac and (int(mac[:2], 16) & 1 or not mac.strip("0:-")):
            yield Cause(f"{here}.macAddress", f'Invalid value: "{mac}": must be the address of one NIC: an even first byte, '
                                              "and not all zero, such as 02:00:00:12:34:56")
        if (number := interface.get("acpiIndex")) and not 0 < number <= MAX_ACPI_INDEX:
            yield Cause(f"{here}.acpiIndex", f"Invalid value: {number}: must be a number from 1 to {MAX_ACPI_INDEX}")
        if model and model not in MODELS:
            yield Cause(f"{here}.model", f'Unsupported value: "{model}": supported values: '
                                         + ", ".join(f'"{known}"' for known in MODELS), "FieldValueNotSupported")


def _bindings(networks: Any, interfaces: Any, at: str) -> Iterator[Cause]:
    """masquerade is supported on the pod network only."""
    on = {network.get("name"): network for network in networks}
    for index, interface in enumerate(interfaces):
        network = on.get(interface.get("name"))
        if network is None or interface.get("masquerade") is None:
            continue
        if network.get("multus") is not None and network.get("pod") is None:
            yield Cause(f"{at}[{index}].name", "Masquerade interface only implemented with pod network: use bridge or sriov on "
                                               f'"{interface.get("name")}", which is a multus network')


def _by_claim(spec: Mapping[str, Any], listed: Collection[str | None], root: str, open_: Gates) -> Iterator[Cause]:
    """Networks with a resourceClaim. A disabled gate, or Multus beside them, is reported alone."""
    networks = spec.get("networks") or ()
    interfaces = (spec["domain"].get("devices") or {}).get("interfaces") or ()
    by_claim = [(index, network) for index, network in enumerate(networks) if network.get("resourceClaim") is not None]
    if not by_claim:
        return
    if not open_.open(feature_gates.NETWORKS):
        yield Cause(
            f"{root}.networks",
            open_.refusal(
                feature_gates.NETWORKS,
                f"vmi.spec.networks contains DRA networks but {feature_gates.NETWORKS} feature gate is not enabled",
            ),
        )
        return
    if any(network.get("multus") is not None for network in networks):
        yield Cause(f"{root}.networks", "mixing Multus and DRA resourceClaim networks in the same VMI is not supported")
        return
    first = devices.network_pairs(spec)
    bindings = {interface.get("name"): interface for interface in reversed(interfaces)}
    for index, network in by_claim:
        here, given = f"{root}.networks[{index}]", network["resourceClaim"]
        interface = bindings.get(network.get("name"))
        if interface is not None and interface.get("sriov") is None and interface.get("binding") is None:
            yield Cause(f"{root}.domain.devices.interfaces", f'DRA network "{network.get("name")}" requires an SR-IOV '
                                                             "or binding plugin interface")
        for field in ("claimName", "requestName"):
            if not given.get(field):
                yield Cause(f"{here}.resourceClaim.{field}", f"{field} is required for DRA network", "FieldValueRequired")
        claim, request = given.get("claimName"), given.get("requestName")
        if not claim or not request:
            continue
        if claim not in listed:
            yield Cause(f"{here}.resourceClaim.claimName", f'network references resourceClaim "{claim}" which is not '
                                                           f"defined in {root}.resourceClaims", "FieldValueNotFound")
        if first[claim, request] != index:
            yield Cause(here, f'duplicate claimName/requestName combination "{claim}/{request}", which '
                              f"{root}.networks[{first[claim, request]}] has", "FieldValueDuplicate")
