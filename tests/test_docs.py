"""Links in the documents lead somewhere, and the source files they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "outfitter"
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")),
             *sorted((ROOT / "examples").rglob("*.md"))]
FLOW = ROOT / "docs" / "flow.md"


def _anchors(document: Path) -> set[str]:
    """The anchors that GitHub makes of a document's headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _sources(text: str) -> set[str]:
    """The source files that a document names in backticks, below src/outfitter."""
    return set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py|app\.py)`", text))


def _missing(paths: set[str]) -> list[str]:
    return sorted(path for path in paths if not any((folder / path).is_file() for folder in (SOURCE, ROOT, ROOT / "tests")))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_document_lead_somewhere(document: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if "://" not in link and not (target.exists() and (not anchor or anchor in _anchors(target))):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_files_that_a_document_names_exist(document: Path) -> None:
    assert _missing(_sources(document.read_text())) == []


def test_the_flow_names_files_for_every_step_and_every_writer_of_vmi_status() -> None:
    steps, writers, places = re.split(r"^## .*$", FLOW.read_text(), flags=re.MULTILINE)
    for section, fewest in ((steps, 15), (writers, 15), (places, 20)):
        rows = re.findall(r"^\| (?!---)(.*)$", section, re.MULTILINE)[1:]
        assert len(rows) >= fewest
        assert [row for row in rows if not _sources(row) and "the writer of the phase" not in row] == []


def test_every_document_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#\s]+\.md)", (ROOT / "README.md").read_text()))
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")} - linked == set()
