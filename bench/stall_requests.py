"""The requests that `bench.stall` sends: small ones that can become much work, one table for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

JSON, YAML = "application/json", "application/yaml"
JSON_PATCH, MERGE, STRATEGIC = (f"application/{kind}+json" for kind in ("json-patch", "merge-patch", "strategic-merge-patch"))
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
CONFIG_MAPS, PODS = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/pods"
DRA = "/apis/resource.k8s.io/v1"
CLAIMS = f"{DRA}/namespaces/default/resourceclaims"
VMIS = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances"
EVENTS = "/api/v1/namespaces/default/events"
LISTED = 5_000  # objects in the long list


@dataclass(frozen=True, slots=True)
class NastyRequest:
    """`setup`: requests that are sent before it, and not measured."""

    name: str
    method: str
    path: str
    body: bytes = b""
    type: str = JSON
    accept: str = JSON
    anonymous: bool = False
    setup: tuple[NastyRequest, ...] = ()


def post(name: str, path: str, body: Any, **more: Any) -> NastyRequest:
    return NastyRequest(name, "POST", path, _bytes(body), **more)


def patch(name: str, path: str, body: Any, how: str, **more: Any) -> NastyRequest:
    return NastyRequest(name, "PATCH", path, _bytes(body), type=how, **more)


def get(name: str, path: str, **more: Any) -> NastyRequest:
    return NastyRequest(name, "GET", path, **more)


def _bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def _named(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **fields}


def _new(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"generateName": "nasty-"}, **fields}


# -- YAML

HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: a-}\n"


def merge_keys(levels: int) -> bytes:
    lines = ["x0: &x0 {a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7, h: 8, i: 9, j: 0}"]
    lines += [f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 10)}]}}" for n in range(1, levels)]
    return (HEAD + "\n".join(lines) + "\n").encode()


def aliases(levels: int) -> bytes:
    lines = ["x0: &x0 [l, l, l, l, l, l, l, l, l, l]"]
    lines += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]" for n in range(1, levels)]
    return (HEAD + "\n".join(lines) + "\n").encode()


def yaml_requests() -> Iterator[NastyRequest]:
    def one(name: str, text: str | bytes) -> NastyRequest:
        return post(f"YAML: {name}", CONFIG_MAPS, text.encode() if isinstance(text, str) else text, type=YAML)

    yield one("merge keys, 8 levels", merge_keys(8))
    yield one("one long merge list", HEAD + "x: &x {a: 1, b: 2, c: 3}\ny: {<<: [" + "*x, " * 60_000 + "*x]}\n")
    yield one("aliases, 9 levels", aliases(9))
    yield one("an alias in its own anchor", HEAD + "x: &x [*x]\n")
    yield one("3 MB of short values", HEAD + "data: [" + "a, " * 1_000_000 + "]\n")
    yield one("3 MB of short keys", HEAD + "data:\n" + "".join(f" k{n}: a\n" for n in range(220_000)))
    yield one("3 MB of anchors", HEAD + "data: [" + ", ".join(f"&a{n} b" for n in range(230_000)) + "]\n")
    yield one("3 MB of documents", "---\n" * 750_000)
    yield one("3 MB in one text", HEAD + "data:\n  a: " + "x" * 3_000_000)
    yield one("a long quoted text", HEAD + 'data:\n  a: "' + "\\u0041" * 500_000 + '"')
    yield one("nested 1 MB deep", HEAD + "data: " + "[" * 1_000_000)
    yield one("nested by indent", HEAD + "".join(f"{' ' * n}a{n}:\n" for n in range(2_000)))
    yield one("100,000 keys the same", HEAD + "data:\n" + " a: b\n" * 100_000)
    for kind, number in (("hexadecimal", "0x" + "f" * 4_000), ("binary", "0b" + "1" * 60_000), ("octal", "0o" + "7" * 60_000),
                         ("decimal", "9" * 60_000), ("float", "1." + "9" * 60_000), ("exponent", "1e99999"),
                         ("whole float", "1e300"), ("sexagesimal", "1" + ":59" * 20_000), ("of a key", "? 0x" + "f" * 4_000)):
        yield one(f"a long number, {kind}", f"{HEAD}spec:\n  a: {number}\n" if kind != "of a key" else f"{HEAD}{number}\n: 1\n")
    yield one("underscores in a number", f"{HEAD}spec:\n  a: 1{'_' * 1_000_000}a\n")
    yield one("a timestamp", f"{HEAD}spec:\n  a: 2001-01-01T00:00:00.{'0' * 100_000}Z\n")


# -- JSON

def json_requests() -> Iterator[NastyRequest]:
    def one(name: str, body: Any) -> NastyRequest:
        return post(f"JSON: {name}", CONFIG_MAPS, body)

    head = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"a-"},'
    long = b'"' + b"k" * 600_000 + b'"'
    twice = b",".join(b'"%d":1' % (n // 2) for n in range(40_000))
    yield one("a key of 600 KB over 20,000 keys twice", head + b'"data":{' + long + b":{" + twice + b"}}}")
    yield one("a key of 4,000 bytes over 20,000 keys twice", head + b'"data":{"' + b"k" * 4000 + b'":{' + twice + b"}}}")
    yield one("a key of 4,000 bytes over 20,000 unknown fields", head + b'"data":{},"' + b"k" * 4000 + b'":{' + twice + b"}}")
    yield one("a key of 600 KB, 4 times", head + b'"data":{' + b",".join([long + b':"v"'] * 4) + b"}}")
    yield one("500,000 keys the same", head + b'"data":{' + b'"a":1,' * 499_999 + b'"a":1}}')
    yield one("150,000 keys twice", head + b'"data":{' + b",".join(b'"%d":1' % (n % 150_000) for n in range(300_000)) + b"}}")
    yield one("1,500,000 numbers", head + b'"data":[' + b"1," * 1_499_900 + b"1]}")
    yield one("1,000,000 empty lists", head + b'"data":[' + b"[]," * 999_000 + b"[]]}")
    yield one("750,000 empty objects", head + b'"data":[' + b"{}," * 955_000 + b"{}]}")
    yield one("a million levels", head + b'"data":' + b"[" * 1_000_000)
    yield one("a number of 1,000,000 digits", head + b'"data":{"a":' + b"9" * 1_000_000 + b"}}")
    yield one("a fraction of 1,000,000 digits", head + b'"data":{"a":0.' + b"9" * 1_000_000 + b"}}")
    yield one("3 MB in one text", head + b'"data":{"a":"' + b"x" * 3_000_000 + b'"}}')
    yield one("3 MB of escapes", head + b'"data":{"a":"' + b"\\u0041" * 500_000 + b'"}}')
    yield one("55,000 unknown fields", {**_new(), **dict.fromkeys(map(str, range(55_000)), 1)})
    yield one("55,000 texts", {**_new(), "data": {f"k{n}": "v" for n in range(55_000)}})
    metadata: dict[str, dict[str, Any]] = {
        "150,000 labels": {"labels": {f"l{n}": "v" for n in range(150_000)}},
        "55,000 labels": {"labels": {f"l{n}": "v" for n in range(55_000)}},
        "a label of 1 MB": {"labels": {"a" * 1_000_000 + "-": "-" * 1_000_000}},
        "annotations of 2.5 MB": {"annotations": {f"a{n}": "x" * 100 for n in range(20_000)}},
        "40,000 annotations": {"annotations": {f"{n}": "x" for n in range(40_000)}},
        "20,000 owners": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": f"p{n}", "uid": f"u{n}"} for n in range(20_000)]},
        "20,000 managed fields": {"managedFields": [{"manager": f"m{n}"} for n in range(20_000)]},
        "55,000 finalizers": {"finalizers": [f"example.com/{n}" for n in range(55_000)]},
    }
    for name, fields in metadata.items():
        yield one(name, {"metadata": {"generateName": "a-", **fields}})
    yield one("100,000 wrong values", {**_new(), "data": {f"k{n}": n for n in range(100_000)}})


# -- patches

LARGE = post("a large object", CONFIG_MAPS, _named("large", data={f"k{n:05}": "v" * 20 for n in range(15_000)}))
SMALL = post("a small object", CONFIG_MAPS, _named("small", data={"a": "x" * 1000}))
FINALIZED = post("an object with finalizers", CONFIG_MAPS, {"metadata": {
    "name": "finalized", "finalizers": [f"example.com/f{n}" for n in range(1_000)]}})  # as many as there may be


def _pod(name: str, containers: int, **spec: Any) -> dict[str, Any]:
    listed = [{"name": f"c{n}", "image": "i"} for n in range(containers)]
    return (_named(name) if name else _new()) | {"spec": {"containers": listed, **spec}}


CROWDED = post("a pod of many containers", PODS, _pod("crowded", 256, nodeName="elsewhere"))  # as many as there may be


def patch_requests() -> Iterator[NastyRequest]:
    large = f"{CONFIG_MAPS}/large"

    def steps(name: str, operations: list[Any], path: str = large, setup: NastyRequest = LARGE) -> NastyRequest:
        return patch(f"JSON patch: {name}", path, operations, JSON_PATCH, setup=(setup,))

    yield steps("5,000 tests and a copy", [{"op": "copy", "from": "/data/k00001", "path": "/data/x"}] + [
        {"op": "test", "path": "/data/k00001", "value": "v" * 20}] * 5_000)
    yield steps("10,000 moves", [{"op": "move", "from": f"/data/k{n:05}", "path": f"/data/m{n}"} for n in range(10_000)])
    yield steps("moves of everything", [{"op": "move", "from": "/data", "path": "/binaryData"},
                                        {"op": "move", "from": "/binaryData", "path": "/data"}] * 2_500)
    yield steps("copies of everything", [{"op": "copy", "from": "/data", "path": f"/d{n}"} for n in range(10_000)])
    yield steps("copies that double", [{"op": "add", "path": "/l", "value": ["x" * 100]}] + [
        {"op": "copy", "from": "/l", "path": "/l/-"}] * 40, f"{CONFIG_MAPS}/small", SMALL)
    yield steps("10,000 small copies", [{"op": "copy", "from": "/data/k00001", "path": "/data/x"}] * 10_000)
    yield steps("10,000 replacements", [{"op": "replace", "path": "/data/k00001", "value": "w"}] * 10_000)
    yield steps("insertions at the front", [{"op": "add", "path": "/l", "value": [0] * 8_000}] + [
        {"op": "add", "path": "/l/0", "value": 0}] * 9_999)
    yield steps("tests of everything", [{"op": "test", "path": "/l", "value": 0}] + [
        {"op": "test", "path": "/data", "value": {"k": "v"}}] * 9_000)
    yield steps("long paths", [{"op": "test", "path": "/a" * 40_000, "value": 1}] * 30)
    yield steps("50,000 operations", [{"op": "test", "path": "", "value": 1}] * 50_000)
    yield patch("merge patch: 200,000 fields", f"{CONFIG_MAPS}/small", {"data": {f"k{n}": "v" for n in range(150_000)}}, MERGE,
                setup=(SMALL,))
    yield patch("merge patch: 100 levels, 50,000 times", f"{CONFIG_MAPS}/small", b'{"a":' * 100 + b"1" + b"}" * 100, MERGE,
                setup=(SMALL,))
    yield patch("strategic: 20,000 finalizers", f"{CONFIG_MAPS}/finalized", {"metadata": {
        "finalizers": [f"example.com/g{n}" for n in range(20_000)]}}, STRATEGIC, setup=(FINALIZED,))
    yield patch("strategic: finalizers deleted and ordered", f"{CONFIG_MAPS}/finalized", {"metadata": {
        "$deleteFromPrimitiveList/finalizers": [f"example.com/f{n}" for n in range(0, 20_000, 2)],
        "$setElementOrder/finalizers": [f"example.com/f{19_999 - n}" for n in range(20_000)]}}, STRATEGIC, setup=(FINALIZED,))
    yield patch("strategic: 10,000 containers", f"{PODS}/crowded", {"spec": {
        "containers": [{"name": f"c{n}", "image": "j"} for n in range(10_000)]}}, STRATEGIC, setup=(CROWDED,))
    yield patch("strategic: 10,000 other containers, ordered", f"{PODS}/crowded", {"spec": {
        "containers": [{"name": f"d{n}", "image": "j"} for n in range(10_000)],
        "$setElementOrder/containers": [{"name": f"d{9_999 - n}"} for n in range(10_000)]}}, STRATEGIC, setup=(CROWDED,))
    yield patch("strategic: $retainKeys", f"{CONFIG_MAPS}/large", {"data": {
        "$retainKeys": [f"k{n:05}" for n in range(14_999, -1, -1)]}}, STRATEGIC, setup=(LARGE,))


# -- objects

def _vmi(**spec: Any) -> dict[str, Any]:
    devices = spec.pop("devices", {})
    return _new(spec={"domain": {"devices": devices}, **spec})


def object_requests() -> Iterator[NastyRequest]:
    yield post("VMI: 20,000 networks", VMIS, _vmi(networks=[{"name": f"n{n}", "pod": {}} for n in range(20_000)]))
    yield post("VMI: 20,000 interfaces", VMIS, _vmi(devices={"interfaces": [{"name": f"n{n}"} for n in range(20_000)]}))
    yield post("VMI: 15,000 disks", VMIS, _vmi(devices={"disks": [{"name": f"d{n}"} for n in range(15_000)]},
                                               volumes=[{"name": f"v{n}", "emptyDisk": {}} for n in range(15_000)]))
    yield post("VMI: 20,000 volumes", VMIS, _vmi(volumes=[{"name": f"d{n}", "emptyDisk": {}} for n in range(20_000)]))
    yield post("VMI: 20,000 GPUs", VMIS, _vmi(devices={"gpus": [
        {"name": f"g{n}", "claimName": "c", "requestName": f"r{n}"} for n in range(20_000)]}))
    yield post("VMI: 20,000 resourceClaims", VMIS, _vmi(resourceClaims=[
        {"name": f"c{n}", "resourceClaimName": "x"} for n in range(20_000)]))
    yield post("VMI: 20,000 tolerations", VMIS, _vmi(tolerations=[{"key": f"k{n}"} for n in range(20_000)]))
    yield post("pod: 10,000 containers", PODS, _pod("", 10_000))
    yield post("pod: 10,000 containers of one name", PODS, _new(spec={"containers": [{"name": "c"}] * 10_000}))
    yield post("pod: 20,000 assigned devices", PODS, _new(spec={"containers": [{"name": "c", "assignedDevices": [
        {"resourceName": "example.com/x", "deviceIDs": [f"d{n}" for n in range(20_000)]}]}]}))
    yield post("pod: 20,000 resourceClaims", PODS, _pod("", 1, resourceClaims=[
        {"name": f"c{n}", "resourceClaimName": "x"} for n in range(20_000)]))
    yield post("pod: 20,000 node affinity terms", PODS, _pod("", 1, affinity={"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "a", "operator": "In", "values": [str(n)]}]} for n in range(20_000)]}}}))
    yield post("pod: 5,000 extended resources", PODS, _new(spec={"containers": [{"name": "c", "resources": {
        "requests": {f"example.com/r{n}": "1" for n in range(5_000)}}}]}))
    yield post("pod: a quantity of 1 MB", PODS, _new(spec={"containers": [{"name": "c", "resources": {
        "requests": {"cpu": "9" * 1_000_000}}}]}))
    yield post("claim: 10,000 requests", CLAIMS, _claim("", [_request(f"r{n}") for n in range(10_000)]))
    yield post("claim: 5,000 constraints", CLAIMS, _claim("", [_request("r")], constraints=[
        {"requests": [f"x{n}"], "matchAttribute": "a.b/c"} for n in range(5_000)]))
    yield post("claim: 10,000 alternatives", CLAIMS, _claim("", [{"name": "r", "firstAvailable": [
        {"name": f"s{n}", "deviceClassName": "c"} for n in range(10_000)]}]))
    yield post("claim: 20,000 tolerations", CLAIMS, _claim("", [_request("r", tolerations=[
        {"key": f"k{n}", "operator": "Exists"} for n in range(20_000)])]))
    yield post("claim: opaque parameters of 2 MB", CLAIMS, _claim("", [_request("r")], config=[
        {"opaque": {"driver": "a.b", "parameters": {f"k{n}": n for n in range(150_000)}}}]))
    yield post("claim: 3,000 different selectors", CLAIMS, _claim("", [_request(f"r{m}", selectors=[
        {"cel": {"expression": f'device.driver == "d{m}-{n}"'}} for n in range(32)]) for m in range(94)]))
    yield post("claim: 250 selectors of 10 KB", CLAIMS, _claim("", [_request(f"r{m}", selectors=[
        {"cel": {"expression": " || ".join([f'device.driver == "{m}{n}"'] * 340)}} for n in range(32)]) for m in range(8)]))
    for name, text in EXPRESSIONS.items():
        yield post(f"claim: selector of {name}", CLAIMS, _claim("", [_request("r", selectors=[{"cel": {"expression": text}}])]))
    yield post("class: 3,000 selectors", f"{DRA}/deviceclasses", _named("many", spec={"selectors": [
        {"cel": {"expression": f'device.driver == "{n}"'}} for n in range(3_000)]}))
    yield post("slice: 10,000 devices", f"{DRA}/resourceslices", _slice("many", [
        {"name": f"d{n}"} for n in range(10_000)]))
    yield post("slice: 50,000 attributes", f"{DRA}/resourceslices", _slice("wide", [
        {"name": "d", "attributes": {f"a{n}": {"string": f"x{n}"} for n in range(50_000)}}]))
    yield post("slice: 30,000 counters", f"{DRA}/resourceslices", _slice("counted", [], sharedCounters=[
        {"name": "s", "counters": {f"c{n}": {"value": "1"} for n in range(30_000)}}]))
    yield post("slice: 20,000 taints", f"{DRA}/resourceslices", _slice("tainted", [
        {"name": "d", "taints": [{"key": f"k{n}", "effect": "NoSchedule"} for n in range(20_000)]}]))


def other_requests() -> Iterator[NastyRequest]:
    """Kinds that only administrators and components write."""
    outfitter, kubevirt = "/apis/outfitter.dev/v1alpha1", "/apis/kubevirt.io/v1/namespaces/default"
    bookings = [{"device": {"driver": "d", "pool": "p", "device": f"d{n}"}, "request": "r", "state": "booked",
                 "since": "2026-01-01T00:00:00Z", "holder": {"kind": "ResourceClaim", "namespace": "default", "name": f"c{n}",
                                                             "uid": f"u{n}"}} for n in range(4_000)]
    page = post("a page", f"{outfitter}/ledgerpages", _named("stall", spec={"host": "stall"}))
    yield post("page: 4,000 bookings", f"{outfitter}/ledgerpages", _named(
        "stall-too", spec={"host": "stall-too", "bookings": bookings}))
    yield patch("page: 4,000 bookings instead of none", f"{outfitter}/ledgerpages/stall", {
        "spec": {"bookings": bookings}}, MERGE, setup=(page,))
    yield patch("page: 4,000 times the same booking", f"{outfitter}/ledgerpages/stall", {
        "spec": {"bookings": bookings[:1] * 4_000}}, MERGE, setup=(page,))
    yield patch("page: 32 bookings, 1,700 hardware names each", f"{outfitter}/ledgerpages/stall", {"spec": {"bookings": [
        {**entry, "hardware": [f"h{n}" for n in range(1_700)]} for entry in bookings[:32]]}}, MERGE, setup=(page,))
    records = [{"device": entry["device"], "reason": "x", "by": "x", "since": entry["since"]} for entry in bookings]
    for state in ("reserved", "quarantined", "unclean"):
        yield patch(f"page: 4,000 records, {state}", f"{outfitter}/ledgerpages/stall", {
            "spec": {state: records}}, MERGE, setup=(page,))
        yield patch(f"page: 4,000 records and a label, {state}", f"{outfitter}/ledgerpages/stall", {
            "metadata": {"labels": {"a": state}}}, MERGE)
        yield patch(f"page: none of 4,000 records, {state}", f"{outfitter}/ledgerpages/stall", {"spec": {state: []}}, MERGE)
    yield patch("page: 7,000 times the same record", f"{outfitter}/ledgerpages/stall", {
        "spec": {"unclean": records[:1] * 7_000}}, MERGE, setup=(page,))
    yield patch("page: 7,000 records without a device", f"{outfitter}/ledgerpages/stall", {
        "spec": {"unclean": [{"reason": "x"}] * 7_000}}, MERGE, setup=(page,))
    yield post("flavor: 55,000 extra specs", f"{outfitter}/flavors", _new(spec={
        "vcpus": 1, "memory": "1Gi", "extraSpecs": {f"k{n}": "v" for n in range(55_000)}}))
    yield post("flavor: 55,000 PCI aliases", f"{outfitter}/flavors", _new(spec={
        "vcpus": 1, "memory": "1Gi", "extraSpecs": {"pci_passthrough:alias": ",".join(f"a{n}:1" for n in range(55_000))}}))
    yield post("network: nested 1 MB deep", "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions", _new(
        spec={"config": "[" * 1_000_000}))
    yield post("KubeVirt: 55,000 feature gates", f"{kubevirt}/kubevirts", _new(spec={"configuration": {
        "developerConfiguration": {"featureGates": [f"G{n}" for n in range(55_000)]}}}))
    yield post("KubeVirt: 20,000 permitted devices", f"{kubevirt}/kubevirts", _new(spec={"configuration": {
        "permittedHostDevices": {"pciHostDevices": [
            {"pciVendorSelector": "10de:1234", "resourceName": f"example.com/r{n}"} for n in range(20_000)]}}}))
    yield post("secret: 55,000 texts", "/api/v1/namespaces/default/secrets", _new(stringData={
        f"k{n}": "v" for n in range(55_000)}))
    yield post("event: 55,000 unknown fields", EVENTS, _new(involvedObject={f"k{n}": "v" for n in range(55_000)}))
    yield post("VM: a user data of 3 MB", f"{kubevirt}/virtualmachines", _new(spec={"runStrategy": "Halted", "template": {
        "spec": {"domain": {}, "volumes": [{"name": "c", "cloudInitNoCloud": {"userDataBase64": "QUFB" * 700_000}}]}}}))
    yield post("DeviceTaintRule: 55,000 unknown fields", f"{DRA.replace('v1', 'v1beta2')}/devicetaintrules", _new(spec={
        "taint": {"key": "a", "effect": "None"}, **{f"k{n}": "v" for n in range(55_000)}}))
    yield patch("node: 30,000 taints", "/api/v1/nodes/node-0", {"spec": {"taints": [
        {"key": f"k{n}", "effect": "PreferNoSchedule"} for n in range(30_000)]}}, STRATEGIC)
    yield patch("node: 55,000 annotations", "/api/v1/nodes/node-0", {"metadata": {"annotations": {
        f"k{n}": "v" for n in range(55_000)}}}, MERGE)


EXPRESSIONS: dict[str, str] = {
    "10 KB of ||": " || ".join(["device.driver=='a'"] * 460),
    "10 KB of brackets": "(" * 5_000 + "true" + ")" * 5_000,
    "10 KB of ternaries": "true?" * 1_000 + "true" + ":true" * 1_000,
    "nested lists": "[" * 200 + "1" + "]" * 200 + " == []",
    "wide lists": "[" + ",".join(["1"] * 5_000) + "].all(x, x == 1)",
    "nested loops": "".join(f"[1].all(a{n}, " for n in range(60)) + "true" + ")" * 60,
    "10 KB of !": "!" * 10_000 + "true",
    "10 KB of minus": "-" * 10_000 + "1 == 1",
    "10 KB of fields": "device" + ".attributes" * 900 + " == 1",
    "10 KB of +": "+".join(["1"] * 5_000) + " == 1",
    "a text of 10 KB": '"' + "a" * 10_000 + '" == "b"',
    "maps in maps": "{1:" * 150 + "1" + "}" * 150 + " == {}",
    "50 KB": "true" + " " * 50_000,
}


# -- selectors that cost, on 64 devices

def _request(name: str, device_class: str = "any", **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def _claim(name: str, requests: list[Any], **more: Any) -> dict[str, Any]:
    return (_named(name) if name else _new()) | {"spec": {"devices": {"requests": requests, **more}}}


def _slice(name: str, devices: list[Any], **more: Any) -> dict[str, Any]:
    return _named(name, spec={"driver": "gpu.example.com", "nodeName": "node-0", "devices": devices,
                              "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}, **more})


CLASS = post("a class", f"{DRA}/deviceclasses", _named("any", spec={"selectors": []}))
DEVICES = post("a slice of 64 devices", f"{DRA}/resourceslices", _slice("cel", [
    {"name": f"gpu-{n}", "attributes": {"serial": {"string": f"serial-{n:04}"}, "index": {"int": n}}} for n in range(64)]))
TWINS = post("a slice of 64 like devices", f"{DRA}/resourceslices", _slice("like", [
    {"name": f"like-{n}", "attributes": {"parity": {"int": n % 2}, "third": {"int": n % 3}, "fifth": {"int": n % 5}}}
    for n in range(64)]))
COSTLY = ("[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, "
          "[1,2,3,4,5,6,7,8,9,10].all(d, a + b + c + d > 0)))) && device.attributes['gpu.example.com'].index >= {0}")


def _waiting(name: str, claims: list[dict[str, Any]]) -> NastyRequest:
    """A pod that cannot be scheduled before the scheduler has looked at every device."""
    setup = (CLASS, DEVICES, TWINS, *(post("a claim", CLAIMS, claim) for claim in claims))
    return post(name, PODS, _pod(claims[0]["metadata"]["name"], 1, resourceClaims=[
        {"name": f"c{n}", "resourceClaimName": claim["metadata"]["name"]} for n, claim in enumerate(claims)]), setup=setup)


def scheduling_requests() -> Iterator[NastyRequest]:
    def costly(count: int, base: int = 0) -> list[Any]:
        return [{"cel": {"expression": COSTLY.replace("{0}", str(-base - n))}} for n in range(count)]

    yield _waiting("schedule: 8 costly selectors on 64 devices", [_claim("costly", [
        _request("r", selectors=[*costly(8), {"cel": {"expression": "false"}}])])])
    yield _waiting("schedule: 32 requests of a costly selector", [_claim("costly-requests", [
        _request(f"r{n}", selectors=costly(1, 100 + n)) for n in range(32)])])
    distinct = [{"matchAttribute": f"gpu.example.com/{name}"} for name in ("parity", "third", "fifth")]
    like = [{"cel": {"expression": "'parity' in device.attributes['gpu.example.com']"}}]
    yield _waiting("schedule: constraints that no choice meets", [_claim("puzzle", [
        _request(f"r{n}", selectors=like, count=1) for n in range(6)], constraints=[
            *({**each, "requests": [f"r{n}", f"r{(n + 1) % 6}"]} for n in range(6) for each in distinct),
            {"distinctAttribute": "gpu.example.com/parity", "requests": ["r0", "r3"]}])])
    yield _waiting("schedule: 32 claims of 3", [_claim(f"more-{n}", [
        _request("r", selectors=like, count=3)], constraints=[{"matchAttribute": "gpu.example.com/fifth"}]) for n in range(30)])


# -- lists

def list_requests() -> Iterator[NastyRequest]:
    def selected(name: str, query: str) -> NastyRequest:
        return get(f"list: {name}", f"{CONFIG_MAPS}?{query}", setup=(LONG_LIST,))

    yield selected("a label selector of 60 KB of commas", "labelSelector=" + "a," * 30_000)
    yield selected("a label selector of 60 KB of brackets", "labelSelector=" + "(" * 30_000 + "," * 30_000)
    yield selected("a label selector of 60 KB in one word", "labelSelector=" + "a" * 60_000 + quote("="))
    yield selected("a label selector of 15,000 values", "labelSelector=a+in+(" + ",".join(["v"] * 29_000) + ")")
    yield selected("20,000 label requirements", "labelSelector=" + ",".join(f"!{n}" for n in range(10_000)))
    yield selected("a field selector of 60 KB", "fieldSelector=" + ",".join(["metadata.name!=a"] * 3_700))
    yield selected("a continue token of 60 KB", "limit=1&continue=" + "e" * 60_000)
    yield selected("a limit of 10^18", "limit=999999999999999999")
    yield get(f"list: a table of {LISTED:,}", CONFIG_MAPS, accept=TABLE, setup=(LONG_LIST,))
    yield get(f"list: {LISTED:,} as YAML", CONFIG_MAPS, accept=YAML, setup=(LONG_LIST,))
    yield get(f"list: {LISTED:,} pretty", f"{CONFIG_MAPS}?pretty=true", setup=(LONG_LIST,))
    yield get("get: a large object as YAML", f"{CONFIG_MAPS}/large", accept=YAML, setup=(LARGE,))
    yield NastyRequest(f"delete: {LISTED:,} objects", "DELETE", CONFIG_MAPS + "?labelSelector=long", setup=(LONG_LIST,))


LONG_LIST = NastyRequest("a long list", "MANY", CONFIG_MAPS)  # `LISTED` ConfigMaps, each a request


# -- without credentials

def anonymous_requests() -> Iterator[NastyRequest]:
    def one(name: str, method: str, path: str, body: bytes = b"", **more: Any) -> NastyRequest:
        return NastyRequest(f"anonymous: {name}", method, path, body, anonymous=True, **more)

    yield one("GET /readyz", "GET", "/readyz")
    yield one("GET /version", "GET", "/version")
    yield one("a path of 60 KB", "GET", "/" + "a/" * 30_000)
    yield one("an encoded path of 60 KB", "GET", "/api/v1/" + "%61" * 20_000)
    yield one("a query of 60 KB", "GET", CONFIG_MAPS + "?" + "a=b&" * 15_000)
    yield one("a body of 3 MB", "POST", CONFIG_MAPS, b"[" * 3_000_000)
    yield one("YAML merge keys", "POST", CONFIG_MAPS, merge_keys(8), type=YAML)
    yield one("an Accept header of 30 KB", "GET", "/apis", accept="a/b;c=d," * 3_700)
    yield one("/version with an Accept header of 30 KB", "GET", "/version", accept="a/b;c=d," * 3_700)


GROUPS: dict[str, Callable[[], Iterator[NastyRequest]]] = {
    "yaml": yaml_requests, "json": json_requests, "patch": patch_requests, "object": object_requests, "other": other_requests,
    "schedule": scheduling_requests, "list": list_requests, "anonymous": anonymous_requests,
}
