"""A real kubelet (make judges) with a runtime that runs nothing: it accepts our driver, has it prepare a pod's claim before the
container is created, gives the CDI ids to the runtime, and has the claim unprepared after the pod's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from outfitter.api import kinds
from outfitter.errors import NotFound
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.controllers.scenario import connections_closed
from tests.node.kubelet import driver_host, fake_runtime, kubelet_client, real_kubelet
from tests.node.kubelet.driver_host import DRIVER, HOST, DriverHost
from tests.node.kubelet.fake_runtime import FakeRuntime
from tests.node.kubelet.kubelet_client import KubeletClient
from tests.node.kubelet.real_kubelet import Kubelet

pytestmark = pytest.mark.judges
NAMESPACE = "lab"
PATIENCE = 300.0


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    if missing := real_kubelet.why_not():
        pytest.skip(missing)
    with kubernetes.Cluster(tmp_path_factory.mktemp("control-plane"), scheduler=True, controllers=True) as running:
        yield running


class Judged:
    def __init__(self, node: DriverHost, kubelet: Kubelet, runtime: FakeRuntime) -> None:
        self.node, self.kubelet, self.runtime = node, kubelet, runtime

    async def until(self, what: str, look: object) -> None:
        assert callable(look)
        try:
            async with asyncio.timeout(PATIENCE):
                while not await look():
                    self.kubelet.check()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not {what}; the kubelet's log ends with:\n{self.kubelet.tail()}") from None

    async def states(self) -> set[str]:
        return {booking.state for booking in (await self.node.bookings()).values()}

    async def pod_phase(self, name: str) -> str:
        try:
            return str((await self.node.store.get(kinds.POD, name, NAMESPACE)).get("status", {}).get("phase"))
        except NotFound:
            return ""


@pytest.fixture
async def judged(control_plane: kubernetes.Cluster) -> AsyncIterator[Judged]:
    cri = fake_runtime.published_cri()
    if cri is None:
        pytest.skip("needs the published protobuf files; scripts/kubelet-protos fetches them")
    store = Kube(control_plane.access(), clock=SystemClock())
    with driver_host.short_folder() as folder:
        node = DriverHost(folder, KubeletClient(kubelet_client.our_definitions()), store=store)
        node.registry.mkdir(parents=True)
        runtime = FakeRuntime(folder / "cri.sock", cri)
        kubelet = Kubelet(control_plane, HOST, node.kubelet_folder, runtime.socket)
        await store.create(kinds.NAMESPACE, {"metadata": {"name": NAMESPACE}})
        await runtime.start()
        await node.start()
        kubelet.start()
        try:
            yield Judged(node, kubelet, runtime)
        finally:
            kubelet.stop()
            await node.stop()
            await runtime.stop()
            await store.close()
    await connections_closed()


async def test_a_real_kubelet_prepares_and_unprepares_through_our_driver(judged: Judged) -> None:
    node, store = judged.node, judged.node.store

    async def registered() -> bool:
        return bool(node.plugin.registration.registered)

    await judged.until("registered", registered)
    await store.create(kinds.DEVICE_CLASS, {"metadata": {"name": "vf"}, "spec": {"selectors": [
        {"cel": {"expression": f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "VF"'}}]}})
    await store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "gold", "namespace": NAMESPACE}, "spec": {"devices": {
        "requests": [{"name": "nic", "exactly": {"deviceClassName": "vf"}}]}}})
    await store.create(kinds.POD, {"metadata": {"name": "web", "namespace": NAMESPACE}, "spec": {
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "it", "image": "it", "resources": {"claims": [{"name": "nics", "request": "nic"}]}}],
        "resourceClaims": [{"name": "nics", "resourceClaimName": "gold"}]}})

    async def running() -> bool:
        return await judged.pod_phase("web") == "Running"

    await judged.until("Running", running)
    uid = (await store.get(kinds.RESOURCE_CLAIM, "gold", NAMESPACE))["metadata"]["uid"]
    [device] = [device for _, device in await node.bookings()]
    assert await judged.states() == {"prepared"}
    assert judged.runtime.cdi_devices() == {"it": [f"{DRIVER}/device={uid}-{device}"]}
    assert node.cdi_files() == [f"{DRIVER}-claim_{uid}.json"]

    await node.kill()  # the kubelet finds the new process by its socket
    await node.start()
    await judged.until("registered again", registered)
    await store.delete(kinds.POD, "web", NAMESPACE)

    async def unprepared() -> bool:
        return not node.cdi_files() and "prepared" not in await judged.states()

    await judged.until("unprepared", unprepared)
