"""libvirt inside this process (qemu:///embed), with all its state in one short folder: sockets in it have short names alone."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from outfitter.api.hypervisor import Domain
from outfitter.launcher import domain

QEMU = "qemu-system-x86_64"
# QEMU as whoever runs the tests, and nothing of the system is touched: no labels, owners, cgroups, mount namespaces.
SETTINGS = """user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
stdio_handler = "file"
cgroup_controllers = []
namespaces = []
"""


def uri(root: Path) -> str:
    (root / "etc").mkdir(parents=True, exist_ok=True)
    (root / "etc" / "qemu.conf").write_text(SETTINGS)
    return f"qemu:///embed?root={root}"


def small(built: Domain, disk: Path, serial: Path | None = None) -> Domain:
    """A domain of ours with the tests' guest in it."""
    root = ET.fromstring(built.xml)
    devices = root.find("devices")
    assert devices is not None
    for kind in ("serial", "console"):  # the guest speaks on the first port
        for other in devices.findall(kind) if serial is not None else ():
            devices.remove(other)
    drive = ET.SubElement(devices, "disk", type="file", device="disk")
    ET.SubElement(drive, "driver", name="qemu", type="raw")
    ET.SubElement(drive, "source", file=str(disk))
    ET.SubElement(drive, "target", dev="vda", bus="virtio")
    ET.SubElement(drive, "readonly")
    if serial is not None:
        ET.SubElement(ET.SubElement(devices, "serial", type="file"), "source", path=str(serial))
    return domain.read(ET.tostring(root, encoding="unicode"))


def pid(root: Path, name: str) -> int:
    """The QEMU of a VM."""
    return int((root / "run" / "qemu" / f"{name}.pid").read_text())
