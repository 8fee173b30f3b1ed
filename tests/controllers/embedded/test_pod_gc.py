"""Pods whose node does not exist any more end, and their VMs with them; those of a node that is not ready stay."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.controllers.embedded.pod_gc import WHILE
from outfitter.errors import Forbidden
from outfitter.inventory.simulation import hosts_file
from outfitter.ledger import book
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene, device

HOSTS = """
hosts:
- name: {name}
  count: {count}
  numa: [{{id: 0, cpus: 0-15, memory: 64Gi}}]
  pci:
  - {{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 0,
     vfs: {{count: 1, product: 1889}}}}
"""


@contextlib.asynccontextmanager
async def run(data: Path, clock: ManualClock, count: int, seed: int) -> AsyncIterator[Scene]:
    """One run of outfitter with so many hosts, on the data of those before."""
    hosts = app.simulated_hosts(hosts_file.parse(HOSTS.format(name="node", count=count), "test").hosts, data)
    async with app.embedded(data=data, hosts=hosts, clock=clock, names=IdGenerator(random.Random(seed)),
                            synchronous="OFF") as product:
        yield Scene(product, "default", clock)


async def two_machines(scene: Scene) -> str:
    """Two that are started again whenever they end, each on a host of its own; the one that is on node-1."""
    await scene.classes()
    await scene.template()
    for name in ("blue", "green"):
        await scene.create(kinds.VM, name, {"runStrategy": "Always", "template": {"spec": {
            "resourceClaims": [{"name": "network", "resourceClaimTemplateName": "one-vf"}],
            "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [
                {"name": "nic0", "claimName": "network", "requestName": "nic"}]}}}}})
    found = [await scene.running("blue"), await scene.running("green")]
    [there] = [one["metadata"]["name"] for one in found if one["status"]["nodeName"] == "node-1"]
    return str(there)


async def wait(scene: Scene, seconds: float) -> None:
    assert scene.clock is not None
    for _ in range(int(seconds)):
        await scene.settle()
        scene.clock.advance(1)
    await scene.settle()


async def uid(scene: Scene, name: str) -> str:
    return str((await scene.find(kinds.VMI, name) or {"metadata": {"uid": ""}})["metadata"]["uid"])


async def test_a_node_that_is_not_ready_keeps_its_pods(tmp_path: Path) -> None:
    clock = ManualClock()
    async with run(tmp_path, clock, 2, 1) as scene:
        there = await two_machines(scene)
        first = await uid(scene, there)
    async with run(tmp_path, clock, 1, 2) as scene:
        await wait(scene, 3 * WHILE)
        assert await uid(scene, there) == first
        assert (await scene.pod(there))["status"]["phase"] == "Running"


async def test_pods_of_a_deleted_node_end_and_a_returning_host_releases_devices(tmp_path: Path) -> None:
    clock = ManualClock()
    async with run(tmp_path, clock, 2, 1) as scene:
        there = await two_machines(scene)
        first = await uid(scene, there)
    async with run(tmp_path, clock, 1, 2) as scene:
        await scene.store.delete(kinds.NODE, "node-1")
        await wait(scene, WHILE - 5)
        assert (await scene.pod(there))["status"]["phase"] == "Running", "its host may come back"

        async def again() -> bool:
            return await uid(scene, there) not in ("", first)

        await scene.reach(again, "it is started anew")
        [ended] = await scene.events("NodeGone")
        assert ended == "node node-1 does not exist any more"
        await scene.waits(there, "PodScheduled", "node-0")
        page = await book.read(scene.store, "node-1")
        assert [one.state for one in page.bookings] == ["prepared"], "the host has not let go"
    async with run(tmp_path, clock, 2, 3) as scene:
        fresh = await scene.running(there)
        assert fresh["status"]["nodeName"] == "node-1"
        assert sorted(one.name for one in await scene.domains()) == ["default_blue", "default_green"]
        await scene.check_books()


async def test_deleted_vmi_goes_with_its_node_and_its_claim_with_the_page(tmp_path: Path) -> None:
    clock = ManualClock()
    async with run(tmp_path, clock, 2, 1) as scene:
        there = await two_machines(scene)
    async with run(tmp_path, clock, 1, 2) as scene:
        await scene.delete(kinds.VM, there)
        await wait(scene, 3 * WHILE)
        assert await uid(scene, there), "it cannot be known whether it is off"
        with pytest.raises(Forbidden, match=f"for vmi/{there} .* is prepared.* kubectl delete node node-1"):
            await scene.store.delete(kinds.LEDGER_PAGE, "node-1")
        await scene.store.delete(kinds.NODE, "node-1")
        with pytest.raises(Forbidden, match=f"for vmi/{there} .* pods of node-1 have not ended"):
            await scene.store.delete(kinds.LEDGER_PAGE, "node-1")
        await wait(scene, WHILE + 5)
        await scene.store.delete(kinds.LEDGER_PAGE, "node-1")
        await wait(scene, 5)
        assert [len(await scene.all(kind)) for kind in (kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM)] == [1, 1, 1]
    async with run(tmp_path, clock, 2, 3) as scene:  # the host was not gone after all, and still runs it
        await wait(scene, 5)
        assert len(await scene.domains()) == 1


async def own_claims(scene: Scene) -> str:
    """Two VMs with a claim each that stays with them, each on a host of its own; the one that is on node-1."""
    await scene.classes()
    for name in ("blue", "green"):
        await scene.create(kinds.VM, name, {"runStrategy": "Always", "resourceClaimTemplates": [
            {"name": "network", "spec": {"spec": scene.claim_spec()}}], "template": {"spec": {
                "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [device()]}}}}})
    found = [await scene.running("blue"), await scene.running("green")]
    [there] = [one["metadata"]["name"] for one in found if one["status"]["nodeName"] == "node-1"]
    return str(there)


@pytest.mark.parametrize("stopped", [True, False])
async def test_what_vms_keep_on_a_host_that_is_gone_for_good(tmp_path: Path, stopped: bool) -> None:
    """A stopped VM keeps its device until its claim is deleted; with the page of one that ran, its claim loses the device."""
    clock = ManualClock()
    async with run(tmp_path, clock, 2, 1) as scene:
        there = await own_claims(scene)
        if stopped:
            await scene.store.patch(kinds.VM, there, {"spec": {"runStrategy": "Halted"}}, "default")
            await wait(scene, 5)
    async with run(tmp_path, clock, 1, 2) as scene:
        await scene.store.delete(kinds.NODE, "node-1")
        await wait(scene, WHILE + 5)
        if stopped:
            with pytest.raises(Forbidden, match=f"vmi/{there} .* is kept.*resourceclaim {there}-network") as why:
                await scene.store.delete(kinds.LEDGER_PAGE, "node-1")
            await scene.delete(kinds.RESOURCE_CLAIM, str(why.value).split("resourceclaim ")[1].split()[0])
            await scene.settle()
        await scene.store.delete(kinds.LEDGER_PAGE, "node-1")
        await wait(scene, 5)
        [kept] = [claim for claim in await scene.all(kinds.RESOURCE_CLAIM) if (claim.get("status") or {}).get("allocation")]
        assert not kept["metadata"]["name"].startswith(there), "the other one runs on, with its own"


async def test_running_host_recreates_its_node_and_keeps_its_vms(tmp_path: Path) -> None:
    clock = ManualClock()
    async with run(tmp_path, clock, 2, 1) as scene:
        there = await two_machines(scene)
        first = await uid(scene, there)
        await scene.store.delete(kinds.NODE, "node-1")
        await wait(scene, 3 * WHILE)
        assert await uid(scene, there) == first
        assert _phase(await scene.find(kinds.VMI, there)) == "Running"


async def test_a_plain_pod_on_a_node_that_never_was_goes(tmp_path: Path) -> None:
    clock = ManualClock()
    async with run(tmp_path, clock, 1, 1) as scene:
        await scene.create(kinds.POD, "lost", {"nodeName": "nowhere", "containers": [{"name": "c", "image": "i"}]},
                           finalizers=["example.com/look"])
        await wait(scene, WHILE + 5)
        left = await scene.find(kinds.POD, "lost")
        assert left is not None
        assert (_phase(left), bool(left["metadata"]["deletionTimestamp"])) == ("Failed", True)
        await scene.nothing_missed()
        await scene.store.patch(kinds.POD, "lost", {"metadata": {"finalizers": None}}, "default")
        assert await scene.find(kinds.POD, "lost") is None


def _phase(obj: Object | None) -> str:
    return str(((obj or {}).get("status") or {}).get("phase"))
