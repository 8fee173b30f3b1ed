"""scripts/oldest-python finds the oldest Python that is supported, by its patch level."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.e2e.process import ROOT

FOUND = {"a/python3": "3 10 13", "a/python3.11": "3 11 1", "b/python3.11": "3 11 0", "b/python3.12": "3 12 0",
         "b/python3.10": "3 10 2"}


def oldest(*folders: Path) -> str:
    path = ":".join([*map(str, folders), os.defpath])
    return subprocess.run([ROOT / "scripts" / "oldest-python"], env={"PATH": path}, text=True, capture_output=True,
                          check=True).stdout.strip()


def test_the_oldest_that_is_supported(tmp_path: Path) -> None:
    for name, version in FOUND.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / name).chmod(0o755)
    broken = tmp_path / "a" / "python3.9"  # a shim of a version that is not there
    broken.write_text("#!/bin/sh\necho 3 11 0; exit 127\n")
    broken.chmod(0o755)
    assert oldest(tmp_path / "a") == str(tmp_path / "a" / "python3.11")
    assert oldest(tmp_path / "a", tmp_path / "b") == str(tmp_path / "b" / "python3.11")
