"""Trees: both homes answer alike, and a folder shows nothing but itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outfitter import errors
from outfitter.inventory.host_tree import Entry, FolderTree, Link, MemoryTree, Tree
from tests.inventory.host_trees import materialise

ENTRIES: dict[str, Entry] = {
    "/sys/devices/a/file": "text\n",
    "/sys/devices/a/empty": None,
    "/sys/bus/a": Link("../devices/a"),
    "/sys/bus/absolute": Link("/sys/devices/a"),
    "/sys/bus/twice": Link("absolute"),
    "/sys/bus/dangling": Link("../devices/gone"),
    "/sys/bus/loop": Link("pool"),
    "/sys/bus/pool": Link("loop"),
    "/sys/bus/self": Link("self/x"),
    "/sys/bus/out": Link("../../../../../../etc/passwd"),
    "/etc/passwd": "inside\n",
    "/sys/devices/a/bytes": b"\x00\xff0123",
}


@pytest.fixture(params=["memory", "folder"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    memory = MemoryTree(ENTRIES)
    return memory if request.param == "memory" else materialise(memory, tmp_path)


def test_files_are_read_through_links(tree: Tree) -> None:
    for path in ("/sys/devices/a/file", "/sys/bus/a/file", "/sys/bus/twice/file", "/sys/bus/a/../a/file"):
        assert tree.read(path) == "text\n"
        assert tree.exists(path)


@pytest.mark.parametrize("path", ["/sys/none", "/sys/devices/a", "/sys/bus/loop", "/sys/bus/self", "/sys/bus/dangling",
                                  "/sys/devices/a/file/below", "/sys/bus/loop/file", "/sys/nul\0"])
def test_what_is_no_file_reads_as_none(tree: Tree, path: str) -> None:
    assert tree.read(path) is None


@pytest.mark.parametrize(("length", "offset", "data"), [(100, 0, b"\x00\xff0123"), (2, 0, b"\x00\xff"), (3, 2, b"012"),
                                                        (9, 5, b"3"), (9, 6, b""), (9, 100, b""), (0, 0, b"")])
def test_bytes_are_read_in_parts(tree: Tree, length: int, offset: int, data: bytes) -> None:
    for path in ("/sys/devices/a/bytes", "/sys/bus/a/bytes"):
        assert tree.read_bytes(path, length, offset) == data


@pytest.mark.parametrize("path", ["/sys/none", "/sys/devices/a", "/sys/bus/loop", "/sys/bus/dangling", "/sys/nul\0"])
def test_what_is_no_file_has_no_bytes(tree: Tree, path: str) -> None:
    assert tree.read_bytes(path, 10) is None


def test_text_and_bytes_are_the_same_file(tree: Tree) -> None:
    assert tree.read_bytes("/sys/bus/a/file", 10) == b"text\n"
    assert tree.read("/sys/bus/a/bytes") == "\x00\ufffd0123"


def test_names_are_sorted_and_show_broken_links(tree: Tree) -> None:
    assert tree.names("/sys/bus") == ["a", "absolute", "dangling", "loop", "out", "pool", "self", "twice"]
    assert tree.names("/sys/bus/a") == ["bytes", "empty", "file"]
    assert tree.names("/") == ["etc", "sys"]
    for path in ("/sys/devices/a/empty", "/sys/devices/a/file", "/sys/bus/loop", "/none"):
        assert tree.names(path) == []


LINKS = {
    "a link": ("/sys/bus/a", "/sys/devices/a"),
    "an absolute link": ("/sys/bus/absolute", "/sys/devices/a"),
    "a link to a link": ("/sys/bus/twice", "/sys/devices/a"),
    "a link whose end is missing still names it": ("/sys/bus/dangling", "/sys/devices/gone"),
    "a link beyond the root stays inside": ("/sys/bus/out", "/etc/passwd"),
    "a circle": ("/sys/bus/loop", None),
    "a link below itself": ("/sys/bus/self", None),
    "a file": ("/sys/devices/a/file", None),
    "a folder": ("/sys/devices/a", None),
    "a file in a linked folder": ("/sys/bus/a/file", None),
    "nothing": ("/sys/none", None),
}


@pytest.mark.parametrize(("path", "end"), LINKS.values(), ids=LINKS)
def test_links(tree: Tree, path: str, end: str | None) -> None:
    assert tree.link(path) == end


def test_a_folder_is_never_left(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    root = tmp_path / "root"
    (root / "sys").mkdir(parents=True)
    (root / "sys" / "absolute").symlink_to(tmp_path / "secret")
    (root / "sys" / "relative").symlink_to("../../secret")
    (root / "sys" / "folder").symlink_to(tmp_path)
    tree = FolderTree(root)
    assert [tree.read(path) for path in ("/sys/absolute", "/sys/relative", "/sys/folder/secret", "/../secret")] == [None] * 4
    assert tree.names("/sys/folder") == []
    assert tree.names("/..") == ["sys"]


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert FolderTree(tmp_path).read("/pipe") is None


def test_bytes_that_are_no_text_are_survived(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff\x00ok")
    text = FolderTree(tmp_path).read("/file")
    assert text is not None
    assert text.endswith("ok")


def test_a_folder_may_stand_at_a_path_of_its_tree(tmp_path: Path) -> None:
    (tmp_path / "bus").mkdir()
    (tmp_path / "bus" / "file").write_text("x")
    (tmp_path / "inside").symlink_to("/sys/bus/file")
    (tmp_path / "outside").symlink_to("../bus/file")
    tree = FolderTree(tmp_path, at="/sys")
    assert tree.names("/sys") == ["bus", "inside", "outside"]
    assert [tree.read(path) for path in ("/sys/bus/file", "/sys/inside", "/sys/outside", "/bus/file", "/sysbus/file", "/")] == [
        "x", "x", None, None, None, None]
    assert [tree.exists(path) for path in ("/sys/bus", "/bus", "/")] == [True, False, False]


def test_local_host_can_be_the_root() -> None:
    assert "sys" in FolderTree(Path("/")).names("/")


@pytest.mark.parametrize("entries", [{"relative": "x"}, {"/a/../b": "x"}, {"/a": "x", "/a/b": "y"}, {"/a//b": "x"}])
def test_entries_that_make_no_tree_are_refused(entries: dict[str, Entry]) -> None:
    with pytest.raises(errors.Invalid):
        MemoryTree(entries)
