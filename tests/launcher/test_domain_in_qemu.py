"""A real QEMU under a real libvirt: what is built starts, and the guest's firmware gives every device the address we chose."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from outfitter.launcher import iso_image as drives
from outfitter.launcher.domain_options import DomainOptions
from tests.launcher.domain_cases import PASSED, SITUATIONS, Situation, got, instance, wanted

CONFIG = """user="{user}"
group="{group}"
dynamic_ownership=0
remember_owner=0
security_driver="none"
stdio_handler="file"
cgroup_controllers=[]
namespaces=[]
"""
PATIENCE = 600.0  # seconds until the firmware has looked at every bus; it takes a few, and many on a busy machine
REFUSED = "error: Failed to create domain"
ROOM = 40  # letters of a folder, so that there is room for the names of sockets below it
MARK = re.compile(r"Bus +(\d+), device +(\d+), function (\d+):\s+(?:Ethernet|SCSI) controller")


def machine(folder: Path) -> Situation:
    disk = folder / "disk.img"
    disk.write_bytes(bytes(1 << 20))
    nics = [{"name": f"n{number}", "slirp": {}, "tag": f"n{number}"} for number in range(3)]
    nics[2]["pciAddress"] = "0000:0b:03.0"
    return Situation(instance(
        {"interfaces": nics, "disks": [{"name": "d", "disk": {"bus": "virtio", "readonly": True}, "tag": "d"}],
         "gpus": [wanted("near", tag="near"), wanted("far", tag="far")], "rng": {}, "autoattachGraphicsDevice": True},
        {"gpuStatuses": [got("near", pciAddress="0000:17:00.0", numaNode=0),
                         got("far", pciAddress="0000:65:00.0", numaNode=1)]},
        memory={"guest": "128Mi"}, cpu={"cores": 2, **PASSED}, spec={
            "networks": [{"name": nic["name"], "pod": {}} for nic in nics],
            "volumes": [{"name": "d", "hostDisk": {"path": str(disk)}}]}), options=DomainOptions(drives=str(folder)))


def crowded(folder: Path) -> Situation:
    """As many interfaces as fit beside the highest node, more disks than a controller takes, and nothing else on the guest's
    own bus: whatever libvirt added would come first."""
    nics = [{"name": f"n{number}", "slirp": {}, "tag": f"n{number}"} for number in range(16)]
    disks = [(f"{bus}{number}", bus) for number in range(7) for bus in ("sata", "scsi")]
    for name, _ in disks:
        (folder / name).write_bytes(bytes(1 << 20))
    return Situation(instance(
        {"interfaces": nics, "disks": [{"name": name, "disk": {"bus": bus}} for name, bus in disks],
         "gpus": [wanted("g", tag="g")]}, {"gpuStatuses": [got("g", pciAddress="0000:65:00.0", numaNode=5)]},
        memory={"guest": "128Mi"}, cpu=PASSED, spec={
            "networks": [{"name": nic["name"], "pod": {}} for nic in nics],
            "volumes": [{"name": name, "hostDisk": {"path": str(folder / name)}} for name, _ in disks]}),
        options=DomainOptions(drives=str(folder)))


MACHINES: dict[str, tuple[Callable[[Path], Situation], dict[str, str]]] = {
    "one of each": (machine, {"n0": "0000:01:00.0", "n1": "0000:05:00.0", "n2": "0000:0b:03.0", "d": "0000:04:00.0",
                              "near": "0000:e3:00.0", "far": "0000:c7:00.0"}),
    "crowded": (crowded, {"g": "0000:43:00.0", **{f"n{number}": f"0000:{1 + 4 * number:02x}:00.0" for number in range(16)}}),
}


def without_hardware(xml: str) -> str:
    """The same domain on a host without such hardware: emulated cards at the same guest addresses, memory from
    anywhere."""
    root = ET.fromstring(xml)
    devices, tune = root.find("devices"), root.find("numatune")
    assert devices is not None
    assert tune is not None
    root.remove(tune)
    for hostdev in devices.findall("hostdev"):
        card = ET.Element("interface", type="user")
        ET.SubElement(card, "model", type="virtio")
        address = hostdev.find("address")
        assert address is not None
        card.append(address)
        devices.remove(hostdev)
        devices.append(card)
    return ET.tostring(root, encoding="unicode")


MISSING = not (shutil.which("virsh") and shutil.which("qemu-system-x86_64"))
needed = pytest.mark.skipif(MISSING, reason="needs virsh and qemu-system-x86_64 (Debian: libvirt-clients "
                                            "libvirt-daemon-system qemu-system-x86)")
OTHER_MACHINES = ("arm", "tagged-on-arm", "sata-on-arm", "mainframe")  # their emulators are packages of their own


@pytest.fixture
def root() -> Iterator[Path]:
    """The folder of a hypervisor that lives in virsh alone; its name is short, because names of sockets have to be."""
    with tempfile.TemporaryDirectory(prefix="outfit-", dir=None if len(tempfile.gettempdir()) <= ROOM else "/tmp") as folder:
        (Path(folder) / "etc").mkdir()
        (Path(folder) / "etc" / "qemu.conf").write_text(CONFIG.format(user=os.getuid(), group=os.getgid()))
        yield Path(folder)


def at_home(root: Path) -> dict[str, str]:
    """Where virsh may write, which its user's home need not be."""
    return {**os.environ, **dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), str(root))}


