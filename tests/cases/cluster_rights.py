"""A real kube-apiserver with the roles of an installation, which decides what the users of a case may do.

`ClusterRights` is an authorizer of the step engine: the objects of the case are in the product's own store, with the clock of
the case, and each write of a user is reviewed by the real server (SubjectAccessReview), which has the case's role bindings."""

from __future__ import annotations

import asyncio
import atexit
import functools
import http
import itertools
import json
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.apiserver import auth
from outfitter.install import kubevirt_roles, names, rbac
from outfitter.install.names import InstallOptions
from tests import kubernetes
from tests.cases.case import Case
from tests.cases.case_product import ADMIN, Answer, Api, NotDriven, replaced
from tests.cases.step_engine import is_right

RIGHTS = "rbac.authorization.k8s.io"
AUTHORIZATION = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
ROOT = Path(__file__).resolve().parents[2]
_sources: list[Callable[[], Path | None]] = [kubernetes.assets]  # of the programs of a control plane
NUMBERS = itertools.count(1)  # of namespaces: one of a real server does not come back, so that each case has its own


@functools.cache
def built_programs() -> Path | None:
    """What `make kube-assets` has built."""
    found = subprocess.run([ROOT / "scripts" / "kube-assets", "--path"], capture_output=True, text=True, check=False)
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def use_built_programs() -> None:
    """Also those that the environment does not name."""
    if built_programs not in _sources:
        _sources.append(built_programs)


def programs() -> Path | None:
    """Of a control plane."""
    return next((found for source in _sources if (found := source()) is not None), None)


@functools.cache
def control_plane() -> kubernetes.Cluster:
    """One for all cases of this process, with the roles of an installation."""
    folder = tempfile.TemporaryDirectory(prefix="outfitter-cases-")
    atexit.register(folder.cleanup)
    cluster = kubernetes.Cluster(Path(folder.name), binaries=programs()).start()
    atexit.register(cluster.stop)
    for namespace in (names.NAMESPACE, "kubevirt"):
        cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    plurals = {"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}
    for obj in [*rbac.objects(InstallOptions()), *kubevirt_roles.objects()]:
        if obj["kind"] in plurals:
            cluster.request("POST", f"/apis/{RIGHTS}/v1/{plurals[obj['kind']]}", obj)
        elif obj["kind"] == "ServiceAccount":
            cluster.request("POST", f"/api/v1/namespaces/{names.NAMESPACE}/serviceaccounts", obj)
    aggregate(ClusterApi(cluster))
    return cluster


def aggregate(api: ClusterApi) -> None:
    """Put the rules of labelled roles into admin, edit and view: no kube-controller-manager runs here, which would."""
    roles = api.at_once("GET", f"/apis/{RIGHTS}/v1/clusterroles").body["items"]
    kept: list[Object] = []
    for name in ("view", "edit", "admin"):  # each has the rules of the one before
        label = f"{RIGHTS}/aggregate-to-{name}"
        kept += [rule for role in roles if label in (role["metadata"].get("labels") or {}) for rule in role.get("rules") or ()]
        api.at_once("PATCH", f"/apis/{RIGHTS}/v1/clusterroles/{name}", {"rules": kept})


class ClusterApi(Api):
    """Requests to kube-apiserver: as the administrator, or as a user who is impersonated."""

    def __init__(self, cluster: kubernetes.Cluster) -> None:
        self._cluster = cluster

    def at_once(
        self, method: str, path: str, body: Object | None = None, user: auth.User = ADMIN, labels: str = ""
    ) -> Answer:
        headers = {"Authorization": f"Bearer {self._cluster.token}", "Content-Type":
                   "application/merge-patch+json" if method == "PATCH" else "application/json"}
        if user is not ADMIN:
            headers |= {"Impersonate-User": user.name}  # groups are those that the server adds
        query = f"?{urlencode({'labelSelector': labels})}" if labels else ""
        request = urllib.request.Request(self._cluster.server + path + query, method=method, headers=headers,
                                         data=None if body is None else json.dumps(body).encode())
        try:
            return Answer(http.HTTPStatus.OK, json.loads(self._cluster.fetch(request)))
        except urllib.error.HTTPError as error:
            return Answer(error.code, json.loads(error.read()))

    async def send(
        self, method: str, path: str, body: Object | None = None, *, user: auth.User = ADMIN, labels: str = ""
    ) -> Answer:
        return await asyncio.to_thread(self.at_once, method, path, body, user, labels)


def bind(api: ClusterApi, rights: Sequence[Object]) -> None:
    """Create roles and bindings; those at the cluster scope may be there from another case."""
    for obj in rights:
        meta = obj["metadata"]
        where = f"/namespaces/{meta['namespace']}" if meta.get("namespace") else ""
        path = f"/apis/{obj['apiVersion']}{where}/{obj['kind'].lower()}s"
        answer = api.at_once("POST", path, obj)
        if answer.status == http.HTTPStatus.CONFLICT:
            api.at_once("DELETE", f"{path}/{meta['name']}")
            answer = api.at_once("POST", path, obj)
        if not answer.ok:
            raise NotDriven(f"given {obj['kind']} {meta['name']} was refused: {answer.body.get('message')}")


def in_namespaces(rights: Sequence[Object], namespaces: Mapping[str, str]) -> list[Object]:
    """Roles and bindings in other namespaces. Their subjects stay who they are: a user of a case is known by a name."""
    return [{**obj, "metadata": replaced(obj["metadata"], namespaces)} for obj in rights]


def wrong_rights(api: ClusterApi, entry: Mapping[str, Any]) -> list[str]:
    return list(_wrong_rights(api, entry))


def _wrong_rights(api: ClusterApi, entry: Mapping[str, Any]) -> Iterator[str]:
    """Where what a user may to whom the role is bound in a namespace differs."""
    namespace, user = f"rights-{next(NUMBERS)}", f"holder-of-{entry['role']}"
    api.at_once("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    bound = api.at_once("POST", f"/apis/{RIGHTS}/v1/namespaces/{namespace}/rolebindings", {
        "metadata": {"name": "bound"}, "subjects": [{"kind": "User", "name": user, "apiGroup": RIGHTS}],
        "roleRef": {"kind": "ClusterRole", "name": entry["role"], "apiGroup": RIGHTS}})
    if not bound.ok:
        yield f"{entry['role']} cannot be bound: {bound.body.get('message')}"
    plural, _, subresource = str(entry["resource"]).partition("/")
    group = "subresources.kubevirt.io" if subresource else next(
        (kind.group for kind in kinds.ALL if kind.plural == plural), "kubevirt.io")
    for word, allowed in (("can", True), ("cannot", False)):
        for verb in entry.get(word) or ():
            review = {"user": user, "groups": ["system:authenticated"], "resourceAttributes": {
                "namespace": namespace, "verb": verb, "group": group, "resource": plural, "subresource": subresource}}
            answer = api.at_once("POST", AUTHORIZATION, {"spec": review})
            if answer.body["status"]["allowed"] is not allowed:
                yield f"{entry['role']} {word} {verb} {entry['resource']} does not hold"


