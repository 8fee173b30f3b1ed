"""The embedded server and a real kube-apiserver, asked the same: status, reason and what matters of the body must agree.

Each scenario is a list of requests, sent in order to both in a namespace of its own. A placeholder such as {rv:a} stands for
what an earlier answer of the same server said. Left out is where kube-apiserver answers a client's mistake with a bare 500 (a
resourceVersion on create, one that is no number): there the embedded server says 400."""

from __future__ import annotations

import asyncio
import io
import json
import re
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from outfitter.api import admission, kinds
from outfitter.api.kinds import Object
from outfitter.api.validate.node_placement import REQUIRED
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.apiserver.server import Server
from outfitter.store.memory import Memory
from tests import kubernetes
from tests.apiserver.asgi import JSON_PATCH, MERGE, STRATEGIC, TABLE
from tests.apiserver.running import certify, tls

pytestmark = pytest.mark.cluster
MAPS = "/api/v1/namespaces/{ns}/configmaps"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaims"
PAGES = "/apis/outfitter.dev/v1alpha1/ledgerpages"
# What differs between any two servers, or is written by parts that the embedded one does not have.
OWN = ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "managedFields", "generation", "namespace")


SECRETS = "/api/v1/namespaces/{ns}/secrets"
PODS = "/api/v1/namespaces/{ns}/pods"
BIND = f"{PODS}/p/binding"
TO_A = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "a"}}
NODES, SLICES = "/api/v1/nodes", "/apis/resource.k8s.io/v1/resourceslices"


@dataclass
class Ask:
    method: str
    path: str
    body: Any = None
    type: str = "application/json"
    query: dict[str, str] = field(default_factory=dict)
    accept: str = "application/json"
    look: Callable[[Any], Any] | None = None  # what of the body must agree; without it `essence`
    keep: str = ""  # remember uid and revision of the answer under this name


def config(name: str, **meta: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}, "data": {"k": "v"}}


def claim(name: str, **exactly: Any) -> Object:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", **exactly}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [request]}}}


def pod(**spec: Any) -> Object:
    spec = {"automountServiceAccountToken": False, "serviceAccountName": "default", **spec}
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "a"}], **spec}}


def secret(type_: str, **data: str) -> Ask:
    return Ask("POST", SECRETS, {"metadata": {"name": "s"}, "type": type_, "data": {
        key.replace("_", "."): value for key, value in data.items()}}, query={"dryRun": "All"}, look=verdict)


def slice_(*devices: Object, **spec: Any) -> Ask:
    pool = {"name": "p", "resourceSliceCount": 1}
    body = {"metadata": {"name": "{ns}"}, "spec": {
        "driver": "d.example.com", "allNodes": True, "pool": pool, "devices": list(devices), **spec}}
    return Ask("POST", SLICES, body, query={"dryRun": "All"}, look=verdict)


def page(name: str) -> Object:
    return {"apiVersion": "outfitter.dev/v1alpha1", "kind": "LedgerPage", "metadata": {"name": name}, "spec": {"bookings": []}}


def essence(body: Any) -> Any:
    """An object without what is each server's own; of a Status its reason, code and what it is about."""
    if not isinstance(body, dict):
        return body
    if body.get("kind") == "Status":
        details = body.get("details") or {}
        causes = sorted({(cause.get("reason"), cause.get("field")) for cause in details.get("causes", [])}, key=str)
        return {"reason": body.get("reason"), "code": body.get("code"), "status": body.get("status"),
                "about": (details.get("name"), details.get("group")), "causes": causes}
    if "items" in body:
        return {"kind": body["kind"], "apiVersion": body["apiVersion"], "items": [essence(item) for item in body["items"]],
                "more": bool(body["metadata"].get("continue")), "left": body["metadata"].get("remainingItemCount")}
    out = {key: value for key, value in body.items() if key not in ("kind", "apiVersion")}
    out["metadata"] = {key: value for key, value in body.get("metadata", {}).items() if key not in OWN}
    return out


