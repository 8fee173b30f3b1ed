"""Hosts with a taint NoExecute: pods that do not tolerate it go, at once or after their time, and VMs start elsewhere."""

from __future__ import annotations

import random
from typing import Any

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.controllers.embedded.node_taint_eviction import NodeTaintEviction
from outfitter.controllers.manager import ControllerContext, ControllerManager, settle
from outfitter.store.clock import ManualClock, rfc3339
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from tests.controllers import scenario as scenes
from tests.controllers.scenario import Scene
from tests.rejected import Code

TAINT: Object = {"key": "maintenance", "value": "now", "effect": "NoExecute"}
OTHER: Object = {"key": "rack", "effect": "NoExecute"}
AWAY: Object = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


def bears(taint: Object, seconds: int | None = None, **more: Any) -> Object:
    limit = {} if seconds is None else {"tolerationSeconds": seconds}
    return {"key": taint["key"], "operator": "Exists", "effect": "NoExecute", **limit, **more}


async def taint(scene: Scene, node: str, *taints: Object) -> None:
    await scene.store.patch(kinds.NODE, node, {"spec": {"taints": list(taints) or None}})


async def pod(scene: Scene, name: str, node: str, *tolerations: Object) -> None:
    await scene.create(kinds.POD, name, {"containers": [{"name": "main"}], "terminationGracePeriodSeconds": 0,
                                         "nodeSelector": {"kubernetes.io/hostname": node}, "tolerations": list(tolerations)})
    await scene.settle()
    found = await scene.find(kinds.POD, name)
    assert found is not None
    assert found["status"]["phase"] == "Running"


async def goes_after(scene: Scene, name: str, most: int = 400) -> int | None:
    """Seconds until a pod is gone; None: it stays. No time passes before the first look."""
    assert scene.clock is not None
    for second in range(most):
        await scene.settle()
        if await scene.find(kinds.POD, name) is None:
            return second
        scene.clock.advance(1)
    return None


async def test_who_does_not_tolerate_it_goes_at_once(scene: Scene) -> None:
    here, there = sorted(host.name for host in scene.product.hosts)
    await pod(scene, "one", here)
    await pod(scene, "elsewhere", there)
    await pod(scene, "bears", here, bears(TAINT))
    await pod(scene, "bears-all", here, {"operator": "Exists"})
    await pod(scene, "other", here, bears(TAINT, value="later", operator="Equal"))
    await pod(scene, "no-execute-only", here, {**bears(TAINT), "effect": "NoSchedule"})
    await taint(scene, here, {**TAINT, "effect": "NoSchedule"}, {**OTHER, "effect": "PreferNoSchedule"})
    await scene.settle()
    assert len(await scene.all(kinds.POD)) == 6, "these effects are for new pods"
    await taint(scene, here, TAINT)
    await scene.settle()
    assert {each["metadata"]["name"] for each in await scene.all(kinds.POD)} == {"elsewhere", "bears", "bears-all"}
    said = await scene.events("TaintManagerEviction")
    assert said == [f"Marking for deletion: host {here} has the taint maintenance=now:NoExecute"] * 3


TIMES: dict[str, tuple[list[Object], list[Object], int | None]] = {
    "seconds": ([TAINT], [bears(TAINT, 30)], 30),
    "the smallest of two taints": ([TAINT, OTHER], [bears(OTHER, 50), bears(TAINT, 20)], 20),
    "one of two is tolerated for ever": ([TAINT, OTHER], [bears(OTHER), bears(TAINT, 20)], 20),
    "one of two is not tolerated": ([TAINT, OTHER], [bears(TAINT, 20)], 0),
    "the first that fits counts": ([TAINT], [bears(TAINT, 40), bears(TAINT, 10)], 40),
    "no time at all": ([TAINT], [bears(TAINT, 0)], 0),
    "less than no time": ([TAINT], [bears(TAINT, -5)], 0),
    "a host that is out of reach is tolerated for five minutes": ([AWAY], [], 300),
    "unless the pod says another time": ([AWAY], [bears(AWAY, 7)], 7),
    "for ever": ([TAINT, OTHER], [{"operator": "Exists"}], None),
}


@pytest.mark.parametrize("name", TIMES)
async def test_toleration_seconds(name: str, scene: Scene) -> None:
    taints, tolerations, seconds = TIMES[name]
    await pod(scene, "one", "node-0", *tolerations)
    await taint(scene, "node-0", *taints)
    assert await goes_after(scene, "one") == seconds


async def test_removed_taint_evicts_no_pod_and_restarts_the_timer(scene: Scene) -> None:
    await pod(scene, "one", "node-0", bears(TAINT, 30))
    await taint(scene, "node-0", TAINT)
    assert await goes_after(scene, "one", 29) is None
    await taint(scene, "node-0")
    assert await goes_after(scene, "one", 60) is None
    await taint(scene, "node-0", TAINT)
    assert await goes_after(scene, "one") == 30


