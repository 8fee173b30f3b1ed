"""Claims that belong to a VM: what keeps them from being made, what becomes of them when their templates change, and who
releases them. Scenarios are for the embedded product and for a real control plane."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.controllers import vm_claims
from outfitter.controllers.embedded.claim_deallocation import ClaimDeallocation
from outfitter.controllers.manager import ControllerContext
from outfitter.controllers.vm import VmController
from outfitter.errors import Conflict
from tests.cluster_roles import ClusterRoles
from tests.controllers import scenario as scenes
from tests.controllers.scenario import Scene, addresses, device
from tests.controllers.test_vm import another, ask, change, end, shows

ScenarioRun = Callable[[Scene], Awaitable[None]]
SCENARIOS: dict[str, ScenarioRun] = {}


def scenario(name: str) -> Callable[[ScenarioRun], None]:
    def add(tell: ScenarioRun) -> None:
        SCENARIOS[name] = tell

    return add


def owning(scene: Scene, *names: str, **exactly: Any) -> Object:
    """The parts of a VM's spec that say: it has a claim of its own for each name, and a device from each."""
    return {"resourceClaimTemplates": [{"name": name, "spec": {"spec": scene.claim_spec("nic", **exactly)}} for name in names],
            "template": {"spec": {"domain": {"memory": {"guest": "1Gi"}, "devices": {
                "hostDevices": [device(f"{name}0", "nic", name) for name in names]}}}}}


async def failure(scene: Scene, *words: str) -> str:
    """The VM's failure message, once it contains all of these words."""
    async def check() -> str | None:
        found = conditions.find(await scene.find(kinds.VM, "blue") or {}, "Failure")
        message = str((found or {}).get("message"))
        return message if found and all(word in message for word in words) else None

    return await scene.reach(check, f"the machine says {' and '.join(words)}")


async def test_vm_whose_claim_cannot_be_created_has_the_reason_and_can_be_stopped() -> None:
    async with scenes.embedded(2) as scene:
        await scene.classes()
        await scene.create(kinds.VM, "blue", {"runStrategy": "Manual", **owning(scene, "a")})
        await ask(scene, {"action": "Start"})
        await shows(scene, "Running", stateChangeRequests=None)
        with scenes.forbidden(scene.store, kinds.RESOURCE_CLAIM):
            await change(scene, owning(scene, "a", "b"))
            await failure(scene, "claim blue-b-", "exceeded quota")
            assert conditions.find(await shows(scene, "Running"), "RestartRequired") is None, "its device is plugged then"
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


async def test_new_vm_without_a_claim_has_the_reason() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        with scenes.forbidden(scene.store, kinds.RESOURCE_CLAIM):
            await scene.create(kinds.VM, "blue", {"runStrategy": "Once", **owning(scene, "a")})
            await failure(scene, "exceeded quota")
            assert "runStrategy" not in (await shows(scene, "Starting", created=False))["status"], "its start is still to come"
            await change(scene, {"runStrategy": "Halted"})
            await shows(scene, "Stopped", runStrategy="Halted")
            await change(scene, {"runStrategy": "Once"})
        await shows(scene, "Running", runStrategy="Once")


async def test_vm_whose_claim_cannot_be_kept_has_the_reason_and_can_be_stopped() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        with scenes.forbidden(scene.store, kinds.RESOURCE_CLAIM, "patch"):
            await scene.create(kinds.VM, "blue", {"runStrategy": "Always", **owning(scene, "a")})
            await scene.running("blue")
            await failure(scene, "claim blue-a-", "exceeded quota")
            await change(scene, {"runStrategy": "Halted"})
            await shows(scene, "Stopped")
        await change(scene, {"runStrategy": "Always"})
        await scene.running("blue")


