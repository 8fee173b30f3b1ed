"""Collects the state of a host for `host_checks`: what its files say, from a tree, so that a captured or simulated host works
too; and, of the host that we run on, limits and permissions of this process. Reads only. What is not known is None."""

from __future__ import annotations

import os
import platform
import re
import resource
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import outfitter
from outfitter.api.assignment.kubelet_folder import KUBELET_DIR, TRACES
from outfitter.inventory import scan
from outfitter.inventory.host_tree import Tree
from outfitter.inventory.scan import Scan
from outfitter.inventory.sysfs_reader import GROUPS

KUBELET_FOLDERS = ("plugins", "plugins_registry", "pods")
HUGE_PAGES = "/sys/kernel/mm/hugepages"
VFIO_FILE, KVM_FILE = "/dev/vfio/vfio", "/dev/kvm"
MODULES = {"vfio-pci": "vfio_pci", "kvm_intel": "kvm_intel", "kvm_amd": "kvm_amd"}  # name -> folder in /sys/module
SECRET_FILES = ("pki/ca.key", "pki/server.key", "pki/admin.key", "pki/token", "kubeconfig")  # of the data folder


@dataclass(frozen=True, slots=True)
class FileState:
    """A file or folder, as this process sees it."""

    path: str
    mode: int  # permission bits
    owner: int
    writable: bool  # by this process, and readable
    folder: bool = False


@dataclass(frozen=True, slots=True)
class HugePages:
    size: int  # KiB
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class LibvirtState:
    reason: str  # why it cannot be used; empty when it can
    version: str = ""  # of the library


@dataclass(frozen=True, slots=True)
class CollectedHost:
    scan: Scan
    python: tuple[int, int] = (3, 11)
    version: str = outfitter.__version__
    kernel: str | None = None  # release
    command_line: str | None = None  # of the kernel
    cpu_vendor: str | None = None  # "GenuineIntel", "AuthenticAMD"
    iommu_groups: int = 0
    iommu_units: tuple[str, ...] = ()  # that the kernel drives: "dmar0", "ivhd0"
    modules: frozenset[str] = frozenset()  # of MODULES: loaded or built in
    loadable: frozenset[str] | None = None  # of MODULES; None: the tree has no modules of this kernel
    grubby: bool = False  # whether the command line is edited with grubby, as on Fedora, or in /etc/default/grub
    overrides: Mapping[str, str] = field(default_factory=dict)  # PCI address -> driver_override
    huge_pages: tuple[HugePages, ...] = ()
    devices_known: bool = False  # whether the tree contains /dev, and the next two are known
    vfio_file: FileState | None = None
    kvm_file: FileState | None = None
    user: int = 0  # who runs this process
    memlock: int | None = None  # bytes; -1: no limit
    libvirt: LibvirtState | None = None
    data_folder: FileState | None = None
    data_secrets: tuple[FileState, ...] = ()  # of SECRET_FILES, those that exist
    kubelet: Mapping[str, bool] | None = None  # of KUBELET_FOLDERS: whether it exists; None: no kubelet


def collect(
    tree: Tree, root: Path | None = None, *, data: Path | None = None, libvirt: LibvirtState | None = None
) -> CollectedHost:
    """`root`: the folder of the tree, for permissions; "/" is the host that we run on. None: the tree is a capture."""
    release = (tree.read("/proc/sys/kernel/osrelease") or "").strip() or None
    loaded = frozenset(name for name, folder in MODULES.items() if tree.exists(f"/sys/module/{folder}"))
    found = scan.scan(tree)
    is_this_host = root == Path("/")
    return CollectedHost(
        scan=found,
        python=(int(platform.python_version_tuple()[0]), int(platform.python_version_tuple()[1])),
        kernel=release,
        command_line=tree.read("/proc/cmdline"),
        cpu_vendor=_cpu_vendor(tree.read("/proc/cpuinfo")),
        iommu_groups=len(tree.names(GROUPS)),
        iommu_units=tuple(tree.names("/sys/class/iommu")),
        modules=loaded | ({"vfio-pci"} if tree.exists("/sys/bus/pci/drivers/vfio-pci") else frozenset()),
        loadable=_loadable(tree, release),
        grubby=tree.exists("/usr/sbin/grubby") or tree.exists("/sbin/grubby"),
        overrides=_overrides(tree, found),
        huge_pages=_huge_pages(tree),
        devices_known=root is not None and (root / "dev").is_dir(),
        vfio_file=_file(root, VFIO_FILE),
        kvm_file=_file(root, KVM_FILE),
        user=os.geteuid(),
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if is_this_host else None,
        libvirt=libvirt,
        data_folder=file_state(data) if data is not None else None,
        data_secrets=tuple(state for name in SECRET_FILES if data is not None and (state := file_state(data / name))),
        kubelet={name: tree.exists(f"{KUBELET_DIR}/{name}") for name in KUBELET_FOLDERS}
        if any(tree.exists(f"{KUBELET_DIR}/{name}") for name in TRACES) else None,
    )


def file_state(path: Path) -> FileState | None:
    """None: there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileState(str(path), stat.S_IMODE(status.st_mode), status.st_uid, os.access(path, os.R_OK | os.W_OK),
                     stat.S_ISDIR(status.st_mode))


def _file(root: Path | None, path: str) -> FileState | None:
    return None if root is None else file_state(root / path.lstrip("/"))


def _cpu_vendor(text: str | None) -> str | None:
    found = re.search(r"^vendor_id\s*:\s*(\S+)", text or "", re.MULTILINE)
    return found[1] if found else None


def _loadable(tree: Tree, release: str | None) -> frozenset[str] | None:
    """Modules of the running kernel that can be loaded or are built in."""
    for folder in (f"/lib/modules/{release}", f"/usr/lib/modules/{release}") if release else ():
        lists = [text for name in ("modules.dep", "modules.builtin") if (text := tree.read(f"{folder}/{name}")) is not None]
        if lists:
            files = {line.partition(":")[0].rpartition("/")[2].partition(".ko")[0] for text in lists
                     for line in text.splitlines()}
            return frozenset(name for name, other in MODULES.items() if files & {name, other, name.replace("_", "-")})
    return None


def _overrides(tree: Tree, found: Scan) -> dict[str, str]:
    texts = {device.address: (tree.read(f"{scan.DEVICES}/{device.address}/driver_override") or "").strip()
             for device in found.devices}
    return {address: text for address, text in texts.items() if text and text != "(null)"}


def _huge_pages(tree: Tree) -> tuple[HugePages, ...]:
    def number(folder: str, name: str) -> int:
        text = (tree.read(f"{HUGE_PAGES}/{folder}/{name}") or "").strip()
        return int(text) if text.isascii() and text.isdigit() else 0

    sizes = {folder: size for folder in tree.names(HUGE_PAGES) if (size := re.fullmatch(r"hugepages-([0-9]{1,9})kB", folder))}
    return tuple(HugePages(int(size[1]), number(folder, "nr_hugepages"), number(folder, "free_hugepages"))
                 for folder, size in sizes.items())
