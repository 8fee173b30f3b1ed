"""The simulated kernel does what Linux does, where our code could tell the difference."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from pathlib import Path

import pytest

from outfitter.inventory import capture, scan
from outfitter.inventory.simulation import hosts_file
from outfitter.node.atomic_files import FolderFiles
from outfitter.node.simulation.kernel import SimulatedKernel
from outfitter.node.simulation.root import SimulatedRoot
from tests.node.prepare_host import BOUND, CAPTURED, NIC, NVME, folder, kernel

SSD, PF, CARD = "0000:66:00.0", "0000:3b:00.0", "0000:68:00.0"
PCI = "/sys/bus/pci"

REFUSALS = {
    "unbind from a driver that has it not": (f"{PCI}/drivers/ice/unbind", SSD, errno.ENODEV),
    "unbind what is not there": (f"{PCI}/drivers/nvme/unbind", "0000:99:00.0", errno.ENODEV),
    "a driver that is not loaded": (f"{PCI}/drivers/nouveau/unbind", SSD, errno.ENOENT),
    "bind what has a driver": (f"{PCI}/drivers/vfio-pci/bind", SSD, errno.ENODEV),
    "probe what is not there": (f"{PCI}/drivers_probe", "0000:99:00.0", errno.ENODEV),
    "another number of virtual functions": (f"{PCI}/devices/{PF}/sriov_numvfs", "3", errno.EBUSY),
    "more than the card can": (f"{PCI}/devices/{PF}/sriov_numvfs", "9", errno.ERANGE),
    "no number": (f"{PCI}/devices/{PF}/sriov_numvfs", "x", errno.EINVAL),
    "a reset of nothing": (f"{PCI}/devices/0000:99:00.0/reset", "1", errno.ENOENT),
    "an attribute that is only read": (f"{PCI}/devices/{SSD}/vendor", "0x1", errno.EACCES),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_writes_that_fail(name: str) -> None:
    path, text, number = REFUSALS[name]
    played = kernel(f"{NIC % 2}, {NVME}")
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        played.write(path, text)
    assert caught.value.errno == number
    assert not played.changes()


def test_an_override_that_is_cleared_reads_null() -> None:
    played = kernel(NVME)
    path = f"{PCI}/devices/{SSD}/driver_override"
    assert played.read(path) == "(null)\n"
    played.write(path, "vfio-pci")
    assert played.read(path) == "vfio-pci\n"
    played.write(path, "\n")
    assert played.read(path) == "(null)\n"
    assert not played.changes()


def test_unbinding_a_driver_removes_its_interface() -> None:
    played = kernel(NIC % 0)
    [before] = [device for device in scan.scan(played).devices if device.address == PF]
    assert before.interfaces == ("ens1f0",)
    played.write(f"{PCI}/drivers/ice/unbind", PF)
    [without] = [device for device in scan.scan(played).devices if device.address == PF]
    assert (without.interfaces, without.driver, played.names("/sys/class/net")) == ((), None, [])
    played.write(f"{PCI}/drivers_probe", PF)
    assert [device for device in scan.scan(played).devices if device.address == PF] == [before]
    assert not played.changes()


def test_virtual_functions_come_and_go() -> None:
    played = kernel(NIC % 2)
    first = scan.scan(played)
    path = f"{PCI}/devices/{PF}/sriov_numvfs"
    played.write(path, "0")
    assert [device.address for device in scan.scan(played).devices] == [PF]
    played.write(path, "4")
    found = scan.scan(played)
    assert found.warnings == ()
    assert [(device.address, device.parent, device.vf_index) for device in found.devices[1:]] == [
        (f"0000:3b:01.{index}", PF, index) for index in range(4)]
    assert len({device.iommu_group for device in found.devices}) == 5
    played.write(path, "0")
    played.write(path, "2")
    assert scan.scan(played) == first


def test_on_a_captured_host_too() -> None:
    played = SimulatedKernel(capture.load(CAPTURED / "qemu-host.json"))
    before = scan.scan(played)
    played.write(f"{PCI}/devices/0000:21:00.0/sriov_numvfs", "0")
    assert len(scan.scan(played).devices) == len(before.devices) - 4
    played.write(f"{PCI}/devices/0000:21:00.0/sriov_numvfs", "4")
    assert [device.address for device in scan.scan(played).devices] == [device.address for device in before.devices]
    types = "/sys/class/mdev_bus/mbochs/mdev_supported_types"
    uuid = "00000000-0000-4000-8000-000000000001"
    played.write(f"{types}/mbochs-large/create", uuid)
    assert played.read(f"{types}/mbochs-large/available_instances") == "2\n"
    found = scan.scan(played)
    assert found.warnings == before.warnings
    assert [(one.type_id, one.parent) for one in found.mdevs if one.uuid == uuid] == [("mbochs-large", "mbochs")]
    with pytest.raises(OSError, match="exists"):
        played.write(f"{types}/mbochs-large/create", uuid)
    played.write(f"/sys/bus/mdev/devices/{uuid}/remove", "1")
    assert scan.scan(played).mdevs == before.mdevs
    assert played.read(f"{types}/mbochs-large/available_instances") == "3\n"


def test_a_simulated_root_survives_its_process(tmp_path: Path) -> None:
    host = hosts_file.parse(f"hosts: [{{name: a, pci: [{NVME}, {BOUND}]}}]").hosts[0]

    def root() -> SimulatedRoot:
        return SimulatedRoot(host.tree, FolderFiles(tmp_path), OrderedDict())

    one = root()
    one.write(f"{PCI}/devices/{SSD}/driver_override", "vfio-pci")
    one.write(f"{PCI}/drivers/nvme/unbind", SSD)
    two = root()
    assert two.link(f"{PCI}/devices/{SSD}/driver") is None
    two.write(f"{PCI}/drivers_probe", SSD)
    three = root()
    assert [device.driver for device in scan.scan(three.look()).devices] == ["vfio-pci", "vfio-pci"]
    three.write(f"{PCI}/devices/{SSD}/driver_override", "\n")
    three.write(f"{PCI}/drivers/vfio-pci/unbind", SSD)
    three.write(f"{PCI}/drivers_probe", SSD)
    assert os.listdir(tmp_path) == []  # all is as it was: nothing to keep
    assert [device.driver for device in scan.scan(root().look()).devices] == ["nvme", "vfio-pci"]


def test_only_some_trees_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("outfitter.node.simulation.root.RECENT", 2)
    host, recent = hosts_file.parse(f"hosts: [{{name: a, pci: [{NVME}]}}]").hosts[0], OrderedDict[int, SimulatedRoot]()
    roots = [SimulatedRoot(host.tree, FolderFiles(tmp_path / str(number)), recent) for number in range(3)]
    for root in roots:
        root.write(f"{PCI}/drivers/nvme/unbind", SSD)
    assert [root._kernel is None for root in roots] == [True, False, False]
    assert all(root.link(f"{PCI}/devices/{SSD}/driver") is None for root in roots)


# -- a folder

def test_a_folder_is_written_below_its_root_alone(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    root = folder(hosts_file.parse(f"hosts: [{{name: a, pci: [{NVME}]}}]").hosts[0].tree(), tmp_path / "root")
    root.write(f"{PCI}/devices/{SSD}/driver_override", "vfio-pci")
    assert (root.read(f"{PCI}/devices/{SSD}/driver_override") or "").startswith("vfio-pci")
    with pytest.raises(FileNotFoundError):
        root.write(f"{PCI}/drivers/nvme/unbind", SSD)  # an attribute is never made
    (tmp_path / "root" / "way").symlink_to("../outside")
    with pytest.raises(OSError, match=r"No such file|symbolic"):
        root.write("/way", "theirs")
    assert (tmp_path / "outside").read_text() == "mine"
