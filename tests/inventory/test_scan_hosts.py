"""Captured hosts: what their people know to be in them is what a scan finds. tests/hosts/ holds the captures."""

from __future__ import annotations

from pathlib import Path

from outfitter.inventory import capture, scan
from outfitter.inventory.pci import FunctionKind, HostDevice

HOSTS = Path(__file__).parents[1] / "hosts"
QEMU = scan.scan(capture.load(HOSTS / "qemu-host.json"))


def of(**fields: object) -> list[HostDevice]:
    return [device for device in QEMU.devices if all(getattr(device, name) == value for name, value in fields.items())]


def test_a_host_in_qemu_is_sound() -> None:
    """A kernel 6.1 in QEMU with an emulated IOMMU, two expander bridges on two NUMA nodes, and the kernel's samples of
    mediated devices."""
    assert QEMU.warnings == ()
    assert len(QEMU.devices) == 24
    assert {device.pcie_root: device.numa for device in QEMU.devices} == {"pci0000:00": None, "pci0000:20": 0, "pci0000:40": 1}
    assert sum(device.is_bridge for device in QEMU.devices) == 9


def test_its_network_card_and_the_vfs_of_it() -> None:
    (card,) = of(vendor="8086", product="10c9")
    assert (card.kind, card.driver, card.total_vfs, card.num_vfs) == (FunctionKind.PF, "igb", 7, 4)
    assert (card.interfaces, card.class_code, card.name) == (("eth0",), "020000", "pci-0000-20-00-0-00-0")
    vfs = of(parent=card.address)
    # The functions of a VF are two apart on this card: an address cannot be computed from a number.
    assert [(vf.address, vf.vf_index, vf.product, vf.driver, vf.iommu_group) for vf in vfs] == [
        ("0000:21:10.0", 0, "10ca", "vfio-pci", 16), ("0000:21:10.2", 1, "10ca", None, 17),
        ("0000:21:10.4", 2, "10ca", None, 18), ("0000:21:10.6", 3, "10ca", None, 19)]
    assert [vf.name for vf in vfs] == [f"{card.name}-vf{number}" for number in range(4)]
    assert [vf.self_vfio for vf in vfs] == [True, False, False, False]


def test_its_nvme_disks_one_of_which_is_split() -> None:
    split, plain = (disk for disk in of(vendor="1b36", product="0010") if disk.parent is None)
    assert (split.kind, split.numa, split.total_vfs, split.num_vfs) == (FunctionKind.PF, 0, 4, 2)
    assert (plain.kind, plain.numa, plain.total_vfs) == (FunctionKind.PCI, 1, None)
    assert {disk.class_code for disk in (split, plain)} == {"010802"}
    assert [(vf.address, vf.driver, vf.vf_index) for vf in of(parent=split.address)] == [
        ("0000:22:00.1", "vfio-pci", 0), ("0000:22:00.2", None, 1)]


def test_its_display_cards_are_on_both_nodes_and_ready() -> None:
    assert [(gpu.address, gpu.numa, gpu.name, gpu.self_vfio) for gpu in of(vendor="1234", product="1111")] == [
        ("0000:23:00.0", 0, "pci-0000-20-02-0-00-0", True), ("0000:41:00.0", 1, "pci-0000-40-00-0-00-0", True)]


def test_functions_that_share_a_group_know_each_other() -> None:
    assert {device.address: device.members for device in QEMU.devices if device.members} == {
        "0000:00:1f.0": ("0000:00:1f.2", "0000:00:1f.3"), "0000:00:1f.2": ("0000:00:1f.3",), "0000:00:1f.3": ("0000:00:1f.2",)}


def test_its_mediated_devices_hang_on_no_pci_function() -> None:
    assert {parent.name: {each.id: (each.available, len(each.instances)) for each in parent.types}
            for parent in QEMU.parents} == {
        "mbochs": {"mbochs-large": (3, 0), "mbochs-medium": (14, 1), "mbochs-small": (59, 1)},
        "mdpy": {"mdpy-hd": (3, 0), "mdpy-vga": (3, 1), "mdpy-xga": (3, 0)},
        "mtty": {"mtty-1": (24, 0), "mtty-2": (12, 0)},
    }
    assert [(mdev.parent, mdev.type_id, mdev.iommu_group, mdev.memory, mdev.numa) for mdev in QEMU.mdevs] == [
        ("mbochs", "mbochs-small", 22, 4 << 20, None), ("mbochs", "mbochs-medium", 23, 16 << 20, None),
        ("mdpy", "mdpy-vga", 24, None, None)]


def test_a_host_with_two_sockets_and_vgpus() -> None:
    """Bridges, a network card that is split, GPUs on both nodes, an NVMe disk, and a GPU that is cut into vGPUs."""
    found = scan.scan(capture.load(HOSTS / "vgpu-host.json"))
    assert found.warnings == ()
    ends = [device for device in found.devices if not device.is_bridge]
    assert [(device.name, device.kind.value, device.driver, device.numa) for device in ends] == [
        ("pci-0000-3a-00-0-00-0", "PF", "ice", 0),
        ("pci-0000-3a-00-0-00-0-vf0", "VF", "iavf", 0),
        ("pci-0000-3a-00-0-00-0-vf1", "VF", "vfio-pci", 0),
        ("pci-0000-3a-00-0-00-0-vf2", "VF", "vfio-pci", 0),
        ("pci-0000-3a-00-0-00-0-vf3", "VF", "vfio-pci", 0),
        ("pci-0000-5d-00-0-00-0", "PCI", "nvme", 0),
        ("pci-0000-64-00-0-00-0", "PCI", "vfio-pci", 0),
        ("pci-0000-b0-00-0-00-0", "PCI", "nvidia", 1),
        ("pci-0000-c9-00-0-00-0", "PCI", "nvidia", 1),
    ]
    assert next(device.serial for device in found.devices if device.driver == "nvme") == "S64HNE0R000001"
    assert [(each.id, each.available, len(each.instances)) for each in found.devices[-1].mdev_types] == [
        ("nvidia-230", 0, 0), ("nvidia-232", 2, 2), ("nvidia-234", 0, 0)]
    assert [(mdev.parent, mdev.type_name, mdev.numa, mdev.pcie_root, mdev.memory) for mdev in found.mdevs] == [
        ("0000:ca:00.0", "GRID T4-4Q", 1, "pci0000:c9", 4 << 30)] * 2
    assert [mdev.iommu_group for mdev in found.mdevs] == [24, 25]


def test_every_capture_holds_what_a_scan_asks_for_and_no_more() -> None:
    for path in HOSTS.glob("*.json"):
        tree = capture.load(path)
        captured = capture.record(tree)[1]
        assert {place for place, entry in tree.entries.items() if entry is not None} <= captured.keys(), path
