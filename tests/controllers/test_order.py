"""Who comes first, and what is not worth a warning. The embedded scheduler's own manners."""

from __future__ import annotations

import itertools

from outfitter.api import kinds
from tests.controllers import scene as scenes


async def test_who_waits_longest_is_served_first() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        order = ["m7", "m2", "m9", "m1", "m5"]  # not the order of their names
        for name in order:
            await scene.machine(name)
            await scene.phase(name, "Running" if name == order[0] else "Scheduling")
        for before, after in itertools.pairwise(order):
            await scene.delete(kinds.INSTANCE, before)
            await scene.running(after)
            waiting = [obj for obj in await scene.all(kinds.INSTANCE) if obj["status"]["phase"] == "Scheduling"]
            assert len(waiting) == len(order) - order.index(after) - 1


async def test_a_machine_that_gets_its_device_at_once_is_not_warned_about() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
        assert await scene.events("FailedScheduling") == []


async def test_a_claim_that_somebody_allocated_and_nobody_uses_stays_allocated() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        claim = await scene.claim("mine")
        result = {"request": "nic", "driver": scene.driver, "pool": scene.host.name, "device": "pci-0000-3b-01-0"}
        claim["status"] = {"allocation": {"devices": {"results": [result]}}}
        await scene.store.replace(kinds.RESOURCE_CLAIM, claim, subresource="status")
        await scene.create(kinds.CONFIG_MAP, "settled", {})
        assert scene.clock is not None
        scene.clock.advance(5)
        await scene.reach(lambda: scene.find(kinds.CONFIG_MAP, "settled"), "at rest")
        found = await scene.find(kinds.RESOURCE_CLAIM, "mine")
        assert found is not None
        assert found["status"]["allocation"]["devices"]["results"] == [result]


async def test_a_pod_that_another_made_for_the_machine_is_the_machines_pod() -> None:
    """Found by its owner, whatever its name."""
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
        pod = await scene.pod("blue")
        meta = {key: pod["metadata"][key] for key in ("labels", "ownerReferences")}
        spec = {"containers": [{"name": "compute", "image": "x"}], "nodeSelector": {"no": "where"}}
        await scene.create(kinds.POD, "by-hand", spec, **meta)
        await scene.delete(kinds.INSTANCE, "blue")
        await scene.gone("blue")
        await scene.empty()
