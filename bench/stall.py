"""How long one request can keep the event loop of `outfit up`: a table of nasty requests (`stall_requests.py`) is sent one by
one, and for each is measured

    loop    CPU time of the event loop's thread until the answer, ms
    after   the same afterwards, until the loop is idle again (controllers work on what was written)
    readyz  the slowest answer of a GET of /readyz, which another client sends every 20 ms meanwhile
    peak    how far resident memory rose, MB

    python -m bench.stall [--only WORDS] [--limit SECONDS] [GROUP ...]

What the loop needs for the other client and its own timers is measured first and subtracted. A request without an answer within
the limit is given up, and the process killed and started again. Nothing here passes or fails; the bounds that keep the figures
small are listed in docs/limits.md."""

from __future__ import annotations

import argparse
import base64
import http.client
import resource
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from bench.stall_requests import GROUPS, LISTED, LONG_LIST, NastyRequest

EVERY = 0.02  # seconds between two GETs of /readyz
QUIET = 0.2  # seconds; the loop is idle when it used little of them
MEMORY = 6 << 30  # bytes of address space, so that one request does not take the whole host


@dataclass(frozen=True, slots=True)
class Measured:
    status: str
    loop: float  # ms
    after: float  # ms
    readyz: float  # ms
    peak: float  # MB


class UpProcess:
    """An `outfit up` of its own."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "outfitter", "up", "--data", str(folder), "--port", "0", "--simulate", "1x1"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        resource.prlimit(self._process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
        assert self._process.stdout is not None
        if not any(line.startswith("Ctrl-C") for line in self._process.stdout):
            raise SystemExit("outfit up did not start")
        config = yaml.safe_load((folder / "kubeconfig").read_text())
        address = urlsplit(config["clusters"][0]["cluster"]["server"])
        self.host, self.port = str(address.hostname), int(address.port or 0)
        self.ready = ReadyzClient(self)
        self.tls = self._tls(folder, config["users"][0]["user"])
        self._proc = Path(f"/proc/{self._process.pid}")

    def _tls(self, folder: Path, user: dict[str, str]) -> ssl.SSLContext:
        context = anonymous()
        file = folder / "client.pem"
        file.write_bytes(b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")))
        context.load_cert_chain(file)
        return context

    def loop_ms(self) -> float:
        """CPU time of the thread that runs the event loop, the process's first."""
        return int((self._proc / "task" / self._proc.name / "schedstat").read_text().split()[0]) / 1e6

    def resident(self) -> float:
        return self._memory("VmRSS")

    def peak(self) -> float:
        return self._memory("VmHWM")

    def _memory(self, field: str) -> float:
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1e3
        return 0.0

    def forget_peak(self) -> None:
        (self._proc / "clear_refs").write_text("5")

    def send(self, request: NastyRequest, limit: float) -> str:
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=limit,
                                                 context=anonymous() if request.anonymous else self.tls)
        try:
            connection.request(request.method, request.path, request.body or None,
                               {"Content-Type": request.type, "Accept": request.accept})
            answer = connection.getresponse()
            answer.read()
            return str(answer.status)
        except TimeoutError:
            return "none"
        except (OSError, http.client.HTTPException) as error:
            return "closed" if self.alive else f"died ({type(error).__name__})"
        finally:
            connection.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self.ready.stop()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def anonymous() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class ReadyzClient(threading.Thread):
    """Asks whether the server is ready, every 20 ms, and remembers the slowest answer."""

    def __init__(self, server: UpProcess) -> None:
        super().__init__(daemon=True)
        self._address = server.host, server.port
        self._stopped = threading.Event()
        self._begun = 0.0  # of the request under way
        self._slowest = 0.0
        self.start()

    def run(self) -> None:
        connection: http.client.HTTPSConnection | None = None
        while not self._stopped.wait(EVERY):
            try:
                connection = connection or http.client.HTTPSConnection(*self._address, context=anonymous(), timeout=600)
                self._begun = time.perf_counter()
                connection.request("GET", "/readyz")
                connection.getresponse().read()
                self._slowest = max(self._slowest, time.perf_counter() - self._begun)
            except (OSError, http.client.HTTPException):
                connection = None
            self._begun = 0.0

    def forget(self) -> None:
        self._slowest = 0.0

    def slowest(self) -> float:
        """Of the answers since `forget`, ms; one that is still awaited counts."""
        begun = self._begun
        return max(self._slowest, time.perf_counter() - begun if begun else 0.0) * 1000

    def stop(self) -> None:
        self._stopped.set()


