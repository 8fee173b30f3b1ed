"""Scanning: a description survives the way through the tree, and a damaged tree is reported, never trusted or feared."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfitter.inventory import assignable, scan
from outfitter.inventory.host_tree import Entry, FolderTree, Link, MemoryTree
from outfitter.inventory.mdev import Mdev, MdevType
from outfitter.inventory.pci import FunctionKind, HostDevice
from outfitter.inventory.simulation import hosts_file
from tests.inventory.host_trees import CARD, END, NUMBER, TEXT, TREE, capabilities, keyword, materialise, resource

ROOT = "/sys/devices/pci0000:3a/0000:3b:00.0"
VF = "/sys/devices/pci0000:3a/0000:3b:01.1"
GPU = "/sys/devices/pci0000:65/0000:65:00.0"


def without(removed: str) -> MemoryTree:
    return MemoryTree({path: entry for path, entry in TREE.entries.items() if path != removed})


def with_entry(path: str, entry: Entry) -> MemoryTree:
    return MemoryTree({**TREE.entries, path: entry})


def device(result: scan.Scan, address: str) -> HostDevice:
    return next(found for found in result.devices if found.address == address)


def test_simulated_host_is_scanned_as_described() -> None:
    result = scan.scan(TREE)
    assert result.warnings == ()
    assert [found.address for found in result.devices] == [
        "0000:3a:00.0", "0000:3b:00.0", "0000:3b:01.0", "0000:3b:01.1", "0000:65:00.0", "0000:65:00.1", "0000:65:00.2",
        "0000:66:00.0"]
    assert device(result, "0000:3b:00.0") == HostDevice(
        address="0000:3b:00.0", kind=FunctionKind.PF, vendor="8086", product="1592", class_code="020000", revision="02",
        driver="ice", parent=None, numa=0, pcie_root="pci0000:3a", iommu_group=2, members=(), serial="S-1",
        interfaces=("ens1f0",), name="pci-0000-3a-3b-00-0", total_vfs=2, num_vfs=2)
    assert device(result, "0000:3b:01.1") == HostDevice(
        address="0000:3b:01.1", kind=FunctionKind.VF, vendor="8086", product="1889", class_code="020000", revision="02",
        driver="vfio-pci", parent="0000:3b:00.0", numa=0, pcie_root="pci0000:3a", iommu_group=4, members=(), serial="S-1",
        interfaces=(), name="pci-0000-3a-3b-00-0-vf1", vf_index=1)
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


def test_a_folder_scans_like_the_memory_it_came_from(tmp_path: Path) -> None:
    assert scan.scan(materialise(TREE, tmp_path)) == scan.scan(TREE)


def test_vfs_share_iommu_groups_as_described() -> None:
    groups = {}
    for word in ("own", "shared", "parent", "none"):
        text = (f"hosts: [{{name: a, pci: [{{address: 0000:3b:00.0, vendor: 8086, product: 1592, "
                f"vfs: {{count: 2, iommuGroups: {word}}}}}]}}]")
        result = scan.scan(hosts_file.parse(text).hosts[0].tree())
        assert result.warnings == ()
        groups[word] = [found.iommu_group for found in result.devices]
    assert groups == {"own": [1, 2, 3], "shared": [1, 2, 2], "parent": [1, 1, 1], "none": [1, None, None]}


def test_open_groups_keep_clear_of_those_with_a_number() -> None:
    text = """hosts: [{name: a, pci: [
      {address: 0000:01:00.0, vendor: 8086, product: 1592}, {address: 0000:02:00.0, vendor: 8086, product: 1592, iommuGroup: 1},
      {address: 0000:03:00.0, vendor: 8086, product: 1592}]}]"""
    assert [d.iommu_group for d in scan.scan(hosts_file.parse(text).hosts[0].tree()).devices] == [2, 1, 3]


def test_addresses_are_sorted_by_number() -> None:
    text = """hosts: [{name: a, pci: [
      {address: 10000:01:00.0, vendor: 8086, product: 1592}, {address: 0000:e1:00.0, vendor: 8086, product: 1592}]}]"""
    assert [d.address for d in scan.scan(hosts_file.parse(text).hosts[0].tree()).devices] == ["0000:e1:00.0", "10000:01:00.0"]


def test_nvme_serial_is_read_from_the_nvme_folder() -> None:
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
    "another group than is listed": (
        f"{VF}/iommu_group",
        Link("/sys/kernel/iommu_groups/20"),
        "0000:3b:01.1",
        {"iommu_group": 20},
    ),
    "no group though one is listed": (f"{VF}/iommu_group", GONE, "0000:3b:01.1", {"iommu_group": 4}),
    "a group that does not list it": (
        "/sys/kernel/iommu_groups/4/devices/0000:3b:01.1",
        GONE,
        "0000:3b:01.1",
        {"iommu_group": 4},
    ),
    "a group with a strange name": ("/sys/kernel/iommu_groups/x/type", "DMA\n", "0000:3b:01.1", {"iommu_group": 4}),
    "a PF that is missing": (
        f"{VF}/physfn",
        Link("../0000:77:00.0"),
        "0000:3b:01.1",
        {"parent": "0000:77:00.0", "serial": None, "kind": FunctionKind.VF},
    ),
    "a PF that is a VF itself": (
        f"{VF}/physfn",
        Link("../0000:3b:01.0"),
        "0000:3b:01.1",
        {"parent": None, "kind": FunctionKind.VF},
    ),
    "a PF that knows of no VFs": (f"{VF}/physfn", Link("../0000:3a:00.0"), "0000:3b:01.1", {"parent": "0000:3a:00.0"}),
    "a VF that fell off the bus": (f"{VF}/vendor", "0xffff\n", "0000:3b:01.1", {"vendor": None}),
    "a driver with a name that cannot be typed": (f"{VF}/driver", Link("../a\x1b[31m"), "0000:3b:01.1", {"driver": None}),
    "a NUMA node that the host has not": (f"{VF}/numa_node", "7\n", "0000:3b:01.1", {"numa": None}),
    "more VFs than SR-IOV can count": (
        f"{ROOT}/sriov_totalvfs",
        "65536\n",
        "0000:3b:00.0",
        {"total_vfs": None, "kind": FunctionKind.PF},
    ),
    "no total": (f"{ROOT}/sriov_totalvfs", GONE, "0000:3b:00.0", {"total_vfs": None, "num_vfs": 2, "kind": FunctionKind.PF}),
    "an enabled number in words": (f"{ROOT}/sriov_numvfs", "all\n", "0000:3b:00.0", {"num_vfs": None, "total_vfs": 2}),
    "a VF link to nothing": (f"{ROOT}/virtfn1", Link("../x"), "0000:3b:01.1", {"vf_index": None, "parent": "0000:3b:00.0"}),
    "two VF links to one VF": (f"{ROOT}/virtfn2", Link("../0000:3b:01.1"), "0000:3b:01.1", {"vf_index": 1}),
    "a VF link to another's VF": (f"{ROOT}/virtfn1", Link("../../pci0000:65/0000:65:00.0"), "0000:65:00.0", {"vf_index": None}),
    "an interface with a control character": (f"{ROOT}/net/a\x01/mtu", "1\n", "0000:3b:00.0", {"interfaces": ("ens1f0",)}),
    "interfaces that are a file": (f"{GPU}/net", "eth0\n", "0000:65:00.0", {"interfaces": ()}),
    "a speed in words": (f"{ROOT}/net/ens1f0/speed", "fast\n", "0000:3b:00.0", {"speed": None}),
    "a function that only its group knows": (
        "/sys/bus/pci/devices/0000:65:00.1",
        GONE,
        "0000:65:00.0",
        {"members": ("0000:65:00.1",)},
    ),
    "mediated types that are a file": (f"{GPU}/mdev_supported_types", "x\n", "0000:65:00.0", {"mdev_types": ()}),
    "a vGPU type in words": (
        "/sys/devices/pci0000:3a/0000:3b:01.0/nvidia/current_vgpu_type",
        "big\n",
        "0000:3b:01.0",
        {"kind": FunctionKind.VF},
    ),
    "a PF that is no address": (f"{VF}/physfn", Link("../x"), "0000:3b:01.1", {"parent": None, "kind": FunctionKind.VF}),
    "a PF link in a circle": (f"{VF}/physfn", Link("physfn"), "0000:3b:01.1", {"parent": None, "kind": FunctionKind.VF}),
    "a total in words": (f"{ROOT}/sriov_totalvfs", "many\n", "0000:3b:00.0", {"kind": FunctionKind.PF}),
    "a VF link that is missing": (f"{ROOT}/virtfn1", GONE, "0000:3b:00.0", {"kind": FunctionKind.PF}),
    "a serial number of nonsense": (f"{ROOT}/serial_number", "\x01\x02\n", "0000:3b:01.1", {"serial": None}),
    "a serial number without end": (f"{ROOT}/serial_number", "9" * 65, "0000:3b:00.0", {"serial": None}),
    "a strange name among the devices": ("/sys/bus/pci/devices/usb1", Link("../../../devices/x"), "0000:3b:00.0", {}),
    "a path without a root": (
        "/sys/bus/pci/devices/0000:66:00.0",
        Link("/sys/devices/pci0000:66/0000:66:00.0/odd"),
        "0000:3b:00.0",
        {},
    ),
}


@pytest.mark.parametrize(("path", "entry", "address", "known"), ODDITIES.values(), ids=ODDITIES)
def test_inconsistency_is_reported_and_the_rest_read(path: str, entry: object, address: str, known: dict[str, object]) -> None:
    assert entry is not GONE or path in TREE.entries
    tree = without(path) if entry is GONE else MemoryTree({**TREE.entries, path: entry})  # type: ignore[dict-item]
    result = scan.scan(tree)
    assert result.warnings
    found = device(result, address)
    assert {field: getattr(found, field) for field in known} == known


def test_pf_and_vf_each_report_what_is_missing() -> None:
    result = scan.scan(with_entry(f"{ROOT}/virtfn1", Link("../x")))
    assert [str(warning) for warning in result.warnings] == [
        f"{ROOT}/virtfn1: does not link to a PCI address",
        "/sys/bus/pci/devices/0000:3b:01.1: is a VF of 0000:3b:00.0, which has no virtfn link to it"]


def test_vanished_function_is_reported_and_skipped() -> None:
    tree = MemoryTree({path: entry for path, entry in TREE.entries.items() if not path.startswith(f"{GPU}/")})
    result = scan.scan(tree)
    assert "0000:65:00.0" not in {found.address for found in result.devices}
    assert [str(warning) for warning in result.warnings] == [
        "/sys/bus/pci/devices/0000:65:00.0: is a broken link or empty; the function is skipped"]
    # Its neighbour still knows of it, and is not given away without it.
    assert device(result, "0000:65:00.1").members == ("0000:65:00.0",)
    assert "pci-0000-65-00-1" not in {entry.name for entry in assignable.assignable(result.devices).offered}


def test_invalid_sysfs_tree_is_reported(tmp_path: Path) -> None:
    result = scan.scan(FolderTree(tmp_path))
    assert result.devices == ()
    assert "root of the tree" in str(result.warnings[0])


def test_a_total_of_none_is_no_pf() -> None:
    tree = with_entry(f"{GPU}/sriov_totalvfs", "0\n")
    found = device(scan.scan(tree), "0000:65:00.0")
    assert (found.kind, found.total_vfs, found.num_vfs) == (FunctionKind.PCI, None, None)


# What stands below a VF, its driver, and what kind that makes it; and whether its driver hands it to a VM.
KINDS: dict[str, tuple[dict[str, Entry], str, FunctionKind, bool]] = {
    "bound to the host's driver": ({}, "iavf", FunctionKind.VF, False),
    "bound to vfio-pci": ({"vfio-dev/vfio3/dev": "511:3\n"}, "vfio-pci", FunctionKind.VF, True),
    "with a vdpa device": ({"vdpa0/driver_override": "(null)\n"}, "mlx5_core", FunctionKind.VDPA, False),
    "with something that is called like vdpa": ({"vdpa/x": "1\n"}, "mlx5_core", FunctionKind.VF, False),
    "bound to its vendor's VFIO driver": ({"vfio-dev/vfio3/dev": "511:3\n"}, "xe-vfio", FunctionKind.VENDOR_VF, True),
    "the same on a kernel without vfio-dev": ({}, "mlx5_vfio_pci", FunctionKind.VENDOR_VF, True),
    "a vGPU": ({"nvidia/current_vgpu_type": "1067\n"}, "nvidia", FunctionKind.VENDOR_VF, True),
    "a vGPU of no type yet": ({"nvidia/current_vgpu_type": "0\n"}, "nvidia", FunctionKind.VF, False),
}


@pytest.mark.parametrize(("below", "driver", "kind", "self_vfio"), KINDS.values(), ids=KINDS)
def test_kinds_of_vfs(below: dict[str, Entry], driver: str, kind: FunctionKind, self_vfio: bool) -> None:
    tree = MemoryTree({**TREE.entries, f"{VF}/driver": Link(f"/sys/bus/pci/drivers/{driver}"),
                       **{f"{VF}/{name}": entry for name, entry in below.items()}})
    result = scan.scan(tree)
    found = device(result, "0000:3b:01.1")
    assert result.warnings == ()
    assert (found.kind, found.self_vfio, found.vf_index, found.parent) == (kind, self_vfio, 1, "0000:3b:00.0")


def test_a_whole_function_may_have_a_vendors_vfio_driver() -> None:
    tree = with_entry(f"{GPU}/driver", Link("/sys/bus/pci/drivers/nvgrace-gpu-vfio-pci"))
    found = device(scan.scan(tree), "0000:65:00.0")
    assert (found.kind, found.self_vfio) == (FunctionKind.PCI, True)


@pytest.mark.parametrize(("speeds", "speed"), [
    ({"a": "25000\n"}, 25000), ({"a": "-1\n"}, None), ({"a": "-1\n", "b": "1000\n"}, 1000),
    ({"a": "100\n", "b": "1000\n"}, 100), ({"a": None}, None)])
def test_speed_is_that_of_the_first_interface_that_reports_one(speeds: dict[str, str | None], speed: int | None) -> None:
    result = scan.scan(MemoryTree({**TREE.entries, **{f"{GPU}/net/{name}/speed": text for name, text in speeds.items()}}))
    assert result.warnings == ()
    assert device(result, "0000:65:00.0").speed == speed


ROUND = bytearray(capabilities((1, b""), (2, b"")))
ROUND[0x110:0x114] = (2 | 0x100 << 20).to_bytes(4, "little")

CONFIGS: dict[str, tuple[bytes, str | None, bool]] = {
    "the serial number alone": (capabilities((3, NUMBER)), TEXT, True),
    "behind others": (capabilities((1, b""), (0x10, b"x"), (3, NUMBER)), TEXT, True),
    "others alone": (capabilities((1, b""), (0x10, b"x")), None, True),
    "nothing": (bytes(0x1000), None, True),
    "a bus that no longer answers": (b"\xff" * 0x1000, None, True),
    "what others than root may read": (bytes(64), None, True),
    "conventional PCI": (bytes(256), None, True),
    "a number that was never set": (capabilities((3, bytes(8))), None, True),
    "an end in the middle": (capabilities((3, NUMBER))[:0x108], None, True),
    "a circle": (bytes(ROUND), None, False),
    "a way out of the space": (bytes(0x100) + (1 | 0x040 << 20).to_bytes(4, "little") + bytes(0xE00), None, False),
}


@pytest.mark.parametrize(("config", "serial", "sound"), CONFIGS.values(), ids=CONFIGS)
def test_serial_number_is_read_from_the_configuration_space(config: bytes, serial: str | None, sound: bool) -> None:
    result = scan.scan(with_entry(f"{GPU}/config", config))
    assert device(result, "0000:65:00.0").serial == serial
    assert [warning.path for warning in result.warnings] == ([] if sound else [f"{GPU}/config"])


def test_others_than_root_may_not_read_serial_numbers() -> None:
    result = scan.scan(MemoryTree({**TREE.entries, f"{ROOT}/serial_number": None, f"{ROOT}/config": None, f"{ROOT}/vpd": None}))
    assert result.warnings == ()
    assert device(result, "0000:3b:00.0").serial is None


def test_a_number_that_was_never_set_is_none() -> None:
    result = scan.scan(with_entry(f"{ROOT}/serial_number", "00-00-00-00-00-00-00-00\n"))
    assert result.warnings == ()
    assert device(result, "0000:3b:01.1").serial is None


def test_a_vfs_own_serial_number_goes_first() -> None:
    result = scan.scan(with_entry(f"{VF}/config", capabilities((3, NUMBER))))
    assert [device(result, address).serial for address in ("0000:3b:00.0", "0000:3b:01.0", "0000:3b:01.1")] == [
        "S-1", "S-1", TEXT]


CARDS: dict[str, tuple[bytes, str | None, bool]] = {
    "a card": (CARD + END, "MT2116X00042", True),
    "without an end that is not needed": (CARD, "MT2116X00042", True),
    "without a number": (resource(0x90, keyword(b"PN", b"MCX6")) + END, None, True),
    "an empty number": (resource(0x90, keyword(b"SN", b"  ")) + END, None, True),
    "nothing that may be read": (b"", None, True),
    "nothing but an end": (END, None, True),
    "a number of control characters": (resource(0x90, keyword(b"SN", b"\x1b[31m")) + END, None, False),
    "never written": (b"\xff" * 64, None, False),
    "wiped": (bytes(64), None, False),
    "an end in the middle": (CARD[:30], None, False),
    "a keyword behind the end": (resource(0x90, b"SN\xffx") + END, None, False),
    "a resource without end": (resource(0x90, bytes(5000)) + END, None, False),
    "resources without end": (resource(0x82, b"") * 20, None, False),
}


@pytest.mark.parametrize(("data", "serial", "sound"), CARDS.values(), ids=CARDS)
def test_serial_number_of_a_nic(data: bytes, serial: str | None, sound: bool) -> None:
    result = scan.scan(with_entry(f"{ROOT}/vpd", data))
    assert [device(result, address).card_serial for address in ("0000:3b:00.0", "0000:3b:01.1", "0000:65:00.0")] == [
        serial, serial, None]
    assert [warning.path for warning in result.warnings] == ([] if sound else [f"{ROOT}/vpd"])


def test_slow_configuration_space_reads_are_limited_to_cards_that_need_them() -> None:
    result = scan.scan(with_entry(f"{GPU}/vpd", CARD + END))
    assert device(result, "0000:65:00.0").card_serial is None


UUID = "4b20d080-1b54-4048-85b3-a6a62d165c01"
VGPU = f"""
hosts:
- name: a
  numa: [{{id: 0, cpus: 0-3, memory: 1Gi}}, {{id: 1, cpus: 4-7, memory: 1Gi}}]
  pci:
  - address: 0000:ca:00.0
    vendor: 10de
    product: 1eb8
    class: 030200
    driver: nvidia
    numa: 1
    mdevTypes:
    - {{id: nvidia-231, name: GRID T4-8Q, description: "num_heads=4, framebuffer=8192M", available: 1, instances: [{UUID}]}}
