"""When device plugins are called again, what is read of those that are gone, and pods whose devices cannot be written."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from outfitter.api.assignment.assigned_devices import ANNOTATION
from outfitter.api.kinds import Object
from outfitter.ledger import book
from outfitter.node.device_manager.update_rate import UPDATES
from outfitter.store.memory import OpenRules
from tests.cases.assignment.plugins import PlayedPlugin
from tests.cases.assignment.pod_view import pod_path
from tests.cases.assignment.world import World
from tests.node.device_manager.test_bad_plugins import until
from tests.node.device_manager.test_device_plugins import GPU, create, ids_of, run, world


def fail(monkeypatch: pytest.MonkeyPatch, plugin: PlayedPlugin, method: str, code: grpc.StatusCode) -> list[str]:
    """Have a plugin fail a method; the calls of it."""
    calls = list[str]()

    async def failing(request: Any, context: Any) -> None:
        calls.append(method)
        await context.abort(code, "not now")

    monkeypatch.setattr(plugin, method, failing)
    return calls


@pytest.mark.parametrize(("method", "code", "reason"), [
    ("_prestart", grpc.StatusCode.INTERNAL, "CreateContainerConfigError"),
    ("_allocate", grpc.StatusCode.UNAVAILABLE, "WaitingForDevicePlugin"),
])
async def test_what_wakes_a_pod_does_not_repeat_a_call_that_has_just_failed(
    monkeypatch: pytest.MonkeyPatch, method: str, code: grpc.StatusCode, reason: str
) -> None:
    async with world() as (made, steps):
        gpu = made.plugins["gpu"]
        calls = fail(monkeypatch, gpu, method, code)
        await steps.run({"op": "start_plugin", "plugin": "gpu", "prestart": True})
        await made.settle(1)
        await create(steps, "p", gpu=1)
        await made.settle(1)
        assert (await made.must("GET", pod_path("p")))["status"]["reason"] == reason
        before = len(calls)
        for number in range(3):  # every list of any plugin has the pods with devices looked at
            made.plugins["nic"].update({"devices": {f"n{number}": []}})
            await made.settle(0.1)
        assert len(calls) == before
        await made.settle(6)
        assert len(calls) > before
        monkeypatch.undo()
        await steps.run({"op": "start_plugin", "plugin": "gpu", "prestart": True})
        await made.settle(1)
        assert (await made.must("GET", pod_path("p")))["status"]["phase"] == "Running", "it is called at once"


async def test_a_plugin_that_is_gone_is_noticed_before_all_its_lists_are_read() -> None:
    async with world() as (made, steps):
        gpu = made.plugins["gpu"]
        for number in range(UPDATES * 4):
            gpu.update({"devices": {"g0": [], "g1": []}, "unhealthy": ["g0"] if number % 2 else []})
        [read] = streams = made.wire.received[gpu.socket]
        await until(lambda: read[0] >= UPDATES)
        await gpu.stop()
        await until(lambda: not streams, lambda: made.clock.advance(0.1))
        assert read[0] < UPDATES + 10, "the other lists were taken, and are not read any more"
        await made.settle()
        assert (await made.must("GET", "/api/v1/nodes/n1"))["status"]["allocatable"][GPU] == "0"
        assert (await run(made, steps, "other", nic=1))["status"]["phase"] == "Running"


async def change(made: World, name: str, text: str | None) -> None:
    """The annotation of a pod, as a server that knows nothing of it lets a user do."""
    rules, made.store.rules = made.store.rules, OpenRules()
    await made.must("PATCH", pod_path(name), {"metadata": {"annotations": {ANNOTATION: text}}})
    made.store.rules = rules


@pytest.mark.parametrize("text", [None, json.dumps({"c": [{"resourceName": GPU, "deviceIDs": ["g1"]}]})])
async def test_devices_whose_ids_a_user_removed_from_a_running_pod_are_given_to_no_other(text: str | None) -> None:
    async with world(field=False) as (made, steps):
        await run(made, steps, "p", gpu=1)
        await change(made, "p", text)
        await made.settle()
        later = await run(made, steps, "later", gpu=1)
        if text is None:  # the other device is free
            assert (later["status"]["phase"], json.loads(later["metadata"]["annotations"][ANNOTATION])) == (
                "Running", {"c": [{"resourceName": GPU, "deviceIDs": ["g1"]}]})
        else:
            assert later["status"]["message"].endswith("Requested: 1, Available: 0, which is unexpected")
        assert (await made.must("GET", pod_path("p")))["status"]["phase"] == "Running"


async def test_devices_whose_ids_were_removed_are_not_given_out_after_a_restart() -> None:
    async with world(field=False) as (made, steps):
        await run(made, steps, "p", gpu=1)
        await steps.run({"op": "stop_agent"})
        await change(made, "p", None)
        await steps.run({"op": "start_agent"})
        await made.settle()
        later = await run(made, steps, "later", gpu=1)
        assert later["status"]["phase"] == "Running"
        assert {each.device.device: each.holder.name for each in (await book.read(made.store, "n1")).bookings} == {
            "g0": "p", "g1": "later"}


async def with_many(made: World, steps: Any, wanted: int) -> Object:
    made.plugins["gpu"].update({"devices": {f"g{number}": [] for number in range(wanted)}})
    await made.settle()
    return await run(made, steps, "p", gpu=wanted)


async def test_a_pod_with_hundreds_of_devices() -> None:
    async with world() as (made, steps):
        pod = await with_many(made, steps, 300)
        assert (pod["status"]["phase"], len(ids_of(pod))) == ("Running", 300)


async def test_a_pod_with_more_devices_than_a_pod_can_contain_is_rejected_once() -> None:
    async with world() as (made, steps):
        pod = await with_many(made, steps, 2001)
        assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "UnexpectedAdmissionError")
        assert "Too many: 2001" in pod["status"]["message"]
        assert (await run(made, steps, "other", nic=1))["status"]["phase"] == "Running"


async def test_a_pod_waits_while_the_page_of_its_host_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as (made, steps):
        await run(made, steps, "first", gpu=1)
        monkeypatch.setattr("outfitter.api.ledger_page.page.MOST", 1)
        waits = await run(made, steps, "p", gpu=1)
        assert (waits["status"]["phase"], waits["status"]["reason"]) == ("Pending", "WaitingForLedgerPage")
        await steps.run({"op": "finish", "pod": "first", "phase": "Succeeded"})
        await made.settle()
        assert (await made.must("GET", pod_path("p")))["status"]["phase"] == "Running"
