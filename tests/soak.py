"""The arguments of `make soak`: how many rounds the tests marked `long` run, from which seed, and for how long churn lasts.

    @pytest.mark.long(seeds=range(100, 112))      # one test a seed; --rounds 2 --seed 1000: the 24 seeds from 1100
    def test_for_long(seed: int) -> None: ...

    @pytest.mark.long
    def test_many_times(soak_rounds: int) -> None: ...      # multiplies its own number of rounds
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("soak", "tests marked long (make soak)")
    group.addoption("--rounds", type=int, default=1, metavar="N", help="run N times as many seeds and rounds (default: 1)")
    group.addoption("--minutes", type=float, default=60.0, metavar="N", help="how long tests/e2e/test_churn.py runs "
                    "(default: 60)")
    group.addoption("--seed", type=int, default=0, metavar="N", help="added to the first seed of each test (default: 0)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("long")
    if marker is not None and "seeds" in marker.kwargs:
        metafunc.parametrize("seed", seeds(marker.kwargs["seeds"], metafunc.config))


def seeds(usual: range, config: pytest.Config) -> range:
    first = usual.start + int(config.getoption("seed"))
    return range(first, first + len(usual) * rounds(config))


def rounds(config: pytest.Config) -> int:
    return int(config.getoption("rounds"))


@pytest.fixture
def soak_rounds(pytestconfig: pytest.Config) -> int:
    return rounds(pytestconfig)


@pytest.fixture
def churn_minutes(pytestconfig: pytest.Config) -> float:
    return float(pytestconfig.getoption("minutes"))
