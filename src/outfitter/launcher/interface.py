"""Network interfaces in a domain: attached to what the node agent or a network plugin prepared (a `Wire`), otherwise to a tap
of a network plugin; or a VF. Called by `devices`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.api.kubevirt import network_info
from outfitter.api.kubevirt.network_info import Wire
from outfitter.launcher import hostdev

TAPS = ("bridge", "masquerade")  # bindings with a tap that a network plugin has created
DEFAULT_MODEL = "virtio"
MODELS = {"virtio": "virtio-non-transitional"}  # the only one on PCI Express


def binding(interface: Mapping[str, Any]) -> str:
    """The binding of an interface: bridge, masquerade, slirp, sriov, or the name of an unsupported one."""
    for name in (*TAPS, "sriov", "slirp", "passt", "binding", "macvtap"):
        if interface.get(name) is not None:
            return name
    return TAPS[0]


def tap(network: Mapping[str, Any]) -> str:
    """The tap of a network: tap0 for the pod network, otherwise derived from the network's name, so that adding a network does
    not rename others."""
    if network.get("pod") is not None or (network.get("multus") or {}).get("default"):
        return "tap0"
    return "tap" + hashlib.sha256(network["name"].encode()).hexdigest()[:11]


def mac(interface: Mapping[str, Any], wire: Wire | None) -> str | None:
    """The MAC address of the wire, otherwise that of the spec, or else what a network plugin reports."""
    if wire is not None and wire.type is not None:
        return wire.mac
    return network_info.specified_mac(interface) or (wire.mac if wire is not None else None)


def unsupported(interface: Mapping[str, Any], wire: Wire | None) -> str | None:
    """Why an interface cannot be attached; None if it can."""
    how = binding(interface)
    if wire is not None and wire.type == "none":
        return wire.why
    if how in (*TAPS, "slirp", "sriov"):
        return None
    name = f"plugin {interface[how].get('name', '?')}" if how == "binding" else how
    return f"the binding {name} is not supported: use bridge, masquerade, slirp or sriov"


def element(interface: Mapping[str, Any], network: Mapping[str, Any], *, alias: str, guest: ET.Element | None,
            wire: Wire | None, express: bool) -> ET.Element:
    """The element of an interface that is not a host device."""
    how = wire.type if wire is not None else None
    if how == "user" or (how is None and binding(interface) == "slirp"):
        out = ET.Element("interface", type="user")
    elif wire is not None and how == "bridge":
        out = ET.Element("interface", type="bridge")
        ET.SubElement(out, "source", bridge=wire.bridge)
    else:
        out = ET.Element("interface", type="ethernet")
        ET.SubElement(out, "target", dev=tap(network), managed="no")
    _mac(out, mac(interface, wire))
    model = str(interface.get("model") or DEFAULT_MODEL)
    ET.SubElement(out, "model", type=MODELS.get(model, model) if express else model)
    if interface.get("state") == "down":
        ET.SubElement(out, "link", state="down")
    ET.SubElement(out, "rom", enabled="no")
    _rest(out, interface, alias, guest)
    return out


def function(interface: Mapping[str, Any], address: str, alias: str, guest: ET.Element | None, wire: Wire | None) -> ET.Element:
    """The element of a VF: a plain host device, unless the hypervisor has to set its MAC address and VLAN."""
    if wire is None or wire.type != "function":
        out = hostdev.element(str(interface["name"]), address, alias, guest)
        _boot(out, interface)
        return out
    out = ET.Element("interface", type="hostdev", managed="no")
    _mac(out, wire.mac)
    source = hostdev.source(str(interface["name"]), address)
    source[0].set("type", "pci")
    out.append(source)
    if wire.vlan:
        ET.SubElement(ET.SubElement(out, "vlan"), "tag", id=str(wire.vlan))
    _rest(out, interface, alias, guest)
    return out


def _mac(out: ET.Element, address: str | None) -> None:
    if address:
        ET.SubElement(out, "mac", address=address)


def _rest(out: ET.Element, interface: Mapping[str, Any], alias: str, guest: ET.Element | None) -> None:
    _boot(out, interface)
    if interface.get("acpiIndex"):
        ET.SubElement(out, "acpi", index=str(interface["acpiIndex"]))
    ET.SubElement(out, "alias", name=alias)
    if guest is not None:
        out.append(guest)


def _boot(out: ET.Element, interface: Mapping[str, Any]) -> None:
    if interface.get("bootOrder"):
        ET.SubElement(out, "boot", order=str(interface["bootOrder"]))
