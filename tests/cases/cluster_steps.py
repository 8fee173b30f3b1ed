"""Steps of a case on a real kube-apiserver, for cases about rights: users are impersonated, RBAC decides, and the product's
controllers run in this process with the rights of an installation and an injected clock.

Nothing tells when a real server is idle: what a step expects is looked at until it holds, or for a minute."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import http
import itertools
import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.apiserver import auth
from outfitter.controllers.manager import ControllerContext, ControllerManager
from outfitter.install import kubevirt_roles, names, rbac
from outfitter.install.names import InstallOptions
from outfitter.inventory.config import DEFAULT
from outfitter.roles.controller import cluster_controllers
from outfitter.store import kubeconfig, pki
from outfitter.store.clock import ManualClock, SystemClock
from outfitter.store.kube import Kube
from outfitter.store.rest_config import RestConfig
from tests import kubernetes
from tests.cases.case import Case
from tests.cases.case_product import ADMIN, Answer, Api, CaseScenario, NotDriven, object_path, replaced, settings_object
from tests.cases.step_checks import CHECKS
from tests.cases.step_engine import EPOCH

PATIENCE = 60.0  # seconds until what a step expects must hold
RIGHTS = "rbac.authorization.k8s.io"
AUTHORIZATION = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
SETTINGS = {"apiVersion": kinds.KUBEVIRT.api_version, "kind": kinds.KUBEVIRT.kind,
            "metadata": {"name": "kubevirt", "namespace": "kubevirt"}}
_numbers = itertools.count(1)


@functools.cache
def control_plane() -> kubernetes.Cluster:
    """One for all cases of this process, with the roles of an installation."""
    folder = tempfile.TemporaryDirectory(prefix="outfitter-cases-")
    atexit.register(folder.cleanup)
    cluster = kubernetes.Cluster(Path(folder.name)).start()
    atexit.register(cluster.stop)
    for namespace in (names.NAMESPACE, "kubevirt"):
        cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    plurals = {"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}
    for obj in [*rbac.objects(InstallOptions()), *kubevirt_roles.objects()]:
        if obj["kind"] in plurals:
            cluster.request("POST", f"/apis/{RIGHTS}/v1/{plurals[obj['kind']]}", obj)
        elif obj["kind"] == "ServiceAccount":
            cluster.request("POST", f"/api/v1/namespaces/{names.NAMESPACE}/serviceaccounts", obj)
    return cluster


def controller_access(cluster: kubernetes.Cluster) -> RestConfig:
    """With the token of the controllers' service account."""
    path = f"/api/v1/namespaces/{names.NAMESPACE}/serviceaccounts/{names.CONTROLLER}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    token = json.loads(cluster.request("POST", path, request))["status"]["token"]
    file = cluster.folder / "controller.kubeconfig"
    ca = (cluster.folder / "pki" / "ca.crt").read_bytes()
    pki.save_private(file, json.dumps(pki.kubeconfig(cluster.server, ca=ca, token=token)).encode())
    return kubeconfig.load(file, clock=SystemClock())


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
            headers |= {"Impersonate-User": user.name, "Impersonate-Group": "system:authenticated"}
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


