"""An API server that really listens, in a loop of its own, with its certificates; and kubectl to speak to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar

from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.apiserver.server import Server
from outfitter.store import pki
from outfitter.store.memory import Memory

T = TypeVar("T")
PATIENCE = 300.0  # seconds until what does not answer has failed
TOKEN = "a-token"


class Files(TypedDict):
    certfile: Path
    keyfile: Path
    ca: Path


def certify(folder: Path) -> tuple[pki.Pair, Files]:
    """An authority and a server's certificate in files."""
    begin = datetime.now(UTC) - timedelta(hours=1)
    ca = pki.authority("outfitter-tests", valid_from=begin, valid_until=begin + timedelta(days=2))
    server = pki.server(ca, "kube", hosts=["127.0.0.1"], valid_from=begin, valid_until=begin + timedelta(days=2))
    certfile, keyfile = server.save(folder, "server")
    return ca, {"certfile": certfile, "keyfile": keyfile, "ca": ca.save(folder, "ca")[0]}


def client_of(ca: pki.Pair, name: str, *groups: str) -> pki.Pair:
    begin = datetime.now(UTC) - timedelta(hours=1)
    return pki.client(ca, name, groups=groups, valid_from=begin, valid_until=begin + timedelta(days=2))


def tls(ca: pki.Pair, folder: Path, client: pki.Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca.cert.decode())
    if client:
        context.load_cert_chain(*client.save(folder, "client"))
    return context


class Running:
    """A server in a thread, so that kubectl can be waited for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="kube-server")
        self.store = Memory()
        self.ca, files = certify(folder)
        self.server = Server(App(self.store, tokens={TOKEN: User("tester", (MASTERS,))}), **files)
        self.kubeconfig = folder / "kubeconfig"

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something where the server runs."""
        waiting: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return waiting.result(PATIENCE)

    def __enter__(self) -> Self:
        self._thread.start()
        self.call(self.server.start())
        admin = client_of(self.ca, "admin", MASTERS)
        config = pki.kubeconfig(self.server.url, ca=self.ca.cert, client=admin, namespace="default")
        self.kubeconfig.write_text(json.dumps(config))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.call(self.server.stop())
        self.call(self.store.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


def kubectls() -> dict[str, Path]:
    """Every kubectl there is: in PATH and in KUBEBUILDER_ASSETS."""
    found = {}
    if path := shutil.which("kubectl"):
        found["from PATH"] = Path(path)
    if (assets := os.environ.get("KUBEBUILDER_ASSETS")) and (Path(assets) / "kubectl").is_file():
        found["from KUBEBUILDER_ASSETS"] = Path(assets) / "kubectl"
    return found


class Kubectl:
    def __init__(self, program: Path, running: Running) -> None:
        self.program, self.running = program, running
        self.env = {"PATH": os.environ.get("PATH", ""), "HOME": str(running.folder), "KUBECONFIG": str(running.kubeconfig)}

    def start(self, *args: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen([self.program, *args], env={**self.env, **env}, text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def __call__(self, *args: str, stdin: str = "", fails: bool = False, **env: str) -> str:
        """Run it and give what a person would see."""
        done = subprocess.run([self.program, *args], env={**self.env, **env}, input=stdin, text=True, capture_output=True,
                              timeout=PATIENCE, check=False)
        seen = done.stdout + done.stderr
        assert bool(done.returncode) == fails, f"kubectl {' '.join(args)}: {seen}"
        return seen
