"""Requests that would keep the event loop: refused with the bound that they exceed, or answered as quickly as others. What is
asserted is the answer; `bench.stall` measures the time."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.validate import bounds
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.store.memory import Memory
from tests.apiserver.asgi import CLAIMS, CONFIG_MAPS, INSTANCES, JSON_PATCH, MERGE, STRATEGIC, TABLE, Client, config_map

PODS = CONFIG_MAPS.replace("configmaps", "pods")
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
YAML = "application/yaml"


@pytest.fixture
def client(ruled: Memory) -> Client:
    return Client(App(ruled, tokens={"admin": User("admin", (MASTERS,))}))


class Long(NamedTuple):
    """An object with a list of `most` items at a field, and one with an item more."""

    path: str
    field: str
    most: int
    spec: Any  # makes the spec, or None: metadata
    message: str = "Too many: {count}: must have at most {most} items"


KUBEVIRTS = "{field} list exceeds the {most} element limit in length"


def request(name: str = "r", **more: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": "c", **more}}


def claim(*requests: Object, **more: Any) -> Object:
    return {"devices": {"requests": list(requests), **more}}


def published(**fields: Any) -> Object:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    return {"driver": "d.example.com", "nodeName": "n", "pool": pool, **fields}


def devices(count: int, **more: Any) -> list[Object]:
    return [{"name": f"d{n}", **more} for n in range(count)]


def pod(**more: Any) -> Object:
    return {"containers": [{"name": "c"}], **more}


LISTS = {
    "networks of a VMI": Long(INSTANCES, "spec.networks", 256, lambda n: {
        "networks": [{"name": f"n{i}", "multus": {"networkName": "x"}} for i in range(n)],
        "domain": {"devices": {"interfaces": [{"name": f"n{i}"} for i in range(min(n, 256))]}}}, KUBEVIRTS),
    "interfaces of a VMI": Long(INSTANCES, "spec.domain.devices.interfaces", 256, lambda n: {
        "networks": [{"name": f"n{i}", "multus": {"networkName": "x"}} for i in range(min(n, 256))],
        "domain": {"devices": {"interfaces": [{"name": f"n{i}"} for i in range(n)]}}}, KUBEVIRTS),
    "disks of a VMI": Long(INSTANCES, "spec.domain.devices.disks", 256, lambda n: {
        "volumes": [{"name": f"d{i}", "emptyDisk": {}} for i in range(min(n, 256))],
        "domain": {"devices": {"disks": [{"name": f"d{i}"} for i in range(n)]}}}, KUBEVIRTS),
    "volumes of a VMI": Long(INSTANCES, "spec.volumes", 256, lambda n: {
        "volumes": [{"name": f"d{i}", "emptyDisk": {}} for i in range(n)], "domain": {}}, KUBEVIRTS),
    "containers of a pod": Long(PODS, "spec.containers", 256, lambda n: {"containers": devices(n)}),
    "tolerations of a pod": Long(PODS, "spec.tolerations", 256, lambda n: pod(
        tolerations=[{"key": f"k{i}"} for i in range(n)])),
    "requests of a claim": Long(CLAIMS, "spec.devices.requests", 32, lambda n: claim(*(request(f"r{i}") for i in range(n)))),
    "constraints of a claim": Long(CLAIMS, "spec.devices.constraints", 32, lambda n: claim(
        request(), constraints=[{"matchAttribute": "a.b/c"}] * n)),
    "alternatives of a request": Long(CLAIMS, "spec.devices.requests[0].firstAvailable", 8, lambda n: claim(
        {"name": "r", "firstAvailable": [{"name": f"s{i}", "deviceClassName": "c"} for i in range(n)]})),
    "selectors of a request": Long(CLAIMS, "spec.devices.requests[0].exactly.selectors", 32, lambda n: claim(
        request(selectors=[{"cel": {"expression": "true"}}] * n))),
    "tolerations of a request": Long(CLAIMS, "spec.devices.requests[0].exactly.tolerations", 16, lambda n: claim(
        request(tolerations=[{"key": f"k{i}"} for i in range(n)]))),
    "selectors of a class": Long(CLASSES, "spec.selectors", 32, lambda n: {"selectors": [{"cel": {"expression": "true"}}] * n}),
    "devices of a slice": Long(SLICES, "spec.devices", 128, lambda n: published(devices=devices(n))),
    "devices of a slice, with taints": Long(SLICES, "spec.devices", 64, lambda n: published(
        devices=devices(n, taints=[{"key": "k", "effect": "NoSchedule"}]))),
    "attributes of a device": Long(SLICES, "spec.devices[0].attributes", 32, lambda n: published(
        devices=devices(1, attributes={f"a{i}": {"int": i} for i in range(n - 1)}, capacity={"m": {"value": "1"}}))),
    "taints of a device": Long(SLICES, "spec.devices[0].taints", 16, lambda n: published(
        devices=devices(1, taints=[{"key": f"k{i}", "effect": "NoSchedule"} for i in range(n)]))),
    "sets of counters": Long(SLICES, "spec.sharedCounters", 8, lambda n: published(
        sharedCounters=[{"name": f"s{i}", "counters": {"c": {"value": "1"}}} for i in range(n)])),
    "extra specs of a flavor": Long("/apis/outfitter.dev/v1alpha1/flavors", "spec.extraSpecs", 256, lambda n: {
        "vcpus": 1, "memory": "1Gi", "extraSpecs": {f"hw:k{i}": "v" for i in range(n)}}),
    "taints of a node": Long("/api/v1/nodes", "spec.taints", 256, lambda n: {
        "taints": [{"key": f"k{i}", "effect": "NoSchedule"} for i in range(n)]}),
    "labels": Long(CONFIG_MAPS, "metadata.labels", 1000, None),
    "finalizers": Long(CONFIG_MAPS, "metadata.finalizers", 1000, None),
}


def _object(long: Long, count: int) -> Object:
    if long.spec is not None:
        return {"metadata": {"name": f"a{count}"}, "spec": long.spec(count)}
    items = {f"example.com/{n}": "v" for n in range(count)}
    return {"metadata": {"name": f"a{count}", long.field.rpartition(".")[2]: items if "labels" in long.field else list(items)}}


@pytest.mark.parametrize("long", LISTS.values(), ids=LISTS.keys())
async def test_lists_have_bounds(client: Client, long: Long) -> None:
    assert (await client.post(long.path, _object(long, long.most))).status == 201
    reply = await client.post(long.path, _object(long, long.most + 1))
    assert (reply.status, reply.json["reason"]) == (422, "Invalid")
    assert [(cause["field"], cause["message"]) for cause in reply.json["details"]["causes"]] == [
        (long.field, long.message.format(field=long.field, most=long.most, count=long.most + 1))]


async def test_selectors_have_a_bound_together(client: Client) -> None:
    texts = [" || ".join([f'device.driver == "{n}"'] * 100) for n in range(8)]
    spec = claim(request(selectors=[{"cel": {"expression": text}} for text in texts]))
    reply = await client.post(CLAIMS, {"metadata": {"name": "a"}, "spec": spec})
    assert reply.status == 422
    assert f"may have {bounds.SELECTOR_TEXT} bytes together" in reply.json["message"]
    spec["devices"]["requests"][0]["exactly"]["selectors"][1:] = [{"cel": {"expression": texts[0]}}] * 7
    assert (await client.post(CLAIMS, {"metadata": {"name": "a"}, "spec": spec})).status == 201  # each counts once


async def test_opaque_parameters_have_a_bound(client: Client) -> None:
    spec = claim(request(), config=[{"opaque": {"driver": "a.b", "parameters": {"a": "x" * bounds.OPAQUE_BYTES}}}])
    reply = await client.post(CLAIMS, {"metadata": {"name": "a"}, "spec": spec})
    assert (reply.status, reply.json["details"]["causes"][0]["field"]) == (422, "spec.devices.config[0].opaque.parameters")


async def test_a_list_that_was_too_long_may_stay(client: Client, ruled: Memory) -> None:
    """An object of an earlier version can be changed elsewhere, and shortened."""
    rules, ruled.rules = ruled.rules, type(ruled)().rules
    long = {"metadata": {"name": "a", "namespace": "default", "finalizers": [f"example.com/{n}" for n in range(2000)]}}
    await ruled.create(kinds.CONFIG_MAP, long)
    ruled.rules = rules
    assert (await client.patch(f"{CONFIG_MAPS}/a", {"data": {"a": "b"}}, type=MERGE)).status == 200
    shorter = {"metadata": {"finalizers": long["metadata"]["finalizers"][:10]}}
    assert (await client.patch(f"{CONFIG_MAPS}/a", shorter, type=MERGE)).status == 200
    assert (await client.patch(f"{CONFIG_MAPS}/a", long, type=MERGE)).status == 422


async def test_a_network_that_nests_deeply_is_no_json(client: Client) -> None:
    networks = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions"
    reply = await client.post(networks, {"metadata": {"name": "a"}, "spec": {"config": "[" * 100_000}})
    assert (reply.status, reply.json["details"]["causes"][0]["field"]) == (422, "spec.config")


async def test_only_some_of_many_mistakes_are_reported(client: Client) -> None:
    wrong = await client.post(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {f"k{n}": n for n in range(20_000)}})
    assert (wrong.status, len(wrong.json["details"]["causes"])) == (422, 100)
    unknown = await client.post(CONFIG_MAPS, {**config_map("a"), **{f"x{n}": n for n in range(20_000)}})
    assert unknown.status == 201
    assert 0 < len(unknown.header("warning")) <= 50
    twice = b'{"metadata":{"name":"b"},"data":{' + b",".join(b'"%d":"v"' % (n // 2) for n in range(20_000)) + b"}}"
    strict = await client.post(CONFIG_MAPS, twice, fieldValidation="Strict")
    assert strict.status == 400
    assert strict.json["message"].count("duplicate field") == 100


class Patch(NamedTuple):
    body: Any
    type: str = JSON_PATCH
    status: int = 200
    says: str = ""


LARGE = {"metadata": {"name": "large"}, "data": {f"k{n:05}": "v" * 20 for n in range(10_000)}}
FIRST = "/data/k00001"
PATCHES = {
    "thousands of tests and a copy": Patch(
        [{"op": "copy", "from": FIRST, "path": "/data/x"}] + [{"op": "test", "path": FIRST, "value": "v" * 20}] * 5_000),
    "moves of everything": Patch([{"op": "move", "from": "/data", "path": "/binaryData"},
                                  {"op": "move", "from": "/binaryData", "path": "/data"}] * 2_500),
    "thousands of small copies": Patch([{"op": "copy", "from": FIRST, "path": "/data/x"}] * 9_000),
    "copies of everything": Patch([{"op": "copy", "from": "/data", "path": f"/d{n}"} for n in range(20)], status=413,
                                  says="may add 3145728 bytes"),
    "copies that double": Patch([{"op": "add", "path": "/l", "value": ["x" * 100]}] + [
        {"op": "copy", "from": "/l", "path": "/l/-"}] * 40, status=413, says="may add 3145728 bytes"),
    "insertions at the front": Patch([{"op": "add", "path": "/l", "value": [0] * 8_000}] + [
        {"op": "add", "path": "/l/0", "value": 0}] * 9_000, status=413, says="replace the list instead"),
    "more operations than allowed": Patch([{"op": "test", "path": FIRST, "value": "v" * 20}] * 10_001, status=413,
                                          says="maximum operations in a JSON patch is 10000, got 10001"),
    "a nest that grows": Patch([{"op": "add", "path": "/l", "value": 1}] + [
        {"op": "add", "path": "/m", "value": {}}, {"op": "move", "from": "/l", "path": "/m/a"},
        {"op": "move", "from": "/m", "path": "/l"}] * 2_000, status=400, says="nested deeper"),
    "a nest that grows and is copied": Patch([{"op": "add", "path": "/l", "value": 1}] + [
        {"op": "add", "path": "/m", "value": {}}, {"op": "move", "from": "/l", "path": "/m/a"},
        {"op": "move", "from": "/m", "path": "/l"}] * 2_000 + [{"op": "copy", "from": "/l", "path": "/x"}], status=400,
        says="nests too deeply"),
    "an index of many digits": Patch([{"op": "add", "path": "/l", "value": [0]}, {
        "op": "test", "path": "/l/" + "9" * 5_000, "value": 0}], status=422, says="the list has"),
    "a merge patch of many values": Patch({"data": {f"m{n}": "v" for n in range(55_000)}}, MERGE, 413, "60000 values"),
}


@pytest.mark.parametrize("case", PATCHES.values(), ids=PATCHES.keys())
async def test_patches_of_a_large_object(client: Client, case: Patch) -> None:
    assert (await client.post(CONFIG_MAPS, LARGE)).status == 201
    reply = await client.patch(f"{CONFIG_MAPS}/large", case.body, type=case.type)
    assert reply.status == case.status, reply.data[:500]
    assert case.says in reply.data.decode()


async def test_a_strategic_patch_of_long_lists(client: Client) -> None:
    have = [f"example.com/{n}" for n in range(1000)]
    await client.post(CONFIG_MAPS, {"metadata": {"name": "a", "finalizers": have}})
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": have[::2], "$setElementOrder/finalizers": have[::-1],
                          "finalizers": ["example.com/new"]}}
    reply = await client.patch(f"{CONFIG_MAPS}/a", patch, type=STRATEGIC)
    assert reply.json["metadata"]["finalizers"] == [*have[1::2][::-1], "example.com/new"]
    many = {"metadata": {"finalizers": [f"example.com/more-{n}" for n in range(20_000)]}}
    reply = await client.patch(f"{CONFIG_MAPS}/a", many, type=STRATEGIC)
    assert (reply.status, reply.json["details"]["causes"][0]["field"]) == (422, "metadata.finalizers")


QUERIES = {
    "a label selector that is long": {"labelSelector": "a," * 30_000},
    "a label selector of many brackets": {"labelSelector": "(" * 8_000 + "," * 8_000},
    "many label requirements": {"labelSelector": ",".join(f"!{n}" for n in range(101))},
    "a field selector that is long": {"fieldSelector": ",".join(["metadata.name!=a"] * 3_700)},
    "many field requirements": {"fieldSelector": ",".join(f"metadata.name!={n}" for n in range(101))},
    "a continue token that is long": {"limit": "1", "continue": "e" * 60_000},
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
async def test_selectors_have_bounds(client: Client, query: dict[str, str]) -> None:
    reply = await client.get(CONFIG_MAPS, query=query)
    assert (reply.status, reply.json["reason"]) == (400, "BadRequest")
    assert len(reply.data) < 2_000


async def test_a_requirement_that_is_repeated_counts_once(client: Client) -> None:
    await client.post(CONFIG_MAPS, {"metadata": {"name": "a", "labels": {"x": "y"}}})
    for text in (",".join(["x"] * 5_000), "x in (" + ",".join(["y"] * 5_000) + ")"):
        assert len((await client.get(CONFIG_MAPS, labelSelector=text)).json["items"]) == 1


@pytest.mark.parametrize("accept", [TABLE, YAML])
async def test_long_lists_in_other_forms(client: Client, accept: str) -> None:
    """They are converted beside the event loop, with the same result."""
    for number in range(100):
        await client.post(CONFIG_MAPS, {"metadata": {"name": f"a{number:03}"}, "data": {"a": "x" * 2_000}})
    reply = await client.get(CONFIG_MAPS, accept=accept)
    assert reply.status == 200
    assert reply.data.count(b"a099") >= 1


async def test_a_long_collection_is_deleted(client: Client) -> None:
    for number in range(450):
        await client.post(CONFIG_MAPS, {"metadata": {"name": f"a{number:03}"}})
    reply = await client.call("DELETE", CONFIG_MAPS)
    assert (reply.status, len(reply.json["items"])) == (200, 450)
    assert (await client.get(CONFIG_MAPS)).json["items"] == []


async def test_what_is_in_quotes_is_no_value(client: Client) -> None:
    data = {f"k{n}": ',\\",' * 3 for n in range(25_000)}
    body = json.dumps({"metadata": {"name": "a"}, "data": data}).encode()
    assert (await client.post(CONFIG_MAPS, body)).status == 201
