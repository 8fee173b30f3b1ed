"""Which part of a selector a device fails: the selector is cut at its outermost &&, and each part is evaluated by itself.

    failing(device, selectors, owners)   # owner request gpu, term model == "A100", has {"model": "A40"}

For explanations, not for the allocator, which evaluates whole selectors."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.cel import lexer
from outfitter.cel.lexer import Source, TokenKind
from outfitter.errors import Invalid
from outfitter.scheduling.dra.claim_request import SelectorOwner
from outfitter.scheduling.dra.selector_cache import SelectorQuery
from outfitter.scheduling.dra.slices import PublishedDevice

MOST = 32  # terms that are evaluated; a longer selector is reported as a whole
NAMED = 4  # attributes of a part, that are named
LENGTH = 120  # letters of a part that are shown
_NAME = r"""(?:\.\??(?P<{0}a>\w+)|\[\s*\??\s*(?P<{0}q>["'])(?P<{0}b>[^"']+)(?P={0}q)\s*\])"""
_DEFAULT = r"""(?:\.orValue\((?:[^()]|\([^()]*\))*\))?"""  # of the optional spelling
_REFERENCE = re.compile(
    r"""\bdevice\.(?P<map>attributes|capacity)\[\s*(?P<quote>["'])(?P<domain>[^"']+)(?P=quote)\s*\]"""
    + _NAME.format("n") + _DEFAULT + r"""|\bdevice\.(?P<plain>driver|allowMultipleAllocations)\b""")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


@dataclass(frozen=True, slots=True)
class FailedTerm:
    """The part of a selector that is not true of a device."""

    owner: SelectorOwner
    term: str  # with attributes by their short names
    passed: int  # parts that are true; the more, the nearer the device is
    has: Mapping[str, str]  # what the device publishes of all that the part reads
    lacks: tuple[str, ...]  # what it does not publish

    @property
    def detail(self) -> dict[str, Any]:
        """As a rejection carries it."""
        return {"owner": self.owner.short, "selector": self.owner.number + 1, "selectors": self.owner.total, "term": self.term,
                "has": self.has, "lacks": self.lacks, "passed": self.passed}


@functools.lru_cache(maxsize=1024)
def split(text: str) -> tuple[str, ...]:
    """The terms of the outermost chain of &&; the whole text if that is no such chain, or one that is too long."""
    try:
        found = lexer.tokens(Source(text))
    except Invalid:
        return (text,)
    cuts, depth, wrapped = [0], 0, bool(found) and found[0].text == "("
    for number, token in enumerate(found):
        if token.kind is not TokenKind.OP:
            continue
        if token.text in _OPENING:
            depth += 1
        elif token.text in _CLOSING:
            depth -= 1
            wrapped &= depth > 0 or number == len(found) - 2
        elif depth == 0 and token.text in ("||", "?"):
            return (text.strip(),)
        elif depth == 0 and token.text == "&&":
            cuts += [token.pos, token.pos + 2]
    if wrapped and len(cuts) == 1:
        return split(text[found[0].pos + 1:found[-2].pos])
    cuts.append(len(text))
    terms = [text[begin:end].strip() for begin, end in zip(cuts[::2], cuts[1::2], strict=True)]
    flat = [part for term in terms for part in (split(term) if len(terms) > 1 else (term,))]
    return tuple(flat) if len(flat) <= MOST else (text.strip(),)


def failing(device: PublishedDevice, selectors: Sequence[str], owners: Sequence[SelectorOwner]) -> FailedTerm | None:
    """The first part that is not true of a device; None if all of them are."""
    passed = 0
    for position, text in enumerate(selectors):
        terms = split(text)
        if _verdict(device, text) is True:
            passed += len(terms)
            continue
        verdicts = [_verdict(device, term) for term in terms]
        wrong = next((term for term, verdict in zip(terms, verdicts, strict=True) if verdict is False), text.strip())
        read = _read(device, wrong)
        return FailedTerm(
            owners[position], _shown(wrong), passed + sum(verdict is True for verdict in verdicts),
            dict([(name, value) for name, value in read.items() if value][:NAMED]),
            tuple([name for name, value in read.items() if not value][:NAMED]))
    return None


def _verdict(device: PublishedDevice, text: str) -> bool | None:
    """Does a selector match? None: it has no answer for this device."""
    result = SelectorQuery((text,)).directly(device)
    return None if result.why else result.matches


def _shown(term: str) -> str:
    words = " ".join(_REFERENCE.sub(lambda found: found["plain"] or found["na"] or found["nb"], term).split())
    return words if len(words) <= LENGTH else f"{words[:LENGTH - 3]}..."


def _read(device: PublishedDevice, term: str) -> dict[str, str]:
    """What the device publishes of all that a part reads; "" for what it does not."""
    has: dict[str, str] = {}
    for found in _REFERENCE.finditer(term):
        if found["plain"]:
            driver = found["plain"] == "driver"
            has[found["plain"]] = device.id.driver if driver else str(device.shared).lower()
            continue
        name = found["na"] or found["nb"]
        raw = _find(device, found["map"], found["domain"], name)
        value = None if raw is None else next(iter(raw.values()), None)
        has[name] = "" if value is None else _value(value)
    return has


def _find(device: PublishedDevice, which: str, domain: str, name: str) -> Mapping[str, Any] | None:
    if which == "attributes":
        return device.attribute(f"{domain}/{name}")
    there = device.raw.get("capacity") or {}
    found: Mapping[str, Any] | None = there.get(f"{domain}/{name}") or (there.get(name) if domain == device.id.driver else None)
    return {"value": found.get("value")} if found else None


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value[:4]))}{', ...' if len(value) > 4 else ''}]"
    text = str(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f'"{text}"' if not text or " " in text or "," in text else text
