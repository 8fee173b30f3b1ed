"""The domain as the whole product comes to it: published devices, claims, status, and the VM that runs."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from outfitter import app
from outfitter.api import kinds
from outfitter.api.hypervisor import Domain
from outfitter.inventory.simulation import hosts_file
from outfitter.store.clock import ManualClock

HOSTS = Path(__file__).parent.parent.parent / "examples" / "hosts" / "two-sockets.yaml"
GPU = 'device.attributes["pci.outfitter.dev"].class == "030000"'


async def test_whole_card_of_a_vmi_with_guest_numa_nodes() -> None:
    hosts = app.simulated_hosts(hosts_file.from_argument(str(HOSTS)).hosts)
    async with app.embedded(hosts=hosts, clock=ManualClock()) as product:
        await product.store.create(kinds.DEVICE_CLASS, {"metadata": {"name": "gpu"}, "spec": {
            "selectors": [{"cel": {"expression": GPU}}]}})
        await product.store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "mine", "namespace": "default"}, "spec": {
            "devices": {"requests": [{"name": "card", "exactly": {"deviceClassName": "gpu"}}]}}})
        await product.store.create(kinds.VMI, {"metadata": {"name": "blue", "namespace": "default"}, "spec": {
            "resourceClaims": [{"name": "c", "resourceClaimName": "mine"}],
            "domain": {"cpu": {"cores": 2, "numa": {"guestMappingPassthrough": {}}}, "memory": {"guest": "1Gi"},
                       "devices": {"gpus": [{"name": "g", "claimName": "c", "requestName": "card", "tag": "train"}]}}}})
        await product.settle()
        blue = await product.store.get(kinds.VMI, "blue", "default")
        assert blue["status"]["phase"] == "Running", blue["status"]
        [domain] = [one for host in hosts for one in (await host.hypervisor.domains()).values()]
        assert domain.devices == ("0000:65:00.0", "0000:65:00.1")
        _near_node_0(domain)


def _near_node_0(domain: Domain) -> None:
    root = ET.fromstring(domain.xml)
    assert [each.get("function") for each in root.iterfind("devices/hostdev/address")] == ["0x0", "0x1"]
    assert root.findtext("devices/controller/target/node") == "0"
    assert '"address": "0000:e3:00.0"' in domain.guest_metadata
    assert domain.drive is not None
    assert domain.drive.files == (("openstack/latest/meta_data.json", domain.guest_metadata.encode()),)
