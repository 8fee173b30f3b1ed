"""VMs in pods that a kubelet runs: the node agent waits for the pod, drives its launcher, and leaves the pod to the kubelet.
The launchers are processes, and are killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from outfitter import app
from outfitter.api import admission, conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vmi_actions
from outfitter.launcher.pod.container import MAX_FILE
from outfitter.node.launchers import Launchers
from outfitter.store.clock import SystemClock, rfc3339
from outfitter.store.memory import Memory
from tests.launcher.pod.launcher_process import PATIENCE, LauncherProcess
from tests.node.fake_kubelet import FakeKubelet

T = TypeVar("T")
NODE = "worker"


class Place:
    """A store that outlives the product, which has a node with a kubelet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Memory(clock=SystemClock(), rules=admission.AdmissionRules())
        self.kubelet = FakeKubelet(self.store, NODE, folder, "--hypervisor", "simulated")

    @contextlib.asynccontextmanager
    async def product(self) -> AsyncIterator[app.Embedded]:
        launchers = Launchers(self.folder / "kubelet")
        host = app.this_host(NODE, launchers, root=self.folder / "host", empty=True)
        assert host is not None
        product = app.Embedded(self.store, [replace(host, kubelet=True)], clock=SystemClock())
        await product.start()
        try:
            yield product
        finally:
            await product.runner.stop()
            await launchers.close()

    async def vmi(self, name: str = "blue", **spec: Any) -> None:
        await self.store.create(kinds.VMI, {"metadata": {"name": name, "namespace": "default"}, "spec": {
            "domain": {"memory": {"guest": "32Mi"}, "devices": {}}, **spec}})

    async def reach(self, check: Callable[[], Awaitable[T]], what: str) -> T:
        end = asyncio.get_running_loop().time() + PATIENCE
        while not (found := await check()):
            if asyncio.get_running_loop().time() > end:
                raise AssertionError(f"not reached: {what}\n{await self.picture()}")
            await asyncio.sleep(0.01)
        return found

    async def phase(self, wanted: str, name: str = "blue") -> Object:
        async def look() -> Object | None:
            found = await self.store.get(kinds.VMI, name, "default")
            return found if (found.get("status") or {}).get("phase") == wanted else None

        found = await self.reach(look, f"{name} is {wanted}")
        assert found is not None
        return found

    async def gone(self, name: str = "blue") -> None:
        async def look() -> bool:
            return not [one for kind in (kinds.VMI, kinds.POD) for one in (await self.store.list(kind)).items]

        await self.reach(look, f"{name} is gone")

    async def launcher(self) -> LauncherProcess:
        return next(iter(self.kubelet.launchers.values()))

    async def ask(self, action: vmi_actions.Action) -> None:
        vmi = await self.store.get(kinds.VMI, "blue", "default")
        requests = vmi_actions.with_action_request(action, vmi, rfc3339(SystemClock().now()))
        await self.store.patch(kinds.VMI, "blue", {"status": {vmi_actions.FIELD: requests}}, "default", subresource="status")

    async def paused(self, wanted: bool) -> None:
        async def look() -> bool:
            return conditions.is_true(await self.store.get(kinds.VMI, "blue", "default"), vmi_actions.PAUSED) is wanted

        await self.reach(look, f"Paused is {wanted}")

    async def events(self, reason: str) -> list[str]:
        return [event["message"] for event in (await self.store.list(kinds.EVENT)).items if event["reason"] == reason]

    async def picture(self) -> str:
        parts = [f"{kind.singular} {obj['metadata']['name']}: {obj.get('status')}" for kind in (kinds.VMI, kinds.POD)
                 for obj in (await self.store.list(kind)).items]
        parts += [f"event {event['reason']}: {event['message']}" for event in (await self.store.list(kinds.EVENT)).items]
        return "\n".join([*parts, *(launcher.pod.log.read_text() for launcher in self.kubelet.launchers.values())])


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    with tempfile.TemporaryDirectory(prefix="of-") as folder:
        made = Place(Path(folder))
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110"}
        await made.store.create(kinds.NODE, {"metadata": {"name": NODE}, "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]}})
        running = asyncio.ensure_future(made.kubelet.run())
        try:
            yield made
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            made.kubelet.kill_all()
            await made.store.close()


async def test_a_vm_runs_in_its_launcher_and_ends_with_it(place: Place) -> None:
    async with place.product():
        await place.vmi()
        vmi = await place.phase("Running")
        assert vmi["status"]["nodeName"] == NODE
        assert conditions.is_true(vmi, "Ready")
        [pod] = (await place.store.list(kinds.POD)).items
        assert pod["status"]["containerStatuses"][0]["state"].keys() == {"running"}, "the kubelet's status is as it wrote it"
        await place.ask("pause")
        await place.paused(True)
        await place.ask("unpause")
        await place.paused(False)
        await place.ask("reset")
        await place.reach(lambda: place.events("Reset"), "reset")
        node = await place.store.get(kinds.NODE, NODE)
        assert node["status"]["conditions"][0]["reason"] == "KubeletReady", "the Node is the kubelet's"
        (await place.launcher()).signal(signal.SIGUSR1)
        ended = await place.phase("Succeeded")
        assert (conditions.find(ended, "Ready") or {})["reason"] == "Stopped"


async def test_a_vm_that_is_deleted_is_shut_down_by_the_kubelet(place: Place) -> None:
    async with place.product():
        await place.vmi()
        await place.phase("Running")
        launcher = await place.launcher()
        await place.store.delete(kinds.VMI, "blue", "default")
        await place.gone()
        assert launcher.ended() == (0, "Stopped: the guest was shut down on request")


async def test_a_launcher_that_is_killed_is_a_vm_that_failed(place: Place) -> None:
    async with place.product():
        await place.vmi()
        await place.phase("Running")
        (await place.launcher()).kill()
        ended = await place.phase("Failed")
        assert (conditions.find(ended, "Ready") or {})["reason"] == "LauncherFailed"


async def test_a_vm_outlives_its_node_agent(place: Place) -> None:
    """Killed while the VM runs, and while it starts: the next agent connects to the launcher and goes on."""
    async with place.product():
        await place.vmi()
        await place.phase("Running")
    await place.ask("pause")
    async with place.product():
        await place.paused(True)
        assert len(await place.events("Started")) == 1
        (await place.launcher()).signal(signal.SIGUSR2)
        ended = await place.phase("Failed")
        assert (conditions.find(ended, "Ready") or {})["message"] == "the simulated guest crashed"


async def test_a_vmi_for_which_no_domain_can_be_built_fails(place: Place) -> None:
    place.kubelet.files["var/run/kubernetes.io/dra-device-attributes/x.json"] = b" " * (MAX_FILE + 1)
    async with place.product():
        await place.vmi()
        ended = await place.phase("Failed")
        assert (conditions.find(ended, "Ready") or {})["reason"] == "SyncFailed"
        assert await place.events("SyncFailed")
