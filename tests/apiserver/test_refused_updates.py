"""Changes that Kubernetes refuses: of immutable ConfigMaps and Secrets, of a pod's spec, of a slice's identity and of a claim's
status; and those that it allows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from outfitter.api import admission, kinds
from outfitter.api.kinds import Object
from outfitter.api.validate.dra.pool_status_requests import COUNTS
from outfitter.api.validate.node_placement import REQUIRED
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.apiserver.asgi import CLAIMS, CONFIG_MAPS, MERGE, Client

SECRETS = "/api/v1/namespaces/default/secrets"
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
POOL_REQUESTS = "/apis/resource.k8s.io/v1alpha3/resourcepoolstatusrequests"
CONTAINER: Object = {"name": "c", "image": "a", "env": [{"name": "x", "value": "1"}]}
TOLERATION: Object = {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
TERM: Object = {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}
POD: Object = {"spec": {
    "containers": [CONTAINER], "tolerations": [TOLERATION], "activeDeadlineSeconds": 60, "nodeSelector": {"rack": "a"}}}
GATED: Object = {"spec": {
    "containers": [CONTAINER], "schedulingGates": [{"name": "x"}, {"name": "y"}], "nodeSelector": {"rack": "a"},
    "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}}}}}
NODE: Object = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}, "status": {"allocatable": {"cpu": "4"}}}
SLICE: Object = {"spec": {"driver": "d.example.com", "nodeName": "a", "pool": {"name": "a", "resourceSliceCount": 1}}}
CLAIM: Object = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}}
RESULT: Object = {"request": "gpu", "driver": "d.example.com", "pool": "a", "device": "gpu-0"}
USER: Object = {"resource": "pods", "name": "p", "uid": "u"}
ALLOCATION: Object = {"devices": {"results": [RESULT]}}


class Change(NamedTuple):
    path: str
    object: Object
    patch: Object
    refused: str = ""  # the field of the cause; empty: the change is allowed
    words: str = ""  # in its message


def affinity(*terms: Object) -> Object:
    return {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}}


def allocated(**fields: Any) -> Object:
    return {"status": {"allocation": {"devices": {"results": [{**RESULT, **fields}]}}}}


FIXED = {"data": {"a": "eA=="}, "immutable": True}
POOL_REQUEST: Object = {"spec": {"driver": "d.example.com"}}


def counted(**fields: Any) -> Object:
    """The status of a request with one pool."""
    pool = {"driver": "d.example.com", "poolName": "a", "generation": 0, "resourceSliceCount": 1, **dict.fromkeys(COUNTS, 0)}
    return {"status": {"poolCount": 1, "pools": [{**pool, **fields}]}}


CHANGES: dict[str, Change] = {
    "data of an immutable ConfigMap": Change(CONFIG_MAPS, FIXED, {"data": {"a": "y"}}, "data", "immutable"),
    "a further key of an immutable ConfigMap": Change(CONFIG_MAPS, FIXED, {"binaryData": {"b": "eA=="}}, "binaryData"),
    "an immutable ConfigMap made mutable": Change(CONFIG_MAPS, FIXED, {"immutable": False}, "immutable", "immutable"),
    "an immutable ConfigMap's flag removed": Change(CONFIG_MAPS, FIXED, {"immutable": None}, "immutable", "immutable"),
    "labels of an immutable ConfigMap": Change(CONFIG_MAPS, FIXED, {"metadata": {"labels": {"a": "b"}}}),
    "a ConfigMap made immutable": Change(CONFIG_MAPS, {"data": {"a": "x"}}, {"data": {"a": "y"}, "immutable": True}),
    "data of an immutable Secret": Change(SECRETS, FIXED, {"data": {"a": "eQ=="}}, "data", "immutable"),
    "plain data of an immutable Secret": Change(SECRETS, FIXED, {"stringData": {"a": "y"}}, "data", "immutable"),
    "the type of a Secret": Change(SECRETS, {"data": {}}, {"type": "example.com/other"}, "type", "immutable"),
    "a key of a Secret that its type needs": Change(
        SECRETS, {"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}}, {"data": {"tls.key": None}},
        "data[tls.key]", "Required"),
    "an image": Change(PODS, POD, {"spec": {"containers": [{**CONTAINER, "image": "b"}]}}),
    "a variable": Change(PODS, POD, {"spec": {"containers": [{**CONTAINER, "env": []}]}}, "spec", "changed: containers"),
    "a further container": Change(PODS, POD, {"spec": {"containers": [CONTAINER, {**CONTAINER, "name": "d"}]}},
                                  "spec.containers", "add or remove"),
    "an earlier deadline": Change(PODS, POD, {"spec": {"activeDeadlineSeconds": 30}}),
    "a later deadline": Change(PODS, POD, {"spec": {"activeDeadlineSeconds": 90}}, "spec.activeDeadlineSeconds", "previous"),
    "no deadline any more": Change(PODS, POD, {"spec": {"activeDeadlineSeconds": None}}, "spec.activeDeadlineSeconds", "nil"),
    "a further toleration": Change(PODS, POD, {"spec": {"tolerations": [{"operator": "Exists"}, TOLERATION]}}),
    "a toleration for longer": Change(PODS, POD, {"spec": {"tolerations": [{**TOLERATION, "tolerationSeconds": 9}]}}),
    "a toleration removed": Change(PODS, POD, {"spec": {"tolerations": []}}, "spec.tolerations", "existing toleration"),
    "a node without the scheduler": Change(PODS, POD, {"spec": {"nodeName": "a"}}, "spec", "changed: nodeName"),
    "a node selector": Change(PODS, POD, {"spec": {"nodeSelector": {"disk": "b"}}}, "spec", "changed: nodeSelector"),
    "a claim": Change(PODS, POD, {"spec": {"resourceClaims": [{"name": "a", "resourceClaimName": "a"}]}}, "spec",
                      "changed: resourceClaims"),
    "an empty list": Change(PODS, POD, {"spec": {"volumes": []}}),
    "a grace period": Change(PODS, POD, {"spec": {"terminationGracePeriodSeconds": 1}}, "spec", "changed: termination"),
    "a gate removed": Change(PODS, GATED, {"spec": {"schedulingGates": [{"name": "y"}]}}),
    "a gate added": Change(PODS, GATED, {"spec": {"schedulingGates": [{"name": "z"}]}}, "spec.schedulingGates[0].name", "'z'"),
    "a label more for a gated pod": Change(PODS, GATED, {"spec": {"nodeSelector": {"disk": "b"}}}),
    "another label for a gated pod": Change(PODS, GATED, {"spec": {"nodeSelector": {"rack": "b"}}}, "spec.nodeSelector",
                                            "additions"),
    "a requirement more for a gated pod": Change(PODS, GATED, affinity(
        {"matchExpressions": [*TERM["matchExpressions"], {"key": "disk", "operator": "Exists"}]})),
    "another requirement for a gated pod": Change(
        PODS, GATED, affinity({"matchExpressions": [{"key": "disk", "operator": "Exists"}]}),
        f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms", "additions"),
    "an alternative for a gated pod": Change(
        PODS, GATED, affinity(TERM, TERM), f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms", "additions/deletions"),
    "a taint that is none": Change(NODES, NODE, {"spec": {"taints": [{"key": "a", "effect": "x"}]}}, "spec.taints[0].effect"),
    "a slice's driver": Change(SLICES, SLICE, {"spec": {"driver": "e.example.com"}}, "spec.driver", "immutable"),
    "a slice's pool": Change(SLICES, SLICE, {"spec": {"pool": {"name": "b"}}}, "spec.pool.name", "immutable"),
    "a slice's node": Change(SLICES, SLICE, {"spec": {"nodeName": "b"}}, "spec.nodeName", "immutable"),
    "a slice's devices": Change(SLICES, SLICE, {"spec": {"devices": [{"name": "a"}]}}),
    "which pools are asked for": Change(POOL_REQUESTS, POOL_REQUEST, {"spec": {"poolName": "b"}}, "spec", "immutable"),
    "labels of a request": Change(POOL_REQUESTS, POOL_REQUEST, {"metadata": {"labels": {"a": "b"}}}),
}
STATUSES: dict[str, Change] = {
    "an allocation": Change(CLAIMS, CLAIM, {"status": {"allocation": ALLOCATION, "reservedFor": [USER]}}),
    "an allocation for a request that is not there": Change(
        CLAIMS, CLAIM, allocated(request="nic"), "status.allocation.devices.results[0].request", "the name of a request"),
    "an allocation of a device that has no name": Change(
        CLAIMS, CLAIM, allocated(device="A b"), "status.allocation.devices.results[0].device", "RFC 1123"),
    "an allocation with a share that is no text": Change(
        CLAIMS, CLAIM, allocated(shareID=5), "status.allocation.devices.results[0].shareID", "must be text"),
    "an allocation of what is no amount": Change(
        CLAIMS, CLAIM, allocated(consumedCapacity={"memory": "x"}),
        "status.allocation.devices.results[0].consumedCapacity.memory", "4Gi"),
    "an allocation for nodes by nothing": Change(
        CLAIMS, CLAIM, {"status": {"allocation": {"nodeSelector": {}}}}, "status.allocation.nodeSelector.nodeSelectorTerms",
        "Required"),
    "a configuration from nowhere": Change(
        CLAIMS, CLAIM, {"status": {"allocation": {"devices": {"config": [
            {"source": "x", "opaque": {"driver": "d.example.com", "parameters": {}}}]}}}},
        "status.allocation.devices.config[0].source", "FromClaim"),
    "a user of nothing": Change(CLAIMS, CLAIM, {"status": {"reservedFor": [USER]}}, "status.reservedFor", "not set"),
    "a user twice": Change(CLAIMS, CLAIM, {"status": {"allocation": ALLOCATION, "reservedFor": [USER, USER]}},
                           "status.reservedFor[1]", "Duplicate"),
    "a device that is not allocated": Change(
        CLAIMS, CLAIM, {"status": {"allocation": ALLOCATION, "devices": [{
            "driver": "d.example.com", "pool": "a", "device": "gpu-1"}]}}, "status.devices[0]", "allocated device"),
    "counts of a pool": Change(POOL_REQUESTS, POOL_REQUEST, counted()),
    "counts without their number": Change(
        POOL_REQUESTS, POOL_REQUEST, {"status": {"pools": []}}, "status.poolCount", "Required"),
    "less than no device": Change(POOL_REQUESTS, POOL_REQUEST, counted(totalDevices=-1), "status.pools[0].totalDevices", "-1"),
    "a pool of no slice": Change(
        POOL_REQUESTS, POOL_REQUEST, counted(resourceSliceCount=0), "status.pools[0].resourceSliceCount", "equal to 1"),
    "counts of a driver that is none": Change(
        POOL_REQUESTS, POOL_REQUEST, counted(driver="a b"), "status.pools[0].driver", "1123"),
    "a reason that is too long": Change(
        POOL_REQUESTS, POOL_REQUEST, counted(validationError="x" * 257), "status.pools[0].validationError", "256"),
    "a condition without a reason": Change(
        POOL_REQUESTS, POOL_REQUEST, {"status": {"poolCount": 0, "conditions": [
            {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}},
        "status.conditions[0].reason", "Required"),
    "capacity below nothing": Change(NODES, NODE, {"status": {"allocatable": {"cpu": "-1"}}}, "status.allocatable.cpu", "zero"),
    "a claim that the pod does not have": Change(
        PODS, POD, {"status": {"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "b"}]}},
        "status.resourceClaimStatuses[0].name", "spec.resourceClaims"),
}


@pytest.fixture
async def client(clock: ManualClock) -> AsyncIterator[Client]:
    store = Memory(clock=clock, rules=admission.AdmissionRules())
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "default"}})
    yield Client(App(store, tokens={"admin": User("admin", (MASTERS,))}))
    await store.close()


@pytest.mark.parametrize(("change", "subresource"), [
    *(pytest.param(change, "", id=name) for name, change in CHANGES.items()),
    *(pytest.param(change, "/status", id=f"status: {name}") for name, change in STATUSES.items())])
async def test_a_change_is_refused_with_its_field_or_made(client: Client, change: Change, subresource: str) -> None:
    made = await client.post(change.path, {"metadata": {"name": "x"}, **change.object})
    assert made.status == 201, made.json
    reply = await client.patch(f"{change.path}/x{subresource}", change.patch, type=MERGE)
    if not change.refused:
        assert reply.status == 200, reply.json
        return
    assert reply.status == 422, reply.json
    causes = reply.json["details"]["causes"]
    assert [cause["field"] for cause in causes] == [change.refused], causes
    assert change.words in causes[0]["message"]
    now = (await client.get(f"{change.path}/x")).json
    assert now["metadata"]["resourceVersion"] == made.json["metadata"]["resourceVersion"]


async def test_an_answer_is_not_replaced(client: Client) -> None:
    await client.post(POOL_REQUESTS, {"metadata": {"name": "x"}, **POOL_REQUEST, **counted()})
    assert "status" not in (await client.get(f"{POOL_REQUESTS}/x")).json, "a create request cannot contain it"
    for total, status in ((2, 200), (2, 200), (3, 422)):
        reply = await client.patch(f"{POOL_REQUESTS}/x/status", counted(totalDevices=total), type=MERGE)
        assert reply.status == status, reply.json
    assert [cause["field"] for cause in reply.json["details"]["causes"]] == ["status"]
    removed = await client.delete(f"{POOL_REQUESTS}/x")
    assert removed.json["kind"] == "ResourcePoolStatusRequest", "as kube-apiserver answers"


async def test_an_allocation_is_not_replaced_by_another(client: Client) -> None:
    await client.post(CLAIMS, {"metadata": {"name": "x"}, **CLAIM})
    for device, status in (("gpu-0", 200), ("gpu-0", 200), ("gpu-1", 422)):
        reply = await client.patch(f"{CLAIMS}/x/status", allocated(device=device), type=MERGE)
        assert reply.status == status, reply.json
    assert [cause["field"] for cause in reply.json["details"]["causes"]] == ["status.allocation"]
