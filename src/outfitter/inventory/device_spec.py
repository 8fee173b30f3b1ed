"""What of a host may be given away: the list `device_spec`, in Nova's syntax. Each entry says which devices it takes and how
they are offered; of the entries that fit a device the first one wins. docs/device-spec.md tells people how to write it.

Where Nova accepts a mistake and fails later or does something else than was meant (unknown keys, blanks between traits,
names that Placement refuses), the mistake is told here. All mistakes are told at once."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter import errors
from outfitter.inventory import pci_address_spec, strict_yaml
from outfitter.inventory.pci import FunctionKind, HostDevice
from outfitter.inventory.pci_address_spec import Pattern

KEYS = ("vendor_id", "product_id", "address", "devname", "physical_network", "resource_class", "traits", "remote_managed",
        "managed", "trusted", "live_migratable", "one_time_use")
MAX_ID = 0xFFFF
MAX_NAME = 255  # characters of a class or trait
CUSTOM = "CUSTOM_"
NETWORK_CLASSES = "SRIOV_NET_VF for a VF, VDPA_NETDEV for a VDPA device, else PCI_NETDEV"

_HEX = re.compile(r"(0[xX])?[0-9a-fA-F]+")
_LEGAL = re.compile(r"CUSTOM_[0-9A-Z_]+")
_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})


@dataclass(frozen=True, slots=True)
class DeviceSpecEntry:
    """One entry: the devices it takes, and what it says of them."""

    index: int  # its place, counting each mapping of a JSON list as one
    text: str  # as JSON, for messages
    resource_class: str | None = None  # as Placement knows it; None: made from the device's ids
    traits: frozenset[str] = frozenset()  # as Placement knows them, without those that are added by themselves
    physical_network: str | None = None
    remote_managed: bool = False
    managed: bool = True  # we bind it to vfio-pci and give it back; else somebody else did
    trusted: bool | None = None  # None, as for the next two: not written
    live_migratable: bool | None = None
    one_time_use: bool | None = None
    devname: str | None = None  # the network interface whose function is meant
    vendor: str | None = None  # four hex digits in small letters; None for any, as for the next two
    product: str | None = None
    pattern: Pattern | None = None

    def has_ids(self, device: HostDevice) -> bool:
        return (self.vendor is None or self.vendor == device.vendor) and (
            self.product is None or self.product == device.product)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """All entries, in the order in which they are tried."""

    entries: tuple[DeviceSpecEntry, ...]

    def match(self, devices: Sequence[HostDevice]) -> dict[str, DeviceSpecEntry]:
        """Address -> the entry that takes the device, for those that are taken. Invalid when an entry makes no sense on
        this host."""
        meant = [(entry, _meant(entry, devices)) for entry in self.entries]
        mistakes = [cause for entry, single in meant if entry.remote_managed for cause in _remote(entry, single, devices)]
        if mistakes:
            raise errors.Invalid("; ".join(f"{cause.field}: {cause.message}" for cause in mistakes), mistakes)
        taken: dict[str, DeviceSpecEntry] = {}
        for device in devices:
            parts = pci_address_spec.split(device.address)
            if parts is None:
                continue
            for entry, single in meant:
                if entry.has_ids(device) and _is_there(entry, single, device, parts) and _is_known(entry, device):
                    taken[device.address] = entry
                    break
        return taken

    def compare(self, devices: Sequence[HostDevice]) -> dict[str, list[Comparison]]:
        """Address -> how the device compares with each entry. For explanations: `match` is the fast one."""
        meant = [(entry, _meant(entry, devices)) for entry in self.entries]
        return {device.address: [_compare(entry, single, device) for entry, single in meant] for device in devices}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What an entry wants of a device, for a person."""

    met: tuple[str, ...]
    unmet: tuple[str, ...]  # empty: it fits


def _compare(entry: DeviceSpecEntry, single: str | None, device: HostDevice) -> Comparison:
    parts = pci_address_spec.split(device.address)
    wishes: dict[str, bool] = {}
    if parts is None:
        wishes[f"a domain up to {pci_address_spec.MAX_DOMAIN:X}"] = False
    if entry.vendor is not None:
        wishes[f"vendor_id {entry.vendor}"] = entry.vendor == device.vendor
    if entry.product is not None:
        wishes[f"product_id {entry.product}"] = entry.product == device.product
    if entry.pattern is not None or entry.devname is not None:
        place = f"address {entry.pattern}" if entry.devname is None else f"interface {entry.devname}"
        wishes[place] = parts is not None and _is_there(entry, single, device, parts)
    if entry.remote_managed:
        wishes["a card with a serial number (remote_managed)"] = _is_known(entry, device)
    return Comparison(met=tuple(wish for wish, met in wishes.items() if met),
                      unmet=tuple(wish for wish, met in wishes.items() if not met))


