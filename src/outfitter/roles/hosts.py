"""Hosts as the node agent takes them: this one, or simulated ones; and what builds and runs their VMs. Called by `app` and by
the role `node`."""

from __future__ import annotations

import os
import re
import socket
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outfitter.api.device import DRIVER
from outfitter.api.hypervisor import DRIVES, Abilities, Domain, Hypervisor
from outfitter.api.kinds import Object
from outfitter.api.validate import names
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


@dataclass(frozen=True, slots=True)
class HostArgument:
    """An argument --host NAME=URI[,root=DIR]."""

    name: str
    uri: str  # of libvirt, or "simulated"
    root: Path = Path("/")  # of its sysfs and its devices

    @classmethod
    def parse(cls, text: str) -> HostArgument:
        name, found, rest = text.partition("=")
        uri, rooted, root = rest.rpartition(",root=")
        if not rooted:
            uri, root = rest, "/"
        wrong = next((cause.message for cause in names.subdomain(name, "name")), "") if name else "it has no name"
        if not found or not uri or wrong:
            raise StartupRefused(f"--host {text}: {wrong or 'it has no URI'}: it is NAME=URI or NAME=URI,root=DIR, such as "
                                 "host-a=qemu+unix:///system?socket=/run/a/libvirt-sock")
        if uri != "simulated" and "://" not in uri:
            raise StartupRefused(f"--host {text}: {uri} is no URI of libvirt, such as {libvirt.SYSTEM}, and not simulated")
        if (option := re.search(r",([A-Za-z_-]+)=[^,]*$", uri)):
            raise StartupRefused(f"--host {text}: {option[1]} is no option of a host, root is: NAME=URI,root=DIR")
        if not Path(root).is_dir():
            raise StartupRefused(f"--host {text}: there is no directory {root}")
        return cls(name, uri, Path(root).resolve())


def listed_hosts(arguments: Sequence[HostArgument], data: Path, config: Config = DEFAULT) -> list[AgentHost]:
    """Several hosts, each with its own libvirt and its own tree: two of one tree would offer its devices twice."""
    for index, one in enumerate(arguments):
        for other in arguments[:index]:
            for what, same in (("name", one.name == other.name), ("libvirt", one.uri == other.uri != "simulated"),
                               ("tree", one.root == other.root)):
                if same:
                    raise StartupRefused(f"--host {one.name} and --host {other.name} have the same {what}: a host has its own "
                                         f"name, libvirt and tree (--host {one.name}={one.uri},root=DIR)")
    out = []
    for one in arguments:
        runs: Hypervisor = Simulated(data / "domains" / one.name)
        if one.uri != "simulated":
            connection.library()
            folder = data / "hosts" / one.name / "drives" if os.geteuid() else Path(DRIVES) / one.name
            runs = libvirt.Libvirt(one.uri, drives=str(folder))
        host = this_host(one.name, runs, data, one.root, config, empty=True)
        assert host is not None  # also one that has nothing to offer
        out.append(host)
    return out


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
