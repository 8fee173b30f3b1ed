"""Rounds and seeds of the long forms are arguments, and the time limit follows them."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]
CODE = """
import pytest

@pytest.mark.long(seeds=range(100, 102))
def test_seeds(seed):
    pass

@pytest.mark.long
def test_rounds(soak_rounds, request):
    from tests import time_limit
    print(f"{soak_rounds} rounds in {time_limit.limit(request.node):g} s")
"""


@pytest.mark.parametrize(("options", "seeds", "says"), [
    ((), [100, 101], "1 rounds in 3600 s"),
    (("--rounds", "2", "--seed", "1000"), [1100, 1101, 1102, 1103], "2 rounds in 7200 s")])
def test_rounds_and_seeds(options: tuple[str, ...], seeds: list[int], says: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=CODE)
    pytester.makeini("[pytest]\nmarkers = long: x")
    done = pytester.runpytest_inprocess("-p", "tests.soak", "-p", "tests.time_limit", "-p", "no:asyncio", "-rA", *options)
    assert [line for line in done.outlines if line.startswith("PASSED")] == [
        *(f"PASSED test_it.py::test_seeds[{seed}]" for seed in seeds), "PASSED test_it.py::test_rounds"]
    assert says in str(done.stdout)