def verdict(body: Any) -> Any:
    """Whether it is refused as invalid, and the fields; the rest of an accepted object differs by defaults."""
    causes = (body.get("details") or {}).get("causes", ())
    return body.get("reason"), sorted({cause.get("field") for cause in causes})


def reason(body: Any) -> Any:
    return body.get("reason"), body.get("code")


def kind(body: Any) -> Any:
    return body.get("kind"), body.get("status") if body.get("kind") == "Status" else None


def columns(body: Any) -> Any:
    heads = [(head["name"], head["priority"]) for head in body["columnDefinitions"]]
    return body["kind"], body["apiVersion"], heads, [len(row["cells"]) for row in body["rows"]], (
        body["rows"][0]["object"] and body["rows"][0]["object"]["kind"])


def item_types(body: Any) -> Any:
    """Whether the items of a list have apiVersion and kind of their own."""
    return body["kind"], [(item.get("apiVersion"), item.get("kind")) for item in body["items"]]


def annotated(body: Any) -> Any:
    return body["metadata"].get("annotations"), body["metadata"].get("labels")


def event(**times: str) -> Object:
    return {"metadata": {"generateName": "e-"}, "involvedObject": {"namespace": "{ns}", "name": "x"}, **times}


ANNOTATE = {"metadata": {"annotations": {"a": "b"}}}
A = f"{MAPS}/a"
MAKE = Ask("POST", MAPS, config("a", labels={"tier": "x"}), keep="a")
P = f"{PODS}/p"
TERM: Object = {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}
DEVICE: Object = {"name": "gpu-0"}
POD_CHANGES: list[Object] = [
    {"containers": [{"name": "c", "image": "b"}]}, {"containers": [{"name": "c", "image": "a", "tty": True}]},
    {"containers": [{"name": "c", "image": "a"}, {"name": "d", "image": "a"}]}, {"activeDeadlineSeconds": 30},
    {"activeDeadlineSeconds": 90}, {"activeDeadlineSeconds": None}, {"nodeName": "x"}, {"nodeSelector": {"a": "b"}},
    {"resourceClaims": [{"name": "a", "resourceClaimName": "a"}]}, {"volumes": []}, {"priority": 5}]
POD_SPECS: list[Object] = [
    {}, {"overhead": {"cpu": "-1"}}, {"tolerations": [{"key": "a b", "operator": "Exists"}]},
    {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}]},
    {"nodeSelector": {"a b": "c"}}, {"schedulingGates": [{"name": "x"}], "nodeName": "a"},
    {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}},
    {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": ""}]}}},
    {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "rack"}]}}},
    {"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]},
    {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]},
    {"resourceClaims": [{"name": "a", "resourceClaimName": "A b"}]}]
