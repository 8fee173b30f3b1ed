"""What a host is asked to make of its cards when it starts: virtual functions (`sriov`) and mediated devices (`mdev`) of the
configuration file. The inventory only reads what is asked; the node does it."""

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
SPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "mdev.outfitter.dev")
_TYPE = re.compile(r"[\x21-\x2e\x30-\x7e]{1,64}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Virtual:
    """So many virtual functions on each physical function that is meant."""

    count: int
    address: str | None = None  # None, as for the next two: any
    vendor: str | None = None
    product: str | None = None
    replace: bool = False  # also where somebody else switched on another number

    def matches(self, function: pci.HostDevice) -> bool:
        return function.kind is pci.FunctionKind.PF and self.address in (None, function.address) and (
            self.vendor in (None, function.vendor)) and self.product in (None, function.product)


@dataclass(frozen=True, slots=True)
class Mediated:
    """So many mediated devices of a type on each parent that is meant."""

    type: str
    count: int
    parent: str | None = None  # a PCI address or another parent's name; None: every one that has the type


def entry_for(wanted: Sequence[Virtual], function: pci.HostDevice) -> Virtual | None:
    """The entry that counts for a function."""
    return next((one for one in wanted if one.matches(function)), None)


def parents(functions: Iterable[pci.HostDevice], others: Iterable[Parent]) -> dict[str, tuple[MdevType, ...]]:
    """What can make mediated devices of which types, by the name that entries give it."""
    return {**{function.address: function.mdev_types for function in functions if function.mdev_types},
            **{parent.name: parent.types for parent in others}}


def mdev_uuid(host: str, parent: str, type_: str, number: int) -> str:
    """The UUID of a mediated device that is made, the same after every start."""
    return str(uuid.uuid5(SPACE, f"{host}/{parent}/{type_}/{number}"))


def read_sriov(section: Section, default: tuple[Virtual, ...]) -> tuple[Virtual, ...]:
    return _read(section, "sriov", default, SRIOV_KEYS, _virtual)


def read_mdev(section: Section, default: tuple[Mediated, ...]) -> tuple[Mediated, ...]:
    return _read(section, "mdev", default, MDEV_KEYS, _mediated)


def _read(
    section: Section, key: str, default: tuple[T, ...], keys: tuple[str, ...], one: Callable[[Section], T | None]
) -> tuple[T, ...]:
    if key not in section.fields:
        return default
    if section.fields[key] is None:
        section.wrong(key, "is empty; for none write []")
    found = (one(section.reader.section(value, path, keys)) for path, value in section.items(key))
    return tuple(each for each in found if each is not None)


def _virtual(section: Section) -> Virtual | None:
    address = section.text("address", _address)
    vendor, product = section.hex("vendor_id", 4), section.hex("product_id", 4)
    if not any(section.has(key) for key in ("address", "vendor_id", "product_id")):
        section.missing("address", "say which card: address: 0000:3b:00.0, or vendor_id and product_id")
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
    return None if pci.ADDRESS.fullmatch(text) else f"{text!r} is no PCI address in full; write for example 0000:3b:00.0"


def _type(text: str) -> str | None:
    return None if _TYPE.fullmatch(text) else f"{text!r} is no id of a type; write for example nvidia-232"


def _parent(text: str) -> str | None:
    return None if _TYPE.fullmatch(text) else f"{text!r} is no address or name of a parent; write for example 0000:65:00.0"


def _boolean(text: str) -> str | None:
    return None if strict_yaml.boolean(text) is not None else f"{text!r} is neither true nor false"
