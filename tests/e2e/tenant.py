"""A control plane with an installation and every role as a process, for a user who is admin of one namespace: the token of a
service account that has Kubernetes' own ClusterRole `admin` there, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.store import pki
from tests import kubernetes
from tests.cluster_roles import ClusterRoles
from tests.e2e.process import PATIENCE, ROOT, typed, until

TEAM, OTHER, USER = "team", "other", "ann"
RBAC = "rbac.authorization.k8s.io"
PROBE = json.dumps({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "probe"}, "spec": {
    "runStrategy": "Halted", "template": {"spec": {"domain": {"memory": {"guest": "1Gi"}, "devices": {}}}}}})


def virtctl() -> str:
    if found := shutil.which("virtctl"):
        return found
    cached = subprocess.run([ROOT / "scripts" / "virtctl", "--path"], text=True, capture_output=True, check=False)
    if not cached.stdout.strip():
        pytest.skip("there is no virtctl in PATH; scripts/virtctl builds one and prints its folder")
    return f"{cached.stdout.strip()}/virtctl"


class Tenant:
    """A control plane with an installation that works, and what the user may type."""

    def __init__(self, plane: kubernetes.Cluster, folder: Path, *words: str, simulate: str = "1x1") -> None:
        """`words` are arguments of the controller and the node agent."""
        self.plane, self.roles = plane, ClusterRoles(plane, folder)
        [port] = kubernetes.free_ports(1)
        done = typed("install", "--apply", "--simulation", "--webhook-url", f"https://localhost:{port}",
                     kubeconfig=plane.kubeconfig)
        assert done.code == 0, done
        self.roles.start("controller", *words).ready()
        self.roles.start("node", "--simulate", simulate, *words).ready()  # what it publishes does not wait for the webhook
        self.roles.start("webhook", "--address", f"127.0.0.1:{port}").ready()
        binding = {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": {"name": "admin", "namespace": TEAM},
                   "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "admin"},
                   "subjects": [{"kind": "ServiceAccount", "name": USER, "namespace": TEAM}]}
        namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (TEAM, OTHER)]
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": USER, "namespace": TEAM}}
        everything = {"apiVersion": "v1", "kind": "List", "items": [*namespaces, account, binding]}
        assert plane.kubectl("apply", "-f", "-", stdin=json.dumps(everything)).returncode == 0
        self.config = self._token_config(folder)
        served = "/apis/subresources.kubevirt.io/v1"
        until(lambda: plane.kubectl("get", "--raw", served).returncode == 0, "virtctl's API is served")
        until(lambda: self.user("create", "--dry-run=server", "-f", "-", stdin=PROBE)[0], "the user may create VMs")

    def _token_config(self, folder: Path) -> Path:
        token = self.plane.kubectl("create", "token", USER, "-n", TEAM, "--duration=2h").stdout.strip()
        ca = (self.plane.folder / "pki" / "ca.crt").read_bytes()
        path = folder / "user.kubeconfig"
        pki.save_private(path, json.dumps(pki.kubeconfig(self.plane.server, ca=ca, token=token)).encode())
        return path

    def typed_by_user(self, program: str, words: tuple[str, ...], stdin: str = "") -> tuple[bool, str]:
        place = () if "-n" in words else ("-n", TEAM)
        env = {"PATH": os.environ["PATH"], "HOME": str(self.roles.folder), "KUBECONFIG": str(self.config)}
        done = subprocess.run([program, *words, *place], env=env, input=stdin, text=True, capture_output=True,
                              timeout=PATIENCE, check=False)
        return done.returncode == 0, done.stdout + done.stderr

    def user(self, *words: str, stdin: str = "") -> tuple[bool, str]:
        """kubectl: whether it succeeded, and what it printed."""
        return self.typed_by_user(str(self.plane.binaries / "kubectl"), words, stdin)

    def virtctl(self, *words: str) -> str:
        done, text = self.typed_by_user(virtctl(), words)
        assert done, text
        return text

    def shown(self, kind: str, name: str) -> Any:
        done, text = self.user("get", kind, name, "-o", "json")
        return json.loads(text) if done else {}

    def reach(self, name: str, status: str) -> None:
        until(lambda: (self.shown("vm", name).get("status") or {}).get("printableStatus") == status,
              f"{name} is {status}\n{self.roles.logs()}")

    def items(self, kind: Kind, place: str = "") -> list[Object]:
        """As the administrator of the cluster sees them."""
        found: list[Object] = json.loads(self.plane.request("GET", kind.path(place)))["items"]
        return found

    def claim(self, name: str) -> Object:
        [found] = [claim for claim in self.items(kinds.RESOURCE_CLAIM, TEAM)
                   if claim["metadata"].get("ownerReferences", [{}])[0].get("name") == name]
        return found
