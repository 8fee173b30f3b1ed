"""A VM with a GPU and a NIC on a VF, both by claims, migrates: embedded, and on a real control plane where kube-scheduler
allocates the target's claims. The test types kubectl and reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster_up import MODES, in_mode
from tests.e2e.kubectl import Kubectl
from tests.e2e.process import Up, until

pytestmark = pytest.mark.kubectl
HOST = """
- name: node-{number}
  numa: [{{id: 0, cpus: 0-7, memory: 64Gi}}]
  pci:
  - {{address: "0000:{bus}:00.0", vendor: 10de, product: 2235, class: 030200}}
  - {{address: "0000:3b:00.0", vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {{count: 2, product: 1889}}}}
"""
HOSTS = "hosts:" + HOST.format(number=0, bus="17") + HOST.format(number=1, bus="ca").lstrip("\n")
CONFIG = """
device_spec:
- {vendor_id: 10de, product_id: 2235, live_migratable: "yes"}
- {vendor_id: 8086, product_id: 1889, physical_network: fast}
"""
CLASSES = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: story-gpu}
spec:
  selectors:
  - cel: {expression: 'device.driver == "pci.outfitter.dev" && device.attributes["pci.outfitter.dev"].product == "2235"'}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: story-vf}
spec:
  selectors:
  - cel: {expression: 'device.driver == "pci.outfitter.dev" && device.attributes["pci.outfitter.dev"].product == "1889"'}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: story-gpu}
spec: {spec: {devices: {requests: [{name: card, exactly: {deviceClassName: story-gpu}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: story-vf}
spec: {spec: {devices: {requests: [{name: nic, exactly: {deviceClassName: story-vf}}]}}}
"""
MACHINE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: NAME}
spec:
  runStrategy: Always
  OWN
  template:
    spec:
      networks: [{name: default, pod: {}}, {name: fast, resourceClaim: {claimName: nics, requestName: nic}}]
      resourceClaims: [{name: nics, resourceClaimTemplateName: story-vf}GPU]
      domain:
        memory: {guest: 64Mi}
        devices:
          interfaces: [{name: default, masquerade: {}}, {name: fast, sriov: {}}]
          gpus: [{name: g0, claimName: gpu, requestName: card}]
"""
OWN = """resourceClaimTemplates:
  - {name: gpu, spec: {spec: {devices: {requests: [{name: card, exactly: {deviceClassName: story-gpu}}]}}}}"""
# Not in braces: kubectl up to 1.32 takes that for JSON.
JOB = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceMigration
metadata: {name: move}
spec: {vmiName: blue}
"""


class Story:
    def __init__(self, up: Up) -> None:
        self.up, self.kubectl = up, Kubectl(up)

    def start(self, name: str, *, own: bool = False) -> str:
        """The host on which it runs."""
        text = MACHINE.replace("NAME", name).replace("OWN", OWN if own else "").replace(
            "GPU", "" if own else ", {name: gpu, resourceClaimTemplateName: story-gpu}")
        self.kubectl("apply", "-f", "-", stdin=text)
        until(lambda: self.up.phase(name) == "Running", f"{name} runs")
        return str(self.get("vmi", name)["status"]["nodeName"])

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def gpu(self) -> Any:
        [entry] = self.get("vmi", "blue")["status"]["deviceStatus"]["gpuStatuses"]
        return entry["deviceResourceClaimStatus"]

    def condition(self, kind: str, name: str, type_: str) -> Any:
        found = self.get(kind, name).get("status", {}).get("conditions") or ()
        return next((one for one in found if one["type"] == type_), {})

    def holders(self) -> dict[str, set[str]]:
        """Host -> the holders of its devices."""
        booked = {page["metadata"]["name"]: page["spec"].get("bookings") or () for page in self.get("ledgerpages")["items"]}
        return {host: {one["holder"].get("purpose", "") for one in bookings} for host, bookings in booked.items() if bookings}


@pytest.fixture(params=MODES)
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    hosts, settings = tmp_path / "hosts.yaml", tmp_path / "config.yaml"
    hosts.write_text(HOSTS)
    settings.write_text(CONFIG)
    with in_mode(request, tmp_path, "--config", str(settings), simulate=str(hosts)) as up:
        found = Story(up)
        found.kubectl("apply", "-f", "-", stdin=CLASSES)
        yield found
        assert not up.log()


@pytest.mark.parametrize("own", [False, True], ids=["template", "own claim"])
def test_vm_migrates_with_its_devices(story: Story, own: bool) -> None:
    source = story.start("blue", own=own)
    target = {"node-0": "node-1", "node-1": "node-0"}[source]
    until(lambda: story.condition("vmi", "blue", "LiveMigratable").get("status") == "True", "it can migrate")
    before, uid = story.gpu(), story.get("vmi", "blue")["metadata"]["uid"]
    story.kubectl("create", "-f", "-", stdin=JOB)
    until(lambda: story.get("vmim", "move").get("status", {}).get("phase") == "Succeeded", "it has migrated")
    vmi, after = story.get("vmi", "blue"), story.gpu()
    assert (vmi["status"]["nodeName"], vmi["metadata"]["uid"]) == (target, uid)
    assert (before["pool"], after["pool"]) == (source, target)
    assert after["attributes"]["pciAddress"] in ("0000:17:00.0", "0000:ca:00.0")
    assert after["attributes"] != before["attributes"]
    assert story.condition("vmim", "move", "migrationDevices")["message"] == "g0: travels; fast: reattached"
    until(lambda: story.holders() == {target: {"vmi/blue"}}, "the source's devices are free, the target's are the VM's")
    until(lambda: len(story.get("resourceclaims")["items"]) == 2, "the first claims are gone")
    if own:
        claim = story.get("resourceclaim", after["resourceClaimName"])
        assert [one["kind"] for one in claim["metadata"]["ownerReferences"]] == ["VirtualMachine"]
        entry = {"name": "gpu", "resourceClaimName": after["resourceClaimName"]}
        assert entry in story.get("vmi", "blue")["spec"]["resourceClaims"], "the VMI names its second claim"


def test_without_a_free_twin_it_waits_and_leaves_nothing(story: Story) -> None:
    source = story.start("blue")
    target = story.start("green")
    assert source != target, "each host has one GPU"
    held = story.holders()
    story.kubectl("create", "-f", "-", stdin=JOB)
    until(lambda: story.condition("vmim", "move", "migrationWaiting").get("reason") == "TargetUnschedulable", "it waits")
    until(lambda: story.condition("vmim", "move", "migrationDevices").get("reason") == "NoFreeTwin", "device g0 waits")
    devices = story.condition("vmim", "move", "migrationDevices")["message"]
    assert devices.startswith("g0: cannot travel now (NoFreeTwin: ")
    assert "held by vmi/green" in devices
    assert devices.endswith("; fast: reattached")
    for question in (("why", "vmim/move"), ("why", "vmi/blue"), ("plan", "migrate", "blue")):
        answer = story.up.outfit(*question).stdout
        assert "g0: cannot travel now (" in answer, answer
        assert "held by vmi/green" in answer, answer
    assert story.condition("vmi", "blue", "LiveMigratable")["status"] == "True"
    assert story.holders() == held
    story.kubectl("delete", "vmim", "move")
    until(lambda: len(story.get("resourceclaims")["items"]) == 4, "the target's claims are gone")
    assert (story.get("vmi", "blue")["status"]["nodeName"], story.holders()) == (source, held)
