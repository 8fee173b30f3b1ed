"""Driver profiles: the device name and attributes under which a simulated function is published, as another DRA driver would. A
hosts file sets them, so that manifests written for such a driver can be tried. Called by the host audit."""

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
MOST = 12  # additional attributes; a published device has at most 32
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_ATTRIBUTE = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
_VERSION = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)([-+][-+.0-9A-Za-z]+)?")
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class DriverProfile:
    """How one function is published."""

    name: str | None = None  # None: its stable name
    attributes: tuple[tuple[str, tuple[str, str | int | bool]], ...] = ()  # name -> type and value, as a slice has them


def read(section: Section) -> DriverProfile:
    """Parse the section `published` of a function; mistakes are reported to its reader."""
    name = section.text("name", _label)
    given = section.fields.get("attributes")
    if given is not None and not isinstance(given, dict):
        section.wrong("attributes", "must be a mapping such as model: {string: A100}")
        given = None
    attributes = []
    for key, value in (given or {}).items():
        path = f"{section.at('attributes')}.{key}"
        if not _ATTRIBUTE.fullmatch(key):
            section.reader.wrong(path, f"{key!r} is not an attribute name; write for example model or example.com/model")
        elif (attribute := _attribute(value)) is None:
            section.reader.wrong(path, "must have a type, as in a slice: {string: ...} or {version: ...} of at most "
                                       f"{MAX_TEXT} characters, {{int: ...}} or {{bool: ...}}")
        else:
            attributes.append((key, attribute))
    if len(attributes) > MOST:
        section.wrong("attributes", f"has {len(attributes)}; at most {MOST} can be added")
    return DriverProfile(name, tuple(attributes[:MOST]))


def renamed(found: Scan, profiles: Mapping[str, DriverProfile]) -> Scan:
    """The scan with the device names of the profiles."""
    names = {address: profile.name for address, profile in profiles.items() if profile.name is not None}
    if not names:
        return found
    return replace(found, devices=tuple(replace(device, name=names[device.address]) if device.address in names else device
                                        for device in found.devices))


def described(devices: Iterable[Object], profiles: Mapping[str, DriverProfile]) -> list[Object]:
    """Entries of a slice with the attributes of the profiles. Attributes of the host take precedence, except names for
    people."""
    return [_described(device, profiles.get((device["attributes"].get(PCI_BUS_ID) or {}).get("string", "")))
            for device in devices]


def _described(device: Object, profile: DriverProfile | None) -> Object:
    if profile is None:
        return device
    added = {key: {kind: value} for key, (kind, value) in profile.attributes}
    names = {key: value for key, value in added.items() if key in slices.FOR_PEOPLE}
    return {**device, "attributes": {**added, **device["attributes"], **names}}


def _attribute(value: Value) -> tuple[str, str | int | bool] | None:
    """{string: RTX 4080} as type and value; None if it is not an attribute."""
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
    return f"{text!r} is not a device name: at most {MAX_LABEL} lower-case letters, digits and '-'; write for example gpu-0"
