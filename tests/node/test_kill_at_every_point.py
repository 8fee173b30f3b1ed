"""The product is killed at every single point of a short life, before it and after it, and started again on what it left: all
that was wanted still comes about."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfitter.api import kinds
from tests.controllers.scenario import addresses
from tests.node.kill_points import Kill, When
from tests.node.vmi_lifecycle import LifecycleScenario, every_point

FOLDERS = ("hosts", "domains", "node-a", "node-b", "state", "kernel", "cdi", "metadata")


async def runs(lifecycle: LifecycleScenario, name: str) -> list[str]:
    """The addresses that a VM runs with."""
    found = await lifecycle.find(kinds.VMI, name)
    assert found is not None, await lifecycle.picture()
    assert found["status"]["phase"] == "Running", await lifecycle.picture()
    return addresses(found)


async def run_lifecycle(folder: Path, kill: Kill | None) -> LifecycleScenario:
    """Two VMs from their making to their end. One is stopped in between and keeps its device; the guest of the other shuts
    down, and it is started again."""
    lifecycle = await LifecycleScenario.begin(folder, kill=kill)
    with lifecycle.deaths.as_user():
        await lifecycle.create(kinds.VM, "blue", {"runStrategy": "Always", **lifecycle.request_spec("template")})
        await lifecycle.create(kinds.VM, "green", {"runStrategy": "Manual", **lifecycle.request_spec("own")})
        await lifecycle.ask("start", "green")
    await lifecycle.rest()
    blue, green = await runs(lifecycle, "blue"), await runs(lifecycle, "green")
    with lifecycle.deaths.as_user():
        await lifecycle.ask("stop", "green")
    await lifecycle.rest()
    assert await lifecycle.find(kinds.VMI, "green") is None, await lifecycle.picture()
    assert len(await lifecycle.bookings()) == 2, await lifecycle.picture()
    assert await runs(lifecycle, "blue") == blue, "a device moved"
    with lifecycle.deaths.as_user():
        await lifecycle.ask("start", "green")
        for _, machines in lifecycle.hypervisors():
            for uid in list(machines.running):
                machines.simulate_end(uid, "so it was played", failed=False)
    await lifecycle.rest()
    await runs(lifecycle, "blue")
    assert await runs(lifecycle, "green") == green, "a device moved"
    with lifecycle.deaths.as_user():
        for name in ("blue", "green"):
            await lifecycle.delete(kinds.VM, name)
    await lifecycle.rest()
    await lifecycle.end()
    return lifecycle


async def test_a_vmi_that_is_deleted_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    """The product dies after every point of the preparation, and when it is back the VM and its pod are gone."""
    for number in range(1, 100):
        lifecycle = await LifecycleScenario.begin(tmp_path / str(number), kill=Kill(number, "after", "prepare"))

        async def delete(lifecycle: LifecycleScenario = lifecycle) -> None:
            for kind in (kinds.VM, kinds.VMI, kinds.POD):
                for obj in await lifecycle.all(kind):
                    await lifecycle.delete(kind, obj["metadata"]["name"], grace=0)

        lifecycle.while_dead = delete
        with lifecycle.deaths.as_user():
            await lifecycle.create(kinds.VM, "blue", {"runStrategy": "Always", **lifecycle.request_spec("template")})
        await lifecycle.settle()
        if not lifecycle.deaths.places:
            with lifecycle.deaths.as_user():
                await delete()
        await lifecycle.rest()
        await lifecycle.end()
        left = [path.name for path in lifecycle.folder.rglob("*") if not path.is_dir() or path.name not in FOLDERS]
        assert set(left) <= {"checkpoint.json"}, lifecycle.deaths.places
        if not lifecycle.deaths.places:
            break
    assert number > 20


@pytest.mark.parametrize(("when", "first"), [
    pytest.param(*one, marks=pytest.mark.thorough) for one in (("before", 1), ("before", 12), ("after", 6), ("after", 17))])
async def test_death_at_points_of_a_life(when: When, first: int, tmp_path: Path) -> None:
    await every_point(run_lifecycle, tmp_path, when, first=first, stride=22, at_least=200)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, 12))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_death_at_every_point_of_a_life(when: When, first: int, tmp_path: Path) -> None:
    await every_point(run_lifecycle, tmp_path, when, first=first, stride=11, at_least=200)
