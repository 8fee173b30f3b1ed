"""The network interfaces of a running domain, read from its XML and changed in it. Pure. Called by `domain`, by the hypervisors
and by `nic_hotplug`."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from outfitter.api.hypervisor import DomainNic
from outfitter.launcher import hostdev

TYPES = {"user": "user", "bridge": "bridge", "hostdev": "function"}  # of an element -> of `network_info.Wire`
PREFIX, FUNCTION_PREFIX = "ua-", "ua-sriov-"  # of aliases (`device_alias`)


def nics(root: ET.Element) -> tuple[DomainNic, ...]:
    """Those of ours; what others plugged has no alias of ours."""
    return tuple(nic for element in root.iterfind("devices/*") if (nic := read(element)) is not None)


def read(element: ET.Element) -> DomainNic | None:
    alias = alias_of(element)
    passed = element.tag == "hostdev" or (element.tag == "interface" and element.get("type") == "hostdev")
    prefix = FUNCTION_PREFIX if passed else PREFIX
    if element.tag not in ("interface", "hostdev") or not alias.startswith(prefix):
        return None
    link, source, target = element.find("link"), element.find("source"), element.find("target")
    mac, vlan = element.find("mac"), element.find("vlan/tag")
    kind = "device" if element.tag == "hostdev" else TYPES.get(element.get("type", ""), "")
    return DomainNic(
        alias, alias.removeprefix(prefix), kind, mac.get("address", "").lower() if mac is not None else "",
        link is None or link.get("state") != "down",
        source.get("bridge", "") if source is not None and not passed else "",
        target.get("dev", "") if target is not None else "",
        next(iter(hostdev.sources(_around(element))), "") if passed else "",
        int(vlan.get("id", "0"), 0) if vlan is not None else None)


def find(root: ET.Element, alias: str) -> ET.Element | None:
    return next((element for element in root.iterfind("devices/*") if alias_of(element) == alias), None)


def aliases(root: ET.Element) -> set[str]:
    return set(_aliases(root))


def alias_of(element: ET.Element) -> str:
    found = element.find("alias")
    return found.get("name", "") if found is not None else ""


def set_link(element: ET.Element, *, up: bool) -> bool:
    """Whether that changed anything."""
    found = element.find("link")
    if (found is None or found.get("state") != "down") is up:
        return False
    if found is None:
        found = ET.SubElement(element, "link")
    found.set("state", "up" if up else "down")
    return True


def set_bridge(element: ET.Element, bridge: str) -> bool:
    """The same. ValueError: the NIC is on no bridge."""
    source = element.find("source")
    if element.get("type") != "bridge" or source is None:
        raise ValueError("it is not on a bridge")
    changed = source.get("bridge") != bridge
    source.set("bridge", bridge)
    return changed


def _aliases(root: ET.Element) -> Iterator[str]:
    for element in root.iterfind("devices/*"):
        if alias := alias_of(element):
            yield alias


def _around(element: ET.Element) -> ET.Element:
    """A domain that has this device alone."""
    out = ET.Element("domain")
    ET.SubElement(out, "devices").append(element)
    return out
