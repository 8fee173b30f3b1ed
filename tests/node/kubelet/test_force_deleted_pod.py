"""The known bug of Kubernetes, with the real kube-scheduler and kube-controller-manager: a pod that is deleted by force while
its container runs. Its claim goes, its device is allocated to the next pod, and our driver refuses that one until the kubelet
has unprepared the first claim. The kubelet is played by a client of our driver's sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.errors import NotFound
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.cluster_roles import ClusterRoles
from tests.controllers.scenario import connections_closed
from tests.node.kubelet import driver_host, kubelet_client
from tests.node.kubelet.driver_host import DRIVER, HOST, DriverHost
from tests.node.kubelet.kubelet_client import KubeletClient

pytestmark = pytest.mark.cluster
NAMESPACE = "lab"
PATIENCE = 300.0
PF = "pci-0000-3b-00-0"


@pytest.fixture
async def node(control_plane: kubernetes.Cluster, tmp_path: Path) -> AsyncIterator[DriverHost]:
    await asyncio.to_thread(ClusterRoles(control_plane, tmp_path).installed)
    definitions = kubelet_client.published_definitions() or kubelet_client.our_definitions()
    store = Kube(control_plane.access(), clock=SystemClock())
    with driver_host.short_folder() as folder:
        there = DriverHost(folder, KubeletClient(definitions), store=store)
        there.registry.mkdir(parents=True)
        await store.create(kinds.NAMESPACE, {"metadata": {"name": NAMESPACE}})
        await store.create(kinds.DEVICE_CLASS, {"metadata": {"name": "vf"}, "spec": {"selectors": [
            {"cel": {"expression": f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "VF"'}}]}})
        spec = {"devices": {"requests": [{"name": "nic", "exactly": {
            "deviceClassName": "vf", "allocationMode": "ExactCount", "count": 2}}]}}  # all that the host has
        await store.create(kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": {"name": "both", "namespace": NAMESPACE},
                                                           "spec": {"spec": spec}})
        await there.start()
        try:
            yield there
        finally:
            await there.stop()
            await store.close()
    await connections_closed()


async def eventually(look: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while not (found := await look()):  # noqa: ASYNC110  # what others do cannot be waited for
            await asyncio.sleep(0.05)
    return found


async def pod_with_claim(node: DriverHost, name: str) -> None:
    await node.store.create(kinds.POD, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {
        "containers": [{"name": "it", "image": "it", "resources": {"claims": [{"name": "nics"}]}}],
        "resourceClaims": [{"name": "nics", "resourceClaimTemplateName": "both"}]}})


async def scheduled(node: DriverHost, name: str) -> dict[str, str]:
    """Until kube-scheduler has bound the pod; its claim, as the kubelet names it."""

    async def look() -> Object | None:
        pod = await node.store.get(kinds.POD, name, NAMESPACE)
        return pod if pod["spec"].get("nodeName") == HOST else None

    pod = await eventually(look)
    [status] = pod["status"]["resourceClaimStatuses"]
    claim = await node.store.get(kinds.RESOURCE_CLAIM, status["resourceClaimName"], NAMESPACE)
    return {"namespace": NAMESPACE, "name": claim["metadata"]["name"], "uid": claim["metadata"]["uid"]}


async def test_the_device_of_a_force_deleted_pod_is_refused_to_the_next_pod(
    node: DriverHost, control_plane: kubernetes.Cluster,
) -> None:
    info = await node.registered()
    await pod_with_claim(node, "blue")
    first = await scheduled(node, "blue")
    assert (await node.client.prepare(info, first))[first["uid"]].error == ""
    await pod_with_claim(node, "green")
    control_plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/blue", {
        "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
    with pytest.raises(NotFound):
        await node.store.get(kinds.POD, "blue", NAMESPACE)
    second = await scheduled(node, "green")  # Kubernetes believes that the devices are free

    refused = (await node.client.prepare(info, second))[second["uid"]].error
    assert refused.startswith(f"Held: {HOST}/{PF}-vf")
    assert f"pod/blue (claim {first['name']}) in {NAMESPACE}" in refused

    async def tainted() -> bool:
        return await node.taints() == {f"{PF}-vf{number}": ["outfitter.dev/contested"] for number in range(2)}

    await eventually(tainted)
    events = json.loads(control_plane.kubectl("get", "events", "-n", NAMESPACE, "-o", "json").stdout)["items"]
    about = {event["involvedObject"]["kind"] for event in events if event["reason"] == "FailedPrepareDevices"}
    assert about == {"ResourceClaim", "Pod"}

    await node.kill()  # what was refused stays refused
    await node.start()
    info = await node.registered()
    assert (await node.client.prepare(info, second))[second["uid"]].error.startswith("Held: ")

    assert (await node.client.unprepare(info, first))[first["uid"]].error == ""
    assert (await node.client.prepare(info, second))[second["uid"]].error == ""

    async def free() -> bool:
        return not await node.taints()

    await eventually(free)
    assert {claim: booking.state for (claim, _), booking in (await node.bookings()).items()} == {second["name"]: "prepared"}
