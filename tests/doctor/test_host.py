"""`outfit doctor` on hosts: folders that look like one, and captures of real ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from outfitter.api.kinds import Object
from outfitter.doctor import host_checks, host_state
from outfitter.doctor.codes import CODES
from outfitter.doctor.finding import Finding, Level
from outfitter.doctor.host_state import CollectedHost, FileState, HugePages, LibvirtState
from outfitter.inventory.host_tree import MemoryTree
from outfitter.inventory.scan import Scan
from outfitter.inventory.simulation import hosts_file
from tests.e2e.process import ROOT, typed
from tests.inventory.host_trees import materialise

GOOD = """
hosts:
- name: a
  numa: [{id: 0, cpus: 0-3, memory: 1Gi}]
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 0, pcieRoot: pci0000:3a,
     vfs: {count: 2, product: 1889, driver: vfio-pci}}
  - {address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: vfio-pci, iommuGroup: 20}
"""
FILES = {
    "proc/cmdline": "BOOT_IMAGE=/vmlinuz quiet intel_iommu=on\n",
    "proc/cpuinfo": "processor : 0\nvendor_id\t: GenuineIntel\n",
    "proc/sys/kernel/osrelease": "6.1.0\n",
    "lib/modules/6.1.0/modules.dep": "kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/vfio.ko\n",
    "sys/module/vfio_pci/refcnt": "1\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "512\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "12\n",
    "dev/vfio/vfio": "", "dev/kvm": "",
    "var/lib/kubelet/config.yaml": "",
    "var/lib/kubelet/plugins/x": "", "var/lib/kubelet/plugins_registry/x": "", "var/lib/kubelet/pods/x": "",
}
NOTHING = Scan((), (), ())


def host(root: Path, text: str = GOOD, **files: str | None) -> Path:
    """A folder that looks like a host; a file of None is left out. Names have / for __."""
    tree = hosts_file.parse(text).hosts[0].tree()
    assert isinstance(tree, MemoryTree)
    materialise(tree, root)
    for path, content in {**FILES, **{name.replace("__", "/"): value for name, value in files.items()}}.items():
        if content is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
    return root


def findings(root: Path, *words: str, code: int = 0) -> list[Object]:
    done = typed("doctor", "--root", str(root), "-o", "json", *words)
    assert done.code == code, done
    found: list[Object] = json.loads(done.out)["findings"]
    assert all(finding["code"] in CODES for finding in found)
    return found


def bad(found: list[Object]) -> dict[str, str]:
    return {each["code"]: f"{each['level']}: {each['message']} {each['missing']} $ {each['command']}"
            for each in found if each["level"] != "ok"}


def test_nothing_is_wrong_with_a_good_host(tmp_path: Path) -> None:
    found = findings(host(tmp_path))
    assert bad(found) == {}
    assert {each["code"] for each in found} == {code for code in CODES if code.startswith("host-")} - {
        "host-libvirt", "host-memlock", "host-data-folder"}  # of the host that we run on


def without_groups(root: Path) -> None:
    for link in (root / "sys/devices").rglob("iommu_group"):
        link.unlink()
    shutil.rmtree(root / "sys/kernel/iommu_groups")


# what is on the kernel command line, whose CPU it is, and whether there is grubby -> words of the answer
COMMAND_LINES: dict[str, tuple[str, str, bool, tuple[str, ...]]] = {
    "Intel without the option": (
        "quiet", "GenuineIntel", False, ("lacks intel_iommu=on", "/etc/default/grub", "update-grub", "VT-d")),
    "Intel without the option, with grubby": (
        "quiet", "GenuineIntel", True, ('grubby --update-kernel=ALL --args="intel_iommu=on',)),
    "Intel with the option": ("intel_iommu=on", "GenuineIntel", False, ("Switch VT-d on in the firmware", "dmesg")),
    "AMD": ("quiet", "AuthenticAMD", False, ("AMD-Vi", "firmware")),
    "switched off": ("amd_iommu=off quiet", "AuthenticAMD", True, ("has amd_iommu=off", "--remove-args")),
}


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_a_host_without_iommu(tmp_path: Path, name: str) -> None:
    line, vendor, grubby, words = COMMAND_LINES[name]
    root = host(tmp_path, proc__cmdline=line, proc__cpuinfo=f"vendor_id : {vendor}\n", usr__sbin__grubby="" if grubby else None)
    without_groups(root)
    found = bad(findings(root, code=1))["host-iommu"]
    assert found.startswith("error: /sys/kernel/iommu_groups has no groups")
    assert [word for word in words if word not in found] == []


def test_what_is_wrong_with_functions_is_found(tmp_path: Path) -> None:
    root = host(tmp_path, """
