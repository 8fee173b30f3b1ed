"""The element of a network interface that is plugged into a running domain: its alias and its guest address are chosen among
those that the domain has free. Pure. Called for the node agent, and by the launcher of a pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from outfitter.api.kubevirt.network_info import Wire
from outfitter.errors import HypervisorError
from outfitter.launcher import interface
from outfitter.launcher.device_alias import DeviceAliases
from outfitter.launcher.hotplug.pci_ports import FreePorts
from outfitter.launcher.nics import domain_nics


def element(running: str, instance: Object, name: str, wire: Wire) -> str:
    """The XML of interface `name` of the VMI for its domain, which runs with the XML `running`. HypervisorError: it cannot be
    plugged, with code NoPciPort where the guest has no free port."""
    path, index, card = _entry(instance, name)
    network = next((each for each in network_info.networks(instance) if each.get("name") == name), None)
    if network is None:
        raise HypervisorError(f"{path}: no entry of spec.networks is called {name!r}")
    if why := interface.unsupported(card, wire):
        raise HypervisorError(f"{path}: {why}")
    root = ET.fromstring(running)
    ports = FreePorts(root)
    guest = ports.address("interfaces", index, path, card.get("pciAddress"))
    aliases = DeviceAliases(domain_nics.aliases(root))
    # The boot order is of no use to a guest that runs, and another device may have the number.
    card = {key: value for key, value in card.items() if key != "bootOrder"}
    if wire.address:
        built = interface.function(card, wire.address, aliases.name("sriov", name), guest, wire)
    else:
        built = interface.element(card, network, alias=aliases.name("", name), guest=guest, wire=wire, express=ports.express)
    return ET.tostring(built, encoding="unicode")


def _entry(instance: Object, name: str) -> tuple[str, int, Mapping[str, Any]]:
    for index, card in enumerate(network_info.interfaces(instance)):
        if card.get("name") == name:
            return f"spec.domain.devices.interfaces[{index}]", index, card
    raise HypervisorError(f"spec.domain.devices.interfaces: none is called {name!r}")
