"""KubeVirt's control plane beside ours (make judges): its own definitions, service accounts and rights, as virt-operator writes
them for an installation, and virt-controller and virt-api as processes with the tokens of their service accounts.
`scripts/kubevirt` builds the programs. Nodes have no virt-handler: what it writes is played with its user. Needs no pytest."""

from __future__ import annotations

import base64
import gzip
import json
import os
import socket
import subprocess
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from outfitter.api.kinds import Object
from outfitter.store import pki
from outfitter.store.clock import SystemClock
from tests import kubernetes
from tests.e2e.process import ROOT, until

NAMESPACE = "kubevirt"  # what its programs assume outside of pods
GATES = ("GPUsWithDRA", "HostDevicesWithDRA")
INSTALLED = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "CustomResourceDefinition")
DEPLOYED = ("virt-controller",)  # by which others find KubeVirt; server-side apply refuses that of virt-api for its ports
PROGRAMS = ("virt-controller", "virt-api")
WEBHOOKS = {"virt-api-mutator": "MutatingWebhookConfiguration", "virt-api-validator": "ValidatingWebhookConfiguration"}
REGISTRY = "registry.example/kubevirt"  # no image is pulled
VERSION = os.environ.get("KUBEVIRT_VERSION", "v1.8.4")


def programs() -> Path | None:
    found = subprocess.run([ROOT / "scripts" / "kubevirt", "--path"], capture_output=True, text=True, check=False)
    return None if found.returncode else Path(found.stdout.strip())


def user(name: str) -> str:
    return f"system:serviceaccount:{NAMESPACE}:kubevirt-{name}"