async def test_the_time_of_a_taint_counts_but_not_what_was_before_the_pod(scene: Scene) -> None:
    assert scene.clock is not None
    await pod(scene, "early", "node-0", bears(TAINT, 30))
    added = rfc3339(scene.clock.now())
    scene.clock.advance(10)
    await taint(scene, "node-0", {**TAINT, "timeAdded": added})
    await pod(scene, "late", "node-0", bears(TAINT, 30))
    assert await goes_after(scene, "early") == 20
    assert await goes_after(scene, "late") == 10


async def vm(scene: Scene, strategy: str) -> None:
    await scene.classes()
    await scene.template()
    await scene.create(kinds.VM, "blue", {"runStrategy": strategy, "template": {"spec": {
        "resourceClaims": [{"name": "network", "resourceClaimTemplateName": "one-vf"}],
        "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [scenes.device()]}}}}})


@pytest.mark.parametrize("strategy", ["Always", "RerunOnFailure"])
async def test_vm_restarts_on_another_host_with_its_devices(scene: Scene, strategy: str) -> None:
    await vm(scene, strategy)
    first = await scene.running("blue")
    host = first["status"]["nodeName"]
    await taint(scene, host, TAINT)

    async def elsewhere() -> Object | None:
        found = await scene.find(kinds.VMI, "blue")
        status = (found or {}).get("status") or {}
        return found if status.get("phase") == "Running" and status.get("nodeName") != host else None

    await scene.reach(elsewhere, "it runs on the other host")
    [domain] = await scene.domains()
    [booking] = await scene.bookings()
    assert booking.device.pool != host
    assert domain.name.endswith("blue")
    await scene.check_books()


async def test_vm_whose_claim_is_on_the_host_waits_for_it(scene: Scene) -> None:
    await scene.classes()
    await scene.create(kinds.VM, "blue", {
        "runStrategy": "Always", "resourceClaimTemplates": [{"name": "network", "spec": {"spec": scene.claim_spec()}}],
        "template": {"spec": {"domain": {"devices": {"hostDevices": [scenes.device()]}}}}})
    first = await scene.running("blue")
    host = first["status"]["nodeName"]
    await taint(scene, host, TAINT)
    await scene.rejected("blue", Code.NODE_TAINTED, taint="maintenance=now:NoExecute")
    await taint(scene, host)
    again = await scene.running("blue")
    assert again["status"]["nodeName"] == host
    assert scenes.addresses(again) == scenes.addresses(first)


async def test_evicted_vmi_without_a_vm_has_the_reason(scene: Scene) -> None:
    await vm(scene, "Once")
    host = (await scene.running("blue"))["status"]["nodeName"]
    await taint(scene, host, TAINT)
    ended = await scene.phase("blue", "Failed")
    ready = conditions.find(ended, "Ready") or {}
    assert (ready["status"], ready["reason"]) == ("False", "PodTerminating")
    why = f"host {host} has the taint maintenance=now:NoExecute"
    assert ready["message"] == f"Taint manager: deleting due to NoExecute taint: {why}"
    assert not await scene.domains()
    assert not await scene.bookings()


async def test_vm_that_tolerates_the_taint_stays(scene: Scene) -> None:
    await scene.classes()
    await scene.template()
    await scene.machine("blue", tolerations=[bears(TAINT)])
    blue = await scene.running("blue")
    await taint(scene, blue["status"]["nodeName"], TAINT)
    await scene.settle()
    assert (await scene.running("blue"))["metadata"]["uid"] == blue["metadata"]["uid"]
    assert not await scene.events("TaintManagerEviction")


async def test_taint_added_while_stopped_is_found_at_the_start() -> None:
    clock = ManualClock()
    store = Memory(clock=clock, names=IdGenerator(random.Random(1)))
    for name in ("default", "here"):
        await store.create(kinds.NAMESPACE, {"metadata": {"name": name}})
    await store.create(kinds.NODE, {"metadata": {"name": "node-0"}, "spec": {"taints": [TAINT]}})
    for name, tolerations in (("goes", []), ("stays", [bears(TAINT)])):
        await store.create(kinds.POD, {"metadata": {"name": name, "namespace": "here"}, "spec": {
            "nodeName": "node-0", "containers": [{"name": "main"}], "tolerations": tolerations}})
    context = ControllerContext(store, clock=clock)
    runner = ControllerManager(context, [NodeTaintEviction(context)])
    await runner.start()
    await settle(lambda kind: store.watch_cache(kind).revision, context, [runner])
    left = {each["metadata"]["name"]: each["metadata"] for each in (await store.list(kinds.POD)).items}
    assert "deletionTimestamp" in left.get("goes", {"deletionTimestamp": "it went at once"})
    assert "deletionTimestamp" not in left["stays"]
    await runner.stop()
    await store.close()
