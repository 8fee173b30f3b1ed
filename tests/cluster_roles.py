"""The roles of a cluster as processes of their own, on a real control plane (`kubernetes.Cluster` with scheduler and
controllers), each with the token of its service account. Needs no pytest:

    roles = ClusterRoles(cluster, folder)
    controller = roles.start("controller")
    node = roles.start("node", "--simulate", "2x4")
    controller.kill()
    roles.stop()
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import urllib.error
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from outfitter.api.kinds import Object
from outfitter.install import apply, manifests, names
from outfitter.install.names import InstallOptions
from outfitter.store import pki
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.e2e.forked_server import ForkedServer
from tests.e2e.process import OUTFIT, ROOT, environment, until

NAMESPACE = names.NAMESPACE
ACCOUNTS = {"controller": names.CONTROLLER, "node": names.NODE, "webhook": names.WEBHOOK}
LEFT_OUT = ("Deployment", "DaemonSet", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "APIService")
# Shorter than in production, so that a take-over is soon; long enough for a machine with more to do than it has cores.
LEASE = ("--lease-duration", "8s", "--renew-deadline", "5s", "--retry-period", "1s")
_installed: weakref.WeakKeyDictionary[kubernetes.Cluster, str] = weakref.WeakKeyDictionary()  # -> where it served then
_HEALTH = re.compile(r"health and metrics at (http://\S+)")


class RoleRun:
    """One process of a role, from its start to its end."""

    def __init__(self, name: str, words: list[str], log: Path, env: dict[str, str], command: Sequence[str] = ()) -> None:
        """`command` is what runs it, before `words`; without, it is forked from a process that has imported the product."""
        self.name, self.log = name, log
        self._begin = log.stat().st_size if log.exists() else 0
        log.touch()
        self.process: ForkedServer | subprocess.Popen[bytes]
        if not command:
            self.process = ForkedServer(words[1:], environment=env, folder=ROOT, log=log, role=words[0], piped=False)
            return
        leash = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()
        with log.open("ab") as file:
            self.process = subprocess.Popen([*leash, *command, *words], cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
                                            stdout=file, stderr=file, start_new_session=True)

    @property
    def said(self) -> str:
        """What this process has logged."""
        return self.log.read_bytes()[self._begin:].decode(errors="replace")

    def lines(self) -> Iterator[dict[str, Any]]:
        """Its log, which is JSON; what is no JSON is the output of a process that could not start."""
        for line in self.said.splitlines():
            yield json.loads(line) if line.startswith("{") else {"level": "error", "message": line}

    def until_said(self, text: str) -> str:
        """The message that has this text, once it is logged."""
        def look() -> str | None:
            found = next((str(line["message"]) for line in self.lines() if text in line["message"]), None)
            if found is None and (code := self.process.poll()) is not None:
                raise AssertionError(f"{self.name} ended with {code}:\n{self.said}")
            return found

        return until(look, f"{self.name} logs {text!r}") or ""

    def ready(self) -> RoleRun:
        self.until_said("is ready after")
        return self

    @property
    def health(self) -> str:
        """Where it serves its health and metrics."""
        found = _HEALTH.search(self.until_said("health and metrics at"))
        assert found is not None
        return found[1]

    def metrics(self) -> str:
        return kubernetes.fetch(f"{self.health}/metrics").decode()

    def healthy(self, path: str) -> bool:
        try:
            return kubernetes.fetch(f"{self.health}{path}") == b"ok"
        except urllib.error.HTTPError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it in order; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)

    def end(self) -> int:
        """The exit status of one that ends by itself."""
        return self.process.wait(300)


class ClusterRoles:
    """Starts roles on a control plane. `stop` ends those that still run."""

    def __init__(self, cluster: kubernetes.Cluster, folder: Path, *, real: bool = False) -> None:
        """`real`: start the installed command, not a process that has imported it already."""
        self.cluster, self.folder, self._real = cluster, folder, real
        folder.mkdir(parents=True, exist_ok=True)
        self.runs: list[RoleRun] = []

    def install(self) -> None:
        """The definitions, the service accounts and the rights of an installation: what `outfit install --apply` writes,
        without the workloads, which are started here, and what makes the API server call a webhook."""
        options = InstallOptions(namespace=NAMESPACE, simulation=True)
        objects = [obj for obj in manifests.objects(options) if obj["kind"] not in LEFT_OUT]

        async def write() -> None:
            clock = SystemClock()
            store = Kube(self.cluster.access(), clock=clock)
            try:
                await apply.apply(store, objects, NAMESPACE, lambda line: None, clock=clock, timeout=300)
            finally:
                await store.close()

        asyncio.run(write())
        _installed[self.cluster] = self.cluster.server

    def installed(self) -> Self:
        """With what `install` writes, unless this run has written it before: writing it again costs some seconds."""
        if _installed.get(self.cluster) != self.cluster.server:
            self.install()
        return self

    def create(self, path: str, obj: Object) -> None:
        try:
            self.cluster.request("POST", path, obj)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise RuntimeError(f"{path}: {error.read().decode()}") from error

    def kubeconfig(self, account: str, pod: Object | None = None) -> Path:
        """A kubeconfig with a fresh token of a service account, bound to a pod if one is given."""
        spec = {"expirationSeconds": 7200, **({"boundObjectRef": pod} if pod else {})}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        token = json.loads(self.cluster.request("POST", path, request))["status"]["token"]
        ca = (self.cluster.folder / "pki" / "ca.crt").read_bytes()
        file = self.folder / f"{pod['name'] if pod else account}.kubeconfig"
        pki.save_private(file, json.dumps(pki.kubeconfig(self.cluster.server, ca=ca, token=token)).encode())
        return file

    def agent_kubeconfig(self, node: str) -> Path:
        """With a token as the pod of a node agent gets it: bound to that pod, which is on the node."""
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        spec = {"nodeName": node, "serviceAccountName": ACCOUNTS["node"], "containers": [{"name": "agent", "image": "agent"}]}
        pod = json.loads(self.cluster.request("POST", pods, {"metadata": {"name": f"agent-{node}"}, "spec": spec}))
        meta = pod["metadata"]
        return self.kubeconfig(ACCOUNTS["node"], {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]})

    def start(self, role: str, *words: str, name: str = "", kubeconfig: Path | None = None,
              before: Sequence[str] = (), release: Path | None = None) -> RoleRun:
        """A process of a role; `name` is that of its log and of its data, for several of one role; `before` is a command that
        becomes it, as unshare; `release` is the folder with the package of another release."""
        name = name or role
        access = kubeconfig or self.kubeconfig(names.SIMULATION if "--simulate" in words else ACCOUNTS[role])
        more = LEASE if role == "controller" else ("--data", str(self.folder / f"{name}-data")) if role == "node" else ()
        env = dict(environment(self.folder, **_pci_names(), **({"PYTHONPATH": str(release)} if release else {})))
        command = [*before, str(OUTFIT)] if self._real or before or release else []
        run = RoleRun(name, [role, "--kubeconfig", str(access), "--log-format", "json", "--health-address", "127.0.0.1:0",
                             *more, *words], self.folder / f"{name}.log", env, command)
        self.runs.append(run)
        return run

    def stop(self) -> None:
        for run in self.runs:
            run.stop()

    def forbidden(self) -> list[str]:
        """What the API server refused to the roles: they have the rights of an installation and need no other."""
        return [f"{run.name}: {line['message']}" for run in self.runs for line in run.lines()
                if "forbidden" in line["message"].lower()]

    def logs(self) -> str:
        """The last lines of each log, for a failure."""
        return "\n".join(f"-- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-20:])
                         for path in sorted(self.folder.glob("*.log")))


def _pci_names() -> dict[str, str]:
    return {"OUTFITTER_PCI_IDS": os.environ["OUTFITTER_PCI_IDS"]} if "OUTFITTER_PCI_IDS" in os.environ else {}
