"""Two hundred seeded kill points over live migrations of VMs with devices: migrations that succeed, fail, are cancelled, or
whose VM is deleted meanwhile, in any order. The product is killed at a point that chance chooses, half of the times a
second time right after its start. It rests after each kill: the VM runs in one place, with its device, and pages, claims,
status and domains agree."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.errors import AlreadyExists, Conflict, Invalid, NotFound
from outfitter.launcher.migration.simulated_copy import SimulatedCopy
from tests.node import vmi_lifecycle
from tests.node.kill_points import Kill
from tests.node.test_migration_kills import (
    SLOW,
    DeviceMigrationScenario,
    FlavorMigrationScenario,
    MigrationScenario,
    OwnClaimMigrationScenario,
)

SCENARIOS: list[type[MigrationScenario]] = [DeviceMigrationScenario, OwnClaimMigrationScenario, FlavorMigrationScenario]
COPIES = {"fast": SimulatedCopy(), "slow": SLOW, "fails": SimulatedCopy(fails="the network is gone")}
KILLS = 10  # of one life
POINTS = 45  # about as many as a migration with a device has
PATIENCE = 60  # acts until a kill point must have been reached
ACTS = ["migrate"] * 6 + ["cancel"] * 2 + ["delete"]


async def act(scenario: MigrationScenario, chance: random.Random, number: int) -> None:
    scenario.set_copy(COPIES[chance.choice(["fast", "fast", "slow", "fails"])])
    what = chance.choice(ACTS) if await scenario.find(kinds.VM, "blue") is not None else "create"
    jobs = [job["metadata"]["name"] for job in await scenario.all(kinds.MIGRATION)]
    if what == "create":
        await scenario.create(kinds.VM, "blue", scenario.vm_spec())
    elif what == "migrate":
        await scenario.create(kinds.MIGRATION, f"move-{number}", {"vmiName": "blue"})
    elif what == "cancel" and jobs:
        await scenario.delete(kinds.MIGRATION, chance.choice(jobs))
    elif what == "delete":
        await scenario.delete(kinds.VM, "blue")


async def run_life(folder: Path, seed: int) -> MigrationScenario:
    chance = random.Random(seed)
    scenario = await SCENARIOS[seed % len(SCENARIOS)].begin(folder, seed=seed)
    assert isinstance(scenario, MigrationScenario)
    number = 0

    async def one_act() -> None:
        nonlocal number
        number += 1
        with scenario.deaths.as_user(), contextlib.suppress(AlreadyExists, Conflict, Invalid, NotFound):
            await act(scenario, chance, number)

    with scenario.deaths.as_user():
        await scenario.before()
        await scenario.create(kinds.VM, "blue", scenario.vm_spec())
    await scenario.rest()
    for _ in range(KILLS):
        scenario.deaths.plan = Kill(chance.randint(1, POINTS), chance.choice(["before", "after"]))
        if chance.random() < 0.5:
            scenario.deaths.then = Kill(chance.randint(1, POINTS), chance.choice(["before", "after"]))
        scenario.while_dead = one_act if chance.random() < 0.3 else None
        deaths = len(scenario.deaths.places)
        for _ in range(PATIENCE):
            await one_act()
            if chance.random() < 0.4:
                scenario.clock.advance(chance.choice([0.01, 0.5, 1, 31]))
            await scenario.live(vmi_lifecycle.turns(chance.choice([10, 60, 300, 1000])))
            if len(scenario.deaths.places) > deaths:
                break
            scenario.release_from_running()
        else:
            pytest.fail(f"no process reached the point where it should have been killed: {scenario.deaths.plan}")
        if await scenario.find(kinds.VM, "blue") is None:
            scenario.release_from_running()
        await scenario.rest()
    scenario.deaths.plan = None
    with scenario.deaths.as_user(), contextlib.suppress(NotFound):
        await scenario.delete(kinds.VM, "blue")
    scenario.release_from_running()
    await scenario.rest()
    await scenario.end()
    return scenario


async def check(folder: Path, seed: int) -> None:
    try:
        scenario = await run_life(folder, seed)
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise
    assert len(scenario.deaths.places) >= KILLS


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
async def test_kill_points_of_migrations_with_devices(seed: int, tmp_path: Path) -> None:
    await check(tmp_path, seed)


@pytest.mark.long(seeds=range(100, 120))
async def test_two_hundred_kill_points_of_migrations_with_devices(seed: int, tmp_path: Path) -> None:
    await check(tmp_path, seed)
