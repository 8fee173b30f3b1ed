"""What follows from an unhealthy device of a device plugin: for the page, the pod that has it, and pods that want one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder, OutOfServiceRecord, Page
from outfitter.inventory.config import UnhealthyDevice
from outfitter.ledger import book, out_of_service
from outfitter.ledger.device_list import ListedDevice, device_list
from outfitter.node.device_manager import plugin_health
from outfitter.node.device_manager.plugin_resource import CAPACITY_KEPT, PluginDevice, PluginResource
from tests.cases.assignment.pod_view import assigned, pod_path
from tests.cases.assignment.steps import Steps
from tests.cases.assignment.world import World, world_of
from tests.cases.case import Case

GPU = "a.io/gpu"
PLUGINS = {"gpu": {"resource": GPU, "devices": {"g0": [], "g1": []}}}


@contextlib.asynccontextmanager
async def world(policy: str = "nothing") -> AsyncIterator[tuple[World, Steps]]:
    given = {"plugins": PLUGINS, "nodes": {"n1": {"unhealthy_device": policy}}}
    async with world_of(Case(Path(), "assign", "a test", {"given": given})) as made:
        steps = Steps(made)
        await steps.begin()
        yield made, steps


async def create(made: World, steps: Steps, name: str, *ids: str) -> Object:
    container = {"name": "c", "limits": {GPU: 1}, **({"assigned": {GPU: list(ids)}} if ids else {})}
    await steps.run({"op": "create", "pods": [{"name": name, "containers": [container]}]})
    return await settled(made, name)


async def settled(made: World, name: str) -> Object:
    await made.settle()
    return await made.must("GET", pod_path(name))


async def plugin(made: World, steps: Steps, **changes: Any) -> None:
    await steps.run({"op": "update_plugin", "plugin": "gpu", **changes})
    await made.settle()


async def listed(made: World) -> dict[str, ListedDevice]:
    """What `outfit devices` shows."""
    found = device_list(await made.all(kinds.RESOURCE_SLICE), await made.all(kinds.LEDGER_PAGE),
                        await made.all(kinds.HOST_INVENTORY))
    return {device.id.device: device for device in found.devices}


def health(pod: Object) -> list[str]:
    return [resource["health"] for entry in pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
            for resource in entry["resources"]]


async def reasons(made: World) -> list[str]:
    return [event["reason"] for event in await made.all(kinds.EVENT) if event["involvedObject"]["name"] == "p"]


async def test_the_pod_that_has_it_is_told_and_no_other_pod_gets_it_until_it_is_healthy_again() -> None:
    async with world() as (made, steps):
        pod = await create(made, steps, "p", "g0")
        assert conditions.find(pod, conditions.DEVICES_HEALTHY) is None
        await plugin(made, steps, unhealthy=["g0"])
        pod = await settled(made, "p")
        condition = conditions.find(pod, conditions.DEVICES_HEALTHY)
        assert condition is not None
        assert (condition["status"], "a.io/gpu/n1/g0" in condition["message"]) == ("False", True)
        assert (pod["status"]["phase"], health(pod)) == ("Running", ["Unhealthy"])
        assert "DeviceUnhealthy" in await reasons(made)
        device = (await listed(made))["g0"]
        assert device.states == ("held", "unhealthy")
        other = await create(made, steps, "q")
        assert assigned(other) == {"c": {GPU: ["g1"]}}
        await plugin(made, steps, unhealthy=[])
        pod = await settled(made, "p")
        assert (conditions.find(pod, conditions.DEVICES_HEALTHY), health(pod)) == (None, ["Healthy"])
        assert "DevicesHealthy" in await reasons(made)
        assert (await listed(made))["g0"].states == ("held",)


async def test_a_free_device_is_shown_and_given_out_again_when_it_is_healthy() -> None:
    async with world() as (made, steps):
        await plugin(made, steps, unhealthy=["g0", "g1"])
        assert {name: each.states for name, each in (await listed(made)).items()} == {
            "g0": ("unhealthy",), "g1": ("unhealthy",)}
        rejected = await create(made, steps, "p")
        assert rejected["status"]["phase"] == "Failed"
        await plugin(made, steps, unhealthy=["g1"])
        pod = await create(made, steps, "r")
        assert (pod["status"]["phase"], assigned(pod)) == ("Running", {"c": {GPU: ["g0"]}})


async def test_with_the_policy_restart_the_pod_goes() -> None:
    async with world("restart") as (made, steps):
        await create(made, steps, "p", "g0")
        await plugin(made, steps, unhealthy=["g0"])
        assert "p" not in await made.pods()
        assert "DeviceUnhealthyEviction" in await reasons(made)
        pod = await create(made, steps, "q")
        assert assigned(pod) == {"c": {GPU: ["g1"]}}


async def test_with_the_policy_quarantine_an_operator_ends_it() -> None:
    async with world("quarantine") as (made, steps):
        await plugin(made, steps, unhealthy=["g0"])
        await plugin(made, steps, unhealthy=[])
        assert (await listed(made))["g0"].states == ("quarantined",)
        rejected = await create(made, steps, "p", "g0")
        assert rejected["status"]["phase"] == "Failed"
        assert conditions.find(rejected, f"{rejection_conditions.PREFIX}Quarantined") is not None, rejected["status"]
        assert assigned(await create(made, steps, "q")) == {"c": {GPU: ["g1"]}}
        await out_of_service.restore(made.store, "n1", DeviceId(GPU, "n1", "g0"))
        assert assigned(await create(made, steps, "r")) == {"c": {GPU: ["g0"]}}


async def test_a_restart_of_agent_and_plugin_changes_nothing_for_an_unhealthy_device() -> None:
    async with world() as (made, steps):
        await create(made, steps, "p", "g0")
        await plugin(made, steps, unhealthy=["g0"])
        before = (await book.read(made.store, "n1")).object["spec"]
        pod = await settled(made, "p")
        await steps.run({"op": "stop_plugin", "plugin": "gpu"})
        await steps.run({"op": "restart_agent"})
        after = await settled(made, "p")
        assert conditions.find(after, conditions.DEVICES_HEALTHY) == conditions.find(pod, conditions.DEVICES_HEALTHY)
        assert (await book.read(made.store, "n1")).object["spec"] == before
        await steps.run({"op": "start_plugin", "plugin": "gpu", "unhealthy": []})
        assert conditions.find(await settled(made, "p"), conditions.DEVICES_HEALTHY) is None


async def test_devices_of_a_plugin_that_is_gone_count_as_unhealthy_after_its_grace() -> None:
    async with world("restart") as (made, steps):
        await create(made, steps, "p", "g0")
        await steps.run({"op": "stop_plugin", "plugin": "gpu"})
        pod = await settled(made, "p")
        assert (health(pod), conditions.find(pod, conditions.DEVICES_HEALTHY)) == (["Unknown"], None)
        await made.settle(CAPACITY_KEPT)
        pod = await settled(made, "p")
        assert plugin_health.GONE in (conditions.find(pod, conditions.DEVICES_HEALTHY) or {})["message"]
        assert pod["status"]["phase"] == "Running", "its health is not known"
        node = await made.must("GET", "/api/v1/nodes/n1")
        assert node["status"]["capacity"].get(GPU) in (None, "0")
        await steps.run({"op": "start_plugin", "plugin": "gpu"})
        assert conditions.find(await settled(made, "p"), conditions.DEVICES_HEALTHY) is None


HELD = DeviceId(GPU, "n1", "g0")


def _page(*records: tuple[str, str]) -> Page:
    """With g0 held; `records`: device and origin."""
    page = Page(Page(Page.blank("n1")).holding([Booking(HELD, Holder("Pod", "d", "p", "u"), "c", "prepared", "12:00")]))
    return Page(page.with_records("quarantined", [OutOfServiceRecord(
        DeviceId(GPU, "n1", name), "before", "x", "12:00", origin) for name, origin in records]))


def _resource(devices: dict[str, bool] | None, gone_since: float | None = None) -> PluginResource:
    found = PluginResource(GPU, gone_since=gone_since)
    if devices is not None:
        found.devices, found.listed = {name: PluginDevice(name, healthy) for name, healthy in devices.items()}, True
        found.plugin = object()  # type: ignore[assignment]
    return found


@pytest.mark.parametrize(("page", "resource", "expected"), [
    pytest.param(_page(), _resource({"g0": True}), {}, id="healthy"),
    pytest.param(_page(), _resource({"g0": False}), {"g0": plugin_health.REPORTED}, id="unhealthy"),
    pytest.param(_page(), _resource({}), {"g0": plugin_health.UNLISTED}, id="held and no longer listed"),
    pytest.param(_page(("g1", "health")), _resource({}), {"g0": plugin_health.UNLISTED}, id="free and no longer listed"),
    pytest.param(_page(("g0", "health")), _resource(None, 90.0), {"g0": "before"}, id="the plugin is away for a moment"),
    pytest.param(_page(("g0", "health")), _resource(None), {"g0": "before"}, id="the plugin was never here"),
    pytest.param(_page(), _resource(None, 100.0 - CAPACITY_KEPT), {"g0": plugin_health.GONE}, id="the plugin is gone"),
    pytest.param(_page(("g0", ""), ("g1", "")), _resource({"g0": True, "g1": False}), {"g0": "before", "g1": "before"},
                 id="what an operator quarantined stays as it is")])
def test_what_is_recorded(page: Page, resource: PluginResource, expected: dict[str, str]) -> None:
    found = Page(plugin_health.with_health(page, {GPU: resource}, UnhealthyDevice.NOTHING, monotonic=100.0, now="12:30"))
    assert {record.device.device: record.reason for record in found.quarantined} == expected


def test_of_very_many_unhealthy_devices_those_in_use_are_recorded_first() -> None:
    devices = {f"a{number}": False for number in range(plugin_health.MOST + 10)} | {"g0": False}
    page = Page(plugin_health.with_health(_page(), {GPU: _resource(devices)}, UnhealthyDevice.NOTHING, monotonic=1.0, now=""))
    assert len(page.quarantined) == plugin_health.MOST
    assert HELD in {record.device for record in page.quarantined}
