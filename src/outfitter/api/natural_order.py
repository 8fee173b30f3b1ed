"""Sort order of names with numbers in output."""

from __future__ import annotations

import functools
import re


@functools.lru_cache(maxsize=1 << 16)
def natural(text: str) -> tuple[tuple[int, str], ...]:
    """Sorts node-2 before node-10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", text) if part)
