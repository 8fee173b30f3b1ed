"""What the tests of prepare and release share: a host with a simulated kernel, and claims for its devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from outfitter.api.kinds import Object
from outfitter.inventory import capture, config, host_devices, scan
from outfitter.inventory.host_tree import MemoryTree
from outfitter.inventory.simulation import hosts_file
from outfitter.node.atomic_files import Files, MemoryFiles
from outfitter.node.devices import passthrough_device
from outfitter.node.devices.prepare import AllocatedDevice, PreparedClaim, prepare
from outfitter.node.devices.unprepare import unprepare
from outfitter.node.host_env import HostEnv
from outfitter.node.simulation.kernel import SimulatedKernel
from outfitter.node.sysfs_root import FolderRoot
from tests.inventory import host_trees

DRIVER = "pci.outfitter.dev"
CAPTURED = Path(__file__).parent.parent / "hosts"
NVME = "{address: 0000:66:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}"
BARE = "{address: 0000:67:00.0, vendor: 144d, product: a80a, class: 010802, driver: none}"
BOUND = "{address: 0000:68:00.0, vendor: 10de, product: 20b0, class: 030200}"
GPU = ("{address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: nouveau, iommuGroup: 7}, "
       "{address: 0000:65:00.1, vendor: 10de, product: 1aef, class: 040300, driver: snd_hda_intel, iommuGroup: 7}")
NIC = ("{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, interface: ens1f0, "
       "vfs: {count: %d, total: 8, product: 1889, driver: iavf}}")
EVERYTHING = "device_spec: [{vendor_id: '*'}]"


class Written(SimulatedKernel):
    """Notes what is written to it, whether it succeeds or not."""

    writes: list[tuple[str, str]]

    def write(self, path: str, text: str) -> None:
        self.writes.append((path, text.strip()))
        super().write(path, text)


def kernel(pci: str) -> Written:
    made = Written(hosts_file.parse(f"hosts: [{{name: a, pci: [{pci}]}}]").hosts[0].tree())
    made.writes = []
    return made


def captured(name: str) -> Written:
    made = Written(capture.load(CAPTURED / name))
    made.writes = []
    return made


def folder(tree: MemoryTree, place: Path) -> FolderRoot:
    """A folder in the place of a VM: its attributes can be written, and do nothing."""
    host_trees.materialise(tree, place)
    return FolderRoot(place)


def claim(name: str = "gold", namespace: str = "here", uid: str = "uid-1", **meta: object) -> Object:
    return {"metadata": {"name": name, "namespace": namespace, "uid": uid, **meta}}


@dataclass
class Hand:
    """One host, and the hands that give its devices away."""

    kernel: SimulatedKernel
    spec: str = EVERYTHING
    state: Files = field(default_factory=MemoryFiles)
    cdi: Files = field(default_factory=MemoryFiles)
    metadata: Files = field(default_factory=MemoryFiles)

    def __post_init__(self) -> None:
        self.host_env = self.fresh()

    def fresh(self) -> HostEnv:
        """As a new process has it."""
        return HostEnv("a", DRIVER, self.kernel, state=self.state, cdi=self.cdi, metadata=self.metadata)

    def target(self, address: str) -> passthrough_device.PassthroughDevice:
        seen = host_devices.host_devices("a", config.parse(self.spec).default, scan.scan(self.kernel))
        known = passthrough_device.of(seen)
        return known[seen.names[address]]

    def give(
        self, *addresses: str, to: Object | None = None, running: tuple[str, ...] = (), request: str = "gpu"
    ) -> PreparedClaim:
        wanted = [AllocatedDevice(self.target(address), request) for address in addresses]
        return prepare(self.host_env, to or claim(), wanted, running=running)

    def take(self, uid: str = "uid-1", running: tuple[str, ...] = ()) -> dict[str, str]:
        trouble = unprepare(self.host_env, uid, running=running)
        self.host_env.checkpoint.forget(uid)
        return trouble