async def test_a_claim_that_may_not_be_deleted_is_no_secret() -> None:
    async with scenes.embedded(2) as scene:
        await scene.classes()
        await scene.create(kinds.VM, "blue", {"runStrategy": "Halted", **owning(scene, "a", "b")})
        await scene.settle()
        with scenes.forbidden(scene.store, kinds.RESOURCE_CLAIM, "delete"):
            await change(scene, owning(scene, "a"))
            await failure(scene, "claim blue-b-", "cannot be deleted", "exceeded quota")
            await change(scene, owning(scene, "a", count=2))
            await failure(scene, "claim blue-a-", "cannot be deleted", "claim blue-b-")
        await change(scene, {"runStrategy": "Always"})
        assert len(addresses(await scene.running("blue"))) == 2
        assert conditions.find(await shows(scene, "Running"), "Failure") is None


@scenario("a claim of another owner is not changed, and that is reported")
async def _(scene: Scene) -> None:
    made = await scene.create(kinds.VM, "blue", {"runStrategy": "Halted", **owning(scene, "a")})
    name = vm_claims.claim_name(made, "a")

    async def own() -> Object | None:
        found = await scene.find(kinds.RESOURCE_CLAIM, name)
        return found if found and found["metadata"].get("ownerReferences") else None

    await scene.reach(own, "it has a claim of its own")
    await scene.store.patch(kinds.RESOURCE_CLAIM, name, {"metadata": {"ownerReferences": None}}, scene.namespace)
    await change(scene, {"runStrategy": "Always"})
    await failure(scene, f"claim {name} belongs to another owner: delete it, and the VM creates its own")
    assert not await scene.all(kinds.VMI), "it would have had what is not its own"
    await scene.delete(kinds.RESOURCE_CLAIM, name)
    await scene.running("blue")
    assert conditions.find(await shows(scene, "Running"), "Failure") is None
    assert await own()


async def claims(scene: Scene) -> dict[str, Object]:
    """The VM's own claims, by their uids."""
    return {claim["metadata"]["uid"]: claim for claim in await scene.all(kinds.RESOURCE_CLAIM)}


async def restart_required(scene: Scene) -> None:
    async def check() -> bool:
        return conditions.is_true(await scene.find(kinds.VM, "blue") or {}, "RestartRequired")

    await scene.reach(check, "a restart is required")


@scenario("a claim whose template was taken out goes when the VM stops, and its device with it")
async def _(scene: Scene) -> None:
    await scene.create(kinds.VM, "blue", {"runStrategy": "Always", **owning(scene, "a", "b")})
    had = addresses(await scene.running("blue"))
    before = await claims(scene)
    await change(scene, owning(scene, "a"))

    async def unplugged() -> bool:
        return addresses(await scene.running("blue")) == had[:1]

    await scene.reach(unplugged, "the device is unplugged")
    assert (await claims(scene)).keys() == before.keys(), "the claims of its launcher pod stay the VM's own"
    await change(scene, {"runStrategy": "Halted"})
    await shows(scene, "Stopped")
    await scene.template()
    await scene.machine("red")
    red = addresses(await scene.running("red"))
    [left] = (await claims(scene)).keys() & before.keys()
    assert before[left]["metadata"]["name"].startswith("blue-a-")
    await change(scene, {"runStrategy": "Always"})
    assert [*addresses(await scene.running("blue")), *red] == had
    await scene.check_books()
    for kind, name in ((kinds.VM, "blue"), (kinds.VMI, "red")):
        await scene.delete(kind, name, propagation="Background")
    await scene.empty()


@scenario("a claim whose template changed is recreated before the next start")
async def _(scene: Scene) -> None:
    await scene.create(kinds.VM, "blue", {"runStrategy": "Manual", **owning(scene, "a")})
    await ask(scene, {"action": "Start"})
    first = await scene.running("blue")
    [claim] = await claims(scene)
    await change(scene, owning(scene, "a", count=2))
    await restart_required(scene)
    assert list(await claims(scene)) == [claim]
    await ask(scene, {"action": "Stop", "uid": first["metadata"]["uid"]}, {"action": "Start"})
    await another(scene, first["metadata"]["uid"])
    assert len(addresses(await scene.running("blue"))) == 2
    assert claim not in await claims(scene)

    async def settled() -> bool:
        found = await scene.find(kinds.VM, "blue") or {}
        return not [each for each in ("RestartRequired", "Failure") if conditions.find(found, each)]

    await scene.reach(settled, "nothing is left to be done")


