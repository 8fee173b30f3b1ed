"""Whatever is thrown at the server gets a clear answer, and the server stays up."""

from __future__ import annotations

import json
import logging
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfitter.api import write_request
from outfitter.api.kinds import Object
from outfitter.apiserver import negotiate, protobuf
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.errors import BadRequest, TooLarge, Unsupported
from outfitter.store.memory import Memory, OpenRules
from tests.apiserver.asgi import CONFIG_MAPS, JSON_PATCH, MERGE, Client, config_map


class Body(NamedTuple):
    data: bytes
    status: int = 400
    says: str = ""
    type: str = "application/json"


YAML = "application/yaml"
LAUGHS = b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    f"{here}: &{here} [{','.join([f'*{before}'] * 10)}]\n".encode() for before, here in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = b"a: &a {b: 1, c: 2}\n" + b"".join(
    f"{here}: &{here} {{<<: [{','.join([f'*{before}'] * 10)}]}}\n".encode()
    for before, here in zip("abcdefghijk", "bcdefghijkl", strict=True)
)
BODIES = {
    "nothing": Body(b"", says="not JSON"),
    "half an object": Body(b'{"metadata":', says="not JSON"),
    "no JSON": Body(b"hello", says="not JSON"),
    "two values": Body(b"{} {}", says="not JSON"),
    "a number that is none": Body(b'{"a": NaN}', says="not JSON"),
    "a list": Body(b"[1]", says="a list"),
    "null": Body(b"null", says="null"),
    "a text": Body(b'"x"', says="a string"),
    "bad UTF-8": Body(b'{"metadata":{"name":"\xff\xfe"}}', says="UTF-8"),
    "bad UTF-8 in the middle of nowhere": Body(b"\xff\xfe\x00", says="not JSON"),
    "half a surrogate": Body(b'{"metadata":{"name":"\\ud800"}}', says="not JSON"),
    "ten thousand levels": Body(b'{"a":' * 10_000 + b"1" + b"}" * 10_000, says="nested deeper"),
    "ten thousand lists": Body(b"[" * 10_000 + b"]" * 10_000, says="nested deeper"),
    "two hundred levels": Body(b'{"a":' * 200 + b"1" + b"}" * 200, says="nested deeper"),
    "metadata that is a number": Body(b'{"metadata":3}', says="metadata: must be an object, it is a number"),
    "a name that is a number": Body(b'{"metadata":{"name":3}}', says="metadata.name: must be a string, it is a number"),
    "labels that are a list": Body(b'{"metadata":{"name":"a","labels":[]}}', says="metadata.labels: must be an object"),
    "a label that is a number": Body(b'{"metadata":{"name":"a","labels":{"x":1}}}', says="metadata.labels.x: must be a string"),
    "finalizers that are a text": Body(b'{"metadata":{"name":"a","finalizers":"x"}}', says="metadata.finalizers"),
    "owners that are texts": Body(b'{"metadata":{"name":"a","ownerReferences":["x"]}}', says="metadata.ownerReferences"),
    "too much": Body(b'{"x":"' + b"x" * negotiate.MAX_BODY + b'"}', 413, "too large"),
    "a form": Body(b"a=b", 415, "accepted media types", "application/x-www-form-urlencoded"),
    "protobuf of a kind that is not read": Body(
        protobuf.MAGIC + b"\n\x0b\n\x02v1\x12\x05Thing", 415, "Thing", negotiate.PROTOBUF),
    "protobuf without its mark": Body(b"k9s\x00", 400, "protobuf", negotiate.PROTOBUF),
    "half of a protobuf": Body(protobuf.MAGIC + b"\n\xff", 400, "protobuf", negotiate.PROTOBUF),
    "bad YAML": Body(b"a: [", says="not YAML", type=YAML),
    "YAML with a tab": Body(b"a:\n\t- b", says="not YAML", type=YAML),
    "YAML that is not UTF-8": Body(b"a: \xff\xfe", says="not YAML", type=YAML),
    "YAML of an object in Python": Body(b"!!python/object/apply:os.system ['true']", says="not YAML", type=YAML),
    "YAML with infinity": Body(b"a: .inf", says="is not a JSON number", type=YAML),
    "YAML with a set": Body(b"a: !!set {b, c}", says="not YAML", type=YAML),
    "YAML with a list as a key": Body(b"? [a]\n: b", says="not YAML", type=YAML),
    "two YAML documents": Body(b"a: b\n---\nc: d", says="not YAML", type=YAML),
    "a hundred thousand YAML levels": Body(b"- " * 100_000, says="nested deeper", type=YAML),
    "a hundred thousand YAML brackets": Body(b"[" * 100_000, says="nested deeper", type=YAML),
    "YAML inside itself": Body(b"a: &a {b: *a}", says="nested deeper", type=YAML),
    "a billion laughs": Body(LAUGHS, 413, "aliases", YAML),
    "YAML merge keys, eleven levels": Body(MERGED, 413, "merge keys", YAML),
    "a long list for a YAML merge key": Body(b"a: &a {b: 1}\nc: {<<: [" + b"*a," * 60_000 + b"*a]}", 413, "merge keys", YAML),
    "a YAML merge key of a text": Body(b"a: {<<: b}", says="a merge key needs a mapping", type=YAML),
    "a YAML alias of nothing": Body(b"a: *b", says="undefined alias", type=YAML),
    "an integer that is none": Body(b"a: !!int b", says="not a value of", type=YAML),
    "a million JSON values": Body(b'{"a":[' + b"1," * 1_000_000 + b"1]}", 413, "60000 values"),
    "a long key over many that repeat": Body(
        b'{"' + b"k" * 600_000 + b'":{' + b",".join(b'"%d":1' % (n // 2) for n in range(10_000)) + b"}}", 400, "4096"),
    "a million protobuf fields": Body(
        protobuf.MAGIC + b"\n\x0f\n\x02v1\x12\tConfigMap\x12\x80\x89\x7a" + b" \x00" * 1_000_000, 413, "60000 values",
        negotiate.PROTOBUF),
    "a million YAML values": Body(b"[" + b"a," * 1_000_000 + b"]", 413, "values", YAML),
}


@pytest.mark.parametrize("case", BODIES.values(), ids=BODIES.keys())
async def test_bad_bodies(client: Client, store: Memory, case: Body) -> None:
    reply = await client.post(CONFIG_MAPS, case.data or b" ", type=case.type)
    assert (reply.status, reply.json["kind"]) == (case.status, "Status")
    assert case.says in reply.json["message"]
    assert store.revision == 0
    assert (await client.post(CONFIG_MAPS, config_map("a"))).status == 201


@pytest.mark.parametrize("verb", ["PUT", "PATCH", "DELETE"])
async def test_bad_bodies_of_other_verbs(client: Client, verb: str) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    for body in (b"{", b"[" * 10_000, b'{"metadata":{"labels":[]}}', b"3", b"\xff"):
        reply = await client.call(verb, f"{CONFIG_MAPS}/a", body, type=MERGE if verb == "PATCH" else "application/json")
        if verb == "DELETE" and body.startswith(b'{"'):
            continue
        assert (reply.status, reply.json["reason"]) == (400, "BadRequest"), body
    assert (await client.get(CONFIG_MAPS, labelSelector="x=y")).status in (200, 404)


async def test_a_body_without_end_is_not_read_to_its_end(client: Client) -> None:
    for heads in ({"content-length": "99999999999"}, {}):
        pieces = 0

        async def receive() -> Object:
            nonlocal pieces
            pieces += 1
            assert pieces < 100, "it read on"
            return {"type": "http.request", "body": b"x" * 65_536, "more_body": True}

        sent: list[Object] = []

        async def send(message: Object, sent: list[Object] = sent) -> None:
            sent.append(message)

        await client.app(client.scope("POST", CONFIG_MAPS, heads, {}), receive, send)
        assert sent[0]["status"] == 413
        assert (b"connection", b"close") in sent[0]["headers"]
        assert pieces == (0 if heads else 49)


async def test_a_client_that_leaves_in_the_middle(client: Client, store: Memory) -> None:
    async def receive() -> Object:
        return {"type": "http.disconnect"}

    sent: list[Object] = []

    async def send(message: Object) -> None:
        sent.append(message)

    await client.app(client.scope("POST", CONFIG_MAPS, {}, {}), receive, send)
    assert sent[0]["status"] == 400
    assert store.revision == 0


PATHS = ["", "/", "//", "/api//configmaps", "/api/v1/", "/api/v1/namespaces//configmaps/a", "/apis///", "/%ff%fe", "/%00",
         "/api/v1/namespaces/a/b/c/d/e", "/api/v1/namespaces/default/configmaps/a/b/c", "/../../etc/passwd", "/openapi/v3/",
         "/api/v1/namespaces/default/configmaps/%2e%2e%2f", "/api/v1/watch/configmaps", "/apis/resource.k8s.io/v1/namespaces/x"]


@pytest.mark.parametrize("path", PATHS)
async def test_odd_paths(client: Client, path: str) -> None:
    reply = await client.get(path)
    assert reply.status in (200, 400, 404)
    assert reply.json["kind"] if reply.status != 200 else reply.data


@pytest.mark.parametrize("query", ["%ff", "limit=%ff", "labelSelector=%00", "a" * 5000, "&".join(["a=b"] * 500), "limit=1e9",
                                   "limit=99999999999999999999", "continue=%F0%9F", "fieldSelector=,,,", "watch=%zz"])
async def test_odd_queries(client: Client, query: str) -> None:
    assert (await client.get(f"{CONFIG_MAPS}?timeoutSeconds=0&{query}".replace("watch=%zz", ""))).status in (200, 400)


VALUES: list[Any] = [5, -1, 1.5, True, "", "All", "x", "9" * 5000, [], ["All"], [5], [None], [["All"]], {}, {"uid": 5},
                     {"uid": [1]}, {"resourceVersion": 3}, 10**18, 10**30, -10**30, 2**63, 1e308]
OPTIONS = ["dryRun", "gracePeriodSeconds", "propagationPolicy", "preconditions", "orphanDependents", "kind", "apiVersion",
           "ignoreStoreReadErrorWithClusterBreakingPotential"]


@pytest.mark.parametrize("option", OPTIONS)
async def test_odd_values_of_delete_options(client: Client, option: str) -> None:
    for value in VALUES:
        for path in (f"{CONFIG_MAPS}/a", CONFIG_MAPS):
            await client.post(CONFIG_MAPS, config_map("a"))
            reply = await client.delete(path, {option: value})
            assert reply.status in (200, 400, 409, 422), (value, reply.data)
            text = value if isinstance(value, str) else json.dumps(value)
            assert (await client.delete(path, query={option: text})).status in (200, 400, 404, 422), value


@pytest.mark.parametrize("field", ["dryRun", "preconditions.uid", "gracePeriodSeconds"])
async def test_a_delete_option_of_a_wrong_type_is_named(client: Client, field: str) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    value: Any = 5 if field != "gracePeriodSeconds" else "5"
    outer, _, inner = field.partition(".")
    reply = await client.delete(f"{CONFIG_MAPS}/a", {outer: {inner: value} if inner else value})
    assert (reply.status, reply.json["reason"]) == (400, "BadRequest")
    assert f"DeleteOptions cannot be read: {field}: must be" in reply.json["message"]


LENGTHS = {"9" * 5000: 413, "0" * 5000: 201, "0" * 5000 + "9": 201, "-1": 400, "+1": 400, "1.5": 400, "\xb2": 400,
           "ten": 400, "": 400}


@pytest.mark.parametrize("length", LENGTHS, ids=lambda length: length[-4:])
async def test_odd_lengths_of_a_body(client: Client, length: str) -> None:
    reply = await client.post(CONFIG_MAPS, config_map("a"), headers={"content-length": length})
    assert reply.status == LENGTHS[length]


async def test_a_patch_cannot_blow_an_object_up(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    doubling = [{"op": "add", "path": "/data/a", "value": {"x": "y" * 100}}] + [
        {"op": "copy", "from": "/data", "path": f"/data/c{number}"} for number in range(40)]
    reply = await client.patch(f"{CONFIG_MAPS}/a", doubling, type=JSON_PATCH)
    assert reply.status == 413
    deep: Any = 1
    for _ in range(100):
        deep = {"a": deep}
    assert (await client.patch(f"{CONFIG_MAPS}/a", {"data": deep})).status == 200
    nest = [{"op": "move", "from": "/data", "path": "/tmp"}, {"op": "add", "path": "/data", "value": deep},
            {"op": "move", "from": "/tmp", "path": "/data" + "/a" * 99}]
    assert (await client.patch(f"{CONFIG_MAPS}/a", nest, type=JSON_PATCH)).json["message"] == (
        "the object is nested deeper than 128 levels")
    large = {"data": {"x": "x" * (2 << 20)}}
    assert (await client.patch(f"{CONFIG_MAPS}/a", large)).status == 200
    assert (await client.patch(f"{CONFIG_MAPS}/a", {"data": {"y": "x" * (2 << 20)}})).status == 413


class Broken(OpenRules):
    def admit(self, change: write_request.WriteRequest) -> Object:
        raise ZeroDivisionError("secret thing")


async def test_unexpected_error_is_logged_with_an_id_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(App(Memory(rules=Broken()), tokens={"admin": User("admin", (MASTERS,))}))
    with caplog.at_level(logging.ERROR):
        reply = await client.post(CONFIG_MAPS, config_map("a"))
    assert (reply.status, reply.json["reason"], reply.json["code"]) == (500, "InternalError", 500)
    assert b"secret" not in reply.data
    assert b"Traceback" not in reply.data
    id_ = reply.json["message"].rsplit(" ", 1)[1]
    assert id_ in caplog.text
    assert "secret thing" in caplog.text
    assert (await client.get(CONFIG_MAPS)).status == 200


async def test_warnings_cannot_break_out_of_their_header(client: Client) -> None:
    reply = await client.post(CONFIG_MAPS, {**config_map("a"), 'x\r\nset-cookie: "y"\\é': 1})
    assert reply.status == 201
    [warning] = reply.header("warning")
    assert "\r" not in warning
    assert "\n" not in warning
    assert warning.isascii()
    many = await client.post(CONFIG_MAPS, {**config_map("b"), **{f"f{number}" * 10: 1 for number in range(1000)}})
    assert sum(len(each) for each in many.header("warning")) < 8000


@settings(max_examples=150)
@given(data=st.binary(max_size=200), type_=st.sampled_from(["application/json", YAML, negotiate.PROTOBUF]))
def test_any_bytes_are_a_body_or_a_refusal(data: bytes, type_: str) -> None:
    for body in (data, protobuf.MAGIC + data):
        try:
            value = negotiate.read(body, type_).value
        except (BadRequest, TooLarge, Unsupported):
            continue
        json.dumps(value)


NAMES = ["metadata", "labels", "name", "finalizers", "spec", "status", "x"]


@settings(max_examples=100)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
))
async def test_any_value_is_an_object_or_a_refusal(value: Any) -> None:
    client = Client(App(Memory(), tokens={"admin": User("admin", (MASTERS,))}))
    reply = await client.post(CONFIG_MAPS, value)
    assert reply.status in (201, 400, 422)
    assert (await client.get(CONFIG_MAPS, labelSelector="a=b")).status == 200
