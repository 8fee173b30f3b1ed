"""The names by which a domain's devices are found again while it runs."""

from __future__ import annotations

import re

_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")


class Aliases:
    """Gives every device a name of its own. Those of the user begin with "ua-"; a letter that a hypervisor does not take in a
    name becomes an underscore, and a name that is taken gets one more."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def name(self, kind: str, name: str, number: int = 0) -> str:
        """For the device `name` of a kind; `number` counts the devices that one entry got."""
        out = "ua-" + _STRANGE.sub("_", f"{kind}-{name}" if kind else name) + (f"-{number}" if number else "")
        while out in self._taken:
            out += "_"
        self._taken.add(out)
        return out
