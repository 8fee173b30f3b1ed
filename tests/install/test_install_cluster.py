"""`outfit install` on a real API server: applied twice, interrupted anywhere, compared, removed, refused."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.errors import TimedOut
from outfitter.install import manifests, names, remove, resources
from outfitter.install.names import InstallOptions
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import control_planes, kubernetes
from tests.e2e.process import OUTFIT, Typed, typed
from tests.store.kube.simulated_server import Impatient

pytestmark = pytest.mark.cluster
VMS = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines"
VM: dict[str, Any] = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachine",
    "metadata": {"name": "blue", "namespace": "default", "finalizers": ["kubevirt.io/virtualMachineControllerFinalize"]},
    "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}}}},
}
SIMULATION = manifests.objects(InstallOptions(simulation=True))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    with control_planes.started(tmp_path_factory.mktemp("install"), controllers=True, learn=()) as running:
        yield running


@pytest.fixture
def empty(cluster: kubernetes.Cluster) -> None:
    """Nothing is installed."""
    done = run(cluster, "--remove", "--force", "--timeout", "5m")
    assert done.code == 0, done.err


@pytest.fixture
def installed(cluster: kubernetes.Cluster) -> None:
    done = run(cluster, "--apply")
    assert done.code == 0, done.err


def without_webhook(cluster: kubernetes.Cluster) -> None:
    """It does not run here, and no VM is admitted without it."""
    configurations = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
    cluster.kubectl("delete", configurations, names.WEBHOOK_CONFIGURATION)


def run(cluster: kubernetes.Cluster, *words: str, kubeconfig: Path | None = None) -> Typed:
    return typed("install", *words, kubeconfig=kubeconfig or cluster.kubeconfig)


def get(cluster: kubernetes.Cluster, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.request("GET", path))
    return found


def everything(cluster: kubernetes.Cluster) -> dict[str, str]:
    """What is installed, with revisions."""
    out = {}
    for kind in resources.INSTALLED:
        group = f"apis/{kind.group}" if kind.group else "api"
        for obj in get(cluster, f"/{group}/v1/{kind.plural}?labelSelector={names.MANAGED_BY}%3D{names.MANAGER}")["items"]:
            meta = obj["metadata"]
            out[resources.title((kind, meta.get("namespace", ""), meta["name"]))] = meta["resourceVersion"]
    return out


def without_workloads(installed: dict[str, str]) -> dict[str, str]:
    """Kubernetes' controllers write the status of workloads."""
    return {
        name: revision
        for name, revision in installed.items()
        if not name.startswith(("deployment", "daemonset", "poddisruptionbudget", "customresourcedefinition", "namespace"))
    }


def wanted(options: InstallOptions) -> set[str]:
    return {resources.title(resources.key_of(obj)) for obj in manifests.objects(options)}


@pytest.mark.long
@pytest.mark.usefixtures("empty")
def test_definitions_of_others_are_left_alone(cluster: kubernetes.Cluster) -> None:
    definition = next(obj for obj in SIMULATION if obj["metadata"]["name"] == kinds.VM.resource)
    foreign = {**definition, "metadata": {"name": kinds.VM.resource, "labels": {names.MANAGED_BY: "virt-operator"}}}
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    cluster.request("POST", crds, foreign)
    try:
        refused = run(cluster, "--apply")
        assert refused.code == 1
        assert "KubeVirt is installed in this cluster and owns virtualmachines.kubevirt.io" in refused.err
        assert "--companion" in refused.err
        assert everything(cluster) == {}
        beside = run(cluster, "--apply", "--companion")
        assert beside.code == 0, beside.err
        assert run(cluster, "--remove").code == 0
        assert get(cluster, f"{crds}/{kinds.VM.resource}")["metadata"]["labels"] == foreign["metadata"]["labels"]
    finally:
        cluster.request("DELETE", f"{crds}/{kinds.VM.resource}")
        cluster.kubectl("wait", "--for=delete", f"crd/{kinds.VM.resource}", "--timeout=120s")


