"""VFs (`sriov`) and mediated devices (`mdev`) to create when a host starts: the sections of the configuration file. Parses and
matches them; `node.sriov` and `node.mdev` create the devices."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from outfitter.inventory import pci, strict_yaml
from outfitter.inventory.mdev import MdevType, Parent
from outfitter.inventory.strict_yaml import Section

SRIOV_KEYS = ("address", "vendor_id", "product_id", "count", "replace")
MDEV_KEYS = ("type", "parent", "count")
MAX_VFS = 65535
MAX_MDEVS = 1024
UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "mdev.outfitter.dev")
_TYPE = re.compile(r"[\x21-\x2e\x30-\x7e]{1,64}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Virtual:
    """`count` VFs on each PF that matches."""

    count: int
    address: str | None = None  # None, here and for the next two: any
    vendor: str | None = None
    product: str | None = None
    replace: bool = False  # also on a PF that has another number of VFs already

    def matches(self, function: pci.HostDevice) -> bool:
        return function.kind is pci.FunctionKind.PF and self.address in (None, function.address) and (
            self.vendor in (None, function.vendor)) and self.product in (None, function.product)


@dataclass(frozen=True, slots=True)
class Mediated:
    """`count` mediated devices of a type on each parent that matches."""

    type: str
    count: int
    parent: str | None = None  # a PCI address or the name of another parent; None: every parent that has the type


def entry_for(wanted: Sequence[Virtual], function: pci.HostDevice) -> Virtual | None:
    """The first entry that matches a function."""
    return next((entry for entry in wanted if entry.matches(function)), None)


def parents(functions: Iterable[pci.HostDevice], others: Iterable[Parent]) -> dict[str, tuple[MdevType, ...]]:
    """The parents of mediated devices and their types, by address or name."""
    return {**{function.address: function.mdev_types for function in functions if function.mdev_types},
            **{parent.name: parent.types for parent in others}}


def mdev_uuid(host: str, parent: str, type_: str, number: int) -> str:
    """The UUID of a mediated device that we create; the same after every start."""
    return str(uuid.uuid5(UUID_NAMESPACE, f"{host}/{parent}/{type_}/{number}"))


def read_sriov(section: Section, default: tuple[Virtual, ...]) -> tuple[Virtual, ...]:
    return _read(section, "sriov", default, SRIOV_KEYS, _virtual)


def read_mdev(section: Section, default: tuple[Mediated, ...]) -> tuple[Mediated, ...]:
    return _read(section, "mdev", default, MDEV_KEYS, _mediated)


def _read(
    section: Section, key: str, default: tuple[T, ...], keys: tuple[str, ...], parse_one: Callable[[Section], T | None]
) -> tuple[T, ...]:
    if key not in section.fields:
        return default
    if section.fields[key] is None:
        section.wrong(key, "is empty; for none write []")
    entries = (parse_one(section.reader.section(value, path, keys)) for path, value in section.items(key))
    return tuple(entry for entry in entries if entry is not None)


def _virtual(section: Section) -> Virtual | None:
    address = section.text("address", _address)
    vendor, product = section.hex("vendor_id", 4), section.hex("product_id", 4)
    if not any(section.has(key) for key in ("address", "vendor_id", "product_id")):
        section.missing("address", "name the PF: address: 0000:3b:00.0, or vendor_id and product_id")
    replace = section.text("replace", _boolean)
    count = _count(section, MAX_VFS)
    return None if count is None else Virtual(count, address, vendor, product, bool(strict_yaml.boolean(replace or "no")))


def _mediated(section: Section) -> Mediated | None:
    type_ = section.needed("type", "nvidia-232", _type)
    count = _count(section, MAX_MDEVS)
    return None if type_ is None or count is None else Mediated(type_, count, section.text("parent", _parent))


def _count(section: Section, most: int) -> int | None:
    if not section.has("count"):
        section.missing("count", "for example count: 4")
    return section.number("count", 0, most)


def _address(text: str) -> str | None:
    return None if pci.ADDRESS.fullmatch(text) else f"{text!r} is not a full PCI address; write for example 0000:3b:00.0"


def _type(text: str) -> str | None:
    return None if _TYPE.fullmatch(text) else f"{text!r} is not a type id; write for example nvidia-232"


def _parent(text: str) -> str | None:
    return None if _TYPE.fullmatch(text) else f"{text!r} is not an address or name of a parent; write for example 0000:65:00.0"


def _boolean(text: str) -> str | None:
    return None if strict_yaml.boolean(text) is not None else f"{text!r} is neither true nor false"
