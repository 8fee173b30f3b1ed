"""Other releases of outfitter, to run beside the one under test: the same package with another version number, or the package
as it was in an earlier commit. `ClusterRoles.start(release=...)` runs a role of one."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import outfitter
from tests.e2e.process import ROOT

PACKAGE = Path(outfitter.__file__).parent
# The release before the one under test. Before 0.1.0: the last commit without a version in the Lease and without skew codes.
PREVIOUS = "8d7c5fc16801f8ade082f172e125196fd6d500c9"


def minor_version(more: int) -> str:
    """The version that is so many minor versions newer than the one under test."""
    major, minor = map(int, outfitter.__version__.split(".")[:2])
    return f"{major}.{minor + more}.0"


def renumbered(folder: Path, version: str) -> Path:
    """The package under test with another version number, below a folder for PYTHONPATH."""
    place = folder / f"release-{version}"
    # With what is compiled, which stays valid: times are copied, too. NAME.pyc.NUMBER is being written by another process.
    shutil.copytree(PACKAGE, place / "outfitter", ignore=shutil.ignore_patterns("*.pyc.*"))
    init = place / "outfitter" / "__init__.py"
    init.write_text(init.read_text().replace(f'__version__ = "{outfitter.__version__}"', f'__version__ = "{version}"'))
    assert f'"{version}"' in init.read_text()
    return place


def previous(folder: Path) -> Path | None:
    """The package of the previous release, from the history of this clone; None where there is none."""
    if shutil.which("git") is None:
        return None
    packed = subprocess.run(["git", "archive", PREVIOUS, "src/outfitter"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode != 0:
        return None
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder / "previous")  # of our own repository
    return folder / "previous" / "src"
