"""Patterns of PCI addresses in Nova's syntax: a text in which parts may be missing or "*", or a regular expression for each
part. Pure; called by `device_spec_parser` and `device_spec`."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from outfitter import errors
from outfitter.inventory import pci

PARTS = ("domain", "bus", "slot", "function")
ANY, ANYTHING = "*", ".*"  # as a part of a text, and as a regular expression
FORM = "[[[domain:]bus:]slot][.function], for example 0000:3b:00.0, 3b:00 or *:3b:*.1"
MAX_DOMAIN = 0xFFFF  # an address with a larger domain matches no pattern

# Part -> its largest value, the digits it is written with, and the word for it in messages.
_LIMITS = {"domain": (MAX_DOMAIN, 4, "domain"), "bus": (0xFF, 2, "bus"), "slot": (0x1F, 2, "slot"),
           "function": (7, 1, "func")}
_HEX = re.compile(r"(0[xX])?[0-9a-fA-F]+")
_PLAIN = re.compile(r"[0-9a-fA-F]*")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One of the two forms of a pattern; the other's field is empty."""

    parts: tuple[str | None, ...] = ()  # in the form of an address; None for any
    regexes: tuple[re.Pattern[str], ...] = ()  # each must match at the beginning of its part
    single: str | None = None  # the only address that matches; that of a PF selects its VFs too

    def __str__(self) -> str:
        if self.regexes:
            return " ".join(f"{name}~{regex.pattern}" for name, regex in zip(PARTS, self.regexes, strict=True)
                            if regex.pattern != ANYTHING)
        domain, bus, slot, function = (part or ANY for part in self.parts)
        return f"{domain}:{bus}:{slot}.{function}"

    def matches(self, parts: tuple[str, ...]) -> bool:
        """Whether an address matches; `parts` are its four parts."""
        if self.regexes:
            return all(regex.match(part) for regex, part in zip(self.regexes, parts, strict=True))
        return all(expected is None or expected == part for expected, part in zip(self.parts, parts, strict=True))


@functools.lru_cache(maxsize=65_536)
def split(address: str) -> tuple[str, ...] | None:
    """The four parts of an address; None for one that no pattern matches."""
    match = pci.ADDRESS.fullmatch(address)
    if match is None or int(match[1], 16) > MAX_DOMAIN:
        return None
    domain, bus, slot, function = match.groups()
    return domain[-4:], bus, slot, function


def from_text(text: str) -> Pattern:
    """ "0000:3b:00.0", "3b:00", ".1"; Invalid says which part is wrong."""
    location, _, function = text.partition(".")
    fields = location.split(":")
    if len(fields) > 3:
        raise errors.Invalid(f"the address {text!r} has an incorrect format; write {FORM}")
    fields = [ANY] * (3 - len(fields)) + fields + [function]
    parts = tuple(_part(name, field.strip(), text) for name, field in zip(PARTS, fields, strict=True))
    domain, bus, slot, function = (part or "" for part in parts)
    return Pattern(parts, single=f"{domain}:{bus}:{slot}.{function}" if all(parts) else None)


def _part(name: str, text: str, whole: str) -> str | None:
    if text in ("", ANY):
        return None
    high, digits, word = _LIMITS[name]
    if not _HEX.fullmatch(text):
        hint = f"; * must be the whole part ({ANY} for any {word}); for patterns within a part use a mapping of " \
              f"regular expressions" if ANY in text else f"; the format is {FORM}"
        raise errors.Invalid(f"the {word} {text!r} of the address {whole!r} is not a hex number{hint}")
    value = int(text, 16)
    if value > high:
        hint = f"; a lone number is a slot, a bus is written {text}:*" if name == "slot" and ":" not in whole else ""
        raise errors.Invalid(f"the {word} {text!r} of the address {whole!r} is greater than the maximum {high:X}{hint}")
    return f"{value:0{digits}x}"


def from_regexes(given: Mapping[str, str]) -> Pattern:
    """{"bus": "3[bc]"}: missing parts match anything; Invalid says which expression is wrong. The keys are `PARTS`."""
    compiled = []
    for name in PARTS:
        text = given.get(name, ANYTHING)
        try:
            with warnings.catch_warnings(action="ignore"):  # about syntax that a later Python may read differently
                compiled.append(re.compile(text))
        except (re.error, RecursionError, OverflowError) as error:
            raise errors.Invalid(f"the address has an incorrect format: its {name} {text!r} is not a regular expression: "
                                 f"{error}") from error
    texts = [given.get(name, ANYTHING) for name in PARTS]
    address = f"{texts[0]}:{texts[1]}:{texts[2]}.{texts[3]}"
    plain = all(_PLAIN.fullmatch(text) for text in texts) and split(address) is not None
    return Pattern(regexes=tuple(compiled), single=address if plain else None)
