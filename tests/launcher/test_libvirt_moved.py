"""The XML of a domain on the host that it migrates to (`domain.moved`), by libvirt itself: a VM between two daemons, whose
config drive and bridge are others on the target and whose other NIC is unplugged before and plugged after; and host devices
that are exchanged, which no daemon starts without hardware, by libvirt's check that a guest sees no difference: the one that a
migration makes too."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from outfitter.api.hypervisor import MigrationLimits, MigrationTarget
from outfitter.launcher import connection, domain
from tests.e2e import libvirt_hosts
from tests.hardware import daemon
from tests.hardware.daemon import Daemon
from tests.launcher import domain_cases
from tests.launcher.hypervisor_hosts import UID, Real, needs_libvirt, until
from tests.launcher.test_hypervisor_nics import nics, plug, unplug, with_nics

pytestmark = [pytest.mark.libvirt, needs_libvirt]
SEED = "#cloud-config\nhostname: blue\n"
HEADER = struct.Struct("=16s2I2iI14I")  # of a saved domain: libvirt reads the XML behind it
MAGIC, VERSION, ROOM = b"LibvirtQemudSave", 2, 1 << 16


@pytest.fixture(scope="module")
def daemons() -> Iterator[tuple[Daemon, Daemon]]:
    with ExitStack() as stack:
        yield stack.enter_context(daemon.own("moved-a")), stack.enter_context(daemon.own("moved-b"))


def described(made: Daemon, *, inactive: bool = False) -> ET.Element:
    """The domain as its libvirt describes it now, or would start it."""
    lib: Any = connection.library()
    conn = lib.open(made.uri)
    try:
        return ET.fromstring(conn.lookupByName("here_blue").XMLDesc(lib.VIR_DOMAIN_XML_INACTIVE if inactive else 0))
    finally:
        conn.close()


async def test_drive_and_nics_are_those_of_the_target(daemons: tuple[Daemon, Daemon]) -> None:
    there, here = Real(daemons[1]), Real(daemons[0])
    source, target = here.hypervisor(), there.hypervisor()
    with libvirt_hosts.bridges("lan", "wan") as made:
        lan, wan = made.values()
        await here.up(source, here.machine(seed=SEED))
        spec = with_nics("red", "green")
        await plug(source, spec, "red", lan, 0)
        await plug(source, spec, "green", lan, 1)
        await unplug(source, "ua-green")
        incoming = there.machine(seed=SEED)
        prepared = await target.prepare_incoming(incoming)
        assert incoming.drive is not None
        assert str(prepared.drive).startswith(str(there.drives))
        await source.migrate(UID, MigrationTarget(
            daemons[1].uri, prepared.drive, {"ua-red": wan}, (("0000:3b:01.0", "0000:5e:01.0"),)), MigrationLimits())

        def arrived() -> bool:
            lib: Any = connection.library()
            conn = lib.open(daemons[1].uri)
            try:
                return any(dom.name() == "here_blue" and dom.state()[0] == lib.VIR_DOMAIN_RUNNING
                           for dom in conn.listAllDomains())
            finally:
                conn.close()

        await until(arrived, "the VM runs on the target")
        for xml in (described(daemons[1]), described(daemons[1], inactive=True)):
            assert [disk.get("file") for disk in xml.iterfind("devices/disk[@device='cdrom']/source")] == [prepared.drive]
        assert [nic.get("bridge") for nic in described(daemons[1]).iterfind("devices/interface/source")] == [wan]
        await until(lambda: (there.taps(lan), there.taps(wan)) == (0, 1), "the source has ended it")
        await plug(target, spec, "green", wan, 1)
        assert {name: nic.bridge for name, nic in (await nics(target)).items()} == {"red": wan, "green": wan}
        await target.stop(UID)
        await source.close()
        await target.close()


def saved(folder: Path, xml: str) -> Path:
    """A saved domain without memory, as libvirt keeps it."""
    content = xml.encode().ljust(ROOM, b"\0")
    file = folder / "blue.save"
    file.write_bytes(HEADER.pack(MAGIC, VERSION, len(content), 0, 0, 0, *[0] * 14) + content)
    return file


@pytest.mark.parametrize("situation", ["gpu-and-nics", "mdev"])
def test_libvirt_accepts_exchanged_host_devices(daemons: tuple[Daemon, Daemon], situation: str) -> None:
    """It refuses what a guest would see: there another PCI address of a device."""
    case = domain_cases.SITUATIONS[situation]
    built = domain.build(case.instance, case.env, case.files, case.options)
    there = {place: f"{place[:-1]}0" if "-" in place else f"{place[:5]}c{place[6:]}" for place in built.devices}  # other buses
    moved = domain.moved(built.xml, MigrationTarget("", devices=tuple(there.items())))
    assert domain.read(moved).devices == tuple(there.values())
    file = saved(daemons[0].folder, built.xml)
    lib: Any = connection.library()
    conn = lib.open(daemons[0].uri)
    try:
        conn.saveImageDefineXML(str(file), moved, 0)
        assert domain.read(conn.saveImageGetXMLDesc(str(file), 0)).devices == tuple(there.values())
        other = ET.fromstring(moved)
        address = other.find("devices/hostdev/address")
        assert address is not None
        address.set("bus", "0x1f")
        with pytest.raises(lib.libvirtError, match=r"does not match source|[Nn]o PCI"):
            conn.saveImageDefineXML(str(file), ET.tostring(other, encoding="unicode"), 0)
    finally:
        conn.close()
