"""Draws trees in a terminal. Used by `outfit scan`, `devices -o tree` and `providers -o tree`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

# Box-drawing characters, and their replacements on a terminal that shows ASCII only.
LINES = {"└─ ": "`- ", "├─ ": "|- ", "│  ": "|  ", "…": "...", "–": "-"}


@dataclass(slots=True)
class Branch:
    """A node of a tree: a title, facts below it, and its children."""

    title: str
    below: list[Branch] = field(default_factory=list)
    facts: Sequence[str] = ()


def tree_lines(branch: Branch, width: int | None = None) -> Iterator[str]:
    """A branch and its descendants; with a width, titles are cut and facts are wrapped there."""
    return _drawn(branch, width, "", "")


def _drawn(branch: Branch, width: int | None, first: str, rest: str) -> Iterator[str]:
    yield _cut(first + branch.title, width)
    if branch.facts:
        yield from _wrap(branch.facts, rest + ("│  " if branch.below else "   "), width)
    for child in branch.below:
        last = child is branch.below[-1]
        yield from _drawn(child, width, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def _wrap(facts: Sequence[str], indent: str, width: int | None) -> Iterator[str]:
    """As many facts in a line as fit; a fact is never split."""
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


def for_terminal(lines: Iterable[str], *, plain: bool) -> Iterator[str]:
    """Lines as the terminal can show them; `plain`: it shows ASCII only."""
    for line in lines:
        text = line
        for piece, ascii_text in LINES.items() if plain else ():
            text = text.replace(piece, ascii_text)
        yield text.encode("ascii", "replace").decode() if plain else text


def is_ascii_only() -> bool:
    """Whether the terminal cannot show box-drawing characters."""
    try:
        return not "".join(LINES).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
