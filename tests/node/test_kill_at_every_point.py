"""The product is killed at every single point of a short life, before it and after it, and started again on what it left: all
that was wanted still comes about."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfitter.api import kinds
from tests.controllers.scenario import addresses
from tests.node.kill_points import Kill, When
from tests.node.vmi_lifecycle import World, every_point

FOLDERS = ("hosts", "domains", "node-a", "node-b", "state", "kernel", "cdi", "metadata")


async def runs(world: World, name: str) -> list[str]:
    """The addresses that a VM runs with."""
    found = await world.find(kinds.VMI, name)
    assert found is not None, await world.picture()
    assert found["status"]["phase"] == "Running", await world.picture()
    return addresses(found)


async def life(folder: Path, kill: Kill | None) -> World:
    """Two VMs from their making to their end. One is stopped in between and keeps its device; the guest of the other shuts
    down, and it is started again."""
    world = await World.begin(folder, kill=kill)
    with world.deaths.as_user():
        await world.create(kinds.VM, "blue", {"runStrategy": "Always", **world.wish("template")})
        await world.create(kinds.VM, "green", {"runStrategy": "Manual", **world.wish("own")})
        await world.ask("start", "green")
    await world.rest()
    blue, green = await runs(world, "blue"), await runs(world, "green")
    with world.deaths.as_user():
        await world.ask("stop", "green")
    await world.rest()
    assert await world.find(kinds.VMI, "green") is None, await world.picture()
    assert len(await world.bookings()) == 2, await world.picture()
    assert await runs(world, "blue") == blue, "a device moved"
    with world.deaths.as_user():
        await world.ask("start", "green")
        for _, machines in world.hypervisors():
            for uid in list(machines.running):
                machines.simulate_end(uid, "so it was played", failed=False)
    await world.rest()
    await runs(world, "blue")
    assert await runs(world, "green") == green, "a device moved"
    with world.deaths.as_user():
        for name in ("blue", "green"):
            await world.delete(kinds.VM, name)
    await world.rest()
    await world.end()
    return world


async def test_a_vmi_that_is_deleted_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    """The product dies after every point of the preparation, and when it is back the VM and its pod are gone."""
    for number in range(1, 100):
        world = await World.begin(tmp_path / str(number), kill=Kill(number, "after", "prepare"))

        async def delete(world: World = world) -> None:
            for kind in (kinds.VM, kinds.VMI, kinds.POD):
                for obj in await world.all(kind):
                    await world.delete(kind, obj["metadata"]["name"], grace=0)

        world.while_dead = delete
        with world.deaths.as_user():
            await world.create(kinds.VM, "blue", {"runStrategy": "Always", **world.wish("template")})
        await world.settle()
        if not world.deaths.places:
            with world.deaths.as_user():
                await delete()
        await world.rest()
        await world.end()
        left = [path.name for path in world.folder.rglob("*") if not path.is_dir() or path.name not in FOLDERS]
        assert set(left) <= {"checkpoint.json"}, world.deaths.places
        if not world.deaths.places:
            break
    assert number > 20


@pytest.mark.parametrize("when", ["before", "after"])
async def test_death_at_points_of_a_life(when: When, tmp_path: Path) -> None:
    await every_point(life, tmp_path, when, first=1 if when == "before" else 6, stride=11, at_least=200)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, 12))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_death_at_every_point_of_a_life(when: When, first: int, tmp_path: Path) -> None:
    await every_point(life, tmp_path, when, first=first, stride=11, at_least=200)
