"""KubeVirt's own virtctl against `outfit up`: the words that its users type, and what they are told."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import PATIENCE, Up, environment, until

VIRTCTL = shutil.which("virtctl")
if VIRTCTL is None:  # nobody has to have it, be it with --all-parts: no package system does
    pytest.skip("there is no virtctl in PATH", allow_module_level=True)
MACHINE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: blue}
spec: {runStrategy: Halted, template: {spec: {domain: {memory: {guest: 1Gi}, devices: {}}}}}
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with Up(tmp_path / "data") as running:
        yield running


def say(up: Up, *words: str, fails: bool = False) -> str:
    assert VIRTCTL is not None
    done = subprocess.run([VIRTCTL, *words], env=environment(up.home, KUBECONFIG=str(up.kubeconfig)), text=True,
                          capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode != 0) is fails, done
    return done.stdout + done.stderr


def shown(up: Up, kind: str) -> Any:
    return json.loads(up.ok("get", kind, "blue", "-o", "json"))


def reach(up: Up, word: str) -> None:
    until(lambda: (shown(up, "vm").get("status") or {}).get("printableStatus") == word, f"blue is {word}")


def test_the_life_of_a_machine(up: Up) -> None:
    up.ok("apply", "-f", "-", stdin=MACHINE)
    assert "Server Version" in say(up, "version")
    say(up, "start", "blue", "--dry-run")
    reach(up, "Stopped")
    assert "VirtualMachine blue is not set to run" in say(up, "pause", "vm", "blue", fails=True)
    say(up, "start", "blue", "--paused")
    reach(up, "Paused")
    assert "VMI is already paused" in say(up, "pause", "vmi", "blue", fails=True)
    assert "VMI is paused" in say(up, "soft-reboot", "blue", fails=True)
    say(up, "unpause", "vm", "blue", "--dry-run")
    say(up, "unpause", "vm", "blue")
    reach(up, "Running")
    assert "VMI is not paused" in say(up, "unpause", "vmi", "blue", fails=True)
    for action in ("soft-reboot", "reset"):
        say(up, action, "blue")
    until(lambda: {"SoftRebooted", "Reset"} <= set(up.ok("describe", "vmi", "blue").split()), "both are told")
    before = shown(up, "vmi")["metadata"]["uid"]
    say(up, "restart", "blue", "--force", "--grace-period=0")
    until(lambda: "blue" in up.ok("get", "vmi") and shown(up, "vmi")["metadata"]["uid"] != before, "another instance")
    reach(up, "Running")
    assert "live migration is not served yet" in say(up, "migrate", "blue", fails=True)
    assert "outfitter opens no way into a machine" in say(up, "console", "blue", fails=True)
    say(up, "stop", "blue", "--force", "--grace-period=0")
    reach(up, "Stopped")
