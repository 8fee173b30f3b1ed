"""Collects the state of a cluster for the checks: what is served, and the objects that they look at. Reads only; a read that is
refused is recorded with the server's reason, so that the other checks are made nevertheless. Works with any Kubernetes API
server and with the embedded one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.doctor import workload_settings
from outfitter.doctor.reading import Reading
from outfitter.errors import Unavailable

NAMESPACE = "outfitter-system"
CONTROLLER, WEBHOOK, NODE = "outfitter-controller", "outfitter-webhook", "outfitter-node"
CERTIFICATE = "outfitter-webhook-cert"
CONFIG = "outfitter-config"
GROUPS_OF_WEBHOOK = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
EMBEDDED = "+outfitter"  # in the version of the embedded server
PAGE = 500  # objects per request
AT_ONCE = 16  # requests
_GATE = re.compile(r'^kubernetes_feature_enabled\{([^}]*)\} (\S+)$', re.MULTILINE)
_LABEL = re.compile(r'name="([^"]*)"')


class Api(Protocol):
    """The part of `store.kube.Kube` that is used."""

    async def raw(
        self, method: str, path: str, *, query: Mapping[str, str | int] | None = None, body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]: ...


def _ours(group: str, plural: str, name: str = "") -> str:
    """Of the namespace of the installation, which replaces {namespace}."""
    return f"{group}/namespaces/{{namespace}}/{plural}{f'/{name}' if name else ''}"


# What is read of every cluster, and of the embedded server: name -> path.
COMMON: Mapping[str, str] = {
    "nodes": kinds.NODE.path(), "resourceslices": kinds.RESOURCE_SLICE.path(), "deviceclasses": kinds.DEVICE_CLASS.path(),
    "resourceclaims": kinds.RESOURCE_CLAIM.path(), "hostinventories": kinds.HOST_INVENTORY.path(),
    "ledgerpages": kinds.LEDGER_PAGE.path(), "virtualmachineinstances": kinds.VMI.path(),
    "virtualmachines": kinds.VM.path(), "flavors": kinds.FLAVOR.path(), "kubevirts": kinds.KUBEVIRT.path(),
}
# Of a cluster only. A single object is a reading with one item.
INSTALLED: Mapping[str, str] = {
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "deployments": _ours("/apis/apps/v1", "deployments"), "daemonsets": _ours("/apis/apps/v1", "daemonsets"),
    "pods": _ours("/api/v1", "pods"),
    "leases": _ours("/apis/coordination.k8s.io/v1", "leases"),
    "secrets": _ours("/api/v1", "secrets", CERTIFICATE), "configmaps": _ours("/api/v1", "configmaps", CONFIG),
    "validatingwebhookconfigurations": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/outfitter",
    "mutatingwebhookconfigurations": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/outfitter",
    "apiservices": "/apis/apiregistration.k8s.io/v1/apiservices",
    "virt-controller": "/apis/apps/v1/deployments",  # KubeVirt's own, in whichever namespace it is installed
}
SELECTORS = {"virt-controller": "kubevirt.io=virt-controller"}


@dataclass(frozen=True, slots=True)
class AccessRight:
    """What an account may be allowed to do."""

    verb: str
    group: str
    resource: str  # "pods", "pods/status"
    namespace: str = ""  # "": in all
    name: str = ""  # "": any

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        name, place = f"/{self.name}" if self.name else "", f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{name}{place}"

    def review(self) -> Object:
        plural, _, subresource = self.resource.partition("/")
        fields = {"verb": self.verb, "group": self.group, "resource": plural, "subresource": subresource,
                  "namespace": self.namespace, "name": self.name}
        return {key: value for key, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class Expected:
    """What an installation of this version contains."""

    definitions: Mapping[str, Object] = field(default_factory=dict)  # CustomResourceDefinition by name
    rights: Mapping[str, Sequence[AccessRight]] = field(default_factory=dict)  # service account -> what its roles allow


@dataclass(frozen=True, slots=True)
class ClusterState:
    now: datetime
    namespace: str = NAMESPACE  # of the installation
    version: Mapping[str, Any] = field(default_factory=dict)  # of /version
    user: str = ""  # the caller; empty: the server does not say
    served: frozenset[str] = frozenset()  # group versions: "resource.k8s.io/v1"
    dra_resources: frozenset[str] = frozenset()  # plurals of resource.k8s.io in all versions
    gates: Mapping[str, bool] | None = None  # feature gates of kube-apiserver; None: may not be read
    readings: Mapping[str, Reading] = field(default_factory=dict)  # of COMMON and INSTALLED
    expected: Expected = field(default_factory=Expected)
    refused: Mapping[str, Sequence[AccessRight]] | None = None  # account -> rights that it lacks; None: may not be asked

    @property
    def embedded(self) -> bool:
        return EMBEDDED in str(self.version.get("gitVersion", ""))

    def items(self, name: str) -> tuple[Object, ...]:
        return self.readings[name].items if name in self.readings else ()

    def known(self, *names: str) -> bool:
        """Whether all of these were read: otherwise nothing can be concluded from what they lack."""
        return all(name in self.readings and self.readings[name].known for name in names)


async def collect(
    api: Api, *, now: datetime, namespace: str = NAMESPACE, expected: Callable[[bool], Expected] = lambda companion: Expected()
) -> ClusterState:
    """Unavailable: the server does not answer. `expected`: what should be installed, in companion mode or not."""
    status, version = await _json(api, "GET", "/version")
    if status != 200 or not isinstance(version, dict):
        raise Unavailable(f"the server answered /version with HTTP status {status}, not with a version")
    embedded = EMBEDDED in str(version.get("gitVersion", ""))
    slots = asyncio.Semaphore(AT_ONCE)
    sources = COMMON if embedded else {**COMMON, **INSTALLED}

    async def read(name: str, path: str) -> Reading:
        async with slots:
            return await _read(api, path.replace("{namespace}", namespace), SELECTORS.get(name, ""))

    readings = dict(zip(sources, await asyncio.gather(*(read(name, path) for name, path in sources.items())), strict=True))
    served = await _served(api)
    resources = [await _resources(api, each) for each in served if each.startswith("resource.k8s.io/")]
    state = ClusterState(
        now=now, namespace=namespace, version=version, user=await _user(api), served=served, readings=readings,
        dra_resources=frozenset().union(*resources),
        gates=None if embedded else await _gates(api))
    if embedded:
        return replace(state, refused={})
    wanted = expected(workload_settings.switched_on(state.readings, CONTROLLER, "companion"))
    refused = await _refused(api, namespace, wanted.rights, slots) if state.items("deployments") else {}
    return replace(state, expected=wanted, refused=refused)


async def _json(
    api: Api, method: str, path: str, body: Object | None = None, query: Mapping[str, str | int] | None = None
) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} if body is not None else None
    status, _, payload = await api.raw(method, path, query=query, headers=headers,
                                       body=json.dumps(body).encode() if body is not None else None)
    try:
        return status, json.loads(payload)
    except ValueError:
        return status, None


async def _read(api: Api, path: str, labels: str) -> Reading:
    items: list[Object] = []
    token = ""
    while True:
        query: dict[str, str | int] = {"limit": PAGE, "continue": token, "labelSelector": labels}  # empty ones are not sent
        status, answer = await _json(api, "GET", path, query=query)
        if status != 200 or not isinstance(answer, dict):
            reason = answer.get("message", "") if isinstance(answer, dict) else ""
            return Reading((), status if status != 200 else 500, str(reason) or f"HTTP status {status}")
        if "items" not in answer:
            return Reading((answer,))
        items += [item for item in answer["items"] or () if isinstance(item, dict)]
        token = (answer.get("metadata") or {}).get("continue") or ""
        if not token:
            return Reading(tuple(items))


async def _served(api: Api) -> frozenset[str]:
    _, answer = await _json(api, "GET", "/apis")
    groups = (answer.get("groups") or ()) if isinstance(answer, dict) else ()
    return frozenset(version["groupVersion"] for group in groups for version in group.get("versions") or ())


async def _resources(api: Api, group_version: str) -> frozenset[str]:
    _, answer = await _json(api, "GET", f"/apis/{group_version}")
    return frozenset(entry["name"] for entry in (answer.get("resources") or () if isinstance(answer, dict) else ()))


async def _user(api: Api) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    status, answer = await _json(api, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    if status not in (200, 201) or not isinstance(answer, dict):
        return ""
    return str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "")


async def _gates(api: Api) -> dict[str, bool] | None:
    status, _, payload = await api.raw("GET", "/metrics", headers={"Accept": "text/plain"})
    if status != 200:
        return None
    lines = _GATE.findall(payload.decode(errors="replace"))
    return {name[1]: float(value) > 0 for labels, value in lines if (name := _LABEL.search(labels))} or None


async def _refused(
    api: Api, namespace: str, rights: Mapping[str, Sequence[AccessRight]], slots: asyncio.Semaphore
) -> dict[str, list[AccessRight]] | None:
    """The rights that each account lacks, by asking the server's authorizer."""

    async def refused(account: str, right: AccessRight) -> bool | None:
        user = f"system:serviceaccount:{namespace}:{account}"
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": user, "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
            "resourceAttributes": right.review()}}
        async with slots:
            status, answer = await _json(api, "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        if status not in (200, 201) or not isinstance(answer, dict):
            return None
        return not (answer.get("status") or {}).get("allowed")

    asked = [(account, right) for account, rules in rights.items() for right in rules]
    if asked and await refused(*asked[0]) is None:
        return None
    answers = await asyncio.gather(*(refused(account, right) for account, right in asked))
    if None in answers:
        return None
    out: dict[str, list[AccessRight]] = {account: [] for account in rights}
    for (account, right), answer in zip(asked, answers, strict=True):
        if answer:
            out[account].append(right)
    return out