class ClusterRights:
    """What users of a case may do, by its role bindings and the roles that the product ships."""

    def __init__(self, case: Case) -> None:
        self._api = ClusterApi(control_plane())
        given = case.data.get("given") or ()
        used = sorted({obj["metadata"]["namespace"] for obj in given if obj["metadata"].get("namespace")})
        number = next(NUMBERS)
        self._namespaces = {name: f"{name}-{number}" for name in used}
        for namespace in self._namespaces.values():
            self._api.at_once("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        bind(self._api, in_namespaces([obj for obj in given if is_right(obj)], self._namespaces))

    def allows(self, user: auth.User, verb: str, kind: Kind, obj: Object, subresource: str) -> bool:
        namespace = str(obj["metadata"].get("namespace") or "") if kind.namespaced else ""
        attributes = {"verb": verb, "group": kind.group, "resource": kind.plural, "subresource": subresource,
                      "namespace": self._namespaces.get(namespace, namespace), "name": obj["metadata"].get("name", "")}
        answer = self._api.at_once("POST", AUTHORIZATION, {"spec": {
            "user": user.name, "groups": list(user.groups), "resourceAttributes": attributes}})
        if not answer.ok:
            raise NotDriven(f"the rights of {user.name} cannot be reviewed: {answer.body.get('message')}")
        return bool(answer.body["status"]["allowed"])

    async def rbac(self, entries: Sequence[Mapping[str, Any]]) -> list[str]:
        """The word `rbac` of `then`."""
        return [line for entry in entries for line in wrong_rights(self._api, entry)]