SCENARIOS: dict[str, list[Ask]] = {
    "immutable data": [
        Ask("POST", MAPS, {**config("a"), "immutable": True}), Ask("PATCH", A, {"data": {"k": "w"}}, MERGE),
        Ask("PATCH", A, {"immutable": None}, MERGE), Ask("PATCH", A, {"binaryData": {"x": "eA=="}}, MERGE),
        Ask("PATCH", A, {"metadata": {"labels": {"a": "b"}}}, MERGE)],
    "keys and sizes of data": [
        Ask("POST", MAPS, {**config("a"), "data": {key: "x"}}) for key in ("", "a b", "..", ".", "x" * 254)] + [
        Ask("POST", MAPS, {**config("a"), "data": {"a": "x" * 1_200_000}}, look=reason),
        Ask("POST", MAPS, {**config("a"), "binaryData": {"k": "eA=="}}),
        Ask("POST", SECRETS, {"metadata": {"name": "s"}, "data": {"a": "AAAA" * 400_000}})],
    "secrets by type": [
        secret("kubernetes.io/tls"), secret("kubernetes.io/tls", tls_crt="", tls_key=""), secret("kubernetes.io/ssh-auth"),
        secret("kubernetes.io/basic-auth"), secret("kubernetes.io/basic-auth", username=""),
        secret("kubernetes.io/dockercfg"), secret("kubernetes.io/dockerconfigjson", _dockerconfigjson="W10="),
        secret("kubernetes.io/dockerconfigjson", _dockerconfigjson="e30="), secret("kubernetes.io/service-account-token"),
        secret("bootstrap.kubernetes.io/token"), secret("example.com/any", a="eA\n=="),
        Ask("POST", SECRETS, {"metadata": {"name": "s"}, "data": {"a": "eA=="}}),
        Ask("PATCH", f"{SECRETS}/s", {"type": "example.com/other"}, MERGE)],
    "taints": [
        Ask("POST", NODES, {"metadata": {"name": "{ns}"}, "spec": {"taints": taints}}, query={"dryRun": "All"}, look=reason)
        for taints in ([{"key": "a", "effect": "NoSchedule"}], [{"key": "", "effect": "NoSchedule"}], [{"key": "a"}],
                       [{"key": "a", "effect": "x"}], [{"key": "a", "value": "a b", "effect": "NoSchedule"}],
                       [{"key": "a", "effect": "NoSchedule"}] * 2,
                       [{"key": "a", "effect": effect} for effect in ("NoSchedule", "NoExecute")])],
    "updates of a pod": [
        Ask("POST", PODS, pod(activeDeadlineSeconds=60, tolerations=[{"key": "a", "operator": "Exists"}]), look=kind),
        *(Ask("PATCH", P, {"spec": change}, MERGE, {"dryRun": "All"}, look=verdict) for change in POD_CHANGES)],
    "updates of a pod with gates": [
        Ask("POST", PODS, pod(schedulingGates=[{"name": "x"}, {"name": "y"}], nodeSelector={"rack": "a"}, affinity={
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}}}), look=kind),
        *(Ask("PATCH", P, {"spec": change}, MERGE, {"dryRun": "All"}, look=verdict) for change in (
            {"schedulingGates": [{"name": "y"}]}, {"schedulingGates": [{"name": "z"}]}, {"nodeSelector": {"disk": "b"}},
            {"nodeSelector": {"rack": "b"}}, {"affinity": None},
            {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [
                {"matchExpressions": [*TERM["matchExpressions"], {"key": "b", "operator": "Exists"}]}]}}}},
            {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM, TERM]}}}}))],
    "pods that are invalid": [
        Ask("POST", PODS, pod(**spec), query={"dryRun": "All"}, look=reason) for spec in POD_SPECS],
    "a custom scheduler binds a pod": [
        Ask("POST", PODS, pod(schedulerName="mine"), look=kind),
        *(Ask("POST", BIND, binding, look=verdict) for binding in (  # a wrong target is an internal error of kube-apiserver
            {**TO_A, "metadata": {"name": "q"}}, {**TO_A, "metadata": {"name": "p", "uid": "other"}}, {**TO_A, "kind": "Pod"})),
        Ask("POST", BIND, TO_A, query={"dryRun": "All"}, look=verdict),
        Ask("POST", BIND, {**TO_A, "metadata": {"name": "p", "annotations": {"a": "b"}}}, look=lambda body: body["status"]),
        Ask("GET", P, look=lambda body: (body["spec"]["nodeName"], body["metadata"]["annotations"], [
            (each["type"], each["status"]) for each in body["status"]["conditions"]])),
        Ask("POST", BIND, TO_A), Ask("GET", BIND, look=lambda body: body["code"])],
    "a gated pod is not bound": [
        Ask("POST", PODS, pod(schedulingGates=[{"name": "x"}]), look=kind), Ask("POST", BIND, TO_A)],
    "slices that are invalid": [
        slice_(DEVICE), slice_(DEVICE, DEVICE), slice_({"name": "A b"}), slice_(allNodes=None), slice_(allNodes=False),
        slice_(nodeName="a"), slice_(driver=""), slice_(driver="D.example.com"), slice_(pool={"name": "p"}),
        slice_(pool={"name": "a//b", "resourceSliceCount": 1}), slice_(pool={"name": "a/b", "resourceSliceCount": 1}),
        slice_(allNodes=None, nodeSelector={}), slice_(allNodes=None, nodeSelector={"nodeSelectorTerms": [TERM, TERM]}),
        slice_(allNodes=None, nodeSelector={"nodeSelectorTerms": [TERM]}), slice_(allNodes=None, nodeName=""),
        slice_({**DEVICE, "attributes": {"a-b": {"int": 1}}}), slice_({**DEVICE, "attributes": {"a": {}}}),
        slice_({**DEVICE, "attributes": {"a.example.com/b": {"version": "1.0"}}}),
        slice_({**DEVICE, "attributes": {"a": {"string": "x" * 65}}}), slice_({**DEVICE, "nodeName": "a"}),
        slice_({**DEVICE, "nodeName": "a"}, allNodes=None, perDeviceNodeSelection=True),
        slice_(DEVICE, allNodes=None, perDeviceNodeSelection=True),
        slice_({**DEVICE, "capacity": {"m": {"value": "1"}}}),
        slice_(*({"name": f"d-{number}"} for number in range(129)))],
    "create, read, replace, delete": [
        MAKE, Ask("GET", A), Ask("PUT", A, {**config("a"), "data": {"k": "w"}}), Ask("GET", MAPS), Ask("DELETE", A, look=kind),
        Ask("GET", A), Ask("DELETE", A), Ask("PUT", A, config("a"))],
    "create twice": [MAKE, Ask("POST", MAPS, config("a"))],
    "create without a name": [Ask("POST", MAPS, {"metadata": {}})],
    "create with another namespace": [Ask("POST", MAPS, config("a", namespace="zz"))],
    "create with another kind": [Ask("POST", MAPS, {**config("a"), "kind": "Secret"})],
    "create with an unknown version": [Ask("POST", MAPS, {**config("a"), "apiVersion": "v9"})],
    "a prefix": [Ask("POST", MAPS, {"metadata": {"generateName": "x-"}}, look=lambda body: body["metadata"]["name"][:2])],
    "replace at an old revision": [
        MAKE, Ask("PUT", A, config("a", resourceVersion="{rv:a}"), keep="b"),
        Ask("PUT", A, {**config("a", resourceVersion="{rv:a}"), "data": {"k": "w"}})],
    "replace with another name": [MAKE, Ask("PUT", A, config("b"))],
    "replace with another uid": [MAKE, Ask("PUT", A, config("a", uid="zz"), look=reason)],
    "merge patches": [
        MAKE, Ask("PATCH", A, {"data": {"x": "y", "k": None}}, MERGE), Ask("PATCH", A, {"metadata": {"labels": None}}, MERGE),
        Ask("PATCH", A, {"metadata": {"resourceVersion": "{rv:a}"}}, MERGE),
        Ask("PATCH", A, {"metadata": {"name": "z"}}, MERGE), Ask("PATCH", A, {"metadata": {"namespace": "z"}}, MERGE),
        Ask("PATCH", A, [1], MERGE, look=reason),
        Ask("PATCH", f"{MAPS}/zz", {"data": {}}, MERGE)],
    "JSON patches": [
        MAKE, Ask("PATCH", A, [{"op": "add", "path": "/data/x", "value": "y"}], JSON_PATCH),
        Ask("PATCH", A, [{"op": "test", "path": "/data/x", "value": "z"}], JSON_PATCH, look=reason),
        Ask("PATCH", A, [{"op": "remove", "path": "/data/nope"}], JSON_PATCH, look=reason),
        Ask("PATCH", A, {}, JSON_PATCH, look=reason),
        Ask("PATCH", A, [{"op": "move", "from": "/data/x", "path": "/data/z"},
                         {"op": "copy", "from": "/data/z", "path": "/data/q"}], JSON_PATCH)],
    "strategic patches": [
        MAKE, Ask("PATCH", A, {"data": {"x": "y", "k": None}}, STRATEGIC),
        Ask("PATCH", A, {"metadata": {"finalizers": ["x.io/a"]}}, STRATEGIC),
        Ask("PATCH", A, {"metadata": {"finalizers": ["x.io/b"]}}, STRATEGIC),
        Ask("PATCH", A, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.io/a", "x.io/b"]}}, STRATEGIC)],
    "patches of types that are not there": [
        MAKE, Ask("PATCH", A, {}, "text/plain", look=reason), Ask("PATCH", A, {}, look=reason)],
    "a custom kind": [
        Ask("POST", PAGES, page("{ns}"), keep="p"), Ask("PATCH", f"{PAGES}/{{ns}}", {"spec": {"x": {"y": 1}}}, MERGE),
        Ask("PATCH", f"{PAGES}/{{ns}}", {}, STRATEGIC, look=reason), Ask("PUT", f"{PAGES}/{{ns}}", page("{ns}"), look=reason),
        Ask("PUT", f"{PAGES}/{{ns}}", {**page("{ns}"), "metadata": {"name": "{ns}", "resourceVersion": "{rv:p}"}}),
        Ask("DELETE", f"{PAGES}/{{ns}}", look=kind)],
    "delete with a finalizer": [
        Ask("POST", MAPS, config("a", finalizers=["x.io/y"])), Ask("DELETE", A), Ask("DELETE", A), Ask("GET", A),
        Ask("PATCH", A, {"metadata": {"finalizers": None}}, MERGE), Ask("GET", A)],
    "delete on conditions": [
        MAKE, Ask("DELETE", A, {"preconditions": {"uid": "zz"}}, look=reason),
        Ask("DELETE", A, {"preconditions": {"resourceVersion": "1"}}, look=reason),
        Ask("DELETE", A, {"preconditions": {"uid": "{uid:a}", "resourceVersion": "{rv:a}"}}, look=kind)],
    "delete with odd options": [
        MAKE, Ask("DELETE", A, {"propagationPolicy": "Foo"}), Ask("DELETE", A, query={"gracePeriodSeconds": "abc"}),
        Ask("DELETE", A, {"propagationPolicy": "Orphan", "orphanDependents": True}),
        Ask("DELETE", A, {"kind": "Foo"}, look=reason), Ask("DELETE", A, {"propagationPolicy": "Foreground"}), Ask("GET", A)],
    "delete of kinds that answer with themselves": [
        Ask("POST", CLAIMS, claim("c", count=1, allocationMode="ExactCount"), look=kind),
        Ask("DELETE", f"{CLAIMS}/c", look=kind)],
    "delete many": [
        MAKE, Ask("POST", MAPS, config("b", labels={"tier": "y"})),
        Ask("DELETE", MAPS, query={"labelSelector": "tier=x"}, look=lambda body: body["kind"]), Ask("GET", MAPS)],
    "dry runs": [
        Ask("POST", MAPS, config("a"), query={"dryRun": "All"}), Ask("GET", A), MAKE,
        Ask("PATCH", A, {"data": {"k": "w"}}, MERGE, {"dryRun": "All"}), Ask("DELETE", A, query={"dryRun": "All"}, look=kind),
        Ask("GET", A), Ask("POST", MAPS, config("b"), query={"dryRun": "Foo"})],
    "lists in parts": [
        *(Ask("POST", MAPS, config(name)) for name in "abcde"), Ask("GET", MAPS, query={"limit": "2"}, keep="l"),
        Ask("POST", MAPS, config("bb")), Ask("DELETE", f"{MAPS}/d", look=kind),
        Ask("GET", MAPS, query={"limit": "2", "continue": "{more:l}"}, keep="l"),
        Ask("GET", MAPS, query={"limit": "2", "continue": "{more:l}"})],
    "lists with odd options": [
        Ask("GET", MAPS, query={"limit": "x"}), Ask("GET", MAPS, query={"continue": "abc"}),
        Ask("GET", MAPS, query={"labelSelector": "a==b==c"}), Ask("GET", MAPS, query={"fieldSelector": "data.x=1"}),
        Ask("GET", MAPS, query={"resourceVersion": "abc"}), Ask("GET", MAPS, query={"resourceVersionMatch": "Exact"}),
        Ask("GET", MAPS, query={"resourceVersion": "0", "resourceVersionMatch": "Exact"}),
        Ask("GET", MAPS, query={"sendInitialEvents": "true"}, look=reason),
        Ask("GET", MAPS, query={"watch": "1", "sendInitialEvents": "true"})],
    "selections": [
        MAKE, Ask("POST", MAPS, config("b", labels={"tier": "y"})), Ask("POST", MAPS, config("c")),
        *(Ask("GET", MAPS, query={"labelSelector": text})
          for text in ("tier=x", "tier!=x", "tier", "!tier", "tier in (x,y)", "tier notin (x)", "tier==x,tier=y")),
        Ask("GET", MAPS, query={"fieldSelector": "metadata.name=b"}),
        Ask("GET", MAPS, query={"fieldSelector": "metadata.name!=b"})],
    "unknown fields": [
        Ask("POST", MAPS, {**config("a"), "dat": {}}, query={"fieldValidation": "Strict"}, look=lambda body: body["message"]),
        Ask("POST", MAPS, {**config("a"), "dat": {}}, query={"fieldValidation": "Foo"}),
        Ask("POST", CLAIMS, claim("c", cuont=1), query={"fieldValidation": "Strict"}, look=lambda body: body["message"]),
        MAKE, Ask("PATCH", A, {"dat": {}}, MERGE, {"fieldValidation": "Strict"}, look=reason),
        Ask("POST", PODS, pod(hostname="a", hostnam="b", containers=[{
            "name": "c", "image": "a", "comand": [], "resources": {"request": {}}, "env": [{"name": "a", "vale": "b"}]}],
            volumes=[{"name": "v", "emptyDir": {"medum": ""}}], securityContext={"runasUser": 1}),
            query={"fieldValidation": "Strict", "dryRun": "All"}, look=lambda body: sorted(body["message"].split(", ")[1:]))],
    "broken bodies": [
        Ask("POST", MAPS, b"{", look=reason), Ask("POST", MAPS, b"[1]", look=reason),
        Ask("POST", MAPS, b'{"metadata":3}', look=reason),
        Ask("POST", MAPS, b'{"metadata":{"labels":{"a":1}}}', look=reason), Ask("POST", MAPS, b"a", "text/plain", look=reason),
        Ask("POST", MAPS, b'{"x":"' + b"x" * (4 << 20) + b'"}', look=reason)],
    "paths and methods": [
        MAKE, Ask("GET", "/api/v1/namespaces/{ns}/foos"), Ask("GET", f"{A}/status"), Ask("POST", A, config("a")),
        Ask("PATCH", MAPS, {}, MERGE), Ask("POST", "/api/v1/configmaps", config("a")), Ask("DELETE", "/api/v1/configmaps"),
        Ask("GET", "/apis/resource.k8s.io/v9/resourceclaims"), Ask("PUT", MAPS, config("a"))],
    "what a client accepts": [
        MAKE, Ask("GET", A, accept="application/vnd.foo", look=reason), Ask("GET", A, accept="*/*"),
        Ask("GET", MAPS, accept=TABLE, look=columns), Ask("GET", A, accept=TABLE, look=columns),
        Ask("GET", MAPS, accept=TABLE, query={"includeObject": "None"}, look=columns),
        Ask("GET", MAPS, accept="application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", look=kind)],
    "status apart from the rest": [
        Ask("POST", CLAIMS, claim("c", count=1, allocationMode="ExactCount"), look=kind),
        Ask("GET", f"{CLAIMS}/c/status", look=kind),
        Ask("PATCH", f"{CLAIMS}/c", {"status": {"reservedFor": []}}, MERGE, look=lambda body: body.get("status") or {})],
    "status and metadata in one patch": [
        Ask("PATCH", "/api/v1/namespaces/{ns}/status", ANNOTATE, MERGE, look=lambda body: body["metadata"].get("annotations")),
        Ask("POST", "/api/v1/nodes", {"metadata": {"name": "{ns}"}}, look=kind),
        Ask("PATCH", "/api/v1/nodes/{ns}/status", ANNOTATE, STRATEGIC, look=lambda body: body["metadata"]["annotations"]["a"]),
        Ask("POST", CLAIMS, claim("c", count=1, allocationMode="ExactCount"), look=kind),
        Ask("PATCH", f"{CLAIMS}/c/status", ANNOTATE, MERGE, look=annotated)],
    "types of the items of a list": [
        MAKE, Ask("GET", MAPS, look=item_types), Ask("DELETE", MAPS, query={"labelSelector": "x=y"}, look=item_types),
        Ask("POST", CLAIMS, claim("c", count=1, allocationMode="ExactCount"), look=kind),
        Ask("GET", CLAIMS, look=item_types),
        Ask("POST", PAGES, page("{ns}")), Ask("GET", PAGES, query={"fieldSelector": "metadata.name={ns}"}, look=item_types),
        Ask("GET", MAPS, accept="application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", look=item_types)],
    "times of any form": [
        Ask("POST", "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases", {
            "metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-01T02:00:00.000001+02:00"}},
            look=lambda body: body["spec"]),
        Ask("POST", "/api/v1/namespaces/{ns}/events", event(
            firstTimestamp="2026-01-01T00:00:00.999-01:00", lastTimestamp="0001-01-01T00:00:00Z"),
            look=lambda body: (body["firstTimestamp"], body.get("lastTimestamp"))),
        *(Ask("POST", "/api/v1/namespaces/{ns}/events", event(firstTimestamp=wrong), look=reason)
          for wrong in ("yesterday", "2026-01-01", "2026-02-30T00:00:00Z", "2026-01-01T00:00:00", ""))],
    "watches that cannot be": [
        Ask("GET", MAPS, query={"watch": "1", "timeoutSeconds": "abc"}),
        Ask("GET", MAPS, query={"watch": "1", "labelSelector": "a==b==c"})],
}


