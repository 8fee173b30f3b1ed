"""Options for the cases as data, and where their folder is.

`--cases DIR` names it; without the option a folder `shared/cases` beside the repository is used when there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ROOT.parent / "shared" / "cases"
FOLDER, NOT_BUILT = "--cases", "--cases-not-built"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cases", "cases as data (tests/cases)")
    group.addoption(FOLDER, metavar="DIR", help="run every *.yaml and *.json below DIR (default: ../shared/cases)")
    group.addoption(NOT_BUILT, action="store_true", help="also run the areas that are not built yet")


def folder(config: pytest.Config) -> Path | None:
    """The folder of the cases; None when none was named and the usual one is not there."""
    given = config.getoption(FOLDER)
    if given is None:
        return DEFAULT if DEFAULT.is_dir() else None
    path = Path(config.invocation_params.dir, given).resolve()
    if not path.is_dir():
        raise pytest.UsageError(f"{FOLDER} {given}: there is no such folder")
    return path
