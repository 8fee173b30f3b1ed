"""Two libvirt daemons as two hosts of `outfit up`, with two bridges, and what is seen of their VMs from outside: domains of
either daemon, processes of QEMU, and taps of this kernel. Nothing here changes a VM. Needs root."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from outfitter.launcher import connection
from tests.e2e.process import ForkedUp, Up
from tests.hardware import daemon, guest
from tests.hardware.daemon import Daemon

HOSTS = ("host-a", "host-b")
PATIENCE = 300.0  # seconds; QEMU is slow on a loaded host
NETWORK = """
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {{name: {name}}}
spec: {{config: '{{"cniVersion": "0.3.1", "name": "{name}", "type": "bridge", "bridge": "{bridge}"}}'}}
"""
MACHINE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: {name}}}
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 0
      volumes: [{{name: root, hostDisk: {{path: {disk}, type: Disk, shared: true}}}}]
      networks: [{{name: default, pod: {{}}}}]
      domain:
        memory: {{guest: 32Mi}}
        devices:
          disks: [{{name: root, disk: {{bus: virtio}}}}]
          interfaces: [{{name: default, masquerade: {{}}}}]
"""


RUNNING, STARTING = 1, (3, 11)  # libvirt's: a state; paused, because it is starting up
ENDED_FOR_A_NIC = "unable to execute QEMU command 'netdev_del'"  # in the log of a daemon that ended a VM at its start


@dataclass(frozen=True, slots=True)
class DomainSeen:
    """A domain that a daemon has."""

    host: str
    uid: str
    state: tuple[int, int]  # libvirt's numbers of state and reason
    taps: frozenset[tuple[str, str]]  # its NICs on bridges: names of tap and bridge
    nics: frozenset[str]  # names of its NICs on bridges, as the VMI has them


class LibvirtHosts:
    """`networks`: names of network definitions, each with a bridge of its own."""

    def __init__(self, up: Up, daemons: dict[str, Daemon], networks: dict[str, str]) -> None:
        self.up, self.daemons, self.networks = up, daemons, networks
        self.mark = uuid.uuid4().hex[:6]  # no other process of this host has VMs of these names
        self._macs = (f"02:{self.mark[:2]}:{self.mark[2:4]}:{self.mark[4:]}:{number >> 8:02x}:{number & 255:02x}"
                      for number in itertools.count())

    def vm(self, name: str) -> str:
        """Its name in the API."""
        return f"{name}-{self.mark}"

    def mac(self) -> str:
        """Of a new NIC; taps of these tests are known by it."""
        return next(self._macs)

    def manifests(self, *names: str) -> str:
        """The network definitions and VMs of these names, each with the tests' guest on a disk of its own."""
        parts = [NETWORK.format(name=name, bridge=bridge) for name, bridge in self.networks.items()]
        for name in names:
            folder = self.up.data.parent / name
            folder.mkdir(exist_ok=True)
            parts.append(MACHINE.format(name=self.vm(name), disk=guest.image(folder)))
        return "---".join(parts)

    # -- what is seen from outside

    def domains(self, name: str) -> list[DomainSeen]:
        """By each daemon, running or only defined."""
        found, library = [], connection.library()
        for host, libvirtd in self.daemons.items():
            conn: Any = library.openReadOnly(libvirtd.uri)
            try:
                found += [_seen(host, dom) for dom in conn.listAllDomains(0) if dom.name() == f"default_{name}"]
            except library.libvirtError as error:
                if error.get_error_code() != library.VIR_ERR_NO_DOMAIN:  # it went while it was read
                    raise
            finally:
                conn.close()
        return found

    def ended_by_libvirt(self) -> int:
        """How many VMs the daemons ended at their start, because they were killed between QEMU's removal of a NIC and their own
        note of it. Nothing but libvirt can close that gap of milliseconds."""
        return sum((libvirtd.folder / "daemon.log").read_text().count(ENDED_FOR_A_NIC) for libvirtd in self.daemons.values())

    def taps(self) -> set[tuple[str, str]]:
        """Those of this kernel that belong to VMs of these tests, and their bridges; "" for none."""
        links = json.loads(subprocess.run(["ip", "-json", "link", "show"], check=True, capture_output=True, text=True).stdout)
        ours = ":".join(["", self.mark[:2], self.mark[2:4], self.mark[4:], ""])
        return {(link["ifname"], link.get("master", "")) for link in links
                if link["ifname"] not in self.networks.values()  # a bridge has the address of one of its taps
                and (ours in link.get("address", "") or link.get("master") in self.networks.values())}

    def glimpse(self) -> tuple[frozenset[str], ...]:
        """What changes while NICs are plugged and VMs migrate, cheap enough to be looked at in every millisecond: taps of the
        bridges, and QEMUs that each daemon has."""
        return (*(frozenset(_entries(Path(f"/sys/class/net/{bridge}/brif"))) for bridge in self.networks.values()),
                *(frozenset(name for name in _entries(libvirtd.folder / "run" / "qemu") if name.endswith(".pid"))
                  for libvirtd in self.daemons.values()))


def _seen(host: str, dom: Any) -> DomainSeen:
    taps, nics = set(), set()
    for interface in ET.fromstring(dom.XMLDesc(0)).iterfind("devices/interface[@type='bridge']"):
        parts = {part.tag: part for part in interface}
        taps.add((parts["target"].get("dev", "") if "target" in parts else "", parts["source"].get("bridge", "")))
        nics.add(parts["alias"].get("name", "").removeprefix("ua-"))
    return DomainSeen(host, dom.UUIDString(), (dom.state()[0], dom.state()[1]), frozenset(taps), frozenset(nics))


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def qemus(names: Iterable[str]) -> Counter[str]:
    """The QEMUs of VMs of these names, by the processes that there are."""
    wanted, found = {f"default_{name}" for name in names}, Counter[str]()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            if b"-name" in words and (place / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                name = words[words.index(b"-name") + 1].decode().partition(",")[0].removeprefix("guest=")
                found.update([name] if name in wanted else [])
    return found


@contextmanager
def bridges(*networks: str) -> Iterator[dict[str, str]]:
    """A bridge for each network, of which nothing is left afterwards."""
    mark = uuid.uuid4().hex[:6]
    made = {network: f"of{mark}{number}" for number, network in enumerate(networks)}
    try:
        for bridge in made.values():
            done = subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=False, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"needs a kernel with bridges: {done.stderr.strip()}")
        yield made
    finally:
        for bridge in made.values():
            subprocess.run(["ip", "link", "delete", bridge], check=False, capture_output=True)


@contextmanager
def two_hosts(config: str = "") -> Iterator[LibvirtHosts]:
    """Two daemons with the bridges of this kernel, and trees that have nothing else; `outfit up` has to be started."""
    folder = Path(tempfile.mkdtemp(prefix="outfit-hosts-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        networks = stack.enter_context(bridges("lan", "wan"))
        daemons = {name: stack.enter_context(daemon.own(name)) for name in HOSTS}
        words = []
        for name, libvirtd in daemons.items():
            (folder / name / "sys" / "bus" / "pci" / "devices").mkdir(parents=True)
            for bridge in networks.values():
                (folder / name / "sys" / "class" / "net" / bridge / "bridge").mkdir(parents=True)
            words += ["--host", f"{name}={libvirtd.uri},root={folder / name}"]
        if config:
            (folder / "outfitter.yaml").write_text(config)
            words += ["--config", str(folder / "outfitter.yaml")]
        up = ForkedUp(folder / "data", *words, simulate=None, patience=PATIENCE)
        stack.callback(up.kill)
        yield LibvirtHosts(up, daemons, networks)
