"""pods/NAME/binding: a custom scheduler gives a pod its node, and may assign devices with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outfitter.api.assignment.assigned_devices import ANNOTATION
from outfitter.api.kinds import Object
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.store.memory import Memory
from tests.apiserver.asgi import Client
from tests.apiserver.test_protobuf_bodies import PROTOBUF, encoded

GPU, PODS = "example.com/gpu", "/api/v1/namespaces/default/pods"
TO_A: Object = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "node-a"}}


@pytest.fixture
def client(ruled: Memory) -> Client:
    return Client(App(ruled, tokens={"admin": User("admin", (MASTERS,))}))


async def create(client: Client, **spec: Any) -> Object:
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: "1"}}}
    made: Object = (await client.call("POST", PODS, {"metadata": {"name": "p"}, "spec": {
        "schedulerName": "mine", "containers": [container], **spec}})).json
    return made


def annotated(*ids: str) -> Object:
    text = json.dumps({"c": [{"resourceName": GPU, "deviceIDs": list(ids)}]})
    return {**TO_A, "metadata": {"annotations": {ANNOTATION: text}}}


async def test_a_pod_is_bound_once(client: Client) -> None:
    await create(client)
    bound = await client.call("POST", f"{PODS}/p/binding", TO_A)
    assert (bound.status, bound.json["kind"], bound.json["status"]) == (201, "Status", "Success")
    pod = (await client.call("GET", f"{PODS}/p")).json
    assert pod["spec"]["nodeName"] == "node-a"
    assert [(each["type"], each["status"]) for each in pod["status"]["conditions"]] == [("PodScheduled", "True")]
    again = await client.call("POST", f"{PODS}/p/binding", TO_A)
    assert (again.status, again.json["reason"]) == (409, "Conflict")
    assert 'already assigned to node "node-a"' in again.json["message"]


async def test_a_scheduler_may_assign_devices_with_the_binding(client: Client) -> None:
    await create(client)
    refused = await client.call("POST", f"{PODS}/p/binding", annotated("g0", "g1"))
    assert (refused.status, "2 devices" in refused.json["message"]) == (422, True)
    assert "nodeName" not in (await client.call("GET", f"{PODS}/p")).json["spec"], "nothing is half-written"
    assert (await client.call("POST", f"{PODS}/p/binding", annotated("g0"))).status == 201
    assert "g0" in (await client.call("GET", f"{PODS}/p")).json["metadata"]["annotations"][ANNOTATION]


async def test_a_binding_of_go_clients(client: Client) -> None:
    await create(client)
    body = encoded("v1", "Binding", {key: TO_A[key] for key in ("metadata", "target")})
    assert (await client.call("POST", f"{PODS}/p/binding", body, type=PROTOBUF)).status == 201
    assert (await client.call("GET", f"{PODS}/p")).json["spec"]["nodeName"] == "node-a"


async def test_a_dry_run_binds_nothing(client: Client) -> None:
    await create(client)
    assert (await client.call("POST", f"{PODS}/p/binding", TO_A, query={"dryRun": "All"})).status == 201
    assert "nodeName" not in (await client.call("GET", f"{PODS}/p")).json["spec"]


@pytest.mark.parametrize(("binding", "spec", "code", "says"), {
    "no node": ({**TO_A, "target": {}}, {}, 422, "target.name: Required value"),
    "a name that is none": ({**TO_A, "target": {"name": "A_b"}}, {}, 422, 'target.name: Invalid value: "A_b"'),
    "a target that is no node": ({**TO_A, "target": {"kind": "Pod", "name": "a"}}, {}, 422, "target.kind: Unsupported value"),
    "another pod": ({**TO_A, "metadata": {"name": "q"}}, {}, 400, "does not match the name on the URL"),
    "another kind": ({**TO_A, "kind": "Pod"}, {}, 400, "must be a Binding"),
    "a list": ([], {}, 400, "must be a Binding"),
    "a pod of this name before it": ({**TO_A, "metadata": {"uid": "other"}}, {}, 409, "it was created again"),
    "scheduling gates": (TO_A, {"schedulingGates": [{"name": "a.io/wait"}]}, 409, "it has scheduling gates: a.io/wait"),
}.values())
async def test_a_binding_that_is_refused(client: Client, binding: Any, spec: Object, code: int, says: str) -> None:
    await create(client, **spec)
    refused = await client.call("POST", f"{PODS}/p/binding", binding)
    assert (refused.status, says in refused.json["message"]) == (code, True), refused.json


async def test_no_other_method_is_allowed_and_discovery_lists_it(client: Client) -> None:
    await create(client)
    assert (await client.call("GET", f"{PODS}/p/binding")).status == 405
    listed = {each["name"]: each for each in (await client.call("GET", "/api/v1")).json["resources"]}
    assert (listed["pods/binding"]["kind"], listed["pods/binding"]["verbs"]) == ("Binding", ["create"])
    assert (await client.call("POST", f"{PODS}/q/binding", {**TO_A, "metadata": {}})).status == 404
