"""A run that fails ends with commands, each of which runs one of the failed tests."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import failed_tests

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parent.parent
CODE = """
import pytest

@pytest.fixture
def broken():
    raise OSError

@pytest.mark.parametrize("name", ["it's", "ok"])
def test_name(name):
    assert name == "ok"

def test_set_up(broken):
    pass
"""


def run(folder: Path, *words: str) -> list[str]:
    done = subprocess.run(words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), "KUBEBUILDER_ASSETS": "/some where"},
                          capture_output=True, text=True, timeout=300, check=False)
    return done.stdout.splitlines()


def test_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(CODE)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p tests.failed_tests -p tests.real_parts -p no:asyncio "
                                         "-p no:hypothesispytest\n")
    *_, title, first, second = run(tmp_path, sys.executable, "-m", "pytest", "-n", "1", "--all-parts")
    assert title == failed_tests.TITLE
    assert first.endswith("pytest 'test_it.py::test_name[it'\"'\"'s]' --all-parts")
    assert "test_it.py::test_set_up" in second
    assert "1 failed in" in "".join(run(tmp_path, "sh", "-c", first))
    assert "KUBEBUILDER_ASSETS=/some where" in shlex.split(first)


def test_a_passed_run_has_no_such_lines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_passes(): pass")
    assert " 1 passed in " in pytester.runpytest_inprocess("-p", "tests.failed_tests", "-p", "no:asyncio").outlines[-1]


def test_the_command_is_relative_to_the_clone() -> None:
    program = Path(sys.executable).with_name("pytest")
    words = failed_tests.command("tests/test_x.py::test_y", {"--seed": 7, "--all-parts": True}, {}, program.parents[2])
    assert words == f"{program.relative_to(program.parents[2])} tests/test_x.py::test_y --seed 7 --all-parts"


def test_every_run_ends_so(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.has_plugin("tests.failed_tests")
