"""`outfit why` in a cluster that has never heard of us: kube-scheduler chooses, another owner's driver publishes, no pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from outfitter.api.kinds import Object
from tests import control_planes, kubernetes
from tests.e2e.process import typed, until

pytestmark = pytest.mark.cluster
DRIVER = "gpu.example.com"
CAPACITY = {"cpu": "8", "memory": "16Gi", "pods": "110"}


def pod(name: str, template: str, **spec: object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "dev"}]}}],
        "resourceClaims": [{"name": "dev", "resourceClaimTemplateName": template}], **spec}}


def template(name: str, model: str) -> Object:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "selectors": [{"cel": {
        "expression": f'device.attributes["{DRIVER}"].model == "{model}"'}}]}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": [request]}}}}


def objects() -> list[Object]:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    slice_ = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n1-gpus"}, "spec": {
        "driver": DRIVER, "nodeName": "n1", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "attributes": {"model": {"string": "A40"}}}]}}
    class_ = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {
        "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}}
    return [node, slice_, class_, template("a40", "A40"), template("a100", "A100")]


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    with control_planes.started(tmp_path_factory.mktemp("plane"), scheduler=True, controllers=True, learn=()) as running:
        apply(running, *objects())
        ready = {"status": {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": [
            {"type": "Ready", "status": "True", "reason": "Fine", "message": "fine"}]}}
        done(running.kubectl("patch", "node", "n1", "--subresource=status", "-p", json.dumps(ready)))
        done(running.kubectl("patch", "node", "n1", "--type=merge", "-p", '{"spec": {"taints": null}}'))
        yield running


def done(process: object) -> None:
    assert getattr(process, "returncode", 1) == 0, process


def apply(cluster: kubernetes.Cluster, *many: Object) -> None:
    done(cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": many})))


def why(cluster: kubernetes.Cluster, *words: str) -> str:
    found = typed("why", *words, kubeconfig=cluster.kubeconfig)
    assert found.code == 0, found
    return found.out


def spoken(cluster: kubernetes.Cluster, name: str) -> str:
    """What kube-scheduler says of a pod."""
    return cluster.kubectl("get", "pod", name, "-o", 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}').stdout


def test_pods_that_kube_scheduler_holds(control_plane: kubernetes.Cluster) -> None:
    apply(control_plane, pod("first", "a40"))
    until(lambda: control_plane.kubectl("get", "pod", "first", "-o", "jsonpath={.spec.nodeName}").stdout == "n1",
          "kube-scheduler binds it")
    apply(control_plane, pod("second", "a40"), pod("third", "a100"), pod("lost", "a4"),
          pod("theirs", "a40", schedulerName="volcano"))
    until(lambda: all("nodes are available" in spoken(control_plane, name) for name in ("second", "third")),
          "kube-scheduler speaks of both")
    until(lambda: f"default-scheduler says: {spoken(control_plane, 'second')}\n" in why(control_plane, "second"),
          "its words are those that the scheduler has by now")
    lines = why(control_plane, "second").splitlines()
    assert lines[0] == "pod/second waits: 0/1 hosts are available: matching devices exist but none is free"
    assert lines[1].startswith("  n1: request gpu wants 1: 1 match, 0 free (gpu-0: held by pod/first")
    assert lines[2].startswith("  default-scheduler says: 0/1 nodes are available")
    third = why(control_plane, "pod/third", "--long")
    assert re.search(r'gpu-0.*model == "A100"; it says model A40', third)
    assert "no ResourceClaimTemplate a4 in namespace default\n  -> apply it; did you mean a40?" in why(control_plane, "lost")
    until(lambda: control_plane.kubectl("get", "pod", "theirs", "-o", "jsonpath={.status.resourceClaimStatuses}").stdout,
          "its claim is made")
    assert "waits for scheduler volcano, which is not ours" in why(control_plane, "theirs")
    assert why(control_plane, "first").startswith("pod/first is on n1 and Pending: the node agent there starts it")
    path = "jsonpath={.status.resourceClaimStatuses[0].resourceClaimName}"
    claim = control_plane.kubectl("get", "pod", "first", "-o", path).stdout
    assert why(control_plane, f"claim/{claim}").startswith(f"claim/{claim} holds 1 device for pod/first")


def test_a_plan_on_a_cluster(control_plane: kubernetes.Cluster) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [
        pod("one", "other"), template("other", "A100"),
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"},
         "spec": {"containers": [{"name": "c", "image": "i"}]}}]})
    found = typed("plan", "-f", "-", kubeconfig=control_plane.kubeconfig, stdin=text)
    assert (found.code, found.err) == (1, "")
    assert "pod/one would wait: 0/1 hosts are available: no host has the devices that it asks for" in found.out
    assert "pod/bare would go to n1 (" in found.out


def test_reader_of_one_namespace_sees_the_schedulers_message(control_plane: kubernetes.Cluster) -> None:
    """Who may not read nodes and slices gets the scheduler's words, and hears what is missing."""
    name = "namespaced"
    apply(control_plane, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
          {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": [
              {"apiGroups": ["", "resource.k8s.io"], "verbs": ["get", "list"],
               "resources": ["pods", "resourceclaims", "resourceclaimtemplates"]}]},
          {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
           "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
           "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]})
    apply(control_plane, pod("fourth", "a100"))
    until(lambda: "nodes are available" in spoken(control_plane, "fourth"), "kube-scheduler speaks of it")
    bound = f"--as=system:serviceaccount:default:{name}"
    until(lambda: all(control_plane.kubectl("auth", "can-i", "list", kind, bound).returncode == 0
                      for kind in ("pods", "resourceclaims", "resourceclaimtemplates")), "the server knows of its rights")
    token = control_plane.kubectl("create", "token", name).stdout.strip()
    own = control_plane.folder / "namespaced.kubeconfig"
    own.write_text(control_plane.kubectl("config", "view", "--raw", "-o", "json").stdout)
    config = json.loads(own.read_text())
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    own.write_text(json.dumps(config))
    own.chmod(0o600)
    found = typed("why", "pod/fourth", kubeconfig=own)
    assert found.code == 0, found
    assert found.out.startswith("pod/fourth waits: 0/1 nodes are available")
    assert "you may not read " in found.out
    assert "nodes" in found.out.partition("you may not read ")[2]
    planned = typed("plan", "-f", "-", kubeconfig=own, stdin=json.dumps(pod("fifth", "a100")))
    assert (planned.code, planned.out) == (1, "")
    assert "error: a plan needs to read " in planned.err
