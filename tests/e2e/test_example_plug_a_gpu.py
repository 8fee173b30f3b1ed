"""The example 08-plug-a-gpu: a GPU is plugged into a running VM and out of it, by the commands of its README."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import ROOT, ForkedUp, Up, type_what_it_tells, typed, until

EXAMPLE = ROOT / "examples" / "08-plug-a-gpu"
HOSTS = ROOT / "examples" / "hosts" / "two-gpus.yaml"
GPU = "0000:17:00.0"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with ForkedUp(tmp_path / "data", simulate=str(HOSTS)) as running:
        yield running
        assert not running.log()


def read(up: Up, kind: str, name: str) -> Any:
    return json.loads(up.ok("get", kind, name, "-o", "json"))


def devices(up: Up, vm: str) -> dict[str, list[str]]:
    listed = up.ok("vm", "device", "list", vm).splitlines()[1:]
    return {row.split()[0]: row.split()[1:] for row in listed if " is False (" not in row}


def begin(up: Up) -> None:
    for file in ("1-template.yaml", "2-amber.yaml", "3-flint.yaml"):
        up.ok("apply", "-f", str(EXAMPLE / file))
    up.ok("vm", "start", "amber", "flint", "--wait")


def test_gpu_goes_from_one_running_vm_to_another(up: Up) -> None:
    begin(up)
    uids = {name: read(up, "vmi", name)["metadata"]["uid"] for name in ("amber", "flint")}
    added = up.ok("vm", "device", "add", "amber", "fast", "--template", "one-gpu", "--gpu", "--wait")
    assert added == "fast is added to amber\n"
    assert devices(up, "amber")["fast"][:3] == ["GPU", "fast/card", "plugged"]
    assert GPU in devices(up, "amber")["fast"]
    until(lambda: "GPU fast is plugged on oak" in up.ok("get", "events"), "it is reported")

    up.ok("vm", "device", "add", "flint", "fast", "--template", "one-gpu", "--gpu")
    until(lambda: "NoFreeDeviceOnHost" in up.ok("vm", "device", "list", "flint"), "flint waits for a GPU of its host")
    assert devices(up, "flint")["fast"][2] == "pending"
    why = up.ok("why", "flint")
    assert "NoFreeDeviceOnHost: fast: oak, on which the VM runs, has no free device" in why
    assert "outfit vm device remove flint DEVICE cancels the plug" in why

    up.ok("vm", "device", "remove", "amber", "fast", "--wait")
    until(lambda: devices(up, "flint")["fast"][2] == "plugged", "flint has it")
    assert up.ok("vm", "device", "list", "amber") == "amber has no GPUs and host devices\n"
    assert read(up, "vm", "amber")["spec"]["template"]["spec"].get("resourceClaims") is None
    up.ok("vm", "device", "remove", "flint", "fast", "--wait")
    until(lambda: not json.loads(up.ok("get", "resourceclaims", "-o", "json"))["items"], "the claims are deleted")
    until(lambda: "flint" not in up.ok("devices"), "the GPU is free")
    for name, uid in uids.items():
        assert read(up, "vmi", name)["metadata"]["uid"] == uid
        assert "RestartRequired" not in up.ok("get", "vm", name, "-o", "yaml")


def test_what_is_wrong_changes_nothing(up: Up) -> None:
    begin(up)
    up.ok("vm", "device", "add", "amber", "fast", "--template", "one-gpu", "--gpu", "--wait")
    before = read(up, "vm", "amber")["spec"]

    def refused(*words: str) -> str:
        done = typed("vm", "device", *words, kubeconfig=up.kubeconfig)
        assert done.code == 1, done
        assert read(up, "vm", "amber")["spec"] == before, words
        return done.err

    assert "spec.template.spec.domain.devices.gpus[0].name: amber has a GPU fast already" in refused(
        "add", "amber", "fast", "--template", "one-gpu")
    assert "there is no ResourceClaimTemplate two-gpus" in refused("add", "amber", "more", "--template", "two-gpus")
    assert "claim more has no such request; it has card" in refused(
        "add", "amber", "more", "--template", "one-gpu", "--request", "disk")
    assert "amber has no claim slow; it has fast" in refused("add", "amber", "more", "--claim", "slow")
    assert "duplicate claimName/requestName pair" in refused("add", "amber", "more", "--claim", "fast", "--gpu")
    assert "amber has no GPU or host device red; it has fast" in refused("remove", "amber", "red")
    assert "there is no VM plum" in refused("add", "plum", "fast", "--template", "one-gpu")
    up.ok("vm", "pause", "amber", "--wait")
    assert "VmPaused: amber is paused" in refused("remove", "amber", "fast")
    assert "VmPaused: amber is paused" in refused("add", "amber", "more", "--template", "one-gpu")
    up.ok("vm", "unpause", "amber", "--wait")
    done = typed("vm", "device", "remove", "amber", "fast", "--dry-run", kubeconfig=up.kubeconfig)
    assert "dry run" in done.out
    assert read(up, "vm", "amber")["spec"] == before


@pytest.mark.thorough
def test_commands_of_the_readme(up: Up) -> None:
    type_what_it_tells(EXAMPLE / "README.md", up)
