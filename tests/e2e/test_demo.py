"""`make demo` is what a newcomer runs first: it must work, and it must notice when it does not."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.process import EXAMPLE, PATIENCE, ROOT, environment

SCRIPT = "scripts/demo.py"


def _demo(root: Path, home: Path) -> subprocess.CompletedProcess[str]:
    folder = home / "tmp"
    folder.mkdir()
    with subprocess.Popen([sys.executable, root / SCRIPT], env=environment(home, TMPDIR=str(folder)), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        try:
            out, err = demo.communicate(timeout=5 * PATIENCE)
        except subprocess.TimeoutExpired:
            demo.send_signal(signal.SIGINT)  # a demo that is killed outright would leave its server behind
            demo.communicate(timeout=PATIENCE)
            raise
    assert not list(folder.iterdir()), "it cleans up behind itself"
    return subprocess.CompletedProcess(demo.args, demo.returncode, out, err)


def test_the_demo(tmp_path: Path) -> None:
    done = _demo(ROOT, tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    commands = [line for line in done.stdout.splitlines() if line.startswith("$ ")]
    for words in ("$ outfit apply -f examples/01-one-vf/2-blue.yaml", "$ outfit domxml blue", "$ outfit why vmi/green",
                  "$ outfit delete vmi blue"):
        assert words in commands
    assert sum(line.startswith("$ outfit up ") for line in commands) == 2
    assert sum(line.startswith("$ kill -9 ") for line in commands) == 1


def test_the_demo_notices_what_is_wrong(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(EXAMPLE, root / EXAMPLE.relative_to(ROOT))
    (root / "scripts").mkdir()
    shutil.copy(ROOT / SCRIPT, root / SCRIPT)
    (root / "examples" / "01-one-vf" / "1-class.yaml").write_text("not an object\n")
    done = _demo(root, tmp_path)
    assert done.returncode == 1
    assert "The demo failed: outfit apply -f examples/01-one-vf/1-class.yaml ended with 1" in done.stderr
