"""A real Kubernetes API server for tests: etcd and kube-apiserver, and when asked kube-scheduler and
kube-controller-manager, on free ports of 127.0.0.1, with all they write below one folder.

The programs are found through KUBEBUILDER_ASSETS; `scripts/kube-assets` builds them. Needs no pytest:

    with Cluster(folder) as cluster:
        access = cluster.access()
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from outfitter.api import kinds
from outfitter.install import crds
from outfitter.store import kubeconfig as configs
from outfitter.store import pki
from outfitter.store.clock import Clock, SystemClock
from outfitter.store.rest_config import RestConfig

NEEDED = ("etcd", "kube-apiserver", "kubectl")
MISSING = "needs KUBEBUILDER_ASSETS, a folder with etcd, kube-apiserver and kubectl; scripts/kube-assets builds it"
# Simulated nodes have no kubelet that would report, so it must not be concluded that they are gone.
CONTROLLERS = "*,-node-lifecycle-controller,-node-ipam-controller,-taint-eviction-controller"
QPS = 1000  # what the scheduler and the controllers may ask of the server per second
SERVICES = "10.0.0.0/24"
OURS = tuple(kind for kind in kinds.ALL if not kind.builtin)
START_TRIES = 3
BUSY = 300.0  # seconds for which a server may refuse a request because it has too many
FRONT_PROXY = "front-proxy"  # the common name, and the files, of the client certificate for aggregated API servers


class PortTaken(RuntimeError):
    """A part could not listen where we asked it to."""


def assets() -> Path | None:
    """Where the programs are; None when KUBEBUILDER_ASSETS is not set or names a folder without them."""
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS") or os.devnull)
    return folder if all((folder / name).is_file() for name in NEEDED) else None


class Cluster:
    """One control plane. `start` returns when it answers; `stop` ends the processes that `start` began, and no others.
    The thread that calls `start` must outlive the cluster: the processes die with it."""

    def __init__(
        self,
        folder: Path,
        *,
        binaries: Path | None = None,
        scheduler: bool = False,
        controllers: bool = False,
        durable: bool = False,
        feature_gates: str = "",
        learn: Iterable[kinds.Kind] = OURS,
        apiserver_flags: Sequence[str] = (),
        patience: float = 300.0,
    ) -> None:
        """`durable`: etcd waits for the disk at each write. `learn`: kinds to register by CRD. `patience`: seconds until
        a part that does not become ready is an error."""
        found = binaries or assets()
        if found is None:
            raise FileNotFoundError(MISSING)
        self.binaries = found
        self.folder = folder
        self.token = secrets.token_hex(16)
        self.server = ""
        self._scheduler, self._controllers = scheduler, controllers
        self._durable, self._feature_gates = durable, feature_gates
        self._learn = tuple(learn)
        self._apiserver_flags = tuple(apiserver_flags)
        self._patience = patience
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tls: ssl.SSLContext | None = None

    @property
    def kubeconfig(self) -> Path:
        """For an administrator, with a client certificate; `kubeconfig_token` has a token instead."""
        return self.folder / "admin.kubeconfig"

    @property
    def kubeconfig_token(self) -> Path:
        return self.folder / "admin-token.kubeconfig"

    def access(self, clock: Clock | None = None) -> RestConfig:
        return configs.load(self.kubeconfig, clock=clock or SystemClock())

    def kubectl(self, *args: str, stdin: str = "", timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; the caller looks at the return code."""
        env = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(
            [self.binaries / "kubectl", *args],
            input=stdin, env=env, text=True, capture_output=True, timeout=timeout, check=False,
        )

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def start(self) -> Self:
        """On other ports when another process took one of ours between the look and the use."""
        for tries_left in reversed(range(START_TRIES)):
            try:
                self._start()
                break
            except PortTaken:
                self.stop()
                if not tries_left:
                    raise
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        if self._processes:
            raise RuntimeError(f"the cluster in {self.folder} is running already")
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)
        client, peer, port, manager_port, scheduler_port = free_ports(5)
        etcd = f"http://127.0.0.1:{client}"
        self.server = f"https://127.0.0.1:{port}"
        certificates = self._certify()
        self._start_etcd(etcd, f"http://127.0.0.1:{peer}")
        self._wait("etcd", lambda: b'"true"' in fetch(f"{etcd}/health"))
        self._start_apiserver(etcd, port, certificates)
        self._wait("kube-apiserver", lambda: self.request("GET", "/readyz") == b"ok")
        if self._controllers:
            self._start_controllers(manager_port, certificates)
        if self._scheduler:
            self._start_scheduler(scheduler_port)
        for kind in self._learn:
            self._wait("kube-apiserver", functools.partial(self._register, kind))
        for kind in self._learn:
            self._wait("kube-apiserver", functools.partial(self._serves, kind))
        self._wait("kube-apiserver", lambda: self._has("/api/v1/namespaces/default"))
        for name, its_port in (("kube-controller-manager", manager_port), ("kube-scheduler", scheduler_port)):
            if name in self._processes:
                self._wait(name, functools.partial(_healthy, its_port))

    def _certify(self) -> Path:
        """Make every key, certificate and kubeconfig again; the folder that holds them."""
        folder = self.folder / "pki"
        folder.mkdir(exist_ok=True)
        now = SystemClock().now()
        begin, end = now - timedelta(hours=1), now + timedelta(days=30)
        ca = pki.authority("outfitter-tests", valid_from=begin, valid_until=end)
        ca.save(folder, "ca")
        hosts = ["127.0.0.1", "10.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        pki.server(ca, "kube-apiserver", hosts=hosts, valid_from=begin, valid_until=end).save(folder, "apiserver")
        proxy = pki.client(ca, FRONT_PROXY, valid_from=begin, valid_until=end)
        proxy.save(folder, FRONT_PROXY)
        pki.save_private(folder / "accounts.key", pki.key())
        pki.save_private(folder / "tokens.csv", f"{self.token},admin-token,admin-token,system:masters\n".encode())
        users = {
            "admin": pki.client(ca, "admin", groups=["system:masters"], valid_from=begin, valid_until=end),
            "kube-scheduler": pki.client(ca, "system:kube-scheduler", valid_from=begin, valid_until=end),
            "kube-controller-manager": pki.client(
                ca, "system:kube-controller-manager", valid_from=begin, valid_until=end
            ),
        }
        for name, pair in users.items():
            self._save_kubeconfig(name, pki.kubeconfig(self.server, ca=ca.cert, client=pair, user=name))
        self._save_kubeconfig("admin-token", pki.kubeconfig(self.server, ca=ca.cert, token=self.token))
        self._tls = ssl.create_default_context(cadata=ca.cert.decode())
        return folder

    def _save_kubeconfig(self, name: str, content: kinds.Object) -> None:
        pki.save_private(self.folder / f"{name}.kubeconfig", json.dumps(content).encode())  # JSON is YAML as well

    def _start_etcd(self, client: str, peer: str) -> None:
        self._run(
            "etcd",
            "--name=default",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--quota-backend-bytes=4294967296",
            "--watch-progress-notify-interval=5s",
            "--log-level=warn",
            *(() if self._durable else ("--unsafe-no-fsync",)),
        )

    def _start_apiserver(self, etcd: str, port: int, certificates: Path) -> None:
        self._run(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'apiserver-certs'}",
            f"--tls-cert-file={certificates / 'apiserver.crt'}",
            f"--tls-private-key-file={certificates / 'apiserver.key'}",
            f"--client-ca-file={certificates / 'ca.crt'}",
            f"--token-auth-file={certificates / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            f"--service-cluster-ip-range={SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={certificates / 'accounts.key'}",
            f"--service-account-signing-key-file={certificates / 'accounts.key'}",
            # The scheduler and the controllers ask it who may read their own health and metrics.
            f"--requestheader-client-ca-file={certificates / 'ca.crt'}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            # With it, aggregated API servers know that it is kube-apiserver that asks them.
            f"--proxy-client-cert-file={certificates / FRONT_PROXY}.crt",
            f"--proxy-client-key-file={certificates / FRONT_PROXY}.key",
            # Service accounts need the controllers; the taint of a new node is removed by a kubelet.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--allow-privileged=true",
            "--max-requests-inflight=2000",
            "--max-mutating-requests-inflight=1000",
            *self._gates(),
            *self._apiserver_flags,
        )

    def _start_controllers(self, port: int, certificates: Path) -> None:
        access = self.folder / "kube-controller-manager.kubeconfig"
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={access}",
            f"--authentication-kubeconfig={access}",
            f"--authorization-kubeconfig={access}",
            f"--service-account-private-key-file={certificates / 'accounts.key'}",
            f"--root-ca-file={certificates / 'ca.crt'}",
            "--use-service-account-credentials=true",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'controller-manager-certs'}",
            "--leader-elect=false",
            f"--controllers={CONTROLLERS}",
            f"--kube-api-qps={QPS}",
            f"--kube-api-burst={QPS}",
            *self._gates(),
        )

    def _start_scheduler(self, port: int) -> None:
        access, config = self.folder / "kube-scheduler.kubeconfig", self.folder / "scheduler.json"
        content = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(access), "qps": QPS, "burst": QPS},
        }
        config.write_text(json.dumps(content))
        self._run(
            "kube-scheduler",
            f"--config={config}",
            f"--authentication-kubeconfig={access}",
            f"--authorization-kubeconfig={access}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'scheduler-certs'}",
            *self._gates(),
        )

    def _gates(self) -> Sequence[str]:
        return (f"--feature-gates={self._feature_gates}",) if self._feature_gates else ()

    def _run(self, name: str, *args: str) -> None:
        env = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder)}
        # Whoever kills the tests outright kills this too, where the system can promise that.
        leash = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [*leash, self.binaries / name, *args],
                cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # so that Ctrl-C reaches the tests first, and they stop us in order
            )

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait for what the API server does some time after a request."""
        self._wait("kube-apiserver", ready)

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Until `ready` reports it. An answer that fails is one that is not ready yet."""
        log = self.folder / f"{name}.log"
        deadline = time.monotonic() + self._patience
        while True:
            if self._processes[name].poll() is not None:  # before the question: another may listen where it should
                said = _tail(log)
                fault = PortTaken if "address already in use" in said else RuntimeError
                raise fault(f"{name} ended with {self._processes[name].returncode}:\n{said}")
            try:
                if ready():
                    return
                why = "is not ready"
            except (OSError, http.client.HTTPException) as error:
                why = str(error)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} {why} after {self._patience:g} s:\n{_tail(log)}")
            time.sleep(0.05)

    def request(self, method: str, path: str, body: kinds.Object | None = None) -> bytes:
        """One request as the administrator, for setting up; tests speak through the store. A patch is a merge patch. What a
        busy server refuses unread (429) is sent again."""
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            self.server + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": content},
        )
        deadline = time.monotonic() + BUSY
        while True:
            try:
                return self.fetch(request)
            except urllib.error.HTTPError as error:
                if error.code != http.HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() > deadline:
                    raise
                time.sleep(float(error.headers.get("Retry-After") or 1))

    def fetch(self, request: urllib.request.Request) -> bytes:
        """The answer to a request that the caller has built; HTTPError as urllib raises it."""
        return fetch(request, self._tls)

    def _register(self, kind: kinds.Kind) -> bool:
        """A server that has just come up may be too busy to answer; what it did though it did not answer is no harm."""
        try:
            self.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crds.definition(kind))
        except urllib.error.HTTPError as error:
            if error.code in (http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.UNPROCESSABLE_ENTITY):
                raise RuntimeError(f"kube-apiserver does not take the kind {kind.kind}: {error.read().decode()}") from error
            return error.code == http.HTTPStatus.CONFLICT
        return True

    def _has(self, path: str) -> bool:
        return bool(self.request("GET", path))

    def _serves(self, kind: kinds.Kind) -> bool:
        """Established is a promise; that a list is answered is the proof."""
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind.resource}"
        conditions = json.loads(self.request("GET", path)).get("status", {}).get("conditions") or []
        established = any(item["type"] == "Established" and item["status"] == "True" for item in conditions)
        return established and self._has(kind.path())


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free; all are held until all are found, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def fetch(request: str | urllib.request.Request, tls: ssl.SSLContext | None = None) -> bytes:
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)]
    with urllib.request.build_opener(*handlers).open(request, timeout=30) as answer:
        content: bytes = answer.read()
        return content


def _blind() -> ssl.SSLContext:
    """For the health of parts that sign their certificates themselves."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _healthy(port: int) -> bool:
    return fetch(f"https://127.0.0.1:{port}/healthz", _blind()) == b"ok"


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
