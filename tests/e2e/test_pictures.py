"""README.md shows what the product prints: the picture is drawn from real output, and is redrawn when the wording changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.process import PATIENCE, ROOT, environment


def test_the_picture_in_the_readme_is_what_the_product_prints(tmp_path: Path) -> None:
    check = subprocess.run([sys.executable, ROOT / "scripts" / "pictures.py", "--check"], env=environment(tmp_path), text=True,
                           capture_output=True, timeout=5 * PATIENCE, check=False)
    assert check.returncode == 0, f"run make pictures\n{check.stderr}"
    assert "docs/images/terminal.svg" in (ROOT / "README.md").read_text()
