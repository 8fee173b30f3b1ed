"""The scenario of examples/07-custom-scheduler: exact devices by topology, and a second scheduler that loses the race."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.process import ROOT, ForkedUp, Up, environment, typed, until

EXAMPLE = ROOT / "examples" / "07-custom-scheduler"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with ForkedUp(tmp_path / "data", simulate=str(EXAMPLE / "hosts.yaml")) as running:
        yield running
        assert not running.log()


def schedule(up: Up, home: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, EXAMPLE / "scheduler.py", *words], capture_output=True, text=True, check=False,
                          env=environment(home, KUBECONFIG=str(up.kubeconfig)), timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
def test_one_pod_gets_the_devices_of_a_root_and_the_other_the_code(up: Up, tmp_path: Path) -> None:
    for name in ("1-classes.yaml", "2-train.yaml", "3-rival.yaml"):
        up.ok("apply", "-f", str(EXAMPLE / name))
    assert schedule(up, tmp_path, "train") == (
        "train: fir/pci-0000-16-17-00-0 and fir/pci-0000-16-18-00-0-vf0 on pci0000:16\n")

    def phase(name: str) -> str:
        return str(json.loads(up.ok("get", "pod", name, "-o", "json"))["status"]["phase"])

    until(lambda: phase("train") == "Running", "train runs")
    [claim] = json.loads(up.ok("get", "resourceclaims", "-o", "json"))["items"]
    given = {result["device"] for result in claim["status"]["allocation"]["devices"]["results"]}
    assert given == {"pci-0000-16-17-00-0", "pci-0000-16-18-00-0-vf0"}

    schedule(up, tmp_path, "rival", "--root", "pci0000:16")

    def codes() -> str:
        return typed("why", "pod/rival", "-o", "json", kubeconfig=up.kubeconfig).out

    until(lambda: '"Held"' in codes(), "rival waits with the code")
    assert phase("rival") == "Pending"
