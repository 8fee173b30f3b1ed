"""The container files: linted, and each role started in a root folder that has what its image has and nothing else. Images are
not built here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.process import OUTFIT, ROOT

IMAGES = ROOT / "deploy" / "images"
FILES = sorted(IMAGES.glob("Containerfile*"))
LIBRARIES = ("/lib", "/lib64", "/usr/lib")  # of the base image; it is a Debian, as this host must be
NO_SERVER = """
{"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}], "users": [{"name": "u", "user": {"token": "t"}}],
 "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
"""


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_an_image_runs_without_root_and_installs_what_is_locked(file: Path) -> None:
    text = file.read_text()
    last = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", last, re.MULTILINE)
    assert "--require-hashes -r requirements.lock" in text
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    assert all((ROOT / path).exists() for paths in copied for path in paths.split())
    assert not re.search(r"^(ADD|FROM \S+:latest)", text, re.MULTILINE)


@pytest.mark.judges
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_the_linter_finds_nothing(file: Path) -> None:
    """hadolint of PyPI, which `scripts/hadolint` installs."""
    program = subprocess.run([ROOT / "scripts" / "hadolint", "--path"], text=True, capture_output=True, check=False)
    if program.returncode:
        pytest.skip("needs hadolint; scripts/hadolint installs it")
    done = subprocess.run([program.stdout.strip(), str(file)], text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parts
@pytest.mark.parametrize("role", ["controller", "webhook", "node"])
def test_a_role_starts_in_a_root_folder_with_only_what_its_image_has(tmp_path: Path, role: str) -> None:
    """As far as to an API server that is not there: everything is imported by then, and no file, program or folder of the host
    is missed. The folder has Python, our package with its dependencies, shared libraries, an empty /tmp and a kubeconfig."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare, for a root folder of its own")
    root = tmp_path / "root"
    mounted = {
        str(Path(path).resolve())
        for path in (*LIBRARIES, sys.base_prefix, sys.prefix, str(ROOT / "src"))
        if Path(path).exists()
    }
    for path in (*mounted, "/tmp", "/proc", "/etc/outfitter"):
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for link in LIBRARIES:
        if Path(link).is_symlink():
            (root / link.lstrip("/")).symlink_to(os.readlink(link))
    (root / "etc/outfitter/kubeconfig").write_text(NO_SERVER)
    mounts = "".join(f"mount --bind {path} {root}{path}\n" for path in sorted(mounted))
    options = "--kubeconfig /etc/outfitter/kubeconfig --log-format json" + (" --simulate 1x1" if role == "node" else "")
    script = f"set -e\n{mounts}exec chroot {root} {OUTFIT} {role} {options}\n"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], text=True, capture_output=True, env={}, timeout=300, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "127.0.0.1:9" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
