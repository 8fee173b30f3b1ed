"""A VMI whose launcher pod fails on a host before the domain runs: its devices are released and another host is tried, three
times at most, and the reasons stay visible."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.errors import HypervisorError
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher.simulated import Simulated
from outfitter.ledger import book
from outfitter.node.agent_host import AgentHost
from outfitter.node.devices import vfio
from outfitter.node.simulation.kernel import SimulatedFault
from outfitter.node.simulation.root import SimulatedRoot
from outfitter.scheduling.explain import vm as explain
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene

DISK = "0000:66:00.0"


class Refusing(Simulated):
    """Refuses so many starts."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def start(self, domain: Domain) -> None:
        if self.times:
            self.times -= 1
            raise HypervisorError(f"no memory for {domain.name}")
        await super().start(domain)


def disks(*names: str) -> list[AgentHost]:
    """Hosts with one disk each, which must be taken from its driver."""
    text = "\n".join(["hosts:", *(
        f"- {{name: {name}, pci: [{{address: '{DISK}', vendor: 144d, product: a80a, class: 010802, driver: nvme}}]}}"
        for name in names)])
    return app.simulated_hosts(hosts_file.parse(text).hosts, None, config.parse("device_spec: [{vendor_id: 144d}]"))


def kernel(host: AgentHost) -> Any:
    assert host.env is not None
    assert isinstance(host.env.root, SimulatedRoot)
    return host.env.root.kernel


@contextlib.asynccontextmanager
async def product(hosts: Sequence[AgentHost], refusing: Mapping[str, int] | None = None) -> AsyncIterator[Scene]:
    """On these hosts, of which some refuse so many starts."""
    hosts = [replace(host, hypervisor=Refusing((refusing or {}).get(host.name, 0))) for host in hosts]
    clock = ManualClock()
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random(1))) as made:
        scene = Scene(made, "here", clock)
        await made.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        await scene.create(kinds.DEVICE_CLASS, "here", {})
        await scene.template("one-vf")
        yield scene
        await scene.check_books()
        await scene.nothing_missed()


def hosts_of_launches(vmi: Object) -> list[str]:
    return [entry["nodeName"] for entry in vmi["status"].get("failedLaunches") or ()]


async def booked(scene: Scene) -> dict[str, list[str]]:
    """Host -> who holds something there."""
    pages = {host.name: await book.read(scene.store, host.name) for host in scene.product.hosts}
    return {name: [booking.holder.purpose for booking in page.bookings] for name, page in pages.items() if page.bookings}


async def why(scene: Scene, name: str) -> list[str]:
    vmi = await scene.find(kinds.VMI, name)
    assert vmi is not None
    return explain.instance(replace(await scene.cluster_objects(), now=scene.product.context.clock.now()), vmi).text(long=True)


async def test_a_start_that_fails_goes_to_another_host() -> None:
    async with product(disks("elm", "oak"), {"elm": 9}) as scene:
        await scene.machine("blue")
        vmi = await scene.running("blue")
        assert (vmi["status"]["nodeName"], hosts_of_launches(vmi)) == ("oak", ["elm"])
        (launch,) = vmi["status"]["failedLaunches"]
        assert (launch["reason"], launch["message"]) == ("FailedStart", "no memory for here_blue")
        assert await booked(scene) == {"oak": ["vmi/blue"]}
        assert await scene.events("FailedStart") == ["no memory for here_blue"]
        assert any("launch on elm failed" in line and "no memory" in line for line in await why(scene, "blue"))
        assert [vfio.driver(kernel(host), DISK) for host in scene.product.hosts] == ["nvme", "vfio-pci"]


async def test_a_start_that_fails_on_every_host_fails_the_vmi() -> None:
    async with product(disks("elm", "oak"), {"elm": 9, "oak": 9}) as scene:
        await scene.machine("blue")
        vmi = await scene.phase("blue", "Failed")
        assert hosts_of_launches(vmi) == ["elm", "oak"]
        ready = await scene.condition("blue", "Ready")
        assert ready is not None
        assert ready["message"] == "elm: no memory for here_blue; oak: no memory for here_blue"
        await scene.settle()
        assert await booked(scene) == {}
        assert [words for words in await scene.events("NoValidHost") if "no other host can take it" in words]
        said = await why(scene, "blue")
        assert [host for host in ("elm", "oak") if any(f"launch on {host} failed" in line for line in said)] == ["elm", "oak"]


async def test_three_launches_are_the_most() -> None:
    names = ("ash", "elm", "oak", "yew")
    async with product(disks(*names), dict.fromkeys(names, 9)) as scene:
        await scene.machine("blue")
        vmi = await scene.phase("blue", "Failed")
        assert hosts_of_launches(vmi) == ["ash", "elm", "oak"]
        await scene.settle()
        assert await booked(scene) == {}
        assert [words for words in await scene.events("NoValidHost") if words.startswith("3 launches failed: ash: ")]


