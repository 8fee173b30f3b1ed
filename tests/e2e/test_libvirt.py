"""`outfit up` with VMs in libvirt: whoever is killed, outfitter, libvirtd or QEMU, the rest goes on and it is reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outfitter.api.hypervisor import DRIVES
from outfitter.launcher import connection
from tests.e2e.process import Up, until
from tests.hardware import daemon, guest, kernel
from tests.hardware.daemon import Daemon

pytestmark = [pytest.mark.libvirt, pytest.mark.skipif(bool(daemon.missing()), reason=daemon.missing() or "-")]
PATIENCE = 300.0  # QEMU is slow on a loaded host
MACHINE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  domain: {{memory: {{guest: 32Mi}}, devices: {{}}}}
  volumes: [{{name: seed, cloudInitNoCloud: {{userData: "I am {name}"}}}}]
"""
NETWORK = """
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {{name: lan}}
spec: {{config: '{{"cniVersion": "0.3.1", "name": "lan", "type": "bridge", "bridge": "{bridge}"}}'}}
"""
WITH_CARDS = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  networks: [{networks}]
  domain: {{memory: {{guest: 32Mi}}, devices: {{interfaces: [{interfaces}]}}}}
"""


WITH_GUEST = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: {name}}}
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 0
      volumes: [{{name: root, hostDisk: {{path: {disk}, type: Disk}}}}]
      networks: [{{name: default, pod: {{}}}}]
      domain:
        memory: {{guest: 32Mi}}
        devices:
          disks: [{{name: root, disk: {{bus: virtio}}}}]
          interfaces: [{{name: default, masquerade: {{}}}}]
"""


@pytest.fixture
def libvirtd() -> Iterator[Daemon]:
    with daemon.own() as made:
        yield made


def shown(up: Up, name: str) -> Any:
    return json.loads(up.ok("get", "vmi", name, "-o", "json"))


def said(up: Up, name: str) -> str:
    return " ".join(condition.get("message", "") for condition in shown(up, name).get("status", {}).get("conditions", ()))


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/status").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def drive(up: Up, name: str) -> Path:
    return Path(DRIVES) / f"{shown(up, name)['metadata']['uid']}.iso"


