"""Counts of devices where Kubernetes has ResourcePoolStatusRequests (gate DRAResourcePoolStatus): kube-controller-manager
answers them, ours are PoolStatuses, and both count the same slices and claims. The roles are processes,
kube-scheduler allocates."""

from __future__ import annotations

import json
import urllib.error
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from outfitter.api import admission, kinds
from outfitter.api.device import DRIVER
from outfitter.api.kinds import Object
from outfitter.api.served import printer_columns
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests import control_planes
from tests.apiserver.aggregated.test_aggregation_layer import OTHER, TEAM, Aggregation
from tests.apiserver.asgi import Client
from tests.e2e.process import typed, until

pytestmark = pytest.mark.cluster
REQUEST = kinds.POOL_STATUS_REQUEST
REQUESTS = f"/apis/{REQUEST.api_version}/{REQUEST.plural}"
FABRIC = "fabric.example.com"
BY_OURS = ("driver", "poolName", "nodeName", "generation", "resourceSliceCount", "totalDevices", "allocatedDevices")
DRA = "resource.k8s.io/v1"
EXACTLY = {"devices": {"requests": [{"name": "it", "exactly": {"deviceClassName": "vf"}}]}}


def part(number: int, *devices: Object) -> Object:
    """A slice of a pool of two that no host owns."""
    return {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": f"rack-{number}"}, "spec": {
        "driver": FABRIC, "pool": {"name": "rack/one", "generation": 3, "resourceSliceCount": 2}, "allNodes": True,
        "devices": list(devices)}}


def secret_vmi() -> list[Object]:
    """A VM of another namespace, with a VF."""
    meta = {"namespace": OTHER, "name": "secret"}
    return [
        {"apiVersion": DRA, "kind": "DeviceClass", "metadata": {"name": "vf"}, "spec": {"selectors": [{"cel": {
            "expression": f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "VF"'}}]}},
        {"apiVersion": DRA, "kind": "ResourceClaimTemplate", "metadata": meta, "spec": {"spec": EXACTLY}},
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": meta, "spec": {
            "resourceClaims": [{"name": "it", "resourceClaimTemplateName": "secret"}],
            "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [
                {"name": "nic", "claimName": "it", "requestName": "it"}]}}}}]


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aggregation]:
    folder = tmp_path_factory.mktemp("pool-status")
    with control_planes.started(
        folder / "cluster", scheduler=True, controllers=True, learn=(), feature_gates="DRAResourcePoolStatus=true",
        apiserver_flags=[f"--runtime-config={REQUEST.api_version}=true"],
    ) as cluster:
        running = Aggregation(cluster, folder / "roles", "--simulation")
        try:
            running.roles.start("controller").ready()
            running.roles.start("node", "--simulate", "2x4").ready()
            yield running
            assert running.roles.forbidden() == []
        finally:
            running.roles.stop()


@pytest.fixture(scope="module")
def held(layer: Aggregation) -> Aggregation:
    """A VF of one host is held by a VM, and a device of a rack, one of whose others is tainted, by a claim."""
    layer.apply(*secret_vmi(), part(0, {"name": "x0"}, {"name": "x1"}), part(1, {"name": "x2", "taints": [
        {"key": "example.com/broken", "effect": "NoSchedule"}]}))
    claim = {"namespace": OTHER, "name": "secret-rack"}
    layer.apply({"apiVersion": DRA, "kind": "ResourceClaim", "metadata": claim, "spec": EXACTLY})
    given = {"devices": {"results": [{"request": "it", "driver": FABRIC, "pool": "rack/one", "device": "x1"}]}}
    done = layer.cluster.kubectl("patch", "resourceclaim", claim["name"], "-n", OTHER, "--subresource=status", "--type=merge",
                                 "-p", json.dumps({"status": {"allocation": given}}))
    assert done.returncode == 0, done
    until(lambda: (layer.get("vmi", "secret", OTHER).get("status") or {}).get("phase") == "Running", "the VM runs")
    until(lambda: sum(pool["allocatedDevices"] for pool in by_ours(layer)) == 2, "both are booked in the ledger")
    return layer


