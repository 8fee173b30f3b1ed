"""NICs on VFs of a VM that no host can take: each is named with the holders of the VFs that it could get elsewhere."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator

import pytest

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher.simulated import Simulated
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene

# Cards of different products on one network, and VFs of another network on the second host.
HOSTS = """
hosts:
- name: node-a
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {count: 2, product: 1889}}
- name: node-b
  pci:
  - {address: 0000:3b:00.0, vendor: 15b3, product: 101d, class: 020000, driver: mlx5_core, vfs: {count: 2, product: 101e}}
  - {address: 0000:5e:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {count: 2, product: 1889}}
"""
CONFIG = config.parse("""
device_spec:
- {vendor_id: 8086, product_id: 1889, address: "0000:3b:*.*", physical_network: fast}
- {vendor_id: 15b3, product_id: 101e, physical_network: fast}
- {vendor_id: 8086, product_id: 1889, address: "0000:5e:*.*", physical_network: slow}
""")
RESOURCE = "example.com/fast"
SELECTOR = ('device.driver == "pci.outfitter.dev" && '
            'device.attributes["pci.outfitter.dev"].?physicalNetwork.orValue("") == "fast"')
NETWORKS = {"by claim": {"resourceClaim": {"claimName": "nics", "requestName": "vf"}}, "by resource": {"multus": {
    "networkName": "fast"}}}


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    clock = ManualClock()
    hosts = app.simulated_hosts(hosts_file.parse(HOSTS).hosts, None, CONFIG)
    for host in hosts:
        assert isinstance(host.hypervisor, Simulated)
        host.hypervisor._monotonic = clock.monotonic
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random(1)), config=CONFIG) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        scene = Scene(product, "here", clock)
        await scene.create(kinds.DEVICE_CLASS, "fast", {"extendedResourceName": RESOURCE, "selectors": [
            {"cel": {"expression": SELECTOR}}]})
        await scene.create(kinds.RESOURCE_CLAIM_TEMPLATE, "one-vf", {"spec": {"devices": {"requests": [
            {"name": "vf", "exactly": {"deviceClassName": "fast"}}]}}})
        await scene.create(kinds.NETWORK_ATTACHMENT, "fast", {"config": json.dumps({"name": "fast", "type": "sriov"})},
                           annotations={network_info.RESOURCE: RESOURCE})
        yield scene


async def start(scene: Scene, name: str, host: str, how: str) -> Object:
    claims = {"resourceClaims": [{"name": "nics", "resourceClaimTemplateName": "one-vf"}]} if how == "by claim" else {}
    selector = {"nodeSelector": {"kubernetes.io/hostname": host}} if name != "blue" else {}
    await scene.create(kinds.VMI, name, {
        **claims, **selector, "networks": [{"name": "default", "pod": {}}, {"name": "net", **NETWORKS[how]}],
        "domain": {"memory": {"guest": "1Gi"}, "devices": {"interfaces": [
            {"name": "default", "masquerade": {}}, {"name": "net", "sriov": {}}]}}})

    async def runs() -> Object | None:
        vmi = await scene.find(kinds.VMI, name)
        return vmi if vmi is not None and (vmi.get("status") or {}).get("phase") == "Running" else None

    return await scene.reach(runs, f"{name} runs")


@pytest.mark.parametrize("how", NETWORKS)
async def test_nic_without_a_free_vf_elsewhere_is_named_with_the_holders(scene: Scene, how: str) -> None:
    for number in range(2):
        await start(scene, f"full-{number}", "node-b", how)
    assert (await start(scene, "blue", "node-a", how))["status"]["nodeName"] == "node-a"
    await scene.create(kinds.MIGRATION, "move", {"vmiName": "blue"})

    async def waits() -> Object | None:
        devices = conditions.find(await scene.find(kinds.MIGRATION, "move") or {}, "migrationDevices") or {}
        return dict(devices) if devices.get("reason") else None

    devices = await scene.reach(waits, "it waits for a VF")
    assert (devices["status"], devices["reason"]) == ("False", "NoFreeTwin")
    assert devices["message"].startswith(
        "net: cannot be reattached now (NoFreeTwin: net needs a device of the same kind on one other host; others have 2, at "
        "most 0 free on one (")
    assert all(f"held by vmi/full-{number}" in devices["message"] for number in range(2)), devices["message"]
    await scene.delete(kinds.VMI, "full-0")

    async def migrated() -> Object | None:
        job = await scene.find(kinds.MIGRATION, "move") or {}
        return job if (job.get("status") or {}).get("phase") == "Succeeded" else None

    job = await scene.reach(migrated, "it gets the VF that became free")
    assert (conditions.find(job, "migrationDevices") or {})["message"] == "net: reattached"