def _meant(entry: DeviceSpecEntry, devices: Sequence[HostDevice]) -> str | None:
    """The one address that an entry speaks of, if it does so."""
    if entry.devname is None:
        return entry.pattern.single if entry.pattern else None
    return next((device.address for device in devices if entry.devname in device.interfaces), None)


def _is_there(entry: DeviceSpecEntry, single: str | None, device: HostDevice, parts: tuple[str, ...]) -> bool:
    """Whether a device is where the entry says, or is a VF of the PF that stands there."""
    if single is not None:
        return single in (device.address, device.parent)
    return entry.devname is None and (entry.pattern is None or entry.pattern.matches(parts))


def _is_known(entry: DeviceSpecEntry, device: HostDevice) -> bool:
    """A card that is managed from elsewhere is known there by its serial number."""
    return not entry.remote_managed or bool(device.card_serial or device.serial)


def _remote(entry: DeviceSpecEntry, single: str | None, devices: Sequence[HostDevice]) -> list[errors.Cause]:
    """What is wrong with remote_managed on this host: a PF is managed from here, its VFs may not be."""
    where = f"device_spec[{entry.index}]"
    if entry.devname is not None and single is None:
        return [errors.Cause(f"{where}.devname", f"no device has the interface {entry.devname!r}, which remote_managed needs")]
    card = next((device for device in devices if device.address == single and device.kind is FunctionKind.PF), None)
    if card is None:
        return []
    products = {device.product for device in devices if device.parent == single}
    if entry.vendor in (None, card.vendor):
        if entry.product is not None and (entry.product in products or (not products and entry.product != card.product)):
            return []
        if entry.product in (None, card.product):
            tip = f"; give the product_id of its VFs ({', '.join(sorted(p for p in products if p))})" if products else ""
            return [errors.Cause(f"{where}.remote_managed", f"{single} is a PF, and only VFs can be managed remotely{tip}")]
    return [
        errors.Cause(
            where,
            f"the ids {entry.vendor or pci_address_spec.ANY}:{entry.product or pci_address_spec.ANY} are neither those of "
            f"the PF {single} ({card.vendor}:{card.product}) nor of its VFs",
        )
    ]


def parse_entries(values: Sequence[Any], path: str = "device_spec", *, report: bool) -> DeviceSpec:
    """Read entries: mappings, or texts of JSON with a mapping or a list of them. `report` tells whether the devices are
    reported in Placement. Invalid has a cause for each mistake."""
    reader = strict_yaml.Reader(path)
    spec = read_entries(reader, values, path, report=report)
    reader.finish(shown=len(reader.causes))
    return spec


def read_entries(reader: strict_yaml.Reader, values: Sequence[Any], path: str, *, report: bool) -> DeviceSpec:
    """As `parse_entries`, telling mistakes to the reader of a larger file."""
    entries: list[DeviceSpecEntry] = []
    for where, value in mappings(reader, values, path, example={"vendor_id": "10de", "product_id": "2235", "traits": "A,B"}):
        entries.append(_EntryFields(reader, where, value).entry(len(entries), report=report))
    return DeviceSpec(tuple(entries))


