"""Hosts whose devices and CPUs lie on NUMA cells, the aliases of those devices, and VMs with flavors on them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.errors import AlreadyExists
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene

HOSTS = """
hosts:
- name: elm
  numa:
  - {id: 0, cpus: 0-3, memory: 32Gi, socket: 0}
  - {id: 1, cpus: 4-7, memory: 32Gi, socket: 1}
  pci:
  - {address: 0000:17:00.0, vendor: 10de, product: 2235, class: 030000, numa: 0}
  - {address: 0000:ca:00.0, vendor: 10de, product: 2235, class: 030000, numa: 1}
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 0, vfs: {count: 2, product: 1889}}
  - {address: 0000:d8:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 1, vfs: {count: 2, product: 1889}}
- name: oak
  numa: [{id: 0, cpus: 0-3, memory: 32Gi}]
  pci:
  - {address: 0000:17:00.0, vendor: 10de, product: 2235, class: 030000, numa: 0}
"""
CONFIG = """
report_in_placement: true
pci_in_placement: true
device_spec:
- {vendor_id: 10de, product_id: 2235, resource_class: gpu, traits: [ampere]}
- {vendor_id: 8086, product_id: 1889, resource_class: slice}
alias:
- {name: gpu, resource_class: gpu, traits: "ampere,!slow"}
- {name: near gpu, resource_class: gpu, numa_policy: required}
- {name: nic, resource_class: slice, device_type: type-VF}
"""


@contextlib.asynccontextmanager
async def scene(conf: str = CONFIG, hosts: str = HOSTS, data: Path | None = None) -> AsyncIterator[Scene]:
    clock, settings = ManualClock(), config.parse(conf)
    played = app.simulated_hosts(hosts_file.parse(hosts).hosts, data, config=settings)
    async with app.embedded(
        hosts=played, clock=clock, names=IdGenerator(random.Random(1)), config=settings, data=data
    ) as product:
        with contextlib.suppress(AlreadyExists):
            await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        yield Scene(product, "here", clock)


async def flavor(scene: Scene, name: str, alias: str = "", **spec: Any) -> Object:
    extra = {"pci_passthrough:alias": alias} if alias else {}
    return await scene.create(kinds.FLAVOR, name, {"vcpus": 2, "memory": "2Gi", "disk": "10Gi", **spec,
                                                   "extraSpecs": {**extra, **spec.get("extraSpecs", {})}})


async def machine(scene: Scene, name: str, flavor: str, domain: Object | None = None, **spec: Any) -> Object:
    return await scene.create(kinds.VMI, name, {"flavor": {"name": flavor}, "domain": domain or {}, **spec})
