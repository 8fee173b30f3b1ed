"""The scenario of examples/02-alias, typed by a person: flavors, aliases, and VMs made from them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster_up import MODES, in_mode
from tests.e2e.process import ROOT, ForkedUp, Up, typed, until

EXAMPLE = ROOT / "examples" / "02-alias"
HOSTS, CONFIG = ROOT / "examples" / "hosts" / "two-gpus.yaml", ROOT / "examples" / "config" / "aliases.yaml"
UNKNOWN = """
apiVersion: outfitter.dev/v1alpha1
kind: Flavor
metadata: {name: wrong}
spec: {vcpus: 1, memory: 1Gi, extraSpecs: {"pci_passthrough:alias": "gpo:1"}}
"""
MACHINE = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\n" + (
    "metadata: {{name: {}}}\nspec: {{flavor: {{name: {}}}, nodeSelector: {{kubernetes.io/hostname: elm}}, domain: {{}}}}\n")
CROWDED = "---\n".join([
    """apiVersion: outfitter.dev/v1alpha1
kind: Flavor
metadata: {name: cpus}
spec: {vcpus: 5, memory: 1Gi, extraSpecs: {"hw:cpu_policy": dedicated}}
""", MACHINE.format("card", "gpu-large"), *(MACHINE.format(name, "cpus") for name in "abc")])
STOPPED = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: stopped}
spec:
  runStrategy: Halted
  resourceClaimTemplates:
  - name: mine
    spec: {spec: {devices: {requests: [{name: card, exactly: {deviceClassName: pci.outfitter.dev, selectors: [
      {cel: {expression: 'device.attributes["pci.outfitter.dev"].vendor == "10de"'}}]}}]}}}
  template:
    spec:
      flavor: {name: gpu-large}
      domain: {devices: {hostDevices: [{name: card, claimName: mine, requestName: card}]}}
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with ForkedUp(tmp_path / "data", "--config", str(CONFIG), simulate=str(HOSTS)) as running:
        yield running
        assert not running.log()


@pytest.fixture(params=MODES)
def in_each_mode(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Up]:
    with in_mode(request, tmp_path, "--config", str(CONFIG), simulate=str(HOSTS)) as running:
        yield running
        assert not running.log()


def test_example_runs(up: Up) -> None:
    """Embedded: NUMA cells, dedicated CPUs and the fullest host first are what kube-scheduler does not know."""
    brought = typed("plan", "-f", str(EXAMPLE), kubeconfig=up.kubeconfig)  # flavors in a file count as if they were there
    assert brought.code == 1
    for line in ("vmi/blue would go to elm", "vmi/green would go to oak", "vmi/red would go to elm", "vmi/yellow would wait",
                 "-> oak could take it once vmi/green of this plan ends", "4 planned: 3 fit, 1 would wait"):
        assert line in brought.out
    unknown = typed("plan", "-f", str(EXAMPLE / "2-blue.yaml"), kubeconfig=up.kubeconfig)
    assert (unknown.code, unknown.out) == (1, "vmi/blue would wait: flavor gpu-large does not exist; there are none\n")

    up.ok("apply", "-f", str(EXAMPLE / "1-flavors.yaml"))
    heads, *rows = up.ok("get", "flavors").splitlines()
    assert heads.split()[:5] == ["NAME", "VCPUS", "MEMORY", "DISK", "DEVICES"]
    assert re.search(r"gpu-large\s+4\s+8Gi\s+40Gi\s+gpu:1, nic:2", rows[0])
    planned = up.ok("plan", "-f", str(EXAMPLE / "2-blue.yaml"))
    assert "vmi/blue would go to elm (of those that can take it, it has the fewest free devices)" in planned
    assert "blue-flavor/gpu: pci-0000-17-00-0 (0000:17:00.0" in planned
    assert not up.ok("get", "vmi", "-o", "name") + up.ok("get", "resourceclaims", "-o", "name"), "a plan writes nothing"

    stopped = up.ok("plan", "-f", "-", stdin=STOPPED).splitlines()
    assert stopped[0].startswith("vm/stopped would go to elm once it is started (")
    assert [line.split()[0] for line in stopped[1:]] == ["mine/card:", "claim", "claim", "claim"]
    assert len({line.partition(": ")[2] for line in stopped[1:]}) == 4, "a VM's claims and its flavor share nothing"

    crowded = typed("plan", "-f", "-", kubeconfig=up.kubeconfig, stdin=CROWDED).out  # CPUs count
    assert "vmi/a would go to elm" in crowded
    assert "vmi/b would go to elm" in crowded
    assert "elm: the guest needs 5 dedicated CPUs on 1 of its 2 NUMA cells" in crowded
    assert "-> elm could take it once vmi/a of this plan or vmi/b of this plan ends" in crowded

    up.ok("apply", "-f", str(EXAMPLE / "2-blue.yaml"))
    until(lambda: up.phase("blue") == "Running", "blue runs")
    why = up.ok("why", "vmi/blue")
    assert "vmi/blue runs on elm" in why
    for name, address in (("gpu-0", "0000:17:00.0"), ("nic-0", "0000:3b:01.0"), ("nic-1", "0000:3b:01.1")):
        assert re.search(rf"{name}: \S+ at {address}", why), why
    xml = up.ok("domxml", "blue")
    assert xml.count("<hostdev ") == 3
    assert re.search("<vcpu[^>]*>4<", xml)

    up.ok("apply", "-f", str(EXAMPLE / "3-green.yaml"))
    until(lambda: {up.phase(name) for name in ("green", "red")} == {"Running"}, "green and red run")
    told = [json.loads(up.ok("get", "vmi", name, "-o", "json"))["status"] for name in ("green", "red")]
    places = [(each["nodeName"], each["flavor"]["hostCells"], each["flavor"]["pinned"]) for each in told]
    assert sorted(places) == [("elm", [1], {"1": 6}), ("oak", [0], {"0": 6})]

    up.ok("apply", "-f", str(EXAMPLE / "4-yellow.yaml"))
    until(lambda: "Unschedulable" in up.ok("get", "vmi", "yellow", "-o", "yaml"), "yellow was considered")
    why = up.ok("why", "vmi/yellow")
    assert re.search(r"elm: alias near-gpu wants 1: 2 match, 0 free \(.*held by vmi/blue .*held by vmi/\w+", why), why
    assert "-> oak could take it once vmi/green ends" in why or "-> oak could take it once vmi/red ends" in why
    each = up.ok("why", "vmi/yellow", "--long")
    assert "oak: alias near-gpu wants 1: 1 match, 0 free" in each
    assert re.search(r"pci-0000-ca-00-0 for alias near-gpu: .*held by vmi/\w+ \(claim \w+-flavor-\w+\)", each)
    assert "is a CUSTOM_FAST_NIC, not a CUSTOM_GPU" in each
    up.ok("delete", "vmi", "green")
    until(lambda: up.phase("yellow") == "Running", "yellow runs")

    refused = typed("apply", "-f", "-", kubeconfig=up.kubeconfig, stdin=UNKNOWN)
    assert refused.code == 1
    assert ("spec.extraSpecs[pci_passthrough:alias]: Invalid value: PCI alias gpo is not defined; "
            "defined are gpu, near-gpu, nic") in refused.err
    up.ok("delete", "vmi", "blue", "red", "yellow")
    up.ok("delete", "-f", str(EXAMPLE / "1-flavors.yaml"))


def test_it_is_all_there_after_a_crash(in_each_mode: Up) -> None:
    up = in_each_mode
    up.ok("apply", "-f", str(EXAMPLE / "1-flavors.yaml"), "-f", str(EXAMPLE / "2-blue.yaml"))
    until(lambda: up.phase("blue") == "Running", "blue runs")  # kube-scheduler could give both GPUs of its host to the others
    up.ok("apply", "-f", str(EXAMPLE / "3-green.yaml"))
    until(lambda: {up.phase(name) for name in ("blue", "green", "red")} == {"Running"}, "all run")
    before, pages = up.domains(), up.ok("get", "pages", "-o", "yaml")
    up.kill()
    up.start()
    assert {up.phase(name) for name in ("blue", "green", "red")} == {"Running"}
    assert up.domains() == before
    assert up.ok("get", "pages", "-o", "yaml") == pages