def test_killed_process_is_recovered(libvirtd: Daemon, tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--hypervisor", libvirtd.uri, simulate=None)
    with up:
        assert f"this host; its VMs run in libvirt at {libvirtd.uri}" in up.printed("hosts")
        up.ok("apply", "-f", "-", stdin=MACHINE.format(name="blue"))
        until(lambda: up.phase("blue") == "Running", "blue runs", PATIENCE)
        qemu, seed = libvirtd.qemu("default_blue"), drive(up, "blue")
        assert str(seed.resolve()) in kernel.opened(qemu)
        assert f'file="{seed}"' in up.ok("domxml", "blue")
        up.kill()
    assert alive(qemu), "VMs outlive outfitter"
    assert b"I am blue" in seed.read_bytes()
    with up:
        assert up.start().phase("blue") == "Running"
        assert libvirtd.qemu("default_blue") == qemu, "it was adopted, not started again"

        libvirtd.kill()
        up.ok("apply", "-f", "-", stdin=MACHINE.format(name="green"))
        until(lambda: "does not answer" in said(up, "green"), "green says why it waits", PATIENCE)
        assert up.phase("blue") == "Running", "it is unknown that it ended"
        assert alive(qemu), "VMs outlive libvirtd"
        libvirtd.start()
        until(lambda: up.phase("green") == "Running", "green runs", PATIENCE)
        assert (up.phase("blue"), libvirtd.qemu("default_blue")) == ("Running", qemu)

        os.kill(qemu, signal.SIGKILL)
        until(lambda: up.phase("blue") == "Failed", "blue failed", PATIENCE)
        assert "QEMU died or its guest crashed (libvirt: crashed)" in said(up, "blue")

        green, hers = libvirtd.qemu("default_green"), drive(up, "green")
        up.ok("delete", "vmi", "green", "blue")
        until(lambda: not alive(green), "green is off", PATIENCE)
        until(lambda: not hers.exists() and not seed.exists(), "nothing is left of their drives", PATIENCE)
        assert up.stop() == 0


def state(libvirtd: Daemon, name: str, *, do: str = "") -> str:
    """What libvirt itself says of a VM, or what virsh does to it."""
    library: Any = connection.library()
    conn = library.open(libvirtd.uri)
    dom = conn.lookupByName(name)
    if do:
        getattr(dom, do)()
    words = {library.VIR_DOMAIN_RUNNING: "running", library.VIR_DOMAIN_PAUSED: "paused"}
    found = words.get(dom.state()[0], "something else")
    conn.close()
    return found


def paused(up: Up, name: str) -> bool:
    return any(one["type"] == "Paused" and one["status"] == "True" for one in shown(up, name)["status"]["conditions"])


def test_pause_is_reported_and_survives_kills(libvirtd: Daemon, tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--hypervisor", libvirtd.uri, simulate=None)
    with up:
        up.ok("apply", "-f", "-", stdin=MACHINE.format(name="blue").replace("Seconds: 0", "Seconds: 3600"))
        until(lambda: up.phase("blue") == "Running", "blue runs", PATIENCE)
        qemu = libvirtd.qemu("default_blue")
        up.ok("vm", "pause", "blue")
        up.kill()
        up.start()
        until(lambda: paused(up, "blue"), "blue is paused", PATIENCE)
        assert state(libvirtd, "default_blue") == "paused"

        state(libvirtd, "default_blue", do="resume")
        until(lambda: not paused(up, "blue"), "somebody else let it go on, and that is told", PATIENCE)
        state(libvirtd, "default_blue", do="suspend")
        until(lambda: paused(up, "blue"), "somebody else paused it, and that is told", PATIENCE)

        libvirtd.kill()
        up.ok("vm", "unpause", "blue")
        libvirtd.start()
        until(lambda: not paused(up, "blue"), "it goes on when libvirt is back", PATIENCE)
        assert state(libvirtd, "default_blue") == "running"

        up.ok("vm", "pause", "blue", "--wait")
        assert libvirtd.qemu("default_blue") == qemu
        up.ok("delete", "vmi", "blue")
        until(lambda: not alive(qemu), "it is off, long before its hour is over", PATIENCE)
        assert up.stop() == 0


def test_vmi_starts_paused(libvirtd: Daemon, tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--hypervisor", libvirtd.uri, simulate=None) as up:
        up.ok("apply", "-f", "-", stdin=MACHINE.format(name="blue").replace("spec:\n", "spec:\n  startStrategy: Paused\n", 1))
        until(lambda: up.phase("blue") == "Running", "blue is there", PATIENCE)
        assert paused(up, "blue")
        assert state(libvirtd, "default_blue") == "paused"
        up.ok("vm", "unpause", "blue", "--wait")
        assert state(libvirtd, "default_blue") == "running"
        up.ok("delete", "vmi", "blue")


@pytest.fixture
def bridge() -> Iterator[str]:
    """The name of a bridge that is not there yet; whatever is called so afterwards goes."""
    name = f"outfit{os.getpid()}"
    yield name
    subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)


def test_nics_of_a_real_vm(libvirtd: Daemon, tmp_path: Path, bridge: str) -> None:
    """One behind the host, one on a bridge that comes later, and what cannot be had is refused."""
    with Up(tmp_path / "data", "--hypervisor", libvirtd.uri, simulate=None) as up:
        up.ok("apply", "-f", "-", stdin=NETWORK.format(bridge=bridge))
        up.ok("apply", "-f", "-", stdin=WITH_CARDS.format(name="blue", networks="{name: default, pod: {}}, "
              "{name: lan, multus: {networkName: lan}}", interfaces="{name: default, masquerade: {}}, {name: lan, bridge: {}}"))
        until(lambda: f"names bridge {bridge}, which" in said(up, "blue"), "it says what is missing", PATIENCE)
        made = subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=False, capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"needs a kernel with bridges: {made.stderr}")
        until(lambda: up.phase("blue") == "Running", "blue runs", PATIENCE)
        cards = shown(up, "blue")["status"]["interfaces"]
        assert [(each["name"], each["infoSource"]) for each in cards] == [
            ("default", "domain"), ("lan", "domain, multus-status")]
        [tap] = plugged(bridge)
        assert tap["address"][2:] == cards[1]["mac"][2:], "its end on the host has the same address but for a byte"

        up.ok("apply", "-f", "-", stdin=WITH_CARDS.format(
            name="green", networks="{name: default, pod: {}}", interfaces="{name: default, bridge: {}}"))
        until(lambda: up.phase("green") == "Failed", "green is refused", PATIENCE)
        assert "interfaces[0]: " in said(up, "green")
        assert "has no bridge for the pod network: use masquerade" in said(up, "green")
        up.ok("delete", "vmi", "blue")
        until(lambda: not plugged(bridge), "the card is unplugged", PATIENCE)


def test_nic_of_a_running_vm_comes_and_goes(libvirtd: Daemon, tmp_path: Path, bridge: str) -> None:
    """By the command line alone: a real guest gets it, has its link set, and releases it; killed processes change nothing."""
    made = subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"needs a kernel with bridges: {made.stderr}")
    disk = guest.image(libvirtd.folder)
    with Up(tmp_path / "data", "--hypervisor", libvirtd.uri, simulate=None) as up:
        up.ok("apply", "-f", "-", stdin=NETWORK.format(bridge=bridge))
        up.ok("apply", "-f", "-", stdin=WITH_GUEST.format(name="blue", disk=disk))
        until(lambda: up.phase("blue") == "Running", "blue runs", PATIENCE)
        qemu = libvirtd.qemu("default_blue")
        up.ok("vm", "nic", "add", "blue", "lan", "--network", "lan", "--mac", "02:00:00:00:20:01", "--wait")
        [tap] = plugged(bridge)
        assert tap["address"][3:] == "00:00:00:20:01"
        rows = up.ok("vm", "nic", "list", "blue").splitlines()
        assert f"bridge {bridge}" in rows[2]
        up.ok("vm", "nic", "link", "blue", "lan", "down", "--wait")
        up.kill()
        libvirtd.kill()
        libvirtd.start()
        up.start()
        assert len(plugged(bridge)) == 1, "taps stay with their QEMU"
        up.ok("vm", "nic", "link", "blue", "lan", "up", "--wait", "--timeout", "5m")
        up.ok("vm", "nic", "remove", "blue", "lan", "--wait", "--timeout", "5m")
        assert plugged(bridge) == []
        until(lambda: "lan" not in up.ok("vm", "nic", "list", "blue"), "it is gone from the template", PATIENCE)
        assert libvirtd.qemu("default_blue") == qemu, "the same QEMU all the time"
        up.ok("vm", "nic", "add", "blue", "lan", "--network", "lan", "--wait")
        assert len(plugged(bridge)) == 1, "and again"
        up.ok("delete", "vm", "blue")
        until(lambda: not plugged(bridge), "the tap is gone", PATIENCE)


def plugged(bridge: str) -> Any:
    """What hangs on a bridge of this host."""
    return json.loads(subprocess.run(["ip", "-json", "link", "show", "master", bridge], check=True, capture_output=True,
                                     text=True).stdout or "[]")


def test_missing_libvirt_is_reported_at_the_start(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--hypervisor", f"qemu+unix:///system?socket={tmp_path}/none", simulate=None)
    with pytest.raises(TimeoutError, match=r"libvirt at qemu\+unix:.* does not answer"):
        up.start()
