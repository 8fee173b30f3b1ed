"""VMs with flavors that are created at the same time: no device and no dedicated CPU has two owners, and as many run as can."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.ledger_page import page
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.ledger import book
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene

CONFIG = config.parse("""
device_spec: [{vendor_id: 10de}]
report_in_placement: true
pci_in_placement: true
alias: ['{"name": "gpu", "vendor_id": "10de", "product_id": "2235"}']
""")
GPU, PINNED = {"pci_passthrough:alias": "gpu:1"}, {"hw:cpu_policy": "dedicated"}


@contextlib.asynccontextmanager
async def product(*, cpus: int = 64, seed: int = 1, **gpus: int) -> AsyncIterator[Scene]:
    """On hosts with so many GPUs each, and so many CPUs."""
    text = "hosts:\n"
    for name, count in gpus.items():
        cards = [f"{{address: '0000:{bus:02x}:00.0', vendor: 10de, product: 2235, class: 030200}}"
                 for bus in range(0x17, 0x17 + count)]
        text += f"- {{name: {name}, numa: [{{id: 0, cpus: 0-{cpus - 1}, memory: 64Gi}}], pci: [{', '.join(cards)}]}}\n"
    hosts, clock = app.simulated_hosts(hosts_file.parse(text).hosts, None, CONFIG), ManualClock()
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random(seed)), config=CONFIG) as made:
        await made.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        yield Scene(made, "here", clock)


async def create(scene: Scene, count: int, extra_specs: dict[str, str], vcpus: int = 1) -> None:
    await scene.create(kinds.FLAVOR, "f", {"vcpus": vcpus, "memory": "512Mi", "disk": "1Gi", "extraSpecs": extra_specs})
    await asyncio.gather(*(scene.create(kinds.VMI, f"m{number}", {"flavor": {"name": "f"}, "domain": {}})
                           for number in range(count)))
    await scene.settle()


async def running(scene: Scene) -> list[Object]:
    return [vmi for vmi in await scene.all(kinds.VMI) if vmi["status"]["phase"] == "Running"]


@pytest.mark.parametrize("seed", range(3))
async def test_more_want_a_device_than_there_are(seed: int) -> None:
    async with product(oak=3, elm=2, seed=seed) as scene:
        await create(scene, 9, GPU)
        won = await running(scene)
        assert len(won) == 5
        held = [booking.device for booking in await scene.bookings() if booking.counted]
        assert len(held) == len(set(held)) == 5
        assert Counter(vmi["status"]["nodeName"] for vmi in won) == {"oak": 3, "elm": 2}


@pytest.mark.parametrize(("cpus", "vcpus", "wanted", "most"), [(4, 3, 4, 1), (7, 2, 5, 3)])
async def test_every_dedicated_cpu_has_one_owner(cpus: int, vcpus: int, wanted: int, most: int) -> None:
    async with product(oak=1, cpus=cpus) as scene:
        await create(scene, wanted, PINNED, vcpus)
        assert len(await running(scene)) == most
        held = [cpu for booking in (await book.read(scene.store, "oak")).bookings for cpu in booking.cpus]
        assert len(held) == len(set(held)) == most * vcpus


async def test_what_a_vm_takes_is_booked_with_its_request() -> None:
    async with product(oak=2, cpus=4) as scene:
        await create(scene, 1, {"pci_passthrough:alias": "gpu:2", **PINNED}, 3)
        bookings = (await book.read(scene.store, "oak")).bookings
        assert {(one.device.device, one.request, one.state) for one in bookings if one.counted} == {
            ("pci-0000-17-00-0", "gpu", "prepared"), ("pci-0000-18-00-0", "gpu", "prepared")}
        (share,) = [one.amount for one in bookings if not one.counted]
        assert share["resources"] == {"PCPU": 3, "MEMORY_MB": 512, "DISK_GB": 1}
        assert share["cells"] == {"0": 3}
        assert len(share["cpus"]["0"]) == 3


async def test_a_page_without_room_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST", 1)
    async with product(elm=2) as scene:
        await create(scene, 2, GPU)
        (waiting,) = [vmi for vmi in await scene.all(kinds.VMI) if vmi["status"]["phase"] != "Running"]
        await scene.waits(waiting["metadata"]["name"], "PodScheduled", "takes at most 1")
        assert len(await scene.bookings()) == 1
