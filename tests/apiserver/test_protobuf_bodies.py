"""Bodies in Kubernetes' protobuf, encoded by Google's library: what is stored is what the same object in JSON would have
stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfitter.api.protobuf import encoder, message_fields
from outfitter.api.protobuf.message_fields import KINDS, MessageField
from outfitter.api.protobuf.wire_format import tagged
from outfitter.apiserver import negotiate
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.errors import BadRequest, TooLarge, Unsupported
from outfitter.store.memory import Memory
from tests.api.protobuf import kubernetes_messages
from tests.api.protobuf.kubernetes_messages import envelope, table_pool
from tests.apiserver.asgi import CONFIG_MAPS, Client

PROTOBUF = "application/vnd.kubernetes.protobuf"
ACCEPT = f"{PROTOBUF},application/json"  # what client-go sends
DRA = "resource.k8s.io"
SLICES = f"/apis/{DRA}/v1/resourceslices"
META = {"metadata": {"name": "a"}}
DEVICES = [{"name": "gpu-0", "attributes": {
    "index": {"int": 0}, "uuid": {"string": "gpu-18db0e85"}, "empty": {"string": ""}, "driverVersion": {"version": "1.0.0"},
    "shared": {"bool": False}, "negative": {"int": -3}}, "capacity": {"memory": {"value": "80Gi"}},
    "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-11-18T09:00:00Z"}]}]
SLICE: dict[str, Any] = {**META, "spec": {"driver": "gpu.example.com", "nodeName": "node-1", "devices": DEVICES,
                          "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1}}}
CLAIM = {**META, "spec": {"devices": {
    "requests": [{"name": "gpu", "exactly": {
        "deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 1}}],
    "config": [{"requests": ["gpu"], "opaque": {"driver": "gpu.example.com", "parameters": {
        "apiVersion": "gpu.resource.example.com/v1alpha1", "kind": "GpuConfig", "sharing": {"count": [1, 2.5, None]}}}}]}}}
POD = {**META, "spec": {
    "containers": [{"name": "c", "image": "i", "resources": {"limits": {"example.com/resource": "1", "cpu": "500m"}},
                    "livenessProbe": {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 3},
                    "readinessProbe": {"tcpSocket": {"port": "http"}},
                    "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}],
    "tolerations": [{"key": "t", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}],
    "automountServiceAccountToken": False, "volumes": [{"name": "e", "emptyDir": {}}]}}
EVENT = {"metadata": {"name": "a", "namespace": "default"},
         "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
         "reason": "Prepared", "message": "claim prepared", "type": "Normal", "count": 1, "source": {"component": "driver"},
         "firstTimestamp": "2026-11-18T09:00:00Z", "lastTimestamp": "2026-11-18T09:00:00Z",
         "eventTime": "2026-11-18T09:00:00.000001Z"}
LEASE = {**META, "spec": {"holderIdentity": "", "leaseDurationSeconds": 15, "leaseTransitions": 0,
                          "renewTime": "2026-11-18T09:00:00.123456Z"}}
NODE = {**META, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}, "status": {
    "capacity": {"cpu": "4"}, "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-18T09:00:00Z"}]}}
CLASS = {**META, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}}
Sent = tuple[str, str, str, dict[str, Any]]  # path, apiVersion, kind and object
OBJECTS: dict[str, Sent] = {
    "a slice": (SLICES, f"{DRA}/v1", "ResourceSlice", SLICE),
    "a slice in v1beta1": (f"/apis/{DRA}/v1beta1/resourceslices", f"{DRA}/v1beta1", "ResourceSlice", {**SLICE, "spec": {
        **SLICE["spec"], "devices": [{"name": "gpu-0", "basic": {"attributes": {"index": {"int": 0}}}}]}}),
    "a claim with parameters": (f"/apis/{DRA}/v1/namespaces/default/resourceclaims", f"{DRA}/v1", "ResourceClaim", CLAIM),
    "a template": (f"/apis/{DRA}/v1beta2/namespaces/default/resourceclaimtemplates", f"{DRA}/v1beta2", "ResourceClaimTemplate",
                   {**META, "spec": {"metadata": {"labels": {"a": "b"}}, "spec": CLAIM["spec"]}}),
    "a class": (f"/apis/{DRA}/v1/deviceclasses", f"{DRA}/v1", "DeviceClass", CLASS),
    "a taint rule": (f"/apis/{DRA}/v1beta2/devicetaintrules", f"{DRA}/v1beta2", "DeviceTaintRule", {**META, "spec": {
        "deviceSelector": {"driver": "gpu.example.com"}, "taint": {"key": "k", "effect": "NoExecute"}}}),
    "a pod": ("/api/v1/namespaces/default/pods", "v1", "Pod", POD),
    "a node": ("/api/v1/nodes", "v1", "Node", NODE),
    "an event": ("/api/v1/namespaces/default/events", "v1", "Event", EVENT),
    "a lease": ("/apis/coordination.k8s.io/v1/namespaces/default/leases", "coordination.k8s.io/v1", "Lease", LEASE),
    "a secret": ("/api/v1/namespaces/default/secrets", "v1", "Secret", {
        **META, "type": "Opaque", "data": {"k": "AAECAw==", "empty": ""}, "immutable": False}),
    "a config map": (CONFIG_MAPS, "v1", "ConfigMap", {**META, "data": {"k": "v", "empty": ""}, "binaryData": {"b": "/w=="}}),
    "a service account": ("/api/v1/namespaces/default/serviceaccounts", "v1", "ServiceAccount", {
        **META, "secrets": [{"name": "s"}], "automountServiceAccountToken": False}),
    "a namespace": ("/api/v1/namespaces", "v1", "Namespace", {"metadata": {"name": "a", "labels": {"k": "v"}}}),
}


def encoded(api_version: str, kind: str, value: dict[str, Any], *, zeros: bool = True) -> bytes:
    return envelope(api_version, kind, kubernetes_messages.encode(table_pool(), api_version, kind, value, zeros=zeros))


@pytest.fixture
def ruled_client(ruled: Memory) -> Client:
    return Client(App(ruled, tokens={"admin": User("admin", (MASTERS,))}))


@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "no zeros"])
@pytest.mark.parametrize("case", OBJECTS.values(), ids=OBJECTS.keys())
async def test_an_object_is_that_of_its_json(ruled_client: Client, case: Sent, zeros: bool) -> None:
    path, api_version, kind, value = case
    as_json = await ruled_client.post(path, {"apiVersion": api_version, "kind": kind, **value}, dryRun="All")
    assert as_json.status == 201, as_json.json
    body = encoded(api_version, kind, value, zeros=zeros)
    as_protobuf = await ruled_client.post(path, body, type=PROTOBUF, accept=ACCEPT)
    assert (as_protobuf.status, as_protobuf.header("content-type")) == (201, ["application/json"]), as_protobuf.json
    assert as_protobuf.header("warning") == as_json.header("warning")
    assert content(as_protobuf.json) == content(as_json.json)


def content(obj: dict[str, Any]) -> Any:
    meta = {key: value for key, value in obj["metadata"].items() if key not in ("uid", "resourceVersion")}
    return without_empty({**obj, "metadata": meta})


def without_empty(value: Any) -> Any:
    """Go writes what is empty as well, `status: {}`."""
    if not isinstance(value, dict):
        return value
    return {key: inner for key, each in value.items() if (inner := without_empty(each)) != {} or key == "emptyDir"}


async def test_a_driver_replaces_and_deletes_its_slice(ruled_client: Client, ruled: Memory) -> None:
    made = (await ruled_client.post(SLICES, encoded(f"{DRA}/v1", "ResourceSlice", SLICE), type=PROTOBUF)).json
    changed = {**made, "spec": {**made["spec"], "devices": []}}
    reply = await ruled_client.put(f"{SLICES}/a", encoded(f"{DRA}/v1", "ResourceSlice", changed), type=PROTOBUF)
    assert reply.status == 200
    assert "devices" not in reply.json["spec"] or not reply.json["spec"]["devices"]
    stale = encoded(f"{DRA}/v1", "ResourceSlice", made)
    assert (await ruled_client.put(f"{SLICES}/a", stale, type=PROTOBUF)).status == 409

    async def delete(uid: str) -> int:  # each group has its own DeleteOptions
        raw = kubernetes_messages.encode(table_pool(), "v1", "DeleteOptions", {"preconditions": {"uid": uid}}, zeros=False)
        return (await ruled_client.delete(f"{SLICES}/a", envelope(f"{DRA}/v1", "DeleteOptions", raw), type=PROTOBUF)).status

    assert await delete("another") == 409
    assert await delete(made["metadata"]["uid"]) == 200
    assert (await ruled_client.get(f"{SLICES}/a")).status == 404


async def test_an_object_of_another_kind_is_refused(client: Client, store: Memory) -> None:
    reply = await client.post(SLICES, encoded("v1", "ConfigMap", META), type=PROTOBUF)
    assert (reply.status, store.revision) == (400, 0)
    assert "ConfigMap" in reply.json["message"]


META_A = b"\x0a\x03\x0a\x01a"
RAW: dict[str, tuple[bytes, dict[str, Any]]] = {
    "an unknown varint": (META_A + b"\x98\x06\x05", {}),
    "an unknown text": (META_A + b"\x9a\x06\x01x", {}),
    "unknown numbers of a fixed size": (META_A + b"\x99\x06" + b"8" * 8 + b"\x9d\x06" + b"4" * 4, {}),
    "a message in two halves": (META_A + b"\x0a\x05\x1a\x03foo", {}),
    "the last of two scalars": (META_A + b"\x20\x01\x20\x00", {"immutable": False}),
    "a map entry without a value": (META_A + b"\x12\x03\x0a\x01k", {"data": {"k": ""}}),
    "a map entry with a field of a later version": (META_A + b"\x12\x08\x0a\x01k\x12\x01v\x18\x01", {"data": {"k": "v"}}),
}


@pytest.mark.parametrize("case", RAW.values(), ids=RAW.keys())
def test_what_go_reads_as_well(case: tuple[bytes, dict[str, Any]]) -> None:
    raw, expected = case
    read = negotiate.read(envelope("v1", "ConfigMap", raw), PROTOBUF).value
    assert read.pop("metadata")["name"] == "a"
    assert read == {"apiVersion": "v1", "kind": "ConfigMap", **expected}


def test_packed_and_single_numbers() -> None:
    for ints in (b"\x30\x01\x30\x02", b"\x32\x02\x01\x02"):
        device = b"\x0a\x01d\x12" + bytes([5 + len(ints)]) + b"\x0a\x01i\x12" + bytes([len(ints)]) + ints
        raw = b"\x12" + bytes([2 + len(device)]) + b"\x32" + bytes([len(device)]) + device
        value = negotiate.read(envelope(f"{DRA}/v1", "ResourceSlice", raw), PROTOBUF).value
        assert value["spec"] == {"devices": [{"name": "d", "attributes": {"i": {"ints": [1, 2]}}}]}


def managed_fields(text: bytes) -> bytes:
    return tagged(1, tagged(17, tagged(7, tagged(1, text))))


DAMAGED: dict[str, tuple[bytes, str]] = {
    "a number for a text": (b"\x0a\x02\x08\x01", "damaged"),
    "a text for a number": (META_A + b"\x22\x01x", "damaged"),
    "a fixed number for a text": (b"\x0a\x05\x0dabcd", "damaged"),
    "a group": (META_A + b"\x0b\x0c", "damaged"),
    "field number 0": (b"\x00\x01", "damaged"),
    "a length beyond the end": (b"\x0a\x7f", "ends early"),
    "a number without an end": (b"\x20" + b"\xff" * 11, "damaged"),
    "a text that is not UTF-8": (tagged(1, tagged(1, b"\xff")), "damaged"),
    "a time beyond the calendar": (tagged(1, tagged(8, b"\x08" + b"\xff" * 7 + b"\x7f")), "damaged"),
    "a key of 5000 letters": (META_A + tagged(2, tagged(1, b"k" * 5000)), "4096 characters"),
    "managed fields that are not JSON": (managed_fields(b"{"), "not JSON"),
    "managed fields nested 200 deep": (managed_fields(b'{"a":' * 200 + b"1" + b"}" * 200), "nested deeper"),
}


@pytest.mark.parametrize("case", DAMAGED.values(), ids=DAMAGED.keys())
async def test_damaged_bodies(client: Client, store: Memory, case: tuple[bytes, str]) -> None:
    reply = await client.post(CONFIG_MAPS, envelope("v1", "ConfigMap", case[0]), type=PROTOBUF)
    assert (reply.status, reply.json["kind"], store.revision) == (400, "Status", 0)
    assert case[1] in reply.json["message"]


async def test_many_values_within_json_are_refused(client: Client, store: Memory) -> None:
    some = managed_fields(b"[" + b"1," * 40_000 + b"1]")
    reply = await client.post(CONFIG_MAPS, envelope("v1", "ConfigMap", some + some), type=PROTOBUF)
    assert (reply.status, store.revision) == (413, 0)


def values(api_version: str, field: MessageField, depth: int) -> st.SearchStrategy[Any]:
    """What JSON may have in a field; a zero only where it differs from absence."""
    keep_zero = field.form != ""
    simple: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "": lambda: st.text(max_size=4) if keep_zero else st.text(min_size=1, max_size=4),
        "int": lambda: st.integers(-2**63, 2**63 - 1).filter(lambda number: keep_zero or number != 0),
        "bool": lambda: st.booleans() if keep_zero else st.just(True),
        "bytes": lambda: st.sampled_from(["", "AAEC", "/w=="] if keep_zero else ["AAEC"]),
        "Time": lambda: st.sampled_from(["2026-11-18T09:00:00Z", "1960-01-01T00:00:01Z", "0900-01-01T00:00:00Z"]),
        "MicroTime": lambda: st.sampled_from(["2026-11-18T09:00:00.000001Z", "1960-01-01T00:00:01.500000Z"]),
        "Quantity": lambda: st.sampled_from(["0", "1", "500m", "80Gi"]),
        "IntOrString": lambda: st.integers(-1, 70_000) | st.text(max_size=3),
        "RawExtension": lambda: st.dictionaries(st.text(max_size=2), st.none() | st.integers(-9, 9) | st.text(max_size=2)),
        "FieldsV1": lambda: st.dictionaries(st.text(max_size=2), st.just({})),
    }
    content = simple[field.type]() if field.type in simple else messages(api_version, field.type, depth - 1)
    if field.form == "[]":
        return st.lists(content, min_size=1, max_size=2)
    if field.form == "{}":
        return st.dictionaries(st.text(max_size=3), content, min_size=1, max_size=2)
    return content


@st.composite
def messages(draw: st.DrawFn, api_version: str, name: str, depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    fields = message_fields.fields(api_version, name)
    some = draw(st.lists(st.sampled_from(fields), max_size=4, unique_by=lambda field: field.number)) if depth > 0 else []
    for field in some:
        if field.form == "!":
            inner = draw(messages(api_version, field.type, depth))
            out.update({key: value for key, value in inner.items() if key not in out})
        else:
            out[field.name] = draw(values(api_version, field, depth))
    return out


@st.composite
def objects(draw: st.DrawFn) -> tuple[str, str, dict[str, Any]]:
    api_version = draw(st.sampled_from(list(KINDS)))
    kind = draw(st.sampled_from(KINDS[api_version]))
    return api_version, kind, draw(messages(api_version, kind, 6))


@settings(max_examples=40)
@given(case=objects(), zeros=st.booleans())
def test_any_object_is_read_as_it_was_encoded(case: tuple[str, str, dict[str, Any]], zeros: bool) -> None:
    api_version, kind, value = case
    body = encoded(api_version, kind, value, zeros=zeros)
    assert negotiate.read(body, PROTOBUF).value == {"apiVersion": api_version, "kind": kind, **value}
    ours = envelope(api_version, kind, encoder.encode(api_version, kind, value))
    assert negotiate.read(ours, PROTOBUF).value == {"apiVersion": api_version, "kind": kind, **value}


@settings(max_examples=40)
@given(case=objects(), data=st.data())
def test_any_damage_is_a_body_or_a_refusal(case: tuple[str, str, dict[str, Any]], data: st.DataObject) -> None:
    body = bytearray(encoded(*case))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(4, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        value = negotiate.read(bytes(body[:data.draw(st.integers(4, len(body)))]), PROTOBUF).value
    except (BadRequest, TooLarge, Unsupported):
        return
    json.dumps(value)


@pytest.mark.parts
def test_bodies_of_the_published_definitions() -> None:
    folder: Path | None = kubernetes_messages.published_folder()
    if folder is None:
        pytest.skip("needs the published protobuf files of Kubernetes; scripts/kubelet-protos fetches them")
    pool = kubernetes_messages.published_pool(folder)
    for _, api_version, kind, value in OBJECTS.values():
        raw = kubernetes_messages.encode(pool, api_version, kind, value, zeros=True)
        read = negotiate.read(envelope(api_version, kind, raw, pool), PROTOBUF).value
        assert without_empty(read) == without_empty({"apiVersion": api_version, "kind": kind, **value})
