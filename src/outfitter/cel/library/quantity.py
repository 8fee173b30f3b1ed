"""Kubernetes quantities: "1Gi", "500m", "2e3". Exact: every quantity is a whole number of nano-units."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from functools import total_ordering

INT_MAX = (1 << 63) - 1
INT_MIN = -(1 << 63)
NANO = 10**9
MAX_EXPONENT = 300  # beyond any amount of anything; keeps "1e999999999" from filling the memory


class QuantityFormat(enum.Enum):
    """How a quantity was written, and so how it is printed."""

    DECIMAL_SI = "DecimalSI"  # 12M
    BINARY_SI = "BinarySI"  # 12Mi
    DECIMAL_EXPONENT = "DecimalExponent"  # 12e6


_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_QUANTITY = re.compile(r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?(?P<suffix>[eEinumkKMGTP]*[-+]?[0-9]*)")
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]{1,18})")


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An amount. Compare with == and <; print with str()."""

    nano: int  # the amount in nano-units
    format: QuantityFormat = QuantityFormat.DECIMAL_SI
    # The power of ten Kubernetes keeps a 64-bit number at, or None where it fell back to a big decimal. It decides
    # nothing but `whole`: there 1k is a whole number, 1000m and 1.5Gi are not.
    scale: int | None = 0

    @property
    def whole(self) -> int | None:
        """The amount as int64, or None where Kubernetes says it is not an integer."""
        if self.scale is None or self.scale < 0:
            return None
        value = self.nano // NANO
        return value if INT_MIN <= value <= INT_MAX else None

    @property
    def sign(self) -> int:
        return (self.nano > 0) - (self.nano < 0)

    def approximate(self) -> float:
        try:
            return self.nano / NANO
        except OverflowError:
            return float("inf") if self.nano > 0 else float("-inf")

    def __add__(self, other: Quantity) -> Quantity:
        nano = self.nano + other.nano
        format_ = self.format if self.nano else other.format
        return Quantity(nano, format_, _common_scale(self, other, nano))

    def __sub__(self, other: Quantity) -> Quantity:
        return self + replace(other, nano=-other.nano)

    def __eq__(self, other: object) -> bool:
        return self.nano == other.nano if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.nano < other.nano

    def __hash__(self) -> int:
        return hash(self.nano)

    def __str__(self) -> str:
        """The canonical form: no fraction, and the largest suffix that needs none."""
        if self.nano == 0:
            return "0"
        if self.format is QuantityFormat.BINARY_SI and abs(self.nano) >= 1024 * NANO and self.nano % NANO == 0:
            amount, power = self.nano // NANO, 0
            while amount % 1024 == 0 and power < len(_BINARY):
                amount, power = amount // 1024, power + 1
            return f"{amount}{['', *_BINARY][power]}"
        amount, exponent = self.nano, -9
        exponential = self.format is QuantityFormat.DECIMAL_EXPONENT
        while amount % 1000 == 0 and (exponential or exponent < 18):
            amount, exponent = amount // 1000, exponent + 3
        if exponential:
            return f"{amount}e{exponent}" if exponent else str(amount)
        return f"{amount}{_DECIMAL_SUFFIX[exponent]}"


def from_int(value: int) -> Quantity:
    """A whole number as a quantity."""
    return Quantity(value * NANO, QuantityFormat.DECIMAL_EXPONENT, 0)


def parse(text: str) -> Quantity:
    """Read a quantity; ValueError says what is wrong. What is finer than a nano-unit is rounded away from zero."""
    match = _QUANTITY.fullmatch(text)
    if match is None or not (match["whole"] or match["part"]):
        raise ValueError(f"{text[:60]!r} is not a quantity: write a number and a suffix, such as 500m, 16, 4k or 1.5Gi")
    whole, part = match["whole"].lstrip("0"), match["part"] or ""
    if len(whole) + len(part) > MAX_EXPONENT:
        raise ValueError(f"{text[:60]!r}... is not a quantity: at most {MAX_EXPONENT} digits")
    base, exponent, format_ = _suffix(text, match["suffix"])
    digits = int(whole + part or "0")
    if base == 2:
        above, below = (digits << exponent) * NANO, 10 ** len(part)
    else:
        above, below = digits * 10 ** max(0, exponent + 9), 10 ** (len(part) + max(0, -exponent - 9))
    nano = -(-above // below)
    scale = _kept_scale(digits, len(whole or "0"), len(part), base, exponent)
    if base == 2 and scale is None:
        nano = min(nano, INT_MAX * NANO)
        if 0 < nano < NANO:
            format_ = QuantityFormat.DECIMAL_SI
    return Quantity(-nano if match["sign"] == "-" else nano, format_, scale)


def _suffix(text: str, suffix: str) -> tuple[int, int, QuantityFormat]:
    """What a suffix means: base, exponent, and the format it belongs to."""
    if suffix in _DECIMAL:
        return 10, _DECIMAL[suffix], QuantityFormat.DECIMAL_SI
    if suffix in _BINARY:
        return 2, _BINARY[suffix], QuantityFormat.BINARY_SI
    if match := _EXPONENT.fullmatch(suffix):
        exponent = int(match[1])
        if abs(exponent) > MAX_EXPONENT:
            raise ValueError(f"unable to parse quantity's suffix: the exponent of {text[:60]!r} is beyond {MAX_EXPONENT}")
        return 10, exponent, QuantityFormat.DECIMAL_EXPONENT
    known = " ".join(one for one in (*_DECIMAL, *_BINARY) if one)
    raise ValueError(f"unable to parse quantity's suffix: {suffix!r} in {text[:60]!r} is none of {known} or an exponent")


def _kept_scale(digits: int, whole: int, part: int, base: int, exponent: int) -> int | None:
    """The scale Kubernetes keeps a parsed number at: see Quantity.scale. `whole` and `part` count digits."""
    if base == 2:
        room = 15 - whole - exponent * 3 // 10 - 1
        return 0 if part == 0 and room >= 0 else None
    scale = exponent - part
    return scale if whole + part <= 18 and scale >= -9 and digits <= INT_MAX else None


def _common_scale(a: Quantity, b: Quantity, nano: int) -> int | None:
    if a.scale is None or b.scale is None:
        return None
    if b.nano == 0 or a.nano == 0:
        return a.scale if b.nano == 0 else b.scale
    scale = min(a.scale, b.scale)
    unit = 10 ** (scale + 9)
    fits = all(INT_MIN <= value // unit <= INT_MAX for value in (a.nano, b.nano, nano))
    return scale if fits else None
