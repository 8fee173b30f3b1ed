"""Live migration of VMs in pods of kubelets, on a real control plane with kube-scheduler: `outfit controller` and the agents of
two nodes with the rights of an installation, and launchers with simulated VMs, which agents connect with each other."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.errors import NotFound
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.cluster_roles import ClusterRoles, RoleRun
from tests.launcher.pod.launcher_process import PATIENCE, LauncherProcess
from tests.node.fake_kubelet import FakeKubelet

pytestmark = pytest.mark.cluster
T = TypeVar("T")
NODES, PLACE = ("worker-a", "worker-b"), "default"
KILLS = 12  # in one scenario


class Site:
    """A control plane with an installation and two nodes with a kubelet each."""

    def __init__(self, roles: ClusterRoles, store: Kube, folder: Path) -> None:
        self.roles, self.store, self._folder = roles, store, folder
        self._access: dict[str, Path] = {}
        self.kubelets: dict[str, FakeKubelet] = {}
        self.agents: dict[str, RoleRun] = {}

    async def start(self) -> None:
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110"}
        for node in NODES:
            meta = {"name": node, "labels": {"kubernetes.io/hostname": node}}
            await self.store.create(kinds.NODE, {"metadata": meta, "status": {
                "capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}})
            self._access[node] = await asyncio.to_thread(self.roles.agent_kubeconfig, node)
            (self._folder / node).mkdir()
            self.kubelets[node] = FakeKubelet(self.store, node, self._folder / node)
        controller = self.roles.start("controller", "--launcher-hypervisor", "simulated")
        await asyncio.to_thread(controller.ready)
        for node in NODES:
            await self.start_agent(node)

    async def start_agent(self, node: str) -> None:
        self.agents[node] = self.roles.start(
            "node", "--node-name", node, "--kubelet-dir", str(self._folder / node / "kubelet"), "--migration-address",
            "127.0.0.1:0", name=node, kubeconfig=self._access[node])
        await asyncio.to_thread(self.agents[node].ready)

    async def vmi(self) -> Object | None:
        with contextlib.suppress(NotFound):
            return await self.store.get(kinds.VMI, "blue", PLACE)
        return None

    async def running(self) -> Object:
        await self.store.create(kinds.VMI, {"metadata": {"name": "blue", "namespace": PLACE}, "spec": {
            "terminationGracePeriodSeconds": 5, "domain": {"memory": {"guest": "64Mi"}, "devices": {}}}})

        async def look() -> Object | None:
            found = await self.vmi()
            return found if found and (found.get("status") or {}).get("phase") == "Running" else None

        return await self.reach(look, "blue runs")

    async def slow_down(self) -> None:
        """A copy takes a quarter of a minute from now on."""
        spec = {"configuration": {"migrations": {"bandwidthPerMigration": "4Mi"}}}
        await self.store.create(kinds.KUBEVIRT, {"metadata": {"name": "kubevirt", "namespace": PLACE}, "spec": spec})

    async def begun(self, name: str) -> None:
        async def look() -> bool:
            job, vmi = await self.store.get(kinds.MIGRATION, name, PLACE), await self.vmi()
            record = (vmi or {}).get("status", {}).get("migrationState") or {}
            copies = [one for kubelet in self.kubelets.values() for launcher in kubelet.launchers.values()
                      for one in (launcher.pod.state / "domains").glob("*.migrating")]
            return record.get("migrationUid") == job["metadata"]["uid"] and "startTimestamp" in record and bool(copies)

        await self.reach(look, f"migration {name} copies")

    async def stays(self, name: str, source: str) -> str:
        """A migration has failed: the VM runs on as it did, and nothing is left of the target. Its code."""
        job = await self.finished(name)
        assert job["status"]["phase"] == "Failed", job["status"]
        vmi = await self.vmi()
        assert vmi is not None
        assert (vmi["status"]["phase"], vmi["status"]["nodeName"]) == ("Running", source)
        [other] = set(NODES) - {source}

        async def released() -> bool:
            return [node for node, phase in (await self.pods()).items() if phase == "Running"] == [source]

        await self.reach(released, "the target's pod is gone")
        assert self.domains() == {source: 1, other: 0}
        assert self.launcher(source).poll() is None
        return str(job["status"]["migrationState"]["failureCode"])

    async def migrate(self, name: str) -> None:
        await self.store.create(kinds.MIGRATION, {"metadata": {"name": name, "namespace": PLACE}, "spec": {"vmiName": "blue"}})

    async def finished(self, name: str) -> Object:
        async def look() -> Object | None:
            job = await self.store.get(kinds.MIGRATION, name, PLACE)
            return job if (job.get("status") or {}).get("phase") in ("Succeeded", "Failed") else None

        return await self.reach(look, f"migration {name} has ended")

    async def pods(self) -> dict[str, str]:
        """Phase of each pod, by node."""
        return {pod["spec"].get("nodeName", ""): pod["status"].get("phase", "")
                for pod in (await self.store.list(kinds.POD, PLACE)).items}

    def launcher(self, node: str) -> LauncherProcess:
        [found] = [launcher for launcher in self.kubelets[node].launchers.values() if launcher.poll() is None]
        return found

    def domains(self) -> dict[str, int]:
        """Simulated VMs that exist, by node."""
        return {node: sum(1 for launcher in kubelet.launchers.values() for _ in (launcher.pod.state / "domains").glob("*.xml"))
                for node, kubelet in self.kubelets.items()}

    async def at_rest(self, uid: str) -> bool:
        """The VM runs on the host of its VMI, in one pod and in no other."""
        vmi = await self.vmi()
        assert vmi is not None
        assert (vmi["metadata"]["uid"], vmi["status"]["phase"]) == (uid, "Running"), vmi["status"]
        node = vmi["status"]["nodeName"]
        running = [pod["spec"].get("nodeName") for pod in (await self.store.list(kinds.POD, PLACE)).items
                   if pod["status"].get("phase") not in ("Succeeded", "Failed")]
        return running == [node] and self.domains() == {each: int(each == node) for each in NODES}

    async def reach(self, check: Callable[[], Awaitable[T | None]], what: str) -> T:
        end = asyncio.get_running_loop().time() + PATIENCE
        while not (found := await check()):
            if asyncio.get_running_loop().time() > end:
                raise AssertionError(f"not reached: {what}: {await self.vmi()}\n{await self.pods()}")
            await asyncio.sleep(0.05)
        return found


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    with kubernetes.Cluster(tmp_path_factory.mktemp("plane"), scheduler=True, controllers=True, learn=()) as running:
        yield running


@pytest.fixture
async def site(plane: kubernetes.Cluster) -> AsyncIterator[Site]:
    with tempfile.TemporaryDirectory(prefix="of-") as short:
        roles = ClusterRoles(plane, Path(short) / "roles")
        await asyncio.to_thread(roles.install)
        store = Kube(plane.access(), clock=SystemClock())
        found = Site(roles, store, Path(short))
        kubelets: list[asyncio.Task[None]] = []
        try:
            await found.start()
            kubelets += [asyncio.ensure_future(kubelet.run()) for kubelet in found.kubelets.values()]
            yield found
        finally:
            for kubelet in kubelets:
                kubelet.cancel()
            await asyncio.gather(*kubelets, return_exceptions=True)
            for each in found.kubelets.values():
                print(*(launcher.pod.log.read_text() for launcher in each.launchers.values()), sep="\n")
                each.kill_all()
            await asyncio.to_thread(roles.stop)
            print(roles.logs())
            await store.close()


async def test_a_vm_migrates_between_pods_of_two_nodes(site: Site) -> None:
    """There and back."""
    vmi = await site.running()
    assert conditions.is_true(vmi, "LiveMigratable")
    source = vmi["status"]["nodeName"]
    for name in ("there", "back"):
        [target] = set(NODES) - {source}
        await site.migrate(name)
        job = await site.finished(name)
        assert job["status"]["phase"] == "Succeeded", job["status"]
        moved = await site.vmi()
        assert moved is not None
        assert (moved["status"]["nodeName"], moved["status"]["phase"]) == (target, "Running")
        assert [*moved["status"]["activePods"].values()] == [target]
        assert site.domains() == {source: 0, target: 1}
        assert site.launcher(target).poll() is None

        async def source_ended(node: str = source) -> bool:
            return not [one for one in site.kubelets[node].launchers.values() if one.poll() is None]

        await site.reach(source_ended, "the source's launcher has ended")
        source = target

    async def succeeded() -> bool:
        found = [(pod["spec"]["nodeName"], pod["status"]["phase"]) for pod in (await site.store.list(kinds.POD, PLACE)).items]
        return sorted(phase for _, phase in found) == ["Running", "Succeeded", "Succeeded"]

    await site.reach(succeeded, "the pods that it left have succeeded")
    await site.store.delete(kinds.VMI, "blue", PLACE)

    async def gone() -> bool:
        return not (await site.store.list(kinds.POD, PLACE)).items and await site.vmi() is None

    await site.reach(gone, "all is gone")
    assert site.roles.forbidden() == []


async def test_what_fails_on_the_way_leaves_the_vm_where_it_is(site: Site) -> None:
    """It is cancelled, the target's launcher ends, and each agent is killed while the memory is copied."""
    await site.slow_down()
    source = (await site.running())["status"]["nodeName"]
    [target] = set(NODES) - {source}

    await site.migrate("cancelled")
    await site.begun("cancelled")
    await site.store.delete(kinds.MIGRATION, "cancelled", PLACE)

    async def cancelled() -> bool:
        vmi, pods = await site.vmi(), await site.pods()
        record = (vmi or {}).get("status", {}).get("migrationState") or {}
        return record.get("failureCode") == "Cancelled" and target not in pods

    await site.reach(cancelled, "the migration is cancelled")
    assert site.domains() == {source: 1, target: 0}

    await site.migrate("without-target")
    await site.begun("without-target")
    site.launcher(target).kill()
    assert await site.stays("without-target", source) in ("CopyFailed", "Cancelled", "TargetPodFailed")

    await site.migrate("target-agent")
    await site.begun("target-agent")
    site.agents[target].kill()
    assert await site.stays("target-agent", source) == "CopyFailed"
    await site.start_agent(target)

    await site.migrate("source-agent")
    await site.begun("source-agent")
    site.agents[source].kill()
    await site.start_agent(source)
    job = await site.finished("source-agent")  # the copy begins again
    assert job["status"]["phase"] == "Succeeded", job["status"]
    assert site.domains() == {source: 0, target: 1}
    assert site.roles.forbidden() == []


@pytest.mark.long(seeds=range(100, 104))
async def test_kills_of_agents_at_seeded_moments(site: Site, seed: int) -> None:
    """The VM is in one pod afterwards, as the same VMI, and every migration has ended."""
    dice, vmi = random.Random(seed), await site.running()
    for number in range(KILLS):
        vmi = await site.vmi() or {}
        source = vmi["status"]["nodeName"]
        [target] = set(NODES) - {source}
        await site.migrate(f"move-{number}")
        await asyncio.sleep(dice.choice([0.3, 1.0, 3.0]) * dice.random())
        victims = dice.choice([[source], [target], [source, target]])
        for node in victims:
            site.agents[node].kill()
        await asyncio.sleep(dice.choice([0.0, 0.5]))
        for node in victims:
            await site.start_agent(node)
        await site.finished(f"move-{number}")
        await site.reach(functools.partial(site.at_rest, vmi["metadata"]["uid"]), f"rest after kill {number} of {victims}")
    assert site.roles.forbidden() == []
