"""Trees of text, as they are drawn in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

# What trees are drawn with, and what stands for it on a terminal that knows letters alone.
LINES = {"└─ ": "`- ", "├─ ": "|- ", "│  ": "|  ", "…": "...", "–": "-"}


@dataclass(slots=True)
class Branch:
    """One thing of a tree: a title, some facts below it, and what hangs on it."""

    title: str
    below: list[Branch] = field(default_factory=list)
    facts: Sequence[str] = ()


def drawn(branch: Branch, width: int | None = None) -> Iterator[str]:
    """A branch with all below it; with a width, titles are cut there and facts stand in as many lines as they need."""
    return _drawn(branch, width, "", "")


def _drawn(branch: Branch, width: int | None, first: str, rest: str) -> Iterator[str]:
    yield _cut(first + branch.title, width)
    if branch.facts:
        yield from _wrap(branch.facts, rest + ("│  " if branch.below else "   "), width)
    for child in branch.below:
        last = child is branch.below[-1]
        yield from _drawn(child, width, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def _wrap(facts: Sequence[str], indent: str, width: int | None) -> Iterator[str]:
    """As many facts in a line as fit; a fact is not broken."""
    line = ""
    for fact in facts:
        longer = f"{line}, {fact}" if line else fact
        if line and width is not None and len(indent) + len(longer) >= width:
            yield f"{indent}{line},"
            longer = fact
        line = longer
    yield _cut(f"{indent}{line}", width)


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else f"{line[:width - 1]}…"


def spelled(lines: Iterable[str], *, plain: bool) -> Iterator[str]:
    """Lines as a terminal can show them; `plain` for one that knows letters alone."""
    for line in lines:
        text = line
        for piece, typed in LINES.items() if plain else ():
            text = text.replace(piece, typed)
        yield text.encode("ascii", "replace").decode() if plain else text


def is_plain() -> bool:
    """Whether the terminal cannot show what trees are drawn with."""
    try:
        return not "".join(LINES).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
