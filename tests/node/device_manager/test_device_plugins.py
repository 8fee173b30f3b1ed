"""Device plugins and pods around one agent: where ids are written, plugins that misbehave, and what is booked. The cases of
tests/cases have the rules themselves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from outfitter.api.assignment.assigned_devices import ANNOTATION
from outfitter.api.kinds import Object
from outfitter.ledger import book
from outfitter.store.memory import OpenRules
from tests.cases.assignment.plugins import PlayedPlugin, register
from tests.cases.assignment.pod_view import assigned, pod_path
from tests.cases.assignment.steps import Steps
from tests.cases.assignment.world import World, world_of
from tests.cases.case import Case

GPU, NIC = "a.io/gpu", "a.io/nic"
PLUGINS = {"gpu": {"resource": GPU, "devices": {"g0": [], "g1": []}}, "nic": {"resource": NIC, "devices": {"n0": []}}}


@contextlib.asynccontextmanager
async def world(*, field: bool = True) -> AsyncIterator[tuple[World, Steps]]:
    """One node with two plugins. `field`: the server keeps `assignedDevices`."""
    async with world_of(Case(Path(), "assign", "a test", {"given": {"plugins": PLUGINS}})) as made:
        made.first.assigned_field = field
        steps = Steps(made)
        await steps.begin()
        yield made, steps


async def create(steps: Steps, name: str, **limits: int) -> None:
    asked = {{"gpu": GPU, "nic": NIC}[key]: number for key, number in limits.items()}
    await steps.run({"op": "create", "pods": [{"name": name, "containers": [{"name": "c", "limits": asked}]}]})


def ids_of(pod: Object) -> list[str]:
    """Of the GPUs of a pod with one container."""
    return list(assigned(pod)["c"][GPU])


async def run(made: World, steps: Steps, name: str, **limits: int) -> Object:
    """The pod, when nothing happens any more."""
    await create(steps, name, **limits)
    await made.settle()
    return await made.must("GET", pod_path(name))


async def test_ids_are_in_the_annotation_where_the_server_drops_the_field() -> None:
    async with world(field=False) as (made, steps):
        pod = await run(made, steps, "p", gpu=2)
        assert (pod["status"]["phase"], assigned(pod)) == ("Running", {})
        written = json.loads(pod["metadata"]["annotations"][ANNOTATION])
        assert written == {"c": [{"resourceName": GPU, "deviceIDs": ["g0", "g1"]}]}
        assert made.first.monitor is not None
        assert (await made.first.monitor.devices())["p"] == {"c": {GPU: ["g0", "g1"]}}
        rejected = await run(made, steps, "q", gpu=1)
        assert rejected["status"]["reason"] == "UnexpectedAdmissionError"


async def test_a_plugin_that_registers_again_is_called_and_not_the_process_before_it() -> None:
    """That has a connection still: it is about to end, or hangs."""
    async with world() as (made, steps):
        before, keys = made.plugins["gpu"], {"resource": GPU, "devices": {"g0": [], "g1": [], "g2": []}}
        after = made.plugins["gpu"] = PlayedPlugin("gpu", keys, made.first.folder, steps.seen)
        await after.listen()
        try:
            assert await made.wait_for(asyncio.create_task(after.register())) is None
            await made.settle()
            node = await made.must("GET", "/api/v1/nodes/n1")
            assert node["status"]["allocatable"][GPU] == "3"
        finally:
            await before.stop()


async def test_ids_of_a_resource_that_a_pod_has_by_a_claim_stay_beside_those_of_plugins() -> None:
    async with world() as (made, steps):
        await steps.run({"op": "stop_agent"})
        net = "v.io/net"
        container = {"name": "c", "image": "i", "resources": {"limits": {GPU: "1", net: "1"}},
                     "assignedDevices": [{"resourceName": net, "deviceIDs": ["pool/net-0"]}]}
        await made.must("POST", "/api/v1/namespaces/default/pods", {
            "metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": [container]}})
        mapping = {"containerName": "c", "requestName": "r", "resourceName": net}
        await made.must("PATCH", pod_path("p") + "/status", {"status": {"extendedResourceClaimStatus": {
            "resourceClaimName": "net", "requestMappings": [mapping]}}})
        await steps.run({"op": "start_agent"})
        await made.settle()
        pod = await made.must("GET", pod_path("p"))
        assert assigned(pod) == {"c": {GPU: ["g0"], net: ["pool/net-0"]}}
        assert pod["status"]["phase"] == "Pending"  # its claim is not there
        assert "claim" in pod["status"]["message"]


async def test_an_annotation_that_was_damaged_harms_its_own_pod_alone() -> None:
    """A server that drops the field does not check the annotation."""
    async with world(field=False) as (made, steps):
        await run(made, steps, "p", gpu=1)
        await steps.run({"op": "stop_agent"})
        for name in ("broken", "thief"):
            await create(steps, name)
        stolen = {"c": [{"resourceName": GPU, "deviceIDs": ["g1"]}]}
        rules, made.store.rules = made.store.rules, OpenRules()
        for name, text in (("p", "{"), ("broken", "["), ("thief", json.dumps(stolen))):
            await made.must("PATCH", pod_path(name), {"metadata": {"annotations": {ANNOTATION: text}}})
        made.store.rules = rules
        await steps.run({"op": "start_agent"})
        await made.settle()
        later = await run(made, steps, "later", gpu=1)
        assert (later["status"]["phase"], json.loads(later["metadata"]["annotations"][ANNOTATION])) == ("Running", stolen)
        phases = {name: (pod["status"]["phase"], pod["status"].get("reason")) for name, pod in (await made.pods()).items()}
        assert phases == {"p": ("Running", None), "later": ("Running", None), "broken": ("Failed", "UnexpectedAdmissionError"),
                          "thief": ("Failed", "UnexpectedAdmissionError")}
        assert made.first.monitor is not None
        assert (await made.first.monitor.devices())["later"] == {"c": {GPU: ["g1"]}}


async def test_devices_of_plugins_are_on_the_page_of_their_host_until_the_pod_has_ended() -> None:
    async with world() as (made, steps):
        pod = await run(made, steps, "p", gpu=1, nic=1)
        bookings = (await book.read(made.store, "n1")).bookings
        assert {(each.device.driver, each.device.pool, each.device.device, each.holder.kind, each.holder.uid, each.state)
                for each in bookings} == {(GPU, "n1", "g0", "Pod", pod["metadata"]["uid"], "prepared"),
                                          (NIC, "n1", "n0", "Pod", pod["metadata"]["uid"], "prepared")}
        await steps.run({"op": "finish", "pod": "p", "phase": "Succeeded"})
        await made.settle()
        assert not (await book.read(made.store, "n1")).bookings


def hang(monkeypatch: pytest.MonkeyPatch, made: World, plugin: PlayedPlugin, method: str) -> asyncio.Event:
    """Calls of a method that a plugin does not answer before the event is set."""
    answers, begin = asyncio.Event(), PlayedPlugin._begin

    async def hanging(called: PlayedPlugin, name: str, what: Any, context: Any) -> None:
        await begin(called, name, what, context)
        if called is plugin and name == method and not answers.is_set():
            made.wire.calls -= 1  # nothing happens until it answers
            try:
                await answers.wait()
            finally:
                made.wire.calls += 1

    monkeypatch.setattr(PlayedPlugin, "_begin", hanging)
    return answers


@pytest.mark.parametrize("method", ["GetPreferredAllocation", "Allocate", "PreStartContainer"])
async def test_a_plugin_that_hangs_keeps_only_its_pods_waiting(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    async with world() as (made, steps):
        answers = hang(monkeypatch, made, made.plugins["gpu"], method)
        await steps.run({"op": "start_plugin", "plugin": "gpu", "prefers": ["g1"], "prestart": True})
        await made.settle(1)  # pods that wait for the plugin itself go on in any order
        for name in ("waits", "next"):
            await create(steps, name, gpu=1)
            await made.settle(1)
        await made.settle(5)
        for name in ("waits", "next"):
            assert (await made.must("GET", pod_path(name)))["status"]["phase"] == "Pending"
        await create(steps, "other", nic=1)
        await made.settle(1)
        assert (await made.must("GET", pod_path("other")))["status"]["phase"] == "Running"
        answers.set()
        await made.settle()
        assert {name: ids_of(await made.must("GET", pod_path(name))) for name in ("waits", "next")} == {
            "waits": ["g1"], "next": ["g0"]}


@pytest.mark.parametrize(("method", "seconds", "phase", "reason"), [
    ("GetPreferredAllocation", 10, "Failed", "UnexpectedAdmissionError"),
    ("Allocate", 300, "Failed", "UnexpectedAdmissionError"),
    ("PreStartContainer", 30, "Pending", "CreateContainerConfigError")])
async def test_a_plugin_that_never_answers_is_not_waited_for_longer_than_its_limit(
    monkeypatch: pytest.MonkeyPatch, method: str, seconds: int, phase: str, reason: str
) -> None:
    async with world() as (made, steps):
        hang(monkeypatch, made, made.plugins["gpu"], method)
        await steps.run({"op": "start_plugin", "plugin": "gpu", "prefers": ["g1"], "prestart": True})
        await create(steps, "p", gpu=1)
        await made.settle(seconds - 1)
        waits = (await made.must("GET", pod_path("p")))["status"]
        assert waits["phase"] == "Pending"
        if seconds > 10:  # it is reported before
            assert (waits["reason"], method in waits["message"]) == ("WaitingForDevicePlugin", True)
        await made.settle(2)
        ended = (await made.must("GET", pod_path("p")))["status"]
        assert (ended["phase"], ended["reason"]) == (phase, reason)
        assert f"no answer within {seconds} s" in ended["message"]


async def test_a_preferred_device_that_is_gone_by_then_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as (made, steps):
        answers = hang(monkeypatch, made, made.plugins["gpu"], "GetPreferredAllocation")
        await steps.run({"op": "start_plugin", "plugin": "gpu", "prefers": ["g1"]})
        await create(steps, "asks", gpu=1)
        await made.settle(1)
        await steps.run({"op": "create", "pods": [{"name": "has", "containers": [
            {"name": "c", "limits": {GPU: 1}, "assigned": {GPU: ["g1"]}}]}]})
        await made.settle(1)
        assert (await made.must("GET", pod_path("has")))["status"]["phase"] == "Running"
        answers.set()
        await made.settle()
        assert ids_of(await made.must("GET", pod_path("asks"))) == ["g0"]
        asked = [sorted(what["available"]) for method, what in made.calls("gpu") if method == "GetPreferredAllocation"]
        assert asked == [["g0", "g1"], ["g0"]]


async def test_a_younger_pod_goes_on_when_the_plugin_that_is_asked_for_an_older_one_is_gone(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world() as (made, steps):
        answers = hang(monkeypatch, made, made.plugins["gpu"], "GetPreferredAllocation")
        await steps.run({"op": "start_plugin", "plugin": "gpu", "prefers": ["g1"]})
        await create(steps, "older", gpu=1, nic=1)
        await made.settle(1)
        await create(steps, "younger", nic=1)
        await made.settle(1)
        assert (await made.must("GET", pod_path("younger")))["status"]["phase"] == "Pending", "the older one wants the NIC"
        await steps.run({"op": "stop_plugin", "plugin": "gpu"})
        await made.settle()
        assert (await made.must("GET", pod_path("older")))["status"]["reason"] == "WaitingForDevicePlugin"
        assert (await made.must("GET", pod_path("younger")))["status"]["phase"] == "Running"
        answers.set()


def _file(path: Path) -> None:
    path.write_text("no socket")


def _link(path: Path) -> None:
    path.symlink_to(path.with_name("gpu.sock"))


def _stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


@pytest.mark.parametrize(("make", "says"), [
    pytest.param(_file, "is not a socket", id="a file"), pytest.param(_link, "is not a socket", id="a symbolic link"),
    pytest.param(_stale, "could not be dialled", id="a socket of a plugin that was killed")])
async def test_an_endpoint_that_is_no_plugin_is_refused_and_others_go_on(make: Any, says: str) -> None:
    async with world() as (made, steps):
        folder = made.first.folder
        make(folder / "device-plugins" / "odd.sock")
        error = await made.wait_for(asyncio.create_task(register(folder, "v1beta1", "a.io/odd", "odd.sock")))
        assert says in error
        assert (await run(made, steps, "p", gpu=1))["status"]["phase"] == "Running"


@pytest.mark.parametrize("endpoint", ["../plugins/x.sock", "", "..", "a/b"])
async def test_an_endpoint_outside_of_the_folder_is_refused(endpoint: str) -> None:
    async with world() as (made, _):
        assert "endpoint" in (await register(made.first.folder, "v1beta1", "a.io/odd", endpoint) or "")