hosts:
- name: a
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, pcieRoot: pci0000:3a,
     vfs: {total: 64, count: 0}}
  - {address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: vfio-pci, iommuGroup: 20}
  - {address: 0000:65:00.1, vendor: 10de, product: 1aef, class: 040300, driver: snd_hda_intel, iommuGroup: 20}
  - {address: 0000:66:00.0, vendor: 10de, product: 2204, class: 030000, driver: nouveau, iommuGroup: 21}
  - {address: 0000:67:00.0, vendor: 10de, product: 2204, class: 030000, driver: nouveau, iommuGroup: 21}
""")
    (root / "sys/bus/pci/devices/0000:66:00.0/driver_override").write_text("vfio-pci\n")
    (root / "sys/bus/pci/devices/0000:67:00.0/driver_override").write_text("(null)\n")
    found = bad(findings(root))
    assert found.keys() == {"host-sriov", "host-devices", "host-drivers", "host-iommu-groups", "host-acs"}
    assert "echo 8 >/sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs" in found["host-sriov"]
    assert "0000:66:00.0 is bound to nouveau, but its driver_override is vfio-pci" in found["host-drivers"]
    assert "echo 0000:66:00.0 >/sys/bus/pci/drivers/nouveau/unbind" in found["host-drivers"]
    assert "0000:65:00.0 cannot be assigned: it shares IOMMU group 20 with 0000:65:00.1" in found["host-iommu-groups"]
    assert "driverctl set-override 0000:65:00.1 vfio-pci" in found["host-iommu-groups"]
    assert "IOMMU group 21 has functions of several cards: 0000:66:00.0, 0000:67:00.0" in found["host-acs"]


def test_the_agent_s_own_sockets_are_no_kubelet(tmp_path: Path) -> None:
    """It serves them in the kubelet's folder where there is none."""
    left: dict[str, str | None] = {path: None for path in FILES if path.startswith("var/lib/kubelet/")}
    root = host(tmp_path, GOOD, **left | {"var/lib/kubelet/device-plugins/x": ""})
    assert "host-kubelet" not in {finding["code"] for finding in findings(root)}


