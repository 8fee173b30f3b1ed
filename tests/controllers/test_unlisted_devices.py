"""Devices that are held and no longer listed in device_spec, beside devices of the same provider that are: the product on a
disk, started with one configuration and then with another."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

from outfitter import app
from outfitter.api import kinds, providers
from outfitter.api.rejection import RejectionCode
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.ledger import book, placement_view
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene

HOST = """
hosts:
- name: elm
  pci: [{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {count: 3, product: 1889}}]
"""
FIRST, THIRD = "[{address: 0000:3b:01.0}, {address: 0000:3b:01.1}]", "[{address: 0000:3b:01.2}]"  # VFs of one PF
SETTINGS = """
report_in_placement: true
pci_in_placement: true
alias: [{{name: vf, vendor_id: 8086, product_id: 1889}}]
device_spec: {spec}
"""


@contextlib.asynccontextmanager
async def started(data: Path, spec: str) -> AsyncIterator[Scene]:
    """The product on what an earlier one left."""
    settings, clock = config.parse(SETTINGS.format(spec=spec)), ManualClock()
    hosts = app.simulated_hosts(hosts_file.parse(HOST).hosts, data, settings)
    names = IdGenerator(random.Random(spec))
    async with app.embedded(data=data, hosts=hosts, clock=clock, names=names, config=settings, synchronous="OFF") as product:
        yield Scene(product, "default", clock)


async def counted(scene: Scene) -> tuple[int, int]:
    """Total and used of the only provider."""
    tree = providers.read(await scene.store.get(kinds.PROVIDER_TREE, "elm"))
    (row,) = placement_view.rows(tree, await book.read(scene.store, "elm"))
    (class_,) = row.inventories
    return row.inventories[class_].total, row.used[class_]


async def test_a_claim_gets_no_more_of_a_provider_than_an_alias(tmp_path: Path) -> None:
    async with started(tmp_path, FIRST) as scene:
        await scene.create(kinds.DEVICE_CLASS, "default", {})
        await scene.template()
        await scene.create(kinds.FLAVOR, "one", {"vcpus": 1, "memory": "1Gi",
                                                 "extraSpecs": {"pci_passthrough:alias": "vf:1"}})
        for name in ("red", "green"):
            await scene.machine(name)
            await scene.running(name)
        assert await counted(scene) == (2, 2)
    async with started(tmp_path, THIRD) as scene:
        assert await counted(scene) == (2, 2)
        await scene.machine("blue")
        await scene.create(kinds.VMI, "gold", {"flavor": {"name": "one"}, "domain": {}})
        await scene.rejected("blue", RejectionCode.COUNTER_EXHAUSTED)
        await scene.rejected("gold", RejectionCode.TOO_FEW_FREE, match=3, free=0)
        assert await counted(scene) == (2, 2)
        await scene.delete(kinds.VMI, "red")
        await scene.running("blue")
        assert await counted(scene) == (2, 2)
        await scene.delete(kinds.VMI, "green")

        async def adjusted() -> bool:
            return await counted(scene) == (1, 1)

        await scene.reach(adjusted, "the total is the number of listed devices again")
        await scene.rejected("gold", RejectionCode.TOO_FEW_FREE, match=1, free=0)
        await scene.delete(kinds.VMI, "blue")
        await scene.running("gold")
        await scene.nothing_missed()
