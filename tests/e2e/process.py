"""The real command in processes of its own: `outfit up` as a server that can be signalled and killed, and what a person
types against it. Needs no pytest."""

from __future__ import annotations

import contextlib
import io
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar
from unittest import mock

from outfitter.cli import main
from outfitter.roles import commands
from outfitter.store import kubeconfig as configs
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests.e2e.forked_server import ForkedServer, OwnForkedServer

T = TypeVar("T")
ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "01-one-vf"
OUTFIT = Path(sys.executable).with_name("outfit")
LAST_LINE = "Ctrl-C stops it."
PATIENCE = 300.0  # seconds after which something that should have happened has failed
POLL = 0.02


def until(check: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Ask again and again until the answer is true; the answer."""
    deadline = time.monotonic() + patience
    while not (answer := check()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {patience:g} s: {what}; the last answer was {answer!r}")
        time.sleep(POLL)
    return answer


def environment(home: Path, **more: str) -> Mapping[str, str]:
    """Nothing of the person who runs the tests: no kubeconfig, no state, no proxies."""
    return {"PATH": os.environ.get("PATH", ""), "HOME": str(home), **more}


def outfit(
    *words: str, home: Path, kubeconfig: Path | None = None, stdin: str = "", patience: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; the caller looks at the return code."""
    more = {"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}
    return subprocess.run([OUTFIT, *words], input=stdin, env=environment(home, **more), cwd=ROOT, text=True,
                          capture_output=True, timeout=patience, check=False)


class Typed(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Utf8Text(io.StringIO):
    """Standard output of a terminal that can show every character."""

    encoding = "utf-8"


def typed(*words: str, kubeconfig: Path | None = None, stdin: str = "", stdout: type[io.StringIO] = io.StringIO) -> Typed:
    """The same command inside this process, which costs a tenth; not to be called from a coroutine, nor in two threads at once.
    `up` is for a server that is refused: one that starts runs in a process of its own, see `Up`."""
    out, err, code, before = stdout(), io.StringIO(), 0, sys.stdin
    sys.stdin = io.StringIO(stdin)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main.main(up=_run_server, roles=commands.commands(),
                      arguments=[*(("--kubeconfig", str(kubeconfig)) if kubeconfig else ()), *words])
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdin = before
    return Typed(code, out.getvalue(), err.getvalue())


class DemoCommands(Protocol):
    """The part of scripts/demo.py that runs commands."""

    env: dict[str, str]


def ask_in_process(demo: DemoCommands, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """`Demo.ask` without a process for each command, with the demo's environment."""
    with mock.patch.dict(os.environ, demo.env):
        done = typed(*words, stdout=Utf8Text)
    return subprocess.CompletedProcess(words, done.code, done.out + done.err)


def _run_server(**options: Any) -> None:
    from outfitter import up  # noqa: PLC0415  # the whole product, which commands do not need

    up.run(**options)


class Up:
    """`outfit up` on a free port. `start` returns when it reports that it is up."""

    def __init__(self, data: Path, *words: str, simulate: str | None = "1x1", patience: float = PATIENCE) -> None:
        self.data, self.patience = data, patience
        self.home = data.parent
        self.kubeconfig = data / "kubeconfig"
        sockets = () if "--kubelet-dir" in words else ("--kubelet-dir", "none")  # a fraction of a second of each start
        self.words = ("--data", str(data), "--port", "0", *(("--simulate", simulate) if simulate else ()), *sockets, *words)
        self.said = ""  # everything on standard output so far
        self.took = 0.0  # seconds until it was up
        self._process: subprocess.Popen[bytes] | ForkedServer | None = None
        self._log = data.with_suffix(".log")

    @property
    def process(self) -> subprocess.Popen[bytes] | ForkedServer:
        assert self._process is not None, "not started"
        return self._process

    def launch(self) -> None:
        """Begin a start, and do not wait for it."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self.said = ""
        self._process = self._launched()

    def _launched(self) -> subprocess.Popen[bytes] | ForkedServer:
        # A kill of the test run kills this too, where the system can promise that.
        leash = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*leash, OUTFIT, "up", *self.words], cwd=ROOT, env=environment(self.home), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, start_new_session=True)

    def start(self) -> Self:
        begun = time.monotonic()
        self.launch()
        try:
            self.hear(LAST_LINE)
        except BaseException:
            self.kill()
            raise
        self.took = time.monotonic() - begun
        return self

    def hear(self, words: str) -> str:
        """Read on until it has said these words."""
        out = self.process.stdout
        assert out is not None
        deadline = time.monotonic() + self.patience
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while words not in self.said:
                piece = os.read(out.fileno(), 65536) if selector.select(max(0.0, deadline - time.monotonic())) else b""
                if not piece:
                    raise TimeoutError(f"outfit up did not say {words!r} but {self.said!r}; its log: {self.log()}")
                self.said += piece.decode()
        return self.said

    def printed(self, title: str) -> str:
        """What stands behind a title in its greeting: `printed("API server")`."""
        lines = [line.strip() for line in self.said.splitlines()]
        return next(line.removeprefix(title).strip() for line in lines if line.startswith(title))

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, patience: float = PATIENCE) -> int:
        """Wait for its end; its exit code."""
        try:
            code = self.process.wait(patience)
        finally:
            self.kill()
        return code

    def stop(self) -> int:
        self.send(signal.SIGINT)
        return self.end()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()

    def outfit(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return outfit(*words, home=self.home, kubeconfig=self.kubeconfig, stdin=stdin)

    def ok(self, *words: str, stdin: str = "") -> str:
        """The output of a command that must succeed; run in this process."""
        done = typed(*words, kubeconfig=self.kubeconfig, stdin=stdin)
        assert done.code == 0, f"outfit {' '.join(words)}: {done.code}: {done.err}"
        return done.out

    def phase(self, name: str) -> str:
        """The phase of an instance, by the command's own table."""
        row = typed("get", "vmi", name, kubeconfig=self.kubeconfig).out.splitlines()[1:]
        return row[0].split()[2] if row else ""

    def blue_runs_and_green_waits(self) -> None:
        """The scenario's middle, on a host with one device. Both at once would be a race that either may win."""
        self.ok("apply", "-f", str(EXAMPLE / "1-class.yaml"), "-f", str(EXAMPLE / "2-blue.yaml"))
        until(lambda: self.phase("blue") == "Running", "blue runs")
        self.ok("apply", "-f", str(EXAMPLE / "3-green.yaml"))
        until(lambda: "reason: Unschedulable" in self.ok("get", "vmi", "green", "-o", "yaml"), "green waits")

    @contextlib.asynccontextmanager
    async def store(self) -> AsyncIterator[Kube]:
        """The server's objects, over a connection that is closed afterwards."""
        clock = SystemClock()
        store = Kube(configs.load(str(self.kubeconfig), clock=clock), clock=clock)
        try:
            yield store
        finally:
            await store.close()

    def domains(self) -> dict[str, str]:
        """What runs, by the hypervisors' own files: name of the file and its content."""
        return {path.name: path.read_text() for path in (self.data / "domains").glob("*/*")
                if path.suffix != ".tap"}

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


class ForkedUp(Up):
    """The same at a quarter of the cost, for tests of anything but the start of the command itself."""

    server: type[ForkedServer] = ForkedServer

    def _launched(self) -> ForkedServer:
        return self.server(self.words, environment=environment(self.home), folder=ROOT, log=self._log)


class OwnForkedUp(ForkedUp):
    """Forked from this process, on a host so slow that the product should be imported once."""

    server = OwnForkedServer


def type_what_it_tells(readme: Path, up: Up) -> None:
    """Every line with `outfit` of an example's page, in that order; afterwards nothing of the example is left."""
    lines = re.findall(r"^outfit ((?!up\b)[^#\n]*)", readme.read_text(), re.MULTILINE)
    assert len(lines) >= 15
    for line in lines:
        until(lambda line=line: typed(*line.split(), kubeconfig=up.kubeconfig).code == 0, line)  # type: ignore[misc]
    until(lambda: not up.ok("get", "vm,vmi,pods,resourceclaims", "-o", "name"), "nothing is left")
