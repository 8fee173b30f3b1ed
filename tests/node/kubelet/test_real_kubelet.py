"""A real kubelet (make judges) with a runtime that runs nothing: it accepts our driver, has it prepare a pod's claim before the
container is created, gives the CDI ids to the runtime, and has the claim unprepared after the pod's end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Page
from outfitter.errors import AlreadyExists, NotFound, OutfitterError
from outfitter.ledger import book
from outfitter.node.readers import pod_resources_client
from outfitter.node.readers.host_sources import HostSources
from outfitter.node.readers.pod_devices import compute_pod_devices
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.controllers.scenario import connections_closed
from tests.node.kubelet import driver_host, fake_runtime, kubelet_client, real_kubelet
from tests.node.kubelet.driver_host import DRIVER, GPU, GPU_ADDRESS, HOST, DriverHost
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
        runtime = FakeRuntime(folder / "cri.sock", cri)
        (folder / "kubelet").mkdir()
        kubelet = Kubelet(control_plane, HOST, folder / "kubelet", runtime.socket)
        node = DriverHost(folder, KubeletClient(kubelet_client.our_definitions()), store=store, hosts=driver_host.WITH_GPU,
                          spec=driver_host.SPEC_WITH_GPU, plugin_folder=kubelet.plugin_folder)
        node.registry.mkdir(parents=True)
        with contextlib.suppress(AlreadyExists):
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


class PageSources(HostSources):
    """Our readers' sources for pods of a kubelet: devices of the plugin as the page has them."""

    def __init__(self, node: DriverHost, page: Page, claims: Mapping[tuple[str, str], Object]) -> None:
        super().__init__(node.host, lambda namespace, name: claims.get((namespace, name)))
        self._page, self._devices = page, node.host.devices

    def assigned(self, pod: Object) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        place = pod["metadata"]["namespace"], pod["metadata"]["name"]
        ids = tuple(booking.device.device for booking in self._page.bookings
                    if (booking.holder.kind, booking.holder.namespace, booking.holder.name) == (kinds.POD.kind, *place))
        return {container["name"]: {GPU: ids} for container in pod["spec"]["containers"]
                if ids and GPU in ((container.get("resources") or {}).get("limits") or {})}

    def numa_nodes(self, resource: str) -> Mapping[str, tuple[int, ...]]:
        return {name: () if device.numa is None else (device.numa,) for name, device in self._devices.items()}


async def test_a_real_kubelet_has_devices_of_our_plugin_and_our_driver_and_shows_what_we_show(judged: Judged) -> None:
    node, store = judged.node, judged.node.store

    async def offered() -> bool:
        try:
            found = await store.get(kinds.NODE, HOST)
        except NotFound:
            return False
        return (found["status"].get("allocatable") or {}).get(GPU) == "1"

    async def running() -> bool:
        return await judged.pod_phase("train") == "Running"

    async def holder() -> tuple[str, str] | None:
        found = [booking.holder for booking in (await node.bookings()).values() if booking.holder.kind == kinds.POD.kind]
        return (found[0].namespace, found[0].name) if found else None

    async def named() -> bool:
        return await holder() == (NAMESPACE, "train")

    async def released() -> bool:
        return not await node.bookings()

    async def shown() -> bool:
        try:
            return (await asyncio.to_thread(pod_resources_client.pod, node.kubelet_folder, NAMESPACE, "train")) == theirs
        except OutfitterError:
            return False

    await judged.until("offered by our plugin", offered)
    await store.create(kinds.DEVICE_CLASS, {"metadata": {"name": "vf-2"}, "spec": {"selectors": [
        {"cel": {"expression": f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "VF"'}}]}})
    await store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "silver", "namespace": NAMESPACE}, "spec": {"devices": {
        "requests": [{"name": "nic", "exactly": {"deviceClassName": "vf-2"}}]}}})
    await store.create(kinds.POD, {"metadata": {"name": "train", "namespace": NAMESPACE}, "spec": {
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "both", "image": "both", "resources": {
            "claims": [{"name": "nics", "request": "nic"}], "limits": {GPU: "1"}}}],
        "resourceClaims": [{"name": "nics", "resourceClaimName": "silver"}]}})
    await judged.until("Running", running)
    await judged.until("booked for its pod", named)
    env, nodes, cdi_ids = judged.runtime.given("both")
    assert env["PCI_RESOURCE_EXAMPLE_COM_GPU"] == GPU_ADDRESS
    assert nodes[0] == "/dev/vfio/vfio"
    assert len(nodes) == 2
    assert len(cdi_ids) == 2, "one of the plugin, one of the driver"
    claim = await store.get(kinds.RESOURCE_CLAIM, "silver", NAMESPACE)
    pod = await store.get(kinds.POD, "train", NAMESPACE)
    sources = PageSources(node, await book.read(store, HOST), {(NAMESPACE, "silver"): claim})
    theirs = await asyncio.to_thread(pod_resources_client.pod, node.kubelet_folder, NAMESPACE, "train")
    assert theirs == dataclasses.replace(compute_pod_devices(pod, sources), uid="")

    before = await node.bookings()
    judged.kubelet.stop()
    judged.kubelet.start()

    await judged.until("shown again after the kubelet's restart", shown)
    assert await node.bookings() == before
    await store.delete(kinds.POD, "train", NAMESPACE)
    await judged.until("released", released)
    await store.create(kinds.POD, {"metadata": {"name": "again", "namespace": NAMESPACE}, "spec": {
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "again", "image": "it", "resources": {"limits": {GPU: "1"}}}]}})

    async def allocated_again() -> bool:
        return await holder() == (NAMESPACE, "again")

    await judged.until("allocated by the kubelet that was restarted", allocated_again)
    await store.delete(kinds.POD, "again", NAMESPACE)
    await judged.until("released again", released)