def asking(name: str, **spec: Any) -> Object:
    return {"apiVersion": REQUEST.api_version, "kind": REQUEST.kind, "metadata": {"name": name}, "spec": spec}


def by_ours(layer: Aggregation) -> list[Object]:
    path = "/apis/status.outfitter.dev/v1alpha1/poolstatuses"
    return list(json.loads(layer.cluster.request("GET", path))["items"])


def by_kubernetes(layer: Aggregation, driver: str, **spec: Any) -> Object:
    """An answered request."""
    name = f"asked-{uuid.uuid4().hex[:8]}"
    layer.cluster.request("POST", REQUESTS, asking(name, driver=driver, **spec))

    def answered() -> Object | None:
        request: Object = json.loads(layer.cluster.request("GET", f"{REQUESTS}/{name}"))
        return request if "status" in request else None

    request = until(answered, f"{name} is answered")
    assert request is not None
    layer.cluster.request("DELETE", f"{REQUESTS}/{name}")
    return request


def test_kube_controller_manager_answers_and_counts_what_the_ledger_has(held: Aggregation) -> None:
    ours = {driver: [pool for pool in by_ours(held) if pool["driver"] == driver] for driver in (DRIVER, FABRIC)}
    assert len(ours[DRIVER]) == 2
    assert len(ours[FABRIC]) == 1
    for driver, pools in ours.items():
        request = by_kubernetes(held, driver)
        theirs = request["status"]["pools"]
        assert [{field: pool.get(field) for field in BY_OURS} for pool in pools] == [
            {field: pool.get(field) for field in BY_OURS} for pool in theirs]
        # Kubernetes 1.36 does not count taints and counters: what it calls available is what we call available or unavailable.
        assert [pool["availableDevices"] + pool["unavailableDevices"] for pool in pools] == [
            pool["availableDevices"] for pool in theirs]
        writers = {entry["manager"] for entry in request["metadata"]["managedFields"] if entry.get("subresource") == "status"}
        assert writers == {"kube-controller-manager"}, "ours leave them alone"
    assert [pool["unavailableDevices"] for pool in ours[FABRIC]] == [1]


def test_a_namespace_admin_counts_devices_with_ours_or_with_kubernetes(held: Aggregation) -> None:
    """First by PoolStatuses. Then without their API: refused, until a role for requests is bound."""
    ann = held.token_config("ann", TEAM)
    first = typed("devices", "-o", "json", kubeconfig=ann)
    assert first.code == 0, first
    assert len(json.loads(first.out)) == 3
    api = "v1alpha1.status.outfitter.dev"
    removed = json.loads(held.cluster.kubectl("get", "apiservice", api, "-o", "json").stdout)
    assert held.cluster.kubectl("delete", "apiservice", api).returncode == 0
    refused = typed("devices", kubeconfig=ann)
    assert refused.code == 1, refused
    assert "resourcepoolstatusrequests.resource.k8s.io and a role that may create, get and delete them" in refused.err
    bound = held.cluster.kubectl("create", "clusterrolebinding", "ann-counts", "--clusterrole=outfitter:pool-status-requests",
                                 f"--serviceaccount={TEAM}:ann")
    assert bound.returncode == 0, bound
    until(lambda: typed("devices", kubeconfig=ann).code == 0, "the role is known")
    second = typed("devices", "-o", "json", "--driver", DRIVER, "--driver", FABRIC, kubeconfig=ann)
    assert second.code == 0, second
    same = [{field: pool.get(field) for field in ("driver", "poolName", "nodeName", "totalDevices", "allocatedDevices")}
            for pools in (first, second) for pool in sorted(json.loads(pools.out), key=lambda pool: str(pool["poolName"]))]
    assert same[:3] == same[3:]
    only_ours = typed("devices", kubeconfig=ann)
    assert "8 devices" not in only_ours.err
    assert only_ours.out.splitlines()[-1].endswith("1 held, 0 unavailable")
    for shown in (first, second, only_ours, refused):
        assert "secret" not in shown.out + shown.err
    assert not any(word in first.out + second.out for word in ("x0", "x1", "-vf")), "no names of devices"
    left = json.loads(held.cluster.request("GET", REQUESTS))["items"]
    assert left == [], "the command deletes what it creates"
    for field in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
        removed["metadata"].pop(field, None)
    held.apply(removed)


