"""Which processes have a device open, as /proc and sysfs say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outfitter.inventory.host_tree import Entry, FolderTree, Link, MemoryTree
from outfitter.node.devices import device_holders as module
from outfitter.node.devices.device_holders import DeviceHolder, device_holders

GPU, UUID = "0000:65:00.0", "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
BASE = f"/sys/devices/pci0000:64/{GPU}"
HOST: dict[str, Entry] = {
    f"/sys/bus/pci/devices/{GPU}": Link(f"../../../devices/pci0000:64/{GPU}"),
    f"{BASE}/vendor": "0x10de\n",
    f"{BASE}/uevent": "DRIVER=nvidia\n",
    f"{BASE}/iommu_group": Link("../../../kernel/iommu_groups/7"),
    f"{BASE}/drm/card1/uevent": "MAJOR=226\nDEVNAME=dri/card1\nDEVTYPE=drm_minor\n",
    f"{BASE}/drm/card1/device": Link("../.."),
    f"{BASE}/vfio-dev/vfio3/uevent": "DEVNAME=vfio/devices/vfio3\n",
    f"{BASE}/{UUID}/iommu_group": Link("../../../../kernel/iommu_groups/9"),
    f"/sys/bus/mdev/devices/{UUID}": Link(f"../../../devices/pci0000:64/{GPU}/{UUID}"),
    "/sys/kernel/iommu_groups/7/type": "DMA\n",
    "/sys/kernel/iommu_groups/9/type": "DMA\n",
    f"/proc/driver/nvidia/gpus/{GPU}/information": "Model: \t\t Tesla T4\nDevice Minor: \t 2\n",
}


def process(pid: int, *files: str, comm: str | None = "it") -> dict[str, Entry]:
    said: dict[str, Entry] = {} if comm is None else {f"/proc/{pid}/comm": f"{comm}\n"}
    return said | {f"/proc/{pid}/fd/{number}": Link(file) for number, file in enumerate(files)}


CASES: dict[str, tuple[dict[str, Entry], str, list[DeviceHolder]]] = {
    "the VFIO group": (process(812, "/dev/null", "/dev/vfio/7", comm="qemu-system-x86"), GPU,
                       [DeviceHolder(812, "qemu-system-x86", "/dev/vfio/7")]),
    "a VFIO device of its own": (process(812, "/dev/vfio/devices/vfio3"), GPU,
                                 [DeviceHolder(812, "it", "/dev/vfio/devices/vfio3")]),
    "NVIDIA's node": (process(99, "/dev/nvidiactl", "/dev/nvidia2", comm="python3"), GPU,
                      [DeviceHolder(99, "python3", "/dev/nvidia2")]),
    "a node of another driver": (process(99, "/dev/dri/card1", comm="Xorg"), GPU, [DeviceHolder(99, "Xorg", "/dev/dri/card1")]),
    "the group of a mediated device": (process(812, "/dev/vfio/9"), UUID, [DeviceHolder(812, "it", "/dev/vfio/9")]),
    "not that of its parent": (process(812, "/dev/vfio/7"), UUID, []),
    "another device of the same kind": (process(812, "/dev/vfio/8", "/dev/nvidia1", "/dev/dri/card2"), GPU, []),
    "by pid, a process once": (process(1000, "/dev/vfio/7") | process(99, "/dev/vfio/7", "/dev/nvidia2"), GPU,
                               [DeviceHolder(99, "it", "/dev/vfio/7"), DeviceHolder(1000, "it", "/dev/vfio/7")]),
    "no more than three": ({path: entry for pid in range(10, 20) for path, entry in process(pid, "/dev/vfio/7").items()}, GPU,
                           [DeviceHolder(pid, "it", "/dev/vfio/7") for pid in (10, 11, 12)]),
    "what is no device": (process(5, "socket:[123]", "pipe:[7]", "/tmp/x (deleted)", "anon_inode:[eventfd]"), GPU, []),
    "a process that has just ended": ({"/proc/5": None, "/proc/6/fd": None, "/proc/self": Link("7")}, GPU, []),
    "a process that ends meanwhile": (process(812, "/dev/vfio/7", comm=None), GPU,
                                      [DeviceHolder(812, "unknown", "/dev/vfio/7")]),
    "a device that is not there": (process(812, "/dev/vfio/7"), "0000:99:00.0", []),
}


@pytest.mark.parametrize("name", CASES)
def test_who_has_a_device_open(name: str) -> None:
    processes, place, holders = CASES[name]
    assert list(device_holders(MemoryTree(HOST | processes), [place])) == holders


def test_the_search_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with very many files, and one behind it that is no longer looked at."""
    tree = MemoryTree(HOST | process(5, *(f"/tmp/{number}" for number in range(50))) | process(6, "/dev/vfio/7"))
    assert device_holders(tree, [GPU]) != ()
    monkeypatch.setattr(module, "MAX_FILES", 50)
    assert device_holders(tree, [GPU]) == ()
    deep = {f"{BASE}/a/{number}/uevent": f"DEVNAME=a{number}\n" for number in range(50)}
    assert len(list(module.device_nodes(MemoryTree(HOST | deep), GPU))) == 54
    monkeypatch.setattr(module, "MAX_FOLDERS", 10)
    assert len(list(module.device_nodes(MemoryTree(HOST | deep), GPU))) < 15


class Overlaid(FolderTree):
    """This VM, with a device of its own."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(Path("/"))
        self._tree = tree

    def read(self, path: str) -> str | None:
        return self._tree.read(path) if path.startswith("/sys/") else super().read(path)

    def names(self, path: str) -> list[str]:
        return self._tree.names(path) if path.startswith("/sys/") else super().names(path)

    def link(self, path: str) -> str | None:
        return self._tree.link(path) if path.startswith("/sys/") else super().link(path)

    def exists(self, path: str) -> bool:
        return self._tree.exists(path) if path.startswith("/sys/") else super().exists(path)


def test_process_of_this_host() -> None:
    master, terminal = os.openpty()
    try:
        node = os.ttyname(terminal)
        tree = Overlaid(MemoryTree(HOST | {f"{BASE}/tty/it/uevent": f"DEVNAME={node.removeprefix('/dev/')}\n"}))
        assert device_holders(tree, [GPU]) == (DeviceHolder(os.getpid(), Path("/proc/self/comm").read_text().strip(), node),)
    finally:
        os.close(master)
        os.close(terminal)
    assert device_holders(tree, [GPU]) == ()
