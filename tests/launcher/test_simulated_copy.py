"""The arithmetic of a simulated copy: bandwidth, convergence, failures."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from outfitter.launcher.migration.simulated_copy import SimulatedCopy, copied

MEMORY = 1000


class Case(NamedTuple):
    copy: SimulatedCopy
    seconds: float
    remaining: int
    iteration: int = 0
    done: bool = False
    bandwidth: int = 0
    auto_converge: bool = False
    failed: str = ""


CASES = {
    "the beginning": Case(SimulatedCopy(bandwidth=100), 0, 1000),
    "in the middle": Case(SimulatedCopy(bandwidth=100), 4, 600),
    "all, and the guest changed nothing": Case(SimulatedCopy(bandwidth=100), 10, 0, 1, done=True),
    "small enough for the downtime": Case(SimulatedCopy(bandwidth=100, downtime=10), 10, 0, 0, done=True),
    "a limit of the migration": Case(SimulatedCopy(bandwidth=100), 4, 800, bandwidth=50),
    "a limit above what there is": Case(SimulatedCopy(bandwidth=100), 4, 600, bandwidth=500),
    "what was changed is copied again": Case(SimulatedCopy(bandwidth=100, dirty_rate=50), 12, 300, 1),
    "it converges": Case(SimulatedCopy(bandwidth=100, dirty_rate=50), 60, 0, 6, done=True),
    "it does not converge": Case(SimulatedCopy(bandwidth=100, dirty_rate=100), 1005, 500, 100),
    "unless the guest is slowed down": Case(SimulatedCopy(bandwidth=100, dirty_rate=100), 1005, 0, 7, done=True,
                                            auto_converge=True),
    "before it fails": Case(SimulatedCopy(bandwidth=100, fails="no", fails_at=0.5), 4, 600),
    "it fails": Case(SimulatedCopy(bandwidth=100, fails="no", fails_at=0.5), 5, 500, failed="no"),
}


@pytest.mark.parametrize("name", CASES)
def test_copied(name: str) -> None:
    case = CASES[name]
    state = copied(case.copy, MEMORY, case.seconds, bandwidth=case.bandwidth, auto_converge=case.auto_converge)
    assert (state.done, state.job.remaining, state.job.failed) == (case.done, case.remaining, case.failed)
    if not case.auto_converge:
        assert state.job.iteration == case.iteration