def mappings(reader: strict_yaml.Reader, values: Sequence[Any], path: str, *,
             example: Mapping[str, str]) -> list[tuple[str, Mapping[str, Any]]]:
    """(path, mapping) of each of a list of mappings, of texts of JSON with one, and of such texts with a list of them. What
    is none of these is told, with the example."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for place, value in enumerate(values):
        where = f"{path}[{place}]"
        items = _from_json(reader, where, value, example) if isinstance(value, str) else value
        if isinstance(items, Mapping):
            found.append((where, items))
        elif isinstance(items, list) and isinstance(value, str):
            for inner, item in enumerate(items):
                if isinstance(item, Mapping):
                    found.append((f"{where}[{inner}]", item))
                else:
                    reader.wrong(f"{where}[{inner}]",
                                 f"expecting dict (a mapping), such as {json.dumps(example)}, not {shown(item)}")
        elif items is not _BROKEN:
            reader.wrong(where, f"expecting list or dict: a mapping such as {json.dumps(example)}, or the JSON text of one or "
                                f"of a list of them, not {shown(value)}")
    return found


_BROKEN = object()  # a text that is no JSON, which has been told


def _from_json(reader: strict_yaml.Reader, path: str, text: str, example: Mapping[str, str]) -> Any:

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        for key in found:
            if sum(1 for name, _ in items if name == key) > 1:
                reader.wrong(f"{path}.{key}", "stands there twice; keep one", "FieldValueDuplicate")
        return found

    try:
        return json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        short = text if len(text) <= 100 else f"{text[:97]}..."
        reader.wrong(path, f"invalid entry: {short!r} is no JSON ({error}); write for example {json.dumps(example)}")
        return _BROKEN


class _EntryFields:
    """One entry while it is read. Each getter answers something usable even when it complains."""

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
            self.wrong("resource_class", "cannot stand beside physical_network: a device of a network has the class "
                                         f"{NETWORK_CLASSES}; remove one of the two")
        if entry.devname and entry.pattern:
            self.wrong("devname", "cannot stand beside address: both say which device is meant; remove one of the two")
        if entry.one_time_use and not report:
            self.wrong("one_time_use", "one_time_use true requires report_in_placement to be on: that is where a used "
                                       "device is remembered")
        return entry

    def text(self, key: str) -> str | None:
        """A text without blanks around it; None if it is absent, empty or wrong."""
        value = self.value.get(key)
        if value is None or isinstance(value, str):
            return (value or "").strip() or None
        self.wrong(key, f"must be a text, not {shown(value)}")
        return None

    def network(self) -> str | None:
        """The name of a network, from which a trait can be made."""
        text = self.text("physical_network")
        try:
            for name in (text, f"PHYSNET_{text}") if text is not None else ():
                normal_trait(name)
            return text
        except errors.Invalid as error:
            self.wrong("physical_network", f"cannot be told to Placement: {error}")
            return None

    def empty(self, key: str, instead: str) -> bool:
        """Whether a key that says which devices are meant says nothing. A forgotten value must not offer everything."""
        if key in self.value and self.value[key] is None:
            self.wrong(key, f"is empty; {instead}, or leave {key} out if any will do")
            return True
        return False

    def id(self, key: str) -> str | None:
        value = self.value.get(key, pci_address_spec.ANY)
        if self.empty(key, "write four hex digits"):
            return None
        if not isinstance(value, str):
            self.wrong(key, f"must be hex digits as a text, for example \"10de\", not {shown(value)}")
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
            self.wrong("devname", "is empty; name a network interface such as ens1f0, or leave devname out")
        return self.text("devname")

    def pattern(self) -> Pattern | None:
        value = self.value.get("address")
        if self.empty("address", "write for example 0000:3b:00.0") or value is None or value in ("", {}):
            return None
        try:
            if isinstance(value, str):
                return pci_address_spec.of_text(value)
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
                self.wrong(f"address.{key}", f"the address has an incorrect format: {shown(text)} is no text with a regular "
                                             "expression")
        if len(given) < len(value) or not all(isinstance(text, str) for text in given.values()):
            return None
        return pci_address_spec.of_regexes(given)

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
            self.wrong("traits", f"must be a text such as \"A,B\" or a list of texts, not {shown(value)}")
            return frozenset()
        found = set()
        for item in items:
            try:
                if item.strip():
                    found.add(normal_trait(item))
            except errors.Invalid as error:
                self.wrong("traits", str(error))
        return frozenset(found)


def boolean(text: str) -> bool | None:
    """What a word says; None if it is none of those that say yes or no."""
    word = text.strip().lower()
    return word in _TRUE if word in _TRUE or word in _FALSE else None


def shown(value: Any) -> str:
    """A wrong value as JSON, short enough for a line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def normal_class(text: str) -> str:
    """A resource class as Placement knows it: "pgpu" -> PGPU, "far gpu" -> CUSTOM_FAR_GPU. Invalid if it knows no such."""
    upper = text.strip().upper()
    return upper if upper in _standard_classes() else _custom(text.strip(), upper, "resource class")


def normal_trait(text: str) -> str:
    """A trait as Placement knows it: "HW_GPU_API_VULKAN" stays, "fast link" -> CUSTOM_FAST_LINK. Invalid if it knows no
    such. A standard one must be written as it is, as for Nova."""
    name = text.strip()
    return name if name in _standard_traits() else _custom(name, name.upper(), "trait")


def generated_class(vendor: str, product: str) -> str:
    """The class of devices for which no other is given: CUSTOM_PCI_10DE_2235."""
    return f"CUSTOM_PCI_{vendor}_{product}".upper()


def _custom(text: str, upper: str, noun: str) -> str:
    if not upper:
        raise errors.Invalid(f"the {noun} is empty; write for example {CUSTOM}GPU")
    name = upper if upper.startswith(CUSTOM) else CUSTOM + re.sub("[^0-9A-Z]+", "_", upper)
    if len(name) > MAX_NAME:
        raise errors.Invalid(f"the {noun} {text[:40]!r}... is {len(name)} characters long as {name[:20]}...; at most "
                             f"{MAX_NAME} are allowed")
    if not _LEGAL.fullmatch(name):
        right = CUSTOM + (re.sub("[^0-9A-Z_]+", "_", upper.removeprefix(CUSTOM)) or "GPU")
        raise errors.Invalid(f"the {noun} {text!r} may have letters, digits and _ alone behind {CUSTOM}, and at least one; "
                             f"write for example {right}")
    return name


@functools.cache
def _standard_classes() -> frozenset[str]:
    import os_resource_classes  # noqa: PLC0415  only who has a device_spec needs it

    return frozenset(os_resource_classes.STANDARDS)


@functools.cache
def _standard_traits() -> frozenset[str]:
    import os_traits  # noqa: PLC0415  takes a twentieth of a second

    return frozenset(os_traits.get_traits())
