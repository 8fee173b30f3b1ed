"""The product is killed at every point between an action request and its effect: a VM that was to be paused is paused, one
that was to go on goes on, one that was to start paused did, and no reset is done twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfitter.api import conditions, kinds
from tests.node.kill_points import Kill, When
from tests.node.vmi_lifecycle import LifecycleScenario, every_point


async def stands(lifecycle: LifecycleScenario) -> bool:
    """Whether the VM stands still; all sources must agree."""
    [domain] = await lifecycle.domains()
    blue = await lifecycle.find(kinds.VMI, "blue")
    assert blue is not None, await lifecycle.picture()
    assert conditions.is_true(blue, "Paused") == (domain.paused is not None), await lifecycle.picture()
    assert conditions.is_true(blue, "Ready") == (domain.paused is None), await lifecycle.picture()
    assert "stateChangeRequests" not in blue["status"], await lifecycle.picture()
    for pod in await lifecycle.all(kinds.POD):
        assert conditions.is_true(pod, "Ready") == (domain.paused is None), await lifecycle.picture()
    return domain.paused is not None


async def run_lifecycle(folder: Path, kill: Kill | None) -> LifecycleScenario:
    lifecycle = await LifecycleScenario.begin(folder, kill=kill)
    spec = lifecycle.request_spec("template", grace=3600)
    spec["template"]["spec"]["startStrategy"] = "Paused"
    with lifecycle.deaths.as_user():
        await lifecycle.create(kinds.VM, "blue", {"runStrategy": "Manual", **spec})
        await lifecycle.ask("start", "blue")
    await lifecycle.rest()
    assert await stands(lifecycle)
    for action, then in (("unpause", False), ("pause", True)):
        with lifecycle.deaths.as_user():
            await lifecycle.nudge(action, "blue")  # type: ignore[arg-type]
        await lifecycle.rest()
        assert await stands(lifecycle) is then, await lifecycle.picture()
    with lifecycle.deaths.as_user():
        await lifecycle.nudge("reset", "blue")
    await lifecycle.rest()
    assert await stands(lifecycle)
    assert len(lifecycle.home.resets) <= 1, "never twice"
    if kill is None:
        assert len(lifecycle.home.resets) == 1
    lifecycle.ignoring_shutdown.update(domain.uid for domain in await lifecycle.domains())
    with lifecycle.deaths.as_user():
        await lifecycle.ask("stop", "blue")
    await lifecycle.rest()
    await lifecycle.end()
    return lifecycle


@pytest.mark.parametrize(("when", "first"), [
    ("before", 1), *(pytest.param(*one, marks=pytest.mark.thorough) for one in (("after", 4), ("before", 8), ("after", 11)))])
async def test_death_at_points_of_a_paused_life(when: When, first: int, tmp_path: Path) -> None:
    await every_point(run_lifecycle, tmp_path, when, first=first, stride=14, at_least=50)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, 8))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_death_at_every_point_of_a_paused_life(when: When, first: int, tmp_path: Path) -> None:
    await every_point(run_lifecycle, tmp_path, when, first=first, stride=7, at_least=50)
