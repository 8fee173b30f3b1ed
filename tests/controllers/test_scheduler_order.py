"""Who comes first, and what is not worth a warning. The embedded scheduler's own manners."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

import pytest

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.ledger_page.page import Page
from outfitter.controllers.embedded.claim_deallocation import ClaimDeallocation
from outfitter.controllers.embedded.pod_claims import PodClaims
from outfitter.controllers.scheduler import Scheduler
from outfitter.controllers.scheduling_queue import SchedulingBatch
from outfitter.errors import AlreadyHeld, Conflict, Forbidden
from outfitter.ledger import book, out_of_service
from outfitter.store.base import Store
from outfitter.store.informer import key_of
from tests.controllers import scenario as scenes


async def test_who_waits_longest_is_served_first() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        order = ["m7", "m2", "m9", "m1", "m5"]  # not the order of their names
        for name in order:
            await scene.machine(name)
            await scene.phase(name, "Running" if name == order[0] else "Scheduling")
        for before, after in itertools.pairwise(order):
            await scene.delete(kinds.VMI, before)
            await scene.running(after)
            waiting = [obj for obj in await scene.all(kinds.VMI) if obj["status"]["phase"] == "Scheduling"]
            assert len(waiting) == len(order) - order.index(after) - 1


async def test_no_warning_for_a_vm_that_is_scheduled_at_once() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
        assert await scene.events("FailedScheduling") == []


async def test_claim_allocated_by_another_scheduler_and_unused_stays_allocated() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        claim = await scene.claim("mine")
        result = {"request": "nic", "driver": scene.driver, "pool": scene.host.name, "device": "pci-0000-3b-00-0-vf0"}
        claim["status"] = {"allocation": {"devices": {"results": [result]}}}
        await scene.store.replace(kinds.RESOURCE_CLAIM, claim, subresource="status")
        await scene.create(kinds.CONFIG_MAP, "settled", {})
        assert scene.clock is not None
        scene.clock.advance(5)
        await scene.reach(lambda: scene.find(kinds.CONFIG_MAP, "settled"), "at rest")
        found = await scene.find(kinds.RESOURCE_CLAIM, "mine")
        assert found is not None
        assert found["status"]["allocation"]["devices"]["results"] == [result]


async def test_pod_created_by_another_replica_is_adopted() -> None:
    """Found by its owner, whatever its name."""
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
        pod = await scene.pod("blue")
        meta = {key: pod["metadata"][key] for key in ("labels", "ownerReferences")}
        spec = {"containers": [{"name": "compute", "image": "x"}], "nodeSelector": {"no": "where"}}
        await scene.create(kinds.POD, "by-hand", spec, finalizers=["example.com/wait"], **meta)
        await scene.delete(kinds.VMI, "blue")

        async def waits_for_the_other() -> bool:
            return [pod["metadata"]["name"] for pod in await scene.all(kinds.POD)] == ["by-hand"]

        await scene.reach(waits_for_the_other, "its own pod is gone")
        assert await scene.find(kinds.VMI, "blue") is not None
        await scene.store.patch(kinds.POD, "by-hand", {"metadata": {"finalizers": None}}, scene.namespace)
        await scene.gone("blue")
        await scene.empty()


async def test_claim_that_cannot_be_created_has_a_reason() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()

        class Refusing:
            """The store, but that a claim is one too many."""

            async def create(self, kind: kinds.Kind, obj: kinds.Object, *, dry_run: bool = False) -> kinds.Object:
                if kind == kinds.RESOURCE_CLAIM:
                    raise Forbidden("exceeded quota: devices")
                return await scene.store.create(kind, obj, dry_run=dry_run)

            def __getattr__(self, name: str) -> object:
                return getattr(scene.store, name)

        [maker] = [each for each in scene.product.runner.controllers if isinstance(each, PodClaims)]
        maker._store = cast("Store", Refusing())
        await scene.machine("blue")

        async def said() -> bool:
            return await scene.events("FailedResourceClaimCreation") == ["exceeded quota: devices"]

        await scene.reach(said, "the pod's event")
        await scene.waits("blue", "DevicesReady", "claim network has not been made yet")


async def test_a_pod_is_not_given_the_claim_of_one_that_had_its_name_before() -> None:
    """While a claim is made for a pod the pod goes, and another one of the same name comes."""
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.machine("blue")
        await scene.phase("blue", "Scheduling")

        class Meanwhile:
            """The store, and who replaces the pod behind the back of whoever makes its first claim."""

            def __init__(self) -> None:
                self.replaced = ""

            async def create(self, kind: kinds.Kind, obj: kinds.Object) -> kinds.Object:
                made = await scene.store.create(kind, obj)
                if not self.replaced:
                    pod = await scene.pod("blue")
                    await scene.delete(kinds.POD, pod["metadata"]["name"], grace=0)
                    again = {key: pod["metadata"][key] for key in ("name", "namespace", "labels", "ownerReferences")}
                    await scene.store.create(kinds.POD, {"metadata": again, "spec": pod["spec"]})
                    self.replaced = pod["metadata"]["uid"]
                return made

            def __getattr__(self, name: str) -> object:
                return getattr(scene.store, name)

        [maker] = [each for each in scene.product.runner.controllers if isinstance(each, PodClaims)]
        meanwhile = Meanwhile()
        maker._store = cast("Store", meanwhile)
        await scene.template()
        await scene.running("blue")
        pod, [claim] = await scene.pod("blue"), await scene.all(kinds.RESOURCE_CLAIM)
        assert pod["metadata"]["uid"] != meanwhile.replaced != ""
        assert pod["status"]["resourceClaimStatuses"] == [{"name": "network", "resourceClaimName": claim["metadata"]["name"]}]
        assert claim["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]


async def test_late_claim_event_does_not_release_the_device_of_a_stopped_vm() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        devices = {"hostDevices": [scenes.device()]}
        await scene.create(kinds.VM, "blue", {
            "runStrategy": "Always", "template": {"spec": {"domain": {"memory": {"guest": "1Gi"}, "devices": devices}}},
            "resourceClaimTemplates": [{"name": "network", "spec": {"spec": scene.claim_spec()}}]})
        await scene.running("blue")
        await scene.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Halted"}}, scene.namespace)
        await scene.gone("blue")
        kept, [claim] = await scene.bookings(), await scene.all(kinds.RESOURCE_CLAIM)
        assert [booking.state for booking in kept] == ["released"]
        [loop] = [each for each in scene.product.runner.controllers if isinstance(each, ClaimDeallocation)]
        loop._claims = cast("Any", {key_of(claim): {key: value for key, value in claim.items() if key != "status"}})
        await loop.reconcile(key_of(claim))
        assert await scene.bookings() == kept


async def test_a_claim_that_is_booked_again_while_it_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of pages come later than those of claims, and a claim is booked for its next pod when the old one ends."""
    change = book.change_page

    async def slow(store: Store, host: str, *arguments: Any, **more: Any) -> Page:
        if not more.get("also"):
            for _ in range(300):
                await asyncio.sleep(0)
        return await change(store, host, *arguments, **more)

    monkeypatch.setattr(book, "change_page", slow)
    scenes.late_news(monkeypatch, kinds.LEDGER_PAGE, 40)
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.claim("shared")
        for name in ("one", "two"):
            await scene.create(kinds.POD, name, {"containers": [{"name": "main"}], "resourceClaims": [
                {"name": "network", "resourceClaimName": "shared"}]})
            await scene.settle()
        await scene.delete(kinds.POD, "one")
        for _ in range(5):
            await scene.settle()
            assert scene.clock is not None
            scene.clock.advance(1)
        await scene.check_books()


