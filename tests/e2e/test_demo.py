"""`make demo` is what a newcomer runs first: it must work, and it must notice when it does not."""

from __future__ import annotations

import importlib
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.process import EXAMPLE, PATIENCE, ROOT, ask_in_process, environment

SCRIPT = "scripts/demo.py"


@pytest.mark.thorough
def test_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands run in this process, its servers do not."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    demo = importlib.import_module("demo")
    monkeypatch.setattr(demo.Demo, "ask", ask_in_process)
    monkeypatch.chdir(ROOT)
    code = demo.main()
    done = capsys.readouterr()
    assert (code, done.err) == (0, ""), done.out
    commands = [line for line in done.out.splitlines() if line.startswith("$ ")]
    for words in ("$ outfit apply -f examples/01-one-vf/2-blue.yaml", "$ outfit domxml blue", "$ outfit why vmi/green",
                  "$ outfit delete vmi blue"):
        assert words in commands
    assert sum(line.startswith("$ outfit up ") for line in commands) == 2
    assert sum(line.startswith("$ kill -9 ") for line in commands) == 1
    assert not list(tmp_path.iterdir()), "it cleans up behind itself"


@pytest.mark.thorough
def test_the_demo_notices_what_is_wrong(tmp_path: Path) -> None:
    """The script as `make demo` runs it, with real commands, up to the first that fails."""
    root, folder = tmp_path / "copy", tmp_path / "tmp"
    shutil.copytree(EXAMPLE, root / EXAMPLE.relative_to(ROOT))
    (root / "scripts").mkdir()
    shutil.copy(ROOT / SCRIPT, root / SCRIPT)
    (root / "examples" / "01-one-vf" / "1-class.yaml").write_text("not an object\n")
    folder.mkdir()
    with subprocess.Popen([sys.executable, root / SCRIPT], env=environment(tmp_path, TMPDIR=str(folder)), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        try:
            _, err = demo.communicate(timeout=5 * PATIENCE)
        except subprocess.TimeoutExpired:
            demo.send_signal(signal.SIGINT)  # a demo that is killed outright would leave its server behind
            demo.communicate(timeout=PATIENCE)
            raise
    assert demo.returncode == 1
    assert "The demo failed: outfit apply -f examples/01-one-vf/1-class.yaml ended with 1" in err
    assert not list(folder.iterdir()), "it cleans up behind itself"
