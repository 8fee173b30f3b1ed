"""Areas assign, plugin, topology, readers and driver: device plugins, DRA drivers and monitors are played around the product's
agents. Steps and expectations are in `assignment/`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.cases.assignment.expectations import Situation, compare, invariants
from tests.cases.assignment.steps import StepError, Steps
from tests.cases.assignment.world import World, world_of
from tests.cases.case import Case
from tests.cases.case_product import Faults, NotDriven


async def run(case: Case) -> list[str]:
    faults = Faults()
    try:
        with faults:
            async with world_of(case) as world:
                wrong = await _run(world)
    except NotDriven as error:
        return [str(error)]
    return [*wrong, *faults.said]


async def _run(world: World) -> list[str]:
    steps = Steps(world)
    await steps.begin()
    for node in world.nodes.values():
        node.stale = node.checkpoints()
    await world.observe()
    wrong: list[str] = []
    at = await Situation.read(world)
    for index, step in enumerate(world.case.data.get("when") or ()):
        before, log_from = (await Situation.read(world)).pods, len(world.log)
        calls_from = {name: len(world.calls(name)) for name in world.players()}
        error: StepError | None = None
        try:
            await steps.run(step)
        except StepError as refusal:
            error = refusal
        await world.settle()
        await world.observe()
        at = await Situation.read(world)
        at.before, at.error = before, error
        if "expect" in step:
            at.calls_from, at.log_from = calls_from, log_from
            found = [*await compare(step["expect"], at), *await invariants(at)]
            at.calls_from, at.log_from = {}, 0
            wrong += [f"step {index} ({step['op']}): {line}" for line in found]
            at.accepted = True
        elif error is not None and index + 1 < len(world.case.data["when"]):
            wrong.append(f"step {index} ({step['op']}) was refused: {error}")
    expect: Mapping[str, Any] = world.case.expect
    return [*wrong, *await compare(expect, at), *await invariants(at)]
