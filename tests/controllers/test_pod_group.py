"""VMs of a pod group get devices together or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode
from outfitter.scheduling.explain import vm as explain
from outfitter.scheduling.pod_group import MIN_AVAILABLE, NAME
from tests.controllers import scenario
from tests.controllers.scenario import Scene, device


async def begin(scene: Scene) -> None:
    await scene.classes()
    await scene.template()


async def member(scene: Scene, name: str, group: str = "g", least: object = 3) -> Object:
    return await scene.create(kinds.VMI, name, {
        "resourceClaims": [{"name": "network", "resourceClaimTemplateName": "one-vf"}],
        "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [device()]}},
    }, labels={NAME: group, MIN_AVAILABLE: str(least)})


async def phases(scene: Scene) -> dict[str, Any]:
    return {vmi["metadata"]["name"]: (vmi.get("status") or {}).get("phase") for vmi in await scene.all(kinds.VMI)}


async def rejected(scene: Scene, name: str, code: RejectionCode) -> str:
    """The message of the pod's condition, which has this code and the numbers: 2 of 3 pods of the group are there or fit."""
    pod = await scene.pod(name)
    assert code in rejection_conditions.of(pod)
    message = str((conditions.find(pod, "PodScheduled") or {}).get("message"))
    assert all(word in message for word in ("g", "2", "3"))
    return message


async def test_pod_group_gets_devices_all_or_nothing() -> None:
    async with scenario.embedded(vfs=1, count=2) as scene:
        await begin(scene)
        for name in ("a", "b", "c"):
            await member(scene, name)
        await scene.settle()
        assert not await scene.bookings()
        assert set((await phases(scene)).values()) == {"Scheduling"}
        message = await rejected(scene, "a", RejectionCode.POD_GROUP_TOO_FEW_HOSTS)
        vmi = await scene.find(kinds.VMI, "a")
        assert vmi is not None
        assert message in "\n".join(explain.instance(await scene.cluster_objects(), vmi).text(long=True))


async def test_all_of_them_are_placed_when_the_last_one_is_there() -> None:
    async with scenario.embedded(vfs=1, count=3) as scene:
        await begin(scene)
        await member(scene, "a")
        await member(scene, "b")
        await scene.settle()
        assert not await scene.bookings()
        await rejected(scene, "b", RejectionCode.POD_GROUP_INCOMPLETE)
        await member(scene, "c")
        await scene.settle()
        assert await phases(scene) == dict.fromkeys("abc", "Running")
        await scene.check_books()


async def test_a_device_that_becomes_free_completes_the_group() -> None:
    async with scenario.embedded(vfs=1, count=3) as scene:
        await begin(scene)
        await scene.machine("alone")
        await scene.running("alone")
        for name in ("a", "b", "c"):
            await member(scene, name)
        await scene.settle()
        assert len(await scene.bookings()) == 1
        await scene.delete(kinds.VMI, "alone")
        await scene.running("c")
        assert await phases(scene) == dict.fromkeys("abc", "Running")


async def test_a_member_that_is_made_again_is_placed_alone() -> None:
    async with scenario.embedded(vfs=1, count=3) as scene:
        await begin(scene)
        for name in ("a", "b", "c"):
            await member(scene, name)
        await scene.running("c")
        await scene.delete(kinds.VMI, "b")
        await scene.gone("b")
        await member(scene, "b")
        await scene.running("b")


@pytest.mark.parametrize("least", ["", "no-number", "1"])
async def test_without_a_minimum_each_is_placed_alone(least: str) -> None:
    async with scenario.embedded(vfs=1, count=1) as scene:
        await begin(scene)
        await member(scene, "a", least=least)
        await member(scene, "b", least=least)
        await scene.settle()
        assert await phases(scene) == {"a": "Running", "b": "Scheduling"}


async def test_more_members_than_needed_are_placed_as_far_as_possible() -> None:
    async with scenario.embedded(vfs=1, count=2) as scene:
        await begin(scene)
        for name in ("a", "b", "c"):
            await member(scene, name, least=2)
        await scene.settle()
        assert sorted((await phases(scene)).values()) == ["Running", "Running", "Scheduling"]


async def test_groups_race_and_each_is_whole() -> None:
    async with scenario.embedded(vfs=5) as scene:
        await begin(scene)
        await asyncio.gather(*(member(scene, f"{group}{number}", group) for number in range(3) for group in "xyz"))
        await scene.settle()
        have = await phases(scene)
        whole = [{have[f"{group}{number}"] for number in range(3)} for group in "xyz"]
        assert sorted(map(sorted, whole)) == [["Running"], ["Scheduling"], ["Scheduling"]]
        assert len(await scene.bookings()) == 3
        await scene.check_books()
