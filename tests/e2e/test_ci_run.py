""".ci/run with a make that is simulated: every suite runs, and the last lines say which failed and how to go on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.process import ROOT

MAKE = """#!/bin/sh
echo "$1" >> ran
case "$1" in
  test-cluster) echo "1 failed"; echo "To run a failed test alone:"; echo "  .venv/bin/pytest tests/x.py::test_y"
                echo "make: *** Error 1"; exit 2 ;;
  test-hardware) echo "FAILED: no card"; exit 1 ;;
esac
"""
SUITES = ["venv", "test", "libvirt", "test-parts", "test-libvirt", "test-hardware", "test-cluster", "demo"]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose programs and packages are all simulated."""
    programs = {"bin/make": MAKE, "bin/apt-cache": "#!/bin/sh\n", "scripts/kube-assets": "#!/bin/sh\necho /kube\n",
                "scripts/virtctl": "#!/bin/sh\necho /virtctl\n", "scripts/kubelet-protos": "#!/bin/sh\n",
                "scripts/again": "#!/bin/sh\nexec \"$@\"\n",
                "scripts/oldest-python": (ROOT / "scripts" / "oldest-python").read_text(),
                ".ci/run": re.sub(r"^need .*\n", "", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)}
    for name, text in programs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    return tmp_path


def run(clone: Path) -> tuple[int, list[str], list[str]]:
    """Exit status, what make was asked for, and the output."""
    path = f"{clone / 'bin'}:{Path(sys.executable).parent}:{os.defpath}"
    done = subprocess.run([clone / ".ci" / "run"], env={"PATH": path, "HOME": str(clone)}, text=True, timeout=300, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, (clone / "ran").read_text().split(), done.stdout.splitlines()


def test_the_last_lines_name_the_suites_that_failed(clone: Path) -> None:
    code, ran, lines = run(clone)
    assert (code, ran) == (1, SUITES)
    times = [re.sub(r"^ *\d+ s  ", "", line) for line in lines[lines.index("== times") + 1:]]
    assert times == [
        "virtual environment", "make test", "system packages", "building Kubernetes",
        "protobuf files of the kubelet", "building virtctl", "kubectl, virtctl and programs of the system",
        "libvirt and QEMU", "a host with devices, in a VM, FAILED",
        "real kube-apiserver, FAILED", "the demo", "in all", "",
        "export KUBEBUILDER_ASSETS=/kube PATH=/virtctl:/kube:$PATH",
        "FAILED: a host with devices, in a VM", "  the whole suite: make test-hardware HARDWARE=--all-parts",
        "  | FAILED: no card",
        "FAILED: real kube-apiserver",
        "  the whole suite: make test-cluster PYTEST=--all-parts\\ --durations=12\\ -p\\ no:cacheprovider",
        "  To run a failed test alone:", "    .venv/bin/pytest tests/x.py::test_y"]


def test_everything_passed(clone: Path) -> None:
    (clone / "bin" / "make").write_text('#!/bin/sh\necho "$1" >> ran\n')
    code, ran, lines = run(clone)
    assert (code, ran, lines[-1]) == (0, SUITES, "everything passed")
    assert not any("FAILED" in line for line in lines)


def test_a_step_that_cannot_be_done_ends_it(clone: Path) -> None:
    (clone / "bin" / "make").write_text('#!/bin/sh\necho "$1" >> ran\n')
    (clone / "scripts" / "kube-assets").write_text("#!/bin/sh\nexit 1\n")
    code, ran, lines = run(clone)
    assert (code, ran, lines[-1]) == (1, SUITES[:3], "FAILED: building Kubernetes")
