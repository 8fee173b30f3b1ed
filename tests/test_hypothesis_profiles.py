"""Examples that are made up are the same whatever else is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
STORY = """
from tests import hypothesis_profiles
import hypothesis
from hypothesis import strategies as st

hypothesis_profiles.same()

@hypothesis.settings(max_examples=200)
@hypothesis.given(st.integers(0, 2**32 - 1), st.text())
def say(number, text):
    print(number, ascii(text))

say()
"""


def test_the_same_examples_whatever_is_loaded() -> None:
    processes = [subprocess.Popen([sys.executable, "-c", first + STORY], text=True, cwd=ROOT, stdout=subprocess.PIPE)
                 for first in ("", "import outfitter.app, outfitter.cli.vm.commands\n")]
    one, two = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert one == two
    assert len(one.splitlines()) >= 200
