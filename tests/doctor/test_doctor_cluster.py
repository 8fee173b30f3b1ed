"""`outfit doctor` against a real kube-apiserver, from an empty cluster to one with a host and a user without rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.install import crds
from tests import control_planes, kubernetes
from tests.e2e.process import typed

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    with control_planes.started(tmp_path_factory.mktemp("plane"), learn=()) as running:
        yield running


def findings(kubeconfig: Path, code: int = 1) -> dict[str, Object]:
    done = typed("doctor", "-o", "json", kubeconfig=kubeconfig)
    assert done.code == code, done
    return {each["code"]: each for each in json.loads(done.out)["findings"]}


def test_an_empty_cluster_lacks_an_installation_alone(cluster: kubernetes.Cluster) -> None:
    found = findings(cluster.kubeconfig)
    assert found["cluster-installed"]["command"] == "outfit install --apply"
    assert {code for code, each in found.items() if each["level"] == "error"} == {"cluster-installed"}
    for code in ("cluster-version", "cluster-dra", "cluster-caller-rights"):
        assert found[code]["level"] == "ok", found[code]
    assert "Kubernetes v1." in found["cluster-version"]["message"]
    assert "admin may read everything" in found["cluster-caller-rights"]["message"]
    gates = found["cluster-feature-gates"]  # read from /metrics: alpha gates of this version may be off
    assert gates["level"] == "ok" or "feature gates are off: DRA" in gates["message"]


def test_a_user_without_rights_is_shown_what_it_may_not_read(cluster: kubernetes.Cluster) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody", "namespace": "default"}}
    cluster.request("POST", "/api/v1/namespaces/default/serviceaccounts", account)
    answer = json.loads(cluster.request("POST", "/api/v1/namespaces/default/serviceaccounts/nobody/token", {
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}))
    config = json.loads(cluster.kubeconfig_token.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    kubeconfig = cluster.folder / "nobody.kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    found = findings(kubeconfig)["cluster-caller-rights"]
    assert found["level"] == "error"
    assert found["message"].startswith("system:serviceaccount:default:nobody may not read nodes, ")
    assert "--user=system:serviceaccount:default:nobody" in found["command"]


def test_definitions_of_another_version_and_a_host_that_is_no_node(cluster: kubernetes.Cluster) -> None:
    other = crds.definition(kinds.LEDGER_PAGE)
    other["spec"]["versions"][0]["name"] = "v1beta1"
    for crd in (other, crds.definition(kinds.HOST_INVENTORY)):
        done = cluster.kubectl("apply", "-f", "-", stdin=json.dumps(crd))
        assert done.returncode == 0, done
    for name in (other["metadata"]["name"], kinds.HOST_INVENTORY.resource):
        done = cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}")
        assert done.returncode == 0, done
    inventory = {"apiVersion": kinds.HOST_INVENTORY.api_version, "kind": kinds.HOST_INVENTORY.kind,
                 "metadata": {"name": "worker-7.example.com"}, "spec": {"iommu": False}}
    done = cluster.kubectl("create", "-f", "-", stdin=json.dumps(inventory))
    assert done.returncode == 0, done
    listed = json.loads(typed("doctor", "-o", "json", kubeconfig=cluster.kubeconfig).out)["findings"]
    texts = {(each["code"], each["subject"]): each["message"] for each in listed if each["level"] == "error"}
    assert "of another version: it serves v1beta1" in texts["cluster-crds", "ledgerpages.outfitter.dev"]
    assert "virtualmachines.kubevirt.io" in texts["cluster-crds", ""]
    assert "which is not a node" in texts["cluster-agent-names", "host/worker-7.example.com"]
    assert "has no IOMMU" in texts["cluster-node-iommu", "node/worker-7.example.com"]
    assert "outfitter-controller, outfitter-webhook, outfitter-node do not exist" in texts["cluster-workloads", ""]
    done = cluster.kubectl("delete", "crd", other["metadata"]["name"], kinds.HOST_INVENTORY.resource)
    assert done.returncode == 0, done


def test_an_installation_is_compared_with_what_it_should_be(cluster: kubernetes.Cluster) -> None:
    done = typed("install", "--apply", kubeconfig=cluster.kubeconfig)
    assert done.code == 0, done
    found = findings(cluster.kubeconfig)
    for code in ("cluster-crds", "cluster-role-rights", "cluster-version-skew", "cluster-caller-rights"):
        assert found[code]["level"] == "ok", found[code]
    assert found["cluster-workloads"]["level"] == "error"  # nothing runs pods here
    assert "no certificate in tls.crt" in found["cluster-webhook-certificate"]["message"]
    assert cluster.kubectl("delete", "clusterrolebinding", "outfitter-node").returncode == 0
    drop = [{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec"}]
    patched = cluster.kubectl("patch", "crd", kinds.FLAVOR.resource, "--type=json", "-p", json.dumps(drop))
    assert patched.returncode == 0, patched
    found = findings(cluster.kubeconfig)
    assert found["cluster-role-rights"]["subject"] == "outfitter-node"
    assert "differs from that of this version" in found["cluster-crds"]["message"]
    assert typed("install", "--apply", kubeconfig=cluster.kubeconfig).code == 0  # the command that it names mends both
    found = findings(cluster.kubeconfig)
    assert (found["cluster-role-rights"]["level"], found["cluster-crds"]["level"]) == ("ok", "ok")
