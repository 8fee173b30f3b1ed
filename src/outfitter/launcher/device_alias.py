"""Aliases of a domain's devices, by which they are found while it runs. Called by `devices`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_INVALID = re.compile(r"[^a-zA-Z0-9_-]")


class DeviceAliases:
    """Gives every device a unique alias with libvirt's prefix "ua-" for user aliases. An invalid character becomes an
    underscore; a duplicate gets an underscore appended. Aliases of host devices are reserved first, as these are found by their
    entry's name."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        """`taken`: those of a domain that runs."""
        self._taken = set(taken)
        self._reserved: set[str] = set()

    def reserve(self, kind: str, name: str) -> None:
        """Reserve the alias of the first device of this entry."""
        self._reserved.add(_alias(kind, name))

    def name(self, kind: str, name: str, number: int = 0) -> str:
        """The alias of the device `name` of a kind; `number` counts the devices of one entry."""
        out = _alias(kind, name) + (f"-{number}" if number else "")
        while out in self._taken or (out in self._reserved and (number or not kind)):
            out += "_"
        self._taken.add(out)
        return out


def _alias(kind: str, name: str) -> str:
    return "ua-" + _INVALID.sub("_", f"{kind}-{name}" if kind else name)
