"""A DRA driver of others on a host that outfitter runs (make judges): kubernetes-sigs/dra-example-driver, unchanged, registers
with the agent of `outfit up`, publishes its slices to the embedded API server, as protobuf, and prepares and unprepares claims
of pods. Driver and agent are killed and started again: nothing moves, and readers show what the ledger has."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.errors import NotFound
from outfitter.ledger import book
from outfitter.store.kube import Kube
from tests.controllers.scenario import connections_closed
from tests.e2e.process import Up
from tests.node.kubelet import driver_host, example_driver
from tests.node.kubelet.example_driver import DRIVER, ExampleDriver
from tests.node.readers import reader_client
from tests.node.readers.reader_client import ReaderClient

pytestmark = [pytest.mark.judges, pytest.mark.time_limit(1200)]
NODE = "node-0"
PATIENCE = 300.0
PARAMETERS = {"apiVersion": "gpu.resource.example.com/v1alpha1", "kind": "GpuConfig",
              "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}


@dataclass
class EmbeddedHost:
    up: Up
    driver: ExampleDriver
    reader: ReaderClient

    async def until(self, what: str, look: Callable[[Kube], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(PATIENCE), self.up.store() as store:
                while not (answer := await look(store)):  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.1)
                return answer
        except TimeoutError:
            raise AssertionError(f"not {what}\n{self.up.log()[-3000:]}\n{self.driver.log.read_text()[-3000:]}") from None

    async def create(self, name: str) -> str:
        """A pod with a claim for a GPU; the claim's uid."""
        request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
        async with self.up.store() as store:
            claim = await store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": name, "namespace": "default"}, "spec": {
                "devices": {"requests": [request], "config": [{"opaque": {"driver": DRIVER, "parameters": PARAMETERS}}]}}})
            await store.create(kinds.POD, {"metadata": {"name": name, "namespace": "default"}, "spec": {
                "resourceClaims": [{"name": "mine", "resourceClaimName": name}],
                "containers": [{"name": "main", "image": "i", "resources": {"claims": [{"name": "mine"}]}}]}})
        return str(claim["metadata"]["uid"])

    async def runs(self, name: str) -> Object:
        async def look(store: Kube) -> Object | None:
            pod = await store.get(kinds.POD, name, "default")
            return pod if pod.get("status", {}).get("phase") == "Running" else None

        pod: Object = await self.until(f"{name} runs", look)
        return pod

    async def device(self, name: str) -> str:
        async with self.up.store() as store:
            [result] = (await store.get(kinds.RESOURCE_CLAIM, name, "default"))["status"]["allocation"]["devices"]["results"]
        assert (result["driver"], result["pool"]) == (DRIVER, NODE)
        return str(result["device"])

    async def shown(self, uids: dict[str, str]) -> None:
        """Readers and ledger show the same devices, each with the CDI ids that the driver answered."""
        expected = {}
        for name, uid in uids.items():
            device = await self.device(name)
            kind = f"k8s.{DRIVER}/gpu"
            expected[name] = {"main": {f"{DRIVER}/{NODE}/{device}": [f"{kind}=common", f"{kind}={uid}-{device}"]}}
            [file] = self.driver.prepared(uid)
            assert "TIMESLICE_INTERVAL=Long" in file.read_text()
        assert await self.reader.claims() == expected
        async with self.up.store() as store:
            booked = {booking.device.device for booking in (await book.read(store, NODE)).bookings}
        assert booked == {key.split("/")[2] for shown in expected.values() for key in shown["main"]}

    async def published(self) -> list[str]:
        async def look(store: Kube) -> list[str]:
            slices = (await store.list(kinds.RESOURCE_SLICE)).items
            devices = [part["spec"]["devices"] for part in slices if part["spec"]["driver"] == DRIVER]
            return sorted(device["name"] for some in devices for device in some)

        names: list[str] = await self.until("its devices are published", look)
        return names

    async def gone(self, uids: dict[str, str]) -> None:
        async with self.up.store() as store:
            for name in uids:
                await store.delete(kinds.POD, name, "default", grace=0)

        async def look(store: Kube) -> bool:
            for name in uids:
                try:
                    await store.get(kinds.POD, name, "default")
                except NotFound:
                    continue
                return False
            return not (await book.read(store, NODE)).bookings

        await self.until("the pods are gone", look)
        assert not any(self.driver.prepared(uid) for uid in uids.values())
        assert await self.reader.claims() == {}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
async def host() -> AsyncIterator[EmbeddedHost]:
    found, definitions = example_driver.program(), reader_client.definitions("published")
    if found is None:
        pytest.skip("needs scripts/dra-example-driver, which fetches and builds it")
    with driver_host.short_folder() as folder:
        cdi = folder / "cdi"
        cdi.mkdir()
        up = Up(folder / "data", "--kubelet-dir", str(folder / "k"), "--port", str(free_port()))  # the same after a restart
        kubelet = folder / "k" / NODE
        driver = ExampleDriver(found, up.kubeconfig, NODE, kubelet, cdi)
        try:
            await asyncio.to_thread(up.start)
            driver.start()
            yield EmbeddedHost(up, driver, ReaderClient(definitions, kubelet))
        finally:
            driver.kill()
            up.kill()
    await connections_closed()


async def test_the_example_driver_with_the_embedded_server(host: EmbeddedHost) -> None:
    assert await host.published() == ["gpu-0", "gpu-1"]
    async with host.up.store() as store:
        await store.create(kinds.DEVICE_CLASS, {"metadata": {"name": DRIVER}, "spec": {"selectors": [
            {"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}})
    uids = {"one": await host.create("one")}
    pod = await host.runs("one")
    [status] = pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
    assert (status["name"], len(status["resources"])) == ("claim:mine", 1)
    await host.shown(uids)
    first = await host.device("one")

    # The driver is killed: its pod goes on, another one waits until the driver is back.
    host.driver.kill()
    uids["two"] = await host.create("two")

    async def refused(_: Kube) -> bool:
        return "NodePrepareResources" in await asyncio.to_thread(host.up.ok, "why", "pod/two")

    await host.until("the reason is reported", refused)
    assert set(await host.reader.claims()) == {"one"}
    host.driver.start()
    await host.runs("two")
    assert await host.device("one") == first
    await host.shown(uids)

    # The agent and the API server are killed: the driver is found again, and nothing is prepared a second time.
    files = {uid: host.driver.prepared(uid)[0].stat().st_mtime_ns for uid in uids.values()}
    await asyncio.to_thread(host.up.kill)
    await asyncio.to_thread(host.up.start)
    await host.until("readers show both pods", lambda _: _both(host))
    await host.shown(uids)
    assert {uid: host.driver.prepared(uid)[0].stat().st_mtime_ns for uid in uids.values()} == files
    await host.gone(uids)

    # A driver that is stopped and does not come back: the agent deletes its slices.
    host.driver.stop()

    async def withdrawn(store: Kube) -> bool:
        return not [part for part in (await store.list(kinds.RESOURCE_SLICE)).items if part["spec"]["driver"] == DRIVER]

    await host.until("its slices are deleted", withdrawn)
    host.driver.start()
    assert await host.published() == ["gpu-0", "gpu-1"]


async def _both(host: EmbeddedHost) -> bool:
    return set(await host.reader.claims()) == {"one", "two"}
