"""Parses the entries of `device_spec`: mappings, or JSON strings with a mapping or a list of them. Reports all mistakes at
once.

Mistakes that Nova accepts, and that fail later or do something unintended there (unknown keys, blanks between traits, names
that Placement rejects), are reported here. Called by the configuration file, the import of nova.conf and the CLI."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from outfitter import errors
from outfitter.inventory import pci_address_spec, strict_yaml
from outfitter.inventory.device_spec import DeviceSpec, DeviceSpecEntry
from outfitter.inventory.pci_address_spec import Pattern
from outfitter.inventory.placement_names import normal_class, normal_trait
from outfitter.inventory.strict_yaml import boolean, shown

KEYS = ("vendor_id", "product_id", "address", "devname", "physical_network", "resource_class", "traits", "remote_managed",
        "managed", "trusted", "live_migratable", "one_time_use")
MAX_ID = 0xFFFF
NETWORK_CLASSES = "SRIOV_NET_VF for a VF, VDPA_NETDEV for a VDPA device, else PCI_NETDEV"

_HEX = re.compile(r"(0[xX])?[0-9a-fA-F]+")


def read_entries(reader: strict_yaml.Reader, values: Sequence[Any], path: str, *, report: bool) -> DeviceSpec:
    """Parse entries: mappings, or JSON strings with a mapping or a list of them. `report`: the devices are reported in
    Placement. Mistakes are reported to the reader."""
    entries: list[DeviceSpecEntry] = []
    for where, value in mappings(reader, values, path, example={"vendor_id": "10de", "product_id": "2235", "traits": "A,B"}):
        entries.append(_EntryFields(reader, where, value).entry(len(entries), report=report))
    return DeviceSpec(tuple(entries))


def mappings(reader: strict_yaml.Reader, values: Sequence[Any], path: str, *,
             example: Mapping[str, str]) -> list[tuple[str, Mapping[str, Any]]]:
    """(path, mapping) of each value: a mapping, or a JSON string with a mapping or a list of them. Anything else is reported,
    with the example."""
    out: list[tuple[str, Mapping[str, Any]]] = []
    for index, value in enumerate(values):
        where = f"{path}[{index}]"
        items = _from_json(reader, where, value, example) if isinstance(value, str) else value
        if isinstance(items, Mapping):
            out.append((where, items))
        elif isinstance(items, list) and isinstance(value, str):
            for inner, item in enumerate(items):
                if isinstance(item, Mapping):
                    out.append((f"{where}[{inner}]", item))
                else:
                    reader.wrong(f"{where}[{inner}]",
                                 f"expecting dict (a mapping), such as {json.dumps(example)}, not {shown(item)}")
        elif items is not _BROKEN:
            reader.wrong(where, f"expecting list or dict: a mapping such as {json.dumps(example)}, or the JSON text of one or "
                                f"of a list of them, not {shown(value)}")
    return out


_BROKEN = object()  # a string that is not JSON; reported already


def _from_json(reader: strict_yaml.Reader, path: str, text: str, example: Mapping[str, str]) -> Any:

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(items)
        for key in fields:
            if sum(1 for name, _ in items if name == key) > 1:
                reader.wrong(f"{path}.{key}", "is given twice; keep one", "FieldValueDuplicate")
        return fields

    try:
        return json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        short = text if len(text) <= 100 else f"{text[:97]}..."
        reader.wrong(path, f"invalid entry: {short!r} is no JSON ({error}); write for example {json.dumps(example)}")
        return _BROKEN


class _EntryFields:
    """One entry being parsed. Each getter returns a usable value even when it reports a mistake."""

    def __init__(self, reader: strict_yaml.Reader, path: str, value: Mapping[str, Any]) -> None:
        self.reader, self.path, self.value = reader, path, value
        reader.known(path, value, KEYS)

    def wrong(self, key: str, message: str) -> None:
        self.reader.wrong(f"{self.path}.{key}", message)

    def entry(self, index: int, *, report: bool) -> DeviceSpecEntry:
        entry = DeviceSpecEntry(
            index=index,
            text=json.dumps(self.value, ensure_ascii=False, default=str),
            resource_class=self.resource_class(),
            traits=self.traits(),
            physical_network=self.network(),
            remote_managed=bool(self.boolean("remote_managed")),
            managed=self.boolean("managed") is not False,
            trusted=self.boolean("trusted"),
            live_migratable=self.boolean("live_migratable"),
            one_time_use=self.boolean("one_time_use"),
            devname=self.devname(),
            vendor=self.id("vendor_id"),
            product=self.id("product_id"),
            pattern=self.pattern(),
        )
        if entry.physical_network and entry.resource_class:
            self.wrong("resource_class", "cannot be combined with physical_network: a device of a network has the class "
                                         f"{NETWORK_CLASSES}; remove one of the two")
        if entry.devname and entry.pattern:
            self.wrong("devname", "cannot be combined with address: both select the device; remove one of the two")
        if entry.one_time_use and not report:
            self.wrong("one_time_use", "one_time_use true requires report_in_placement to be on: a used device is "
                                       "recorded there")
        return entry

    def text(self, key: str) -> str | None:
        """A string, stripped; None if it is absent, empty or wrong."""
        value = self.value.get(key)
        if value is None or isinstance(value, str):
            return (value or "").strip() or None
        self.wrong(key, f"must be a string, not {shown(value)}")
        return None

    def network(self) -> str | None:
        """The name of a physical network; it must be valid as a trait."""
        text = self.text("physical_network")
        try:
            for name in (text, f"PHYSNET_{text}") if text is not None else ():
                normal_trait(name)
            return text
        except errors.Invalid as error:
            self.wrong("physical_network", f"cannot be reported in Placement: {error}")
            return None

    def empty(self, key: str, instead: str) -> bool:
        """Whether a key that selects devices is present without a value, which must not select all devices."""
        if key in self.value and self.value[key] is None:
            self.wrong(key, f"is empty; {instead}, or remove {key} to match any")
            return True
        return False

    def id(self, key: str) -> str | None:
        value = self.value.get(key, pci_address_spec.ANY)
        if self.empty(key, "write four hex digits"):
            return None
        if not isinstance(value, str):
            self.wrong(key, f"must be hex digits as a string, for example \"10de\", not {shown(value)}")
            return None
        value = value.strip()
        if value == pci_address_spec.ANY:
            return None
        if not _HEX.fullmatch(value):
            self.wrong(key, f"{value!r} does not parse as a hex number; write for example 10de, or * for any")
            return None
        if int(value, 16) > MAX_ID:
            self.wrong(key, f"{value!r} is greater than the maximum {MAX_ID:X}")
            return None
        return f"{int(value, 16):04x}"

    def devname(self) -> str | None:
        if self.empty("devname", "name a network interface such as ens1f0"):
            return None
        if "devname" in self.value and isinstance(self.value["devname"], str) and not self.value["devname"].strip():
            self.wrong("devname", "is empty; name a network interface such as ens1f0, or remove devname")
        return self.text("devname")

    def pattern(self) -> Pattern | None:
        value = self.value.get("address")
        if self.empty("address", "write for example 0000:3b:00.0") or value is None or value in ("", {}):
            return None
        try:
            if isinstance(value, str):
                return pci_address_spec.from_text(value)
            if isinstance(value, Mapping):
                return self.regexes(value)
        except errors.Invalid as error:
            self.wrong("address", str(error))
            return None
        self.wrong(
            "address",
            f"the address {shown(value)} has an incorrect format; write {pci_address_spec.FORM}, or a mapping of "
            f"regular expressions with the keys {', '.join(pci_address_spec.PARTS)}",
        )
        return None

    def regexes(self, value: Mapping[str, Any]) -> Pattern | None:
        self.reader.known(f"{self.path}.address", value, pci_address_spec.PARTS)
        given = {key: text for key, text in value.items() if key in pci_address_spec.PARTS}
        for key, text in given.items():
            if not isinstance(text, str):
                self.wrong(f"address.{key}", f"the address has an incorrect format: {shown(text)} is not a regular expression "
                                             "string")
        if len(given) < len(value) or not all(isinstance(text, str) for text in given.values()):
            return None
        return pci_address_spec.from_regexes(given)

    def boolean(self, key: str) -> bool | None:
        value = self.value.get(key)
        if value is None:
            return None
        answer = boolean(str(value)) if isinstance(value, (bool, int, str)) else None
        if answer is None:
            self.wrong(key, f"cannot parse {key}: {shown(value)} is neither true nor false")
        return answer

    def resource_class(self) -> str | None:
        text = self.text("resource_class")
        try:
            return None if text is None else normal_class(text)
        except errors.Invalid as error:
            self.wrong("resource_class", str(error))
            return None

    def traits(self) -> frozenset[str]:
        value = self.value.get("traits")
        items = value.split(",") if isinstance(value, str) else value
        if items is None:
            return frozenset()
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            self.wrong("traits", f"must be a string such as \"A,B\" or a list of strings, not {shown(value)}")
            return frozenset()
        names = set()
        for item in items:
            try:
                if item.strip():
                    names.add(normal_trait(item))
            except errors.Invalid as error:
                self.wrong("traits", str(error))
        return frozenset(names)
