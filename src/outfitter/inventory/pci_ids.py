"""Names of PCI vendors, products and classes, from the pci.ids database that most systems have.

The database has tens of thousands of lines, of which a host needs a few dozen. So it is not parsed: the file is kept as bytes,
a name is searched for when needed, and the result is cached. Called for slices and by the CLI."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE = "OUTFITTER_PCI_IDS"  # environment variable with the path; then PLACES are not searched
PLACES = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids", "/var/lib/pciutils/pci.ids")
MISSING = f"For names of vendors and products install the package pci.ids or hwdata, or set {VARIABLE}."
MAX_BYTES = 16 << 20  # ten times the size of the database; a larger file is something else
MAX_NAME = 200  # characters

_HEX = frozenset("0123456789abcdef")
_TOP = re.compile(rb"\n(?=[0-9a-fA-F]{4}  |C [0-9a-fA-F]{2}  )")  # where a vendor or class begins


class PciIds:
    """One database; without data every name is None."""

    def __init__(self, data: bytes | None) -> None:
        self._data: Final = b"\n%b\n" % (data or b"").replace(b"\r\n", b"\n")
        self._vendors: dict[str, tuple[int, int]] = {}  # start and end of the section of a vendor or class
        self._found: dict[tuple[str, ...], str | None] = {}

    def __bool__(self) -> bool:
        return len(self._data) > 2

    def vendor_and_product(self, vendor: str | None, product: str | None) -> tuple[str | None, str | None]:
        """The names of a vendor and its product, each None if unknown."""
        return self._name(vendor), self._name(vendor, product) if product is not None else None

    def class_name(self, class_code: str | None) -> str | None:
        """The name of a class of six hex digits: of its subclass if that has one, else of its class."""
        if class_code is None or len(class_code) != 6 or not _HEX.issuperset(class_code):
            return None
        return self._name(f"C {class_code[:2]}", class_code[2:4]) or self._name(f"C {class_code[:2]}")

    def _name(self, top: str | None, below: str | None = None) -> str | None:
        if top is None or not _HEX.issuperset(top.removeprefix("C ") + (below or "")):
            return None
        key = (top,) if below is None else (top, below)
        if key not in self._found:
            self._found[key] = self._search(top, below)
        return self._found[key]

    def _search(self, top: str, below: str | None) -> str | None:
        start, end = self._section(top)
        if start < 0:
            return None
        if below is None:
            return _text(self._data[start + len(top) + 3:self._data.find(b"\n", start + 1)])
        prefix = f"\n\t{below}  ".encode()
        at = self._data.find(prefix, start, end)
        return _text(self._data[at + len(prefix):self._data.find(b"\n", at + 1)]) if at >= 0 else None

    def _section(self, top: str) -> tuple[int, int]:
        """Start (the line break before it) and end of the section of a vendor or class; the start is -1 if there is none."""
        if top not in self._vendors:
            start = self._data.find(f"\n{top}  ".encode())
            following = _TOP.search(self._data, start + 1) if start >= 0 else None
            self._vendors[top] = start, following.start() + 1 if following else len(self._data)
        return self._vendors[top]


def _text(line: bytes) -> str | None:
    text = "".join(char if char.isprintable() else " " for char in line.decode("utf-8", "replace")).strip()
    return text[:MAX_NAME] or None


def database(environment: Mapping[str, str] = os.environ) -> PciIds:
    """The database of this system, read once; an empty one if there is none."""
    place = environment.get(VARIABLE) or next((place for place in PLACES if os.path.isfile(place)), None)
    return _read(place) if place is not None else PciIds(None)


@functools.cache
def _read(place: str) -> PciIds:
    try:
        with Path(place).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError:
        return PciIds(None)
    return PciIds(data if len(data) <= MAX_BYTES else None)
