"""The verbs, as kubectl and clients use them; what comes back is what kube-apiserver gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from outfitter.api import kinds
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.store.memory import Memory
from outfitter.store.sqlite import SQLite
from outfitter.store.watch_cache import encode as store_encode
from tests.apiserver.asgi import (
    CLAIMS,
    CONFIG_MAPS,
    INSTANCES,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    A,
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


async def test_sqlite_backend_serves_stored_objects(tmp_path: Path) -> None:
    for life in range(2):
        store = SQLite(tmp_path, kinds.ALL)
        client = Client(App(store, tokens={"admin": User("admin", (MASTERS,))}))
        if not life:
            before = (await client.post(CONFIG_MAPS, config_map("a"))).json
        else:
            listed = {key: value for key, value in before.items() if key not in ("apiVersion", "kind")}
            assert (await client.get(CONFIG_MAPS)).json["items"] == [listed]
            async with client.watch(CONFIG_MAPS) as stream:
                assert (await stream.next())["object"] == before
                await client.patch(f"{CONFIG_MAPS}/a", {"data": {"k": "w"}})
                assert (await stream.next())["object"]["data"] == {"k": "w"}
        await store.close()


async def test_reads_in_the_stored_version_are_the_stored_bytes(client: Client, store: Memory) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    record = store.record(kinds.CONFIG_MAP, "a", "default")
    assert (await client.get(f"{CONFIG_MAPS}/a")).data == record.data
    listed = (await client.get(CONFIG_MAPS)).data
    assert record.data.removeprefix(b'{"apiVersion":"v1","kind":"ConfigMap",') in listed


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


async def test_object_with_a_finalizer_stays_until_it_is_removed(client: Client) -> None:
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
async def test_propagation_policy_is_passed_on(client: Client, body: Any, query: dict[str, str], finalizers: list[str]) -> None:
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
    "an unknown table, or JSON": ("application/json;as=Chair;v=v1;g=meta.k8s.io,application/json", 200, "application/json"),
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


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_items_of_built_in_kinds_have_no_type(client: Client, version: str) -> None:
    """As kube-apiserver: the list has it once. Items of custom resources have their own."""
    claims = CLAIMS.replace("/v1/", f"/{version}/")
    await client.post(CLAIMS, claim("c"))
    await client.post(INSTANCES, instance("i"))
    listed = (await client.get(claims)).json
    assert (listed["kind"], listed["apiVersion"]) == ("ResourceClaimList", f"resource.k8s.io/{version}")
    assert [item.keys() & {"kind", "apiVersion"} for item in listed["items"]] == [set()]
    assert (await client.get(f"{claims}/c")).json["kind"] == "ResourceClaim"
    instances = (await client.get(INSTANCES)).json["items"]
    assert [(item["apiVersion"], item["kind"]) for item in instances] == [("kubevirt.io/v1", "VirtualMachineInstance")]


async def test_items_that_do_not_begin_with_their_type(client: Client, store: Memory) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    stored = store.record(kinds.CONFIG_MAP, "a", "default")
    obj = stored.object()
    stored.data = store_encode({key: obj[key] for key in reversed(obj)})  # as an earlier version stored it
    item, = (await client.get(CONFIG_MAPS)).json["items"]
    assert item == {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}


METADATA_WITH_STATUS = {
    "namespaces": ("/api/v1/namespaces", {"metadata": {"name": "x"}}, True),
    "nodes": ("/api/v1/nodes", {"metadata": {"name": "x"}}, True),
    "pods": ("/api/v1/namespaces/default/pods", {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c"}]}}, True),
    "resourceclaims": (CLAIMS, claim("x"), False),
    "instances": (INSTANCES, instance("x"), False),
}


@pytest.mark.parametrize("name", METADATA_WITH_STATUS)
async def test_metadata_in_a_patch_of_status(client: Client, name: str) -> None:
    path, obj, written = METADATA_WITH_STATUS[name]
    await client.post(path, obj)
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "1"}]
    change = {"metadata": {"annotations": {"a": "b"}, "labels": {"l": "m"}, "ownerReferences": owners},
              "status": {"phase": "P"}}
    patched = await client.patch(f"{path}/x/status", change)
    assert (patched.status, patched.json["status"]["phase"]) == (200, "P")
    meta = patched.json["metadata"]
    assert (meta.get("annotations"), meta.get("labels", {}).get("l")) == (({"a": "b"}, "m") if written else (None, None))
    assert ("ownerReferences" in meta) == (written and name != "pods")
    read = (await client.get(f"{path}/x")).json
    replaced = await client.put(f"{path}/x/status", {**read, "metadata": {**read["metadata"], "annotations": {"a": "c"}}})
    assert replaced.json["metadata"].get("annotations") == ({"a": "c"} if written else None)
