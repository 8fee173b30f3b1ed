"""The official Python and JavaScript clients read, change and replace an object of every kind that is served."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Kind
from tests.e2e.process import EXAMPLE, PATIENCE, ROOT, ForkedUp, environment, until

pytestmark = pytest.mark.judges
PROGRAMS = Path(__file__).parent / "clients"
# One object of each kind that neither the server nor a running VM has by itself.
MORE = """
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: default}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: l, namespace: default}
spec: {holderIdentity: me, leaseDurationSeconds: 15, renewTime: "2026-01-01T00:00:00.000001Z"}
---
apiVersion: resource.k8s.io/v1beta2
kind: DeviceTaintRule
metadata: {name: r}
spec:
  deviceSelector: {driver: none.example.com}
  taint: {key: example.com/broken, value: "yes", effect: NoSchedule}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: stopped, namespace: default}
spec: {runStrategy: Halted, template: {spec: {domain: {devices: {}}}}}
---
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: kubevirt, namespace: default}
---
apiVersion: outfitter.dev/v1alpha1
kind: ProviderTree
metadata: {name: elsewhere}
spec: {providers: []}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: net, namespace: default}
spec: {config: '{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0"}'}
---
apiVersion: outfitter.dev/v1alpha1
kind: Flavor
metadata: {name: f}
spec: {vcpus: 1, memory: 1Gi}
---
apiVersion: resource.k8s.io/v1alpha3
kind: ResourcePoolStatusRequest
metadata: {name: counts}
spec: {driver: pci.outfitter.dev}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: plain, namespace: default}
spec: {domain: {devices: {}}}
"""
MIGRATION = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceMigration
metadata: {name: waits, namespace: default}
spec: {vmiName: plain}
"""


@pytest.fixture(scope="module")
def clients() -> Path:
    found = subprocess.run([ROOT / "scripts" / "kube-clients", "--path"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("needs the official clients: make judges installs them")
    return Path(found.stdout.strip())


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedUp]:
    with ForkedUp(tmp_path_factory.mktemp("clients") / "data", simulate="1x2") as server:
        server.ok("apply", "-f", str(EXAMPLE / "1-class.yaml"), "-f", str(EXAMPLE / "2-blue.yaml"),
                  "-f", str(EXAMPLE / "3-green.yaml"))
        for name in ("blue", "green"):
            until(lambda name=name: server.phase(name) == "Running", f"{name} runs")  # type: ignore[misc]
        server.ok("delete", "vmi", "green")  # its booking is past
        server.ok("apply", "-f", "-", stdin=MORE)
        until(lambda: server.ok("get", "pastbookings", "-o", "name"), "a booking is past")
        until(lambda: server.phase("plain") == "Running", "plain runs")
        server.ok("apply", "-f", "-", stdin=MIGRATION)  # there is no other host: it stays
        yield server


def _described(kind: Kind) -> dict[str, object]:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind, "plural": kind.plural,
            "namespaced": kind.namespaced, "builtin": kind.builtin, "status": kind.has_status}


@pytest.mark.parametrize("language", ["python", "javascript"])
def test_objects_of_every_kind_are_replaced(up: ForkedUp, clients: Path, language: str, tmp_path: Path) -> None:
    if language == "python":
        command = [str(clients / "python" / "bin" / "python"), str(PROGRAMS / "replace.py")]
    else:  # a module finds its packages beside itself
        (tmp_path / "node_modules").symlink_to(clients / "node_modules")
        command = [shutil.which("node") or "node", str(shutil.copy(PROGRAMS / "replace.mjs", tmp_path))]
    asked = {"stamp": language, "kinds": [_described(kind) for kind in kinds.ALL]}
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=PATIENCE, check=False,
                          env={**environment(tmp_path, KUBECONFIG=str(up.kubeconfig)), "PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {kind.plural: "ok" for kind in kinds.ALL}
