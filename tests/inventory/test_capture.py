"""Captures: the same scan as the host's, whole or not at all, and no more in it than is asked for."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outfitter import errors
from outfitter.inventory import capture, scan
from outfitter.inventory.host_tree import Entry, FolderTree, Link, MemoryTree
from outfitter.inventory.simulation import hosts_file
from tests.inventory.host_trees import CARD, NUMBER, TREE, capabilities, materialise

ROOT = Path(__file__).parents[2]
PF = "/sys/devices/pci0000:3a/0000:3b:00.0"
DISK = "/sys/devices/pci0000:65/0000:65:00.0"
# A host with all that is secret: serial numbers of each kind, and a MAC address, which no scan asks for.
FULL: dict[str, Entry] = {
    **TREE.entries,
    f"{PF}/vpd": CARD + b"\x78" + b"secret behind the end",
    f"{PF}/net/ens1f0/address": "52:54:00:12:34:56\n",
    f"{DISK}/nvme/nvme0/serial": "S64HNE0R000001\n",
    f"{DISK}/config": b"\0" * 64 + b"secret" + bytes(0xBA) + capabilities((1, b"secret"), (3, NUMBER))[0x100:],
    "/sys/devices/secret": "secret\n",
}


def test_a_capture_scans_like_the_host(tmp_path: Path) -> None:
    host = materialise(MemoryTree(FULL), tmp_path / "host")
    result, captured = capture.record(host)
    assert result == scan.scan(host)
    capture.save(captured, tmp_path / "host.json")
    assert scan.scan(capture.load(tmp_path / "host.json")) == result
    assert {device.card_serial for device in result.devices} == {None, "MT2116X00042"}
    assert "b4-96-91-ff-ff-aa-00-00" in {device.serial for device in result.devices}


def test_local_host_can_be_captured(tmp_path: Path) -> None:
    result, captured = capture.record(FolderTree(Path("/")))
    capture.save(captured, tmp_path / "here.json")
    assert scan.scan(capture.load(tmp_path / "here.json")) == result


def test_only_what_a_scan_asks_for_is_in_it() -> None:
    captured = capture.record(MemoryTree(FULL))[1]
    text = json.dumps(captured)
    assert "secret" not in text
    assert "c2VjcmV0" not in text  # the same in base64
    assert "52:54:00" not in text
    assert set(captured[f"{PF}/vpd"]) == {"b"}
    assert captured[f"{PF}/driver"] == {"l": "../../../bus/pci/drivers/ice"}


def test_serial_numbers_can_be_omitted() -> None:
    result, captured = capture.record(MemoryTree(FULL), serials=False)
    assert result.warnings == ()
    assert {(device.serial, device.card_serial) for device in result.devices} == {(None, None)}
    assert scan.scan(capture.tree(captured)) == result
    text = json.dumps(captured)
    for number in ("S-1", "MT2116X00042", "S64HNE0R000001", "serial", "vpd", "config"):
        assert number not in text


HOSTS = hosts_file.load(ROOT / "examples" / "hosts" / "two-sockets.yaml").hosts
TREES = [MemoryTree(FULL), *(host.tree() for host in HOSTS)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(TREES), st.randoms(use_true_random=False), st.integers(0, 30), st.booleans())
def test_any_host_scans_like_its_capture(tree: MemoryTree, random: Random, missing: int, serials: bool) -> None:
    entries = dict(tree.entries)
    for path in random.sample(sorted(entries), missing):
        del entries[path]
    result, captured = capture.record(MemoryTree(entries), serials=serials)
    again, same = capture.record(capture.tree(json.loads(json.dumps(captured))), serials=serials)
    assert again == result
    assert same == captured
    assert not serials or result == scan.scan(MemoryTree(entries))


BROKEN: dict[str, Entry] = {
    "a broken link": Link("nowhere"), "a link to itself": Link("net"), "a file": "x", "bytes": b"\xff", "an empty folder": None,
    "a link to another folder": Link("../../pci0000:65"), "a link to a file": Link("vendor"),
}


@pytest.mark.parametrize("entry", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("place", [f"{DISK}/net", f"{PF}/virtfn1", f"{PF}/driver", f"{PF}/iommu_group", f"{PF}/vendor"])
def test_what_is_broken_is_captured_as_it_is(tmp_path: Path, place: str, entry: Entry) -> None:
    tree = MemoryTree({**TREE.entries, place: entry})
    for host in (tree, materialise(tree, tmp_path)):
        result, captured = capture.record(host)
        assert scan.scan(capture.tree(captured)) == result == scan.scan(tree)


def test_names_that_are_no_text_survive(tmp_path: Path) -> None:
    """A folder may hold names that are no UTF-8."""
    root = materialise(TREE, tmp_path / "host")
    (tmp_path / "host" / PF[1:] / "net" / "eth\udcff").mkdir()
    (tmp_path / "host" / "sys/kernel/iommu_groups/7/devices/\udce9").mkdir(parents=True)
    result, captured = capture.record(root)
    assert result.warnings
    capture.save(captured, tmp_path / "host.json")
    assert scan.scan(capture.load(tmp_path / "host.json")) == result
    for warning in result.warnings:
        assert str(warning).isprintable()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "host.json"
    capture.save({"/sys": {"d": []}}, place)
    before = place.read_bytes()

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(errors.CommandFailed, match=r"cannot be written .*No space left"):
            capture.save(capture.record(TREE)[1], place)
    assert place.read_bytes() == before
    assert list(tmp_path.iterdir()) == [place]
    capture.save(capture.record(TREE)[1], place)
    assert scan.scan(capture.load(place)) == scan.scan(TREE)
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("name", ["none/host.json", "folder", "pipe", "way", "."])
def test_unwritable_target_is_reported_and_unchanged(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "way").symlink_to("pipe")
    with pytest.raises(errors.CommandFailed, match=re.escape(str(tmp_path / name))):
        capture.save({}, tmp_path / name)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["folder", "pipe", "way"]
    assert (tmp_path / "way").is_fifo()


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "latest.json").symlink_to("host.json")
    capture.save(capture.record(TREE)[1], tmp_path / "latest.json")
    assert (tmp_path / "latest.json").is_symlink()
    assert scan.scan(capture.load(tmp_path / "host.json")) == scan.scan(TREE)


WRONG = {
    "no JSON": ("x", "no JSON"),
    "no text": (b"\xff\xfe\x00", "no JSON"),
    "a list": ("[]", "mapping of paths"),
    "a path with nothing": ('{"/sys": null}', "mapping of paths"),
    "an entry of no kind": ('{"/sys/a": {}}', "/sys/a: write"),
    "a text that is a number": ('{"/sys/a": {"f": 7}}', "/sys/a: write"),
    "a folder of numbers": ('{"/sys/a": {"d": [7]}}', "/sys/a: write"),
    "a folder that leads out": ('{"/sys/a": {"d": ["../b"]}}', "/sys/a: write"),
    "a folder with its parent in it": ('{"/sys/a": {"d": [".."]}}', "not an absolute path"),
    "bytes that are no base64": ('{"/sys/a": {"b": "%"}}', "base64"),
    "a path that is none": ('{"sys": {"f": "x"}}', "not an absolute path"),
    "a file with something below": ('{"/a": {"f": "x"}, "/a/b": {"f": "x"}}', "at once"),
    "too deep": ("[" * 100_000, "no JSON"),
}


@pytest.mark.parametrize(("text", "says"), WRONG.values(), ids=WRONG)
def test_what_is_no_capture_is_refused(tmp_path: Path, text: str | bytes, says: str) -> None:
    place = tmp_path / "host.json"
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(errors.Invalid, match=says) as caught:
        capture.load(place)
    assert str(place) in str(caught.value)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid, match=r"none\.json cannot be read: No such file"):
        capture.load(tmp_path / "none.json")


def test_unreadable_file_is_captured_as_empty() -> None:
    tree = capture.tree({"/sys": {"d": ["a", "b", "c"]}, "/sys/a": {"f": "x"}, "/sys/b": {"err": "Permission denied"}})
    assert tree.names("/sys") == ["a", "b", "c"]
    assert [tree.read(f"/sys/{name}") for name in "abc"] == ["x", None, None]
    assert all(tree.exists(f"/sys/{name}") for name in "abc")
    assert [tree.link(f"/sys/{name}") for name in "abc"] == [None] * 3


def test_bytes_and_links_are_restored() -> None:
    tree = capture.tree({"/sys/a": {"b": "AP8="}, "/sys/b": {"l": "a"}})
    assert tree.read_bytes("/sys/b", 10) == b"\x00\xff"
    assert tree.entries["/sys/b"] == Link("a")
