"""Options for the cases as data, and where their folder is.

`--cases DIR` names it; without the option the folder `shared/cases` and those of NEXT beside the repository are used when they
are there."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
OWN = Path(__file__).parent / "own"  # the project's own cases, which every test run runs
DEFAULT = SHARED / "cases"
NEXT = (SHARED / "cases-next" / "kubevirt", SHARED / "cases-next" / "assignment")  # further cases of the formats of DEFAULT
FOLDER, NOT_BUILT = "--cases", "--cases-not-built"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cases", "cases as data (tests/cases)")
    group.addoption(FOLDER, metavar="DIR", help="run every *.yaml and *.json below DIR "
                                                 "(default: ../shared/cases and those of cases-next)")
    group.addoption(NOT_BUILT, action="store_true", help="also run the areas that are not built yet")


def folders(config: pytest.Config) -> list[Path]:
    """The folders of the cases; empty when none was named and the usual ones are not there."""
    given = config.getoption(FOLDER)
    if given is None:
        return [path for path in (DEFAULT, *NEXT) if path.is_dir()]
    path = Path(config.invocation_params.dir, given).resolve()
    if not path.is_dir():
        raise pytest.UsageError(f"{FOLDER} {given}: there is no such folder")
    return [path]