@scenario("what is kept for a stopped VM stays when nothing of it changed")
async def _(scene: Scene) -> None:
    """Also without the annotation of what it was created from, and when a label of its template is another one."""
    await scene.create(kinds.VM, "blue", {"runStrategy": "Always", **owning(scene, "a")})
    had = addresses(await scene.running("blue"))
    [(uid, claim)] = (await claims(scene)).items()
    await change(scene, {"runStrategy": "Halted"})
    await shows(scene, "Stopped")
    await scene.store.patch(kinds.RESOURCE_CLAIM, claim["metadata"]["name"], {"metadata": {"annotations": None}},
                            scene.namespace)

    async def noted() -> bool:
        return bool((await claims(scene))[uid]["metadata"].get("annotations") == claim["metadata"]["annotations"])

    await scene.reach(noted, "it is noted again")
    labelled = owning(scene, "a")
    labelled["resourceClaimTemplates"][0]["spec"]["metadata"] = {"labels": {"for": "blue"}}
    await change(scene, {"runStrategy": "Always", **labelled})
    assert addresses(await scene.running("blue")) == had
    assert list(await claims(scene)) == [uid]


@scenario("a VM that is deleted in the foreground takes its claim along")
async def _(scene: Scene) -> None:
    await scene.create(kinds.VM, "blue", {"runStrategy": "Always", **owning(scene, "a")})
    await scene.running("blue")
    await scene.delete(kinds.VM, "blue", propagation="Foreground")

    async def gone() -> bool:
        return not await scene.all(kinds.VM)

    await scene.reach(gone, "the machine is gone")
    await scene.empty()


@scenario("the claim of a stopped VM that is deleted is recreated")
async def _(scene: Scene) -> None:
    await scene.create(kinds.VM, "blue", {"runStrategy": "Always", **owning(scene, "a")})
    await scene.running("blue")
    await change(scene, {"runStrategy": "Halted"})
    await shows(scene, "Stopped")
    [(uid, claim)] = (await claims(scene)).items()
    await scene.delete(kinds.RESOURCE_CLAIM, claim["metadata"]["name"])

    async def free() -> bool:
        return uid not in await claims(scene) and len(await claims(scene)) == 1 and not await scene.bookings()

    await scene.reach(free, "the devices are let go of, and there is another claim")
    await change(scene, {"runStrategy": "Always"})
    await scene.running("blue")


@scenario("a VM starts again and again, and the pods that it had use its claim no more")
async def _(scene: Scene) -> None:
    await scene.create(kinds.VM, "blue", {"runStrategy": "Always", **owning(scene, "a")})
    had = addresses(await scene.running("blue"))
    for _ in range(2):
        await change(scene, {"runStrategy": "Halted"})
        await shows(scene, "Stopped")
        await change(scene, {"runStrategy": "Always"})
        assert addresses(await scene.running("blue")) == had
    first = (await scene.running("blue"))["metadata"]["uid"]
    await end(scene, "Failed")
    await another(scene, first)
    assert addresses(await scene.running("blue")) == had

    async def users() -> bool:
        [claim] = (await claims(scene)).values()
        return sorted(one["resource"] for one in claim["status"]["reservedFor"]) == ["pods", "virtualmachines"]

    await scene.reach(users, "its last pod and itself use the claim")


@scenario("a claim whose template was taken out stays as long as it is used")
async def _(scene: Scene) -> None:
    made = await scene.create(kinds.VM, "blue", {"runStrategy": "Always", **owning(scene, "a", "b")})
    await scene.running("blue")
    await change(scene, {"runStrategy": "Halted"})
    await shows(scene, "Stopped")
    name = vm_claims.claim_name(made, "b")
    await scene.machine("red", claim=name)
    await scene.running("red")
    await change(scene, owning(scene, "a"))
    await shows(scene, "Stopped", observedGeneration=3)
    if scene.clock is not None:
        scene.clock.advance(60)  # nothing is to be tried again any more
        await scene.settle()
    assert "deletionTimestamp" not in (await scene.find(kinds.RESOURCE_CLAIM, name) or {})["metadata"]
    await scene.delete(kinds.VMI, "red")

    async def gone() -> bool:
        return await scene.find(kinds.RESOURCE_CLAIM, name) is None

    await scene.reach(gone, "the claim is gone")


