"""A test that hangs fails in time, with the stacks of all threads, whatever it hangs in; the tests after it run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import time_limit

ROOT = Path(__file__).parent.parent
START = """
import asyncio, signal, threading, pytest
threading.Thread(target=threading.Event().wait, name="beside", daemon=True).start()
pytestmark = pytest.mark.time_limit(0.2)
"""
AFTER = """
@pytest.mark.time_limit(300)
def test_after():
    pass
"""
HANGS = START + """
import hypothesis

def test_lock():
    threading.Event().wait()

async def test_coroutine():
    await asyncio.Event().wait()

async def test_blocked_event_loop():
    async def blocks():
        threading.Event().wait()
    task = asyncio.create_task(blocks())
    await asyncio.Event().wait()

def test_that_catches_everything():
    try:
        threading.Event().wait()
    except BaseException:
        pass

@hypothesis.given(hypothesis.strategies.integers())
def test_hypothesis_example(number):
    threading.Event().wait()

@pytest.fixture
def setup():
    threading.Event().wait()

def test_in_setup(setup):
    pass

@pytest.fixture
def teardown():
    yield
    threading.Event().wait()

def test_in_teardown(teardown):
    pass

def test_in_teardown_after_failure(teardown):
    assert False
""" + AFTER
NAMES = [name for name in re.findall(r"def (test_\w+)", HANGS) if name != "test_after"]
DOES_NOT_REACT = START + """
def test_blocks_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # as C code that never returns to Python
    threading.Event().wait()
""" + AFTER


def run(folder: Path, code: str, *options: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.time_limit", "-p", "no:cacheprovider", "--time-limit-again", "0.3",
               "-rA", "--tb=native", *options]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
                          timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What pytest prints about each of the tests that hang; a failed teardown has a report of its own."""
    code, output = run(tmp_path_factory.mktemp("hangs"), HANGS)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "PASSED test_it.py::test_after" in output, output
    parts = re.split(r"^_+ (?:ERROR at \w+ of )?(test_\w+) _+$", output, flags=re.MULTILINE)
    found: dict[str, str] = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        found[name] = found.get(name, "") + text
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_test_that_hangs_fails_with_all_stacks(name: str, reports: Mapping[str, str]) -> None:
    report, phase = reports[name], name.split("_")[2] if name.startswith("test_in_") else "call"
    assert f"{phase} took longer than 0.2 s" in report
    assert "thread beside:" in report
    assert "threading.Event().wait()" in report.partition("thread MainThread:")[2] or name == "test_coroutine"


def test_the_stacks_of_tasks(reports: Mapping[str, str]) -> None:
    assert "await asyncio.Event().wait()" in reports["test_coroutine"].partition("Stack for <Task")[2]


def test_a_process_that_does_not_react_exits_and_the_others_go_on(tmp_path: Path) -> None:
    code, output = run(tmp_path, DOES_NOT_REACT, "-n", "1", "-p", "no:hypothesispytest")
    assert (code, "PASSED test_it.py::test_after" in output) == (pytest.ExitCode.TESTS_FAILED, True), output
    assert "crashed while running 'test_it.py::test_blocks_signals'" in output
    assert "in test_blocks_signals" in output.partition("Timeout (")[2], "the stacks"


@pytest.mark.parametrize(("markers", "seconds"), [
    ([], time_limit.DEFAULT), ([pytest.mark.libvirt], 900.0), ([pytest.mark.libvirt, pytest.mark.long], 3600.0),
    ([pytest.mark.long, pytest.mark.time_limit(7)], 7.0)])
def test_every_test_has_a_limit(markers: list[pytest.MarkDecorator], seconds: float, request: pytest.FixtureRequest) -> None:
    assert request.config.pluginmanager.has_plugin("tests.time_limit")
    for marker in markers:
        request.node.add_marker(marker)
    assert time_limit.limit(request.node) == seconds
