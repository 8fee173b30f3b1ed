"""What tests and .ci/run take from the network survives a connection that breaks once: `scripts/again`, the scripts that
build with Go, and the packages of the host in a VM. Go and apt are simulated here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.process import PATIENCE, ROOT, until
from tests.hardware import parts

AGAIN = ROOT / "scripts" / "again"
PROGRAMS = {"virtctl": ["virtctl"],
            "kube-assets": ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"],
            "kubevirt": ["resource-generator", "virt-api", "virt-controller", "virt-operator"]}
# Each command that may need the network fails the first time it is asked for. A build leaves half a file until it is let go on.
GO = """#!/bin/sh
home=$(dirname "$0")
for last; do :; done
once() { [ -e "$home/steady" ] || [ -e "$home/tried $1" ] || { touch "$home/tried $1"; echo "connection reset" >&2; exit 1; }; }
case "$1 $2" in
  "mod init") echo module x > go.mod ;;
  "env GOVERSION") echo go1.99 ;;
  "mod download") once download; mkdir -p "$home/module"; echo m > "$home/module/go.mod"; echo s > "$home/module/go.sum"
                  printf '{\\n\\t"GoMod": "%s",\\n\\t"Dir": "%s",\\n}\\n' "$home/module/go.mod" "$home/module" ;;
  "get "*) once get ;;
  "build "*) while [ "$1" != -o ]; do shift; done
     printf '#!/bin/sh\\n' > "$2"; chmod +x "$2"; echo "$2" >> "$home/builds"
     while [ -e "$home/wait" ]; do sleep 0.02; done
     once "build $(basename "$last")"
     echo 'echo played' >> "$2" ;;
esac
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "go").write_text(GO)
    (tmp_path / "go").chmod(0o755)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def start(script: str, home: Path) -> subprocess.Popen[str]:
    more = {"GO": str(home / "go"), "XDG_CACHE_HOME": str(home / "cache"), "TMPDIR": str(home / "tmp"), "AGAIN_AFTER": "0"}
    return subprocess.Popen([ROOT / "scripts" / script], env={"PATH": os.environ.get("PATH", os.defpath), **more}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def check_whole(script: str, folder: Path) -> None:
    assert sorted({*(path.name for path in folder.iterdir())} - {"lock", "complete"}) == PROGRAMS[script]
    for name in PROGRAMS[script]:
        assert (folder / name).read_text() == "#!/bin/sh\necho played\n", name


@pytest.mark.parametrize("script", PROGRAMS)
def test_a_build_survives_a_connection_that_breaks(script: str, home: Path) -> None:
    with start(script, home) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "again: " in err
    assert "connection reset" in err, "why it was tried again is said"
    check_whole(script, Path(out.strip()))
    assert list((home / "tmp").iterdir()) == []


@pytest.mark.parametrize("script", PROGRAMS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_build_that_was_ended_leaves_nothing_that_looks_whole(script: str, how: signal.Signals, home: Path) -> None:
    (home / "steady").touch()
    (home / "wait").touch()
    with start(script, home) as process:
        until((home / "builds").exists, "it compiles")
        os.killpg(process.pid, how)
        process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    (home / "wait").unlink()
    with start(script, home) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    check_whole(script, Path(out.strip()))


@pytest.mark.skipif(shutil.which("flock") is None, reason="there is no flock in PATH")
@pytest.mark.parametrize("script", PROGRAMS)
def test_two_at_once_build_one(script: str, home: Path) -> None:
    (home / "steady").touch()
    (home / "wait").touch()
    with start(script, home) as first:
        until((home / "builds").exists, "the first compiles")
        with start(script, home) as second:
            assert second.stderr is not None
            assert "another run builds" in second.stderr.readline()
            (home / "wait").unlink()
            outs = [process.communicate(timeout=PATIENCE)[0].strip() for process in (first, second)]
    assert outs[0] == outs[1]
    assert len((home / "builds").read_text().split()) == len(PROGRAMS[script])


def again(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A command that notes each of its runs."""
    return subprocess.run([AGAIN, "sh", "-c", f'echo run >> "$0"; {code}', tmp_path / "runs"], text=True, capture_output=True,
                          env={"PATH": os.environ.get("PATH", os.defpath), "AGAIN_AFTER": "0"}, timeout=PATIENCE, check=False)


@pytest.mark.parametrize(("code", "status", "runs"), [
    ("exit 0", 0, 1), ("[ $(wc -l < $0) = 2 ]", 0, 2), ("[ $(wc -l < $0) = 3 ]", 0, 3), ("exit 7", 7, 3)])
def test_again(code: str, status: int, runs: int, tmp_path: Path) -> None:
    done = again(tmp_path, code)
    assert (done.returncode, len((tmp_path / "runs").read_text().split())) == (status, runs)
    assert done.stderr.count("again: sh ended with status ") == runs - 1


APT = {
    "apt-cache": 'echo "  Depends: linux-image-6.1.0-1-amd64"',
    "apt-get": """echo "$1" >> "$home/asked"
case "$1" in
  download) [ $(grep -c download "$home/asked") -gt FAILS ] || { echo "E: Connection reset" >&2; exit 100; }
            touch linux-image-6.1.0-1-amd64_1_amd64.deb ;;
esac""",
    "dpkg-deb": 'mkdir -p "$3/lib/modules/6.1.0-1-amd64"',
    "depmod": 'touch "$2/lib/modules/$3/modules.dep"',
}


@pytest.mark.parametrize(("fails", "asked"), [(0, 1), (1, 2), (2, 3), (3, None)])
def test_a_package_of_the_host_in_a_vm(fails: int, asked: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in APT.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nhome={tmp_path}\n{script.replace('FAILS', str(fails))}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ.get('PATH', os.defpath)}")
    monkeypatch.setattr(parts, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(parts, "PAUSE", 0.0)
    if asked is None:
        with pytest.raises(parts.Missing, match="Connection reset"):
            parts.kernel()
        return
    for _ in range(2):  # the second time it is there
        assert parts.kernel() == ("6.1.0-1-amd64", tmp_path / "cache" / "kernel-6.1.0-1-amd64")
    assert (tmp_path / "asked").read_text().split().count("download") == asked
