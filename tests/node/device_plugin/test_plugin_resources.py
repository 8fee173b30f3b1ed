"""Which devices are of which resource by permittedHostDevices, and which of them are preferred together."""

from __future__ import annotations

from typing import Any

import pytest

from outfitter.node.device_plugin.plugin_resources import by_resource, preferred, read_selectors
from outfitter.node.devices.passthrough_device import PassthroughDevice

DEVICES = {
    "gpu-0": PassthroughDevice("gpu-0", "0000:65:00.0", pci_id="10de:20b5"),
    "gpu-1": PassthroughDevice("gpu-1", "0000:66:00.0", pci_id="10de:20b5"),
    "nic-0": PassthroughDevice("nic-0", "0000:3b:01.0", pci_id="8086:1889"),
    "mdev-0": PassthroughDevice("mdev-0", None, uuid="u", mdev_types=frozenset({"nvidia-232", "GRID T4-1Q"})),
}
PCI = {"pciVendorSelector": "10DE:20B5", "resourceName": "a.io/gpu"}


def kubevirt(**permitted: Any) -> dict[str, Any]:
    return {"spec": {"configuration": {"permittedHostDevices": permitted}}}


@pytest.mark.parametrize(("permitted", "found"), [
    pytest.param({"pciHostDevices": [PCI]}, {"a.io/gpu": ("gpu-0", "gpu-1")}, id="by vendor and product, in any case"),
    pytest.param({"mediatedDevices": [{"mdevNameSelector": "GRID T4-1Q", "resourceName": "a.io/v"}]}, {"a.io/v": ("mdev-0",)},
                 id="by the name of the type"),
    pytest.param({"mediatedDevices": [{"mdevNameSelector": "GRID_T4-1Q", "resourceName": "a.io/v"}]}, {"a.io/v": ("mdev-0",)},
                 id="with underscores"),
    pytest.param({"mediatedDevices": [{"mdevNameSelector": "nvidia-232", "resourceName": "a.io/v"}]}, {"a.io/v": ("mdev-0",)},
                 id="by the id of the type"),
    pytest.param({"pciHostDevices": [PCI, {**PCI, "resourceName": "a.io/other"}]},
                 {"a.io/gpu": ("gpu-0", "gpu-1"), "a.io/other": ()}, id="a device is of one resource"),
    pytest.param({"pciHostDevices": [{**PCI, "externalResourceProvider": True}]}, {}, id="of a plugin of others"),
    pytest.param({}, {}, id="nothing")])
def test_devices_of_each_resource(permitted: dict[str, Any], found: dict[str, tuple[str, ...]]) -> None:
    assert by_resource(read_selectors(kubevirt(**permitted), companion=False), DEVICES) == found


def test_beside_kubevirt_only_what_its_own_plugin_leaves_is_served() -> None:
    own, other = PCI, {"pciVendorSelector": "8086:1889", "resourceName": "a.io/nic", "externalResourceProvider": True}
    assert by_resource(read_selectors(kubevirt(pciHostDevices=[own, other]), companion=True), DEVICES) == {
        "a.io/nic": ("nic-0",)}
    assert read_selectors(None, companion=True) == ()


NUMA = {"a0": 0, "a1": 1, "b1": 1, "c": None}


@pytest.mark.parametrize(("available", "must", "size", "chosen"), [
    pytest.param(["a0", "a1", "b1", "c"], [], 2, {"a1", "b1"}, id="one node for both"),
    pytest.param(["a0", "a1", "b1", "c"], ["a0"], 1, {"a0"}, id="what must be"),
    pytest.param(["a1", "b1", "c"], ["a1"], 2, {"a1", "b1"}, id="beside what must be"),
    pytest.param(["a0"], [], 2, set(), id="too few")])
def test_preferred_devices_are_on_few_numa_nodes(available: list[str], must: list[str], size: int, chosen: set[str]) -> None:
    assert set(preferred(NUMA, available, must, size)) == chosen
