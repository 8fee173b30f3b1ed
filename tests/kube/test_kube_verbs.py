"""The verbs, as kubectl and clients use them; what comes back is what kube-apiserver gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.errors import NotFound
from outfitter.faces.kube.app import App
from outfitter.faces.kube.auth import MASTERS, PEER, User
from outfitter.store import base
from outfitter.store.memory import Memory, OpenRules
from outfitter.store.sqlite import SQLite
from tests.kube.asgi import (
    CLAIMS,
    CONFIG_MAPS,
    INSTANCES,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    Client,
    Reply,
    claim,
    config_map,
    instance,
)


async def test_an_object_can_be_made_read_changed_and_deleted(client: Client) -> None:
    made = await client.post(CONFIG_MAPS, config_map("a"))
    assert made.status == 201
    assert made.json["metadata"]["uid"]
    assert made.json["metadata"]["namespace"] == "default"
    read = await client.get(f"{CONFIG_MAPS}/a")
    assert (read.status, read.json) == (200, made.json)
    changed = await client.put(f"{CONFIG_MAPS}/a", {**made.json, "data": {"k": "w"}})
    assert (changed.status, changed.json["data"]) == (200, {"k": "w"})
    assert int(changed.json["metadata"]["resourceVersion"]) > int(made.json["metadata"]["resourceVersion"])
    gone = await client.delete(f"{CONFIG_MAPS}/a")
    assert (gone.status, gone.json["kind"], gone.json["status"]) == (200, "Status", "Success")
    assert gone.json["details"] == {"name": "a", "kind": "configmaps", "uid": made.json["metadata"]["uid"]}
    assert (await client.get(f"{CONFIG_MAPS}/a")).status == 404


async def test_the_home_on_disk_serves_what_it_kept(tmp_path: Path) -> None:
    for life in range(2):
        store = SQLite(tmp_path, kinds.ALL)
        client = Client(App(store, tokens={"admin": User("admin", (MASTERS,))}))
        if not life:
            before = (await client.post(CONFIG_MAPS, config_map("a"))).json
        else:
            assert (await client.get(CONFIG_MAPS)).json["items"] == [before]
            async with client.watch(CONFIG_MAPS) as stream:
                assert (await stream.next())["object"] == before
                await client.patch(f"{CONFIG_MAPS}/a", {"data": {"k": "w"}})
                assert (await stream.next())["object"]["data"] == {"k": "w"}
        await store.close()


async def test_reads_in_the_stored_version_are_the_stored_bytes(client: Client, store: Memory) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    record = store.record(kinds.CONFIG_MAP, "a", "default")
    assert (await client.get(f"{CONFIG_MAPS}/a")).data == record.data
    assert record.data in (await client.get(CONFIG_MAPS)).data


async def test_a_name_is_made_from_a_prefix(client: Client) -> None:
    made = await client.post(CONFIG_MAPS, {"metadata": {"generateName": "x-"}})
    assert made.status == 201
    assert made.json["metadata"]["name"].startswith("x-")
    assert len(made.json["metadata"]["name"]) > 2


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete", "collection"])
async def test_a_dry_run_answers_and_changes_nothing(client: Client, store: Memory, verb: str) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    before = store.revision
    place = f"{CONFIG_MAPS}/a"
    calls: dict[str, Callable[[], Awaitable[Reply]]] = {
        "create": lambda: client.post(CONFIG_MAPS, config_map("b"), dryRun="All"),
        "update": lambda: client.put(place, config_map("a") | {"data": {"k": "new"}}, dryRun="All"),
        "patch": lambda: client.patch(place, {"data": {"k": "new"}}, dryRun="All"),
        "delete": lambda: client.delete(place, dryRun="All"),
        "collection": lambda: client.delete(CONFIG_MAPS, {"dryRun": ["All"]}),
    }
    answer = await calls[verb]()
    assert answer.status == (201 if verb == "create" else 200)
    if verb in ("update", "patch"):
        assert answer.json["data"] == {"k": "new"}
    assert store.revision == before
    assert [item["metadata"]["name"] for item in (await client.get(CONFIG_MAPS)).json["items"]] == ["a"]
    assert (await client.get(place)).json["data"] == {"k": "v"}


class Refusal(NamedTuple):
    method: str
    path: str
    body: Any
    status: int
    reason: str
    says: str
    query: dict[str, str] = {}  # noqa: RUF012  # never changed
    type: str = "application/json"


A = f"{CONFIG_MAPS}/a"
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
    "a method nobody knows": Refusal("BREW", A, None, 405, "MethodNotAllowed", "does not allow"),
    "a patch of a type nobody knows": Refusal("PATCH", A, {}, 415, "UnsupportedMediaType", "accepted media types include",
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
    "bad preconditions": Refusal("DELETE", A, {"preconditions": {"uid": 1}}, 422, "Invalid", "preconditions"),
    "deleting what is not there": Refusal("DELETE", f"{CONFIG_MAPS}/zz", None, 404, "NotFound", 'configmaps "zz" not found'),
    "a custom object without its revision": Refusal("PUT", f"{INSTANCES}/vm", instance("vm"), 422, "Invalid",
                                                    "must be specified for an update"),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS.keys())
async def test_refusals_have_kubernetes_code_reason_and_a_clear_word(client: Client, store: Memory, case: Refusal) -> None:
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
    def admit(self, change: base.Change) -> Object:
        raise NotFound('namespaces "default" not found')


async def test_details_follow_the_message_when_it_speaks_of_another_object() -> None:
    client = Client(App(Memory(rules=NoSuchNamespace())), extensions={PEER: {"subject": (
        (("organizationName", "system:masters"),), (("commonName", "admin"),))}}, token="")
    reply = await client.post(CONFIG_MAPS, config_map("a"))
    assert (reply.status, reply.json["details"]) == (404, {"name": "default", "kind": "namespaces"})


class Patch(NamedTuple):
    type: str
    body: Any
    data: dict[str, str]


PATCHES = {
    "merge": Patch(MERGE, {"data": {"k": None, "x": "1"}}, {"x": "1"}),
    "strategic": Patch(STRATEGIC, {"data": {"x": "1"}}, {"k": "v", "x": "1"}),
    "json": Patch(JSON_PATCH, [{"op": "add", "path": "/data/x", "value": "1"}], {"k": "v", "x": "1"}),
    "json with a copy": Patch(JSON_PATCH, [{"op": "copy", "from": "/data/k", "path": "/data/x"}], {"k": "v", "x": "v"}),
    "with a charset": Patch(MERGE + "; charset=utf-8", {"data": {"x": "1"}}, {"k": "v", "x": "1"}),
}


@pytest.mark.parametrize("case", PATCHES.values(), ids=PATCHES.keys())
async def test_patches(client: Client, case: Patch) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    reply = await client.patch(A, case.body, type=case.type)
    assert (reply.status, reply.json["data"]) == (200, case.data)
    assert (await client.get(A)).json == reply.json


async def test_status_and_the_rest_are_written_apart(client: Client) -> None:
    made = (await client.post(INSTANCES, {**instance("vm"), "status": {"phase": "Lies"}})).json
    assert "status" not in made
    place = f"{INSTANCES}/vm"
    status = {**made, "spec": {"x": 1}, "status": {"phase": "Running"}}
    put = (await client.put(f"{place}/status", status)).json
    assert (put["spec"], put["status"]) == (made["spec"], {"phase": "Running"})
    patched = (await client.patch(f"{place}/status", {"status": {"node": "n"}, "spec": {"x": 1}})).json
    assert (patched["spec"], patched["status"]) == (made["spec"], {"phase": "Running", "node": "n"})
    whole = (await client.patch(place, {"spec": {"x": 1}, "status": {"phase": "Lies"}})).json
    assert (whole["spec"]["x"], whole["status"]) == (1, {"phase": "Running", "node": "n"})
    assert (await client.get(f"{place}/status")).json == whole
    assert (await client.delete(f"{place}/status")).status == 405


async def test_finalize_replaces_a_namespaces_finalizers_and_nothing_else(client: Client) -> None:
    spaces = "/api/v1/namespaces"
    made = (await client.post(spaces, {"metadata": {"name": "x"}, "spec": {"finalizers": ["kubernetes"]}})).json
    reply = await client.put(f"{spaces}/x/finalize", {**made, "metadata": {**made["metadata"], "labels": {"a": "b"}},
                                                      "spec": {"finalizers": []}})
    assert (reply.status, reply.json["spec"]) == (200, {"finalizers": []})
    assert "labels" not in reply.json["metadata"]
    assert (await client.put(f"{spaces}/x/finalize", made)).status == 409
    assert (await client.get(f"{spaces}/x/finalize")).status == 405
    assert (await client.get(f"{spaces}/x/status")).json["metadata"]["name"] == "x"


async def test_an_object_with_a_finalizer_lingers_until_it_is_let_go(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a", finalizers=["x.io/y"]))
    reply = await client.delete(A)
    assert (reply.status, reply.json["kind"]) == (200, "ConfigMap")
    assert reply.json["metadata"]["deletionTimestamp"]
    again = await client.delete(A)
    assert again.json == reply.json
    last = await client.patch(A, {"metadata": {"finalizers": None}})
    assert last.status == 200
    assert (await client.get(A)).status == 404


PROPAGATION: dict[str, tuple[Any, dict[str, str], list[str]]] = {
    "foreground in the body": ({"propagationPolicy": "Foreground"}, {}, ["foregroundDeletion"]),
    "foreground in the query": (None, {"propagationPolicy": "Foreground"}, ["foregroundDeletion"]),
    "orphans, the old way": ({"orphanDependents": True}, {}, ["orphan"]),
    "orphans, the old way in the query": (None, {"orphanDependents": "true"}, ["orphan"]),
}


@pytest.mark.parametrize(("body", "query", "finalizers"), PROPAGATION.values(), ids=PROPAGATION.keys())
async def test_propagation_is_handed_on(client: Client, body: Any, query: dict[str, str], finalizers: list[str]) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    assert (await client.delete(A, body, **query)).json["metadata"]["finalizers"] == finalizers


async def test_a_deleted_claim_is_shown_as_it_was(client: Client) -> None:
    await client.post(CLAIMS, claim("c"))
    reply = await client.delete(f"{CLAIMS}/c")
    assert (reply.status, reply.json["kind"]) == (200, "ResourceClaim")


async def test_a_collection_goes_by_its_selectors(client: Client) -> None:
    for name, tier in (("a", "x"), ("b", "y"), ("c", "x")):
        await client.post(CONFIG_MAPS, config_map(name, labels={"tier": tier}))
    reply = await client.delete(CONFIG_MAPS, labelSelector="tier=x")
    assert [item["metadata"]["name"] for item in reply.json["items"]] == ["a", "c"]
    assert [item["metadata"]["name"] for item in (await client.get(CONFIG_MAPS)).json["items"]] == ["b"]


# -- lists

async def test_a_list_in_parts_is_of_one_moment(client: Client) -> None:
    for name in "abcd":
        await client.post(CONFIG_MAPS, config_map(name))
    first = (await client.get(CONFIG_MAPS, limit="2")).json
    assert (first["kind"], first["apiVersion"]) == ("ConfigMapList", "v1")
    assert first["metadata"]["remainingItemCount"] == 2
    await client.delete(f"{CONFIG_MAPS}/c")
    await client.post(CONFIG_MAPS, config_map("bb"))
    second = (await client.get(CONFIG_MAPS, limit="2", **{"continue": first["metadata"]["continue"]})).json
    assert [item["metadata"]["name"] for item in first["items"] + second["items"]] == ["a", "b", "c", "d"]
    assert second["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}
    exact = (await client.get(CONFIG_MAPS, resourceVersion=first["metadata"]["resourceVersion"],
                              resourceVersionMatch="Exact")).json
    assert [item["metadata"]["name"] for item in exact["items"]] == ["a", "b", "c", "d"]
    newer = (await client.get(CONFIG_MAPS, resourceVersion=first["metadata"]["resourceVersion"],
                              resourceVersionMatch="NotOlderThan")).json
    assert [item["metadata"]["name"] for item in newer["items"]] == ["a", "b", "bb", "d"]


async def test_a_list_from_too_long_ago_has_expired(client: Client) -> None:
    for name in "ab":
        await client.post(CONFIG_MAPS, config_map(name))
    token = (await client.get(CONFIG_MAPS, limit="1")).json["metadata"]["continue"]
    for number in range(200):
        await client.patch(A, {"data": {"k": str(number)}})
    reply = await client.get(CONFIG_MAPS, limit="1", **{"continue": token})
    assert (reply.status, reply.json["reason"]) == (410, "Expired")
    reply = await client.get(CONFIG_MAPS, resourceVersion="1", resourceVersionMatch="Exact")
    assert (reply.status, reply.json["reason"]) == (410, "Expired")


async def test_lists_select_by_namespace_label_and_field(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a", labels={"tier": "x"}))
    await client.post("/api/v1/namespaces/other/configmaps", config_map("b"))

    async def names(path: str, **query: str) -> list[str]:
        return [item["metadata"]["name"] for item in (await client.get(path, **query)).json["items"]]

    assert await names("/api/v1/configmaps") == ["a", "b"]
    assert await names(CONFIG_MAPS) == ["a"]
    assert await names("/api/v1/configmaps", labelSelector="tier in (x,y)") == ["a"]
    assert await names("/api/v1/configmaps", labelSelector="!tier") == ["b"]
    assert await names("/api/v1/configmaps", fieldSelector="metadata.name=b") == ["b"]


# -- forms

async def test_yaml_in_and_out(client: Client) -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, annotations: {day: 2026-01-01, empty: }}\ndata: {k: 'yes'}\n"
    made = await client.post(CONFIG_MAPS, text, type="application/yaml", accept="application/yaml")
    assert (made.status, made.header("content-type")) == (201, ["application/yaml"])
    assert yaml.safe_load(made.data)["metadata"]["annotations"] == {"day": "2026-01-01", "empty": ""}
    assert (await client.get(A)).json["data"] == {"k": "yes"}


ACCEPTS = {
    "nothing": ("", 200, "application/json"),
    "anything": ("*/*", 200, "application/json"),
    "protobuf or JSON": ("application/vnd.kubernetes.protobuf,application/json", 200, "application/json"),
    "a table nobody knows, or JSON": ("application/json;as=Chair;v=v1;g=meta.k8s.io,application/json", 200, "application/json"),
    "protobuf alone": ("application/vnd.kubernetes.protobuf", 406, "application/json"),
    "text": ("text/html", 406, "application/json"),
    "yaml": ("application/yaml", 200, "application/yaml"),
}


@pytest.mark.parametrize(("accept", "status", "type"), ACCEPTS.values(), ids=ACCEPTS.keys())
async def test_accept(client: Client, accept: str, status: int, type: str) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    reply = await client.get(A, accept=accept)
    assert (reply.status, reply.header("content-type")) == (status, [type])


async def test_metadata_alone(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    items = (await client.get(CONFIG_MAPS, accept=accept)).json
    assert items["kind"] == "PartialObjectMetadataList"
    assert set(items["items"][0]) == {"kind", "apiVersion", "metadata"}


async def test_a_pretty_answer_has_lines(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    pretty, plain = await client.get(A, pretty="true"), await client.get(A)
    assert pretty.data.count(b"\n") > 5
    assert pretty.json == plain.json


# -- who

async def test_people_without_a_name_are_sent_away_and_others_need_a_right(client: Client, store: Memory) -> None:
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


async def test_readiness_can_be_withheld(store: Memory) -> None:
    client = Client(App(store, ready=lambda: False), token="")
    assert (await client.get("/readyz")).status == 503
    assert (await client.get("/livez")).data == b"ok"


# -- what is served

async def test_discovery_lists_every_kind_in_every_version(client: Client) -> None:
    for kind in kinds.ALL:
        for version in kind.versions:
            root = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
            resources = {entry["name"]: entry for entry in (await client.get(root)).json["resources"]}
            assert resources[kind.plural]["kind"] == kind.kind
            assert (f"{kind.plural}/status" in resources) == kind.has_status
    groups = (await client.get("/apis")).json["groups"]
    assert next(group for group in groups if group["name"] == "resource.k8s.io")["preferredVersion"]["version"] == "v1"
    assert [each["version"] for each in (await client.get("/apis/resource.k8s.io")).json["versions"]] == [
        "v1", "v1beta2", "v1beta1", "v1alpha3"]
    assert (await client.get("/api")).json["versions"] == ["v1"]


@pytest.mark.parametrize("version", ["v2", "v2beta1"])
async def test_aggregated_discovery(client: Client, version: str) -> None:
    accept = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList,application/json"
    core = await client.get("/api", accept=accept)
    assert core.header("content-type") == [accept.partition(",")[0]]
    assert core.json["apiVersion"] == f"apidiscovery.k8s.io/{version}"
    named = (await client.get("/apis", accept=accept)).json
    seen = {
        (group["metadata"].get("name", ""), each["version"], resource["resource"])
        for group in core.json["items"] + named["items"] for each in group["versions"] for resource in each["resources"]
        if resource["verbs"]  # else there are actions on it alone
    }
    assert seen == {(kind.group, each, kind.plural) for kind in kinds.ALL for each in kind.versions}


async def test_openapi_tells_clients_that_fields_are_checked_here(client: Client) -> None:
    index = (await client.get("/openapi/v3")).json["paths"]
    assert "apis/resource.k8s.io/v1beta1" in index
    for entry in index.values():
        document = (await client.get(entry["serverRelativeURL"])).json
        for route in document["paths"].values():
            for operation in route.values():
                assert operation["x-kubernetes-group-version-kind"]["kind"]
                assert "fieldValidation" in [parameter["name"] for parameter in operation["parameters"]]
    assert (await client.get("/openapi/v3/apis/nope/v1")).status == 404
    assert (await client.get("/openapi/v2")).status == 404


EXPLAINED = {  # where the document of a kind is, its schema, and a way into it -> what stands at its end
    "a device of a machine": ("apis/kubevirt.io/v1", "io.kubevirt.v1.VirtualMachineInstance",
                              "spec domain devices gpus [] claim request", {"type": "string"}),
    "a list of a template": ("apis/kubevirt.io/v1", "io.kubevirt.v1.VirtualMachine",
                             "spec template spec networks [] multus default", {"type": "boolean"}),
    "a name whose type nobody knows": ("apis/kubevirt.io/v1", "io.kubevirt.v1.VirtualMachineInstance", "spec affinity",
                                       {"x-kubernetes-preserve-unknown-fields": True}),
    "a flavor": ("apis/outfitter.dev/v1alpha1", "dev.outfitter.v1alpha1.Flavor", "spec vcpus", {"type": "integer"}),
    "a claim": ("apis/resource.k8s.io/v1", "io.k8s.resource.v1.ResourceClaim",
                "spec devices requests [] exactly deviceClassName", {"type": "string"}),
    "a claim of an older version": ("apis/resource.k8s.io/v1beta1", "io.k8s.resource.v1beta1.ResourceClaim",
                                    "spec devices requests [] exactly", None),
    "a container": ("api/v1", "core.v1.Pod", "spec containers [] resources claims [] request", {"type": "string"}),
}


@pytest.mark.parametrize("name", EXPLAINED)
async def test_openapi_names_the_fields_that_are_known(client: Client, name: str) -> None:
    """kubectl explain shows them."""
    place, schema, way, end = EXPLAINED[name]
    found = (await client.get(f"/openapi/v3/{place}")).json["components"]["schemas"][schema]
    assert found["x-kubernetes-preserve-unknown-fields"], "others are allowed"
    for word in way.split():
        found = found["items"] if word == "[]" else found["properties"].get(word)
    assert found == end


async def test_version(client: Client) -> None:
    version = (await client.get("/version")).json
    assert (version["major"], version["minor"]) == ("1", "36")
    assert version["gitVersion"].startswith("v1.36.0+outfitter")