@pytest.mark.usefixtures("empty")
def test_a_user_who_may_not_is_refused_before_anything_is_written(cluster: kubernetes.Cluster, tmp_path: Path) -> None:
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] |= {"as": "eve"}
    (tmp_path / "eve").write_text(json.dumps(config))
    refused = run(cluster, "--apply", kubeconfig=tmp_path / "eve")
    assert (refused.code, "eve" in refused.err, "create clusterroles" in refused.err or "create namespaces" in refused.err) == (
        1,
        True,
        True,
    )
    assert everything(cluster) == {}


@pytest.mark.usefixtures("empty")
def test_a_namespace_that_is_being_deleted_is_refused_before_anything_is_written(cluster: kubernetes.Cluster) -> None:
    cluster.kubectl("create", "namespace", "mine")
    cluster.kubectl("-n", "mine", "create", "configmap", "kept")
    held, free = (json.dumps({"metadata": {"finalizers": each}}) for each in (["example.com/held"], None))
    cluster.kubectl("-n", "mine", "patch", "configmap", "kept", "--type=merge", "-p", held)
    cluster.kubectl("delete", "namespace", "mine", "--wait=false")
    try:
        refused = run(cluster, "--apply", "-n", "mine")
        assert (refused.code, "namespace mine is being deleted" in refused.err) == (1, True)
        assert everything(cluster) == {}
    finally:
        cluster.kubectl("-n", "mine", "patch", "configmap", "kept", "--type=merge", "-p", free)
        cluster.kubectl("wait", "--for=delete", "namespace/mine", "--timeout=120s")