def for_this_machine(xml: str) -> str:
    """libvirt takes no VM of a kind that it could not run here."""
    return xml if os.access("/dev/kvm", os.R_OK | os.W_OK) else xml.replace(' type="kvm">', ' type="qemu">', 1)


@pytest.mark.parts
@needed
def test_libvirt_accepts_every_domain_case(root: Path) -> None:
    """Its rules are stricter than its schema: which bus has which slots, what a kind of disk can be."""
    names = [name for name in SITUATIONS if name not in OTHER_MACHINES]
    for name in names:
        (root / f"{name}.xml").write_text(for_this_machine(SITUATIONS[name].build().xml))
    words = "".join(f"define --validate {root / name}.xml\nundefine here_blue\n" for name in names)
    done = subprocess.run(["virsh", "-c", f"qemu:///embed?root={root}"], input=words, capture_output=True, text=True,
                          env=at_home(root), timeout=PATIENCE, check=False)
    assert [line for line in done.stderr.splitlines() if line.startswith("error")] == []
    assert done.stdout.count("has been undefined") == len(names)


@pytest.mark.parts
@needed
def test_libvirt_accepts_the_longest_name(root: Path) -> None:
    """It makes files of it when a domain is defined, and more when it is started."""
    given_ = instance(memory={"guest": "32Mi"})
    given_["metadata"] |= {"namespace": "n" * 63, "name": "v" * 253}
    built = Situation(given_).build()
    (root / "it.xml").write_text(built.xml)
    words = f"define --validate {root}/it.xml\nstart --paused {built.name}\ndestroy {built.name}\nundefine {built.name}\n"
    done = subprocess.run(["virsh", "-c", f"qemu:///embed?root={root}"], input=words, capture_output=True, text=True,
                          env=at_home(root), timeout=PATIENCE, check=False)
    assert [line for line in done.stderr.splitlines() if line.startswith("error")] == []
    assert "has been undefined" in done.stdout


@pytest.mark.parts
@needed
@pytest.mark.parametrize("name", MACHINES)
def test_guest_sees_its_metadata(root: Path, name: str) -> None:
    made, addresses = MACHINES[name]
    built = made(root).build()
    assert built.drive is not None
    drives.write(built.drive)
    told = {one["tags"][0]: one["address"] for one in json.loads(built.guest_metadata)["devices"]}
    (root / "it.xml").write_text(without_hardware(built.xml))
    said = root / "said"
    with said.open("w") as out, subprocess.Popen(
            ["virsh", "-q", "-c", f"qemu:///embed?root={root}"], stdin=subprocess.PIPE, stdout=out,
            stderr=subprocess.STDOUT, text=True, env=at_home(root)) as virsh:
        assert virsh.stdin is not None
        print(f"create {root / 'it.xml'}", file=virsh.stdin, flush=True)
        seen: set[str] = set()
        until, text = time.monotonic() + PATIENCE, ""
        while time.monotonic() < until and virsh.poll() is None and REFUSED not in text and not set(told.values()) <= seen:
            time.sleep(1)  # a real firmware at work: nothing here reports when it is done
            print("qemu-monitor-command here_blue --hmp 'info pci'", file=virsh.stdin, flush=True)
            text = said.read_text()
            seen = {f"0000:{int(bus):02x}:{int(slot):02x}.{function}" for bus, slot, function in MARK.findall(text)}
        print("destroy here_blue\nquit", file=virsh.stdin, flush=True)
    assert set(told.values()) <= seen, said.read_text()[-3000:]
    assert told == addresses