async def test_host_with_a_repeated_page_conflict_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page minds need not be in what its host publishes; then the next host is as good."""
    real, asked = Page.holding, []

    def stubborn(page: Page, bookings: Any, limits: Any = None) -> Any:
        asked.append(page.host)
        if page.host == "node-0":
            raise AlreadyHeld("node-0/x", by="somebody", since="then")
        return real(page, bookings, limits)

    monkeypatch.setattr(Page, "holding", stubborn)
    async with scenes.embedded(1, 2) as scene:
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
        assert asked == ["node-0", "node-0", "node-1", "node-1"], "the store asks the page again when it is written"
        await scene.machine("green")
        await scene.phase("green", "Scheduling")
        told = await scene.condition("green", "PodScheduled") or {}
        assert "node-0: node-0/x is held by somebody since then" in told["message"]


async def waiting_pods(scene: scenes.Scene, *names: str) -> None:
    for name in names:
        await scene.claim(f"claim-{name}")
        await scene.create(kinds.POD, name, {"containers": [{"name": "main"}], "resourceClaims": [
            {"name": "network", "resourceClaimName": f"claim-{name}"}]})
        await scene.settle()


async def bound(scene: scenes.Scene) -> list[str]:
    await scene.settle()
    return sorted(pod["metadata"]["name"] for pod in await scene.all(kinds.POD) if pod["spec"].get("nodeName"))


async def told() -> None:
    """All have heard what there is to hear, and whoever waits for another one does so by now."""
    for _ in range(200):
        await asyncio.sleep(0)


async def test_event_of_a_later_pod_does_not_put_it_first() -> None:
    """While the scheduler is at work an event of the last pod that waits for a device, then the device becomes free."""
    async with scenes.embedded(1) as scene:
        await scene.classes()
        device = DeviceId(scene.driver, scene.host.name, "pci-0000-3b-00-0-vf0")
        await out_of_service.reserve(scene.store, scene.host.name, device, by="admin")
        await waiting_pods(scene, "zoe", "mia", "ann")
        assert await bound(scene) == []
        [schedule] = [each for each in scene.product.runner.controllers if isinstance(each, Scheduler)]
        over = asyncio.Event()

        async def busy(batch: SchedulingBatch) -> None:
            schedule.scheduling_queue.gather(batch, ())
            await over.wait()

        at_work = asyncio.create_task(schedule.scheduling_queue.run("nobody", busy))
        await told()
        await scene.store.patch(kinds.POD, "ann", {"metadata": {"labels": {"a": "b"}}}, scene.namespace)
        await told()
        await out_of_service.unreserve(scene.store, scene.host.name, device)
        await told()
        over.set()
        await at_work
        assert await bound(scene) == ["zoe"]


async def test_pod_of_a_cancelled_batch_gets_the_reason() -> None:
    async with scenes.embedded(1) as scene:
        [schedule] = [each for each in scene.product.runner.controllers if isinstance(each, Scheduler)]
        await scene.settle()  # no other process is at work
        both = asyncio.Event()

        async def never_ends(batch: SchedulingBatch) -> None:
            await both.wait()
            schedule.scheduling_queue.gather(batch, ())
            await asyncio.Event().wait()

        at_work, along = (asyncio.create_task(schedule.scheduling_queue.run(f"{scene.namespace}/{name}", never_ends))
                          for name in ("one", "two"))
        await told()
        both.set()
        await told()
        at_work.cancel()
        with pytest.raises(Conflict, match="was cancelled"):
            await along


async def test_who_cannot_be_served_stands_in_nobodys_way() -> None:
    async with scenes.embedded(2) as scene:
        await scene.classes()
        for number in range(70):  # more than are taken together
            await scene.create(kinds.POD, f"huge-{number}", {"containers": [
                {"name": "main", "resources": {"requests": {"memory": "100Ti"}}}]})
        await waiting_pods(scene, "one", "two", "three")
        assert await bound(scene) == ["one", "two"]
        await scene.delete(kinds.POD, "one")
        assert await bound(scene) == ["three", "two"]


@pytest.mark.parametrize("how", ["deleted", "ended"])
async def test_who_waits_for_cpus_goes_on_when_there_are_some(how: str) -> None:
    """Pods without devices are on no page."""
    async with scenes.embedded(1) as scene:
        [node] = (await scene.store.list(kinds.NODE)).items
        most = {"containers": [{"name": "main", "resources": {"requests": {"cpu": node["status"]["allocatable"]["cpu"]}}}]}
        for name in ("one", "two"):
            await scene.create(kinds.POD, name, most)
            assert await bound(scene) == ["one"]
        if how == "deleted":
            await scene.delete(kinds.POD, "one")
        else:
            await scene.store.patch(kinds.POD, "one", {"status": {"phase": "Succeeded"}}, scene.namespace, subresource="status")
        assert "two" in await bound(scene)
