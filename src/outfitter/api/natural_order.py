"""How names are sorted for people."""

from __future__ import annotations

import re


def natural(text: str) -> list[tuple[int, str]]:
    """Sorts node-2 before node-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", text) if part]
