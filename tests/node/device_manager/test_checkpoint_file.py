"""The checkpoint that one process writes again and again is the one that a new process would write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from outfitter.api.kinds import Object
from outfitter.node.device_manager import checkpoint
from outfitter.node.device_manager.checkpoint_file import Allocations, CheckpointFile
from outfitter.node.device_manager.plugin_resource import ContainerAllocation, PluginDevice, PluginResource

GPU = "a.io/gpu"


def pod(name: str, *ids: str) -> Object:
    assigned = [{"resourceName": GPU, "deviceIDs": list(ids)}] if ids else []
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"containers": [{"name": "c", "assignedDevices": assigned}]}}


def answer(text: bytes, *ids: str) -> ContainerAllocation:
    return ContainerAllocation(frozenset(ids), message=text)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: Path(path).write_bytes(b"\xff\xfe{"),
                                  lambda path: Path(path).symlink_to("/dev/zero")],
                         ids=["a named pipe", "a folder", "no text", "a device"])
def test_what_is_no_checkpoint_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    make(tmp_path / checkpoint.FILE)
    assert not CheckpointFile(tmp_path).load().entries
    assert "cannot be read" in caplog.text


def test_every_change_is_in_the_file(tmp_path: Path) -> None:
    resource = PluginResource(GPU)
    resource.list([PluginDevice("g0", numa_nodes=(0,)), PluginDevice("g1", numa_nodes=(1,))])
    first, second = pod("p", "g0"), pod("q", "g1")
    answers: dict[tuple[str, str, str], ContainerAllocation] = {("uid-p", "c", GPU): answer(b"one", "g0")}
    kept, texts = CheckpointFile(tmp_path / "kept"), []

    def written(pods: list[Object], allocations: Allocations) -> None:
        kept.save(pods, {GPU: resource}, allocations)
        CheckpointFile(tmp_path / "fresh").save(pods, {GPU: resource}, allocations)
        here, there = ((tmp_path / folder / checkpoint.FILE).read_text() for folder in ("kept", "fresh"))
        assert here == there
        assert isinstance(checkpoint.decode(here), checkpoint.DeviceCheckpoint)
        texts.append(here)

    written([first], answers)
    written([first, second], answers)
    answers["uid-q", "c", GPU] = answer(b"two", "g1")
    written([first, second], answers)
    answers["uid-p", "c", GPU] = answer(b"three", "g0")
    written([first, second], answers)
    resource.list([PluginDevice("g0", numa_nodes=(1,)), PluginDevice("g1", healthy=False)])
    written([first, second], answers)
    written([pod("p", "g0", "g1"), second], answers)
    written([second, first], answers)
    written([second], answers)
    written([], {})
    assert len(set(texts)) == len(texts)
