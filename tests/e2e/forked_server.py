"""`outfit up` in a process that is forked from one which has imported the product already: a start costs a quarter of the time.

It is a process of its own all the same: signals, kill -9, exit codes and what it prints are those of the real command, which
`tests/e2e/test_up.py` starts."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from outfitter import __main__ as command

PRELOADED = ["outfitter.up", "outfitter.roles.launcher", "outfitter.cli.main", "uvicorn.lifespan.off", "uvloop"]
PR_SET_PDEATHSIG, SIGKILL = 1, 9


class ForkedServer:
    """What the tests use of `subprocess.Popen`."""

    def __init__(
        self, words: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path, role: str = "up"
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.stdout, output = context.Pipe(duplex=False)
        self._words = words
        self._process = context.Process(target=_run, args=([role, *words], dict(environment), folder, log, output), daemon=True)
        self._process.start()
        output.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def send_signal(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(SIGKILL)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(list(self._words), timeout or 0)
        return self._process.exitcode


def _run(words: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path, output: Connection) -> None:
    os.setsid()
    if sys.platform == "linux":  # it ends with the process that forks, and that one with the tests
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    os.dup2(output.fileno(), 1)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    output.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["outfit", *words]
    command.main()