def by_template(template: str = "one-vf", *, listed: bool = True, **entry: Any) -> Object:
    """The parts of a VM's spec that say: it has a claim of its own from that ResourceClaimTemplate, and a device from it.
    KubeVirt wants it listed in the template of the instance too."""
    same = [{"name": "gpu", "resourceClaimTemplateName": template}] if listed else []
    return {"resourceClaimTemplates": [{"name": "gpu", "resourceClaimTemplateName": template, **entry}],
            "template": {"spec": {"resourceClaims": same, "domain": {"memory": {"guest": "1Gi"}, "devices": {
                "hostDevices": [device("g0", "nic", "gpu")]}}}}}


async def own_claims(scene: Scene) -> list[Object]:
    return [claim for claim in await scene.all(kinds.RESOURCE_CLAIM) if claim["metadata"]["name"].startswith("blue-")]


async def freed(scene: Scene) -> None:
    async def check() -> bool:
        return not await own_claims(scene)

    await scene.reach(check, "the claim is gone")


async def crowded(scene: Scene) -> None:
    """Both devices of the host are taken: one by blue, and the other one by green; red waits for the first that comes free."""
    await scene.machine("green")
    await scene.running("green")
    await scene.machine("red")
    await scene.waits("red", "PodScheduled")


@scenario("a claim of a ResourceClaimTemplate is made when the VM starts, stays over restarts, and goes when it stops")
async def _(scene: Scene) -> None:
    made = await scene.create(kinds.VM, "blue", {"runStrategy": "Halted", **by_template()})
    await shows(scene, "Stopped")
    assert not await own_claims(scene)
    await change(scene, {"runStrategy": "Always"})
    await failure(scene, f"claim {vm_claims.claim_name(made, 'gpu')} cannot be created: there is no "
                         f"ResourceClaimTemplate one-vf in namespace {scene.namespace}")
    assert not await scene.all(kinds.VMI)
    await scene.template()
    first = await scene.running("blue")
    [claim] = await own_claims(scene)
    assert first["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}]
    stored = await shows(scene, "Running")
    assert {**stored["spec"], "runStrategy": "Halted"} == made["spec"], "what was written stays as it was written"
    assert conditions.find(stored, "Failure") is None
    await crowded(scene)
    await scene.delete(kinds.VMI, "blue")  # as virtctl restart does
    second = await another(scene, first["metadata"]["uid"])
    await end(scene, "Failed")
    await another(scene, second)
    assert addresses(await scene.running("blue")) == addresses(first)
    assert [one["metadata"]["uid"] for one in await own_claims(scene)] == [claim["metadata"]["uid"]]
    await scene.waits("red", "PodScheduled")
    await change(scene, {"runStrategy": "Halted"})
    await shows(scene, "Stopped")
    await freed(scene)
    assert addresses(await scene.running("red")) == addresses(first)
    assert any("the virtual machine is stopped" in one for one in await scene.events("SuccessfulDelete"))
    await change(scene, {"runStrategy": "Always"})
    await scene.waits("blue", "PodScheduled")
    await scene.delete(kinds.VMI, "red")
    await scene.running("blue")
    for kind, name in ((kinds.VM, "blue"), (kinds.VMI, "green")):
        await scene.delete(kind, name, propagation="Background")
    await scene.empty()


@scenario("with persistWhenStopped it stays while the VM is stopped, whatever becomes of the template")
async def _(scene: Scene) -> None:
    await scene.template()
    await scene.template("other")
    await scene.create(kinds.VM, "blue", {"runStrategy": "Halted", **by_template(listed=False, persistWhenStopped=True)})
    await shows(scene, "Stopped")
    assert not await own_claims(scene), "it is made when the VM starts"
    await change(scene, {"runStrategy": "Always"})
    had = addresses(await scene.running("blue"))
    [claim] = await own_claims(scene)
    await crowded(scene)
    await change(scene, {"runStrategy": "Halted"})
    await shows(scene, "Stopped")
    await scene.delete(kinds.RESOURCE_CLAIM_TEMPLATE, "one-vf")
    await scene.template("one-vf", count=2)
    await change(scene, {"runStrategy": "Always"})
    assert addresses(await scene.running("blue")) == had
    assert [one["metadata"]["uid"] for one in await own_claims(scene)] == [claim["metadata"]["uid"]]
    await change(scene, by_template("other", listed=False, persistWhenStopped=True))
    await restart_required(scene)
    await change(scene, {"runStrategy": "Halted"})
    assert addresses(await scene.running("red")) == had, "it keeps what it has of its old template no longer"
    await change(scene, by_template("other", listed=False, persistWhenStopped=False))
    await freed(scene)


@scenario("a guest that shuts down releases what is not kept while the VM is stopped")
async def _(scene: Scene) -> None:
    await scene.template()
    await scene.create(kinds.VM, "blue", {"runStrategy": "Manual", **by_template()})
    await ask(scene, {"action": "Start"})
    first = await scene.running("blue")
    await crowded(scene)
    await end(scene, "Succeeded")
    await freed(scene)
    assert addresses(await scene.running("red")) == addresses(first)
    assert await scene.find(kinds.VMI, "blue") is not None
    await scene.delete(kinds.VMI, "red")
    await ask(scene, {"action": "Start"})
    await another(scene, first["metadata"]["uid"])


@scenario("a claim that is said in place is kept unless persistWhenStopped says otherwise")
async def _(scene: Scene) -> None:
    said = owning(scene, "a")
    said["resourceClaimTemplates"][0]["persistWhenStopped"] = False
    await scene.create(kinds.VM, "blue", {"runStrategy": "Halted", **said})
    await shows(scene, "Stopped")
    assert not await own_claims(scene)
    await change(scene, {"runStrategy": "Always"})
    await scene.running("blue")
    assert len(await own_claims(scene)) == 1
    await change(scene, {"runStrategy": "Halted"})
    await freed(scene)
    said["resourceClaimTemplates"][0]["persistWhenStopped"] = True
    await change(scene, said)

    async def there() -> bool:
        return len(await own_claims(scene)) == 1

    await scene.reach(there, "it is there before the first start")


@scenario("a VM that runs again after a failure keeps what it has")
async def _(scene: Scene) -> None:
    await scene.template()
    await scene.create(kinds.VM, "blue", {"runStrategy": "RerunOnFailure", **by_template()})
    first = await scene.running("blue")
    await crowded(scene)
    await end(scene, "Failed")
    await another(scene, first["metadata"]["uid"])
    assert addresses(await scene.running("blue")) == addresses(first)


async def test_vm_starts_when_its_template_is_created() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.create(kinds.VM, "blue", {"runStrategy": "Always", **by_template()})
        await scene.settle()
        assert not await scene.all(kinds.VMI)
        await scene.template()
        await scene.settle()  # at once: no time goes by
        assert await scene.all(kinds.VMI)


async def test_stale_cache_releases_nothing() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        await scene.create(kinds.VM, "blue", {"runStrategy": "Manual", **by_template()})
        await ask(scene, {"action": "Start"})
        await scene.running("blue")
        [claim] = await own_claims(scene)
        held = ControllerContext(scene.store, clock=scene.product.context.clock)
        late = VmController(held)
        held.informer(kinds.VM).put(await shows(scene, "Running", stateChangeRequests=None))
        held.informer(kinds.RESOURCE_CLAIM).put({**claim, "status": {**claim["status"], "reservedFor": []}})
        with pytest.raises(Conflict, match="stale"):
            await late.reconcile(f"{scene.namespace}/blue")


async def test_delayed_controller_releases_nothing_of_a_running_vm() -> None:
    """It knows the VM as it was before it was started."""
    async with scenes.embedded(2) as scene:
        await scene.classes()
        await scene.template()
        seen = await scene.create(kinds.VM, "blue", {"runStrategy": "Halted", **by_template()})
        await scene.settle()
        await change(scene, {"runStrategy": "Always"})
        await scene.running("blue")
        [claim] = await own_claims(scene)
        held = ControllerContext(scene.store, clock=scene.product.context.clock)
        late = VmController(held)
        held.informer(kinds.VM).put(seen)
        for status in (claim["status"], {**claim["status"], "reservedFor": []}):  # even where its pod is not known to use it
            held.informer(kinds.RESOURCE_CLAIM).put({**claim, "status": status})
            with contextlib.suppress(Conflict):
                await late.reconcile(f"{scene.namespace}/blue")
        assert [one["metadata"] for one in await own_claims(scene)] == [claim["metadata"]]


async def test_delayed_controller_releases_no_kept_claim() -> None:
    """It knows the template as it was before the VM was changed, had another claim and was stopped again."""
    async with scenes.embedded(2) as scene:
        await scene.classes()
        seen = await scene.create(kinds.VM, "blue", {"runStrategy": "Halted", **owning(scene, "a")})
        await scene.settle()
        await change(scene, {"runStrategy": "Always", **owning(scene, "a", count=2)})
        await scene.running("blue")
        await change(scene, {"runStrategy": "Halted"})
        await shows(scene, "Stopped")
        [(uid, claim)] = (await claims(scene)).items()
        held = ControllerContext(scene.store, clock=scene.product.context.clock)
        late = VmController(held)
        held.informer(kinds.VM).put(seen)
        held.informer(kinds.RESOURCE_CLAIM).put(claim)
        with pytest.raises(Conflict, match="stale"):
            await late.reconcile(f"{scene.namespace}/blue")
        assert "deletionTimestamp" not in (await claims(scene))[uid]["metadata"]


@pytest.mark.parametrize("name", SCENARIOS)
async def test_embedded(name: str) -> None:
    async with scenes.embedded(2) as scene:
        await scene.classes()
        await SCENARIOS[name](scene)
        await scene.check_books()


class Elsewhere(ClaimDeallocation):
    """kube-controller-manager looks after claims: it takes pods off that have ended, and knows nothing of VMs."""

    halts = False  # until 1.35: it does nothing for a claim that something else than a pod uses

    async def reconcile(self, key: str) -> float | None:
        claim = self._claims.get(key)
        if claim is None:
            return await super().reconcile(key)
        status, going = claim.get("status") or {}, claim["metadata"].get("deletionTimestamp")
        users = status.get("reservedFor") or []
        if self.halts and any(one["resource"] != "pods" for one in users):
            return None
        left = [one for one in users if one["resource"] != "pods" or await self._alive("here", one)]
        if left and left != users:
            await self._store.patch(kinds.RESOURCE_CLAIM, claim["metadata"]["name"], {
                "metadata": {"resourceVersion": claim["metadata"]["resourceVersion"]}, "status": {"reservedFor": left},
            }, "here", subresource="status")
        elif not left and status.get("allocation") and (users or going):
            return await self._free(claim, self._pages_of(claim))
        return None


@pytest.mark.parametrize("version", ["1.35", "1.36"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_where_others_look_after_claims(name: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Elsewhere, "halts", version == "1.35")
    monkeypatch.setattr(app, "ClaimDeallocation", Elsewhere)
    await test_embedded(name)


@pytest.mark.cluster
@pytest.mark.parametrize("name", SCENARIOS)
async def test_on_a_cluster(name: str, controller: ClusterRoles) -> None:
    word = f"own-{uuid.uuid4().hex[:8]}"
    async with scenes.on_roles(controller, word, scenes.hosts_text(word, 2)) as scene:
        await scene.classes()
        await SCENARIOS[name](scene)
