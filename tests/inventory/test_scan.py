"""Scanning: a description survives the way through the tree, and a damaged tree is told, never trusted or feared."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outfitter.inventory import offer, scan, simulate
from outfitter.inventory.pci import Device, Kind
from outfitter.inventory.tree import Entry, FolderTree, Link, MemoryTree

HOST = """
hosts:
- name: a
  numa: [{id: 0, cpus: 0-3, memory: 1Gi}, {id: 1, cpus: 4-7, memory: 1Gi}]
  pci:
  - {address: 0000:3a:00.0, vendor: 8086, product: 347a, class: 060400, driver: pcieport, numa: 0}
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, revision: 02, driver: ice, numa: 0, serial: S-1,
     pcieRoot: pci0000:3a, interface: ens1f0, vfs: {count: 2, product: 1889, driver: [iavf, vfio-pci], interfaces: "v{index}"}}
  - {address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, iommuGroup: 20}
  - {address: 0000:65:00.1, vendor: 10de, product: 1aef, class: 040300, iommuGroup: 20}
  - {address: 0000:65:00.2, vendor: 10de, product: 1aef, class: 060400, iommuGroup: 20, driver: none}
  - {address: 0000:66:00.0, vendor: 10de, product: 2204, class: 030000, iommuGroup: none, driver: none, numa: 1}
