"""The scenario of examples/01-one-vf, typed by a person: one device, two VMs. With `outfit`, and with a real kubectl."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster_up import MODES, in_mode
from tests.e2e.kubectl import Kubectl
from tests.e2e.process import EXAMPLE, ROOT, Up, typed, until

EXAMPLES = str(EXAMPLE.relative_to(ROOT))


@pytest.fixture(params=MODES)
def up(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Up]:
    with in_mode(request, tmp_path) as running:
        yield running
        assert not running.log()


def test_example_runs_with_outfit(up: Up) -> None:
    def ok(*words: str) -> str:
        done = typed(*words, kubeconfig=up.kubeconfig)
        assert (done.code, done.err) == (0, ""), f"{words}: {done}"
        return done.out

    assert "node-0   Ready" in ok("get", "nodes,resourceslices")
    assert ok("apply", "-f", f"{EXAMPLES}/1-class.yaml", "-f", f"{EXAMPLES}/2-blue.yaml").splitlines() == [
        "deviceclass.resource.k8s.io/virtual-function created", "resourceclaimtemplate.resource.k8s.io/one-vf created",
        "virtualmachineinstance.kubevirt.io/blue created"]
    until(lambda: up.phase("blue") == "Running", "blue runs")
    assert ok("apply", "-f", f"{EXAMPLES}/3-green.yaml") == "virtualmachineinstance.kubevirt.io/green created\n"
    until(lambda: "Unschedulable" in up.ok("get", "vmi", "green", "-o", "yaml"), "green was considered")
    assert len(ok("get", "resourceclaims", "-o", "name").splitlines()) == 2, "each VM has a claim of its own"

    why = ok("why", "vmi/green")
    assert "1 match, 0 free" in why
    assert "pci-0000-3b-00-0-vf0: held by vmi/blue since " in why
    assert "held by vmi/blue (claim virt-launcher-blue-" in ok("why", "vmi/green", "--long")
    assert "vmi/blue runs on node-0" in ok("why", "blue")
    assert "nic0: pci-0000-3b-00-0-vf0 at 0000:3b:01.0" in ok("why", "blue")
    until(lambda: "Started" in ok("describe", "vmi", "blue"), "its start is told")
    described = ok("describe", "vmi", "blue", "green")
    assert "held by vmi/blue" in described.partition("Name:         green")[2]
    xml = ok("domxml", "blue")
    assert '<address domain="0x0000" bus="0x3b" slot="0x01" function="0x0" />' in xml
    assert list(up.domains().values()) == [xml], "what runs is what is shown"
    refused = typed("domxml", "green", kubeconfig=up.kubeconfig)
    assert refused.code == 1
    assert refused.err.startswith("error: vmi/green has no domain yet: status.deviceStatus does not name")
    assert "nic0" in refused.err

    assert ok("delete", "vmi", "blue") == "virtualmachineinstance.kubevirt.io/blue deleted\n"
    until(lambda: up.phase("green") == "Running", "green runs")
    assert "nic0: pci-0000-3b-00-0-vf0 at 0000:3b:01.0" in ok("why", "vmi", "green")
    gone = up.outfit("delete", "-f", EXAMPLES)  # in a process of its own, for its exit status
    assert gone.returncode == 1, "blue was not there any more"
    assert gone.stderr == 'error: virtualmachineinstances.kubevirt.io "blue" not found\n'
    assert len(gone.stdout.splitlines()) == 3
    until(lambda: not up.domains(), "nothing runs")
    until(lambda: not up.ok("get", "pods,resourceclaims", "-o", "name"), "nothing is left")


@pytest.mark.parametrize("file", ["README.md", f"{EXAMPLES}/README.md"])
def test_readme_commands_run_in_order(up: Up, file: str) -> None:
    lines = re.findall(r"^(?:    )?outfit ((?!up\b)[^#\n]*)", (ROOT / file).read_text(), re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        until(functools.partial(_typed_well, up, line.split()), line)
    assert not up.phase("blue"), "both scenarios end without blue"


def _typed_well(up: Up, words: list[str]) -> bool:
    return typed(*words, kubeconfig=up.kubeconfig).code == 0


@pytest.mark.kubectl
def test_example_runs_with_kubectl(up: Up, tmp_path: Path) -> None:
    kubectl = Kubectl(up)
    made = kubectl("apply", "-f", f"{EXAMPLES}/1-class.yaml", "-f", f"{EXAMPLES}/2-blue.yaml")
    assert "virtualmachineinstance.kubevirt.io/blue created" in made
    kubectl("wait", "vmi/blue", "--for=jsonpath={.status.phase}=Running", "--timeout=300s")
    kubectl("wait", "vmi/blue", "--for=condition=Ready", "--timeout=300s")
    revisions = ("get", "-f", f"{EXAMPLES}/1-class.yaml", "-o", "jsonpath={.items[*].metadata.resourceVersion}")
    before = kubectl(*revisions)
    assert kubectl("apply", "-f", EXAMPLES).count("created") == 1
    assert kubectl(*revisions) == before, "what did not change was not written"
    assert "node-0" in kubectl("get", "vmi,nodes,resourceslices,ledgerpages")
    kubectl("wait", "vmi/green", "--for=jsonpath={.status.phase}=Scheduling", "--timeout=300s")
    until(lambda: "held by vmi/blue" in up.ok("why", "green"), "green waits for blue")
    until(lambda: "Started" in kubectl("describe", "vmi", "blue"), "its start is told")

    label = kubectl("label", "vmi", "blue", "tier=gold")
    assert label == "virtualmachineinstance.kubevirt.io/blue labeled\n"
    assert kubectl("get", "vmi", "-l", "tier=gold", "-o", "name") == "virtualmachineinstance.kubevirt.io/blue\n"
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/tier: gold/tier: iron/" "$1"\n')
    editor.chmod(0o755)
    assert "edited" in kubectl("edit", "vmi", "blue", EDITOR=str(editor))
    labels = json.loads(kubectl("get", "vmi", "blue", "-o", "json"))["metadata"]["labels"]
    assert labels["tier"] == "iron"

    with kubectl.watch("get", "vmi", "green", "-w", "-o", "jsonpath={.status.phase}{\"\\n\"}") as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "Scheduling\n"
        assert "deleted" in kubectl("delete", "vmi", "blue")
        try:
            seen = watching.stdout.readline()
            while seen != "Running\n":
                assert seen in ("Scheduling\n", "Scheduled\n"), seen
                seen = watching.stdout.readline()
        finally:
            watching.kill()
    assert "green" in kubectl("get", "vmi", "-A")
    assert kubectl("get", "vmi", "blue", code=1) == ""
    assert kubectl("delete", "-f", EXAMPLES, "--ignore-not-found").count("deleted") == 3
    kubectl("wait", "vmi/green", "--for=delete", "--timeout=300s")
    until(lambda: not up.domains(), "nothing runs")
