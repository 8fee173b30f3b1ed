"""VMs whose claims have alternatives (`firstAvailable`): the better one, on whichever host it is free."""

from __future__ import annotations

from outfitter.api import kinds
from outfitter.api.device import DRIVER
from outfitter.api.kinds import Object
from outfitter.scheduling.placement import Placement
from tests.controllers.numa_hosts import flavor, scene
from tests.controllers.scenario import Scene, addresses, device

HOSTS = """
hosts:
- name: ash
  pci: [{address: 0000:17:00.0, vendor: 10de, product: "1111", class: 030000},
        {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000}]
- name: oak
  numa: [{id: 0, cpus: 0-3, memory: 32Gi}, {id: 1, cpus: 4-7, memory: 32Gi}]
  pci: [{address: 0000:65:00.0, vendor: 10de, product: "2222", class: 030000, numa: 0},
        {address: 0000:66:00.0, vendor: 10de, product: "1111", class: 030000, numa: 0},
        {address: 0000:ca:00.0, vendor: 8086, product: 1592, class: 020000, numa: 1},
        {address: 0000:cb:00.0, vendor: 8086, product: 1592, class: 020000, numa: 1}]
"""
CONF = """
device_spec: [{vendor_id: 10de}, {vendor_id: 8086}]
alias: [{name: nic, vendor_id: 8086, product_id: 1592}]
"""


def alternative(name: str, product: str) -> Object:
    return {"name": name, "deviceClassName": "any", "selectors": [{"cel": {
        "expression": f'device.attributes["{DRIVER}"].?product.orValue("") == "{product}"'}}]}


async def prepare(here: Scene) -> None:
    """A claim for a large GPU, else a small one; and one with a NIC besides, which is near the small one only."""
    await here.create(kinds.DEVICE_CLASS, "any", {})
    gpu = {"name": "gpu", "firstAvailable": [alternative("large", "2222"), alternative("small", "1111")]}
    nic = {"name": "nic", "exactly": {key: value for key, value in alternative("", "1592").items() if key != "name"}}
    await here.create(kinds.RESOURCE_CLAIM_TEMPLATE, "either", {"spec": {"devices": {"requests": [gpu]}}})
    await here.create(kinds.RESOURCE_CLAIM_TEMPLATE, "with-nic", {"spec": {"devices": {"requests": [gpu, nic]}}})


async def test_the_first_choice_on_another_host_goes_before_the_second() -> None:
    async with scene(CONF, HOSTS) as here:
        await prepare(here)
        await here.machine("a", device("gpu0", "gpu"), template="either")
        assert addresses(await here.running("a")) == ["0000:65:00.0"]
        await here.machine("b", device("gpu0", "gpu"), template="either")
        assert addresses(await here.running("b")) in (["0000:17:00.0"], ["0000:66:00.0"]), "the first choice is held"
        await here.delete(kinds.VMI, "a")
        await here.gone("a")
        await here.machine("c", device("gpu0", "gpu"), device("nic0", "nic"), template="with-nic")
        assert addresses(await here.running("c"))[0] == "0000:65:00.0", "though its NIC is on another NUMA node there"
        await here.check_books()


async def test_the_first_choice_also_beside_a_flavor() -> None:
    """Of hosts that serve the flavor the one with the fewest free devices is tried first, and it has the second choice only."""
    async with scene(CONF, HOSTS) as here:
        await prepare(here)
        await flavor(here, "one-nic", "nic:1")
        await here.machine("a", device("gpu0", "gpu"), template="either", flavor={"name": "one-nic"})
        assert set(addresses(await here.running("a"))) == {"0000:65:00.0", "0000:ca:00.0"}


async def test_a_plan_names_the_choice() -> None:
    async with scene(CONF, HOSTS) as here:
        await prepare(here)
        await here.create(kinds.RESOURCE_CLAIM, "mine", {"devices": {"requests": [
            {"name": "gpu", "firstAvailable": [alternative("huge", "3333"), alternative("large", "2222")]}]}})
        await here.settle()
        verdict = (await here.cluster_objects()).choose({"metadata": {"name": "p", "namespace": "here", "uid": "p"}, "spec": {
            "containers": [], "resourceClaims": [{"name": "mine", "resourceClaimName": "mine"}]}})
        assert isinstance(verdict, Placement)
        assert verdict.why.startswith("request gpu gets large, choice 2 of 2; pack: 1 device on ")
