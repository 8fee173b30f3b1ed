"""VMs with claimed devices in pods of kubelets migrate live, on a real control plane: kube-scheduler allocates the target's
claims, the kubelet of the target has our DRA driver prepare them, and the agents of two nodes pass the VM on from launcher to
launcher. Each process has the rights of an installation. The kubelets are played by clients of the published protobuf files,
the hosts' devices are files (`claim_kubelet`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.errors import NotFound
from outfitter.ledger import book
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.cluster_roles import ClusterRoles, RoleRun
from tests.launcher.pod.launcher_process import PATIENCE, LauncherProcess
from tests.node.kubelet import driver_host, kubelet_client
from tests.node.kubelet.claim_kubelet import HOST, ClaimKubelet, HostFolders
from tests.node.kubelet.kubelet_client import KubeletClient

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare, for a host with a /sys of its own")]
T = TypeVar("T")
PLACE, CLASS = "default", "pci.outfitter.dev"
BUSES = {"worker-a": "3b", "worker-b": "5e"}  # of the NIC of each node
CONFIG = 'device_spec: [{vendor_id: "8086", product_id: "1889", live_migratable: "yes"}]'
REQUESTS = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": CLASS}}]}}
CLAIMS = ("own", "template")
BLUE = {"spec": {
    "runStrategy": "Always", "resourceClaimTemplates": [{"name": "own", "spec": {"spec": REQUESTS}}], "template": {"spec": {
        "terminationGracePeriodSeconds": 5, "resourceClaims": [{"name": "template", "resourceClaimTemplateName": "one-vf"}],
        "domain": {"memory": {"guest": "64Mi"}, "devices": {
            "hostDevices": [{"name": name, "claimName": name, "requestName": "nic"} for name in CLAIMS]}}}}}}


class WorkerNode:
    """A node with a kubelet and an agent."""

    def __init__(self, name: str, store: Kube, roles: ClusterRoles, folder: Path) -> None:
        self.name, self._roles, self._folder = name, roles, folder
        folder.mkdir()
        (folder / "config.yaml").write_text(CONFIG)
        client = KubeletClient(kubelet_client.published_definitions() or kubelet_client.our_definitions())
        self.host = HostFolders(folder / "host", HOST.replace("0000:3b", f"0000:{BUSES[name]}"))
        self.kubelet = ClaimKubelet(store, name, folder, self.host, client)
        self._access = roles.agent_kubeconfig(name)
        self.agent: RoleRun | None = None

    def start(self) -> None:
        self.agent = self._roles.start(
            "node", "--node-name", self.name, "--kubelet-dir", str(self._folder / "kubelet"), "--migration-address",
            "127.0.0.1:0", "--config", str(self._folder / "config.yaml"), name=self.name, kubeconfig=self._access,
            before=self.host.enter)
        self.agent.ready()

    def kill(self) -> None:
        assert self.agent is not None
        self.agent.kill()

    def launchers(self) -> list[LauncherProcess]:
        return [launcher for launcher in self.kubelet.launchers.values() if launcher.poll() is None]

    def domains(self) -> list[str]:
        """XML of the VMs that its launchers run."""
        return [path.read_text() for launcher in self.kubelet.launchers.values()
                for path in (launcher.pod.state / "domains").glob("*.xml")]


class Site:
    """A control plane with an installation and two nodes."""

    def __init__(self, roles: ClusterRoles, store: Kube, nodes: dict[str, WorkerNode]) -> None:
        self.roles, self.store, self.nodes = roles, store, nodes

    async def vmi(self) -> Object:
        with contextlib.suppress(NotFound):
            return await self.store.get(kinds.VMI, "blue", PLACE)
        return {"status": {}}

    async def running(self, node: str = "", devices: int = len(CLAIMS)) -> Object:
        """The VMI, when it runs, on this node if one is given, with so many devices, and can migrate."""
        async def look() -> Object | None:
            vmi = await self.vmi()
            status = vmi.get("status") or {}
            ready = status.get("phase") == "Running" and node in ("", status["nodeName"]) and len(entries(vmi)) == devices
            return vmi if ready and conditions.is_true(vmi, "LiveMigratable") else None

        return await self.reach(look, "blue runs and can migrate")

    async def migrate(self, name: str) -> None:
        await self.store.create(kinds.MIGRATION, {"metadata": {"name": name, "namespace": PLACE}, "spec": {"vmiName": "blue"}})

    async def finished(self, name: str) -> Object:
        async def look() -> Object | None:
            job = await self.store.get(kinds.MIGRATION, name, PLACE)
            return job if (job.get("status") or {}).get("phase") in ("Succeeded", "Failed") else None

        return await self.reach(look, f"migration {name} has ended")

    async def copies(self, name: str) -> Object:
        """The record of a migration that copies the VM."""
        async def look() -> Object | None:
            job, vmi = await self.store.get(kinds.MIGRATION, name, PLACE), await self.vmi()
            record = vmi["status"].get("migrationState") or {}
            begun = record.get("migrationUid") == job["metadata"]["uid"] and "startTimestamp" in record
            copied = [path for node in self.nodes.values() for launcher in node.launchers()
                      for path in (launcher.pod.state / "domains").glob("*.migrating")]
            return dict(record) if begun and copied else None

        return await self.reach(look, f"migration {name} copies")

    async def bookings(self, node: str) -> dict[str, str]:
        """State of each booking of a node, by claim."""
        return {booking.holder.name: booking.state for booking in (await book.read(self.store, node)).bookings}

    async def settled(self, node: str, *, devices: int = len(CLAIMS)) -> None:
        """The VM runs on a node with as many devices, which its status, its domain, the page and the CDI files have, and
        nothing of it is on the other node."""
        vmi = await self.running(node, devices)
        [other] = set(self.nodes) - {node}

        async def alone() -> bool:
            claims = {claim for _, claim in entries(vmi).values()}
            return (set(await self.bookings(node)) == claims and set((await self.bookings(node)).values()) == {"prepared"}
                    and not await self.bookings(other) and not self.nodes[other].host.cdi_files()
                    and not self.nodes[other].domains() and len(self.nodes[node].host.cdi_files()) == devices)

        await self.reach(alone, f"everything of blue is on {node}")
        [xml] = self.nodes[node].domains()
        for address, _ in entries(vmi).values():
            assert address.startswith(f"0000:{BUSES[node]}:")
            assert f'bus="0x{address[5:7]}" slot="0x{address[8:10]}" function="0x{address[11]}"' in xml
        assert xml.count("<hostdev ") == devices

    async def reach(self, check: Callable[[], Awaitable[T | None]], what: str) -> T:
        end = asyncio.get_running_loop().time() + PATIENCE
        while not (found := await check()):
            if asyncio.get_running_loop().time() > end:
                pods = [(pod["metadata"]["name"], pod["status"]) for pod in (await self.store.list(kinds.POD, PLACE)).items]
                pages = {name: (await self.bookings(name), node.kubelet.refused[-2:]) for name, node in self.nodes.items()}
                raise AssertionError(f"not reached: {what}: {(await self.vmi())['status']}\n{pods}\n{pages}")
            await asyncio.sleep(0.05)
        return found


def entries(vmi: Object) -> dict[str, tuple[str, str]]:
    """Address and claim of each device in the status, by name."""
    found: list[Any] = ((vmi.get("status") or {}).get("deviceStatus") or {}).get("hostDeviceStatuses") or []
    return {entry["name"]: (claim["attributes"]["pciAddress"], claim["resourceClaimName"]) for entry in found
            if (claim := entry["deviceResourceClaimStatus"]).get("attributes")}


@pytest.fixture
async def site(control_plane: kubernetes.Cluster) -> AsyncIterator[Site]:
    with driver_host.short_folder() as folder:
        roles = ClusterRoles(control_plane, folder / "roles")
        await asyncio.to_thread(roles.installed)
        store = Kube(control_plane.access(), clock=SystemClock())
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110"}
        nodes: dict[str, WorkerNode] = {}
        for number, name in enumerate(BUSES):
            await store.create(kinds.NODE, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "status": {
                "capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}})
            nodes[name] = await asyncio.to_thread(WorkerNode, name, store, roles, folder / str(number))
        await store.create(kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": {"name": "one-vf", "namespace": PLACE},
                                                           "spec": {"spec": REQUESTS}})
        found = Site(roles, store, nodes)
        kubelets: list[asyncio.Future[None]] = []
        try:
            controller = roles.start("controller", "--launcher-hypervisor", "simulated")
            await asyncio.to_thread(controller.ready)
            for node in nodes.values():
                await asyncio.to_thread(node.start)
            kubelets += [asyncio.ensure_future(node.kubelet.run()) for node in nodes.values()]
            yield found
        finally:
            for kubelet in kubelets:
                kubelet.cancel()
            await asyncio.gather(*kubelets, return_exceptions=True)
            for node in nodes.values():
                print(*(launcher.pod.log.read_text() for launcher in node.kubelet.launchers.values()), sep="\n")
                node.kubelet.kill_all()
            await asyncio.to_thread(roles.stop)
            print(roles.logs())
            await store.close()


async def test_a_vm_takes_its_claimed_devices_from_pod_to_pod(site: Site) -> None:
    """There and back, with a claim of its own and one from a template. In between it stays: cancelled, and without a target
    or its agent."""
    await site.store.create(kinds.VM, {"metadata": {"name": "blue", "namespace": PLACE}, **BLUE})
    vmi = await site.running()
    source, uid = vmi["status"]["nodeName"], vmi["metadata"]["uid"]
    [target] = set(site.nodes) - {source}
    await site.settled(source)
    before = entries(vmi)

    await site.migrate("there")
    job = await site.finished("there")
    assert job["status"]["phase"] == "Succeeded", job["status"]
    assert (conditions.find(job, "migrationDevices") or {})["message"] == "own: travels; template: travels"
    await site.settled(target)
    vmi = await site.vmi()
    assert vmi["metadata"]["uid"] == uid
    assert set(entries(vmi)) == set(before)
    assert not set(entries(vmi).values()) & set(before.values()), "other devices and other claims"
    own = await site.store.get(kinds.RESOURCE_CLAIM, entries(vmi)["own"][1], PLACE)
    assert [owner["kind"] for owner in own["metadata"]["ownerReferences"]] == ["VirtualMachine"]
    assert {"prepare", "unprepare"} == {what for what, _ in site.nodes[source].kubelet.calls}

    slow = {"configuration": {"migrations": {"bandwidthPerMigration": "4Mi"}}}
    await site.store.create(kinds.KUBEVIRT, {"metadata": {"name": "kubevirt", "namespace": PLACE}, "spec": slow})
    held = entries(vmi)
    for name in ("cancelled", "without-launcher", "without-agent"):
        await site.migrate(name)
        record = await site.copies(name)
        there = {entry["deviceResourceClaimStatus"]["resourceClaimName"]
                 for entry in record["targetDeviceStatus"]["hostDeviceStatuses"]}
        assert set(await site.bookings(source)) == there, "the devices of the target are its own, and prepared"
        assert set((await site.bookings(source)).values()) == {"prepared"}
        if name == "cancelled":
            await site.store.delete(kinds.MIGRATION, name, PLACE)
        elif name == "without-launcher":
            [launcher] = site.nodes[source].launchers()
            launcher.kill()
        else:
            site.nodes[source].kill()
        if name != "cancelled":
            assert (await site.finished(name))["status"]["phase"] == "Failed"
        if name == "without-agent":
            await asyncio.to_thread(site.nodes[source].start)
        await site.settled(target)
        assert entries(await site.vmi()) == held

    await site.store.delete(kinds.KUBEVIRT, "kubevirt", PLACE)
    await site.migrate("back")
    assert (await site.finished("back"))["status"]["phase"] == "Succeeded"
    await site.settled(source)
    await site.store.delete(kinds.VM, "blue", PLACE)

    async def gone() -> bool:
        left = [*(await site.store.list(kinds.POD, PLACE)).items, *(await site.store.list(kinds.RESOURCE_CLAIM, PLACE)).items]
        return not left and not any([await site.bookings(node) for node in site.nodes])

    await site.reach(gone, "nothing is left")
    assert site.roles.forbidden() == []
