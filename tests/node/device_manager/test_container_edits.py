"""What a launcher without a container runtime gets of a plugin's answer: CDI specs, device nodes and mounts of the host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outfitter.api.device_metadata import BASE
from outfitter.api.rejection import RejectionCode
from outfitter.errors import StartFailed
from outfitter.node.atomic_files import MemoryFiles
from outfitter.node.device_manager.container_edits import container_edits
from outfitter.node.device_manager.plugin_resource import ContainerAllocation

SPEC = {"cdiVersion": "0.6.0", "kind": "a.io/gpu", "containerEdits": {"env": ["ALL=1"]},
        "devices": [{"name": name, "containerEdits": {"env": [f"GPU={name}", "no assignment"]}} for name in ("g0", "g1")]}
IDS = frozenset({"g0"})


def specs(**more: str) -> MemoryFiles:
    files = MemoryFiles()
    for name, text in {"a.json": json.dumps(SPEC), "torn.json": "{", "list.yaml": "- 1", **more}.items():
        files.write(name, text)
    return files


def test_the_environment_is_that_of_the_cdi_device_and_the_plugins_own_wins() -> None:
    answer = ContainerAllocation(IDS, {"OWN": "1"}, cdi_ids=("a.io/gpu=g1",))
    assert container_edits([answer], specs()).env == {"ALL": "1", "GPU": "g1", "OWN": "1"}
    answer = ContainerAllocation(IDS, {"GPU": "mine"}, cdi_ids=("a.io/gpu=g1",))
    assert container_edits([answer], specs()).env == {"ALL": "1", "GPU": "mine"}


def test_device_metadata_below_a_mount_is_read_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "x-metadata.json").write_text("{}")
    (tmp_path / "other.txt").write_text("no metadata")
    answer = ContainerAllocation(IDS, mounts=((BASE, str(tmp_path), True), ("/data", str(tmp_path), True)))
    assert container_edits([answer], None).files == {f"{BASE}/claims/x-metadata.json": "{}"}


@pytest.mark.parametrize(("answer", "word"), [
    pytest.param(ContainerAllocation(IDS, cdi_ids=("a.io/gpu=g2",)), "a.io/gpu=g2", id="a CDI device without a spec"),
    pytest.param(ContainerAllocation(IDS, devices=(("/dev/x", "/nowhere/x", "rw"),)), "/nowhere/x", id="a device node")])
def test_what_is_not_there_is_refused_except_on_a_simulated_host(answer: ContainerAllocation, word: str) -> None:
    with pytest.raises(StartFailed, match=word) as failed:
        container_edits([answer], specs())
    assert failed.value.rejection.code is RejectionCode.PLUGIN_ANSWER_INVALID
    assert not container_edits([answer], specs(), simulated=True).files
