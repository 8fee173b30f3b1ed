"""Commands whose pipe is closed, as `head -1` does: they end without a word."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.process import OUTFIT, PATIENCE, ForkedUp, Up, environment

CLOSED = 141  # what a shell shows of a command that SIGPIPE ended


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with ForkedUp(tmp_path_factory.mktemp("pipes") / "data", simulate="1x1") as up:
        yield up


def unread(words: Sequence[str], home: Path, kubeconfig: Path | None = None, *, both: bool = False) -> tuple[int, str]:
    """How a command ends whose output goes to a pipe that is not read, and what it says on standard error; `both`: that goes
    there too."""
    reader, writer = os.pipe()
    os.close(reader)
    more = {"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}
    try:
        done = subprocess.run([OUTFIT, *words], stdin=subprocess.DEVNULL, stdout=writer, timeout=PATIENCE, check=False,
                              stderr=writer if both else subprocess.PIPE, env=environment(home, **more))
    finally:
        os.close(writer)
    return done.returncode, (done.stderr or b"").decode()


COMMANDS = {  # one for each way through outfitter.cli.broken_pipe
    "a command": ["get", "nodes"],
    "help": ["--help"],
    "help of a command": ["vm", "start", "--help"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_with_a_closed_pipe_ends_quietly(name: str, running: Up) -> None:
    assert unread(COMMANDS[name], running.home, running.kubeconfig) == (CLOSED, "")


def test_error_to_a_closed_pipe_ends_quietly(running: Up) -> None:
    assert unread(["get", "vmi", "nobody"], running.home, running.kubeconfig, both=True) == (CLOSED, "")


def test_server_with_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    words = ["up", "--data", str(tmp_path / "data"), "--port", "0", "--simulate", "1x1"]
    assert unread(words, tmp_path) == (CLOSED, "")


def test_a_server_whose_first_line_was_enough_runs_on_and_ends_well(tmp_path: Path) -> None:
    words = ["up", "--data", str(tmp_path / "data"), "--port", "0", "--simulate", "1x1"]
    with subprocess.Popen([OUTFIT, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=environment(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith(b"is up\n")
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
        assert (process.wait(PATIENCE), said) == (0, "")
