"""The guise in which a function of a simulated host is published: the name and the attributes that a driver of somebody else
gives to it. A hosts file says it, so that manifests written for such a driver can be tried."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from outfitter.api.device import PCI_BUS_ID
from outfitter.api.kinds import Object
from outfitter.inventory import slices
from outfitter.inventory.scan import Scan
from outfitter.inventory.strict_yaml import Section, Value

KEYS = ("name", "attributes")
MAX_LABEL = 63
MAX_TEXT = 64  # characters of an attribute's text or version
MOST = 12  # attributes beside those that the host shows; a published device may have 32
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_ATTRIBUTE = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
_VERSION = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)([-+][-+.0-9A-Za-z]+)?")
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class DriverProfile:
    """How one function is published."""

    name: str | None = None  # None: after the way to it
    attributes: tuple[tuple[str, tuple[str, str | int | bool]], ...] = ()  # name -> type and value, as a slice has them


def read(section: Section) -> DriverProfile:
    """The section of a function; what is wrong is told to its reader."""
    name = section.text("name", _label)
    given = section.fields.get("attributes")
    if given is not None and not isinstance(given, dict):
        section.wrong("attributes", "must be a mapping such as model: {string: A100}")
        given = None
    attributes = []
    for key, value in (given or {}).items():
        path = f"{section.at('attributes')}.{key}"
        if not _ATTRIBUTE.fullmatch(key):
            section.reader.wrong(path, f"{key!r} is no name of an attribute; write for example model or example.com/model")
        elif (said := _attribute(value)) is None:
            section.reader.wrong(path, "must say its type, as a slice does: {string: ...} or {version: ...} of at most "
                                       f"{MAX_TEXT} characters, {{int: ...}} or {{bool: ...}}")
        else:
            attributes.append((key, said))
    if len(attributes) > MOST:
        section.wrong("attributes", f"says {len(attributes)}; beside those that the host shows there is room for {MOST}")
    return DriverProfile(name, tuple(attributes[:MOST]))


def renamed(found: Scan, profiles: Mapping[str, DriverProfile]) -> Scan:
    """What a host has, with the names under which its driver knows it."""
    names = {address: said.name for address, said in profiles.items() if said.name is not None}
    if not names:
        return found
    return replace(found, devices=tuple(replace(device, name=names[device.address]) if device.address in names else device
                                        for device in found.devices))


def described(devices: Iterable[Object], profiles: Mapping[str, DriverProfile]) -> list[Object]:
    """Devices as a slice lists them, with what the driver says besides. What the host shows stays, but for names for people."""
    return [_described(device, profiles.get((device["attributes"].get(PCI_BUS_ID) or {}).get("string", "")))
            for device in devices]


def _described(device: Object, said: DriverProfile | None) -> Object:
    if said is None:
        return device
    told = {key: {kind: value} for key, (kind, value) in said.attributes}
    names = {key: value for key, value in told.items() if key in slices.FOR_PEOPLE}
    return {**device, "attributes": {**told, **device["attributes"], **names}}


def _attribute(value: Value) -> tuple[str, str | int | bool] | None:
    """{string: RTX 4080} as type and value; None if it is none."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    (kind, text), = value.items()
    if not isinstance(text, str):
        return None
    if kind == "string" and 0 < len(text) <= MAX_TEXT:
        return kind, text
    if kind == "version" and len(text) <= MAX_TEXT and _VERSION.fullmatch(text):
        return kind, text
    if kind == "int" and re.fullmatch("-?[0-9]{1,18}", text):
        return kind, int(text)
    return (kind, _FLAGS[text]) if kind == "bool" and text in _FLAGS else None


def _label(text: str) -> str | None:
    if len(text) <= MAX_LABEL and _LABEL.fullmatch(text):
        return None
    return f"{text!r} is no name of a device: at most {MAX_LABEL} small letters, digits and '-'; write for example gpu-0"