"""
MDEVS = hosts_file.parse(VGPU).hosts[0].tree()
BASE = f"/sys/devices/pci0000:ca/0000:ca:00.0/{UUID}"
TYPE = "/sys/devices/pci0000:ca/0000:ca:00.0/mdev_supported_types/nvidia-231"


def test_mediated_devices_are_scanned_as_described() -> None:
    result = scan.scan(MDEVS)
    assert result.warnings == ()
    assert result.devices[0].mdev_types == (
        MdevType("nvidia-231", "GRID T4-8Q", "num_heads=4, framebuffer=8192M", "vfio-pci", 1, (UUID,)),)
    assert result.mdevs == (Mdev(uuid=UUID, type_id="nvidia-231", type_name="GRID T4-8Q", device_api="vfio-pci",
                                 parent="0000:ca:00.0", numa=1, pcie_root="pci0000:ca", iommu_group=2, memory=8 << 30,
                                 vendor="10de", product="1eb8", class_code="030200"),)
    assert result.mdevs[0].name == f"mdev-{UUID}"


UNKNOWN: dict[str, object] = {"type_id": "", "type_name": "", "device_api": "", "memory": None}
MDEV_ODDITIES: dict[str, tuple[str, object, dict[str, object] | None]] = {
    "no UUID": ("/sys/bus/mdev/devices/x", Link("../../../devices/x"), {}),
    "a UUID in capitals": (f"/sys/bus/mdev/devices/{UUID.upper()}", Link("../../../devices/x"), {}),
    "an instance that leads nowhere": (f"/sys/bus/mdev/devices/{UUID}", Link("../../../devices/x"), None),
    "an instance that is a file": (f"/sys/bus/mdev/devices/{UUID}", "x", None),
    "an instance that is gone": (f"/sys/bus/mdev/devices/{UUID}", GONE, None),
    "an instance below no parent": (f"/sys/bus/mdev/devices/{UUID}", Link("/sys/kernel/iommu_groups/2"), None),
    "no type": (f"{BASE}/mdev_type", GONE, UNKNOWN),
    "a type of no owner": (f"{BASE}/mdev_type", Link("../mdev_supported_types/x"), UNKNOWN),
    "a type that is a file": (f"{BASE}/mdev_type", "nvidia-231", UNKNOWN),
    "a type that does not list it": (f"{TYPE}/devices/{UUID}", GONE, {"type_id": "nvidia-231"}),
    "a type that lists no UUID": (f"{TYPE}/devices/x", Link("../x"), {"type_id": "nvidia-231"}),
    "a type that lists another": (f"{TYPE}/devices/{UUID[:-1]}9", Link("../x"), {"type_id": "nvidia-231"}),
    "a type with a strange id": ("/sys/devices/pci0000:ca/0000:ca:00.0/mdev_supported_types/a b/name", "x", {}),
    "no IOMMU group of its own": (f"{BASE}/iommu_group", GONE, {"iommu_group": 2}),
    "a group in words": (f"{BASE}/iommu_group", Link("../x"), {"iommu_group": 2}),
    "no API": (f"{TYPE}/device_api", GONE, {"device_api": ""}),
    "an API with a blank": (f"{TYPE}/device_api", "vfio pci\n", {"device_api": ""}),
    "how many in words": (f"{TYPE}/available_instances", "many\n", {}),
    "a name that cannot be printed": (f"{TYPE}/name", "GRID\x1b[31m\n", {"type_name": "nvidia-231"}),
    "a description that cannot be printed": (f"{TYPE}/description", "framebuffer=1M\x07", {"memory": None}),
    "a parent that is none": ("/sys/class/mdev_bus/x", Link("../../devices/x"), {}),
}


@pytest.mark.parametrize(("path", "entry", "known"), MDEV_ODDITIES.values(), ids=MDEV_ODDITIES)
def test_inconsistent_mediated_device_is_reported(path: str, entry: object, known: dict[str, object] | None) -> None:
    assert entry is not GONE or path in MDEVS.entries
    entries = {place: old for place, old in MDEVS.entries.items() if place != path}
    result = scan.scan(MemoryTree(entries if entry is GONE else {**entries, path: entry}))  # type: ignore[dict-item]
    assert result.warnings
    if known is None:
        assert result.mdevs == ()
    else:
        assert {field: getattr(result.mdevs[0], field) for field in known} == known


def test_mdev_instance_known_only_to_its_type_is_reported() -> None:
    entries = {path: entry for path, entry in MDEVS.entries.items() if not path.startswith("/sys/bus/mdev")}
    assert [str(warning) for warning in scan.scan(MemoryTree(entries)).warnings] == [
        f"/sys/bus/mdev/devices/{UUID}: is listed by 0000:ca:00.0 as nvidia-231, but does not exist as such"]


def test_a_parent_need_not_be_a_pci_function() -> None:
    place = "/sys/devices/virtual/mtty/mtty"
    tree = MemoryTree({
        **MDEVS.entries, "/sys/class/mdev_bus/mtty": Link("../../devices/virtual/mtty/mtty"),
        f"{place}/numa_node": "1\n",
        f"{place}/mdev_supported_types/mtty-1/available_instances": "24\n",
        f"{place}/mdev_supported_types/mtty-1/device_api": "vfio-pci\n",
        f"{place}/mdev_supported_types/mtty-1/devices/{UUID[:-1]}2": Link(f"../../../{UUID[:-1]}2"),
        f"{place}/{UUID[:-1]}2/mdev_type": Link("../mdev_supported_types/mtty-1"),
        f"/sys/bus/mdev/devices/{UUID[:-1]}2": Link(f"../../../devices/virtual/mtty/mtty/{UUID[:-1]}2"),
    })
    result = scan.scan(tree)
    assert result.warnings == ()
    assert [(parent.name, [each.id for each in parent.types]) for parent in result.parents] == [("mtty", ["mtty-1"])]
    assert result.mdevs[1] == Mdev(uuid=f"{UUID[:-1]}2", type_id="mtty-1", type_name="mtty-1", device_api="vfio-pci",
                                   parent="mtty", numa=1, pcie_root=None, iommu_group=None, memory=None)


@pytest.mark.parametrize(("description", "memory"), [
    ("num_heads=4, frl_config=60, framebuffer=2048M, max_instance=2", 2 << 30), ("framebuffer: 4G", 4 << 30),
    ("virtual display, 16 MB video memory", 16 << 20), ("virtual display, 640x480 framebuffer", None), ("", None),
    ("framebuffer=99999999999M", None)])
def test_memory_is_read_from_a_description(description: str, memory: int | None) -> None:
    tree = MemoryTree({**MDEVS.entries, f"{TYPE}/description": description})
    assert scan.scan(tree).mdevs[0].memory == memory
