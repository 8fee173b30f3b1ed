"""The names by which a domain's devices are found again while it runs."""

from __future__ import annotations

import re

_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")


class DeviceAliases:
    """Gives every device a name of its own. Those of the user begin with "ua-"; a letter that a hypervisor does not take in a
    name becomes an underscore, and a name that is taken gets one more. A device of the host is found by the name of its entry,
    so that is kept for it, whatever else would be called the same."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._kept: set[str] = set()

    def keep(self, kind: str, name: str) -> None:
        """Nobody else gets the name of the first device of this entry."""
        self._kept.add(_alias(kind, name))

    def name(self, kind: str, name: str, number: int = 0) -> str:
        """For the device `name` of a kind; `number` counts the devices that one entry got."""
        out = _alias(kind, name) + (f"-{number}" if number else "")
        while out in self._taken or (out in self._kept and (number or not kind)):
            out += "_"
        self._taken.add(out)
        return out


def _alias(kind: str, name: str) -> str:
    return "ua-" + _STRANGE.sub("_", f"{kind}-{name}" if kind else name)
