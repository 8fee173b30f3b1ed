"""`outfit domxml -f`: the devices of a VM from files, as the launcher would find them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.process import typed
from tests.launcher.domain_cases import BASE, device, told

INSTANCE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: blue}
spec:
  resourceClaims: [{name: c, resourceClaimName: mine}]
  domain:
    devices:
      gpus: [{name: g, claimName: c, requestName: card, tag: train}]
      hostDevices: [{name: h, deviceName: acme.test/nic}]
"""
A, B, NIC = "0000:65:00.0", "0000:66:00.0", "0000:3b:01.0"
STATUS = {"gpuStatuses": [{"name": "g", "deviceResourceClaimStatus": {"attributes": {"pciAddress": A}}}]}
FILE = "resourceclaims/mine/card/gpu.acme.test-metadata.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A VM, its environment, its status and its metadata, which agree; and others which do not."""
    texts = {
        "vmi.yaml": INSTANCE, "env": f"# of the container\n\nexport PCI_RESOURCE_ACME_TEST_NIC='{NIC},'\n",
        "status.json": json.dumps(STATUS), "whole.yaml": json.dumps({"status": {"deviceStatus": STATUS}}),
        "files/" + FILE: told("card", device(address=A)), f"root{BASE}/{FILE}": told("card", device(address=A)),
        "others/" + FILE: told("card", device(address=B)), "bad.env": "PCI_RESOURCE\n", "bad.yaml": "gpus: []\n",
        "cards.json": json.dumps({**STATUS, "interfaceStatuses": [{"name": "lan"}]}),
        "young.yaml": "status: {phase: Pending}\n",
        "list.yaml": "[]\n", "broken.yaml": "{", "entry.yaml": "gpuStatuses: [x]\n",
        "image.yaml": INSTANCE + "      disks: [{name: d, disk: {}}]\n  volumes: [{name: d, containerDisk: {}}]\n",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize("devices", [
    ["status.json"], ["whole.yaml"], ["cards.json"], ["files"], ["root"], ["status.json", "files"]])
def test_every_way_to_pass_the_devices(folder: Path, devices: list[str]) -> None:
    words = [word for name in devices for word in ("--devices", str(folder / name))]
    done = typed("domxml", "-f", str(folder / "vmi.yaml"), *words, "--env", str(folder / "env"))
    assert (done.code, done.err) == (0, "")
    assert '<domain xmlns:outfitter="https://outfitter.dev/xmlns/domain/1.0" type="qemu">' in done.out
    assert done.out.index("ua-hostdevice-h") < done.out.index("ua-dra-gpu-g")
    assert 'bus="0x3b"' in done.out
    assert 'bus="0x65"' in done.out


def test_domain_for_kvm_and_guest_metadata(folder: Path) -> None:
    words = ["domxml", "-f", str(folder / "vmi.yaml"), "--devices", str(folder / "files"), "--env", str(folder / "env")]
    done = typed(*words, "--type", "kvm")
    assert 'type="kvm"' in done.out
    assert '<cpu mode="host-model" />' in done.out
    document = json.loads(typed(*words, "--guest-metadata").out)
    assert document["devices"] == [{"type": "hostdev", "bus": "pci", "address": "0000:03:00.0", "tags": ["train"]}]


def test_the_domain_that_a_migration_arrives_in(folder: Path) -> None:
    words = ["domxml", "-f", str(folder / "vmi.yaml"), "--migration-target", "--env", str(folder / "env")]
    done = typed(*words)
    assert (done.code, done.err) == (0, "")
    assert "<hostdev" not in done.out
    done = typed(*words, "--devices", str(folder / "status.json"))
    assert 'bus="0x65"' in done.out
    assert 'bus="0x3b"' in done.out


def test_skipped_fields_are_reported(folder: Path) -> None:
    done = typed("domxml", "-f", str(folder / "image.yaml"), "--devices", str(folder / "files"), "--env", str(folder / "env"))
    assert done.code == 0
    assert "skipped: spec.volumes[0]: containerDisk cannot be attached" in done.err


# what is typed behind -f vmi.yaml, and words of the answer; {tmp} is the folder
WRONG: dict[str, tuple[list[str], list[str]]] = {
    "no devices": ([], ["vmi/blue has no domain yet", "does not name g"]),
    "no environment": (["--devices", "{tmp}/files"], ["spec.domain.devices.hostDevices[0]", "PCI_RESOURCE_ACME_TEST_NIC"]),
    "no claim": (["--env", "{tmp}/env"], ["GPU g is not in status.deviceStatus", "no files matching"]),
    "sources disagree": (["--devices", "{tmp}/others", "--devices", "{tmp}/status.json", "--env", "{tmp}/env"], [
        "spec.domain.devices.gpus[0]", f"status.deviceStatus has {A} for GPU g, but device metadata has {B}"]),
    "a file that is not there": (["--devices", "{tmp}/none"], ["{tmp}/none cannot be read"]),
    "an environment that is not there": (["--env", "{tmp}/none"], ["{tmp}/none cannot be read"]),
    "an environment without values": (["--env", "{tmp}/bad.env"], ["{tmp}/bad.env, line 1: 'PCI_RESOURCE' is not of the form"]),
    "a status with other lists": (["--devices", "{tmp}/bad.yaml"], ["{tmp}/bad.yaml: gpus: a deviceStatus has lists"]),
    "a status with other entries": (["--devices", "{tmp}/entry.yaml"], ["entry.yaml: gpuStatuses: a deviceStatus has lists"]),
    "a status with names for entries": (["--devices", "{tmp}/entry.yaml"], ["entry.yaml: gpuStatuses:", "entry is an object"]),
    "an instance without status": (["--devices", "{tmp}/vmi.yaml"], ["{tmp}/vmi.yaml has no status.deviceStatus"]),
    "an instance that has nothing yet": (["--devices", "{tmp}/young.yaml"], ["{tmp}/young.yaml has no status.deviceStatus"]),
    "a status that is a list": (["--devices", "{tmp}/list.yaml"], ["list.yaml: an object is expected"]),
    "a status that is no YAML": (["--devices", "{tmp}/broken.yaml"], ["broken.yaml is not YAML", 'in "{tmp}/broken.yaml"']),
    "a folder without files": (["--devices", "{tmp}/empty"], ["{tmp}/empty contains no files"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_reported(name: str, folder: Path) -> None:
    words, says = WRONG[name]
    done = typed("domxml", "-f", str(folder / "vmi.yaml"), *(word.format(tmp=folder) for word in words))
    assert (done.code, done.out) == (1, "")
    for part in says:
        assert part.format(tmp=folder) in done.err


def test_every_vmi_of_a_file_has_a_domain(tmp_path: Path) -> None:
    (tmp_path / "vm.yaml").write_text("""
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: green}
spec: {runStrategy: Halted, template: {spec: {domain: {memory: {guest: 1Gi}}}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: blue}
spec: {domain: {}}
""")
    words = ["domxml", "-f", str(tmp_path / "vm.yaml")]
    done = typed(*words)
    assert (done.code, done.err) == (0, "")
    assert re.findall("<name>(.*)</name>", done.out) == ["default_green", "default_blue"]
    assert '<memory unit="b">1073741824</memory>' in done.out
    refused = typed(*words, "--drive", str(tmp_path / "image"))
    assert (refused.code, refused.out) == (1, "")
    assert "vm.yaml has 2 VMs, and --drive writes the image of one" in refused.err
    assert not (tmp_path / "image").exists()


REFUSED = {
    "less than no memory": ("spec: {domain: {memory: {guest: -1Gi}}}", "spec.domain.memory.guest: "),
    "a field that is misspelt": ("spec: {domain: {memry: {guest: 1Gi}}}", 'unknown field "spec.domain.memry"'),
    "no domain": ("spec: {}", "spec.domain"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_vmi_that_admission_would_reject(name: str, tmp_path: Path) -> None:
    spec, says = REFUSED[name]
    file = tmp_path / "vmi.yaml"
    file.write_text(f"apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: blue}}\n{spec}\n")
    done = typed("domxml", "-f", str(file))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: {file}")
    assert says in done.err


@pytest.mark.parametrize("version", ["v1", "v1alpha3"])
def test_vmi_admitted_by_an_earlier_version(version: str, tmp_path: Path) -> None:
    """What was let in under the rules of its time is not asked for those of today."""
    file = tmp_path / "vmi.yaml"
    device = "{name: h, claimName: Bad_Name, requestName: r}"
    text = f"""
apiVersion: kubevirt.io/{version}
kind: VirtualMachineInstance
metadata: {{name: blue, namespace: default, uid: u%s}}
spec: {{resourceClaims: [{{name: Bad_Name, resourceClaimName: mine}}], domain: {{formerly: 1, devices: {{
  hostDevices: [{device}]}}}}}}
status: {{phase: Running, later: 1, deviceStatus: {{hostDeviceStatuses: [
  {{name: h, deviceResourceClaimStatus: {{attributes: {{pciAddress: '{NIC}'}}}}}}]}}}}
"""
    file.write_text(text % ", resourceVersion: '7'")
    done = typed("domxml", "-f", str(file))
    assert (done.code, done.err) == (0, "")
    assert 'bus="0x3b"' in done.out
    file.write_text(text % "")
    assert 'unknown field "spec.domain.formerly"' in typed("domxml", "-f", str(file)).err
    file.write_text((text % "").replace("formerly: 1, ", ""))
    assert "spec.resourceClaims[0].name: " in typed("domxml", "-f", str(file)).err


@pytest.mark.parametrize(("volume", "seen"), {
    "userData: hello": b"hello", "secretRef: {name: s}": b"from the folder",
}.items())
def test_the_image_of_the_drive(tmp_path: Path, volume: str, seen: bytes) -> None:
    """What a Secret has may lie in a folder, as in the launcher's container."""
    secret = tmp_path / "root" / "var/run/kubevirt-private/secret/seed/userdata"
    secret.parent.mkdir(parents=True)
    secret.write_bytes(b"from the folder")
    (tmp_path / "vmi.yaml").write_text("apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: blue}\n"
                                       f"spec: {{domain: {{}}, volumes: [{{name: seed, cloudInitNoCloud: {{{volume}}}}}]}}\n")
    words = ["domxml", "-f", str(tmp_path / "vmi.yaml"), "--devices", str(tmp_path / "root")]
    done = typed(*words, "--drive", str(tmp_path / "it.iso"))
    assert (done.code, done.out, done.err) == (0, "", "")
    assert seen in (tmp_path / "it.iso").read_bytes()
    assert 'file="/var/run/outfitter/drives/00000000-0000-0000-0000-000000000000.iso"' in typed(*words).out
    assert typed(*words, "--drive", str(tmp_path / "no" / "it.iso")).code != 0


def test_no_image_where_there_is_none(folder: Path, tmp_path: Path) -> None:
    (folder / "plain.yaml").write_text("apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: blue}\n"
                                       "spec: {domain: {}}\n")
    done = typed("domxml", "-f", str(folder / "plain.yaml"), "--drive", str(tmp_path / "it.iso"))
    assert done.code != 0
    assert "has neither a cloud-init volume nor a tagged device" in done.err
    (folder / "plain.yaml").write_text("apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: blue}\n"
                                       "spec: {domain: {}, volumes: [{name: a, cloudInitNoCloud: {secretRef: {name: s}}}]}\n")
    done = typed("domxml", "-f", str(folder / "plain.yaml"), "--drive", str(tmp_path / "it.iso"))
    assert "the content of Secret s was not passed to the launcher" in done.err
