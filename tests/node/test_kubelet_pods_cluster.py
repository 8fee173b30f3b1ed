"""VMs in pods of a cluster: real API server, kube-scheduler and kube-controller-manager, `outfit controller` and `outfit node`
with the rights of their service accounts, and a kubelet that runs `outfit launcher` as the container of a pod."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vmi_actions
from outfitter.store.clock import SystemClock, rfc3339
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.cluster_roles import ClusterRoles
from tests.launcher.pod.launcher_process import PATIENCE
from tests.node.fake_kubelet import FakeKubelet

pytestmark = pytest.mark.cluster
NODE = "worker"


@pytest.fixture
def roles(control_plane: kubernetes.Cluster) -> Iterator[ClusterRoles]:
    with tempfile.TemporaryDirectory(prefix="of-") as short:
        installed = ClusterRoles(control_plane, Path(short) / "roles").installed()
        yield installed
        installed.stop()


@pytest.fixture
async def store(control_plane: kubernetes.Cluster) -> AsyncIterator[Kube]:
    connected = Kube(control_plane.access(), clock=SystemClock())
    yield connected
    await connected.close()


async def reached(store: Kube, phase: str, paused: bool | None = None) -> Object:
    async with asyncio.timeout(PATIENCE):
        while True:
            vmi = await store.get(kinds.VMI, "blue", "default")
            if vmi.get("status", {}).get("phase") == phase and paused in (None, conditions.is_true(vmi, vmi_actions.PAUSED)):
                return vmi
            await asyncio.sleep(0.05)


async def pod_unpaused(store: Kube, wanted: bool) -> None:
    """Its readiness gate, which the VMI controller writes."""
    async with asyncio.timeout(PATIENCE):
        while True:
            [pod] = (await store.list(kinds.POD, "default")).items
            if conditions.find(pod, vmi_actions.UNPAUSED) is not None and conditions.is_true(
                    pod, vmi_actions.UNPAUSED) is wanted:
                return
            await asyncio.sleep(0.05)


async def create(store: Kube) -> None:
    await store.create(kinds.VMI, {"metadata": {"name": "blue", "namespace": "default"}, "spec": {
        "domain": {"memory": {"guest": "32Mi"}, "devices": {}}}})


async def test_a_vm_in_a_pod_of_a_kubelet(roles: ClusterRoles, store: Kube) -> None:
    """It runs, is paused, outlives a kill of the node agent, and ends with its guest; then it is deleted."""
    folder = roles.folder.parent
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    await store.create(kinds.NODE, {"metadata": {"name": NODE}, "status": {
        "capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}})
    access = await asyncio.to_thread(roles.agent_kubeconfig, NODE)
    kubelet = FakeKubelet(store, NODE, folder)
    words = ("node", "--node-name", NODE, "--kubelet-dir", str(folder / "kubelet"))
    running = asyncio.ensure_future(kubelet.run())
    try:
        controller = roles.start("controller", "--launcher-hypervisor", "simulated")
        node = roles.start(*words, kubeconfig=access)
        await asyncio.to_thread(controller.ready)
        await asyncio.to_thread(node.ready)
        await create(store)
        vmi = await reached(store, "Running")
        assert vmi["status"]["nodeName"] == NODE
        await pod_unpaused(store, True)
        node.kill()
        vmi = await store.get(kinds.VMI, "blue", "default")
        requests = vmi_actions.with_action_request("pause", vmi, rfc3339(SystemClock().now()))
        await store.patch(kinds.VMI, "blue", {"status": {vmi_actions.FIELD: requests}}, "default", subresource="status")
        await asyncio.to_thread(roles.start(*words, kubeconfig=access).ready)
        await reached(store, "Running", paused=True)
        await pod_unpaused(store, False)
        [launcher] = kubelet.launchers.values()
        launcher.signal(signal.SIGUSR1)
        ended = await reached(store, "Succeeded")
        assert (conditions.find(ended, "Ready") or {})["reason"] == "Stopped"
        await store.delete(kinds.VMI, "blue", "default")
        async with asyncio.timeout(PATIENCE):
            while (await store.list(kinds.VMI)).items or (await store.list(kinds.POD, "default")).items:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert roles.forbidden() == []
    except BaseException:
        print(roles.logs(), *(launcher.pod.log.read_text() for launcher in kubelet.launchers.values()), sep="\n")
        raise
    finally:
        running.cancel()
        kubelet.kill_all()
