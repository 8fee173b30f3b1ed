"""A damaged tree is reported, never trusted or feared: whatever is done to it a scan ends, what it cannot know it says, and no
device looks freer than it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outfitter.cli.host import scan as command
from outfitter.cli.host import scan_tree
from outfitter.inventory import capture, device_name, pci_ids, scan
from outfitter.inventory.host_tree import Entry, Link, MemoryTree
from outfitter.inventory.simulation import hosts_file

ROOT = Path(__file__).parents[2]
HOSTS = {host.name: host.tree() for host in hosts_file.load(ROOT / "examples" / "hosts" / "two-sockets.yaml").hosts}
HOSTS["qemu"] = capture.load(ROOT / "tests" / "hosts" / "qemu-host.json")
ASKED = {name: sorted(capture.record(tree)[1]) for name, tree in HOSTS.items()}  # paths that a scan looks at

# The captured host has ten times the paths of the others, most of them of the same sorts.
EACH_HOST = [*(host for host in HOSTS if host != "qemu"), pytest.param("qemu", marks=pytest.mark.thorough)]
EACH: dict[str, list[str]] = {}  # of the paths of a host that end alike, the first and the last
for _host, _paths in ASKED.items():
    _alike: dict[str, list[str]] = defaultdict(list)
    for _path in _paths:
        _alike[_path.rpartition("/")[2]].append(_path)
    EACH[_host] = sorted({path for paths in _alike.values() for path in (paths[0], paths[-1])})


def known(result: scan.Scan) -> object:
    return result.devices, result.mdevs, result.parents


def above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(2, len(parts))]


def damaged(tree: MemoryTree, damage: Mapping[str, Entry], gone: frozenset[str] = frozenset()) -> MemoryTree:
    """The tree with other entries at some places, nothing below these, and without others."""
    places = tuple(f"{path}/" for path in damage.keys() | gone)
    entries: dict[str, Entry] = {path: entry for path, entry in tree.entries.items() if not f"{path}/".startswith(places)}
    for path, entry in damage.items():
        if not damage.keys() & above(path):
            for folder in above(path):
                entries.pop(folder, None)  # whatever it was, it is a folder now
            entries[path] = entry
    return MemoryTree(entries)


GARBAGE: dict[str, Entry] = {
    "control characters": "\x01?\n", "nothing": "", "bytes": b"\xff\xfe\x00", "an empty folder": None,
    "a broken link": Link("nowhere/\x02"), "a link to itself": Link("../" * 20), "a huge number": "9" * 30,
}
# What a sound host may look like too, by the end of the path. A driver's folder need not be in a tree, nor NUMA nodes.
SILENT = {
    "a huge number": ("/description", "/device_api", "/name", "/serial_number"),  # a text like any other
    "nothing": ("/description", "/name"),
    # Not to be read, as on a host where one is not root.
    "an empty folder": ("/net", "/mdev_supported_types", "/speed", "/serial_number"),
    "a broken link": ("/speed", "/serial_number"),
    "a link to itself": ("/speed", "/serial_number"),
}


@pytest.mark.parametrize("what", GARBAGE)
@pytest.mark.parametrize("host", EACH_HOST)
def test_damage_that_changes_the_scan_is_reported(host: str, what: str) -> None:
    good = scan.scan(HOSTS[host])
    assert good.warnings == ()
    for path in EACH[host]:
        if path.endswith(SILENT.get(what, ())):
            continue
        entry = Link(path) if what == "a link to itself" else GARBAGE[what]
        tree = damaged(HOSTS[host], {path: entry})
        result = scan.scan(tree)
        assert result.warnings or known(result) == known(good), path
        if what == "control characters" and path.endswith(VALUES):
            assert path in {warning.path for warning in result.warnings}


VALUES = ("/vendor", "/device", "/class", "/revision", "/numa_node", "/driver", "/iommu_group", "/physfn", "/sriov_totalvfs",
          "/sriov_numvfs", "/serial_number", "/speed", "/device_api", "/available_instances", "/mdev_type")
NEEDED = ("/vendor", "/device", "/class", "/revision", "/sriov_totalvfs", "/sriov_numvfs", "/virtfn0", "/iommu_group",
          "/device_api", "/available_instances", "/mdev_type")


@pytest.mark.parametrize("host", EACH_HOST)
def test_missing_required_file_is_reported_with_its_path(host: str) -> None:
    for path in (path for path in ASKED[host] if path.endswith(NEEDED)):
        tree = damaged(HOSTS[host], {}, frozenset({path}))
        base = path.rpartition("/")[0]
        assert any(warning.path == path or warning.path.startswith(base) or base.endswith(warning.path.rpartition("/")[2])
                   for warning in scan.scan(tree).warnings), path


ENTRIES = st.one_of(
    st.none(),
    st.text(max_size=12),
    st.binary(max_size=12),
    st.integers().map(str),
    st.sampled_from(["", ".", "..", "/", "../..", "driver", "iommu_group", "physfn", "/sys", "/sys/bus/pci/devices",
                     "/sys/kernel/iommu_groups/1", "../0000:3b:00.0", "../0000:21:00.0", "../virtfn0", "a/" * 50]).map(Link),
    st.text(max_size=8).map(Link),
)


def judge(tree: MemoryTree) -> None:
    """Whatever a tree is like: a scan of it ends, repeats itself, gives sound names, and can be captured and shown."""
    result, captured = capture.record(tree)
    assert scan.scan(tree) == result
    assert scan.scan(capture.tree(captured)) == result
    found = [device.name for device in result.devices]
    assert len(set(found)) == len(found)
    assert all(len(name) <= device_name.MAX_NAME for name in found)
    addresses = {device.address for device in result.devices}
    for device in result.devices:
        assert device.parent is None or device.parent in addresses or any(
            f"links to {device.parent}, which does not exist" in warning.message for warning in result.warnings)
        assert device.vf_index is None or device.parent is not None
        assert device.driver is None or device.driver.isprintable()
    command.as_json(result, pci_ids.PciIds(None))
    for line in scan_tree.lines(result, pci_ids.PciIds(None)):
        assert line.isprintable()
        assert len(line) <= scan_tree.WIDTH


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_damage_stops_a_scan(data: st.DataObject) -> None:
    host = data.draw(st.sampled_from(sorted(HOSTS)))
    paths = st.sampled_from(ASKED[host]) | st.builds(
        lambda path, name: f"{path}/{name}", st.sampled_from(ASKED[host]),
        st.text(min_size=1, max_size=5).filter(lambda name: name not in (".", "..") and "/" not in name))
    tree = damaged(HOSTS[host], data.draw(st.dictionaries(paths, ENTRIES, max_size=12)),
                   data.draw(st.frozensets(st.sampled_from(ASKED[host]), max_size=12)))
    judge(tree)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_damage_makes_a_device_freer(data: st.DataObject) -> None:
    """A device that the host holds is ready for a VM only if its driver was damaged, or another stands in its place."""
    host = data.draw(st.sampled_from(sorted(HOSTS)))
    paths = [path for path in ASKED[host] if not path.endswith("/driver") and not path.startswith(scan.DEVICES)]
    tree = damaged(HOSTS[host], data.draw(st.dictionaries(st.sampled_from(paths), ENTRIES, max_size=12)))
    before = {device.address: device for device in scan.scan(HOSTS[host]).devices}
    for device in scan.scan(tree).devices:
        assert before[device.address].self_vfio or not device.self_vfio, device


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(HOSTS)), st.integers(0, 400), st.integers(1, 40), st.randoms(use_true_random=False))
def test_entries_may_vanish_while_a_scan_goes_on(host: str, first: int, every: int, random: Random) -> None:
    """After so many calls something that stands in a folder is taken away at every so many calls."""

    class Vanishing:
        def __init__(self, entries: Mapping[str, Entry]) -> None:
            self.entries, self.calls = dict(entries), 0
            self.tree = MemoryTree(self.entries)

        def _next(self) -> MemoryTree:
            self.calls += 1
            if self.calls >= first and self.calls % every == 0 and self.entries:
                gone = random.choice(sorted(self.entries))
                base = gone.rpartition("/")[0]
                self.entries = {path: entry for path, entry in self.entries.items()
                                if path != gone and not (self.calls % 3 == 0 and path.startswith(f"{base}/"))}
                self.tree = MemoryTree(self.entries)
            return self.tree

        def read(self, path: str) -> str | None:
            return self._next().read(path)

        def read_bytes(self, path: str, length: int, offset: int = 0) -> bytes | None:
            return self._next().read_bytes(path, length, offset)

        def names(self, path: str) -> list[str]:
            return self._next().names(path)

        def link(self, path: str) -> str | None:
            return self._next().link(path)

        def exists(self, path: str) -> bool:
            return self._next().exists(path)

    result, captured = capture.record(Vanishing(HOSTS[host].entries))
    assert known(scan.scan(capture.tree(captured))) == known(result)  # what it saw is what was captured
