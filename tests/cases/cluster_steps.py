"""Steps of a case on a real kube-apiserver, for cases about rights: users are impersonated, RBAC decides, and the product's
controllers run in this process with the rights of an installation and an injected clock.

Nothing reports when a real server is idle: what a step expects is looked at until it holds, or for a minute. Words that need
the injected clock of nodes, or a server that is idle, are not known here (`runs_on_a_server`)."""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.apiserver import auth
from outfitter.controllers.manager import ControllerContext, ControllerManager
from outfitter.install import names
from outfitter.inventory.config import DEFAULT
from outfitter.roles.controller import cluster_controllers
from outfitter.store import kubeconfig, pki
from outfitter.store.clock import ManualClock, SystemClock
from outfitter.store.kube import Kube
from outfitter.store.rest_config import RestConfig
from tests import kubernetes
from tests.cases.case import Case
from tests.cases.case_product import (
    ADMIN,
    GRACE,
    Answer,
    CaseScenario,
    NotDriven,
    creation_rank,
    named_entry,
    object_path,
    replaced,
    settings_object,
)
from tests.cases.cluster_rights import NUMBERS, ClusterApi, bind, control_plane, in_namespaces, wrong_rights
from tests.cases.step_checks import CHECKS
from tests.cases.step_engine import EPOCH, is_right, user_named

PATIENCE = 60.0  # seconds until what a step expects must hold
SETTINGS = {"apiVersion": kinds.KUBEVIRT.api_version, "kind": kinds.KUBEVIRT.kind,
            "metadata": {"name": "kubevirt", "namespace": "kubevirt"}}


def controller_access(cluster: kubernetes.Cluster) -> RestConfig:
    """With the token of the controllers' service account."""
    path = f"/api/v1/namespaces/{names.NAMESPACE}/serviceaccounts/{names.CONTROLLER}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    token = json.loads(cluster.request("POST", path, request))["status"]["token"]
    file = cluster.folder / "controller.kubeconfig"
    ca = (cluster.folder / "pki" / "ca.crt").read_bytes()
    pki.save_private(file, json.dumps(pki.kubeconfig(cluster.server, ca=ca, token=token)).encode())
    return kubeconfig.load(file, clock=SystemClock())


WRITES, CHECKED = {"user", "create", "apply", "applyStatus", "delete"}, {*CHECKS, "rbac", "refused"}
PLAYED = ("playNodes", "newMigrationPhase", "failMigrationsAfterSeconds")  # of config: parts of a cluster that a case plays


FOR_RIGHTS = {"status": int(http.HTTPStatus.FORBIDDEN)}  # no webhook of the product runs, which would refuse for other reasons


def runs_on_a_server(case: Case) -> bool:
    """Whether all words of a case are known here."""
    steps = [(step.get("do") or {}, step.get("then") or {}) for step in case.expect.get("steps") or ()]
    known = all(do.keys() <= WRITES and then.keys() <= CHECKED and then.get("refused", FOR_RIGHTS) == FOR_RIGHTS
                for do, then in steps)
    plain = not any(key in case.config for key in PLAYED) and "@pod(" not in json.dumps(steps)
    return known and plain and case.area == "hotplug"


class ClusterSteps(CaseScenario):
    def __init__(self, case: Case) -> None:
        super().__init__(Path())
        self.case, self.cluster = case, control_plane()
        self.api, self.clock = ClusterApi(self.cluster), ManualClock(EPOCH)
        # A namespace of a real server does not come back: each case has its own.
        number = next(NUMBERS)
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
            wanted = settings_object(self.case.config, None)
            annotations = {GRACE: None, **wanted["metadata"]["annotations"]}
            answer = await self.api.send("PATCH", object_path(kinds.KUBEVIRT, SETTINGS), {
                "metadata": {"annotations": annotations}, "spec": wanted["spec"]})
        if not answer.ok:
            raise NotDriven(f"the settings of the case were refused: {answer.body.get('message')}")
        for namespace in self._own.values():
            await self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        given = self.case.data.get("given") or []
        rights = in_namespaces([obj for obj in given if is_right(obj)], self._own)
        await asyncio.to_thread(bind, self.api, rights)
        rest = self.mapped([obj for obj in given if not is_right(obj)])
        for obj in sorted(rest, key=creation_rank):
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
        user = user_named(str(do["user"])) if "user" in do else ADMIN
        answers: list[Answer] = []
        for word, entries in do.items():
            if word != "user":
                answers += [await self._write(word, entry, user) for entry in entries]
        wrong = self._refusals(then.get("refused"), answers)
        for entry in then.get("rbac") or ():
            wrong += await asyncio.to_thread(wrong_rights, self.api, entry)
        return [*wrong, *await self._until_it_holds(then)]

    async def _write(self, word: str, entry: Mapping[str, Any], user: auth.User) -> Answer:
        if word == "create":
            return await self.api.create(dict(entry), user=user)
        path = object_path(self.kind(entry["kind"]), self._shape(named_entry(entry)))
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
        """So that no VM and no host of this case is in the way of the next."""
        for kind in (kinds.MIGRATION, kinds.VM, kinds.VMI, kinds.POD, kinds.NODE):
            for namespace in self._own.values() if kind.namespaced else (None,):
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

    def named(self, name: str, namespace: str | None = None) -> str:
        return name

    def _shape(self, entry: Mapping[str, Any]) -> Object:
        kind = self.kind(entry["kind"])
        namespace = entry.get("namespace") or next(iter(self._own.values()), "default")
        return {"apiVersion": kind.api_version, "kind": kind.kind,
                "metadata": {"name": entry["name"], "namespace": namespace}}
