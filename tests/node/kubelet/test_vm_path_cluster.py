"""The whole path of a VM with a claimed device on a real control plane: VM, VMI and launcher pod by `outfit controller`, the
allocation by kube-scheduler, the claim from a template by kube-controller-manager, prepare by `outfit node` when the kubelet
calls its DRA driver, the domain by `outfit launcher` in the pod, and all of it back. Each process has the rights of an
installation, and is killed. The kubelet is played by a client of the published protobuf files, the host's devices are files
(`claim_kubelet`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.errors import NotFound
from outfitter.ledger import book
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.cluster_roles import ClusterRoles, RoleRun
from tests.launcher.pod.launcher_process import PATIENCE, LauncherProcess
from tests.node.kubelet import driver_host, kubelet_client
from tests.node.kubelet.claim_kubelet import VFS, ClaimKubelet, HostFolders
from tests.node.kubelet.kubelet_client import KubeletClient

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare, for a host with a /sys of its own")]
T = TypeVar("T")
NODE, PLACE, CLASS = "worker", "default", "pci.outfitter.dev"
REQUESTS = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": CLASS}}]}}
DEVICES = {"hostDevices": [{"name": "nic0", "claimName": "network", "requestName": "nic"}]}
DOMAIN = {"memory": {"guest": "32Mi"}, "devices": DEVICES}
OWNED = {"spec": {"runStrategy": "Halted", "resourceClaimTemplates": [{"name": "network", "spec": {"spec": REQUESTS}}],
                  "template": {"spec": {"domain": DOMAIN}}}}
TEMPLATED = {"spec": {"runStrategy": "Halted", "template": {"spec": {
    "domain": DOMAIN, "resourceClaims": [{"name": "network", "resourceClaimTemplateName": "one-vf"}]}}}}


class Site:
    """A control plane with an installation, and one node with a kubelet. `controller` and `agent` run, or are None."""

    def __init__(self, roles: ClusterRoles, store: Kube, folder: Path, access: Path) -> None:
        client = KubeletClient(kubelet_client.published_definitions() or kubelet_client.our_definitions())
        self.roles, self.store, self._folder, self._access = roles, store, folder, access
        self.host = HostFolders(folder / "host")
        self.kubelet = ClaimKubelet(store, NODE, folder, self.host, client)
        self.controller: RoleRun | None = None
        self.agent: RoleRun | None = None

    async def start(self, *, controller: bool = True, agent: bool = True) -> None:
        if controller:
            self.controller = self.roles.start("controller", "--launcher-hypervisor", "simulated")
            await asyncio.to_thread(self.controller.ready)
        if agent:
            self.agent = self.roles.start("node", "--node-name", NODE, "--kubelet-dir", str(self._folder / "kubelet"),
                                          kubeconfig=self._access, before=self.host.enter)
            await asyncio.to_thread(self.agent.ready)

    def kill(self, *, controller: bool = True, agent: bool = True) -> None:
        for run in ([self.controller] if controller else []) + ([self.agent] if agent else []):
            assert run is not None
            run.kill()

    # -- what users do

    async def create(self, name: str, vm: Object) -> None:
        await self.store.create(kinds.VM, {"metadata": {"name": name, "namespace": PLACE}, **vm})

    async def set_strategy(self, strategy: str, *names: str) -> None:
        for name in names:
            await self.store.patch(kinds.VM, name, {"spec": {"runStrategy": strategy}}, PLACE)

    # -- what there is

    async def vmi(self, name: str) -> Object | None:
        try:
            return await self.store.get(kinds.VMI, name, PLACE)
        except NotFound:
            return None

    async def running(self, name: str, other_than: str = "") -> Object:
        async def look() -> Object | None:
            vmi = await self.vmi(name)
            runs = vmi and vmi.get("status", {}).get("phase") == "Running" and vmi["metadata"]["uid"] != other_than
            return vmi if runs else None

        return await self.reach(look, f"{name} runs")

    async def stopped(self, *names: str) -> None:
        async def look() -> bool:
            pods = (await self.store.list(kinds.POD, PLACE)).items
            return not pods and not [name for name in names if await self.vmi(name)]

        await self.reach(look, f"{names} are stopped")

    async def states(self) -> dict[str, str]:
        """Of the bookings of the host, by claim."""
        return {booking.holder.name: booking.state for booking in (await book.read(self.store, NODE)).bookings}

    async def claims(self) -> dict[str, Object]:
        return {claim["metadata"]["name"]: claim for claim in (await self.store.list(kinds.RESOURCE_CLAIM, PLACE)).items}

    def launcher(self, vmi: Object) -> LauncherProcess:
        """The process that runs a VMI."""
        [pod] = vmi["status"]["activePods"]
        [launcher] = [launcher for launcher in self.kubelet.launchers.values() if launcher.pod.uid == pod]
        assert launcher.poll() is None
        return launcher

    async def check(self, name: str) -> str:
        """That status, domain, page, CDI and metadata of a running VM have the same device. Its PCI address."""
        vmi = await self.running(name)
        [[entry]] = vmi["status"]["deviceStatus"].values()
        address: str = entry["deviceResourceClaimStatus"]["attributes"]["pciAddress"]
        bus, slot, function = address[5:7], address[8:10], address[11]
        assert address in VFS
        [domain] = self.launcher(vmi).pod.state.rglob("*.xml")
        assert f'bus="0x{bus}" slot="0x{slot}" function="0x{function}"' in domain.read_text()
        claim = entry["deviceResourceClaimStatus"]["resourceClaimName"]
        assert (await self.states())[claim] == "prepared"
        uid = (await self.claims())[claim]["metadata"]["uid"]
        [cdi] = [spec for file, spec in self.host.cdi_files().items() if uid in file]
        assert [text for text in cdi["containerEdits"]["env"] if text.endswith(f"={address}")]
        [mount] = cdi["containerEdits"]["mounts"]
        [metadata] = self.host.place(mount["hostPath"]).rglob("*-metadata.json")
        assert address in metadata.read_text()
        return address

    def without_files(self) -> bool:
        """Whether neither CDI files nor metadata of prepared claims are on the host."""
        return not self.host.cdi_files() and not list(self.host.place("/run/outfitter/metadata").rglob("*.json"))

    async def reach(self, check: Callable[[], Awaitable[T | None]], what: str) -> T:
        end = asyncio.get_running_loop().time() + PATIENCE
        while not (found := await check()):
            if asyncio.get_running_loop().time() > end:
                raise AssertionError(f"not reached: {what}: the page has {await self.states()}, the driver answered "
                                     f"{self.kubelet.refused[-3:]}")
            await asyncio.sleep(0.05)
        return found


@pytest.fixture
async def site(control_plane: kubernetes.Cluster) -> AsyncIterator[Site]:
    with driver_host.short_folder() as folder:
        roles = ClusterRoles(control_plane, folder / "roles")
        await asyncio.to_thread(roles.installed)
        store = Kube(control_plane.access(), clock=SystemClock())
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110"}
        await store.create(kinds.NODE, {"metadata": {"name": NODE}, "status": {
            "capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}})
        await store.create(kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": {"name": "one-vf", "namespace": PLACE},
                                                           "spec": {"spec": REQUESTS}})
        found = Site(roles, store, folder, await asyncio.to_thread(roles.agent_kubeconfig, NODE))
        kubelet = asyncio.ensure_future(found.kubelet.run())
        try:
            yield found
        except BaseException:
            print(roles.logs())
            raise
        finally:
            kubelet.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await kubelet
            found.kubelet.kill_all()
            await asyncio.to_thread(roles.stop)
            print(roles.logs())
            await store.close()


async def test_a_vm_with_a_claimed_device_from_its_creation_to_its_end(site: Site) -> None:
    """Two VMs, started and stopped twice: one with a claim of its own, one with a claim from a template. Every process is
    killed while they run; in the second round each is also away when it is needed."""
    await site.start()
    await site.create("owned", OWNED)
    await site.create("templated", TEMPLATED)
    kept = ""
    for round_number in range(2):
        if round_number:
            site.kill(controller=False)  # the kubelet finds no driver, and tries again
        await site.set_strategy("Always", "owned", "templated")
        if round_number:
            await site.reach(_true_when(lambda: bool(site.kubelet.refused)), "the kubelet called a driver that is away")
            await site.start(controller=False)
        addresses = {name: await site.check(name) for name in ("owned", "templated")}
        assert sorted(addresses.values()) == sorted(VFS)
        assert addresses["owned"] == (kept or addresses["owned"])  # the claim that it kept has the same device
        kept = addresses["owned"]
        uids = {name: (await site.running(name))["metadata"]["uid"] for name in addresses}

        site.kill()
        await site.start()
        for name, address in addresses.items():
            assert await site.check(name) == address
            assert (await site.running(name))["metadata"]["uid"] == uids[name]

        site.launcher(await site.running("templated")).kill()  # and its VM with it: another takes its place
        await site.running("templated", other_than=uids["templated"])
        assert await site.check("templated") == addresses["templated"]
        assert await site.check("owned") == addresses["owned"]

        if round_number:
            site.kill()
        await site.set_strategy("Halted", "owned", "templated")
        if round_number:
            await site.start()
        await site.stopped("owned", "templated")
        await site.reach(_true_when_async(site.states, lambda states: list(states.values()) == ["released"]),
                         "the claim that is kept is unprepared, the other is not on the page")
        await site.reach(_true_when(site.without_files), "no file of a prepared claim is left")
        await site.reach(_true_when_async(site.claims, lambda claims: len(claims) == 1), "the other claim is deleted")
        assert list(await site.claims()) == list(await site.states())

    # A kubelet calls again when it does not know whether a call was answered.
    prepared, unprepared = ({claim for what, claim in site.kubelet.calls if what == word} for word in ("prepare", "unprepare"))
    assert prepared == unprepared
    assert len(prepared) == 5  # that of one VM, and those of another and of the one that replaces it, twice
    for name in ("owned", "templated"):
        await site.store.delete(kinds.VM, name, PLACE)
    await site.reach(_true_when_async(site.states, lambda states: not states), "the page is empty")
    await site.reach(_true_when_async(site.claims, lambda claims: not claims), "no claim is left")
    assert site.roles.forbidden() == []


def _true_when(check: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return check()

    return look


def _true_when_async(read: Callable[[], Awaitable[T]], check: Callable[[T], bool]) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return check(await read())

    return look
