"""A Kubernetes API server that answers reads from a table, for states that a real one is not brought into: another version, no
dynamic resource allocation, expired certificates. `healthy()` has everything that an installation has."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import outfitter
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.served import aggregated_apis
from outfitter.install import crds
from outfitter.store import pki
from tests import fake_http

NAMESPACE = "outfitter-system"
WEBHOOK = "webhookconfigurations/outfitter"
NOW = datetime.now(UTC)
CA = pki.authority("outfitter-webhook", valid_from=NOW - timedelta(days=400), valid_until=NOW + timedelta(days=400))
OTHER_CA = pki.authority("other", valid_from=NOW - timedelta(days=400), valid_until=NOW + timedelta(days=400))

Table = dict[str, Any]  # path -> the object, a list of objects, or an HTTP status
OURS = tuple(kind for kind in kinds.ALL if not kind.builtin and kind != kinds.NETWORK_ATTACHMENT)
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
DRA = "/apis/resource.k8s.io/v1"
OUTFITTER = "/apis/outfitter.dev/v1alpha1"
SECRET = f"{CORE}/secrets/outfitter-webhook-cert"


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def named(name: str, **more: Any) -> Object:
    meta = {"name": name, "uid": name, "creationTimestamp": stamp(timedelta(days=1)),
            "labels": {"app.kubernetes.io/managed-by": "outfitter"}, **more.pop("metadata", {})}
    return {"metadata": meta, **more}


def stamp(ago: timedelta = timedelta()) -> str:
    return (NOW - ago).strftime("%Y-%m-%dT%H:%M:%SZ")


def certificate(valid_until: datetime, ca: pki.Pair = CA) -> Object:
    pair = pki.server(ca, "outfitter-webhook", hosts=["outfitter-webhook.outfitter-system.svc"],
                      valid_from=NOW - timedelta(days=300), valid_until=valid_until)
    return named("outfitter-webhook-cert", data={"tls.crt": text(pair.cert), "ca.crt": text(ca.cert)})


def workload(name: str, kind: str = "Deployment", replicas: int = 2, args: tuple[str, ...] = (), **more: Any) -> Object:
    counted = ("readyReplicas",) if kind == "Deployment" else ("numberReady", "desiredNumberScheduled")
    status = dict.fromkeys(counted, replicas)
    role = name.removeprefix("outfitter-")
    containers = [{"name": role, "image": f"ghcr.io/outfitter/outfitter:{more.pop('version', outfitter.__version__)}",
                   "command": ["outfit", role], "args": list(args), "env": more.pop("env", [])}]
    return named(name, kind=kind, spec={"replicas": replicas, "template": {"spec": {"containers": containers}}},
                 status={**status, **more})


def pod(name: str, node: str = "a", *, ready: bool = True, message: str = "") -> Object:
    state = {"terminated": {"reason": "Error", "message": message}} if message else {"running": {}}
    return named(name, spec={"nodeName": node}, status={
        "phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "containerStatuses": [{"name": "x", "lastState": state, "state": {}}]})


def lease(ago: timedelta = timedelta(), **metadata: Any) -> Object:
    renewed = (datetime.now(UTC) - ago).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return named("outfitter-controller", metadata=metadata,
                 spec={"holderIdentity": "outfitter-controller-1", "renewTime": renewed})


def definition(kind: kinds.Kind) -> Object:
    crd = crds.definition(kind)
    return {**crd, "metadata": {**crd["metadata"], "labels": {"app.kubernetes.io/managed-by": "outfitter"}},
            "status": {"conditions": [{"type": "Established", "status": "True"}], "storedVersions": [kind.version]}}


def hooks(ca: pki.Pair | None = CA) -> Object:
    client = {"caBundle": text(ca.cert)} if ca else {}
    return named("outfitter", webhooks=[{"name": "a.outfitter.dev", "failurePolicy": "Fail", "clientConfig": client}])


def slice_(name: str, driver: str = "pci.outfitter.dev", node: str = "a", slices: int = 1) -> Object:
    return named(name, spec={"driver": driver, "nodeName": node, "devices": [{"name": "d0"}, {"name": "d1"}],
                             "pool": {"name": node, "generation": 1, "resourceSliceCount": slices}})


def inventory(name: str, **spec: Any) -> Object:
    return named(name, spec={"iommu": True, "agentVersion": outfitter.__version__, **spec})


def claim(name: str, device: str = "", *, metadata: Object | None = None) -> Object:
    results = [{"request": "r", "driver": "pci.outfitter.dev", "pool": "a", "device": device}]
    status = {"status": {"allocation": {"devices": {"results": results}}}} if device else {}
    return named(name, metadata={"namespace": "default", **(metadata or {})}, spec={"devices": {}}, **status)


DEFINITIONS = [definition(kind) for kind in OURS]
VALID = certificate(NOW + timedelta(days=60))


def healthy() -> Table:
    return {
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.3"},
        "/apis": {"groups": [{"name": "resource.k8s.io", "versions": [{"groupVersion": "resource.k8s.io/v1"}]}]},
        DRA: {"resources": [{"name": "resourceclaims"}, {"name": "devicetaintrules"}]},
        "/metrics": 'kubernetes_feature_enabled{name="DynamicResourceAllocation",stage=""} 1\n',
        CRDS: DEFINITIONS,
        f"{APPS}/deployments": [workload("outfitter-controller"), workload("outfitter-webhook")],
        f"{APPS}/daemonsets": [workload("outfitter-node", "DaemonSet", 1)],
        f"{CORE}/pods": [pod("outfitter-controller-1"), pod("outfitter-controller-2"), pod("outfitter-node-1")],
        LEASES: [lease()],
        SECRET: VALID,
        f"{CORE}/configmaps/outfitter-config": named("outfitter-config", data={"config.yaml": ""}),
        f"{ADMISSION}/validating{WEBHOOK}": hooks(), f"{ADMISSION}/mutating{WEBHOOK}": hooks(),
        API_SERVICES: [named(aggregated_apis.api_service(*served), spec={"caBundle": text(CA.cert)},
                             status={"conditions": [{"type": "Available", "status": "True"}]})
                       for served in aggregated_apis.SERVED],
        "/apis/kubevirt.io/v1/kubevirts": [], "/apis/apps/v1/deployments": [],
        "/api/v1/nodes": [named("a")],
        f"{DRA}/resourceslices": [slice_("s")], f"{DRA}/deviceclasses": [named("vf", spec={})],
        f"{DRA}/resourceclaims": [claim("held", "d0")],
        f"{OUTFITTER}/hostinventories": [inventory("a")], f"{OUTFITTER}/ledgerpages": [], f"{OUTFITTER}/flavors": [],
        "/apis/kubevirt.io/v1/virtualmachineinstances": [], "/apis/kubevirt.io/v1/virtualmachines": [],
    }


class FakeCluster:
    """Answers from `table`, which may be replaced: over HTTP, and by `raw` without. `allowed`: what a SubjectAccessReview is
    answered; None: it is refused."""

    def __init__(self, folder: Path) -> None:
        self.table: Table = healthy()
        self.allowed: Callable[[Object], bool] | None = lambda review: True
        self.kubeconfig = folder / "kubeconfig"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(*outer.read(self.path.partition("?")[0]))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(*outer.review(self.path, body))

            def log_message(self, format: str, *args: object) -> None:
                pass

            def _answer(self, status: int, body: Any) -> None:
                payload = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

        self._serving = fake_http.serving(Handler)

    def read(self, path: str) -> tuple[int, Any]:
        value = self.table.get(path, 404)
        if isinstance(value, int):
            return value, {"kind": "Status", "code": value, "message": f'cannot read "{path}"'}
        return 200, {"items": value} if isinstance(value, list) else value

    async def raw(
        self, method: str, path: str, *, query: Mapping[str, str | int] | None = None, body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        status, answer = self.read(path) if method == "GET" else self.review(path, json.loads(body or b""))
        return status, {}, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()

    def review(self, path: str, body: Object) -> tuple[int, Any]:
        if path.endswith("/selfsubjectreviews"):
            return 201, {"status": {"userInfo": {"username": "jane"}}}
        if self.allowed is None:
            return 403, {"kind": "Status", "code": 403, "message": "no"}
        return 201, {"status": {"allowed": self.allowed(body["spec"])}}

    def __enter__(self) -> Self:
        port = self._serving.__enter__()
        self.kubeconfig.write_text(json.dumps(pki.kubeconfig(f"http://127.0.0.1:{port}", token="x")))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._serving.__exit__(kind, error, trace)
