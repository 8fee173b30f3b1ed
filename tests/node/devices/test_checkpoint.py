"""The checkpoint and the files beside it: what is written is found again, whatever happens in between, and what cannot be read
is refused with a reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from outfitter.errors import StartupRefused
from outfitter.node.atomic_files import FolderFiles, MemoryFiles
from outfitter.node.devices.checkpoint import Before, Checkpoint, Made, Taken

TAKEN = Taken("uid-1", "here", "gold", "pci-0000-65-00-0",
              (Before("0000:65:00.0", "10de:2204", "nouveau", None), Before("0000:65:00.1", "10de:1aef", None, "vfio-pci")),
              files=("uid-1/a.json",))
VGPU = Taken("uid-2", "here", "vgpu", "mdev-x", uuid="83b8f4f2-509f-382f-3c1e-e6bfe0fa1001")


def test_what_is_written_is_found_again(tmp_path: Path) -> None:
    one = Checkpoint(FolderFiles(tmp_path / "state"), "a")
    one.take([TAKEN, VGPU])
    one.set_vfs({"0000:3b:00.0": 4})
    one.set_made([Made("u", "0000:65:00.0", "nvidia-232")])
    two = Checkpoint(FolderFiles(tmp_path / "state"), "a")
    assert (two.taken, two.vfs, two.made) == (one.taken, one.vfs, one.made) == (
        (TAKEN, VGPU), {"0000:3b:00.0": 4}, (Made("u", "0000:65:00.0", "nvidia-232"),))
    two.forget("uid-1")
    assert Checkpoint(FolderFiles(tmp_path / "state"), "a").taken == (VGPU,)
    assert json.loads((tmp_path / "state" / "checkpoint.json").read_text())["version"] == 1


def test_what_was_remembered_first_stays(tmp_path: Path) -> None:
    one = Checkpoint(MemoryFiles(), "a")
    one.take([TAKEN])
    one.take([Taken("uid-1", "here", "gold", "pci-0000-65-00-0", (Before("0000:65:00.0", "10de:2204", "vfio-pci", None),))])
    assert one.taken == (TAKEN,)


DAMAGED = {
    "no JSON": ("{", "cannot be read as a checkpoint"),
    "nothing in it": ("", "cannot be read as a checkpoint"),
    "a list": ("[]", "cannot be read as a checkpoint"),
    "an entry of another shape": ('{"version": 1, "host": "a", "taken": [{"uid": "x"}], "vfs": {}, "made": []}',
                                  "cannot be read as a checkpoint"),
    "of a newer outfitter": ('{"version": 2, "host": "a"}', "has version 2, and this outfitter knows 1: use the one that"),
    "of another host": ('{"version": 1, "host": "b", "taken": [], "vfs": {}, "made": []}', "is of host b, not of a"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_checkpoint_that_cannot_be_read_is_refused(name: str) -> None:
    text, says = DAMAGED[name]
    files = MemoryFiles()
    files.write("checkpoint.json", text)
    with pytest.raises(StartupRefused, match=says):
        Checkpoint(files, "a")
    assert files.read("checkpoint.json") == text


def test_a_draft_that_was_left_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the draft and its place: the old text stands, the next write goes on."""
    files = FolderFiles(tmp_path)
    files.write("checkpoint.json", "old")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            files.write("checkpoint.json", "new")
    assert (files.read("checkpoint.json"), files.names()) == ("old", ["checkpoint.json"])
    files.write("checkpoint.json", "newer")
    assert files.read("checkpoint.json") == "newer"
    assert os.listdir(tmp_path) == ["checkpoint.json"]


def test_a_text_is_on_the_disk_before_it_is_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, place = os.fsync, os.replace

    def noted(handle: int) -> None:
        order.append("sync")
        sync(handle)

    def placed(old: Path, new: Path) -> None:
        order.append("replace")
        place(old, new)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", placed)
    FolderFiles(tmp_path).write("one", "text")
    assert order == ["sync", "replace", "sync"]  # the file, then its name in the folder
    order.clear()
    FolderFiles(tmp_path, durable=False).write("two", "text")
    assert order == ["replace"]


def test_folders_that_are_empty_go(tmp_path: Path) -> None:
    files = FolderFiles(tmp_path / "base")
    files.write("a/b/c.json", "1")
    files.write("a/d.json", "2")
    assert files.names() == ["a/b/c.json", "a/d.json"]
    files.remove("a/b/c.json")
    assert files.names() == ["a/d.json"]
    assert not (tmp_path / "base" / "a" / "b").exists()
    files.remove("a/d.json")
    files.remove("a/d.json")
    assert os.listdir(tmp_path / "base") == []
    assert FolderFiles(tmp_path / "nowhere").names() == []
    assert FolderFiles(tmp_path / "nowhere").read("a") is None
