"""Domains, compared with files byte for byte. Where libvirt's schema is installed, the files are held against it as well."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.errors import StartFailed
from outfitter.launcher import domain
from outfitter.launcher.domain_options import DomainOptions
from outfitter.launcher.simulated import Simulated
from tests.launcher.domain_cases import MDEV, MDEV2, SITUATIONS, UID, got, instance, owning, wanted
from tests.launcher.schema import SCHEMA, needed, wrong

GOLDEN = Path(__file__).parent.parent / "xml"


@pytest.mark.parametrize("name", SITUATIONS)
def test_golden(name: str) -> None:
    built = SITUATIONS[name].build()
    assert (built.uid, built.name, built.xml) == (UID, "here_blue", (GOLDEN / f"{name}.xml").read_bytes().decode())


@pytest.mark.parametrize(("name", "devices"), {
    "plain": (), "one-vf": ("0000:3b:01.2",), "mdev": (MDEV,), "gpu-and-nics": ("0000:3b:01.1", "0000:3b:01.0", "000a:65:1f.7"),
    "card-with-sound": ("0000:65:00.0", "0000:65:00.1", "0000:66:00.0"), "disks": (), "networks": ("0000:3b:02.1",),
    "networks-on-this-host": ("0000:3b:02.1",),
    "order-of-everything": ("0000:68:00.0", MDEV, "0000:66:00.0", "0000:67:00.0", MDEV2, "0000:65:00.0", "0000:3b:02.1"),
}.items())
def test_a_domain_that_is_found_is_known_again(name: str, devices: tuple[str, ...]) -> None:
    built = SITUATIONS[name].build()
    assert domain.read(built.xml) == built
    assert (built.devices, built.foreign) == (devices, False)


def test_domain_of_another_owner() -> None:
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


def test_copy_of_our_domain_has_another_owner() -> None:
    """virt-clone gives it another name and UUID, and leaves the mark as it is."""
    xml = SITUATIONS["one-vf"].build().xml.replace("<name>here_blue", "<name>copy")
    found = domain.read(xml.replace(f"<uuid>{UID}", "<uuid>4b20d080-1b54-4048-85b3-a6a62d165c01"))
    assert (found.uid, found.name, found.foreign) == ("4b20d080-1b54-4048-85b3-a6a62d165c01", "copy", True)
    assert found.devices == ("0000:3b:01.2",)


@pytest.mark.parametrize(("old", "new"), {
    f' uuid="{UID}"': "",  # metadata as it was before it contained the UUID
    f"<uuid>{UID}": f"<uuid>{UID.upper().replace('-', '')}",  # another way to write it
}.items(), ids=["an older mark", "another spelling"])
def test_a_domain_is_known_again_though_it_is_written_otherwise(old: str, new: str) -> None:
    built = SITUATIONS["one-vf"].build()
    assert old in built.xml
    found = domain.read(built.xml.replace(old, new))
    assert (found.uid, found.foreign) == (UID, False)


def test_every_file_is_used() -> None:
    assert {path.stem for path in GOLDEN.glob("*.xml")} == set(SITUATIONS)


@needed
@pytest.mark.parametrize("name", SITUATIONS)
def test_domain_is_valid_for_libvirts_schema(name: str) -> None:
    assert wrong((GOLDEN / f"{name}.xml").read_text()) == "", SCHEMA


ONE = {"hostDevices": [wanted("nic0")]}
REFUSALS: dict[str, tuple[Object, str]] = {
    "no status": (instance(ONE), "HostDevice nic0 is not in status.deviceStatus: the VM does not start without it"),
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
                          "failed to create PCI device for nic0: failed to parse pci address 3b:01.0: it must be"),
    "an address with more behind it": (instance(ONE, {"hostDeviceStatuses": [got("nic0", pciAddress="0000:3b:01.0\n")]}),
                                       "failed to parse pci address"),
    "a function beyond seven": (instance(ONE, {"hostDeviceStatuses": [got("nic0", pciAddress="0000:3b:01.8")]}),
                                "failed to parse pci address 0000:3b:01.8"),
    "fewer CPUs of its own than it has": (
        owning(instance(cpu={"cores": 3, "dedicatedCpuPlacement": True}), {"0": [3], "1": [9]}),
        "status.flavor.cpus: the guest has 3 CPUs, and 2 host CPUs are dedicated to it"),
    "one CPU for two": (owning(instance(cpu={"cores": 2, "dedicatedCpuPlacement": True}), {"0": [3], "1": [3]}),
                        "the guest has 2 CPUs, and 1 host CPUs are dedicated to it"),
    "by deviceName": (instance({"hostDevices": [{"name": "nic0", "deviceName": "vendor.com/nic"}]}),
                      "spec.domain.devices.hostDevices[0]: failed to create HostDevice nic0: the number of device plugin"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    obj, says = REFUSALS[name]
    with pytest.raises(StartFailed) as caught:
        domain.build(obj)
    assert says in str(caught.value)


REAL = DomainOptions(simulated=False)


def disk(volume: Object | None, **more: object) -> Object:
    volumes = [{"name": "d", **volume}] if volume else []
    return instance({"disks": [{"name": "d", "disk": {}, **more}]}, spec={"volumes": volumes})


def nic(**interface: object) -> Object:
    return instance({"interfaces": [{"name": "n", **interface}]}, spec={"networks": [{"name": "n", "pod": {}}]})


# What a real machine cannot have is refused; a simulated one does without where a reason to leave it out is given.
UNBUILT: dict[str, tuple[Object, str, bool]] = {
    "an image": (disk({"containerDisk": {"image": "x"}}), "spec.volumes[0]: containerDisk cannot be attached", True),
    "an empty disk": (disk({"emptyDisk": {"capacity": "1Gi"}}), "spec.volumes[0]: emptyDisk cannot be attached", True),
    "a Secret that is missing": (disk({"cloudInitNoCloud": {"secretRef": {"name": "seed"}}}),
                                "spec.volumes[0].cloudInitNoCloud.secretRef: the content of Secret seed was not passed", True),
    "data that is not base64": (disk({"cloudInitConfigDrive": {"networkDataBase64": "?"}}),
                                "spec.volumes[0].cloudInitConfigDrive.networkDataBase64 is not base64", False),
    "a TPM": (instance({"tpm": {}}), "spec.domain.devices.tpm is not supported", True),
    "protected memory": (instance(launchSecurity={"sev": {}}), "spec.domain.launchSecurity is not supported", True),
    "a keyboard": (instance({"inputs": [{"type": "keyboard"}]}), "spec.domain.devices.inputs[0]: only a tablet on usb", True),
    "a tablet on virtio": (instance({"inputs": [{"type": "tablet", "bus": "virtio"}]}), "only a tablet on usb", True),
    "a disk without volume": (disk(None), "spec.domain.devices.disks[0]: no entry of spec.volumes is called 'd'", False),
    "a path that is none": (disk({"hostDisk": {"path": "x.img"}}), "spec.volumes[0].hostDisk.path: 'x.img' is no", False),
    "an unknown bus": (disk({"hostDisk": {"path": "/x"}}, disk={"bus": "ide"}),
                       "spec.domain.devices.disks[0].disk.bus: ide is not supported: use virtio, sata", False),
    "an ejectable disk on virtio": (disk({"hostDisk": {"path": "/x"}}, disk=None, cdrom={"bus": "virtio"}),
                                    "disks[0].cdrom.bus: virtio has no media that can be ejected", False),
    "a read-only disk on sata": (disk({"hostDisk": {"path": "/x"}}, disk={"readonly": True}), "disks[0].disk.readonly", False),
    "a LUN": (disk({"hostDisk": {"path": "/x"}}, lun={}), "disks[0].lun is not supported", False),
    "an unknown binding": (nic(passt={}), "spec.domain.devices.interfaces[0]: the binding passt is not supported", True),
    "a binding plugin": (nic(binding={"name": "x"}), "the binding plugin x is not supported", True),
    "an unknown architecture": (
        instance(spec={"architecture": "riscv64"}), "spec.architecture: riscv64 is not supported", False),
}


@pytest.mark.parametrize("name", UNBUILT)
def test_what_cannot_be_had(name: str) -> None:
    obj, says, skipped = UNBUILT[name]
    with pytest.raises(StartFailed) as caught:
        domain.build(obj, options=REAL)
    assert says in str(caught.value)
    if skipped:
        assert [says in sentence for sentence in domain.build(obj).skipped] == [True]
    else:
        with pytest.raises(StartFailed):
            domain.build(obj)


def test_a_tpm_that_is_switched_off_is_none() -> None:
    assert domain.build(instance({"tpm": None, "filesystems": []}), options=REAL).skipped == ()


@pytest.mark.parametrize(("type_", "model", "drawn"), [
    ("kvm", None, '<cpu mode="host-model" />'), ("qemu", "host-passthrough", '<cpu mode="maximum" />'),
    ("kvm", "host-passthrough", '<cpu mode="host-passthrough" />'), ("qemu", "Nehalem", "<model>Nehalem</model>")])
def test_processors(type_: Literal["qemu", "kvm"], model: str | None, drawn: str) -> None:
    assert drawn in domain.build(instance(cpu={"model": model}), options=DomainOptions(type=type_)).xml


async def test_a_simulated_host_in_memory() -> None:
    host, built = Simulated(), SITUATIONS["plain"].build()
    await host.start(built)
    await host.start(Domain(UID, "here_blue", "<other/>"))
    assert await host.domains() == {UID: built}, "a VM that runs is not started again"
    await host.stop(UID)
    await host.stop(UID)
    assert await host.domains() == {}


async def test_simulated_domain_outlives_the_process(tmp_path: Path) -> None:
    built = SITUATIONS["one-vf"].build()
    await Simulated(tmp_path / "domains").start(built)
    again = Simulated(tmp_path / "domains")
    assert await again.domains() == {UID: built}
    await again.stop(UID)
    assert await Simulated(tmp_path / "domains").domains() == {}
    assert list((tmp_path / "domains").iterdir()) == []


async def test_half_written_domain_does_not_run(tmp_path: Path) -> None:
    (tmp_path / f"{UID}_here_blue.new").write_text("<doma")
    assert await Simulated(tmp_path).domains() == {}
    assert not (tmp_path / f"{UID}_here_blue.new").exists()


def test_a_name_that_is_too_long_for_a_file_ends_with_the_uid() -> None:
    whole, cut, other = (
        domain.build({**instance(), "metadata": {"name": "x" * length, "namespace": "n" * 63, "uid": uid}})
        for length, uid in ((176, UID), (177, UID), (177, MDEV)))
    assert whole.name == "n" * 63 + "_" + "x" * 176
    assert (cut.name, other.name) == tuple("n" * 63 + "_" + "x" * 139 + f"_{uid}" for uid in (UID, MDEV))
    assert len(cut.name) == len(whole.name)
    assert domain.read(cut.xml) == cut


async def test_long_names_have_room(tmp_path: Path) -> None:
    built = domain.build(instance(name="x" * 253))
    await Simulated(tmp_path).start(built)
    assert await Simulated(tmp_path).domains() == {UID: built}


async def test_a_file_that_is_no_domain_does_not_stop_the_rest(tmp_path: Path) -> None:
    await Simulated(tmp_path).start(Domain(UID, "here_blue", "<domain><name>here_blue</name></domain>"))
    (tmp_path / "notes.xml").write_text("not XML at all")
    assert list(await Simulated(tmp_path).domains()) == [UID]
    assert (tmp_path / "notes.xml").exists()
