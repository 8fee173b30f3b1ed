"""`outfit doctor` against the embedded server of `outfit up`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outfitter.api.kinds import Object
from tests.e2e.process import ForkedUp, Up, typed

HOSTS = """
hosts:
- name: a
  pci: [{address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: vfio-pci, iommuGroup: 20}]
- name: b
  pci: [{address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: vfio-pci, iommuGroup: none}]
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder: Path = tmp_path_factory.mktemp("doctor")
    (folder / "hosts.yaml").write_text(HOSTS)
    with ForkedUp(folder / "data", simulate=str(folder / "hosts.yaml")) as running:
        yield running


def test_hosts_of_the_embedded_server_are_checked(up: Up) -> None:
    done = typed("doctor", "-o", "json", kubeconfig=up.kubeconfig)
    assert done.code == 0, done
    found: dict[str, Object] = {each["code"]: each for each in json.loads(done.out)["findings"]}
    assert not [code for code in found if code.startswith("host-")]  # they are simulated
    assert "cluster-crds" not in found
    assert "embedded server" in found["cluster-version"]["message"]
    assert found["cluster-agents"]["message"] == "2 host inventories"
    assert (found["cluster-node-iommu"]["level"], found["cluster-node-iommu"]["subject"]) == ("warning", "node/b")
    assert {code for code, each in found.items() if each["level"] != "ok"} == {"cluster-node-iommu", "cluster-device-classes"}
    assert found["cluster-drivers"]["message"].endswith("publishes 1 device")