def test_what_kubernetes_leaves_unanswered(held: Aggregation) -> None:
    """A pool with missing slices, and one of generation 0, whose answer kube-apiserver refuses; ours count both."""
    half = part(0, {"name": "x0"})
    half["metadata"]["name"], half["spec"]["driver"] = "half", "half.example.com"
    held.apply(half)
    held.cluster.request("POST", REQUESTS, asking("pending", driver="half.example.com"))
    answers = {generation: held.cluster.kubectl(
        "patch", REQUEST.plural, "pending", "--subresource=status", "--type=merge", "--dry-run=server", "-p", json.dumps({
            "status": {"poolCount": 1, "pools": [{"driver": FABRIC, "poolName": "a", "generation": generation}]}}))
        for generation in (0, 1)}
    assert "status.pools[0].generation: Required value" in answers[0].stderr, answers
    assert answers[1].returncode == 0, answers
    until(lambda: [pool for pool in by_ours(held) if "1/2 slices at generation 3" in pool.get("validationError", "")],
          "ours has the reason")
    assert "status" not in json.loads(held.cluster.request("GET", f"{REQUESTS}/pending"))
    held.cluster.request("DELETE", f"{REQUESTS}/pending")
    assert held.cluster.kubectl("delete", "resourceslice", "half").returncode == 0


BAD: dict[str, Object] = {
    "no driver": {},
    "a driver that is none": {"driver": "a_b"},
    "a driver in capitals": {"driver": "GPU.example.com"},
    "a driver that is longer than that of a slice": {"driver": f"{'a' * 60}.{'b' * 60}"},
    "a pool without a name": {"driver": FABRIC, "poolName": ""},
    "a pool in parts": {"driver": FABRIC, "poolName": "rack/one"},
    "a pool in capitals": {"driver": FABRIC, "poolName": "Rack"},
    "no pools": {"driver": FABRIC, "limit": 0},
    "the most pools": {"driver": FABRIC, "limit": 1000},
    "too many pools": {"driver": FABRIC, "limit": 1001},
}


def posted(layer: Aggregation, obj: Object) -> Object:
    """What kube-apiserver answers to a create request."""
    try:
        return dict(json.loads(layer.cluster.request("POST", REQUESTS, obj)))
    except urllib.error.HTTPError as error:
        return dict(json.loads(error.read()))


def fields(answer: Object) -> list[str]:
    return [cause["field"] for cause in (answer.get("details") or {}).get("causes") or ()]


async def test_the_embedded_server_refuses_what_kube_apiserver_refuses(layer: Aggregation) -> None:
    store = Memory(clock=ManualClock(), rules=admission.AdmissionRules())
    client = Client(App(store, tokens={"admin": User("admin", (MASTERS,))}))
    answers = {name: (posted(layer, asking(f"bad-{number}", **spec)),
                      (await client.post(REQUESTS, asking(f"bad-{number}", **spec))).json)
               for number, (name, spec) in enumerate(BAD.items())}
    await store.close()
    layer.cluster.request("DELETE", REQUESTS)
    assert {name: fields(embedded) for name, (_, embedded) in answers.items()} == {
        name: fields(real) for name, (real, _) in answers.items()}
    assert {name: (embedded["kind"], embedded.get("spec")) for name, (_, embedded) in answers.items()} == {
        name: (real["kind"], real.get("spec")) for name, (real, _) in answers.items()}


def test_the_columns_are_those_of_kube_apiserver(layer: Aggregation) -> None:
    layer.cluster.request("POST", REQUESTS, asking("shown", driver=FABRIC))
    heads = layer.cluster.kubectl("get", REQUEST.plural).stdout.splitlines()[0].split()
    layer.cluster.request("DELETE", f"{REQUESTS}/shown")
    assert heads == [column.name.upper() for column in printer_columns.COLUMNS[REQUEST] if not column.wide]
