"""`make test` runs the checks beside the tests: what fails is the last that is printed, and fails the whole."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.process import PATIENCE, ROOT

FAILED = "FAILED: make check, for the reason above"
CASES = {
    "both pass": (0, 0, 0, ["make check:", "checked"]),
    "the checks fail": (0, 1, 1, ["make check:", "checked", FAILED]),
    "tests fail": (5, 0, 5, ["make check:", "checked"]),
    "both fail": (1, 2, 1, ["make check:", "checked", f"{FAILED}, and tests, above that"]),
    "pytest was interrupted": (2, 0, 2, ["tested"]),
}


@pytest.mark.parametrize(("tests", "checks", "code", "last"), CASES.values(), ids=CASES)
def test_the_end(tmp_path: Path, tests: int, checks: int, code: int, last: list[str]) -> None:
    (tmp_path / "make").write_text(f"#!/bin/sh\necho checked\nexit {checks}\n")
    (tmp_path / "make").chmod(0o755)
    done = subprocess.run([ROOT / "scripts" / "check-and-test", "sh", "-c", f"echo tested; exit {tests}"], text=True,
                          env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}, capture_output=True,
                          timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout.splitlines()[-len(last):], done.stderr) == (code, last, "")
    assert done.stdout.startswith("tested\n")
    assert [path.name for path in tmp_path.iterdir()] == ["make"], "it leaves no file behind"
