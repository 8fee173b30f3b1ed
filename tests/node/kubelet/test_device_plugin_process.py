"""`outfit node --device-plugin` as a process beside a kubelet, with the rights of an installation: its plugin registers, lists
and allocates, is killed, registers again and knows what it has allocated, finds a restarted kubelet, and is gone after SIGTERM.
The kubelet is played by servers and a client of the published protobuf files; `make judges` has the same with a real one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest

from outfitter.api.ledger_page.page import Page
from tests import control_planes
from tests.cluster_roles import ClusterRoles, RoleRun
from tests.node.kubelet import driver_host, kubelet_client
from tests.node.kubelet.claim_kubelet import VFS, HostFolders
from tests.node.kubelet.kubelet_client import KubeletClient

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare, for a host with a /sys of its own")]
T = TypeVar("T")
NODE, VF = "worker", "example.com/vf"
ENDPOINT, SERVICE = "outfitter-example-com-vf.sock", "v1beta1.DevicePlugin"
PATIENCE = 120.0  # seconds for anything
PERMITTED = {"pciHostDevices": [{"pciVendorSelector": "8086:1889", "resourceName": VF}]}


class PlayedKubelet:
    """Its sockets for device plugins and for readers of its pods."""

    def __init__(self, folder: Path, client: KubeletClient) -> None:
        self.folder, self._client = folder, client
        self.registered: list[tuple[str, str, str]] = []  # version, resource and socket of each Register call
        self.users: dict[str, str] = {}  # device id -> name of its pod
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        for service, methods in (("v1beta1.Registration", {"Register": self._register}),
                                 ("v1.PodResourcesLister", {"List": self._list})):
            handlers: dict[str, Any] = {}
            for name, method in methods.items():
                request, answer = self._client.messages(service, name)
                handlers[name] = grpc.unary_unary_rpc_method_handler(
                    method(answer), request_deserializer=request.FromString,
                    response_serializer=lambda message: message.SerializeToString())
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
        for name in ("device-plugins", "pod-resources"):
            shutil.rmtree(self.folder / name, ignore_errors=True)  # as a kubelet does when it starts
            (self.folder / name).mkdir()
            self._server.add_insecure_port(f"unix:{self.folder / name / 'kubelet.sock'}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    def _register(self, answer: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            self.registered.append((request.version, request.resource_name, request.endpoint))
            return answer()

        return call

    def _list(self, answer: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            return answer(pod_resources=[{"name": pod, "namespace": "default", "containers": [{"name": "c", "devices": [
                {"resource_name": VF, "device_ids": [device]}]}]} for device, pod in self.users.items()])

        return call

    # -- what it calls

    async def call(self, method: str, **fields: Any) -> Any:
        return await self._client.call(self.folder / "device-plugins" / ENDPOINT, SERVICE, method, fields)

    async def devices(self) -> dict[str, str]:
        """Id -> health, as the plugin lists them now."""
        async with self._client.stream(self.folder / "device-plugins" / ENDPOINT, SERVICE, "ListAndWatch") as messages:
            return {device.ID: device.health for device in (await anext(messages)).devices}

    async def allocate(self, device: str) -> Any:
        [answer] = (await self.call("Allocate", container_requests=[{"devices_ids": [device]}])).container_responses
        return answer


class PluginNode:
    def __init__(self, roles: ClusterRoles, folder: Path) -> None:
        client = KubeletClient(kubelet_client.published_definitions() or kubelet_client.our_definitions())
        self.roles, self.folder, self._access = roles, folder, roles.agent_kubeconfig(NODE)
        self.host, self.kubelet = HostFolders(folder / "host"), PlayedKubelet(folder, client)

    async def start(self) -> RoleRun:
        run = self.roles.start("node", "--node-name", NODE, "--device-plugin", "--kubelet-dir", str(self.folder),
                               kubeconfig=self._access, before=self.host.enter)
        await asyncio.to_thread(run.ready)
        return run

    def bookings(self) -> dict[str, tuple[str, str, str]]:
        """Device -> kind and name of its holder, and the state."""
        page = json.loads(self.roles.cluster.request("GET", f"/apis/outfitter.dev/v1alpha1/ledgerpages/{NODE}"))
        return {booking.device.device: (booking.holder.kind, booking.holder.name, booking.state)
                for booking in Page(page).bookings}

    async def until(self, what: str, check: Callable[[], Awaitable[T]]) -> T:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if found := await check():
                    return found
            except grpc.aio.AioRpcError:
                pass  # it is not served at the moment
            assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}\n{self.roles.logs()}"
            await asyncio.sleep(0.05)

    async def registered(self, times: int) -> None:
        async def check() -> bool:
            return len(self.kubelet.registered) >= times

        await self.until(f"registered {times} times", check)
        assert set(self.kubelet.registered) == {("v1beta1", VF, ENDPOINT)}

    async def healthy(self, *devices: str) -> None:
        """Until just these can be allocated."""
        async def check() -> bool:
            found = await self.kubelet.devices()
            return len(found) == len(VFS) and {name for name, health in found.items() if health == "Healthy"} == set(devices)

        await self.until(f"{devices} are healthy", check)

    async def held(self, expected: dict[str, tuple[str, str, str]]) -> None:
        async def check() -> bool:
            return self.bookings() == expected

        await self.until(f"the page has {expected}", check)


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRoles]:
    folder = tmp_path_factory.mktemp("plugin-process")
    with control_planes.started(folder / "cluster", learn=()) as cluster:
        found = ClusterRoles(cluster, folder / "roles")
        found.install()
        try:
            yield found
        finally:
            found.stop()


@pytest.fixture
async def node(roles: ClusterRoles) -> AsyncIterator[PluginNode]:
    roles.create("/api/v1/nodes", {"metadata": {"name": NODE}})
    roles.create("/apis/kubevirt.io/v1/namespaces/default/kubevirts", {
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"},
        "spec": {"configuration": {"permittedHostDevices": PERMITTED}}})
    with driver_host.short_folder() as folder:
        made = PluginNode(roles, folder)
        await made.kubelet.start()
        try:
            yield made
        finally:
            await made.kubelet.stop()


async def test_the_device_plugin_of_a_node_agent_that_is_killed_and_stopped(node: PluginNode) -> None:
    kubelet, agent = node.kubelet, await node.start()
    await node.registered(1)
    assert (await kubelet.call("GetDevicePluginOptions")).get_preferred_allocation_available
    first, second = sorted(await node.until("the devices are listed", kubelet.devices))
    await node.healthy(first, second)
    [preferred] = (await kubelet.call("GetPreferredAllocation", container_requests=[
        {"available_deviceIDs": [first, second], "allocation_size": 1}])).container_responses
    assert set(preferred.deviceIDs) < {first, second}

    answer = await kubelet.allocate(first)
    assert answer.envs["PCI_RESOURCE_EXAMPLE_COM_VF"] == VFS[0]
    assert "/dev/vfio/vfio" in {device.container_path for device in answer.devices}
    assert answer.cdi_devices
    node.roles.create("/api/v1/namespaces/default/pods", {"metadata": {"name": "web"}, "spec": {
        "nodeName": NODE, "containers": [{"name": "c", "image": "i"}]}})
    kubelet.users[first] = "web"
    await node.held({first: ("Pod", "web", "prepared")})

    agent.kill()
    with pytest.raises(grpc.aio.AioRpcError):
        await kubelet.devices()
    agent = await node.start()
    await node.registered(2)
    await node.healthy(first, second)  # what a pod has is not unhealthy
    assert node.bookings() == {first: ("Pod", "web", "prepared")}, "what was allocated stays so"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await kubelet.allocate("gold")
    assert "DeviceMissing" in (refused.value.details() or "")

    await kubelet.stop()
    await kubelet.start()
    await node.registered(3)
    await kubelet.allocate(second)
    kubelet.users = {second: "web"}  # its pod has another one now
    await node.held({second: ("Pod", "web", "prepared")})
    kubelet.users = {}
    node.roles.cluster.request("DELETE", "/api/v1/namespaces/default/pods/web?gracePeriodSeconds=0")
    await node.held({})

    assert await asyncio.to_thread(agent.stop) == 0
    assert not (node.folder / "device-plugins" / ENDPOINT).exists()
    assert node.roles.forbidden() == []
