"""The launcher environment of devices that its pod got by the name of a resource."""

from __future__ import annotations

from typing import Any

import pytest

from outfitter.api.kinds import Object
from outfitter.api.launcher import launcher_environment

DRIVER, POOL = "pci.example.com", "node-a"


def device(name: str, **attributes: str) -> Object:
    return {"name": name, "attributes": {key: {"string": text} for key, text in attributes.items()}}


DEVICES = [device("gpu-0", pciBusID="0000:01:00.0"), device("gpu-1", pciAddress="0000:02:00.0"),
           device("card", pciBusID="0000:03:00.0", members="0000:03:00.0,0000:03:00.1"),
           device("half", mdevUUID="4b20d080", pciBusID="0000:04:00.0"), device("dark")]
SLICE = {"metadata": {"name": "s"}, "spec": {"driver": DRIVER, "nodeName": POOL, "devices": DEVICES,
                                             "pool": {"name": POOL, "generation": 1, "resourceSliceCount": 1}}}

# resource and device of each request -> variables
CASES: dict[str, tuple[list[tuple[str, str]], dict[str, str]]] = {
    "one": ([("nvidia.com/GP102GL_Tesla_P40", "gpu-0")], {"PCI_RESOURCE_NVIDIA_COM_GP102GL_TESLA_P40": "0000:01:00.0"}),
    "two of one resource": ([("a.b/gpu-x", "gpu-0"), ("a.b/gpu-x", "gpu-1")],
                            {"PCI_RESOURCE_A_B_GPU-X": "0000:01:00.0,0000:02:00.0"}),
    "a card of two functions": ([("a/card", "card")], {"PCI_RESOURCE_A_CARD": "0000:03:00.0,0000:03:00.1"}),
    "a mediated device": ([("a/half", "half")], {"MDEV_PCI_RESOURCE_A_HALF": "4b20d080"}),
    "two resources": ([("a/x", "gpu-0"), ("a/y", "half")],
                      {"PCI_RESOURCE_A_X": "0000:01:00.0", "MDEV_PCI_RESOURCE_A_Y": "4b20d080"}),
    "one that reports nothing": ([("a/x", "dark")], {}),
    "one that is not published": ([("a/x", "gone")], {}),
    "nothing": ([], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_variables(name: str) -> None:
    asked, wanted = CASES[name]
    mappings = [{"containerName": "compute", "resourceName": resource, "requestName": f"r{place}"}
                for place, (resource, _) in enumerate(asked)]
    results = [{"request": f"r{place}", "driver": DRIVER, "pool": POOL, "device": given}
               for place, (_, given) in enumerate(asked)]
    pod: dict[str, Any] = {"status": {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": mappings}}}
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    assert launcher_environment.resource_variables(pod, claim, [SLICE]) == wanted
    assert launcher_environment.resource_variables({"status": {}}, claim, [SLICE]) == {}