@pytest.mark.usefixtures("empty")
def test_diff_shows_what_apply_would_change(cluster: kubernetes.Cluster) -> None:
    empty = run(cluster, "--diff")
    assert empty.code == 1
    assert empty.out.count("\n--- /dev/null") + empty.out.startswith("--- /dev/null") == len(wanted(InstallOptions()))
    assert run(cluster, "--apply").code == 0
    cluster.kubectl("-n", names.NAMESPACE, "scale", "deployment", names.CONTROLLER, "--replicas=7")
    changed = run(cluster, "--diff")
    assert (changed.code, "-  replicas: 7" in changed.out, "+  replicas: 2" in changed.out) == (1, True, True)
    more = run(cluster, "--diff", "--simulation", "--replicas", "7")
    assert (more.code, "installed/serviceaccount/outfitter-simulation" in more.out) == (1, True)


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("lines", [14])
def test_a_kill_at_any_point_is_completed_by_the_next(cluster: kubernetes.Cluster, lines: int) -> None:
    with subprocess.Popen(
        [OUTFIT, "--kubeconfig", str(cluster.kubeconfig), "install", "--apply"],
        stdout=subprocess.PIPE,
        env={"PYTHONUNBUFFERED": "1"},
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert run(cluster, "--apply").code == 0
    assert everything(cluster).keys() == wanted(InstallOptions())
    assert run(cluster, "--diff").out == ""


@pytest.mark.usefixtures("installed")
def test_applied_twice_changes_nothing(cluster: kubernetes.Cluster) -> None:
    before = everything(cluster)
    assert before.keys() == wanted(InstallOptions())
    again = run(cluster, "--apply")
    assert again.code == 0
    assert not [line for line in again.out.splitlines() if line.endswith(("created", "pruned"))]
    after = everything(cluster)
    assert without_workloads(after) == without_workloads(before)
    assert after.keys() == before.keys()
    same = run(cluster, "--diff")
    assert (same.code, same.out) == (0, "")


@pytest.mark.usefixtures("installed")
def test_fields_of_other_writers_stay(cluster: kubernetes.Cluster) -> None:
    """The webhook writes its certificate; an installation that is applied again keeps it."""
    path = f"/api/v1/namespaces/{names.NAMESPACE}/secrets/{names.CERTIFICATE}"
    secret = get(cluster, path)
    cluster.request("PUT", path, {**secret, "data": {"tls.crt": "eA=="}})
    assert run(cluster, "--apply").code == 0
    assert get(cluster, path)["data"] == {"tls.crt": "eA=="}
    assert run(cluster, "--diff").code == 0


def test_an_upgrade_prunes_what_it_no_longer_has(cluster: kubernetes.Cluster) -> None:
    assert run(cluster, "--apply", "--simulation").code == 0
    assert everything(cluster).keys() == wanted(InstallOptions(simulation=True))
    assert f"live/clusterrole.rbac.authorization.k8s.io/{names.SIMULATION}" in run(cluster, "--diff").out
    done = run(cluster, "--apply")
    assert f"serviceaccount/{names.SIMULATION} in {names.NAMESPACE} pruned" in done.out
    assert everything(cluster).keys() == wanted(InstallOptions())


@pytest.mark.usefixtures("installed")
def test_remove_is_refused_while_something_is_in_use(cluster: kubernetes.Cluster) -> None:
    without_webhook(cluster)
    cluster.request("POST", VMS, VM)
    page = {
        "apiVersion": "outfitter.dev/v1alpha1",
        "kind": "LedgerPage",
        "metadata": {"name": "n1"},
        "spec": {
            "bookings": [
                {
                    "device": {"driver": "pci.outfitter.dev", "pool": "n1", "device": "vf-1"},
                    "request": "nic",
                    "state": "booked",
                    "since": "2026-01-01T00:00:00Z",
                    "holder": {"kind": "ResourceClaim", "namespace": "default", "name": "nic", "uid": "u1"},
                }
            ]
        },
    }
    cluster.request("POST", "/apis/outfitter.dev/v1alpha1/ledgerpages", page)
    before = everything(cluster)
    refused = run(cluster, "--remove")
    assert refused.code == 1
    assert "1 VM and VMI objects (virtualmachine/blue in default)" in refused.err
    assert "1 bookings of devices (vf-1 on n1 for ResourceClaim default/nic)" in refused.err
    assert "--force" in refused.err
    assert everything(cluster).keys() == before.keys()


@pytest.mark.usefixtures("installed")
async def test_removal_by_force_ends_vms_that_no_controller_ends(cluster: kubernetes.Cluster) -> None:
    without_webhook(cluster)
    cluster.request("POST", VMS, {**VM, "metadata": {**VM["metadata"], "name": "red"}})
    kube = Kube(cluster.access(), clock=SystemClock())
    lines: list[str] = []
    try:
        while True:  # in a time that passes at once, something may not be gone yet: the same command goes on
            try:
                await remove.remove(kube, lines.append, clock=Impatient(), timeout=5, force=True)
                break
            except TimedOut:
                continue
    finally:
        await kube.close()
    assert "warning: virtualmachine/red in default did not end in 5 s: removed without its controller" in "\n".join(lines)
    assert everything(cluster) == {}


@pytest.mark.usefixtures("empty")
def test_remove_leaves_nothing_and_may_be_repeated(cluster: kubernetes.Cluster) -> None:
    def found() -> set[str]:
        return {
            f"{kind.plural} {obj['metadata'].get('namespace')} {obj['metadata']['name']}"
            for kind in (*resources.INSTALLED, kinds.RESOURCE_SLICE, kinds.NODE)
            for obj in get(cluster, f"/{f'apis/{kind.group}' if kind.group else 'api'}/v1/{kind.plural}")["items"]
        }

    before = found()
    assert run(cluster, "--apply", "--simulation").code == 0
    slice_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "left"},
        "spec": {
            "driver": "pci.outfitter.dev",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        },
    }
    cluster.request("POST", "/apis/resource.k8s.io/v1/resourceslices", slice_)
    cluster.request(
        "POST",
        "/api/v1/nodes",
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"outfitter.dev/simulated": "true"}}},
    )
    done = run(cluster, "--remove")
    assert done.code == 0, done.err
    assert found() - before == set()
    again = run(cluster, "--remove")
    assert (again.code, again.out) == (0, "")


@pytest.mark.long
@pytest.mark.usefixtures("empty")
def test_a_namespace_of_the_user_stays(cluster: kubernetes.Cluster) -> None:
    cluster.kubectl("create", "namespace", "mine")
    assert run(cluster, "--apply", "-n", "mine").code == 0
    other = run(cluster, "--apply")
    assert (other.code, "outfitter is installed in namespace mine already" in other.err) == (1, True)
    assert run(cluster, "--diff", "-n", "mine").code == 0
    assert run(cluster, "--remove", "-n", "mine").code == 0
    assert get(cluster, "/api/v1/namespaces/mine")["status"]["phase"] == "Active"