def test_modules_and_folders_that_are_missing_are_found(tmp_path: Path) -> None:
    root = host(tmp_path, """
hosts:
- name: a
  pci: [{address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: nouveau, iommuGroup: 20}]
""", sys__module__vfio_pci__refcnt=None, dev__vfio__vfio=None, dev__kvm=None, dev__null="", **{
        "var/lib/kubelet/pods/x": None, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0\n"})
    found = bad(findings(root, "--hugepages", code=1))
    assert found.keys() == {"host-vfio-module", "host-vfio-files", "host-kvm", "host-hugepages", "host-devices", "host-kubelet"}
    assert "modprobe vfio-pci && echo vfio-pci >/etc/modules-load.d" in found["host-vfio-module"]
    assert "modprobe kvm_intel" in found["host-kvm"]
    assert "driverctl set-override 0000:65:00.0 vfio-pci" in found["host-devices"]
    assert "/var/lib/kubelet/pods" in found["host-kubelet"]
    (root / "lib/modules/6.1.0/modules.dep").write_text("")
    assert bad(findings(root, code=1))["host-vfio-module"].startswith("error: kernel 6.1.0 has no module vfio-pci")


def test_no_command_takes_the_network_or_a_disk_from_the_host(tmp_path: Path) -> None:
    found = bad(findings(host(tmp_path, """
hosts:
- name: a
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, interface: ens1f0, iommuGroup: 19}
  - {address: 0000:5e:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme, iommuGroup: 20}
  - {address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: vfio-pci, iommuGroup: 20}
""")))
    assert found.keys() == {"host-devices", "host-iommu-groups", "host-acs"}
    assert "driverctl" not in "".join(found.values())


def test_a_configuration_is_compared_with_the_host(tmp_path: Path) -> None:
    root, config = host(tmp_path / "host"), tmp_path / "config.yaml"
    config.write_text('device_spec: [{address: "0000:99:*"}]\n')
    assert "device_spec lists no device" in bad(findings(root, "--config", str(config)))["host-devices"]


@pytest.mark.parametrize("capture", ["qemu-host.json", "vgpu-host.json"])
def test_captures_of_real_hosts_are_checked_as_far_as_they_go(capture: str) -> None:
    codes = {each["code"] for each in findings(ROOT / "tests" / "hosts" / capture)}
    assert {"host-iommu", "host-devices", "host-drivers", "host-iommu-groups", "host-sysfs"} <= codes
    assert not {"host-kvm", "host-vfio-files", "host-memlock", "host-libvirt", "host-vfio-module"} & codes


def test_a_folder_that_is_no_host_is_refused(tmp_path: Path) -> None:
    done = typed("doctor", "--root", str(tmp_path))
    assert done.code == 1
    assert "--root" in done.err
    assert "contains no folder sys" in done.err


def test_without_a_cluster_this_host_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "XDG_STATE_HOME", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    done = typed("doctor", "-o", "json")
    answer = json.loads(done.out)
    assert answer["about"].startswith("no cluster (")
    assert answer["about"].endswith(", this host")
    codes = {each["code"] for each in answer["findings"]}
    assert {"host-versions", "host-iommu", "host-libvirt", "host-memlock"} <= codes
    assert not [code for code in codes if code.startswith("cluster-")]
    assert json.loads(typed("doctor", "--host", "-o", "json").out)["about"] == "this host"


def test_a_server_that_does_not_answer_is_an_error_and_the_host_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfitter.store.rest_client.BACKOFF", (0.0,))
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [],
                                  "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                                  "contexts": [{"name": "c", "context": {"cluster": "c"}}]}))
    done = typed("doctor", "-o", "json", kubeconfig=config)
    assert done.code == 1
    first, *rest = json.loads(done.out)["findings"]
    assert (first["code"], first["level"]) == ("cluster-reachable", "error")
    assert "127.0.0.1:1 cannot be reached" in first["message"]
    assert "host-versions" in {each["code"] for each in rest}


def only(state: CollectedHost, code: str) -> Finding:
    return next(finding for finding in host_checks.check(state) if finding.code == code)


# a state -> code, level and words; for what depends on who runs the test, or on the host
STATES: dict[str, tuple[CollectedHost, str, Level, tuple[str, ...]]] = {
    "an old Python": (CollectedHost(NOTHING, python=(3, 10)), "host-versions", Level.ERROR, ("3.10", "3.11")),
    "libvirt is away": (
        CollectedHost(NOTHING, libvirt=LibvirtState("libvirt does not run here")), "host-libvirt", Level.WARNING,
        ("libvirt does not run here", "apt install libvirt-daemon-system")),
    "libvirt is there": (CollectedHost(NOTHING, libvirt=LibvirtState("", "9.0.0")), "host-libvirt", Level.OK, ("9.0.0",)),
    "little locked memory": (
        CollectedHost(NOTHING, user=1000, memlock=8 << 20), "host-memlock", Level.WARNING, ("8192 KiB",)),
    "root locks all": (CollectedHost(NOTHING, user=0, memlock=8 << 20), "host-memlock", Level.OK, ()),
    "huge pages": (
        CollectedHost(NOTHING, huge_pages=(HugePages(2048, 8, 4),)), "host-hugepages", Level.OK, ("8 of 2048 KiB",)),
    "a vfio file of another group": (
        CollectedHost(NOTHING, user=1000, devices_known=True, vfio_file=FileState("/dev/vfio/vfio", 0o600, 0, False)),
        "host-vfio-files", Level.ERROR, ("0600", "udev")),
    "a kvm file of another group": (
        CollectedHost(NOTHING, user=1000, devices_known=True, kvm_file=FileState("/dev/kvm", 0o660, 0, False)),
        "host-kvm", Level.WARNING, ("usermod -aG kvm",)),
    "a data folder of another user": (
        CollectedHost(NOTHING, user=1000, data_folder=FileState("/data", 0o700, 0, False, True)), "host-data-folder",
        Level.ERROR, ("chown 1000 /data",)),
}


@pytest.mark.parametrize("name", STATES)
def test_what_depends_on_the_user(name: str) -> None:
    state, code, level, words = STATES[name]
    found = only(state, code)
    assert found.level is level
    assert [word for word in words if word not in f"{found.message} {found.missing} {found.command}"] == []


def test_keys_that_others_can_read_are_found(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "pki").mkdir(parents=True)
    key = data / "pki" / "ca.key"
    key.write_text("x")
    os.chmod(key, 0o640)
    state = host_state.collect(MemoryTree({}), data=data)
    assert only(state, "host-data-folder").level is Level.ERROR
    assert only(state, "host-data-folder").command == f"chmod 600 {key}"
    os.chmod(key, 0o600)
    assert only(host_state.collect(MemoryTree({}), data=data), "host-data-folder").level is Level.OK
