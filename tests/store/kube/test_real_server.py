"""The Kubernetes backend on a real API server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.store import kube, kubeconfig
from outfitter.store.clock import SystemClock
from outfitter.store.rest_config import RestConfig
from tests import control_planes, kubernetes
from tests.store.kube.simulated_server import Impatient


@pytest.fixture
async def real(cluster: kubernetes.Cluster) -> AsyncIterator[kube.Kube]:
    store = kube.Kube(cluster.access(), clock=SystemClock())
    yield store
    await store.close()


@pytest.fixture
async def space(real: kube.Kube) -> str:
    """A namespace of the test's own."""
    made = await real.create(kinds.NAMESPACE, {"metadata": {"generateName": "smoke-"}})
    return str(made["metadata"]["name"])


def config_map(space: str, name: str, **data: str) -> kinds.Object:
    return {"metadata": {"name": name, "namespace": space, "labels": {"app": "smoke"}}, "data": data}


@pytest.mark.cluster
async def test_nothing_new_in_a_namespace_that_is_going_away(real: kube.Kube, space: str) -> None:
    await real.create(kinds.CONFIG_MAP, {**config_map(space, "stays"), "metadata": {
        "name": "stays", "namespace": space, "finalizers": ["example.com/busy"]}})
    await real.delete(kinds.NAMESPACE, space)
    with pytest.raises(errors.Terminating, match="because it is being terminated"):
        await real.create(kinds.CONFIG_MAP, config_map(space, "late"))
    await real.patch(kinds.CONFIG_MAP, "stays", {"metadata": {"finalizers": None}}, space)


@pytest.mark.cluster
async def test_the_life_of_an_object(real: kube.Kube, space: str) -> None:
    made = await real.create(kinds.CONFIG_MAP, config_map(space, "life", a="1"))
    with pytest.raises(errors.AlreadyExists, match='configmaps "life" already exists'):
        await real.create(kinds.CONFIG_MAP, config_map(space, "life"))
    assert await real.get(kinds.CONFIG_MAP, "life", space) == made
    changed = await real.replace(kinds.CONFIG_MAP, {**made, "data": {"a": "2"}})
    with pytest.raises(errors.Conflict, match="the object has been modified"):
        await real.replace(kinds.CONFIG_MAP, made)
    dry = await real.patch(kinds.CONFIG_MAP, "life", {"data": {"b": "3"}}, space, dry_run=True)
    assert dry["data"] == {"a": "2", "b": "3"}
    merged = await real.patch(kinds.CONFIG_MAP, "life", {"data": {"b": "4"}}, space)
    assert merged["data"] == {"a": "2", "b": "4"}
    change = [{"op": "remove", "path": "/data/a"}]
    assert (await real.patch(kinds.CONFIG_MAP, "life", change, space, how="json"))["data"] == {"b": "4"}
    await real.patch(kinds.CONFIG_MAP, "life", {"data": {"c": "5"}}, space, how="strategic")
    with pytest.raises(errors.Conflict, match="ResourceVersion in the precondition"):
        await real.delete(kinds.CONFIG_MAP, "life", space, revision=changed["metadata"]["resourceVersion"])
    await real.delete(kinds.CONFIG_MAP, "life", space, dry_run=True)
    with pytest.raises(errors.Conflict, match="UID in the precondition"):
        await real.delete(kinds.CONFIG_MAP, "life", space, uid="another")
    last = await real.delete(kinds.CONFIG_MAP, "life", space)
    assert last["data"] == {"b": "4", "c": "5"}
    again = await real.create(kinds.CONFIG_MAP, config_map(space, "life"))
    last = await real.delete(kinds.CONFIG_MAP, "life", space, uid=again["metadata"]["uid"])
    assert (last["metadata"]["name"], last["metadata"]["uid"]) == ("life", again["metadata"]["uid"])
    with pytest.raises(errors.NotFound, match='configmaps "life" not found'):
        await real.get(kinds.CONFIG_MAP, "life", space)


@pytest.mark.cluster
async def test_pages_and_changes(real: kube.Kube, space: str) -> None:
    before = await real.list(kinds.CONFIG_MAP, space, labels="app=smoke")
    assert before.items == []
    for name in ("a", "b", "c"):
        await real.create(kinds.CONFIG_MAP, config_map(space, name))
    first = await real.list(kinds.CONFIG_MAP, space, labels="app=smoke", limit=2)
    await real.create(kinds.CONFIG_MAP, config_map(space, "a1"))
    rest = await real.list(kinds.CONFIG_MAP, space, labels="app=smoke", limit=2, continue_=first.continue_)
    assert [item["metadata"]["name"] for item in (*first.items, *rest.items)] == ["a", "b", "c"]
    assert {(item["apiVersion"], item["kind"]) for item in first.items} == {("v1", "ConfigMap")}
    assert (first.revision, rest.continue_) == (rest.revision, "")
    await real.delete(kinds.CONFIG_MAP, "b", space)
    seen: list[tuple[str, str]] = []
    watched = real.watch(kinds.CONFIG_MAP, space, since=before.revision, labels="app=smoke", bookmarks=True)
    async with asyncio.timeout(60), contextlib.aclosing(watched) as watching:
        async for change in watching:
            if change.type != "BOOKMARK":
                seen.append((change.type, change.object["metadata"]["name"]))
            if len(seen) >= 5:
                break
    assert seen == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c"), ("ADDED", "a1"), ("DELETED", "b")]