async def test_a_host_that_was_demanded_is_not_left() -> None:
    async with product(disks("elm", "oak"), {"elm": 1}) as scene:
        await scene.machine("blue", nodeSelector={"kubernetes.io/hostname": "elm"})
        vmi = await scene.phase("blue", "Failed")
        assert hosts_of_launches(vmi) == ["elm"]
        await scene.settle()
        assert await booked(scene) == {}


async def test_a_prepare_that_keeps_failing_goes_to_another_host() -> None:
    async with product(disks("elm", "oak")) as scene:
        assert scene.clock is not None
        kernel(scene.product.hosts[0]).faults = [SimulatedFault("/driver_override", errno.EBUSY, -1)]
        await scene.machine("blue")
        await scene.settle()
        scene.clock.advance(50)
        await scene.settle()
        assert await booked(scene) == {"elm": ["vmi/blue"]}, "a device that is busy for a while is waited for"
        scene.clock.advance(10)
        vmi = await scene.running("blue")
        assert (vmi["status"]["nodeName"], hosts_of_launches(vmi)) == ("oak", ["elm"])
        assert vmi["status"]["failedLaunches"][0]["reason"] == "FailedPrepareDevices"
        assert await booked(scene) == {"oak": ["vmi/blue"]}
        assert vfio.driver(kernel(scene.product.hosts[0]), DISK) == "nvme"


async def test_after_a_failed_prepare_the_only_host_is_tried_again() -> None:
    async with product(disks("elm")) as scene:
        assert scene.clock is not None
        kernel(scene.product.hosts[0]).faults = [SimulatedFault("/driver_override", errno.EBUSY, -1)]
        await scene.machine("blue")
        await scene.settle()
        scene.clock.advance(60)
        await scene.waits("blue", "PodScheduled", "elm: launch on elm failed", "Device or resource busy")
        assert any("launch on elm failed" in line for line in await why(scene, "blue"))
        assert await booked(scene) == {}
        kernel(scene.product.hosts[0]).faults = []
        scene.clock.advance(60)
        assert hosts_of_launches(await scene.running("blue")) == ["elm"]


async def test_a_device_that_was_allocated_twice_is_not_waited_for_for_ever() -> None:
    async with product(disks("elm", "oak")) as scene:
        assert scene.clock is not None
        await scene.machine("blue", nodeSelector={"kubernetes.io/hostname": "elm"})
        await scene.running("blue")
        claim = await scene.claim("twice")
        (of_blue,) = [one for one in await scene.all(kinds.RESOURCE_CLAIM) if one["metadata"]["name"] != "twice"]
        status = {"allocation": of_blue["status"]["allocation"]}
        await scene.store.replace(kinds.RESOURCE_CLAIM, {**claim, "status": status}, subresource="status")
        await scene.machine("green", claim="twice")
        await scene.settle()
        scene.clock.advance(61)
        vmi = await scene.running("green")
        assert (vmi["status"]["nodeName"], hosts_of_launches(vmi)) == ("oak", ["elm"])
        assert "held by vmi/blue" in vmi["status"]["failedLaunches"][0]["message"]
        assert await booked(scene) == {"elm": ["vmi/blue"], "oak": ["vmi/green"]}


@pytest.mark.parametrize("name", ["an own claim", "a claim by name", "an extended resource"])
async def test_however_the_device_was_requested(name: str) -> None:
    async with product(disks("elm", "oak"), {"elm": 1}) as scene:
        device: Object = {"name": "disk", "claimName": "network", "requestName": "nic"}
        spec: Object = {"resourceClaims": [{"name": "network", "resourceClaimName": "mine"}]}
        own: Object = {}
        if name == "a claim by name":
            await scene.claim("mine")
        elif name == "an own claim":
            spec, own = {}, {"resourceClaimTemplates": [{"name": "network", "spec": {"spec": scene.claim_spec()}}]}
        else:
            device, spec = {"name": "disk", "deviceName": "example.com/disk"}, {}
            await scene.create(kinds.DEVICE_CLASS, "disks", {"extendedResourceName": "example.com/disk"})
        await scene.create(kinds.VM, "blue", {"runStrategy": "Always", **own, "template": {"spec": {
            **spec, "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [device]}}}}})
        vmi = await scene.running("blue")
        # A claim that belongs to the VM stays where it was allocated: the VM is started there again.
        assert vmi["status"]["nodeName"] == ("elm" if name == "an own claim" else "oak")
