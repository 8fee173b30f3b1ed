"""README.md shows what the product prints: the picture is drawn from real output, and is redrawn when the wording changes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.e2e.process import ROOT, ask_in_process


def test_the_picture_in_the_readme_is_what_the_product_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["pictures.py", "--check"])
    pictures = importlib.import_module("pictures")
    monkeypatch.setattr(pictures.Demo, "ask", ask_in_process)
    monkeypatch.chdir(ROOT)
    assert pictures.main() == 0, f"run make pictures\n{capsys.readouterr().err}"
    assert "docs/images/terminal.svg" in (ROOT / "README.md").read_text()
