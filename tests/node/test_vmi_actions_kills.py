"""The product is killed at every point between an action request and its effect: a VM that was to be paused is paused, one
that was to go on goes on, one that was to start paused did, and no reset is done twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfitter.api import conditions, kinds
from tests.node.kill_points import Kill, When
from tests.node.vmi_lifecycle import World, every_point


async def stands(world: World) -> bool:
    """Whether the VM stands still; all sources must agree."""
    [domain] = await world.domains()
    blue = await world.find(kinds.VMI, "blue")
    assert blue is not None, await world.picture()
    assert conditions.is_true(blue, "Paused") == (domain.paused is not None), await world.picture()
    assert conditions.is_true(blue, "Ready") == (domain.paused is None), await world.picture()
    assert "stateChangeRequests" not in blue["status"], await world.picture()
    for pod in await world.all(kinds.POD):
        assert conditions.is_true(pod, "Ready") == (domain.paused is None), await world.picture()
    return domain.paused is not None


async def life(folder: Path, kill: Kill | None) -> World:
    world = await World.begin(folder, kill=kill)
    spec = world.wish("template", grace=3600)
    spec["template"]["spec"]["startStrategy"] = "Paused"
    with world.deaths.as_user():
        await world.create(kinds.VM, "blue", {"runStrategy": "Manual", **spec})
        await world.ask("start", "blue")
    await world.rest()
    assert await stands(world)
    for action, then in (("unpause", False), ("pause", True)):
        with world.deaths.as_user():
            await world.nudge(action, "blue")  # type: ignore[arg-type]
        await world.rest()
        assert await stands(world) is then, await world.picture()
    with world.deaths.as_user():
        await world.nudge("reset", "blue")
    await world.rest()
    assert await stands(world)
    assert len(world.home.resets) <= 1, "never twice"
    if kill is None:
        assert len(world.home.resets) == 1
    world.ignoring_shutdown.update(domain.uid for domain in await world.domains())
    with world.deaths.as_user():
        await world.ask("stop", "blue")
    await world.rest()
    await world.end()
    return world


@pytest.mark.parametrize("when", ["before", "after"])
async def test_death_at_points_of_a_paused_life(when: When, tmp_path: Path) -> None:
    await every_point(life, tmp_path, when, first=1 if when == "before" else 4, stride=7, at_least=50)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, 8))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_death_at_every_point_of_a_paused_life(when: When, first: int, tmp_path: Path) -> None:
    await every_point(life, tmp_path, when, first=first, stride=7, at_least=50)
