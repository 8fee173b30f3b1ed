"""Devices of other DRA drivers and of device plugins, as docs/drivers.md describes them for their authors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outfitter.api import device, kinds, rejection_conditions
from outfitter.api.kinds import Object
from outfitter.api.launcher.launcher_environment import NETWORK, NETWORK_RESOURCE
from outfitter.api.rejection import RejectionCode
from outfitter.launcher import environment
from tests.controllers import scenario as scenes
from tests.controllers.scenario import Scene

DRIVER = "gpu.example.com"
PAGE = (Path(__file__).parents[2] / "docs" / "drivers.md").read_text()


def _rows(heading: str) -> list[str]:
    """The first column of the table with this first heading."""
    table = PAGE.partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    return [row.split("|")[1].strip() for row in table.splitlines()[2:]]


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_lists_every_attribute_by_which_a_device_is_found_in_their_order() -> None:
    addresses, others = PAGE.partition("These are read where they exist")[0::2]
    listed = [name for row in re.findall(r"^\| (`.*?) \|", addresses, re.MULTILINE) for name in _names(row)]
    assert tuple(listed) == (*device.MDEV_NAMES, *device.ADDRESS_NAMES)
    more = [name for row in re.findall(r"^\| (`.*?) \|", others.partition("\n\n## ")[0], re.MULTILINE) for name in _names(row)]
    assert more == ["members", "members2", device.NUMA_NODE, *device.MDEV_PRODUCT_NAMES, *device.PRODUCT_NAMES]


def test_the_page_lists_every_variable_of_device_plugins() -> None:
    listed = [name.removesuffix("_<X>") for cell in _rows("variable") for name in _names(cell)]
    assert listed == [*environment.PREFIXES.values(), NETWORK]
    assert f"{NETWORK_RESOURCE}_<network>" in PAGE


async def _published(scene: Scene, attributes: dict[str, Object]) -> None:
    """A slice of another driver on the scene's host, with one device for each name, and a class for its devices."""
    await scene.create(kinds.RESOURCE_SLICE, "theirs", {
        "driver": DRIVER, "nodeName": scene.host.name, "pool": {"name": "theirs", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": name, "attributes": {"which": {"string": name}, **found}} for name, found in attributes.items()]})
    await scene.create(kinds.DEVICE_CLASS, "theirs", {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]})


async def _vm_with(scene: Scene, name: str) -> None:
    """A VMI that asks for the other driver's device of the same name."""
    selector = {"cel": {"expression": f'device.attributes["{DRIVER}"].which == "{name}"'}}
    await scene.template(name, "gpu", deviceClassName="theirs", selectors=[selector])
    await scene.machine(name, scenes.device("g", request="gpu"), template=name)


SPELLINGS = {f"d{number}": name for number, name in enumerate(
    spelling for name in (*device.MDEV_NAMES, *device.ADDRESS_NAMES)
    for spelling in ([name] if "/" in name else [name, f"{DRIVER}/{name}"]))}


def _place(name: str) -> str:
    number = int(name[1:])
    return f"c0ffee00-0000-4000-8000-{number:012x}" if "UUID" in SPELLINGS[name] else f"0000:{number + 0x40:02x}:00.0"


async def test_a_vm_gets_a_device_of_another_driver_by_every_attribute_of_the_page() -> None:
    async with scenes.embedded(vfs=1) as scene:
        await _published(scene, {name: {spelling: {"string": _place(name)}} for name, spelling in SPELLINGS.items()})
        for name in SPELLINGS:
            await _vm_with(scene, name)
        for name, spelling in SPELLINGS.items():
            vmi = await scene.running(name)
            [entry] = vmi["status"]["deviceStatus"]["hostDeviceStatuses"]
            field = "mdevUUID" if "UUID" in spelling else "pciAddress"
            assert entry["deviceResourceClaimStatus"]["attributes"] == {field: _place(name)}, spelling
        assert {domain.name.rpartition("_")[2]: list(domain.devices) for domain in await scene.domains()} == {
            name: [_place(name)] for name in SPELLINGS}


WITHOUT: dict[str, Object] = {
    "nothing": {},
    "the PCIe root is not an address": {"resource.kubernetes.io/pcieRoot": {"string": "pci0000:40"}},
    "an address that is not text": {"resource.kubernetes.io/pciBusID": {"int": 64}},
    "an empty address": {"resource.kubernetes.io/pciBusID": {"string": ""}},
    "of another driver's domain": {"nic.example.com/pciAddress": {"string": "0000:40:00.0"}},
}


@pytest.mark.parametrize("name", WITHOUT)
async def test_a_device_without_such_an_attribute_keeps_its_vm_waiting_with_the_reason(name: str) -> None:
    async with scenes.embedded(vfs=1) as scene:
        await _published(scene, {"d0": WITHOUT[name]})
        await _vm_with(scene, "d0")
        await scene.waits("d0", "DevicesReady", f"device d0 of {DRIVER} has neither a PCI address nor a mediated device's UUID")
        assert await scene.domains() == []


async def test_a_mediated_device_counts_before_its_parents_address_and_all_functions_of_a_card_are_passed() -> None:
    async with scenes.embedded(vfs=1) as scene:
        uuid, card = "c0ffee00-0000-4000-8000-000000000001", "0000:40:00.0"
        await _published(scene, {
            "d0": {"mdevUUID": {"string": uuid}, "pciAddress": {"string": "0000:41:00.0"}, "mdevType": {"string": "A40-4Q"}},
            "d1": {"pcieAddress": {"string": card}, "members": {"string": f"{card},0000:40:00.1"}, "model": {"string": "A40"}}})
        for name in ("d0", "d1"):
            await _vm_with(scene, name)
        [first] = (await scene.running("d0"))["status"]["deviceStatus"]["hostDeviceStatuses"]
        [second] = (await scene.running("d1"))["status"]["deviceStatus"]["hostDeviceStatuses"]
        assert first["deviceResourceClaimStatus"]["product"] == "A40-4Q"
        assert second["deviceResourceClaimStatus"]["product"] == "A40"
        domains = {domain.name.rpartition("_")[2]: list(domain.devices) for domain in await scene.domains()}
        assert domains == {"d0": [uuid], "d1": [card, "0000:40:00.1"]}


async def test_a_resource_that_only_a_device_plugin_offers_fails_with_the_variables_that_are_missing() -> None:
    """Where no plugin is served: a host without --kubelet-dir."""
    async with scenes.embedded(vfs=1) as scene:
        offered = {"example.com/gpu": "1"}
        await scene.store.patch(
            kinds.NODE, scene.host.name, {"status": {"capacity": offered, "allocatable": offered}}, subresource="status")
        gpu = {"name": "g", "deviceName": "example.com/gpu"}
        await scene.create(kinds.VMI, "blue", {"domain": {"devices": {"gpus": [gpu]}}})
        blue = await scene.phase("blue", "Failed")
        assert RejectionCode.PLUGIN_ANSWER_INVALID in rejection_conditions.of(blue)
        ready = await scene.condition("blue", "Ready")
        assert ready is not None
        for variable in ("PCI_RESOURCE_EXAMPLE_COM_GPU", "MDEV_PCI_RESOURCE_EXAMPLE_COM_GPU"):
            assert variable in ready["message"]