"""
TREE = simulate.parse(HOST).hosts[0].tree()
ROOT = "/sys/devices/pci0000:3a/0000:3b:00.0"
VF = "/sys/devices/pci0000:3a/0000:3b:01.1"
GPU = "/sys/devices/pci0000:65/0000:65:00.0"


def without(removed: str) -> MemoryTree:
    return MemoryTree({path: entry for path, entry in TREE.entries.items() if path != removed})


def with_entry(path: str, entry: Entry) -> MemoryTree:
    return MemoryTree({**TREE.entries, path: entry})


def device(result: scan.Scan, address: str) -> Device:
    return next(found for found in result.devices if found.address == address)


def test_a_simulated_host_comes_back_as_described() -> None:
    result = scan.scan(TREE)
    assert result.warnings == ()
    assert [found.address for found in result.devices] == [
        "0000:3a:00.0", "0000:3b:00.0", "0000:3b:01.0", "0000:3b:01.1", "0000:65:00.0", "0000:65:00.1", "0000:65:00.2",
        "0000:66:00.0"]
    assert device(result, "0000:3b:00.0") == Device(
        address="0000:3b:00.0", kind=Kind.PF, vendor="8086", product="1592", class_code="020000", revision="02",
        driver="ice", parent=None, numa=0, pcie_root="pci0000:3a", iommu_group=2, members=(), serial="S-1",
        interfaces=("ens1f0",))
    assert device(result, "0000:3b:01.1") == Device(
        address="0000:3b:01.1", kind=Kind.VF, vendor="8086", product="1889", class_code="020000", revision="02",
        driver="vfio-pci", parent="0000:3b:00.0", numa=0, pcie_root="pci0000:3a", iommu_group=4, members=(), serial="S-1",
        interfaces=())
    assert device(result, "0000:3b:01.0").interfaces == ("v0",)


def test_groups_list_other_endpoints_and_no_bridges() -> None:
    result = scan.scan(TREE)
    assert device(result, "0000:65:00.0").members == ("0000:65:00.1",)
    assert device(result, "0000:65:00.1").members == ("0000:65:00.0",)
    assert device(result, "0000:65:00.2").members == ("0000:65:00.0", "0000:65:00.1")


def test_what_the_host_does_not_know_is_none() -> None:
    result = scan.scan(TREE)
    assert device(result, "0000:65:00.0").numa is None
    assert device(result, "0000:66:00.0").iommu_group is None
    assert device(result, "0000:66:00.0").driver is None


def materialise(tree: MemoryTree, root: Path) -> FolderTree:
    for path, entry in tree.entries.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, Link):
            place.symlink_to(entry.target)
        elif entry is None:
            place.mkdir(exist_ok=True)
        else:
            place.write_text(entry)
    return FolderTree(root)


def test_a_folder_scans_like_the_memory_it_came_from(tmp_path: Path) -> None:
    assert scan.scan(materialise(TREE, tmp_path)) == scan.scan(TREE)


def test_vfs_share_groups_as_told() -> None:
    groups = {}
    for word in ("own", "shared", "parent", "none"):
        text = (f"hosts: [{{name: a, pci: [{{address: 0000:3b:00.0, vendor: 8086, product: 1592, "
                f"vfs: {{count: 2, iommuGroups: {word}}}}}]}}]")
        result = scan.scan(simulate.parse(text).hosts[0].tree())
        assert result.warnings == ()
        groups[word] = [found.iommu_group for found in result.devices]
    assert groups == {"own": [1, 2, 3], "shared": [1, 2, 2], "parent": [1, 1, 1], "none": [1, None, None]}


def test_open_groups_keep_clear_of_those_with_a_number() -> None:
    text = """hosts: [{name: a, pci: [
      {address: 0000:01:00.0, vendor: 8086, product: 1592}, {address: 0000:02:00.0, vendor: 8086, product: 1592, iommuGroup: 1},
      {address: 0000:03:00.0, vendor: 8086, product: 1592}]}]"""
    assert [d.iommu_group for d in scan.scan(simulate.parse(text).hosts[0].tree()).devices] == [2, 1, 3]


def test_addresses_are_sorted_by_number() -> None:
    text = """hosts: [{name: a, pci: [
      {address: 10000:01:00.0, vendor: 8086, product: 1592}, {address: 0000:e1:00.0, vendor: 8086, product: 1592}]}]"""
    assert [d.address for d in scan.scan(simulate.parse(text).hosts[0].tree()).devices] == ["0000:e1:00.0", "10000:01:00.0"]


def test_an_nvme_disk_tells_its_serial_in_its_own_folder() -> None:
    tree = with_entry(f"{GPU}/nvme/nvme0/serial", "S64HNE0R000001      \n")
    assert device(scan.scan(tree), "0000:65:00.0").serial == "S64HNE0R000001"


def test_interfaces_of_virtio_are_seen() -> None:
    assert device(scan.scan(with_entry(f"{GPU}/virtio3/net/eth0/mtu", "1500\n")), "0000:65:00.0").interfaces == ("eth0",)


def test_a_root_behind_a_platform_bus_is_found() -> None:
    place = "/sys/devices/platform/40000000.pcie/pci0000:00/0000:00:01.0/0000:01:00.0"
    tree = MemoryTree({
        "/sys/bus/pci/devices/0000:01:00.0": Link(place),
        **{f"{place}/{name}": text
           for name, text in {"vendor": "0x1af4", "device": "0x1041", "class": "0x020000", "revision": "0x01"}.items()},
    })
    result = scan.scan(tree)
    assert result.warnings == ()  # a kernel without NUMA has no numa_node
    assert result.devices[0].pcie_root == "pci0000:00"


# An oddity, the entry that makes it, and what is then known. Path -> None takes the entry away.
GONE = object()
ODDITIES: dict[str, tuple[str, object, str, dict[str, object]]] = {
    "no vendor": (f"{VF}/vendor", GONE, "0000:3b:01.1", {"vendor": None}),
    "a vendor in words": (f"{VF}/vendor", "Intel\n", "0000:3b:01.1", {"vendor": None}),
    "a vendor too long": (f"{VF}/vendor", "0x123456\n", "0000:3b:01.1", {"vendor": None}),
    "no product": (f"{VF}/device", GONE, "0000:3b:01.1", {"product": None}),
    "no class": (f"{VF}/class", GONE, "0000:3b:01.1", {"class_code": None}),
    "an empty revision": (f"{VF}/revision", "", "0000:3b:01.1", {"revision": None}),
    "a NUMA node in words": (f"{VF}/numa_node", "near\n", "0000:3b:01.1", {"numa": None}),
    "no NUMA node beside nodes": (f"{VF}/numa_node", GONE, "0000:3b:01.1", {"numa": None}),
    "a driver that leads to itself": (f"{VF}/driver", Link("driver"), "0000:3b:01.1", {"driver": None}),
    "a driver that leads to the root": (f"{VF}/driver", Link("/"), "0000:3b:01.1", {"driver": None}),
    "a driver that is a file": (f"{VF}/driver", "vfio-pci\n", "0000:3b:01.1", {"driver": None}),
    "a group that leads to itself": (f"{VF}/iommu_group", Link("iommu_group"), "0000:3b:01.1", {"iommu_group": 4}),
    "a group that is no number": (f"{VF}/iommu_group", Link("../x"), "0000:3b:01.1", {"iommu_group": 4}),
    "another group than is listed": (f"{VF}/iommu_group", Link("/sys/kernel/iommu_groups/20"), "0000:3b:01.1",
                                     {"iommu_group": 20}),
    "no group though one is listed": (f"{VF}/iommu_group", GONE, "0000:3b:01.1", {"iommu_group": 4}),
    "a group that does not list it": ("/sys/kernel/iommu_groups/4/devices/0000:3b:01.1", GONE, "0000:3b:01.1",
                                      {"iommu_group": 4}),
    "a group with a strange name": ("/sys/kernel/iommu_groups/x/type", "DMA\n", "0000:3b:01.1", {"iommu_group": 4}),
    "a PF that is missing": (f"{VF}/physfn", Link("../0000:77:00.0"), "0000:3b:01.1",
                             {"parent": "0000:77:00.0", "serial": None}),
    "a PF that is no address": (f"{VF}/physfn", Link("../x"), "0000:3b:01.1", {"parent": None, "kind": Kind.VF}),
    "a PF link in a circle": (f"{VF}/physfn", Link("physfn"), "0000:3b:01.1", {"parent": None, "kind": Kind.VF}),
    "a total in words": (f"{ROOT}/sriov_totalvfs", "many\n", "0000:3b:00.0", {"kind": Kind.PF}),
    "a VF link that is missing": (f"{ROOT}/virtfn1", GONE, "0000:3b:00.0", {"kind": Kind.PF}),
    "a serial number of nonsense": (f"{ROOT}/serial_number", "\x01\x02\n", "0000:3b:01.1", {"serial": None}),
    "a serial number without end": (f"{ROOT}/serial_number", "9" * 65, "0000:3b:00.0", {"serial": None}),
    "a strange name among the devices": ("/sys/bus/pci/devices/usb1", Link("../../../devices/x"), "0000:3b:00.0", {}),
    "a path without a root": ("/sys/bus/pci/devices/0000:66:00.0", Link("/sys/devices/pci0000:66/0000:66:00.0/odd"),
                              "0000:3b:00.0", {}),
}


@pytest.mark.parametrize(("path", "entry", "address", "known"), ODDITIES.values(), ids=ODDITIES)
def test_an_oddity_is_told_and_the_rest_stays_known(path: str, entry: object, address: str, known: dict[str, object]) -> None:
    assert entry is not GONE or path in TREE.entries
    tree = without(path) if entry is GONE else MemoryTree({**TREE.entries, path: entry})  # type: ignore[dict-item]
    result = scan.scan(tree)
    assert result.warnings
    found = device(result, address)
    assert {field: getattr(found, field) for field in known} == known


def test_a_function_that_vanished_is_told_and_left_out() -> None:
    tree = MemoryTree({path: entry for path, entry in TREE.entries.items() if not path.startswith(f"{GPU}/")})
    result = scan.scan(tree)
    assert "0000:65:00.0" not in {found.address for found in result.devices}
    assert [str(warning) for warning in result.warnings] == [
        "/sys/bus/pci/devices/0000:65:00.0: leads nowhere; the function is left out"]
    # Its neighbour still knows of it, and is not given away without it.
    assert device(result, "0000:65:00.1").members == ("0000:65:00.0",)
    assert "0000:65:00.1" not in {entry.device.address for entry in offer.offer(result.devices).offered}


def test_a_tree_that_is_none_is_told(tmp_path: Path) -> None:
    result = scan.scan(FolderTree(tmp_path))
    assert result.devices == ()
    assert "root of the tree" in str(result.warnings[0])


FILES = sorted(path for path, entry in TREE.entries.items() if entry is not None and "/0000:" in path)
MATTERS = sorted(path for path in FILES if path.endswith((
    "/vendor", "/device", "/class", "/revision", "/numa_node", "/driver", "/iommu_group", "/physfn", "/sriov_totalvfs",
    "/sriov_numvfs", "/serial_number")) and "/net/" not in path)
GARBAGE = st.one_of(
    st.none(),
    st.text(max_size=12),
    st.sampled_from(["", ".", "..", "/", "../..", "driver", "iommu_group", "physfn", "/sys", "/sys/bus/pci/devices",
                     "/sys/kernel/iommu_groups/20", "../0000:3b:00.0", "a/" * 50]).map(Link),
    st.text(max_size=8).map(Link),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(FILES), GARBAGE, min_size=1, max_size=12))
def test_no_damage_stops_a_scan_or_frees_a_device(damage: dict[str, Entry]) -> None:
    """Entries taken away (None), garbled, or turned into links that lead anywhere, also in circles."""
    entries = {**TREE.entries, **damage}
    result = scan.scan(MemoryTree({path: entry for path, entry in entries.items() if entry is not None}))
    answer = offer.offer(result.devices)
    seen = [member.address for unit in answer.offered for member in unit.members]
    seen += [kept.device.address for kept in answer.withheld]
    assert sorted(seen) == sorted(found.address for found in result.devices)
    for unit in answer.offered:
        assert all(member.driver == "vfio-pci" and not member.is_bridge for member in unit.members)
        assert unit.device.address not in ("0000:3a:00.0", "0000:3b:00.0", "0000:3b:01.0") or any(
            path.endswith(("/driver", unit.device.address)) for path in damage)


@pytest.mark.parametrize("path", MATTERS)
@settings(max_examples=8, deadline=None)
@given(st.text(max_size=12).map(lambda text: f"?\x01{text}"))
def test_garbage_that_matters_is_told_where_it_is(path: str, garbage: str) -> None:
    assert path in {warning.path for warning in scan.scan(with_entry(path, garbage)).warnings}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.sampled_from(sorted(TREE.entries)), max_size=200))
def test_entries_may_vanish_while_a_scan_goes_on(vanishing: set[str]) -> None:
    """Each entry is there when its folder is listed and gone when it is read."""

    class Vanishing(MemoryTree):
        def read(self, path: str) -> str | None:
            return None if path in vanishing else super().read(path)

        def link(self, path: str) -> str | None:
            return None if path in vanishing else super().link(path)

    scan.scan(Vanishing(TREE.entries))
