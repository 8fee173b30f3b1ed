"""VMs that are paused, go on, begin again, start paused and are stopped by force, as virtctl asks for it: from the request
to the hypervisor and back to what people read. `tests/node/test_vmi_actions_kills.py` kills in between."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.hypervisor import BY_USER, IO_ERROR, Domain
from outfitter.api.kinds import Object
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.errors import HypervisorAway, HypervisorError
from outfitter.launcher.simulated import Simulated
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from tests.apiserver.asgi import Client
from tests.controllers.scenario import Scene, device, hosts_of

PLACE = "/apis/subresources.kubevirt.io/v1/namespaces/here"


class Lab(Simulated):
    """A hypervisor whose daemon can be gone, and that can refuse."""

    away = False
    stubborn = ""

    async def domains(self) -> Mapping[str, Domain]:
        if self.away:
            raise HypervisorAway("libvirt does not answer: it naps", retry_after=5)
        return await super().domains()

    async def pause(self, uid: str) -> None:
        if self.stubborn:
            raise HypervisorError(self.stubborn)
        await super().pause(uid)


class EventTexts:
    """A scene with virtctl in it."""

    def __init__(self, scene: Scene, hypervisor: Lab) -> None:
        self.scene, self.hypervisor = scene, hypervisor
        assert isinstance(scene.store, Memory)
        self._client = Client(App(scene.store, tokens={"admin": User("admin", (MASTERS,))}))

    async def ask(self, action: str, name: str = "blue", *, code: int = 0, **options: Any) -> str:
        kind = "virtualmachines" if action in ("start", "stop", "restart") else "virtualmachineinstances"
        answer = await self._client.put(f"{PLACE}/{kind}/{name}/{action}", options)
        assert answer.status == (code or (202 if kind == "virtualmachines" else 200)), answer
        return str(answer.json["message"]) if answer.status >= 300 else ""

    async def vm(self, strategy: str = "Always", **spec: Any) -> None:
        await self.scene.create(kinds.VM, "blue", {"runStrategy": strategy, "template": {"spec": {
            "resourceClaims": [{"name": "network", "resourceClaimTemplateName": "one-vf"}], **spec,
            "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [device()]}}}}})

    async def shows(self, word: str) -> Object:
        async def check() -> Object | None:
            found = await self.scene.find(kinds.VM, "blue")
            return found if found and (found.get("status") or {}).get("printableStatus") == word else None

        return await self.scene.reach(check, f"blue is {word}")

    async def instance(self) -> Object:
        found = await self.scene.find(kinds.VMI, "blue")
        assert found is not None
        return found

    async def settle(self) -> None:
        await self.scene.settle()

    async def events(self, *reasons: str) -> list[tuple[str, str]]:
        found = sorted(await self.scene.all(kinds.EVENT), key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [(event["involvedObject"]["kind"], event["reason"]) for event in found if event["reason"] in reasons]


@contextlib.asynccontextmanager
async def telling(data: Path | None = None, clock: ManualClock | None = None) -> AsyncIterator[EventTexts]:
    hypervisor = Lab(data / "domains" if data else None, monotonic=(clock := clock or ManualClock()).monotonic)
    hosts = [replace(host, hypervisor=hypervisor) for host in hosts_of("node", 1)]
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random()), data=data) as product:
        scene = Scene(product, "here", clock)
        if await scene.find(kinds.DEVICE_CLASS, "here") is None:
            await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
            await scene.classes()
            await scene.template()
        yield EventTexts(scene, hypervisor)


def paused(instance: Object) -> tuple[str, str, str]:
    """What its conditions say: Paused, Ready, and why."""
    found = conditions.find(instance, "Paused") or {"status": "-"}
    ready = conditions.find(instance, "Ready") or {"status": "-"}
    assert ready.get("reason") == found.get("reason")
    assert ready.get("message") == found.get("message")
    return found["status"], ready["status"], found.get("reason", "")


async def pod(told: EventTexts) -> tuple[str, str, str]:
    """What the conditions of its pod say: that the VM is not paused, whether it is ready, and why not."""
    found = await told.scene.pod("blue")
    assert found["spec"]["readinessGates"] == [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}]
    unpaused = conditions.find(found, "kubevirt.io/virtual-machine-unpaused") or {"status": "-"}
    ready = conditions.find(found, "Ready") or {"status": "-"}
    assert conditions.is_true(found, "ContainersReady")
    return unpaused["status"], ready["status"], ready.get("reason", "")


GOES, STANDS = ("True", "True", ""), ("False", "False", "ReadinessGatesNotReady")


async def test_vmi_is_paused_and_unpaused() -> None:
    async with telling() as told:
        await told.vm()
        await told.shows("Running")
        assert await pod(told) == GOES
        before = await told.instance()
        await told.ask("pause")
        vm = await told.shows("Paused")
        await told.settle()
        assert await pod(told) == STANDS, "no signal is sent"
        found = await told.instance()
        assert (paused(found), found["status"]["phase"]) == (("True", "False", "PausedByUser"), "Running")
        assert vm["status"]["ready"] is False
        assert conditions.is_true(vm, "Paused")
        assert "stateChangeRequests" not in found["status"]
        assert found["spec"] == before["spec"]
        assert [domain.paused for domain in await told.scene.domains()] == [BY_USER]
        assert "VMI is already paused" in await told.ask("pause", code=409)
        await told.ask("unpause")
        vm = await told.shows("Running")
        await told.settle()
        assert (vm["status"]["ready"], paused(await told.instance())) == (True, ("-", "True", ""))
        assert await pod(told) == GOES
        assert [domain.paused for domain in await told.scene.domains()] == [None]
        assert await told.events("Paused", "Unpaused") == [("VirtualMachineInstance", "Paused"),
                                                           ("VirtualMachineInstance", "Unpaused")]
        assert "VMI is not paused" in await told.ask("unpause", code=409)
        await told.scene.check_books()


async def test_idle_vmi_is_not_written_again() -> None:
    async with telling() as told:
        await told.vm()
        await told.ask("pause", code=404)
        await told.shows("Running")
        await told.ask("pause")
        await told.shows("Paused")
        await told.settle()
        before = await told.instance()
        for callback in told.hypervisor._callbacks:
            callback("")
        await told.settle()
        assert await told.instance() == before


async def test_pause_by_another_client_is_reported_and_kept() -> None:
    async with telling() as told:
        await told.vm()
        await told.shows("Running")
        uid = (await told.instance())["metadata"]["uid"]
        told.hypervisor.simulate_pause(uid, BY_USER)
        await told.shows("Paused")
        await told.ask("unpause")
        await told.shows("Running")
        told.hypervisor.simulate_pause(uid, IO_ERROR)
        await told.shows("Paused")
        assert paused(await told.instance()) == ("True", "False", "PausedIOError")
        assert await told.scene.events("PausedIOError") == ["VMI was paused, low-level IO error detected"]
        told.hypervisor.simulate_pause(uid, None)
        await told.shows("Running")
        assert paused(await told.instance()) == ("-", "True", "")


async def test_action_request_survives_restarts(tmp_path: Path) -> None:
    """Noted while the hypervisor is away; everything ends before it is back."""
    clock = ManualClock()
    async with telling(tmp_path, clock) as told:
        await told.vm()
        await told.shows("Running")
        told.hypervisor.away = True
        await told.ask("pause")
        await told.settle()
        assert paused(await told.instance()) == ("-", "True", "")
    async with telling(tmp_path, clock) as told:
        await told.shows("Paused")
        assert paused(await told.instance()) == ("True", "False", "PausedByUser")
    async with telling(tmp_path, clock) as told:
        await told.settle()
        assert [domain.paused for domain in await told.scene.domains()] == [BY_USER], "adopted as it is"
        await told.shows("Paused")
        await told.ask("unpause")
        await told.shows("Running")
        uid = (await told.instance())["metadata"]["uid"]
    outside = Lab(tmp_path / "domains")
    await outside.pause(uid)
    async with telling(tmp_path, clock) as told:
        await told.shows("Paused")


async def test_last_of_several_action_requests_wins() -> None:
    async with telling() as told:
        await told.vm()
        await told.shows("Running")
        told.hypervisor.away = True
        for action in ("pause", "unpause", "pause", "unpause"):
            await told.ask(action)
        told.hypervisor.away = False
        for callback in told.hypervisor._callbacks:
            callback("")
        await told.settle()
        assert paused(await told.instance()) == ("-", "True", "")
        assert "stateChangeRequests" not in (await told.instance())["status"]
        assert await told.events("Paused") == []


async def test_failed_pause_has_a_reason() -> None:
    async with telling() as told:
        await told.vm()
        await told.shows("Running")
        told.hypervisor.stubborn = "libvirt cannot pause blue: the state is locked"
        await told.ask("pause")
        await told.settle()
        assert await told.scene.events("FailedPause") == ["libvirt cannot pause blue: the state is locked"]
        assert "stateChangeRequests" not in (await told.instance())["status"]
        assert paused(await told.instance()) == ("-", "True", "")


async def test_vmi_starts_paused_by_its_spec() -> None:
    async with telling() as told:
        await told.vm(startStrategy="Paused")
        await told.shows("Paused")
        assert paused(await told.instance()) == ("True", "False", "PausedByUser")
        assert [domain.paused for domain in await told.scene.domains()] == [BY_USER]
        await told.ask("unpause")
        assert conditions.find(await told.shows("Running"), "RestartRequired") is None


@pytest.mark.parametrize("strategy", ["Halted", "Manual"])
async def test_vmi_starts_paused_by_request(strategy: str) -> None:
    async with telling() as told:
        await told.vm(strategy)
        await told.shows("Stopped")
        await told.ask("start", paused=True)
        vm = await told.shows("Paused")
        assert "startStrategy" not in vm["spec"]["template"]["spec"]
        assert conditions.find(vm, "RestartRequired") is None
        assert "stateChangeRequests" not in vm["status"]
        await told.settle()
        assert await pod(told) == STANDS
        first = (await told.instance())["metadata"]["uid"]
        await told.ask("restart")

        async def another() -> bool:
            found = await told.scene.find(kinds.VMI, "blue")
            return found is not None and found["metadata"]["uid"] != first

        await told.scene.reach(another, "the next instance")
        await told.shows("Running")
        assert "startStrategy" not in (await told.instance())["spec"], "it was asked for once"


@pytest.mark.parametrize("action", ["stop", "restart", "delete"])
async def test_paused_vmi_is_destroyed_without_a_grace_period(action: str) -> None:
    """Its guest cannot hear the power button."""
    async with telling() as told:
        await told.vm(terminationGracePeriodSeconds=3600)
        await told.shows("Running")
        uid = (await told.instance())["metadata"]["uid"]
        told.hypervisor.ignoring_shutdown.add(uid)
        await told.ask("pause")
        await told.shows("Paused")
        if action == "delete":
            await told.scene.delete(kinds.VM, "blue")
        else:
            await told.ask(action)
        await told.settle()
        assert [domain.uid for domain in await told.scene.domains() if domain.uid == uid] == []
        await told.scene.check_books()


@pytest.mark.parametrize(("action", "options"), [("stop", {"gracePeriod": 0}), ("restart", {"gracePeriodSeconds": 0})])
@pytest.mark.parametrize("strategy", ["Always", "Manual"])
async def test_vmi_that_ignores_shutdown_is_destroyed(action: str, options: Object, strategy: str) -> None:
    async with telling() as told:
        clock = told.scene.clock
        assert clock is not None
        await told.vm(strategy, terminationGracePeriodSeconds=3600)
        if strategy == "Manual":
            await told.shows("Stopped")
            await told.ask("start")
        await told.shows("Running")
        uid = (await told.instance())["metadata"]["uid"]
        told.hypervisor.ignoring_shutdown.add(uid)
        began = clock.monotonic()
        await told.ask(action, **options)
        vm = await told.shows("Stopping")
        assert conditions.find(vm, "RestartRequired") is None
        await told.shows("Stopped" if action == "stop" else "Running")
        assert clock.monotonic() - began < 10
        assert uid not in {domain.uid for domain in await told.scene.domains()}
        assert vm["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 3600
        await told.scene.check_books()


async def test_one_that_is_being_stopped_is_forced_after_all() -> None:
    async with telling() as told:
        clock = told.scene.clock
        assert clock is not None
        await told.vm(terminationGracePeriodSeconds=3600)
        await told.shows("Running")
        told.hypervisor.ignoring_shutdown.add((await told.instance())["metadata"]["uid"])
        await told.ask("stop")
        await told.shows("Stopping")
        assert await told.scene.events("ShuttingDown") == ["Signaled Graceful Shutdown: its guest has 3600 seconds"]
        clock.advance(60)
        for callback in told.hypervisor._callbacks:
            callback("")
        await told.settle()
        assert len(await told.scene.domains()) == 1
        assert "only supports manual stop requests with a shorter graceperiod" in await told.ask("stop", code=409)
        began = clock.monotonic()
        await told.ask("stop", gracePeriod=0)
        await told.shows("Stopped")
        assert clock.monotonic() - began < 10
        counts = [event["count"] for event in await told.scene.all(kinds.EVENT) if event["reason"] == "ShuttingDown"]
        assert counts == [1], "that is said once"


async def test_buttons_are_pressed_once() -> None:
    async with telling() as told:
        await told.vm()
        await told.shows("Running")
        uid = (await told.instance())["metadata"]["uid"]
        await told.ask("reset")
        await told.ask("softreboot")
        await told.settle()
        assert told.hypervisor.pressed == [(uid, "reset"), (uid, "reboot")]
        assert await told.events("Reset", "SoftRebooted") == [("VirtualMachineInstance", "Reset"),
                                                              ("VirtualMachineInstance", "SoftRebooted")]
        assert "stateChangeRequests" not in (await told.instance())["status"]
        assert await told.shows("Running")


async def test_a_reset_that_comes_too_late_is_not_done() -> None:
    async with telling() as told:
        clock = told.scene.clock
        assert clock is not None
        await told.vm()
        await told.shows("Running")
        told.hypervisor.away = True
        await told.ask("reset")
        await told.settle()
        clock.advance(61)
        told.hypervisor.away = False
        await told.settle()
        [why] = await told.scene.events("FailedReset")
        assert "node-0 could not do it within 60 seconds of 2026-01-01T" in why
        assert told.hypervisor.pressed == []
        assert "stateChangeRequests" not in (await told.instance())["status"]


async def test_unknown_action_requests_are_dropped_with_a_reason() -> None:
    async with telling() as told:
        await told.vm()
        await told.shows("Running")
        notes = [{"action": "Dance"}, {"action": "Reset"}, {"action": "SoftReboot"}]
        await told.scene.store.patch(kinds.VMI, "blue", {"status": {"stateChangeRequests": notes}}, "here",
                                     subresource="status")
        await told.settle()
        assert await told.scene.events("FailedDance") == [
            "this action is not supported; supported are Pause, Unpause, Reset, SoftReboot"]
        assert [button for _, button in told.hypervisor.pressed] == ["reset", "reboot"]
