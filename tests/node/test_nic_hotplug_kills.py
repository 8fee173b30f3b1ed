"""The product is killed while NICs are plugged into and unplugged from running VMs: never a NIC without its tap or its VF,
never a tap or a VF without its NIC, and every plug and unplug ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from outfitter.api.kinds import Object
from outfitter.controllers.attachment_pods import AttachmentPods
from outfitter.launcher.simulated import Simulated
from outfitter.node import nic_plan
from outfitter.node.agent_host import AgentHost
from outfitter.node.networks import Networks
from outfitter.node.pods.own_pods import OwnPods
from outfitter.node.status_reporter import StatusReporter
from tests.node import nic_lifecycle

Patch = pytest.MonkeyPatch
SEEDS = range(8)  # in one of these a mistake is found


async def check(folder: Path, seed: int) -> None:
    try:
        lifecycle = await nic_lifecycle.run_lifecycle(folder, seed)
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise
    deaths = Counter(place.partition(":")[0] for place in lifecycle.deaths.places)
    assert deaths >= Counter(step for step, _ in nic_lifecycle.PLAN)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 4))])
async def test_kill_points_of_plug_and_unplug(seed: int, tmp_path: Path) -> None:
    await check(tmp_path, seed)


@pytest.mark.long(seeds=range(100, 134))
async def test_two_hundred_kill_points_of_plug_and_unplug(seed: int, tmp_path: Path) -> None:
    await check(tmp_path, seed)


def never(where: type, method: str) -> Callable[[Patch], None]:
    """A step that is not done."""

    async def nothing(*_: object, **__: object) -> None:
        pass

    return lambda patch: patch.setattr(where, method, nothing)


def taps_stay(patch: Patch) -> None:
    patch.setattr(Simulated, "_remove_taps", lambda self, uid: None)


def taps_late(patch: Patch) -> None:
    patch.setattr(Simulated, "_write_taps", lambda self, domain: None)


def cancelled_stays(patch: Patch) -> None:
    """NICs that the spec has no more are not looked for."""
    plan = nic_plan.plan

    def forgetful(instance: Object, nics: object) -> nic_plan.NicPlan:
        found = plan(instance, nics)  # type: ignore[arg-type]
        names = {card["name"] for card in instance["spec"]["domain"]["devices"].get("interfaces") or ()}
        return nic_plan.NicPlan(found.attach, tuple(one for one in found.detach if one[0] not in names), found.links)

    patch.setattr(nic_plan, "plan", forgetful)


def released_with_its_nic(patch: Patch) -> None:
    async def none_kept(self: OwnPods, host: AgentHost, gone: object) -> dict[tuple[str, str], float]:
        return {}

    patch.setattr(OwnPods, "_unplug_held", none_kept)


MISTAKES: dict[str, Callable[[Patch], None]] = {
    "taps of NICs that are gone stay": taps_stay,
    "a NIC has no tap": taps_late,
    "what the spec wants to be absent stays": cancelled_stays,
    "a VF is released while a VM has it": released_with_its_nic,
    "attachment pods are not deleted": never(AttachmentPods, "_sync"),
    "the pod's annotations do not follow": never(Networks, "annotate"),
    "the status does not follow": never(StatusReporter, "interfaces"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", MISTAKES)
async def test_mistake_is_found(mistake: str, tmp_path: Path, monkeypatch: Patch) -> None:
    MISTAKES[mistake](monkeypatch)
    for seed in SEEDS:
        try:
            await nic_lifecycle.run_lifecycle(tmp_path / str(seed), seed)
        except (AssertionError, pytest.fail.Exception, KeyError, OSError):
            return
    pytest.fail(f"nothing was found in {len(SEEDS)} lives: {mistake}")
