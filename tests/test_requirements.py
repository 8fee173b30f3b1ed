"""docs/requirements.md: numbers are unique and in order, and every test, case and example that it names exists."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
PAGE = (ROOT / "docs" / "requirements.md").read_text()
ROW = re.compile(r"^\| (R(\d{3})-(\d+)) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
ROWS = {row[1]: row for row in ROW.finditer(PAGE)}
TEST = re.compile(r"`([\w/]+\.(?:py|yaml))::([^`\[]+)(?:\[([^`]+)\])?`")
EXAMPLE = re.compile(r"\]\(\.\./(examples/[^)]+)\)")
REASON = re.compile(r"(Not yet|Not here|Not held): \w")
DOCUMENTS = {"000": 60, "001": 40, "002": 60, "003": 20, "004": 20}  # and the least number of requirements of each


@functools.cache
def _text(file: str) -> str:
    return (TESTS / file).read_text()


@functools.cache
def _strings(file: str) -> frozenset[str]:
    """The strings of a test module, among them the names of its cases."""
    nodes = ast.walk(ast.parse(_text(file)))
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _missing(file: str, name: str, case: str | None) -> bool:
    if not (TESTS / file).is_file():
        return True
    if file.endswith(".yaml"):
        return not file.startswith("cases/own/") or f"\n- name: {name}\n" not in f"\n{_text(file)}"
    return f"def {name}(" not in _text(file) or (
        case is not None and f'"{case}"' not in _text(file) and case not in _strings(file))


def test_numbers_are_unique_and_in_order() -> None:
    numbers = [(row[2], int(row[3])) for row in ROW.finditer(PAGE)]
    lines = [line for line in PAGE.splitlines() if line.startswith("| R")]
    assert len(lines) == len(numbers), "a row that is none"
    for document, least in DOCUMENTS.items():
        of_document = [number for which, number in numbers if which == document]
        assert of_document == list(range(1, len(of_document) + 1))
        assert len(of_document) >= least
    assert [which for which, _ in numbers] == sorted(which for which, _ in numbers), "one section for each document"
    assert {which for which, _ in numbers} == set(DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_requirement_has_a_test_an_example_or_a_reason(document: str) -> None:
    bare = [number for number, row in ROWS.items() if row[2] == document
            and not (TEST.search(row[5]) or EXAMPLE.search(row[5]) or REASON.match(row[5]))]
    assert bare == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_test_that_is_named_exists(document: str) -> None:
    missing = [f"{number}: {found[0]}" for number, row in ROWS.items() if row[2] == document
               for found in TEST.finditer(row[5]) if _missing(found[1], found[2], found[3])]
    assert missing == []


def test_every_name_in_the_last_column_is_a_test() -> None:
    """What looks like a test and is not read as one would not be checked."""
    shown = [(row[1], re.findall(r"`([^`]*)`", row[5])) for row in ROW.finditer(PAGE)]
    assert [(number, word) for number, words in shown for word in words
            if ("::" in word or word.endswith(".py")) and not TEST.fullmatch(f"`{word}`")] == []