class ClusterSteps(CaseScenario):
    def __init__(self, case: Case) -> None:
        super().__init__(Path())
        self.case, self.cluster = case, control_plane()
        self.api, self.clock = ClusterApi(self.cluster), ManualClock(EPOCH)
        # A namespace of a real server does not come back: each case has its own.
        number = next(_numbers)
        self._own = {name: f"{name}-{number}" for name in self._namespaces()}

    def _namespaces(self) -> list[str]:
        given = self.case.data.get("given") or ()
        return sorted({obj["metadata"]["namespace"] for obj in given if obj["metadata"].get("namespace")})

    async def run(self) -> list[str]:
        await self._load()
        wrong: list[str] = []
        async with self._controllers():
            for index, step in enumerate(self.case.expect.get("steps") or ()):
                wrong += [f"step {index}, at {step['at']}: {line}" for line in await self._step(step)]
        await self._clear()
        return wrong

    @contextlib.asynccontextmanager
    async def _controllers(self) -> AsyncIterator[None]:
        """`outfit controller`, with the clock of the case."""
        store = Kube(await asyncio.to_thread(controller_access, self.cluster), clock=SystemClock())
        context = ControllerContext(store, clock=self.clock)
        manager = ControllerManager(context, cluster_controllers(context, DEFAULT))
        try:
            await manager.start()
            yield
        finally:
            await manager.stop()
            await store.close()

    async def _load(self) -> None:
        answer = await self.api.create(settings_object(self.case.config, None))
        if answer.status == http.HTTPStatus.CONFLICT:
            spec = settings_object(self.case.config, None)["spec"]
            answer = await self.api.send("PATCH", object_path(kinds.KUBEVIRT, SETTINGS), {"spec": spec})
        if not answer.ok:
            raise NotDriven(f"the settings of the case were refused: {answer.body.get('message')}")
        for namespace in self._own.values():
            await self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        given = self.mapped(self.case.data.get("given") or [])
        rights = [obj for obj in given if obj["apiVersion"].startswith(RIGHTS)]
        for obj in rights:
            meta = obj["metadata"]
            where = f"/namespaces/{meta['namespace']}" if meta.get("namespace") else ""
            answer = await self.api.send("POST", f"/apis/{obj['apiVersion']}{where}/{obj['kind'].lower()}s", obj)
            if not answer.ok:
                raise NotDriven(f"given {obj['kind']} {meta['name']} was refused: {answer.body.get('message')}")
        rest = [obj for obj in given if obj not in rights]
        owners = ("VirtualMachine", "VirtualMachineInstance", "Node")
        for obj in sorted(rest, key=lambda obj: (obj["kind"] not in owners, obj["kind"] != "Pod")):
            await self._put_on_server(self.own(obj))
        for obj in map(self.own, rest):
            await self._tell(self.api, obj)

    async def _put_on_server(self, obj: Object) -> None:
        meta = obj["metadata"]
        if obj["kind"] == kinds.POD.kind:  # a real server wants an image
            obj["spec"]["containers"] = [{"image": "none", **each} for each in obj["spec"]["containers"]]
        answer = await self.api.create(obj)
        if not answer.ok and answer.status != http.HTTPStatus.CONFLICT:
            raise NotDriven(f"given {obj['kind']} {meta['name']} was refused: {answer.body.get('message')}")
        if answer.ok:
            self._remember(obj, answer.body)

    def mapped(self, value: Any) -> Any:
        return replaced(replaced(value, self._own), self._uids)

    # -- steps

    async def _step(self, step: Mapping[str, Any]) -> list[str]:
        passed = (self.clock.now() - EPOCH).total_seconds()
        self.clock.advance(max(0.0, float(step["at"]) - passed))
        do, then = self.mapped(step.get("do") or {}), self.mapped(step.get("then") or {})
        user = auth.User(str(do["user"])) if "user" in do else ADMIN
        answers: list[Answer] = []
        for word, entries in do.items():
            if word != "user":
                answers += [await self._write(word, entry, user) for entry in entries]
        wrong = self._refusals(then.get("refused"), answers)
        for entry in then.get("rbac") or ():
            wrong += await asyncio.to_thread(self._rights, entry)
        return [*wrong, *await self._until_it_holds(then)]

    async def _write(self, word: str, entry: Mapping[str, Any], user: auth.User) -> Answer:
        if word == "create":
            return await self.api.create(dict(entry), user=user)
        path = object_path(self.kind(entry["kind"]), self._shape(entry))
        if word == "delete":
            return await self.api.send("DELETE", path, user=user)
        if word not in ("apply", "applyStatus"):
            raise NotDriven(f"do.{word} is not known on a real server")
        return await self.api.send("PATCH", path + ("/status" if word == "applyStatus" else ""), entry["patch"], user=user)

    def _refusals(self, wanted: Mapping[str, Any] | None, answers: Sequence[Answer]) -> list[str]:
        if wanted is None:
            return [f"a write was refused with {answer.status}: {answer.body.get('message')}" for answer in answers
                    if not answer.ok]
        return [f"answered with {answer.status}, not {wanted.get('status', 'a refusal')}: {answer.body.get('message')}"
                for answer in answers if answer.ok or wanted.get("status", answer.status) != answer.status]

    def _rights(self, entry: Mapping[str, Any]) -> list[str]:
        return list(self._wrong_rights(entry))

    def _wrong_rights(self, entry: Mapping[str, Any]) -> Iterator[str]:
        """Where what a user may to whom the role is bound in a namespace differs."""
        namespace, user = f"rights-{next(_numbers)}", f"holder-of-{entry['role']}"
        self.api.at_once("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        bound = self.api.at_once("POST", f"/apis/{RIGHTS}/v1/namespaces/{namespace}/rolebindings", {
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
                answer = self.api.at_once("POST", AUTHORIZATION, {"spec": review})
                if answer.body["status"]["allowed"] is not allowed:
                    yield f"{entry['role']} {word} {verb} {entry['resource']} does not hold"

    async def _until_it_holds(self, then: Mapping[str, Any]) -> list[str]:
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while True:
            wrong = [line for word, entries in then.items() if word in CHECKS for entry in entries
                     for line in await asyncio.to_thread(CHECKS[word], self, entry)]
            if not wrong or loop.time() > end:
                return wrong
            await asyncio.sleep(0.2)

    async def _clear(self) -> None:
        """So that no VM of this case is in the way of the next."""
        for kind in (kinds.MIGRATION, kinds.VM, kinds.VMI, kinds.POD):
            for namespace in self._own.values():
                for obj in self.all(kind, namespace):
                    path = object_path(kind, {**obj, "apiVersion": kind.api_version})
                    with contextlib.suppress(NotDriven):
                        await self.api.send("PATCH", path, {"metadata": {"finalizers": None}})
                        await self.api.send("DELETE", path, {"gracePeriodSeconds": 0})

    # -- reads

    def kind(self, name: str) -> Kind:
        return next(kind for kind in kinds.ALL if kind.kind == name)

    def all(self, kind: Kind, namespace: str | None = None) -> list[Object]:
        words = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
        answer = self.api.at_once("GET", "/" + "/".join([*words, kind.plural]))
        ours = set(self._own.values())
        return [obj for obj in answer.body["items"] if namespace in (None, obj["metadata"].get("namespace"))
                and (not kind.namespaced or obj["metadata"]["namespace"] in ours)]

    def find(self, entry: Mapping[str, Any]) -> Object | None:
        return next((obj for obj in self.all(self.kind(entry["kind"]), entry.get("namespace"))
                     if obj["metadata"]["name"] == entry["name"]), None)

    def _shape(self, entry: Mapping[str, Any]) -> Object:
        kind = self.kind(entry["kind"])
        namespace = entry.get("namespace") or next(iter(self._own.values()), "default")
        return {"apiVersion": kind.api_version, "kind": kind.kind,
                "metadata": {"name": entry["name"], "namespace": namespace}}
