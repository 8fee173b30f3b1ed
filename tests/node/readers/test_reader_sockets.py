"""What monitors read over gRPC of VMs and pods with claims, through the whole product on simulated hosts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.errors import StartupRefused
from outfitter.ledger import book
from outfitter.ledger.device_list import device_list
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.cases.assignment.plugins import PlayedPlugin
from tests.controllers.scenario import Scene, hosts_of
from tests.node.kubelet.driver_host import short_folder
from tests.node.readers.reader_client import BOTH, ReaderClient, definitions
from tests.node.socket_scene import SocketScene

DRIVER = "node.example.com"


@contextlib.asynccontextmanager
async def running(folder: Path, data: Path | None = None) -> AsyncIterator[Scene]:
    [host] = hosts_of("node", 2)
    clock = ManualClock()
    async with app.embedded(hosts=[replace(host, kubelet_dir=folder)], data=data, clock=clock,
                            names=IdGenerator(random.Random(1))) as product:
        scene = SocketScene(product, "here", clock)
        if await scene.find(kinds.NAMESPACE, "here") is None:
            await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
            await scene.classes()
            await scene.template()
        yield scene


@pytest.fixture(params=BOTH)
async def node(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Scene, ReaderClient]]:
    with short_folder() as folder:
        async with running(folder) as scene:
            yield scene, ReaderClient(definitions(request.param), folder)


async def test_a_monitor_sees_what_the_ledger_has(node: tuple[Scene, ReaderClient]) -> None:
    scene, client = node
    await scene.machine("blue")
    await scene.running("blue")
    pod = await scene.pod("blue")
    booked = {str(booking.device): booking.holder for booking in (await book.read(scene.store, "node-0")).bookings}
    [(device, holder)] = booked.items()
    shown = await client.claims()
    assert shown == {pod["metadata"]["name"]: {"compute": {device: [
        f"{DRIVER}/device={holder.uid}-{device.rpartition('/')[2]}"]}}}
    one = (await client.lister("Get", pod_name=pod["metadata"]["name"], pod_namespace="here")).pod_resources
    assert [one] == list((await client.lister("List")).pod_resources)
    [claim] = one.containers[0].dynamic_resources
    assert (claim.claim_namespace, claim.claim_name) == ("here", holder.name)
    await scene.delete(kinds.VMI, "blue")
    await scene.empty()
    assert await client.claims() == {}


async def test_monitor_page_and_outfit_devices_agree_on_claims_and_plugins(node: tuple[Scene, ReaderClient]) -> None:
    scene, client = node

    async def called(method: str, name: str) -> None:
        pass

    plugin = PlayedPlugin("gpu", {"resource": "a.io/gpu", "devices": {"g0": [0], "g1": [1]}}, client.folder, called)
    await plugin.listen()
    try:
        assert await plugin.register() is None
        await scene.machine("blue")
        await scene.running("blue")
        for name, number in (("one", 1), ("rest", 2)):  # the second gets none: one device is left
            await scene.create(kinds.POD, name, {"containers": [
                {"name": "main", "resources": {"limits": {"a.io/gpu": str(number)}}}]})
        await scene.reach(lambda: phase_is(scene, "one", "Running"), "one runs")
        await agreed(scene, client, {"one": 1, (await scene.pod("blue"))["metadata"]["name"]: 1})
        await scene.delete(kinds.POD, "one")
        await scene.reach(lambda: phase_is(scene, "rest", "Running"), "rest runs")
        await scene.delete(kinds.VMI, "blue")
        await scene.reach(lambda: is_gone(scene, "blue"), "blue is gone")
        await agreed(scene, client, {"rest": 2})
    finally:
        await plugin.stop()


async def agreed(scene: Scene, client: ReaderClient, devices: dict[str, int]) -> None:
    """The monitor shows as many devices of each pod, and those that are booked and held."""
    shown = {pod.name: [
        *(id_ for container in pod.containers for each in container.devices for id_ in each.device_ids),
        *(device.device_name for container in pod.containers for claim in container.dynamic_resources
          for device in claim.claim_resources)] for pod in (await client.lister("List")).pod_resources}
    assert {name: len(ids) for name, ids in shown.items()} == devices
    page = sorted(booking.device.device for booking in await scene.bookings())
    slices, pages, inventories = [(await scene.store.list(kind)).items for kind in (
        kinds.RESOURCE_SLICE, kinds.LEDGER_PAGE, kinds.HOST_INVENTORY)]
    held = sorted(device.id.device for device in device_list(slices, pages, inventories).devices if device.bookings)
    assert sorted(id_ for ids in shown.values() for id_ in ids) == page == held


async def is_gone(scene: Scene, name: str) -> bool:
    return await scene.find(kinds.VMI, name) is None and not any(
        booking.holder.kind == "ResourceClaim" for booking in await scene.bookings())


async def test_metrics_attach_pod_and_container_to_a_device() -> None:
    with short_folder() as folder:
        async with running(folder) as scene:
            await scene.machine("blue")
            await scene.running("blue")
            pod = await scene.pod("blue")
            text = scene.product.metrics.text()[0].decode()
    [line] = [line for line in text.splitlines() if line.startswith("outfitter_assigned_device{")]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    assert labels == {"node": "node-0", "resource": DRIVER, "device": "node-0/pci-0000-3b-00-0-vf0", "namespace": "here",
                      "pod": pod["metadata"]["name"], "container": "compute"}
    assert 'outfitter_device_wait_seconds_count{node="node-0"} 1.0' in text
    assert 'outfitter_device_prepare_seconds_count{node="node-0"} 1.0' in text


async def test_a_pod_without_devices_is_listed_and_another_is_not_found(node: tuple[Scene, ReaderClient]) -> None:
    scene, client = node
    await scene.create(kinds.POD, "web", {"containers": [{"name": "main"}], "initContainers": [
        {"name": "once"}, {"name": "side", "restartPolicy": "Always"}]})
    await scene.reach(lambda: phase_is(scene, "web", "Running"), "web runs")
    [found] = (await client.lister("List")).pod_resources
    assert (found.namespace, found.name) == ("here", "web")
    assert [container.name for container in found.containers] == ["side", "main"]
    assert not (await client.lister("GetAllocatableResources")).devices
    with pytest.raises(grpc.aio.AioRpcError, match="pod nobody in namespace here not found"):
        await client.lister("Get", pod_name="nobody", pod_namespace="here")


async def phase_is(scene: Scene, name: str, phase: str) -> bool:
    found = await scene.find(kinds.POD, name)
    return found is not None and found["status"].get("phase") == phase


async def test_a_pod_that_waits_or_has_ended_is_not_shown(node: tuple[Scene, ReaderClient]) -> None:
    scene, client = node
    await scene.create(kinds.POD, "waits", {"containers": [{"name": "main"}], "nodeName": "node-0", "resourceClaims": [
        {"name": "net", "resourceClaimName": "missing"}]})
    await scene.create(kinds.POD, "done", {"containers": [{"name": "main"}]})
    await scene.reach(lambda: phase_is(scene, "done", "Running"), "done runs")
    assert [pod.name for pod in (await client.lister("List")).pod_resources] == ["done"]
    await scene.store.patch(kinds.POD, "done", {"status": {"phase": "Succeeded"}}, "here", subresource="status")

    async def hidden() -> bool:
        return not (await client.lister("List")).pod_resources

    await scene.reach(hidden, "nothing is listed")
    assert not (await client.pods("ListPods")).pods


async def test_watchers_see_a_pod_before_it_starts(node: tuple[Scene, ReaderClient]) -> None:
    scene, client = node
    await scene.create(kinds.POD, "first", {"containers": [{"name": "main"}]})
    await scene.reach(lambda: phase_is(scene, "first", "Running"), "first runs")
    events: list[tuple[int, str, str]] = []
    arrived = asyncio.Event()

    async def read() -> None:
        async for event in client.watch():
            pod = fields(event.pod)
            events.append((event.type, text(pod, "metadata", "name"), text(pod, "status", "phase")))
            arrived.set()

    async def until(count: int) -> None:
        while len(events) < count:
            arrived.clear()
            await asyncio.wait_for(arrived.wait(), 30)

    reading = asyncio.create_task(read())
    await until(2)
    assert events == [(1, "first", "Running"), (4, "", "")]
    await scene.create(kinds.POD, "second", {"containers": [{"name": "main"}]})
    await scene.reach(lambda: phase_is(scene, "second", "Running"), "second runs")
    await until(4)
    assert events[2:4] == [(1, "second", "Pending"), (2, "second", "Running")]
    listed = [fields(pod) for pod in (await client.pods("ListPods")).pods]
    assert sorted(text(pod, "metadata", "name") for pod in listed) == ["first", "second"]
    uid = text(listed[0], "metadata", "uid")
    assert text(fields((await client.pods("GetPod", podUID=uid)).pod), "metadata", "uid") == uid
    with pytest.raises(grpc.aio.AioRpcError, match="not found") as missing:
        await client.pods("GetPod", podUID="nobody")
    assert missing.value.code() == grpc.StatusCode.NOT_FOUND
    await scene.delete(kinds.POD, "first")
    await scene.reach(lambda: gone(scene, "first"), "first is gone")
    while events[-1][0] != 3:
        arrived.clear()
        await asyncio.wait_for(arrived.wait(), 30)
    assert events[-1] == (3, "first", "")
    reading.cancel()


async def gone(scene: Scene, name: str) -> bool:
    return await scene.find(kinds.POD, name) is None


async def test_each_container_has_the_requests_that_it_names_also_after_a_restart(tmp_path: Path) -> None:
    with short_folder() as folder:
        client = ReaderClient(definitions("ours"), folder)
        async with running(folder, tmp_path) as scene:
            await scene.template("two-vfs", "up", "down")
            await scene.create(kinds.POD, "web", {
                "resourceClaims": [{"name": "nets", "resourceClaimTemplateName": "two-vfs"}],
                "containers": [{"name": "both", "resources": {"claims": [{"name": "nets"}]}},
                               {"name": "one", "resources": {"claims": [{"name": "nets", "request": "down"}]}},
                               {"name": "none"}]})
            await scene.reach(lambda: phase_is(scene, "web", "Running"), "web runs")
            before = await client.claims()
            containers = before["web"]
            assert [len(containers[name]) for name in ("both", "one", "none")] == [2, 1, 0]
            assert containers["one"].items() < containers["both"].items()
        async with running(folder, tmp_path):
            assert await client.claims() == before


async def test_sockets_have_the_kubelets_permissions_and_come_back() -> None:
    with short_folder() as folder:
        async with running(folder) as scene:
            assert stat.S_IMODE((folder / "plugins_registry").stat().st_mode) == 0o750
            for place in ("pod-resources/kubelet.sock", "pods-api/pods-api.sock"):
                assert stat.S_IMODE((folder / place).parent.stat().st_mode) == 0o750
                assert stat.S_IMODE((folder / place).stat().st_mode) == 0o755
                (folder / place).unlink()
            client = ReaderClient(definitions("ours"), folder)

            async def answers() -> bool:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await client.lister("List")
                    await client.pods("ListPods")
                    return True
                return False

            await scene.reach(answers, "the sockets are there again")
        assert not (folder / "pod-resources" / "kubelet.sock").exists()


async def test_a_folder_that_is_a_file_is_refused() -> None:
    with short_folder() as folder:
        (folder / "pod-resources").write_text("")
        with pytest.raises(StartupRefused, match="pod-resources"):
            async with running(folder):
                pass


# -- messages without their definitions

def fields(message: bytes) -> dict[int, Any]:
    """Field number -> value: bytes or a number; of repeated ones the last."""
    out: dict[int, Any] = {}
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        value, at = varint(message, at)
        if key & 7 == 2:
            out[key >> 3], at = message[at:at + value], at + value
        else:
            out[key >> 3] = value
    return out


def varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


NUMBERS = {"metadata": 1, "status": 3, "name": 1, "uid": 5, "phase": 1}


def text(pod: dict[int, Any], part: str, name: str) -> str:
    found = fields(pod.get(NUMBERS[part], b"")).get(NUMBERS[name], b"")
    return bytes(found).decode()