def idle_share(server: UpProcess) -> float:
    """The loop's CPU time with nothing but the other client, ms in a second."""
    before, begun = server.loop_ms(), time.perf_counter()
    time.sleep(2.0)
    return (server.loop_ms() - before) / (time.perf_counter() - begun)


def measure(server: UpProcess, request: NastyRequest, idle: float, limit: float) -> Measured:
    server.ready.forget()
    server.forget_peak()
    resident, before, begun = server.resident(), server.loop_ms(), time.perf_counter()
    status = server.send(request, limit)
    took = time.perf_counter() - begun
    if not server.alive:
        return Measured(status, took * 1000, 0.0, took * 1000, float("nan"))
    loop = server.loop_ms() - before - idle * took
    after = _until_idle(server, idle, limit) if status != "none" else 0.0
    return Measured(status, max(loop, 0.0), after, server.ready.slowest(), max(server.peak() - resident, 0.0))


def _until_idle(server: UpProcess, idle: float, limit: float) -> float:
    start, begun = server.loop_ms(), time.perf_counter()
    busy = 0.0
    while time.perf_counter() - begun < limit:
        before = server.loop_ms()
        time.sleep(QUIET)
        if server.loop_ms() - before < idle * QUIET + 10:
            break
        busy = server.loop_ms() - start - idle * (time.perf_counter() - begun)
    return max(busy, 0.0)


def prepare(server: UpProcess, request: NastyRequest) -> None:
    for step in request.setup:
        if step is LONG_LIST:
            _long_list(server)
        else:
            server.send(step, 60)  # 409 where it is there already


def _long_list(server: UpProcess) -> None:
    connection = http.client.HTTPSConnection(server.host, server.port, context=server.tls)
    for number in range(LISTED):
        body = f'{{"metadata":{{"name":"long-{number}","labels":{{"long":"y"}}}},"data":{{"a":"{number}","b":"{"x" * 200}"}}}}'
        connection.request("POST", LONG_LIST.path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        if answer.status == 409:
            break
    connection.close()


@contextmanager
def run() -> Iterator[UpProcess]:
    with tempfile.TemporaryDirectory(prefix="outfitter-stall-") as folder:
        server = UpProcess(Path(folder))
        try:
            yield server
        finally:
            server.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all if none is given")
    parser.add_argument("--only", default="", help="requests whose name contains this")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds until a request is given up")
    options = parser.parse_args()
    requests = [request for name in options.groups or GROUPS for request in GROUPS[name]() if options.only in request.name]
    print(f"{'request':58} {'bytes':>9} {'status':>6} {'loop ms':>8} {'after ms':>8} {'readyz ms':>9} {'peak MB':>8}")
    while requests:
        with run() as server:
            time.sleep(1.0)
            idle = idle_share(server)
            while requests:
                request = requests.pop(0)
                prepare(server, request)
                _until_idle(server, idle, options.limit)
                result = measure(server, request, idle, options.limit)
                size = len(request.body) or len(request.path) + len(request.accept)
                print(f"{request.name[:58]:58} {size:9,} {result.status:>6} {result.loop:8,.0f} {result.after:8,.0f} "
                      f"{result.readyz:9,.0f} {result.peak:8,.0f}", flush=True)
                if result.status == "none" or result.after > 1000 * options.limit - 1000 or not server.alive:
                    break


if __name__ == "__main__":
    main()
