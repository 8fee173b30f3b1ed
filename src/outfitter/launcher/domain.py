"""The domain of an instance. Pure: an instance with its device status in, XML out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.api.quantity import to_int
from outfitter.launcher import hostdev

NAMESPACE = "https://outfitter.dev/xmlns/domain/1.0"
OURS = f"{{{NAMESPACE}}}machine"  # the mark by which a domain is known again as one of ours
DEFAULT_MEMORY = "1Gi"
MACHINE = "q35"
ET.register_namespace("outfitter", NAMESPACE)


def build(instance: Object) -> Domain:
    meta, spec = instance["metadata"], instance["spec"]["domain"]
    name = f"{meta['namespace']}_{meta['name']}"
    root = ET.Element("domain", type="qemu")
    _text(root, "name", name)
    _text(root, "uuid", (spec.get("firmware") or {}).get("uuid") or meta["uid"])
    ET.SubElement(ET.SubElement(root, "metadata"), OURS, instance=meta["uid"])
    ET.SubElement(root, "memory", unit="b").text = str(to_int(_memory(spec)))
    _text(root, "vcpu", str(_vcpus(spec)), placement="static")
    system = ET.SubElement(root, "os")
    ET.SubElement(system, "type", arch="x86_64", machine=(spec.get("machine") or {}).get("type") or MACHINE).text = "hvm"
    features = ET.SubElement(root, "features")
    ET.SubElement(features, "acpi")
    devices = ET.SubElement(root, "devices")
    devices.extend(list(hostdev.hostdevs(instance)))  # a list: extend would hide why a generator refused
    ET.indent(root)
    return Domain(meta["uid"], name, ET.tostring(root, encoding="unicode") + "\n", hostdev.sources(root))


def read(xml: str, uid: str = "") -> Domain:
    """A domain that was found running; `uid` by which it is known, else what it says of itself. ValueError: it is none."""
    try:
        root = ET.fromstring(xml)
    except ET.ParseError as error:
        raise ValueError(str(error)) from error
    mark = root.find(f"metadata/{OURS}")
    own = root.findtext("uuid", "") if mark is None else mark.get("instance", "")
    return Domain(uid or own, root.findtext("name", ""), xml, hostdev.sources(root), foreign=mark is None)


def _text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, tag, attributes).text = text


def _memory(spec: Mapping[str, Any]) -> str:
    guest = (spec.get("memory") or {}).get("guest")
    return str(guest or ((spec.get("resources") or {}).get("requests") or {}).get("memory") or DEFAULT_MEMORY)


def _vcpus(spec: Mapping[str, Any]) -> int:
    cpu = spec.get("cpu") or {}
    return int(cpu.get("cores") or 1) * int(cpu.get("sockets") or 1) * int(cpu.get("threads") or 1)
