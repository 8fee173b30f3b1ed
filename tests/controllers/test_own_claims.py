"""Claims that belong to a machine: what keeps them from being made, what becomes of them when their templates change, and who
lets go of them. Stories are for the embedded product and for a real control plane."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.controllers import ownclaims
from tests import kubernetes
from tests.controllers import scene as scenes
from tests.controllers.scene import Scene, addresses, device
from tests.controllers.test_machines import ask, change, shows

Tell = Callable[[Scene], Awaitable[None]]
STORIES: dict[str, Tell] = {}


def story(name: str) -> Callable[[Tell], None]:
    def add(tell: Tell) -> None:
        STORIES[name] = tell

    return add


def owning(scene: Scene, *names: str, **exactly: Any) -> Object:
    """The parts of a machine's spec that say: it has a claim of its own for each name, and a device from each."""
    return {"resourceClaimTemplates": [{"name": name, "spec": {"spec": scene.claim_spec("nic", **exactly)}} for name in names],
            "template": {"spec": {"domain": {"memory": {"guest": "1Gi"}, "devices": {
                "hostDevices": [device(f"{name}0", "nic", name) for name in names]}}}}}


async def failure(scene: Scene, *words: str) -> str:
    """What the machine says that is in its way, once it has all of these words."""
    async def check() -> str | None:
        found = conditions.find(await scene.find(kinds.MACHINE, "blue") or {}, "Failure")
        message = str((found or {}).get("message"))
        return message if found and all(word in message for word in words) else None

    return await scene.reach(check, f"the machine says {' and '.join(words)}")


async def test_a_machine_of_which_a_claim_cannot_be_made_says_so_and_can_be_stopped() -> None:
    async with scenes.embedded(2) as scene:
        await scene.classes()
        await scene.create(kinds.MACHINE, "blue", {"runStrategy": "Manual", **owning(scene, "a")})
        await ask(scene, {"action": "Start"})
        await shows(scene, "Running", stateChangeRequests=None)
        with scenes.forbidden(scene.store, kinds.RESOURCE_CLAIM):
            await change(scene, owning(scene, "a", "b"))
            await failure(scene, "claim blue-b-", "cannot be made", "exceeded quota")
            assert conditions.is_true(await shows(scene, "Running"), "RestartRequired")
            await ask(scene, {"action": "Start"})
            await shows(scene, "Running", stateChangeRequests=None)
            await ask(scene, {"action": "Stop", "uid": (await scene.running("blue"))["metadata"]["uid"]})
            await shows(scene, "Stopped", stateChangeRequests=None)
            await ask(scene, {"action": "Start"})
            await shows(scene, "Starting", created=False, stateChangeRequests=[{"action": "Start"}])
        await shows(scene, "Running", stateChangeRequests=None)  # it looks again by itself
        assert len(addresses(await scene.running("blue"))) == 2
        assert conditions.find(await shows(scene, "Running"), "Failure") is None
        await scene.check_books()


async def test_a_machine_that_gets_no_claim_from_its_first_moment_on_says_so() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        with scenes.forbidden(scene.store, kinds.RESOURCE_CLAIM):
            await scene.create(kinds.MACHINE, "blue", {"runStrategy": "Once", **owning(scene, "a")})
            await failure(scene, "exceeded quota")
            assert "runStrategy" not in (await shows(scene, "Starting", created=False))["status"], "its start is still to come"
            await change(scene, {"runStrategy": "Halted"})
            await shows(scene, "Stopped", runStrategy="Halted")
            await change(scene, {"runStrategy": "Once"})
        await shows(scene, "Running", runStrategy="Once")


@story("a claim of somebody else is left alone, and that is said")
async def _(scene: Scene) -> None:
    made = await scene.create(kinds.MACHINE, "blue", {"runStrategy": "Halted", **owning(scene, "a")})
    name = ownclaims.claim_name(made, "a")

    async def own() -> Object | None:
        found = await scene.find(kinds.RESOURCE_CLAIM, name)
        return found if found and found["metadata"].get("ownerReferences") else None

    await scene.reach(own, "it has a claim of its own")
    await scene.store.patch(kinds.RESOURCE_CLAIM, name, {"metadata": {"ownerReferences": None}}, scene.namespace)
    await change(scene, {"runStrategy": "Always"})
    await failure(scene, f"claim {name} belongs to somebody else: delete it, and the machine makes its own")
    assert not await scene.all(kinds.INSTANCE), "it would have had what is not its own"
    await scene.delete(kinds.RESOURCE_CLAIM, name)
    await scene.running("blue")
    assert conditions.find(await shows(scene, "Running"), "Failure") is None
    assert await own()


@pytest.mark.parametrize("name", STORIES)
async def test_embedded(name: str) -> None:
    async with scenes.embedded(2) as scene:
        await scene.classes()
        await STORIES[name](scene)
        await scene.check_books()


@pytest.mark.cluster
@pytest.mark.parametrize("name", STORIES)
async def test_on_a_cluster(name: str, control_plane: kubernetes.Cluster) -> None:
    async with scenes.on_cluster(control_plane, f"own-{uuid.uuid4().hex[:8]}", 2) as scene:
        await scene.classes()
        await STORIES[name](scene)
