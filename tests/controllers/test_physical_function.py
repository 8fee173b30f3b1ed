"""A PF whose VFs are enabled cannot be taken from its driver: it is not offered, and a VM that got it before the VFs were
enabled gives it back."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from outfitter import app
from outfitter.api import kinds
from outfitter.api.rejection import RejectionCode
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.ledger import book
from outfitter.node.agent_host import AgentHost
from outfitter.node.devices import vfio
from outfitter.scheduling.explain import vm as explain
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene, logged

PF = "0000:3b:00.0"
LISTED = "device_spec: [{product_id: 1592}]"
BOTH = "device_spec: [{vendor_id: 8086}]"


def cards(settings: str, **vfs: int) -> list[AgentHost]:
    """Hosts with a network card each, which may have VFs."""
    text = "\n".join(["hosts:", *(
        f"- {{name: {name}, pci: [{{address: '{PF}', vendor: 8086, product: 1592, class: 020000, driver: ice, "
        f"vfs: {{count: {count}, total: 8, product: 1889}}}}]}}" for name, count in vfs.items())])
    return app.simulated_hosts(hosts_file.parse(text).hosts, None, config.parse(settings))


@contextlib.asynccontextmanager
async def product(hosts: Sequence[AgentHost]) -> AsyncIterator[Scene]:
    clock = ManualClock()
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random(1))) as made:
        scene = Scene(made, "here", clock)
        await made.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        for name, kind in (("here", "PF"), ("vf", "VF")):
            await scene.create(kinds.DEVICE_CLASS, name, {"selectors": [{"cel": {
                "expression": f'device.attributes["{scene.driver}"].kind == "{kind}"'}}]})
        await scene.template()
        await scene.create(kinds.RESOURCE_CLAIM_TEMPLATE, "one-real-vf", {"spec": {"devices": {"requests": [
            {"name": "nic", "exactly": {"deviceClassName": "vf"}}]}}})
        yield scene
        await scene.check_books()


async def published(scene: Scene) -> list[str]:
    slices = (await scene.store.list(kinds.RESOURCE_SLICE)).items
    return sorted(f"{part['spec']['nodeName']}/{device['name'].removeprefix('pci-0000-3b-00-0')}"
                  for part in slices for device in part["spec"].get("devices") or ())


async def why(scene: Scene, name: str) -> str:
    vmi = await scene.find(kinds.VMI, name)
    assert vmi is not None
    cluster = replace(await scene.cluster_objects(), now=scene.product.context.clock.now())
    return "\n".join(explain.instance(cluster, vmi).text(long=True))


def enable_vfs(host: AgentHost, count: int) -> None:
    assert host.env is not None
    host.env.root.write(f"{vfio.DEVICES}/{PF}/sriov_numvfs", str(count))


async def test_a_pf_with_vfs_is_withheld_and_its_vfs_are_offered() -> None:
    async with product(cards(BOTH, elm=2)) as scene:
        assert await published(scene) == ["elm/-vf0", "elm/-vf1"]
        await scene.machine("blue")
        await scene.rejected("blue", RejectionCode.NO_MATCH)
        reason = ("has 2 virtual functions, which would go when it is taken from ice; remove them (sriov_numvfs 0), or "
                  "bind it to vfio-pci, to offer it")
        inventory = await scene.store.get(kinds.HOST_INVENTORY, "elm")
        assert [one["reason"] for one in inventory["spec"]["withheld"]] == [reason]
        assert f"offer a physical function: elm: {PF} {reason}" in await why(scene, "blue")
        await scene.machine("green", template="one-real-vf")
        await scene.running("green")


async def test_a_pf_that_got_vfs_after_it_was_booked_is_given_back() -> None:
    hosts = cards(BOTH, elm=0, oak=0)
    async with product(hosts) as scene:
        enabled: list[str] = []

        def booked(old: object, new: object) -> None:
            for host in scene.product.hosts if not enabled else ():
                page = scene.product.context.informer(kinds.LEDGER_PAGE).get(host.name)
                if page and page["spec"].get("bookings"):
                    enabled.append(host.name)
                    enable_vfs(host, 2)

        scene.product.context.informer(kinds.LEDGER_PAGE).on_change(booked)
        pods = logged(scene.product, kinds.POD, "here")
        await scene.machine("blue")
        vmi = await scene.running("blue")
        (first,) = enabled
        (other,) = {"elm", "oak"} - {first}
        assert vmi["status"]["nodeName"] == other, "at once, on the other host"
        (launch,) = vmi["status"]["failedLaunches"]
        assert (launch["nodeName"], launch["reason"]) == (first, "FailedPrepareDevices")
        assert f"{PF} has 2 VFs, which would go when it is unbound from ice" in launch["message"]
        assert pods

        async def withheld() -> bool:
            return await published(scene) == sorted([f"{first}/-vf0", f"{first}/-vf1", f"{other}/"])

        await scene.reach(withheld, "the PF is withheld and its VFs are offered")
        assert not (await book.read(scene.store, first)).bookings
        await scene.machine("green", template="one-real-vf")
        assert (await scene.running("green"))["status"]["nodeName"] == first
        await scene.nothing_missed()


async def test_a_vm_waits_with_the_reason_until_the_vfs_are_gone() -> None:
    async with product(cards(LISTED, elm=0)) as scene:
        def booked(old: object, new: object) -> None:
            page = scene.product.context.informer(kinds.LEDGER_PAGE).get("elm")
            if page and page["spec"].get("bookings") and not done:
                done.append(True)
                enable_vfs(scene.host, 3)

        done: list[bool] = []
        scene.product.context.informer(kinds.LEDGER_PAGE).on_change(booked)
        await scene.machine("blue")

        async def given_back() -> bool:
            return bool(done) and await published(scene) == [] and not await scene.bookings()

        await scene.reach(given_back, "the PF is given back and withheld")
        for _ in range(90):  # longer than the host is avoided, which does not count as another launch
            await scene.settle()
            assert scene.clock is not None
            scene.clock.advance(1)
        vmi = await scene.find(kinds.VMI, "blue")
        assert vmi is not None
        assert (vmi["status"]["phase"], len(vmi["status"]["failedLaunches"])) == ("Scheduling", 1)
        assert f"{PF} has 3 virtual functions, which would go when it is taken from ice" in await why(scene, "blue")
        enable_vfs(scene.host, 0)
        scene.product.host_audit.queue.add("elm")
        await scene.running("blue")
