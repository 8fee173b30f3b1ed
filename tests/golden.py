"""Golden files: the words of a renderer, one file per renderer, so that a sentence is improved in one place.

    check(__file__, "summary", {"a cordoned host": summary(waiting), ...})     # golden/summary.txt beside the test

The whole file is compared, so that no entry outlives its case. `make golden` writes all of them again; read the diff."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

WRITE = bool(os.environ.get("OUTFITTER_GOLDEN"))


def check(test_file: str, name: str, texts: Mapping[str, str | Iterable[str]]) -> None:
    """`texts`: what was rendered, by the name of its case."""
    path = Path(test_file).parent / "golden" / f"{name}.txt"
    found = "\n".join(f"== {case}\n{_indented(text)}" for case, text in texts.items())
    if WRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    assert found.splitlines() == path.read_text().splitlines(), f"other words than in {path}; if they are better: make golden"


def _indented(text: str | Iterable[str]) -> str:
    lines = text.splitlines() if isinstance(text, str) else [line for each in text for line in each.splitlines()]
    return "".join(f"  {line}\n" for line in lines)