@pytest.mark.cluster
async def test_a_revision_of_long_ago(real: kube.Kube) -> None:
    watched = real.watch(kinds.LEDGER_PAGE, since="1")  # the kind is younger than that
    with pytest.raises(errors.Expired, match="too old"):
        await asyncio.wait_for(anext(watched), 60)
    with pytest.raises(errors.BadRequest, match="continue key is not valid"):
        await real.list(kinds.CONFIG_MAP, limit=1, continue_="nonsense")


@pytest.mark.cluster
async def test_our_kinds_keep_unknown_fields(real: kube.Kube, space: str) -> None:
    spec = {"domain": {"devices": {}}, "fieldOfTomorrow": {"x": [1, None, 2.5]}}
    vmi = {"metadata": {"name": "vm", "namespace": space}, "spec": spec, "status": {"phase": "Made up"}}
    made = await real.create(kinds.VMI, vmi)
    assert made["spec"] == {**spec, "fieldOfTomorrow": {"x": [1, None, 2.5]}}
    assert "status" not in made
    running = await real.replace(
        kinds.VMI, {**made, "spec": {}, "status": {"phase": "Running", "soon": 1}}, subresource="status")
    assert (running["spec"], running["status"]) == (spec, {"phase": "Running", "soon": 1})
    patched = await real.patch(kinds.VMI, "vm", {"status": {"phase": "Failed"}}, space, subresource="status")
    assert patched["status"] == {"phase": "Failed", "soon": 1}
    with pytest.raises(errors.Unsupported):
        await real.patch(kinds.VMI, "vm", {}, space, how="strategic")
    assert (await real.delete(kinds.VMI, "vm", space))["metadata"]["uid"] == made["metadata"]["uid"]
    page = await real.create(kinds.LEDGER_PAGE, {"metadata": {"name": space}, "spec": {"bookings": []}})
    assert page in (await real.list(kinds.LEDGER_PAGE)).items
    assert await real.delete(kinds.LEDGER_PAGE, space) == page


@pytest.mark.cluster
async def test_what_the_server_refuses(real: kube.Kube, space: str) -> None:
    with pytest.raises(errors.Invalid, match="is invalid") as caught:
        await real.create(kinds.CONFIG_MAP, {"metadata": {"name": "Not_Valid", "namespace": space}})
    assert [(cause.field, cause.reason) for cause in caught.value.causes] == [("metadata.name", "FieldValueInvalid")]
    with pytest.raises(errors.NotFound, match='namespaces "nowhere" not found'):
        await real.create(kinds.CONFIG_MAP, {"metadata": {"name": "a", "namespace": "nowhere"}})
    with pytest.raises(errors.TooLarge):
        await real.create(kinds.CONFIG_MAP, config_map(space, "huge", x="x" * 3_200_000))


@pytest.mark.cluster
async def test_the_ways_to_log_in(cluster: kubernetes.Cluster, tmp_path: Path) -> None:
    async def who(access: RestConfig) -> str:
        store = kube.Kube(access, clock=SystemClock())
        review = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode()
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        code, _, body = await store.raw("POST", path, body=review, headers={"Content-Type": "application/json"})
        await store.close()
        assert code == 201, body
        return str(json.loads(body)["status"]["userInfo"]["username"])

    def changed(**user: Any) -> RestConfig:
        content = json.loads(cluster.kubeconfig.read_text())
        content["users"][0]["user"] |= user
        (tmp_path / "config").write_text(json.dumps(content))
        return kubeconfig.load(tmp_path / "config", clock=SystemClock())

    assert await who(cluster.access()) == "admin"
    assert await who(kubeconfig.load(cluster.kubeconfig_token, clock=SystemClock())) == "admin-token"
    assert await who(changed(**{"as": "bob"})) == "bob"
    impersonated = kube.Kube(changed(**{"as": "bob", "as-groups": ["dev"]}), clock=SystemClock())
    with pytest.raises(errors.Forbidden, match='User "bob" cannot list resource "pods"'):
        await impersonated.list(kinds.POD)
    await impersonated.close()
    content = json.loads(cluster.kubeconfig_token.read_text())
    content["users"][0]["user"]["token"] = "wrong"
    (tmp_path / "config").write_text(json.dumps(content))
    stranger = kube.Kube(kubeconfig.load(tmp_path / "config", clock=SystemClock()), clock=SystemClock())
    with pytest.raises(errors.Unauthorized):
        await stranger.list(kinds.POD)
    await stranger.close()