class KubeVirtControlPlane:
    def __init__(self, cluster: kubernetes.Cluster, programs: Path, folder: Path) -> None:
        self.cluster, self._programs, self.folder = cluster, programs, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.webhooks: list[Object] = []
        now = SystemClock().now()
        self._valid = {"valid_from": now - timedelta(hours=1), "valid_until": now + timedelta(days=1)}
        self._ca = pki.authority("kubevirt", **self._valid)

    # -- installation

    def install(self) -> None:
        """What virt-operator would install but for the pods, and an object KubeVirt with the feature gates of claims."""
        self.kubectl("create", "namespace", NAMESPACE)
        self._apply(self._run("resource-generator", "--type=kv"))
        self._apply(self._run("resource-generator", "--type=operator-rbac", f"--namespace={NAMESPACE}"))
        objects = self._strategy()
        self._apply(_documents(obj for obj in objects if obj["kind"] in INSTALLED or (
            obj["kind"] == "Deployment" and obj["metadata"]["name"] in DEPLOYED)))
        self.webhooks = [obj for obj in objects if WEBHOOKS.get(obj["metadata"]["name"]) == obj["kind"]]
        until(lambda: self.cluster.kubectl("get", "kubevirts,vmi,vm", "-A").returncode == 0, "KubeVirt's kinds are served")
        self._apply(self._run("resource-generator", "--type=kv-cr", f"--namespace={NAMESPACE}",
                              f"--featureGates={','.join(GATES)}"))
        self.patch("operator", "kubevirt/kubevirt", {"status": {
            "phase": "Deployed", "observedKubeVirtVersion": VERSION, "defaultArchitecture": "amd64"}},
            "--subresource=status", "-n", NAMESPACE)

    def _strategy(self) -> list[Object]:
        """The objects of an installation, as virt-operator's job leaves them for it in a ConfigMap."""
        config = {"namespace": NAMESPACE, "registry": REGISTRY, "kubeVirtVersion": VERSION,
                  "virtOperatorImage": f"{REGISTRY}/virt-operator:{VERSION}",
                  "additionalProperties": {"ImagePullPolicy": "IfNotPresent"}}
        self._run("virt-operator", "--dump-install-strategy", f"--kubeconfig={self.cluster.kubeconfig}",
                  TARGET_DEPLOYMENT_CONFIG=json.dumps(config), VIRT_OPERATOR_IMAGE=str(config["virtOperatorImage"]))
        words = ("get", "configmaps", "-n", NAMESPACE, "-l", "kubevirt.io/install-strategy", "-o", "json")
        maps = json.loads(self.kubectl(*words))
        [dumped] = maps["items"]
        text = gzip.decompress(base64.b64decode(dumped["data"]["manifests"])).decode()
        return [obj for obj in yaml.load_all(text, yaml.CSafeLoader) if obj]

    def _run(self, program: str, *words: str, **env: str) -> str:
        done = subprocess.run([self._programs / program, *words], env=self._environment(**env), cwd=self.folder, text=True,
                              capture_output=True, timeout=300, check=False)
        assert done.returncode == 0, f"{program} {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}"
        return done.stdout

    def _apply(self, manifests: str) -> None:
        self.kubectl("apply", "--server-side", "-f", "-", stdin=manifests)

    # -- its processes

    def start_controller(self) -> None:
        [port] = kubernetes.free_ports(1)
        self._start("virt-controller", "controller", f"--port={port}", f"--launcher-image={REGISTRY}/virt-launcher:{VERSION}",
                    *self._certificate("prom"))

    def start_api(self) -> None:
        """virt-api, and its webhooks, which the API server calls at a URL: there is no service network."""
        [port] = kubernetes.free_ports(1)
        files = self._certificate("tls")
        self._start("virt-api", "apiserver", f"--port={port}", *files)
        until(lambda: self._listens(port), f"virt-api listens\n{self.log('virt-api')}")
        bundle = base64.b64encode(self._ca.cert).decode()
        for configuration in self.webhooks:
            for webhook in configuration["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
        self._apply(_documents(self.webhooks))

    def _start(self, program: str, account: str, *words: str) -> None:
        log = self.folder / f"{program}.log"
        with log.open("ab") as file:
            self._processes[program] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", self._programs / program, f"--kubeconfig={self._kubeconfig(account)}",
                 "--listen=127.0.0.1", *words, "--v=3"],
                cwd=self.folder, env=self._environment(POD_NAMESPACE=NAMESPACE), stdin=subprocess.DEVNULL, stdout=file,
                stderr=file, start_new_session=True)

    def _listens(self, port: int) -> bool:
        self.check()
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            return False
        return True

    def check(self) -> None:
        """Its own words, when a process has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise AssertionError(f"{name} ended with {process.returncode}:\n{self.log(name)}")

    def log(self, program: str) -> str:
        path = self.folder / f"{program}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-40:]) if path.exists() else ""

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _environment(self, **more: str) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), **more}

    def _kubeconfig(self, account: str) -> Path:
        token = self.kubectl("create", "token", f"kubevirt-{account}", "-n", NAMESPACE, "--duration=2h").strip()
        ca = (self.cluster.folder / "pki" / "ca.crt").read_bytes()
        file = self.folder / f"{account}.kubeconfig"
        pki.save_private(file, json.dumps(pki.kubeconfig(self.cluster.server, ca=ca, token=token)).encode())
        return file

    def _certificate(self, name: str) -> Sequence[str]:
        """Flags of a server's certificate, in a folder of its own: it is read again at every change there."""
        folder = self.folder / name
        folder.mkdir()
        pki.server(self._ca, "kubevirt", hosts=["127.0.0.1", "localhost"], **self._valid).save(folder, name)
        return f"--{name}-cert-file={folder / name}.crt", f"--{name}-key-file={folder / name}.key"

    # -- what users and virt-handler do

    def kubectl(self, *words: str, stdin: str = "") -> str:
        done = self.cluster.kubectl(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def patch(self, account: str, target: str, patch: Any, *words: str) -> None:
        """A merge patch as a service account of KubeVirt's."""
        self.kubectl("patch", target, "--type=merge", "-p", json.dumps(patch), f"--as={user(account)}", *words)


def _documents(objects: Iterable[Object]) -> str:
    return "---\n".join(yaml.dump(obj, Dumper=yaml.CSafeDumper) for obj in objects)
