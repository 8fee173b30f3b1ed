"""Domains, compared with files byte for byte. Where libvirt's schema is installed, the files are held against it as well."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.errors import Refused
from outfitter.launcher import domain
from outfitter.launcher.simulated import Simulated

GOLDEN = Path(__file__).parent.parent / "xml"
SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
UID = "8d1f0a52-3c1e-4f0b-9d35-0f6f5b7f2a11"
MDEV = "5f7fd9a8-6a3f-4f6c-8ee8-1d2b3c4d5e6f"


def wanted(name: str, request: str = "") -> Object:
    return {"name": name, "claimName": "claim", "requestName": request or name}


def got(name: str, **attributes: str) -> Object:
    return {"name": name, "deviceResourceClaimStatus": {"name": "dev", "resourceClaimName": "claim", "attributes": attributes}}


def instance(
    devices: Mapping[str, Any] | None = None, status: Mapping[str, Any] | None = None, name: str = "blue", **spec: Any
) -> Object:
    return {"metadata": {"name": name, "namespace": "here", "uid": UID}, "status": {"deviceStatus": dict(status or {})},
            "spec": {"domain": {"devices": dict(devices or {}), **spec}}}


CASES: dict[str, Object] = {
    "plain": instance(),
    "sized": instance(memory={"guest": "1536Mi"}, cpu={"cores": 2, "sockets": 2, "threads": None},
                      machine={"type": "pc-q35-9.0"}, firmware={"uuid": MDEV}),
    "memory-from-requests": instance(resources={"requests": {"memory": "1.5Gi"}}),
    "one-vf": instance({"hostDevices": [wanted("nic0")]},
                       {"hostDeviceStatuses": [got("nic0", pciAddress="0000:3b:01.2")]}, memory={"guest": "1Gi"}),
    "pair-of-vfs": instance({"hostDevices": [wanted("nics")]}, {"hostDeviceStatuses": [
        got("nics", pciAddress="0000:3b:01.2"), got("nics", pciAddress="0000:3b:01.3")]}),
    "mdev": instance({"gpus": [wanted("vgpu")]}, {"gpuStatuses": [got("vgpu", mdevUUID=MDEV, pciAddress="0000:65:00.0")]}),
    "gpu-and-nics": instance(
        {"gpus": [wanted("gpu0")], "hostDevices": [wanted("b"), {"name": "a", "claim": {"name": "claim", "request": "a"}}]},
        {"gpuStatuses": [got("gpu0", pciAddress="000A:65:1F.7")],
         "hostDeviceStatuses": [got("a", pciAddress="0000:3b:01.0"), got("b", pciAddress="0000:3b:01.1")]}),
    "same-name-in-both-lists": instance(
        {"gpus": [wanted("dev")], "hostDevices": [wanted("dev", "other")]},
        {"gpuStatuses": [got("dev", pciAddress="0000:65:00.0")],
         "hostDeviceStatuses": [got("dev", pciAddress="0000:66:00.0")]}),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    built = domain.build(CASES[name])
    assert (built.uid, built.name, built.xml) == (UID, "here_blue", (GOLDEN / f"{name}.xml").read_bytes().decode())


@pytest.mark.parametrize(("name", "devices"), {
    "plain": (), "one-vf": ("0000:3b:01.2",), "mdev": (MDEV,), "gpu-and-nics": ("0000:3b:01.1", "0000:3b:01.0", "000a:65:1f.7"),
}.items())
def test_a_domain_that_is_found_is_known_again(name: str, devices: tuple[str, ...]) -> None:
    built = domain.build(CASES[name])
    assert domain.read(built.xml) == built
    assert (built.devices, built.foreign) == (devices, False)


def test_a_domain_of_somebody_else() -> None:
    xml = """<domain type='kvm'><name>nova-1</name><uuid>4b20d080-1b54-4048-85b3-a6a62d165c01</uuid><devices>
      <disk type='file'><source file='/x'/></disk>
      <hostdev mode='subsystem' type='pci' managed='yes'><source>
      <address domain='0x0000' bus='0x65' slot='0x00' function='0x0'/></source>
      <address type='pci' domain='0x0000' bus='0x05' slot='0x00' function='0x0'/></hostdev>
      <interface type='hostdev'><source><address type='pci' domain='0' bus='59' slot='1' function='2'/></source></interface>
      </devices></domain>"""
    found = domain.read(xml)
    assert (found.uid, found.name, found.foreign) == ("4b20d080-1b54-4048-85b3-a6a62d165c01", "nova-1", True)
    assert found.devices == ("0000:65:00.0", "0000:3b:01.2")


def test_every_file_is_used() -> None:
    assert {path.stem for path in GOLDEN.glob("*.xml")} == set(CASES)


@pytest.mark.parts
@pytest.mark.skipif(not SCHEMA.exists(), reason=f"needs libvirt's schema {SCHEMA}; on Debian it comes with libvirt0")
@pytest.mark.parametrize("name", CASES)
def test_libvirt_would_take_it(name: str) -> None:
    etree = pytest.importorskip("lxml.etree")
    schema = etree.RelaxNG(etree.parse(str(SCHEMA)))
    document = etree.parse(str(GOLDEN / f"{name}.xml"))
    assert schema.validate(document), schema.error_log


ONE = {"hostDevices": [wanted("nic0")]}
REFUSALS: dict[str, tuple[Object, str]] = {
    "no status": (instance(ONE), "HostDevice nic0 is not in status.deviceStatus: the machine does not start without it"),
    "a status for another": (instance(ONE, {"hostDeviceStatuses": [got("nic1", pciAddress="0000:3b:01.0")]}),
                             "HostDevice nic0 is not in status.deviceStatus"),
    "a status in the wrong list": (instance(ONE, {"gpuStatuses": [got("nic0", pciAddress="0000:3b:01.0")]}),
                                   "HostDevice nic0 is not in status.deviceStatus"),
    "a GPU without address": (instance({"gpus": [wanted("gpu0")]}, {"gpuStatuses": [got("gpu0")]}),
                              "GPU gpu0 has neither pciAddress nor mdevUUID in status.deviceStatus"),
    "one of two without address": (
        instance(ONE, {"hostDeviceStatuses": [got("nic0", pciAddress="0000:3b:01.0"), got("nic0")]}),
        "HostDevice nic0 has neither pciAddress nor mdevUUID"),
    "no address at all": (instance(ONE, {"hostDeviceStatuses": [got("nic0", pciAddress="3b:01.0")]}),
                          "failed to create PCI device for nic0: failed to parse pci address 3b:01.0: it is written"),
    "an address with more behind it": (instance(ONE, {"hostDeviceStatuses": [got("nic0", pciAddress="0000:3b:01.0\n")]}),
                                       "failed to parse pci address"),
    "a function beyond seven": (instance(ONE, {"hostDeviceStatuses": [got("nic0", pciAddress="0000:3b:01.8")]}),
                                "failed to parse pci address 0000:3b:01.8"),
    "by deviceName": (instance({"hostDevices": [{"name": "nic0", "deviceName": "vendor.com/nic"}]}),
                      "spec.domain.devices.hostDevices[0]: nic0 is asked for by deviceName, which is not supported yet"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    obj, says = REFUSALS[name]
    with pytest.raises(Refused) as caught:
        domain.build(obj)
    assert says in str(caught.value)


async def test_a_simulated_host_in_memory() -> None:
    host, built = Simulated(), domain.build(CASES["plain"])
    await host.start(built)
    await host.start(Domain(UID, "here_blue", "<other/>"))
    assert await host.domains() == {UID: built}, "a machine that runs is not started again"
    await host.stop(UID)
    await host.stop(UID)
    assert await host.domains() == {}


async def test_a_simulated_machine_outlives_the_process(tmp_path: Path) -> None:
    built = domain.build(CASES["one-vf"])
    await Simulated(tmp_path / "domains").start(built)
    again = Simulated(tmp_path / "domains")
    assert await again.domains() == {UID: built}
    await again.stop(UID)
    assert await Simulated(tmp_path / "domains").domains() == {}
    assert list((tmp_path / "domains").iterdir()) == []


async def test_a_half_written_machine_does_not_run(tmp_path: Path) -> None:
    (tmp_path / f"{UID}_here_blue.new").write_text("<doma")
    assert await Simulated(tmp_path).domains() == {}
    assert not (tmp_path / f"{UID}_here_blue.new").exists()


async def test_long_names_have_room(tmp_path: Path) -> None:
    built = domain.build(instance(name="x" * 253))
    await Simulated(tmp_path).start(built)
    assert await Simulated(tmp_path).domains() == {UID: built}


async def test_a_file_that_is_no_domain_does_not_stop_the_rest(tmp_path: Path) -> None:
    await Simulated(tmp_path).start(Domain(UID, "here_blue", "<domain><name>here_blue</name></domain>"))
    (tmp_path / "notes.xml").write_text("not XML at all")
    assert list(await Simulated(tmp_path).domains()) == [UID]
    assert (tmp_path / "notes.xml").exists()
