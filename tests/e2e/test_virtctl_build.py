"""scripts/virtctl with a Go that is simulated: what it leaves in the cache is whole or not there, whoever comes or dies."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.process import PATIENCE, ROOT, until

pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="there is no flock in PATH")
# It says when it compiles, leaves half a file, and goes on when it is let.
GO = """#!/bin/sh
home=$(dirname "$0")
case "$1 $2" in
  "mod init") echo module x > go.mod ;;
  "mod download") mkdir -p "$home/module"; echo m > "$home/module/go.mod"; echo s > "$home/module/go.sum"
                  printf '{\\n\\t"Dir": "%s",\\n}\\n' "$home/module" ;;
  "build "*) while [ "$1" != -o ]; do shift; done
     echo once >> "$home/builds"; printf '#!/bin/sh\\n' > "$2"; chmod +x "$2"
     while [ ! -e "$home/go-on" ]; do sleep 0.02; done
     [ -e "$home/breaks" ] && exit 1
     echo 'echo Client Version: played' >> "$2" ;;
esac
"""


@dataclass
class Lab:
    home: Path
    runs: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *words: str, go: str = "") -> subprocess.Popen[str]:
        more = {"GO": go or str(self.home / "go"), "XDG_CACHE_HOME": str(self.home / "cache"), "TMPDIR": str(self.home / "tmp"),
                "AGAIN_AFTER": "0"}
        self.runs.append(subprocess.Popen(
            [ROOT / "scripts" / "virtctl", *words], env={"PATH": os.environ.get("PATH", os.defpath), **more}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True))
        return self.runs[-1]

    def run(self, *words: str, go: str = "") -> tuple[int, str, str]:
        process = self.start(*words, go=go)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out.strip(), err

    def let(self, *names: str) -> None:
        for name in (*names, "go-on"):
            (self.home / name).touch()

    @property
    def folder(self) -> Path:
        [found] = (self.home / "cache" / "outfitter").iterdir()
        return found

    def builds(self) -> int:
        log = self.home / "builds"
        return len(log.read_text().split()) if log.exists() else 0


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    (tmp_path / "go").write_text(GO)
    (tmp_path / "go").chmod(0o755)
    (tmp_path / "tmp").mkdir()
    lab = Lab(tmp_path)
    yield lab
    for process in lab.runs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_it_is_built_once(lab: Lab) -> None:
    code, path, _ = lab.run("--path")
    assert (code, lab.builds()) == (1, 0), "nothing is built to say where it would be"
    lab.let()
    assert lab.run()[:2] == (0, path)
    assert lab.run(go="no-such-go")[:2] == (0, path)
    assert (lab.run("--path")[:2], lab.builds()) == ((0, path), 1)
    assert list((lab.home / "tmp").iterdir()) == []
    assert subprocess.run([Path(path) / "virtctl"], capture_output=True, check=True, text=True).stdout.startswith("Client")


def test_missing_go_names_the_remedy(lab: Lab) -> None:
    code, out, err = lab.run(go="no-such-go")
    assert (code, out) == (1, "")
    assert err == "virtctl: no Go on this machine, so KubeVirt's virtctl cannot be built; put a virtctl in PATH\n"


def test_two_at_once_build_one(lab: Lab) -> None:
    first = lab.start()
    until(lab.builds, "the first compiles")
    second = lab.start()
    assert second.stderr is not None
    said = second.stderr.readline()
    lab.let()
    assert "another run builds it already" in said
    outs = [process.communicate(timeout=PATIENCE)[0].strip() for process in (first, second)]
    assert (outs, lab.builds()) == ([str(lab.folder)] * 2, 1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_one_that_is_ended_leaves_nothing_that_looks_whole(how: signal.Signals, lab: Lab) -> None:
    first = lab.start()
    until(lab.builds, "it compiles")
    os.killpg(first.pid, how)
    first.communicate(timeout=PATIENCE)
    assert first.returncode != 0
    assert lab.run("--path")[0] == 1
    lab.let()
    assert lab.run()[0] == 0
    assert (sorted(path.name for path in lab.folder.iterdir()), lab.builds()) == (["lock", "virtctl"], 2)


def test_failed_build_is_reported_and_retried(lab: Lab) -> None:
    lab.let("breaks")
    assert lab.run()[0] != 0
    assert lab.run("--path")[0] == 1
    (lab.home / "breaks").unlink()
    assert lab.run()[0] == 0
