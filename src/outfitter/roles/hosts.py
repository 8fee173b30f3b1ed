"""Hosts as the node agent takes them: this one, or simulated ones; and what builds and runs their VMs. Called by `app` and by
the role `node`."""

from __future__ import annotations

import os
import socket
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

from outfitter.api.device import DRIVER
from outfitter.api.hypervisor import DRIVES, Abilities, Domain, Hypervisor
from outfitter.api.kinds import Object
from outfitter.errors import StartupRefused
from outfitter.inventory import assignable, scan
from outfitter.inventory.config import DEFAULT, Config
from outfitter.inventory.simulation.host import SimulatedHost
from outfitter.launcher import connection, domain, libvirt
from outfitter.launcher.domain_options import DomainOptions
from outfitter.launcher.simulated import Simulated
from outfitter.node.agent_host import AgentHost
from outfitter.node.atomic_files import FolderFiles, MemoryFiles
from outfitter.node.host_env import HostEnv
from outfitter.node.simulation.root import SimulatedRoot
from outfitter.node.sysfs_root import FolderRoot

CDI = "var/run/cdi"  # below a host's root: where container runtimes look for prepared devices
METADATA = "var/run/outfitter/metadata"  # and what they show to launchers
PATIENCE = 60.0  # seconds for which the kernel may think about one handover


def own_name() -> str:
    """The name of this host as nodes are named: short, in lower case."""
    return socket.gethostname().split(".")[0].lower() or "localhost"


def simulated_hosts(hosts: Sequence[SimulatedHost], data: Path | None = None, config: Config = DEFAULT) -> list[AgentHost]:
    """Hosts of a hosts file, as the node agent takes them; their VMs, and what was done to their devices, are stored below
    `data`."""
    recent: OrderedDict[int, SimulatedRoot] = OrderedDict()

    def simulated(host: SimulatedHost) -> AgentHost:
        def files(name: str) -> FolderFiles | MemoryFiles:
            return FolderFiles(data / "hosts" / host.name / name, durable=False) if data else MemoryFiles()

        root = SimulatedRoot(host.tree, files("kernel"), recent)
        env = HostEnv(host.name, host.publisher, root, state=files("state"), cdi=files("cdi"), metadata=files("metadata"))
        return AgentHost(host.name, host.publisher, root.look, Simulated(data / "domains" / host.name if data else None),
                    host.capacity(), host.labels, simulated=True, settings=config.for_host(host.name), env=env,
                    driver_profiles=host.driver_profiles)

    return [simulated(host) for host in hosts]


def hypervisor(kind: str | None, name: str, data: Path | None = None) -> tuple[Hypervisor, str]:
    """The hypervisor of this host, and why it was chosen: "libvirt", a URI of libvirt, "simulated", or None to let
    what is there decide. StartupRefused: libvirt was asked for and cannot be used."""
    drives = str(data / "hosts" / name / "drives") if data and os.geteuid() else DRIVES
    if kind is not None and kind != "simulated":
        if kind != "libvirt" and "://" not in kind:
            raise StartupRefused(f"--hypervisor {kind}: it is libvirt, simulated, or a URI of libvirt such as {libvirt.SYSTEM}")
        connection.library()
        uri = libvirt.SYSTEM if kind == "libvirt" else kind
        return libvirt.Libvirt(uri, drives=drives), f"its VMs run in libvirt at {uri}"
    reason = "as set by --hypervisor" if kind else libvirt.unavailable_reason()
    if not reason:
        return libvirt.Libvirt(drives=drives), f"its VMs run in libvirt at {libvirt.SYSTEM}"
    return Simulated(data / "domains" / name if data else None), f"its VMs are simulated: {reason}"


def this_host(
    name: str, runs: Hypervisor, data: Path | None = None, root: Path = Path("/"), config: Config = DEFAULT, *,
    empty: bool = False,
) -> AgentHost | None:
    """This host, if it has anything to offer: what device_spec lists, what it is asked to make, or else a function that is
    bound to vfio-pci; with `empty` in any case. Everything that is written on it stands below `root`, but for `data`."""
    tree, settings = FolderRoot(root), config.for_host(name)
    found = scan.scan(tree)
    asked = empty or settings.device_spec is not None or settings.sriov or settings.mdev
    if not asked and not assignable.assignable(found.devices, found.mdevs).offered:
        return None
    capacity = {"cpu": str(os.cpu_count() or 1), "memory": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))}
    state = data / "hosts" / name if data else None
    env = HostEnv(name, DRIVER, tree, state=FolderFiles(state / "state") if state else None,
                      cdi=FolderFiles(root / CDI, durable=False), metadata=FolderFiles(root / METADATA, durable=False),
                      dev=str(root / "dev"), patience=PATIENCE)
    return AgentHost(name, DRIVER, lambda: tree, runs, capacity, {}, simulated=False, settings=settings, env=env)


def build_domain(instance: Object, env: Mapping[str, str], files: Mapping[str, str], abilities: Abilities) -> Domain:
    return domain.build(
        instance,
        env,
        files,
        DomainOptions(type="kvm" if abilities.kvm else "qemu", simulated=abilities.simulated, drives=abilities.drives),
    )
