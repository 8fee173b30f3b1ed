"""CPU lists as the kernel writes them: "0-7,16-23"."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PART = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def numbers(text: str) -> list[int]:
    """The numbers of a list, sorted. ValueError if it is malformed, has a descending range or a number twice."""
    found: list[int] = []
    for part in text.split(","):
        ends = _PART.fullmatch(part.strip())
        if ends is None:
            raise ValueError(f"{part!r} is not a number or range")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first:
            raise ValueError(f"{part!r} is a descending range")
        found += range(first, last + 1)
    if len(set(found)) < len(found):
        raise ValueError("a number is listed twice")
    return sorted(found)


def without_excluded(text: str) -> list[int]:
    """The numbers of a list in Nova's syntax, where "^8" excludes a number or range: "4-12,^8". "" is empty. ValueError as
    for `numbers`."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    kept = [part for part in parts if not part.startswith("^")]
    excluded = {number for part in parts if part.startswith("^") for number in numbers(part[1:])}
    return [number for number in numbers(",".join(kept)) if number not in excluded] if kept else []


def text(numbers: Iterable[int]) -> str:
    """The shortest list of these numbers."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
