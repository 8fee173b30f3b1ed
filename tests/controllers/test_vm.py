"""Virtual machines, as scenarios for the embedded product and for a real control plane: started, stopped and asked, ended by
themselves, with claims of their own."""

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
from outfitter.controllers.manager import ControllerContext
from outfitter.controllers.vm import VmController
from outfitter.errors import Conflict, NotFound
from tests.cluster_roles import ClusterRoles
from tests.controllers import scenario as scenes
from tests.controllers.scenario import Scene, addresses, device

ScenarioRun = Callable[[Scene], Awaitable[None]]
SCENARIOS: dict[str, ScenarioRun] = {}


def scenario(name: str) -> Callable[[ScenarioRun], None]:
    def add(tell: ScenarioRun) -> None:
        SCENARIOS[name] = tell

    return add


def body() -> Object:
    return {"resourceClaims": [{"name": "network", "resourceClaimTemplateName": "one-vf"}],
            "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [device()]}}}


async def vm(scene: Scene, name: str = "blue", *, spec: Object | None = None, **how: Any) -> Object:
    return await scene.create(kinds.VM, name, {**(how or {"runStrategy": "Always"}), "template": {
        "metadata": {"labels": {"team": "a"}}, "spec": spec or body()}})


async def change(scene: Scene, spec: Object, name: str = "blue") -> None:
    await scene.store.patch(kinds.VM, name, {"spec": spec}, scene.namespace)


async def ask(scene: Scene, *requests: Object, name: str = "blue") -> None:
    await scene.store.patch(kinds.VM, name, {"status": {"stateChangeRequests": list(requests)}}, scene.namespace,
                            subresource="status")


async def shows(scene: Scene, word: str, name: str = "blue", **more: Any) -> Object:
    """The VM, once it reports that it is so, and all of what it should say besides."""
    async def check() -> Object | None:
        found = await scene.find(kinds.VM, name)
        status = (found or {}).get("status") or {}
        return found if status.get("printableStatus") == word and all(
            status.get(key) == value for key, value in more.items()) else None

    return await scene.reach(check, f"{name} is {word} {more}")


async def another(scene: Scene, first: str) -> str:
    """The uid of the instance that runs in place of the first one."""
    async def check() -> str | None:
        found = await scene.find(kinds.VMI, "blue") or {"metadata": {"uid": first}}
        runs = found["metadata"]["uid"] != first and (found.get("status") or {}).get("phase") == "Running"
        return str(found["metadata"]["uid"]) if runs else None

    return await scene.reach(check, "another instance runs")


async def end(scene: Scene, phase: str) -> None:
    """The guest goes by itself, as its pod reports."""
    pod = await scene.pod("blue")
    await scene.store.patch(kinds.POD, pod["metadata"]["name"], {"status": {"phase": phase}}, scene.namespace,
                            subresource="status")


@scenario("it runs, stops when it is halted, and runs again")
async def _(scene: Scene) -> None:
    await scene.template()
    made = await vm(scene)
    await shows(scene, "Running", created=True, ready=True)
    first = await scene.running("blue")
    assert first["metadata"]["labels"]["team"] == "a"
    assert first["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    await change(scene, {"runStrategy": "Halted"})
    await shows(scene, "Stopped", created=False, ready=False, runStrategy="Halted")
    await scene.empty()
    await change(scene, {"runStrategy": "Always"})
    assert (await scene.running("blue"))["metadata"]["uid"] != first["metadata"]["uid"]
    after = await shows(scene, "Running")
    assert after["spec"]["template"] == made["spec"]["template"], "what a user wrote is never rewritten"
    assert [text for text in await scene.events("SuccessfulCreate") if text.startswith("Started the virtual machine")]


@scenario("the older word for it, running, means the same")
async def _(scene: Scene) -> None:
    await scene.template()
    await vm(scene, running=False)
    await shows(scene, "Stopped", runStrategy="Halted")
    await change(scene, {"running": True})
    await shows(scene, "Running", runStrategy="Always")


@scenario("a manual one starts, restarts and stops when it is asked")
async def _(scene: Scene) -> None:
    await scene.template()
    await vm(scene, runStrategy="Manual")
    await shows(scene, "Stopped")
    await ask(scene, {"action": "Start"})
    await shows(scene, "Running", stateChangeRequests=None)
    first = (await scene.running("blue"))["metadata"]["uid"]
    await ask(scene, {"action": "Stop", "uid": first}, {"action": "Start"})
    second = await another(scene, first)
    await ask(scene, {"action": "Stop", "uid": first})
    await shows(scene, "Running", stateChangeRequests=None)
    assert (await scene.running("blue"))["metadata"]["uid"] == second, "a stop that was meant for an earlier instance"
    await ask(scene, {"action": "Stop", "uid": second})
    await shows(scene, "Stopped")


@scenario("one that ends by itself runs again only if it should")
async def _(scene: Scene) -> None:
    await scene.template()
    await vm(scene, runStrategy="RerunOnFailure")
    first = (await scene.running("blue"))["metadata"]["uid"]
    await end(scene, "Failed")
    await another(scene, first)
    await end(scene, "Succeeded")
    await shows(scene, "Stopped")
    assert (await scene.phase("blue", "Succeeded"))["metadata"]["uid"] != first


@scenario("one that waits to run again stays off when it is to be started by hand from now on")
async def _(scene: Scene) -> None:
    await scene.template()
    await vm(scene, runStrategy="RerunOnFailure")
    first = (await scene.running("blue"))["metadata"]["uid"]
    await end(scene, "Failed")
    await shows(scene, "CrashLoopBackOff")
    await change(scene, {"runStrategy": "Manual"})
    await shows(scene, "Stopped", stateChangeRequests=None, runStrategy="Manual")
    if scene.clock is not None:
        scene.clock.advance(60)
        await scene.settle()
    assert await scene.find(kinds.VMI, "blue") is None, "a start was not requested"
    await ask(scene, {"action": "Start"})
    await another(scene, first)


@scenario("its claim and its device stay its own while it is stopped")
async def _(scene: Scene) -> None:
    await scene.create(kinds.VM, "blue", {
        "runStrategy": "Always", "template": {"spec": {"domain": body()["domain"]}}, "resourceClaimTemplates": [
            {"name": "network", "spec": {"metadata": {"labels": {"for": "blue"}, "annotations": {"a": "b"}},
                                         "spec": scene.claim_spec()}}]})
    [first] = addresses(await scene.running("blue"))
    [claim] = await scene.all(kinds.RESOURCE_CLAIM)
    assert claim["metadata"]["annotations"].pop(vm_claims.MADE_FROM)
    assert (claim["metadata"]["labels"], claim["metadata"]["annotations"]) == ({"for": "blue"}, {"a": "b"})
    machine = await shows(scene, "Running")
    assert conditions.find(machine, "RestartRequired") is None, "claims of its own are no change of the template"
    assert claim["metadata"]["name"].startswith("blue-network-")

    async def kept() -> bool:
        found = await scene.find(kinds.RESOURCE_CLAIM, claim["metadata"]["name"])
        return "virtualmachines" in [user["resource"] for user in (found or {})["status"].get("reservedFor") or ()]

    await scene.reach(kept, "the claim is the machine's")
    await change(scene, {"runStrategy": "Halted"})
    stopped = await shows(scene, "Stopped")
    assert [each["type"] for each in stopped["status"]["conditions"]] == ["Ready"], "what its instance said is gone with it"
    await scene.template()
    for name in ("red", "green"):  # there are two functions, and one of them is kept
        await scene.machine(name)

    async def one() -> list[str] | None:
        names = [name for name in ("red", "green")
                 if (((await scene.find(kinds.VMI, name)) or {}).get("status") or {}).get("phase") == "Running"]
        return names or None

    [lucky] = await scene.reach(one, "one of the others runs")
    assert addresses(await scene.running(lucky)) != [first]
    await change(scene, {"runStrategy": "Always"})
    assert addresses(await scene.running("blue")) == [first], "a stopped VM has lost its device to another"
    await scene.check_books()
    await scene.delete(kinds.VM, "blue", propagation="Background")
    for name in ("red", "green"):
        await scene.delete(kinds.VMI, name)
    await scene.empty()


@scenario("a template that changes counts from the next start on, and that is said")
async def _(scene: Scene) -> None:
    await scene.template()
    await vm(scene)
    await shows(scene, "Running")
    await change(scene, {"template": {"spec": {"domain": {"memory": {"guest": "2Gi"}}}}})

    async def required() -> bool:
        return conditions.is_true(await scene.find(kinds.VM, "blue") or {}, "RestartRequired")

    await scene.reach(required, "a restart is required")
    assert (await scene.running("blue"))["spec"]["domain"]["memory"]["guest"] == "1Gi"
    await ask(scene, {"action": "Stop", "uid": (await scene.running("blue"))["metadata"]["uid"]}, {"action": "Start"})

    async def larger() -> bool:
        found = await scene.find(kinds.VMI, "blue")
        return bool(found and found["spec"]["domain"]["memory"]["guest"] == "2Gi" and not await required())

    await scene.reach(larger, "it runs as the template says now")


@scenario("an instance of another owner is not changed, and that is reported")
async def _(scene: Scene) -> None:
    await scene.template()
    foreign = await scene.machine("blue")
    await scene.running("blue")
    await vm(scene)

    async def said() -> str | None:
        found = conditions.find(await scene.find(kinds.VM, "blue") or {}, "Failure")
        return str(found["message"]) if found else None

    assert "exists that this VM does not own" in await scene.reach(said, "the machine says what is in its way")
    assert (await scene.running("blue"))["metadata"]["uid"] == foreign["metadata"]["uid"]
    await scene.delete(kinds.VMI, "blue")
    await another(scene, foreign["metadata"]["uid"])
    machine = await shows(scene, "Running")
    assert conditions.find(machine, "Failure") is None


@scenario("a VM that goes alone leaves its claim to those who use it")
async def _(scene: Scene) -> None:
    await scene.create(kinds.VM, "blue", {
        "runStrategy": "Always", "template": {"spec": {"domain": body()["domain"]}},
        "resourceClaimTemplates": [{"name": "network", "spec": {"spec": scene.claim_spec()}}]})
    await scene.running("blue")

    async def users() -> list[str]:
        [claim] = await scene.all(kinds.RESOURCE_CLAIM)
        return sorted(user["resource"] for user in claim["status"].get("reservedFor") or ())

    async def both() -> bool:
        return await users() == ["pods", "virtualmachines"]

    async def pod_alone() -> bool:
        return await users() == ["pods"]

    await scene.reach(both, "the machine keeps its claim")
    await scene.delete(kinds.VM, "blue", propagation="Orphan")
    await scene.reach(pod_alone, "the machine keeps it no more")
    await scene.running("blue")


@scenario("a VM with a finalizer stops when it is deleted, unless dependents are orphaned")
async def _(scene: Scene) -> None:
    await scene.template()
    for alone in (True, False):
        made = await vm(scene)
        await scene.store.patch(kinds.VM, "blue", {"metadata": {"finalizers": ["example.com/backup"]}}, scene.namespace)
        await scene.running("blue")
        await scene.delete(kinds.VM, "blue", propagation="Orphan" if alone else "Background")
        kept = await shows(scene, "Terminating", created=False)
        assert kept["metadata"]["uid"] == made["metadata"]["uid"]
        assert bool(await scene.find(kinds.VMI, "blue")) is alone
        if alone:
            await scene.running("blue")
            await scene.delete(kinds.VMI, "blue")
        await scene.empty()
        await scene.store.patch(kinds.VM, "blue", {"metadata": {"finalizers": None}}, scene.namespace)


@scenario("who deletes the instance of one that runs once, or stops one that reruns, means it")
async def _(scene: Scene) -> None:
    await scene.template()
    await vm(scene, runStrategy="Once")
    await scene.running("blue")
    await scene.delete(kinds.VMI, "blue")
    await shows(scene, "Stopped", created=False)
    await change(scene, {"runStrategy": "RerunOnFailure"})
    first = (await scene.running("blue"))["metadata"]["uid"]
    await ask(scene, {"action": "Stop", "uid": first})
    await shows(scene, "Stopped", created=False)
    await ask(scene, {"action": "Start"})
    await another(scene, first)
    await change(scene, {"runStrategy": "Halted"})
    await shows(scene, "Stopped", created=False)
    await ask(scene, {"action": "Start"})
    await shows(scene, "Stopped", created=False, stateChangeRequests=None)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_embedded(name: str) -> None:
    async with scenes.embedded(2) as scene:
        await scene.classes()
        await SCENARIOS[name](scene)
        await scene.check_books()


@pytest.mark.cluster
@pytest.mark.parametrize("name", SCENARIOS)
async def test_on_a_cluster(name: str, controller: ClusterRoles) -> None:
    word = f"vm-{uuid.uuid4().hex[:8]}"
    async with scenes.on_roles(controller, word, scenes.hosts_text(word, 2)) as scene:
        await scene.classes()
        await SCENARIOS[name](scene)


async def test_repeated_failures_back_off() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        await vm(scene)
        assert scene.clock is not None
        for count, pause in ((1, 10), (2, 20)):
            await scene.running("blue")
            await end(scene, "Failed")
            broken = await shows(scene, "CrashLoopBackOff")
            before = scene.clock.now()
            assert broken["status"]["startFailure"]["consecutiveFailCount"] == count
            await scene.running("blue")
            waited = (scene.clock.now() - before).total_seconds()
            assert pause - 3 <= waited <= pause + 1, waited
        scene.clock.advance(61)
        steady = await shows(scene, "Running", startFailure=None)
        assert "startFailure" not in steady["status"]


async def test_one_that_failed_and_was_halted_starts_at_once() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        await vm(scene)
        for count in (1, 2):
            await scene.running("blue")
            await end(scene, "Failed")
            broken = await shows(scene, "CrashLoopBackOff")
            assert broken["status"]["startFailure"]["consecutiveFailCount"] == count
        await change(scene, {"runStrategy": "Halted"})
        await shows(scene, "Stopped", startFailure=None)
        assert scene.clock is not None
        before = scene.clock.now()
        await change(scene, {"runStrategy": "Always"})
        await scene.running("blue")
        assert (scene.clock.now() - before).total_seconds() < 5
        await end(scene, "Failed")
        again = await shows(scene, "CrashLoopBackOff")
        assert again["status"]["startFailure"]["consecutiveFailCount"] == 1


async def test_a_start_that_was_refused_is_tried_again_after_a_while() -> None:
    """Whatever stood in the way need not announce itself to VMs; a gate that is opened does."""
    async with scenes.embedded(1) as scene:
        assert isinstance(scene.product, app.Embedded)
        assert scene.clock is not None
        await scene.classes()
        await scene.template()
        await vm(scene, runStrategy="Manual")
        await scene.create(kinds.KUBEVIRT, "kubevirt", {"configuration": {"developerConfiguration": {
            "disabledFeatureGates": ["HostDevicesWithDRA"]}}})
        await scene.product.settle()
        await ask(scene, {"action": "Start"})

        async def at(seconds: float) -> tuple[int, bool, bool]:
            """How often it was tried until then, whether it reports that it failed, and whether there is an instance."""
            assert isinstance(scene.product, app.Embedded)
            assert scene.clock is not None
            scene.clock.advance(seconds - scene.clock.monotonic())
            await scene.product.settle()
            found = await scene.find(kinds.VM, "blue")
            assert found is not None
            told = [event for event in await scene.all(kinds.EVENT) if event["reason"] == "FailedCreate"]
            return (sum(int(event.get("count") or 1) for event in told), conditions.is_true(found, "Failure"),
                    await scene.find(kinds.VMI, "blue") is not None)

        start = scene.clock.monotonic()
        tries, failed, there = await at(start)
        assert (1 <= tries <= 2, failed, there) == (True, True, False), "our own events of it may wake us once"
        assert await at(start + 29) == (tries, True, False)
        assert await at(start + 30) == (tries + 1, True, False)
        assert await at(start + 59) == (tries + 1, True, False)
        assert await at(start + 60) == (tries + 2, True, False)
        await scene.store.patch(kinds.KUBEVIRT, "kubevirt", {"metadata": {"labels": {"team": "a"}}}, scene.namespace)
        assert await at(start + 61) == (tries + 2, True, False), "that changes nothing for it"
        await scene.delete(kinds.KUBEVIRT, "kubevirt")
        assert await at(start + 61) == (tries + 2, False, True), "it starts at once"
        started = await shows(scene, "Running")
        assert "stateChangeRequests" not in started["status"], "the action request is done"


async def test_a_pod_that_is_forbidden_is_no_secret_and_is_tried_again() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        with scenes.forbidden(scene.store, kinds.POD):
            await vm(scene)
            said = await scene.waits("blue", "Synchronized", "Error creating pod: pods are forbidden: exceeded quota")
            found = await shows(scene, "Starting", created=True)
            assert (conditions.find(found, "Synchronized") or {})["message"] == said
            assert await scene.events("FailedCreate") == [said]
        await shows(scene, "Running")  # by itself, after a while
        assert conditions.find(await shows(scene, "Running"), "Synchronized") is None


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> scenes.Watch:
    """News of instances are late; but for who watches by this."""
    return scenes.late_news(monkeypatch, kinds.VMI, 500)


async def _started(scene: Scene) -> str:
    """The uid of the instance of a VM that was asked to start, and runs."""
    await scene.classes()
    await scene.template()
    await vm(scene, runStrategy="Manual")
    await ask(scene, {"action": "Start"})
    await shows(scene, "Running", stateChangeRequests=None)
    return str((await scene.running("blue"))["metadata"]["uid"])


@pytest.mark.usefixtures("prompt")
async def test_restart_succeeds_when_the_stop_event_is_late() -> None:
    async with scenes.embedded(1) as scene:
        first = await _started(scene)
        await ask(scene, {"action": "Stop", "uid": first}, {"action": "Start"})
        second = await another(scene, first)
        await shows(scene, "Running", stateChangeRequests=None)
        await ask(scene, {"action": "Stop", "uid": second})
        await shows(scene, "Stopped", stateChangeRequests=None)


@pytest.mark.usefixtures("prompt")
async def test_a_start_comes_about_when_it_is_asked_for_before_the_end_is_known() -> None:
    async with scenes.embedded(1) as scene:
        first = await _started(scene)
        await scene.delete(kinds.VMI, "blue")
        await scene.store.patch(kinds.VMI, "blue", {"metadata": {"finalizers": None}}, scene.namespace)
        await ask(scene, {"action": "Start"})
        await another(scene, first)


async def test_a_stop_comes_about_when_it_is_asked_for_before_the_start_is_known(prompt: scenes.Watch) -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        await vm(scene, runStrategy="Manual")
        await scene.settle()
        await ask(scene, {"action": "Start"})
        made = await anext(prompt(scene.store, kinds.VMI, scene.namespace, since="0"))
        await ask(scene, {"action": "Stop", "uid": made.object["metadata"]["uid"]})
        await shows(scene, "Stopped", stateChangeRequests=None)


async def _asked(scene: Scene) -> Object:
    await vm(scene, runStrategy="Manual")
    return await scene.store.patch(kinds.VM, "blue", {"status": {"stateChangeRequests": [{"action": "Start"}]}},
                                   scene.namespace, subresource="status")


OLD_VIEWS: dict[str, Callable[[Scene], Awaitable[Object]]] = {
    "an action request that was granted": _asked,
    "one that runs once": lambda scene: vm(scene, runStrategy="Once"),
    "one that runs again after a failure": lambda scene: vm(scene, runStrategy="RerunOnFailure"),
    "one that ran always": lambda scene: vm(scene, runStrategy="Always"),
}


@pytest.mark.parametrize("name", OLD_VIEWS)
async def test_delayed_controller_does_not_start_a_vm_again(name: str) -> None:
    """A process that stood still (SIGSTOP) goes on with what it saw; meanwhile another started the VM and stopped it."""
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        seen = await OLD_VIEWS[name](scene)
        first = await scene.running("blue")
        if seen["spec"]["runStrategy"] == "Always":
            await change(scene, {"runStrategy": "Halted"})
        else:
            await ask(scene, {"action": "Stop", "uid": first["metadata"]["uid"]})
        await scene.gone("blue")
        await scene.settle()

        held = ControllerContext(scene.store, clock=scene.product.context.clock)
        late = VmController(held)
        held.informer(kinds.VM).put(seen)
        with contextlib.suppress(Conflict):
            await late.reconcile(f"{scene.namespace}/blue")
        assert await scene.find(kinds.VMI, "blue") is None, "it was started by an old view"
        await scene.settle()
        assert (await scene.find(kinds.VM, "blue") or {})["status"]["printableStatus"] == "Stopped"


async def test_delayed_controller_does_not_start_another_vm_of_the_name() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        seen = await vm(scene, runStrategy="Once")
        await scene.running("blue")
        await scene.delete(kinds.VM, "blue")
        await scene.gone("blue")
        await vm(scene, runStrategy="Manual")
        await scene.settle()
        held = ControllerContext(scene.store, clock=scene.product.context.clock)
        late = VmController(held)
        held.informer(kinds.VM).put(seen)
        with pytest.raises(NotFound, match="another one by now"):
            await late.reconcile(f"{scene.namespace}/blue")
        assert await scene.find(kinds.VMI, "blue") is None
