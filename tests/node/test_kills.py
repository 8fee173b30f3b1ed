"""Two hundred seeded kill points over prepare, start, stop and release. After every one of them the product is started again
and comes to rest: domains, bookings and claims are the same, as are the checkpoint and the drivers of each host, and the
VMs that ran, and were not asked to stop, still run with the same devices."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.errors import AlreadyExists, Conflict, NotFound
from tests.node import vmi_lifecycle
from tests.node.kill_points import Kill
from tests.node.vmi_lifecycle import LifecycleScenario

NAMES = [f"vm{number}" for number in range(8)]  # for six devices
STRATEGIES = ["Always", "Always", "Manual", "RerunOnFailure", "Halted", "Once"]
# Where a life's deaths are, one after the other, and at which point of that step at the latest.
PLAN = [("prepare", 24), ("start", 6), ("stop", 6), ("release", 20),
        ("prepare", 48), ("start", 9), ("stop", 9), ("release", 40)]
ACTS = ("create", "create", "start", "start", "stop", "restart", "delete", "end", "drop", "force", "deafen", "pause", "unpause")
# A launch fails on a host, and the product dies while the VMI is launched on another one.
FAILING = (*ACTS, "create", "refuse", "refuse", "refuse", "busy", "busy")
RELAUNCHES = [("relaunch", 3), ("relaunch", 6), ("release", 20), ("relaunch", 4), ("prepare", 24), ("relaunch", 6)]
PATIENCE = 150  # acts after which a kill should have happened


async def act(lifecycle: LifecycleScenario, chance: random.Random, acts: Sequence[str] = ACTS) -> None:
    """What users, guests and operators do; what cannot be done is refused, and nothing happens."""
    name = chance.choice(NAMES)
    match chance.choice(acts):
        case "create":
            spec = lifecycle.request_spec(chance.choice(["template", "own", "resource"]), chance.choice([0, 30]),
                              chance.choice(["gpus", "hostDevices"]))
            await lifecycle.create(kinds.VM, name, {"runStrategy": chance.choice(STRATEGIES), **spec})
        case "start" | "stop" | "restart" as action:
            await lifecycle.ask(action, name)
        case "pause" | "unpause" as request_spec:
            await lifecycle.nudge(request_spec, name)
        case "delete":
            await lifecycle.delete(kinds.VM, name, propagation=chance.choice(["Background", "Foreground"]))
        case "drop":
            await lifecycle.delete(kinds.VMI, name)
        case "force":
            for pod in await lifecycle.all(kinds.POD):
                if pod["metadata"]["labels"]["vm.kubevirt.io/name"] == name:
                    await lifecycle.delete(kinds.POD, pod["metadata"]["name"], grace=0)
        case "refuse":  # a host cannot start domains for a while
            lifecycle.home.refusing[chance.choice(lifecycle.home.hosts).name] += chance.choice([1, 2])
        case "busy":  # nor can it take its functions from their drivers
            end = lifecycle.clock.monotonic() + chance.choice([5, 90])
            lifecycle.home.in_use[chance.choice(lifecycle.home.hosts).name] = end
        case "end" | "deafen" as what:  # a guest shuts down or crashes, or will not listen when it is asked to shut down
            for _, machines in lifecycle.hypervisors():
                for uid in [uid for uid, domain in machines.running.items() if domain.name == f"here_{name}"]:
                    if what == "end":
                        machines.simulate_end(uid, "so it was played", failed=chance.random() < 0.5)
                    else:
                        lifecycle.ignoring_shutdown.add(uid)


async def run_lifecycle(
    folder: Path, seed: int, plan: Sequence[tuple[str, int]] = PLAN, acts: Sequence[str] = ACTS
) -> LifecycleScenario:
    """VMs are started, stopped, restarted and deleted, and the product is killed at every point of the plan."""
    chance = random.Random(seed)
    lifecycle = await LifecycleScenario.begin(folder, seed=seed)

    async def one_act() -> None:
        with lifecycle.deaths.as_user(), contextlib.suppress(AlreadyExists, Conflict, NotFound):
            await act(lifecycle, chance, acts)

    for step, most in plan:
        lifecycle.deaths.plan = Kill(chance.randint(1, most), chance.choice(["before", "after"]), step)
        if chance.random() < 0.25:
            lifecycle.deaths.then = Kill(chance.randint(1, 25), chance.choice(["before", "after"]))  # again after the start
        lifecycle.while_dead = one_act if chance.random() < 0.3 else None
        deaths = len(lifecycle.deaths.places)
        for _ in range(PATIENCE):
            await one_act()
            if chance.random() < 0.3:
                lifecycle.clock.advance(chance.choice([0.01, 1, 31, *([61] if acts is FAILING else [])]))
            await lifecycle.live(vmi_lifecycle.turns(chance.choice([0, 1, 10, 60, 300])))
            if len(lifecycle.deaths.places) > deaths:
                break
        else:
            pytest.fail(f"seed {seed}: nobody came to the point of {step} where it should have died")
        if chance.random() < 0.3:  # a user waited for it
            await one_act()
            lifecycle.release_from_running()
        lifecycle.home.refusing.clear()
        await lifecycle.rest()
    lifecycle.deaths.plan = None
    for kind in (kinds.VM, kinds.VMI):
        for obj in await lifecycle.all(kind):
            with lifecycle.deaths.as_user(), contextlib.suppress(NotFound):
                await lifecycle.delete(kind, obj["metadata"]["name"])
    await lifecycle.rest()
    await lifecycle.end()
    return lifecycle


async def check(folder: Path, seed: int, plan: Sequence[tuple[str, int]] = PLAN, acts: Sequence[str] = ACTS) -> None:
    """A life with all kill points of the plan."""
    try:
        lifecycle = await run_lifecycle(folder, seed, plan, acts)
        places = lifecycle.deaths.places
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise
    deaths = Counter(place.partition(":")[0] for place in places)
    assert deaths >= Counter(step for step, _ in plan)
    assert bool(lifecycle.home.refused) == (acts is FAILING)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 5))])
async def test_forty_kill_points(seed: int, tmp_path: Path) -> None:
    await check(tmp_path, seed)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
async def test_kill_points_of_launches_on_another_host(seed: int, tmp_path: Path) -> None:
    await check(tmp_path, seed, RELAUNCHES, FAILING)


@pytest.mark.long(seeds=range(100, 110))
async def test_many_kill_points_of_launches_on_another_host(seed: int, tmp_path: Path) -> None:
    await check(tmp_path, seed, RELAUNCHES, FAILING)


@pytest.mark.long(seeds=range(100, 125))
async def test_two_hundred_kill_points(seed: int, tmp_path: Path) -> None:
    await check(tmp_path, seed)
