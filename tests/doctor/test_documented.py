"""docs/doctor.md lists every code of `outfit doctor`, in the words of --explain."""

from __future__ import annotations

import re

from outfitter.doctor.codes import CODES
from tests.e2e.process import ROOT


def test_docs_list_exactly_the_codes_of_doctor() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text()
    rows = re.findall(r"^\| `((?:host|cluster)-[a-z-]+)` \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    assert {code: (checks, explanation) for code, checks, explanation in rows} == {
        code: (entry.checks, entry.explanation) for code, entry in CODES.items()}
