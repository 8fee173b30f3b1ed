"""Semantic versions, strict as semver.org writes them; or normalised first, where the user asks for that."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import total_ordering

UINT_MAX = (1 << 64) - 1

_NUMBER = r"(0|[1-9][0-9]*)"
_ID = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_ID}(?:\.{_ID})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?")

_Rank = tuple[int, int, str]


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """One version. Build metadata is kept and printed but has no part in comparing."""

    major: int
    minor: int
    patch: int
    pre: tuple[str, ...] = ()  # dot-separated pre-release identifiers
    build: tuple[str, ...] = ()
    # Sorts as versions do: a release after its pre-releases, numbers before words.
    order: tuple[int, int, int, bool, tuple[_Rank, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ranks = tuple((0, int(one), "") if one.isdecimal() else (1, 0, one) for one in self.pre)
        object.__setattr__(self, "order", (self.major, self.minor, self.patch, not self.pre, ranks))

    def __eq__(self, other: object) -> bool:
        return self.order == other.order if isinstance(other, Semver) else NotImplemented

    def __lt__(self, other: Semver) -> bool:
        return self.order < other.order

    def __hash__(self) -> int:
        return hash(self.order)

    def __str__(self) -> str:
        pre = "-" + ".".join(self.pre) if self.pre else ""
        build = "+" + ".".join(self.build) if self.build else ""
        return f"{self.major}.{self.minor}.{self.patch}{pre}{build}"


def parse(text: str, *, normalize: bool = False) -> Semver:
    """Read a version; ValueError says what is wrong. `normalize` first drops a leading v and leading zeros and adds
    a missing minor and patch."""
    match = _VERSION.fullmatch(_normalized(text) if normalize else text)
    if match is None:
        raise ValueError(f"{text!r} is not a semantic version: write MAJOR.MINOR.PATCH, such as 1.2.3 or 1.2.3-rc.1")
    numbers = [match[1], match[2], match[3], *(one for one in (match[4] or "").split(".") if one.isdecimal())]
    if any(len(number) > 20 or int(number) > UINT_MAX for number in numbers):
        raise ValueError(f"{text!r} is not a semantic version: a number in it does not fit 64 bits")
    pre = tuple(match[4].split(".")) if match[4] else ()
    build = tuple(match[5].split(".")) if match[5] else ()
    return Semver(int(match[1]), int(match[2]), int(match[3]), pre, build)


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    for at, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[at] = stripped if stripped[:1] in tuple("123456789") else "0" + stripped
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise ValueError(f"{text!r}: a short version cannot have a pre-release or build part: write all 3 numbers")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)
