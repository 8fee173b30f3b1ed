"""Kubernetes' own sample device plugin (make judges), unchanged, with the agent of `outfit up`: it registers, its devices are
assigned to pods, and it registers again after its own restart and after that of the agent. `scripts/kube-assets --kubelet`
builds it. The plugin knows the kubelet's folder by its fixed path only, so it runs with mounts of its own, as in a pod."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.errors import NotFound
from outfitter.ledger import book
from outfitter.store.kube import Kube
from tests.controllers.scenario import connections_closed
from tests.e2e.process import Up
from tests.node.kubelet import driver_host
from tests.node.readers import reader_client
from tests.node.readers.reader_client import ReaderClient

pytestmark = [pytest.mark.judges, pytest.mark.time_limit(1200)]
NODE, RESOURCE = "node-0", "example.com/resource"
DEVICES = frozenset({"Dev-1", "Dev-2"})  # that it has
PATIENCE = 300.0
# $1 the kubelet's folder on the host, $2 the plugin. It writes files of its devices in /tmp.
IN_A_POD = """
mount -t tmpfs tmpfs /var/lib && mkdir /var/lib/kubelet && mount --bind "$1" /var/lib/kubelet && mount -t tmpfs tmpfs /tmp &&
exec "$2"
"""


class SamplePlugin:
    def __init__(self, program: Path, kubelet: Path, log: Path) -> None:
        self.log = log
        mapped = () if os.geteuid() == 0 else ("--map-root-user",)
        self._words = ["setpriv", "--pdeathsig", "KILL", "--", "unshare", "--mount", *mapped, "sh", "-c", IN_A_POD, "sh",
                       str(kubelet), str(program)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "PLUGIN_SOCK_DIR": "/var/lib/kubelet/device-plugins"})

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)


@dataclass
class PluginHost:
    up: Up
    plugin: SamplePlugin
    reader: ReaderClient
    kubelet: Path

    async def until(self, what: str, look: Callable[[Kube], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(PATIENCE), self.up.store() as store:
                while not (answer := await look(store)):  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.1)
                return answer
        except TimeoutError:
            raise AssertionError(f"not {what}\n{self.up.log()[-3000:]}\n{self.plugin.log.read_text()[-3000:]}") from None

    async def offered(self, number: str) -> None:
        async def look(store: Kube) -> bool:
            node = await store.get(kinds.NODE, NODE)
            return bool(node["status"].get("allocatable", {}).get(RESOURCE, "0") == number)

        await self.until(f"{number} devices are allocatable", look)

    async def create(self, name: str) -> None:
        async with self.up.store() as store:
            await store.create(kinds.POD, {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [
                {"name": "main", "image": "i", "resources": {"limits": {RESOURCE: "1"}}}]}})

    async def runs(self, name: str) -> str:
        """The device of a pod, once it runs."""
        async def look(store: Kube) -> Object | None:
            pod = await store.get(kinds.POD, name, "default")
            return pod if pod.get("status", {}).get("phase") == "Running" else None

        pod: Object = await self.until(f"{name} runs", look)
        [assigned] = pod["spec"]["containers"][0]["assignedDevices"]
        assert assigned["resourceName"] == RESOURCE
        [device] = assigned["deviceIDs"]
        return str(device)

    async def shown(self, devices: dict[str, str], *, allocatable: frozenset[str] = DEVICES) -> None:
        """Readers, ledger, checkpoint and `outfit devices` show these pods with these devices."""
        listed = (await self.reader.lister("List")).pod_resources
        seen = {pod.name: [(each.resource_name, list(each.device_ids)) for each in pod.containers[0].devices] for pod in listed}
        assert seen == {name: [(RESOURCE, [device])] for name, device in devices.items()}
        offered = (await self.reader.lister("GetAllocatableResources")).devices
        assert {id_ for each in offered if each.resource_name == RESOURCE for id_ in each.device_ids} == allocatable
        async with self.up.store() as store:
            bookings = (await book.read(store, NODE)).bookings
        assert sorted(booking.device.device for booking in bookings) == sorted(devices.values())
        checkpoint = json.loads((self.kubelet / "device-plugins" / "kubelet_internal_checkpoint").read_text())
        recorded = [some for entry in checkpoint["Data"]["PodDeviceEntries"] for some in entry["DeviceIDs"].values()]
        assert sorted(device for some in recorded for device in some) == sorted(devices.values())
        table = await asyncio.to_thread(self.up.ok, "devices")
        for name, device in devices.items():
            assert any(device in line and f" {name} in default" in line for line in table.splitlines()), table

    async def delete(self, name: str) -> None:
        async with self.up.store() as store:
            await store.delete(kinds.POD, name, "default", grace=0)

        async def look(store: Kube) -> bool:
            try:
                await store.get(kinds.POD, name, "default")
            except NotFound:
                return True
            return False

        await self.until(f"{name} is gone", look)


@pytest.fixture
async def host() -> AsyncIterator[PluginHost]:
    program = Path(os.environ.get("KUBEBUILDER_ASSETS", "/nonexistent")) / "sample-device-plugin"
    definitions = reader_client.definitions("published")
    if not program.exists():
        pytest.skip("needs scripts/kube-assets --kubelet, which builds the sample device plugin")
    with driver_host.short_folder() as folder:
        kubelet = folder / "k" / NODE
        up = Up(folder / "data", "--kubelet-dir", str(folder / "k"))
        plugin = SamplePlugin(program, kubelet, folder / "plugin.log")
        try:
            await asyncio.to_thread(up.start)
            plugin.start()
            yield PluginHost(up, plugin, ReaderClient(definitions, kubelet), kubelet)
        finally:
            plugin.kill()
            up.kill()
    await connections_closed()


async def test_the_sample_device_plugin(host: PluginHost) -> None:
    await host.offered("2")
    await host.create("one")
    devices = {"one": await host.runs("one")}
    await host.shown(devices)

    # The plugin is killed and started again, with another socket.
    host.plugin.kill()
    await host.offered("0")
    await host.shown(devices, allocatable=frozenset())
    host.plugin.start()
    await host.offered("2")
    await host.create("two")
    devices["two"] = await host.runs("two")
    assert set(devices.values()) == DEVICES
    await host.shown(devices)

    # All devices are in use: a third pod waits, also over a restart of the agent, after which the plugin registers by itself.
    await host.create("three")
    await asyncio.to_thread(host.up.kill)
    await asyncio.to_thread(host.up.start)
    await host.offered("2")
    await host.shown(devices)
    await host.delete("one")
    devices = {"two": devices["two"], "three": await host.runs("three")}
    await host.shown(devices)

    # Its folder is deleted while nothing runs: agent and plugin create their sockets again, and the pods keep their devices.
    host.plugin.stop()
    await host.offered("0")
    await asyncio.to_thread(host.up.kill)
    shutil.rmtree(host.kubelet / "device-plugins")
    await asyncio.to_thread(host.up.start)
    host.plugin.start()
    await host.offered("2")
    await host.shown(devices)
