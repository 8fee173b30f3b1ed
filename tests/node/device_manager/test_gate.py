"""The gate `DeviceAssignment` on, off and on again, with pods that have devices: what is stored stays, and no device is given
twice."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.inventory.config import Config, SchedulingSettings
from outfitter.inventory.simulation import hosts_file
from outfitter.ledger import book
from tests.cases.assignment.plugins import PlayedPlugin
from tests.cases.assignment.pod_view import assigned
from tests.controllers.scenario import hosts_text
from tests.node.kubelet.driver_host import short_folder

GPU, NODE = "a.io/gpu", "node-0"
PATIENCE = 120.0  # seconds


async def _seen(method: str, name: str) -> None:
    pass


@contextlib.asynccontextmanager
async def running(folder: Path, *, gate: bool) -> AsyncIterator[app.Embedded]:
    """The product on the data of the folder, and a plugin with two devices while the gate is on."""
    config = Config(scheduling=SchedulingSettings(features={"DeviceAssignment": gate}))
    hosts = [replace(host, kubelet_dir=folder / "k") for host in app.simulated_hosts(
        hosts_file.parse(hosts_text("node", 1), "node").hosts, folder / "data", config)]
    async with app.embedded(data=folder / "data", hosts=hosts, config=config, synchronous="OFF") as product:
        assert [host.name for host in product.hosts] == [NODE]
        plugin = PlayedPlugin("gpu", {"resource": GPU, "devices": {"g0": [], "g1": []}}, folder / "k", _seen)
        if gate:
            await plugin.listen()
            assert await plugin.register() is None
        try:
            yield product
        finally:
            await plugin.stop()


async def create(product: app.Embedded, name: str, *ids: str, node: str = "") -> Object:
    container: Object = {"name": "c", "image": "i", "resources": {"limits": {GPU: "1"}}}
    if ids:
        container["assignedDevices"] = [{"resourceName": GPU, "deviceIDs": list(ids)}]
    return await product.store.create(kinds.POD, {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], **({"nodeName": node} if node else {})}})


async def pod_when(product: app.Embedded, name: str, holds: Callable[[Object], Any]) -> Object:
    until = time.monotonic() + PATIENCE
    while not holds(pod := await product.store.get(kinds.POD, name, "default")):
        assert time.monotonic() < until, pod
        await asyncio.sleep(0.02)
    return pod


def phase(wanted: str) -> Callable[[Object], bool]:
    return lambda pod: pod["status"].get("phase") == wanted


def unschedulable(pod: Object) -> bool:
    return any(each.get("reason") == "Unschedulable" for each in pod["status"].get("conditions") or ())


@pytest.fixture
def folder() -> Any:
    with short_folder() as made:
        yield made


async def test_what_was_assigned_outlives_a_gate_that_is_switched_off_and_on(folder: Path) -> None:
    async with running(folder, gate=True) as product:
        await create(product, "before")
        first = await pod_when(product, "before", phase("Running"))
        assert assigned(first) == {"c": {GPU: ["g0"]}}
        booked = (await book.read(product.store, NODE)).bookings
    async with running(folder, gate=False) as product:
        pod = await product.store.get(kinds.POD, "before", "default")
        assert (assigned(pod), pod["status"]["phase"]) == ({"c": {GPU: ["g0"]}}, "Running")
        await product.store.patch(kinds.POD, "before", {"metadata": {"labels": {"a": "b"}}}, "default")
        pod = await product.store.get(kinds.POD, "before", "default")
        assert assigned(pod) == {"c": {GPU: ["g0"]}}, "an update keeps what the stored pod has"
        assert (await book.read(product.store, NODE)).bookings == booked
        assert GPU not in (await product.store.get(kinds.NODE, NODE))["status"]["capacity"]
        created = await create(product, "meanwhile", "g0")
        assert assigned(created) == {}, "the field is dropped, as Kubernetes does behind a gate that is off"
        await pod_when(product, "meanwhile", unschedulable)
        bound = await create(product, "bound", node=NODE)
        waits = await pod_when(product, "bound", lambda pod: pod["status"].get("reason"))
        assert (waits["status"]["phase"], waits["status"]["reason"]) == ("Pending", "WaitingForDevicePlugin")
        assert assigned(bound) == {}
        await product.store.delete(kinds.POD, "bound", "default", grace=0)
    async with running(folder, gate=True) as product:
        later = await pod_when(product, "meanwhile", phase("Running"))
        assert assigned(later) == {"c": {GPU: ["g1"]}}
        pod = await product.store.get(kinds.POD, "before", "default")
        assert (assigned(pod), pod["status"]["phase"], pod["metadata"]["uid"]) == (
            {"c": {GPU: ["g0"]}}, "Running", first["metadata"]["uid"])
        await create(product, "third")
        await pod_when(product, "third", unschedulable)


async def test_with_the_gate_off_a_pod_that_has_ended_releases_its_device(folder: Path) -> None:
    async with running(folder, gate=True) as product:
        await create(product, "before")
        await pod_when(product, "before", phase("Running"))
    async with running(folder, gate=False) as product:
        await product.store.delete(kinds.POD, "before", "default")
        until = time.monotonic() + PATIENCE
        while (await book.read(product.store, NODE)).bookings:
            assert time.monotonic() < until
            await asyncio.sleep(0.02)
