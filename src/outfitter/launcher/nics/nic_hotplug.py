"""The element of a network interface that is plugged into a running domain: its alias and its guest address are chosen among
those that the domain has free. Pure. Called for the node agent, and by the launcher of a pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import guest_address, network_info
from outfitter.api.kubevirt.network_info import Wire
from outfitter.api.rejection import RejectionCode, carrying
from outfitter.errors import HypervisorError
from outfitter.launcher import interface, pci_layout
from outfitter.launcher.device_alias import DeviceAliases
from outfitter.launcher.nics import domain_nics
from outfitter.launcher.pci_layout import LANES


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
    express = root.find("devices/controller[@model='pcie-root']") is not None
    guest = _guest(root, index, path, card.get("pciAddress")) if express else (
        pci_layout.user_address(card["pciAddress"], path) if card.get("pciAddress") else None)
    aliases = DeviceAliases(domain_nics.aliases(root))
    # The boot order is of no use to a guest that runs, and another device may have the number.
    card = {key: value for key, value in card.items() if key != "bootOrder"}
    if wire.address:
        built = interface.function(card, wire.address, aliases.name("sriov", name), guest, wire)
    else:
        built = interface.element(card, network, alias=aliases.name("", name), guest=guest, wire=wire, express=express)
    return ET.tostring(built, encoding="unicode")


def _entry(instance: Object, name: str) -> tuple[str, int, Mapping[str, Any]]:
    for index, card in enumerate(network_info.interfaces(instance)):
        if card.get("name") == name:
            return f"spec.domain.devices.interfaces[{index}]", index, card
    raise HypervisorError(f"spec.domain.devices.interfaces: none is called {name!r}")


def _guest(root: ET.Element, index: int, path: str, wanted: str | None) -> ET.Element:
    """An unused root port: the one that the interface has at the next start, else one for interfaces, else any."""
    free = _free_ports(root)
    if wanted:
        at = guest_address.parse(wanted)
        if at is None or at.slot or at.function or at.bus not in free:
            raise _no_port(f"{path}.pciAddress: the guest has no unused PCI port at {wanted}; unused are "
                           f"{', '.join(f'0000:{bus:02x}:00.0' for bus in free) or 'none'}")
        return pci_layout.behind_port(at.bus)
    first, step = 1 + LANES["interfaces"], len(LANES)
    if not free:
        raise _no_port(f"{path}: the guest has no unused PCI port left: unplug an interface first, or restart the VM, which "
                       "then has ports for more")
    return pci_layout.behind_port(min(free, key=lambda bus: (bus != first + step * index, (bus - first) % step != 0, bus)))


def _free_ports(root: ET.Element) -> list[int]:
    """Indexes of the root ports behind which there is no device."""
    used = {int(address.get("bus", "0"), 0) for address in root.iterfind("devices/*/address[@type='pci']")}
    return sorted(set(_ports(root)) - used)


def _ports(root: ET.Element) -> Iterator[int]:
    for controller in root.iterfind("devices/controller[@model='pcie-root-port']"):
        address = controller.find("address")
        if address is None or int(address.get("bus", "0"), 0) == 0:  # not those of a NUMA node
            yield int(controller.get("index", "0"))


def _no_port(message: str) -> HypervisorError:
    return carrying(HypervisorError(message), RejectionCode.NO_PCI_PORT)
