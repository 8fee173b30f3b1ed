"""`outfit up` and the roles of a cluster in processes that are forked from one which has imported the product already: a start
costs a quarter of the time.

They are processes of their own all the same: signals, kill -9, exit codes and what they print are those of the real commands,
which `tests/e2e/test_up.py` and `tests/e2e/test_cluster_docs.py` start."""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkServerContext
from pathlib import Path

from outfitter import __main__ as command
from outfitter.roles import ROLES

SERVER = ("outfitter.up", "outfitter.cli.main", "uvicorn.lifespan.off", "uvloop")
PRELOADED = [*SERVER, "outfitter.roles.process", *(f"outfitter.roles.{role}" for role in ROLES)]
PR_SET_PDEATHSIG, SIGKILL = 1, 9


class ForkedServer:
    """What the tests use of `subprocess.Popen`."""

    def __init__(
        self, words: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path, role: str = "up",
        piped: bool = True,
    ) -> None:
        """`piped`: `stdout` is a pipe; otherwise the log has what it prints, too."""
        context = self._context()
        self.stdout: Connection | None = None
        output: Connection | None = None
        if piped:
            self.stdout, output = context.Pipe(duplex=False)
        self._words = words
        self._process = context.Process(target=_run, args=([role, *words], dict(environment), folder, log, output), daemon=True)
        self._process.start()
        if output is not None:
            output.close()

    def _context(self) -> ForkServerContext | ForkContext:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        return context

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


class OwnForkedServer(ForkedServer):
    """Forked from this process, for a host on which one more process that imports the product costs too much. This process must
    have no threads."""

    def _context(self) -> ForkContext:
        for module in SERVER:
            importlib.import_module(module)
        return multiprocessing.get_context("fork")


def _run(words: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path, output: Connection | None) -> None:
    os.setsid()
    if sys.platform == "linux":  # it ends with the process that forks, and that one with the tests
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    with log.open("ab") as file:
        os.dup2(file.fileno() if output is None else output.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if output is not None:
        output.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["outfit", *words]
    command.main()
