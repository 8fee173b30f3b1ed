"""What the server refuses, and whom: with Kubernetes' code and reason, and a clear word."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from outfitter.api import write_request
from outfitter.api.kinds import Object
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, PEER, User
from outfitter.errors import NotFound
from outfitter.store.memory import Memory, OpenRules
from tests.apiserver.asgi import (
    CLAIMS,
    CONFIG_MAPS,
    INSTANCES,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    A,
    Client,
    claim,
    config_map,
    instance,
)


class Refusal(NamedTuple):
    method: str
    path: str
    body: Any
    status: int
    reason: str
    says: str
    query: dict[str, str] = {}  # noqa: RUF012  # never changed
    type: str = "application/json"


REFUSALS = {
    "no such object": Refusal("GET", f"{CONFIG_MAPS}/zz", None, 404, "NotFound", 'configmaps "zz" not found'),
    "no such resource": Refusal("GET", "/api/v1/foos", None, 404, "NotFound", "could not find the requested resource"),
    "no such group": Refusal("GET", "/apis/foo.io/v1/foos", None, 404, "NotFound", "could not find"),
    "no such version": Refusal("GET", "/apis/resource.k8s.io/v9/resourceclaims", None, 404, "NotFound", "could not find"),
    "no such subresource": Refusal("GET", f"{A}/status", None, 404, "NotFound", "could not find"),
    "no such page": Refusal("GET", "/nope", None, 404, "NotFound", "could not find"),
    "a namespaced object without its namespace": Refusal("GET", "/api/v1/configmaps/a", None, 404, "NotFound", "could not"),
    "a cluster kind inside a namespace": Refusal("GET", "/api/v1/namespaces/x/nodes", None, 404, "NotFound", "could not"),
    "the name is taken": Refusal("POST", CONFIG_MAPS, config_map("a"), 409, "AlreadyExists", 'configmaps "a" already exists'),
    "an old revision": Refusal("PUT", A, config_map("a", resourceVersion="999"), 409, "Conflict", "has been modified"),
    "an old revision in a patch": Refusal("PATCH", A, {"metadata": {"resourceVersion": "9"}}, 409, "Conflict",
                                          "has been modified", type=MERGE),
    "a revision on create": Refusal("POST", CONFIG_MAPS, config_map("b", resourceVersion="1"), 400, "BadRequest",
                                    "resourceVersion should not be set"),
    "no name": Refusal("POST", CONFIG_MAPS, {"metadata": {}}, 422, "Invalid", "name or generateName is required"),
    "replacing what is not there": Refusal("PUT", f"{CONFIG_MAPS}/zz", config_map("zz"), 404, "NotFound", '"zz" not found'),
    "another name in the body": Refusal("PUT", A, config_map("b"), 400, "BadRequest", "match the name on the URL (a)"),
    "another namespace in the body": Refusal("POST", CONFIG_MAPS, config_map("b", namespace="x"), 400, "BadRequest",
                                             "does not match the namespace"),
    "another name in a patch": Refusal("PATCH", A, {"metadata": {"name": "b"}}, 400, "BadRequest", "the URL (a)", type=MERGE),
    "another kind in the body": Refusal("POST", CONFIG_MAPS, {**config_map("b"), "kind": "Secret"}, 400, "BadRequest",
                                        "cannot be handled as a ConfigMap"),
    "another version in the body": Refusal("POST", CONFIG_MAPS, {**config_map("b"), "apiVersion": "v2"}, 400, "BadRequest",
                                           "cannot be handled as a ConfigMap"),
    "POST to an object": Refusal("POST", A, config_map("a"), 405, "MethodNotAllowed", "does not allow this method"),
    "PATCH of a collection": Refusal("PATCH", CONFIG_MAPS, {}, 405, "MethodNotAllowed", "does not allow", type=MERGE),
    "POST without a namespace": Refusal("POST", "/api/v1/configmaps", config_map("a"), 405, "MethodNotAllowed", "does not"),
    "DELETE of all namespaces": Refusal("DELETE", "/api/v1/configmaps", None, 405, "MethodNotAllowed", "does not allow"),
    "POST to the version": Refusal("POST", "/version", {}, 405, "MethodNotAllowed", "does not allow"),
    "an unknown method": Refusal("BREW", A, None, 405, "MethodNotAllowed", "does not allow"),
    "a patch of an unknown type": Refusal("PATCH", A, {}, 415, "UnsupportedMediaType", "accepted media types include",
                                              type="text/plain"),
    "server-side apply": Refusal("PATCH", A, {}, 415, "UnsupportedMediaType", "server-side apply",
                                 type="application/apply-patch+yaml"),
    "a strategic patch of a custom kind": Refusal("PATCH", f"{INSTANCES}/vm", {}, 415, "UnsupportedMediaType",
                                                  "application/merge-patch+json", type=STRATEGIC),
    "a JSON patch that does not fit": Refusal("PATCH", A, [{"op": "test", "path": "/data/k", "value": "x"}], 422, "Invalid",
                                              "the server rejected our request", type=JSON_PATCH),
    "a JSON patch that is none": Refusal("PATCH", A, {}, 400, "BadRequest", "JSON patch", type=JSON_PATCH),
    "too many operations": Refusal("PATCH", A, [{}] * 10_001, 413, "RequestEntityTooLarge", "10000", type=JSON_PATCH),
    "a merge patch that is a list": Refusal("PATCH", A, [1], 400, "BadRequest", "object", type=MERGE),
    "a bad dryRun": Refusal("POST", CONFIG_MAPS, config_map("b"), 422, "Invalid", 'dryRun: Unsupported value: "Some"',
                            {"dryRun": "Some"}),
    "a bad fieldValidation": Refusal("POST", CONFIG_MAPS, config_map("b"), 422, "Invalid", "fieldValidation: Unsupported",
                                     {"fieldValidation": "Foo"}),
    "a bad limit": Refusal("GET", CONFIG_MAPS, None, 400, "BadRequest", "limit", {"limit": "x"}),
    "a negative limit": Refusal("GET", CONFIG_MAPS, None, 400, "BadRequest", "limit", {"limit": "-1"}),
    "a bad label selector": Refusal("GET", CONFIG_MAPS, None, 400, "BadRequest", "labelSelector", {"labelSelector": "a==b==c"}),
    "a bad field selector": Refusal("GET", CONFIG_MAPS, None, 400, "BadRequest", "data.x", {"fieldSelector": "data.x=1"}),
    "a bad revision": Refusal("GET", CONFIG_MAPS, None, 400, "BadRequest", "resourceVersion", {"resourceVersion": "abc"}),
    "a revision to come": Refusal("GET", CONFIG_MAPS, None, 504, "Timeout", "Too large resource version: 999",
                                  {"resourceVersion": "999"}),
    "an object at a revision to come": Refusal("GET", A, None, 504, "Timeout", "Too large", {"resourceVersion": "999"}),
    "a match without a revision": Refusal("GET", CONFIG_MAPS, None, 422, "Invalid", "unless resourceVersion is provided",
                                          {"resourceVersionMatch": "Exact"}),
    "a bad continue": Refusal("GET", CONFIG_MAPS, None, 400, "BadRequest", "continue", {"continue": "abc"}),
    "an unknown propagation": Refusal("DELETE", A, {"propagationPolicy": "Foo"}, 422, "Invalid", '"Foreground"'),
    "two propagations": Refusal("DELETE", A, {"propagationPolicy": "Orphan", "orphanDependents": True}, 422, "Invalid",
                                "cannot be both set"),
    "a bad grace": Refusal("DELETE", A, None, 400, "BadRequest", "gracePeriodSeconds", {"gracePeriodSeconds": "abc"}),
    "a negative grace": Refusal("DELETE", A, {"gracePeriodSeconds": -1}, 422, "Invalid", "gracePeriodSeconds"),
    "another kind of options": Refusal("DELETE", A, {"kind": "Foo"}, 400, "BadRequest", "DeleteOptions"),
    "another uid": Refusal("DELETE", A, {"preconditions": {"uid": "1"}}, 409, "Conflict", "UID"),
    "another revision": Refusal("DELETE", A, {"preconditions": {"resourceVersion": "99"}}, 409, "Conflict", "ResourceVersion"),
    "bad preconditions": Refusal("DELETE", A, {"preconditions": {"uid": 1}}, 400, "BadRequest", "preconditions.uid"),
    "deleting what is not there": Refusal("DELETE", f"{CONFIG_MAPS}/zz", None, 404, "NotFound", 'configmaps "zz" not found'),
    "a custom object without its revision": Refusal("PUT", f"{INSTANCES}/vm", instance("vm"), 422, "Invalid",
                                                    "must be specified for an update"),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS.keys())
async def test_rejections_have_kubernetes_code_reason_and_a_message(client: Client, store: Memory, case: Refusal) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    await client.post(INSTANCES, instance("vm"))
    before = store.revision
    reply = await client.call(case.method, case.path, case.body, type=case.type, query=case.query)
    status = reply.json
    assert (reply.status, status["code"], status["reason"]) == (case.status, case.status, case.reason)
    assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
    assert case.says in status["message"]
    assert store.revision == before


async def test_a_refusal_names_object_and_fields_in_its_details(client: Client) -> None:
    missing = await client.get(f"{CLAIMS}/zz")
    assert missing.json["details"] == {"name": "zz", "group": "resource.k8s.io", "kind": "resourceclaims"}
    invalid = await client.post(CLAIMS, {"metadata": {}})
    assert invalid.json["details"]["kind"] == "ResourceClaim"
    assert invalid.json["details"]["causes"] == [
        {"reason": "FieldValueRequired", "field": "metadata.name",
         "message": "Required value: name or generateName is required"}
    ]
    late = await client.get(CONFIG_MAPS, resourceVersion="999")
    assert late.json["details"]["retryAfterSeconds"] == 1
    assert late.header("retry-after") == ["1"]


class NoSuchNamespace(OpenRules):
    def admit(self, change: write_request.WriteRequest) -> Object:
        raise NotFound('namespaces "default" not found')


async def test_details_name_the_object_of_the_message() -> None:
    client = Client(App(Memory(rules=NoSuchNamespace())), extensions={PEER: {"subject": (
        (("organizationName", "system:masters"),), (("commonName", "admin"),))}}, token="")
    reply = await client.post(CONFIG_MAPS, config_map("a"))
    assert (reply.status, reply.json["details"]) == (404, {"name": "default", "kind": "namespaces"})


# -- who

async def test_anonymous_users_are_unauthorized_and_others_need_a_right(client: Client, store: Memory) -> None:
    app = client.app
    nobody = await Client(app, token="").get(CONFIG_MAPS)
    assert (nobody.status, nobody.json["reason"]) == (401, "Unauthorized")
    assert (await Client(app, token="wrong").get("/api")).status == 401
    for page in ("/version", "/healthz", "/livez", "/readyz"):
        assert (await Client(app, token="").get(page)).status == 200
    bob = Client(app, token="bob")
    refused = await bob.post(CONFIG_MAPS, config_map("a"))
    assert (refused.status, refused.json["reason"]) == (403, "Forbidden")
    assert refused.json["message"] == ('configmaps is forbidden: User "bob" cannot create resource "configmaps" in API group '
                                       '"" in the namespace "default"')
    assert store.revision == 0
    watched = await bob.get(CONFIG_MAPS, watch="1")
    assert "cannot watch" in watched.json["message"]
    assert (await bob.get("/apis")).status == 200


async def test_a_certificate_names_its_user_and_groups(client: Client) -> None:
    subject = ((("organizationName", "people"),), (("commonName", "carol"),))
    carol = Client(client.app, token="", extensions={PEER: {"subject": subject}})
    assert 'User "carol" cannot list' in (await carol.get(CONFIG_MAPS)).json["message"]
    master = Client(client.app, token="", extensions={PEER: {"subject": ((("organizationName", "system:masters"),), *subject)}})
    assert (await master.get(CONFIG_MAPS)).status == 200


REFUSED = {
    "an unknown path": ("GET", "/moon"),
    "an unknown resource": ("GET", "/api/v1/namespaces/default/moons"),
    "a subresource that is not served": ("PATCH", "/api/v1/namespaces/default/pods/p/ephemeralcontainers"),
    "an unknown group": ("GET", "/apis/moon.example.com/v1"),
    "an object that is not there": ("GET", f"{CONFIG_MAPS}/a"),
    "a method that is not allowed": ("PATCH", CONFIG_MAPS),
    "a body that is none": ("POST", CONFIG_MAPS),
    "an option that is none": ("GET", f"{CONFIG_MAPS}?limit=x"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_every_failure_has_details(client: Client, name: str) -> None:
    """kubectl debug reads them without a look and would crash."""
    method, path = REFUSED[name]
    reply = await client.call(method, path)
    assert reply.status >= 400
    assert isinstance(reply.json["details"], dict)


async def test_creating_in_a_terminating_namespace_is_forbidden(ruled: Memory) -> None:
    client = Client(App(ruled, tokens={"admin": User("admin", (MASTERS,))}))
    await client.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    await client.delete("/api/v1/namespaces/team")
    for path, obj in (("/api/v1/namespaces/team/configmaps", config_map("a")),
                      ("/apis/resource.k8s.io/v1/namespaces/team/resourceclaims", claim("c"))):
        reply = await client.post(path, {**obj, "metadata": {"name": "a"}})
        assert (reply.status, reply.json["reason"]) == (403, "Forbidden")
        assert reply.json["details"]["causes"] == [{"reason": "NamespaceTerminating", "field": "metadata.namespace",
                                                    "message": "namespace team is being terminated"}]
        assert "because it is being terminated" in reply.json["message"]
