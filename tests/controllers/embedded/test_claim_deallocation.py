"""A claim that is deleted goes, whatever its finalizer protects or no longer protects; and what a claim has is released when
its last user is gone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.controllers.embedded.pod_claims import FINALIZER
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene, hosts_of

OTHERS = "example.com/backup"
GONE = {"resource": "pods", "name": "gone", "uid": "00000000-0000-4000-8000-000000000001"}
FOREIGN = {"apiGroup": "example.com", "resource": "jobs", "name": "batch", "uid": "00000000-0000-4000-8000-000000000002"}


def spec(scene: Scene) -> Object:
    return scene.claim_spec()


async def allocated(scene: Scene, name: str, *users: Object) -> Object:
    """A claim that was allocated for a pod which is gone by now; for these users instead."""
    await scene.classes()
    await scene.claim(name)
    await scene.machine("blue", claim=name)
    await scene.running("blue")
    if users:
        await scene.store.patch(kinds.RESOURCE_CLAIM, name, {"status": {"reservedFor": list(users)}}, scene.namespace,
                                subresource="status")
    claim = await scene.find(kinds.RESOURCE_CLAIM, name)
    assert claim is not None
    assert FINALIZER in claim["metadata"]["finalizers"]
    return claim


async def finalizers(scene: Scene, name: str) -> list[str] | None:
    """None once the claim is gone."""
    await scene.settle()
    found = await scene.find(kinds.RESOURCE_CLAIM, name)
    return None if found is None else found["metadata"].get("finalizers") or []


@pytest.mark.parametrize(("have", "left"), [([FINALIZER], None), ([OTHERS, FINALIZER], [OTHERS]), ([OTHERS], [OTHERS])])
async def test_deleted_claim_without_allocation_loses_its_protection(
    scene: Scene, have: list[str], left: list[str] | None
) -> None:
    await scene.create(kinds.RESOURCE_CLAIM, "early", spec(scene), finalizers=have)
    await scene.settle()
    await scene.delete(kinds.RESOURCE_CLAIM, "early")
    assert await finalizers(scene, "early") == left


async def test_claim_that_is_not_deleted_keeps_its_protection(scene: Scene) -> None:
    """A scheduler may write the finalizer before the allocation."""
    await scene.create(kinds.RESOURCE_CLAIM, "early", spec(scene), finalizers=[FINALIZER])
    assert await finalizers(scene, "early") == [FINALIZER]


async def test_protected_claim_goes_with_its_namespace(scene: Scene) -> None:
    await scene.store.create(kinds.NAMESPACE, {"metadata": {"name": "team"}})
    meta = {"name": "early", "namespace": "team", "finalizers": [FINALIZER]}
    await scene.store.create(kinds.RESOURCE_CLAIM, {"metadata": meta, "spec": spec(scene)})
    await scene.store.delete(kinds.NAMESPACE, "team")
    assert scene.clock is not None
    for _ in range(3):
        await scene.settle()
        scene.clock.advance(1)
    assert not [obj for obj in (await scene.store.list(kinds.NAMESPACE)).items if obj["metadata"]["name"] == "team"]


async def test_claim_that_was_deleted_while_no_controller_ran_goes_at_the_next_start(tmp_path: Path) -> None:
    store: dict[str, Any] = {"data": tmp_path, "clock": ManualClock(), "synchronous": "OFF"}
    async with app.embedded(**store, names=IdGenerator(random.Random(1))) as product:
        await product.runner.stop()
        scene = Scene(product, "default", store["clock"])
        await scene.store.create(kinds.RESOURCE_CLAIM, {"metadata": {
            "name": "early", "namespace": "default", "finalizers": [FINALIZER]}, "spec": {"devices": {}}})
        await scene.delete(kinds.RESOURCE_CLAIM, "early")
        assert await scene.find(kinds.RESOURCE_CLAIM, "early") is not None
    async with app.embedded(**store, names=IdGenerator(random.Random(2)), hosts=hosts_of("other", 1)) as product:
        assert await finalizers(Scene(product, "default", store["clock"]), "early") is None


async def test_claim_that_lost_its_allocation_goes_after_its_bookings(scene: Scene) -> None:
    """The page still has its device: the finalizer stays until the host has released it."""
    await allocated(scene, "late")
    await scene.store.patch(kinds.RESOURCE_CLAIM, "late", {"metadata": {"finalizers": [OTHERS, FINALIZER]}}, scene.namespace)
    await scene.delete(kinds.RESOURCE_CLAIM, "late")
    await scene.store.patch(kinds.RESOURCE_CLAIM, "late", {"status": {"allocation": None, "reservedFor": None}},
                            scene.namespace, subresource="status")
    assert await finalizers(scene, "late") == [OTHERS, FINALIZER]
    assert await scene.bookings()
    await scene.delete(kinds.VMI, "blue")
    assert await finalizers(scene, "late") == [OTHERS]
    assert not await scene.bookings()


async def test_claim_reserved_for_a_pod_that_is_gone_is_released(scene: Scene) -> None:
    await allocated(scene, "late", GONE)
    await scene.delete(kinds.RESOURCE_CLAIM, "late")
    await scene.delete(kinds.VMI, "blue")
    assert await finalizers(scene, "late") is None
    assert not await scene.bookings()


async def test_claim_reserved_for_a_pod_that_does_not_name_it_is_released_with_the_pod(scene: Scene) -> None:
    pod = await scene.create(kinds.POD, "web", {"containers": [{"name": "web", "image": "web"}], "schedulerName": "other"})
    await allocated(scene, "late", {"resource": "pods", "name": "web", "uid": pod["metadata"]["uid"]})
    await scene.delete(kinds.VMI, "blue")
    await scene.delete(kinds.RESOURCE_CLAIM, "late")
    assert await finalizers(scene, "late") == [FINALIZER]
    await scene.delete(kinds.POD, "web")
    assert await finalizers(scene, "late") is None


async def test_claim_of_a_consumer_of_another_controller_stays(scene: Scene) -> None:
    """As in Kubernetes: that controller takes its entry out."""
    await allocated(scene, "late", FOREIGN)
    await scene.delete(kinds.VMI, "blue")
    await scene.delete(kinds.RESOURCE_CLAIM, "late")
    assert await finalizers(scene, "late") == [FINALIZER]
    await scene.store.patch(kinds.RESOURCE_CLAIM, "late", {"status": {"reservedFor": None}}, scene.namespace,
                            subresource="status")
    assert await finalizers(scene, "late") is None


async def test_vm_and_vmi_with_the_finalizer_of_kubevirts_controller_go(scene: Scene) -> None:
    """They were exported from a cluster; no other VM controller is there to take it off."""
    await scene.classes()
    await scene.template()
    await scene.machine("alone")
    body = {"domain": {"memory": {"guest": "1Gi"}, "devices": {}}}
    await scene.create(kinds.VM, "blue", {"runStrategy": "Always", "template": {"spec": body}},
                       finalizers=["kubevirt.io/virtualMachineControllerFinalize"])
    for name in ("alone", "blue"):
        await scene.running(name)
        found = await scene.find(kinds.VMI, name) or {}
        both = [*found["metadata"]["finalizers"], "kubevirt.io/virtualMachineControllerFinalize"]
        await scene.store.patch(kinds.VMI, name, {"metadata": {"finalizers": both}}, scene.namespace)
    await scene.delete(kinds.VM, "blue")
    await scene.delete(kinds.VMI, "alone")
    await scene.settle()
    assert [await scene.all(kind) for kind in (kinds.VM, kinds.VMI, kinds.POD)] == [[], [], []]