@pytest.mark.cluster
async def test_a_plugin_may_bring_the_certificate(cluster: kubernetes.Cluster, tmp_path: Path) -> None:
    content = json.loads(cluster.kubeconfig.read_text())
    given = {key: base64.b64decode(content["users"][0]["user"][key]).decode()
             for key in ("client-certificate-data", "client-key-data")}
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {
        "clientCertificateData": given["client-certificate-data"], "clientKeyData": given["client-key-data"]}}
    (tmp_path / "answer").write_text(json.dumps(answer))
    content["users"][0]["user"] = {"exec": {"apiVersion": answer["apiVersion"], "command": "cat",
                                            "args": [str(tmp_path / "answer")], "interactiveMode": "Never"}}
    (tmp_path / "config").write_text(json.dumps(content))
    store = kube.Kube(kubeconfig.load(tmp_path / "config", clock=SystemClock()), clock=SystemClock())
    assert (await store.get(kinds.NAMESPACE, "default"))["kind"] == "Namespace"
    await store.close()


@pytest.mark.cluster
async def test_a_server_that_is_not_trusted(cluster: kubernetes.Cluster, tmp_path: Path) -> None:
    content = json.loads(cluster.kubeconfig_token.read_text())
    where = content["clusters"][0]["cluster"]

    async def names(**changes: Any) -> list[str]:
        content["clusters"][0]["cluster"] = {key: value for key, value in {**where, **changes}.items() if value}
        (tmp_path / "config").write_text(json.dumps(content))
        store = kube.Kube(kubeconfig.load(tmp_path / "config", clock=SystemClock()), clock=Impatient())
        try:
            return [item["metadata"]["name"] for item in (await store.list(kinds.NAMESPACE)).items]
        finally:
            await store.close()

    with pytest.raises(errors.Unavailable, match="certificate verify failed"):
        await names(**{"certificate-authority-data": None})
    with pytest.raises(errors.Unavailable, match=r"not valid for 'other\.host'"):
        await names(**{"tls-server-name": "other.host"})
    assert "default" in await names(**{"tls-server-name": "kubernetes.default.svc"})
    assert "default" in await names(**{"certificate-authority-data": None, "insecure-skip-tls-verify": True})


@pytest.mark.cluster
@pytest.mark.kubectl
def test_kubectl_reads_our_kubeconfigs(cluster: kubernetes.Cluster) -> None:
    def run(*args: str, stdin: str = "") -> str:
        done: subprocess.CompletedProcess[str] = cluster.kubectl(*args, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "admin" in run("auth", "whoami")
    assert "admin-token" in run("auth", "whoami", f"--kubeconfig={cluster.kubeconfig_token}")
    vmi = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "typed"}, "spec": {}}
    assert "created" in run("apply", "-f", "-", stdin=json.dumps(vmi))
    assert "typed" in run("get", "vmi")
    run("delete", "vmi", "typed")


@pytest.mark.cluster
def test_a_stopped_cluster_leaves_nothing_running(tmp_path: Path) -> None:
    with control_planes.started(tmp_path / "whole", scheduler=True, controllers=True, learn=()) as whole:
        pids = [whole.pid(name) for name in ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")]
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        accounts = json.loads(whole.request("GET", "/api/v1/namespaces/kube-system/serviceaccounts"))
        assert accounts["kind"] == "ServiceAccountList"
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.cluster
def test_a_port_that_another_process_takes_first_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = kubernetes.free_ports
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        given = iter([[*free(2), theirs.getsockname()[1], *free(2)]])
        monkeypatch.setattr(kubernetes, "free_ports", lambda count: next(given, None) or free(count))
        with control_planes.started(tmp_path / "moved", learn=()) as moved:
            assert not moved.server.endswith(f":{theirs.getsockname()[1]}")
            assert moved.request("GET", "/readyz") == b"ok"


@pytest.mark.cluster
def test_failed_server_start_is_reported(tmp_path: Path) -> None:
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    broken = kubernetes.Cluster(tmp_path / "broken", apiserver_flags=["--no-such-flag"])
    with pytest.raises(RuntimeError, match=r"kube-apiserver ended with 1:\n(.|\n)*unknown flag: --no-such-flag"):
        broken.start()
    with pytest.raises(KeyError):
        broken.pid("etcd")