@dataclass
class Asked:
    """A server and what it said so far."""

    session: aiohttp.ClientSession
    namespace: str
    said: dict[str, Object] = field(default_factory=dict)

    def fill(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            what, name = found[1], found[2]
            meta = self.said[name]["metadata"]
            return str({"uid": meta.get("uid"), "rv": meta.get("resourceVersion"), "more": meta.get("continue")}[what])

        return re.sub(r"\{(uid|rv|more):(\w+)\}", value, text.replace("{ns}", self.namespace))

    async def ask(self, ask: Ask) -> tuple[int, Any]:
        body = ask.body
        if body is not None:
            body = io.BytesIO(body if isinstance(body, bytes) else self.fill(json.dumps(body)).encode())
        headers = {"Accept": ask.accept, **({"Content-Type": ask.type} if body is not None else {})}
        query = {key: self.fill(value) for key, value in ask.query.items()}
        async with self.session.request(ask.method, self.fill(ask.path), data=body, params=query, headers=headers) as reply:
            text = await reply.text()
            said = json.loads(text.splitlines()[0] if "watch" in query else text)
            if ask.keep:
                self.said[ask.keep] = said
            return reply.status, self.anonymous((ask.look or essence)(said))

    def anonymous(self, value: Any) -> Any:
        return json.loads(json.dumps(value).replace(self.namespace, "NS"))

    async def watch(self, path: str, **query: str) -> AsyncIterator[Object]:
        async with self.session.get(self.fill(path), params={"watch": "1", "timeoutSeconds": "2", **query}) as reply:
            async for line in reply.content:
                yield json.loads(line)


@pytest.fixture
async def both(cluster: kubernetes.Cluster, tmp_path: Path) -> AsyncIterator[tuple[Asked, Asked]]:
    ca, files = certify(tmp_path)
    store = Memory(rules=admission.AdmissionRules())
    server = Server(App(store, tokens={"t": User("t", (MASTERS,))}), **files)
    await server.start()
    namespace = f"same-{uuid.uuid4().hex[:8]}"
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    await store.create(kinds.NAMESPACE, {"metadata": {"name": namespace}})
    real_tls = ssl.create_default_context(cafile=str(cluster.folder / "pki" / "ca.crt"))
    async with (
        _session(server.url, tls(ca, tmp_path), "t") as ours, _session(cluster.server, real_tls, cluster.token) as theirs,
    ):
        await _service_account(theirs, namespace)
        yield Asked(ours, namespace), Asked(theirs, namespace)
    await server.stop()
    await store.close()


async def _service_account(session: aiohttp.ClientSession, namespace: str) -> None:
    """What kube-controller-manager does for every namespace, and pods need."""
    async with session.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", json={"metadata": {"name": "default"}}) as reply:
        assert reply.status == 201


def _session(url: str, context: ssl.SSLContext, token: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(ssl=context), headers={"Authorization": f"Bearer {token}"},
                                 timeout=aiohttp.ClientTimeout(120))


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
async def test_both_servers_give_the_same_answers(both: tuple[Asked, Asked], scenario: list[Ask]) -> None:
    ours, theirs = both
    for number, ask in enumerate(scenario):
        embedded, real = await asyncio.gather(ours.ask(ask), theirs.ask(ask))
        assert embedded == real, f"request {number}: {ask.method} {ask.path}"


async def test_both_servers_show_objects_entering_and_leaving_a_selection(both: tuple[Asked, Asked]) -> None:
    seen = []
    for asked in both:
        _, _ = await asked.ask(Ask("POST", MAPS, config("zero"), keep="zero"))
        since = asked.said["zero"]["metadata"]["resourceVersion"]
        for ask in (
            Ask("POST", MAPS, config("a")), Ask("PATCH", A, {"metadata": {"labels": {"tier": "x"}}}, MERGE),
            Ask("PATCH", A, {"data": {"k": "w"}}, MERGE),
            Ask("PATCH", A, {"metadata": {"labels": {"tier": "y"}}, "data": {"k": "z"}}, MERGE), Ask("DELETE", A, look=kind),
        ):
            await asked.ask(ask)
        events = [event async for event in asked.watch(MAPS, resourceVersion=since, labelSelector="tier=x")]
        seen.append([(event["type"], asked.anonymous(essence(event["object"]))) for event in events])
    assert [type_ for type_, _ in seen[0]] == ["ADDED", "MODIFIED", "DELETED"]
    assert seen[0] == seen[1]


async def test_both_servers_send_the_initial_events_bookmark(both: tuple[Asked, Asked]) -> None:
    seen = []
    for asked in both:
        await asked.ask(MAKE)
        options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
        events = [event async for event in asked.watch(MAPS, **options)]
        objects = [(event["type"], event["object"]) for event in events[:2]]
        seen.append([(type_, obj["kind"], obj["metadata"].get("annotations")) for type_, obj in objects])
    assert seen[0] == seen[1] == [
        ("ADDED", "ConfigMap", None), ("BOOKMARK", "ConfigMap", {"k8s.io/initial-events-end": "true"})]
