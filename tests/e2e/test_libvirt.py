"""`outfit up` with machines in libvirt: whoever is killed, outfitter, libvirtd or QEMU, the rest goes on and it is told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import Up, until
from tests.hardware import daemon
from tests.hardware.daemon import Daemon

pytestmark = [pytest.mark.libvirt, pytest.mark.skipif(bool(daemon.missing()), reason=daemon.missing() or "-")]
PATIENCE = 90.0  # QEMU is slow on a loaded machine
MACHINE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: {name}}}
spec: {{terminationGracePeriodSeconds: 0, domain: {{memory: {{guest: 32Mi}}, devices: {{}}}}}}
"""


@pytest.fixture
def libvirtd() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="outfit-"))
    made = Daemon(folder)
    made.start()
    yield made
    for pid in (folder / "run" / "qemu").glob("*.pid"):
        try:
            os.kill(int(pid.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            pass
    made.kill()
    shutil.rmtree(folder, ignore_errors=True)


def shown(up: Up, name: str) -> Any:
    return json.loads(up.ok("get", "vmi", name, "-o", "json"))


def said(up: Up, name: str) -> str:
    return " ".join(condition.get("message", "") for condition in shown(up, name).get("status", {}).get("conditions", ()))


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/status").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_whoever_is_killed_the_rest_goes_on(libvirtd: Daemon, tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--hypervisor", libvirtd.uri, simulate=None)
    with up:
        assert f"this machine; its machines run in libvirt at {libvirtd.uri}" in up.tells("hosts")
        up.ok("apply", "-f", "-", stdin=MACHINE.format(name="blue"))
        until(lambda: up.phase("blue") == "Running", "blue runs", PATIENCE)
        qemu = libvirtd.qemu("default_blue")
        up.kill()
    assert alive(qemu), "machines outlive outfitter"
    with up:
        assert up.start().phase("blue") == "Running"
        assert libvirtd.qemu("default_blue") == qemu, "it was adopted, not started again"

        libvirtd.kill()
        up.ok("apply", "-f", "-", stdin=MACHINE.format(name="green"))
        until(lambda: "does not answer" in said(up, "green"), "green says why it waits", PATIENCE)
        assert up.phase("blue") == "Running", "nobody knows that it ended"
        assert alive(qemu), "machines outlive libvirtd"
        libvirtd.start()
        until(lambda: up.phase("green") == "Running", "green runs", PATIENCE)
        assert (up.phase("blue"), libvirtd.qemu("default_blue")) == ("Running", qemu)

        os.kill(qemu, signal.SIGKILL)
        until(lambda: up.phase("blue") == "Failed", "blue failed", PATIENCE)
        assert "QEMU died or its guest crashed (libvirt: crashed)" in said(up, "blue")

        green = libvirtd.qemu("default_green")
        up.ok("delete", "vmi", "green")
        until(lambda: not alive(green), "green is off", PATIENCE)
        assert up.stop() == 0


def test_a_libvirt_that_is_not_there_is_told_at_the_start(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--hypervisor", f"qemu+unix:///system?socket={tmp_path}/none", simulate=None)
    with pytest.raises(TimeoutError, match=r"libvirt at qemu\+unix:.* does not answer"):
        up.start()
