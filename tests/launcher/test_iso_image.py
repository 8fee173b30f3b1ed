"""What a guest's cloud-init finds: the files of the drive, and the image, read back by another program."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pycdlib
import pytest

from outfitter.api.hypervisor import Drive
from outfitter.api.kinds import Object
from outfitter.errors import StartFailed
from outfitter.launcher import iso_image as drives
from tests.launcher.domain_cases import MDEV, UID, Situation, flavored, got, instance, wanted

SECRETS = "/var/run/kubevirt-private/secret"
GPU = {"gpus": [wanted("g", tag="train")]}
GOT = {"gpuStatuses": [got("g", pciAddress="0000:65:00.0")]}
TOLD = [{"type": "hostdev", "bus": "pci", "address": "0000:03:00.0", "tags": ["train"]}]
NO_CLOUD: Object = {"instance-id": UID, "local-hostname": "blue"}
CONFIG: Object = {"uuid": UID, "instance_id": "blue.here", "hostname": "blue", "devices": []}
META, USER, NETWORK = (f"openstack/latest/{name}" for name in ("meta_data.json", "user_data", "network_data.json"))


def with_volume(volume: Object, devices: Object | None = None, status: Object | None = None, **spec: Any) -> Object:
    return instance(devices, status, spec={"volumes": [{"name": "seed", **volume}], **spec})


def of(owner: str, obj: Object) -> Object:
    reference = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "blue", "uid": owner, "controller": True}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [reference]}}


KEYS = [{"sshPublicKey": {"source": {"secret": {"secretName": name}}, "propagationMethod": {method: {}}}}
        for name, method in (("mine", "configDrive"), ("other", "qemuGuestAgent"))]
KEY_FILES = {f"{SECRETS}/mine-access-cred/b": "ssh-ed25519 B", f"{SECRETS}/mine-access-cred/a": "ssh-ed25519 A",
             f"{SECRETS}/other-access-cred/c": "ssh-ed25519 C"}
# VM, what was handed in, label, metadata, the other files
CASES: dict[str, tuple[Object, dict[str, str], str, Object, dict[str, bytes]]] = {
    "plain text": (with_volume({"cloudInitNoCloud": {"userData": "#cloud-config\nü", "networkData": "version: 2"}}), {},
                   "cidata", NO_CLOUD, {"user-data": "#cloud-config\nü".encode(), "network-config": b"version: 2"}),
    "base64, over several lines": (
        with_volume({"cloudInitNoCloud": {"userDataBase64": "H4sI\r\nAA==\n"}}), {}, "cidata", NO_CLOUD,
        {"user-data": b"\x1f\x8b\x08\x00"}),
    "from Secrets": (
        with_volume({"cloudInitConfigDrive": {"secretRef": {"name": "s"}, "networkDataSecretRef": {"name": "t"}}}),
        {f"{SECRETS}/seed/userData": "\udcff\x8b", f"{SECRETS}/seed/networkdata": "{}"},
        "config-2", CONFIG, {USER: b"\xff\xc2\x8b", NETWORK: b"{}"}),
    "network data alone": (with_volume({"cloudInitNoCloud": {"networkData": "x"}}), {}, "cidata", NO_CLOUD,
                           {"user-data": b"", "network-config": b"x"}),
    "tags on a config drive": (with_volume({"cloudInitConfigDrive": {"userData": "x"}}, GPU, GOT), {}, "config-2",
                               {**CONFIG, "devices": TOLD}, {USER: b"x"}),
    "tags beside NoCloud": (with_volume({"cloudInitNoCloud": {"userData": "x"}}, GPU, GOT), {}, "cidata",
                            {**NO_CLOUD, "devices": TOLD}, {"user-data": b"x"}),
    "tags and no volume": (instance(GPU, GOT), {}, "config-2", {**CONFIG, "devices": TOLD}, {}),
    "a VM that was started before": (of(MDEV, with_volume({"cloudInitNoCloud": {"userData": "x"}})), {}, "cidata",
                                          {**NO_CLOUD, "instance-id": MDEV}, {"user-data": b"x"}),
    "the name and flavor of a VM": (
        flavored(with_volume({"cloudInitConfigDrive": {"userData": "x"}}, hostname="web")), {}, "config-2",
        {**CONFIG, "hostname": "web", "instance_type": "large"}, {USER: b"x"}),
    "public keys": (with_volume({"cloudInitConfigDrive": {"userData": "x"}}, accessCredentials=KEYS), KEY_FILES, "config-2",
                    {**CONFIG, "public_keys": {"0": "ssh-ed25519 A", "1": "ssh-ed25519 B"}}, {USER: b"x"}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_on_the_drive(name: str) -> None:
    obj, files, label, metadata, others = CASES[name]
    built = Situation(obj, {}, files).build()
    assert built.drive is not None
    assert (built.drive.label, built.drive.path) == (label, f"/var/run/outfitter/drives/{UID}.iso")
    found = dict(built.drive.files)
    told = found.pop("meta-data" if label == "cidata" else META)
    assert (json.loads(told), told.decode()) == (metadata, built.guest_metadata)
    assert found == others


@pytest.mark.parametrize(("name", "obj"), {
    "nothing to tell": instance(), "a tag of a card that is gone": instance(
        {"interfaces": [{"name": "n", "bridge": {}, "state": "absent", "tag": "x"}]}, spec={"networks": [
            {"name": "n", "pod": {}}]}),
}.items())
def test_vmi_without_a_config_drive(name: str, obj: Object) -> None:
    built = Situation(obj).build()
    assert built.drive is None, name
    assert ".iso" not in built.xml


def test_a_name_that_is_too_long_for_a_host() -> None:
    obj = with_volume({"cloudInitNoCloud": {"userData": "x"}})
    obj["metadata"]["name"] = "a" * 70 + ".example"
    assert json.loads(Situation(obj).build().guest_metadata)["local-hostname"] == "a" * 63


def test_what_is_secret_is_not_shown() -> None:
    obj, files, *_ = CASES["plain text"]
    assert "cloud-config" not in repr(Situation(obj, {}, files).build())


DRIVES = {
    "cidata": Drive("", "cidata", (("meta-data", b"{}"), ("user-data", b""), ("network-config", bytes(range(256)) * 20))),
    "config-2": Drive("", "config-2", ((META, b"{}"), (USER, os.urandom(5000)), (NETWORK, b"[]"))),
}


@pytest.mark.parametrize("name", DRIVES)
def test_the_image_by_its_own_library(name: str) -> None:
    """In the words of Windows and in those of Linux."""
    drive, iso = DRIVES[name], pycdlib.PyCdlib()
    iso.open_fp(io.BytesIO(drives.image(drive)))
    for file, data in drive.files:
        for words in ({"joliet_path": f"/{file}"}, {"rr_path": f"/{file}"}):
            out = io.BytesIO()
            iso.get_file_from_iso_fp(out, **words)
            assert out.getvalue() == data, (file, words)
    iso.close()


@pytest.mark.parts
@pytest.mark.skipif(not (shutil.which("bsdtar") and Path("/sbin/blkid").exists()),
                    reason="needs bsdtar and blkid (Debian: libarchive-tools util-linux)")
@pytest.mark.parametrize("name", DRIVES)
def test_the_image_by_other_programs(tmp_path: Path, name: str) -> None:
    drive = DRIVES[name]
    (tmp_path / "it.iso").write_bytes(drives.image(drive))
    (tmp_path / "out").mkdir()
    subprocess.run(["bsdtar", "-xf", tmp_path / "it.iso", "-C", tmp_path / "out"], check=True)
    assert {str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in (tmp_path / "out").rglob("*")
            if path.is_file()} == dict(drive.files)
    said = subprocess.run(["/sbin/blkid", "-o", "export", tmp_path / "it.iso"], check=True, capture_output=True, text=True)
    assert {f"LABEL={name}", "TYPE=iso9660"} <= set(said.stdout.splitlines())


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_image_is_readable_by_the_hypervisors_user(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "folder" / "it.iso"
    before = os.umask(mask)
    try:
        drives.write(Drive(str(path), "cidata", (("user-data", b"x"),)))
    finally:
        os.umask(before)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o711)


def test_an_image_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "folder" / "it.iso"
    drive = Drive(str(path), "cidata", (("user-data", b"x"),))
    drives.write(drive)
    before = path.read_bytes()

    def full(_: Drive) -> bytes:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(drives, "image", full)
        with pytest.raises(StartFailed, match=r"the config drive cannot be written: .*No space left"):
            drives.write(drive)
    assert path.read_bytes() == before
    drives.write(drive)
    drives.remove(path)
    drives.remove(path)
    assert list(path.parent.iterdir()) == []
