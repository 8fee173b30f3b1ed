"""A test run that ignores signals starts processes that do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = """
import os, signal, subprocess, sys

def test_child():
    code = '''import signal
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
    print(number.name, signal.getsignal(number) is signal.SIG_IGN)'''
    child = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert child.stdout.split() == ["SIGINT", "False", "SIGQUIT", "False", "SIGTERM", "False", "SIGHUP", "True"]

def test_itself_ignores_them():
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_children_have_default_handlers(workers: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(CODE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = ["sh", "-c", "trap '' INT QUIT TERM HUP; exec \"$@\"", "sh", sys.executable, "-m", "pytest", "-n", workers,
               "-p", "tests.default_signals", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:hypothesispytest"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
                          timeout=300, check=False)
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout + done.stderr
