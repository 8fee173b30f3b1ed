"""The product, as a case finds it: its objects are there before any controller runs, as after a restart.

A scenario speaks to the product through its API server (as requests, without sockets) and knows no rule of it. What a case
needs and the product does not serve raises `NotDriven`: the case fails and reports it."""

from __future__ import annotations

import contextlib
import copy
import http
import json
import logging
import random
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import feature_gates, vm_actions
from outfitter.apiserver import auth
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import OpenRules

ADMIN = auth.User("cases", (auth.MASTERS,))
# Made first, in this order, wherever a case lists them: the later ones, and all others, carry uids of the earlier ones.
FIRST = ("VirtualMachine", "VirtualMachineInstance", "VirtualMachineInstanceMigration", "Node", "Pod")
GIVEN_BY_THE_SERVER = ("resourceVersion", "generation", "managedFields", "selfLink")
HOLD = "outfitter.dev/cases"  # keeps an object that is being deleted from going
# Gates known to the cases, with whether KubeVirt 1.9 has them on: one that a case does not name is off, but for `gateDefaults`.
GATES = {"HostDevices": False, "GPUsWithDRA": True, "HostDevicesWithDRA": True, "NetworkDevicesWithDRA": False,
         "ExternalNetResourceInjection": True, "PodSecondaryInterfaceNamingUpgrade": True}
DEFAULTS = (None, "v1.9")
BY_A_RULE = (http.HTTPStatus.FORBIDDEN, http.HTTPStatus.UNPROCESSABLE_ENTITY)  # refused; given objects are older than the rule
GRACE = "outfitter.dev/nic-hotplug-grace-period-seconds"  # annotation of the KubeVirt object


class NotDriven(Exception):
    """The product has no way yet to be given what the case needs."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Object

    @property
    def ok(self) -> bool:
        return self.status < 300

    @property
    def causes(self) -> list[tuple[str, str]]:
        """Field and message of everything that the server found wrong."""
        if self.ok:
            return []
        causes = (self.body.get("details") or {}).get("causes") or [{"message": self.body.get("message", "")}]
        return [(cause.get("field", ""), cause.get("message", "")) for cause in causes]


class Api:
    """Requests to the product's API server."""

    def __init__(self, product: app.Embedded) -> None:
        self._product = product

    async def send(
        self, method: str, path: str, body: Object | None = None, *, user: auth.User = ADMIN, labels: str = ""
    ) -> Answer:
        subject = [[("commonName", user.name)], *([("organizationName", group)] for group in user.groups)]
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        query = urlencode({"labelSelector": labels}) if labels else ""
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
                 "headers": [(b"content-type", content.encode())], "extensions": {auth.PEER: {"subject": subject}}}
        data = b"" if body is None else json.dumps(body).encode()
        sent: list[dict[str, Any]] = []

        async def receive() -> Mapping[str, Any]:
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._product.api(scope, receive, send)
        answered = b"".join(part.get("body", b"") for part in sent[1:])
        return Answer(sent[0]["status"], json.loads(answered) if answered else {})  # actions on a VM answer without a body

    async def create(self, obj: Object, *, user: auth.User = ADMIN) -> Answer:
        """As the object is: in the version in which it is written."""
        return await self.send("POST", object_path(kind_of(obj), obj, named=False), obj, user=user)

    async def update(self, obj: Object, *, user: auth.User = ADMIN) -> Answer:
        return await self.send("PUT", object_path(kind_of(obj), obj), obj, user=user)

    async def set_status(self, obj: Object) -> Answer:
        return await self.send("PATCH", object_path(kind_of(obj), obj) + "/status", {"status": obj["status"]})

    async def delete(self, obj: Object) -> Answer:
        return await self.send("DELETE", object_path(kind_of(obj), obj))

    async def read(self, obj: Object) -> Object:
        answer = await self.send("GET", object_path(kind_of(obj), obj))
        if not answer.ok:
            raise NotDriven(f"{obj['kind']} {obj['metadata']['name']} cannot be read: {answer.body.get('message')}")
        return answer.body

    async def list(self, kind: Kind, namespace: str, labels: str = "") -> list[Object]:
        shape = {"apiVersion": kind.api_version, "metadata": {"namespace": namespace}}
        answer = await self.send("GET", object_path(kind, shape, named=False), labels=labels)
        return list(answer.body["items"])


class CaseScenario:
    """One case's store, clock and names, over any number of runs of the product."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clock, self._names = ManualClock(), IdGenerator(random.Random(1))
        self._uids: dict[str, str] = {}  # as the case writes it -> as the server gave it
        self._placed: dict[tuple[str, str, str], str] = {}  # namespace, kind, name -> the uid that the server gave
        self._with_uid: set[tuple[str, str, str]] = set()  # those of which the case says a uid
        self.notes: list[str] = []  # what the product could not be given

    @contextlib.asynccontextmanager
    async def product(self, *, controllers: bool = True) -> AsyncIterator[tuple[app.Embedded, Api]]:
        async with app.embedded(data=self._folder, clock=self.clock, names=self._names, synchronous="OFF") as product:
            if not controllers:
                await product.runner.stop()
            yield product, Api(product)

    async def load(self, product: app.Embedded, api: Api, config: Mapping[str, Any], given: Sequence[Object]) -> None:
        """Configure the product and put the given objects into it, with their status. A KubeVirt object among them reports what
        the settings do not."""
        own = next((obj for obj in given if obj["kind"] == kinds.KUBEVIRT.kind), None)
        await self._configure(product, api, config, own)
        given = [obj for obj in given if obj is not own]
        for namespace in sorted({obj["metadata"]["namespace"] for obj in given if obj["metadata"].get("namespace")}):
            await self._put(product, api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        age = ""
        for obj in sorted(given, key=lambda obj: (creation_rank(obj), _created(obj))):
            if age and _created(obj) > age:
                self.clock.advance(1)  # the server gives the time: what a case calls younger becomes younger
            age = _created(obj) or age
            await self._put(product, api, self.own(obj))
        for obj in map(self.own, given):  # statuses last: they mention pods by uids that the server has given by now
            await self._tell(api, obj, product)

    def own(self, obj: Object) -> Object:
        """A copy of an object of the case that refers to others by the uids that the server gave them. Owners are meant by
        their name where the case says no uid; those that the case does not have are skipped, or the garbage collector
        would delete the object."""
        obj = copy.deepcopy(obj)
        for field in GIVEN_BY_THE_SERVER:  # of an object as it is stored somewhere; another server gives its own
            obj["metadata"].pop(field, None)
        kept = []
        for reference in obj["metadata"].get("ownerReferences") or ():
            owner = (obj["metadata"].get("namespace", ""), reference["kind"], reference["name"])
            if owner in self._placed and (owner not in self._with_uid or not reference.get("uid")):
                self._uids[str(reference.get("uid"))] = reference["uid"] = self._placed[owner]
            kept += [reference] if owner in self._placed or reference.get("uid") in self._uids else []
        if "ownerReferences" in obj["metadata"]:
            obj["metadata"]["ownerReferences"] = kept
        for user in (obj.get("status") or {}).get("reservedFor") or ():  # of a claim: pods that the case gives no uid
            pod = (obj["metadata"].get("namespace", ""), "Pod", user.get("name", ""))
            if user.get("resource") == "pods" and user.get("uid") and pod in self._placed and pod not in self._with_uid:
                self._uids.setdefault(user["uid"], self._placed[pod])
        mapped: Object = replaced(obj, self._uids)
        return mapped

    async def _put(self, product: app.Embedded, api: Api, obj: Object) -> None:
        meta = obj["metadata"]
        place = (meta.get("namespace", ""), obj["kind"], meta["name"])
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            meta["finalizers"] = [HOLD]
        answer = await api.create(obj)
        if answer.status == 409:  # the product makes a few of its own, such as namespaces
            return
        if answer.status in BY_A_RULE:
            with _without_rules(product):
                answer = await api.create(obj)
        if not answer.ok:
            raise NotDriven(f"given {place[1]} {place[2]} was refused: {answer.body.get('message')}")
        self._remember(obj, answer.body)

    def _remember(self, obj: Object, stored: Object) -> None:
        """The uid that the server gave an object of the case."""
        meta = obj["metadata"]
        place = (meta.get("namespace", ""), obj["kind"], meta["name"])
        self._placed[place] = stored["metadata"]["uid"]
        if meta.get("uid"):
            self._uids[meta["uid"]] = self._placed[place]
            self._with_uid.add(place)

    async def _tell(self, api: Api, obj: Object, product: app.Embedded | None = None) -> None:
        """`product`: where the status may have been stored before a rule that refuses it now."""
        if obj.get("status") and kind_of(obj).has_status:
            answer = await api.set_status(obj)
            if answer.status in BY_A_RULE and product is not None:
                with _without_rules(product):
                    answer = await api.set_status(obj)
            if not answer.ok:
                raise NotDriven(f"the status of given {obj['kind']} {obj['metadata']['name']} was refused: "
                                f"{answer.body.get('message')}")
        if obj["metadata"].get("deletionTimestamp"):
            await api.delete(obj)

    async def start_vms(self, api: Api, config: Mapping[str, Any], given: Sequence[Object]) -> None:
        """config.startVMs, true or names: those of the case's VMs that a user has to start are started; a run strategy that
        starts a VM by itself refuses that, as does a VMI that is there."""
        wanted = config.get("startVMs") or ()
        for vm in given if wanted else ():
            if vm["kind"] == kinds.VM.kind and (wanted is True or vm["metadata"]["name"] in wanted):
                shape = {**vm, "apiVersion": f"{vm_actions.GROUP}/v1"}
                answer = await api.send("PUT", f"{object_path(kinds.VM, shape)}/start", {})
                if not answer.ok and answer.status != http.HTTPStatus.CONFLICT:
                    raise NotDriven(f"VM {vm['metadata']['name']} was not started: {answer.body.get('message')}")

    async def _configure(self, product: app.Embedded, api: Api, config: Mapping[str, Any], own: Object | None) -> None:
        kubevirt = settings_object(config, own)
        await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kubevirt"}})
        answer = await _stored_settings(api, kubevirt)
        if answer.status in BY_A_RULE:
            with _without_rules(product):
                answer = await _stored_settings(api, kubevirt)
        if not answer.ok:
            raise NotDriven(f"the settings of the case were refused: {answer.body.get('message')}")


def named_entry(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a step names, with the name and namespace of a whole object in their place."""
    meta = entry.get("metadata") or {}
    return {**entry, **{key: meta[key] for key in ("name", "namespace") if key in meta}}


async def _stored_settings(api: Api, kubevirt: Object) -> Answer:
    answer = await api.create(kubevirt)
    if answer.status != http.HTTPStatus.CONFLICT:
        return answer
    return await api.send("PATCH", object_path(kind_of(kubevirt), kubevirt), {"spec": kubevirt["spec"]})


@contextlib.contextmanager
def _without_rules(product: app.Embedded) -> Iterator[None]:
    rules, product.store.rules = product.store.rules, OpenRules()
    try:
        yield
    finally:
        product.store.rules = rules


def settings_object(config: Mapping[str, Any], own: Object | None) -> Object:
    """The case's settings, as the cluster's KubeVirt object says them; `own`: one that the case gives itself."""
    said = copy.deepcopy((own or {}).get("spec") or {})
    settings: Object = said.get("configuration") or {}
    developer = settings.get("developerConfiguration") or {}
    on = [*(config.get("featureGates") or ()), *(developer.get("featureGates") or ())]
    off = [*(config.get("disabledFeatureGates") or ()), *(developer.get("disabledFeatureGates") or ())]
    if config.get("gateDefaults") not in DEFAULTS:
        raise NotDriven(f"config.gateDefaults: {config['gateDefaults']} is not known; v1.9 is")
    by_default = GATES if config.get("gateDefaults") else {}
    # A gate that the product has no default for is listed; one that it has is left to the names that stand for it.
    on += [gate for gate, beta in by_default.items() if beta and gate not in (*on, *off, *feature_gates.KNOWN)]
    off += [gate for gate in GATES if gate not in on and gate not in off and not by_default.get(gate)]
    settings["developerConfiguration"] = {**developer, "featureGates": on, "disabledFeatureGates": off}
    for key in ("permittedHostDevices", "vmRolloutStrategy"):
        if config.get(key) is not None:
            settings[key] = config[key]
    if config.get("parallelMigrationsPerCluster") is not None:
        settings["migrations"] = {**(settings.get("migrations") or {}),
                                  "parallelMigrationsPerCluster": int(config["parallelMigrationsPerCluster"])}
    annotations = dict(((own or {}).get("metadata") or {}).get("annotations") or {})
    if config.get("gracePeriodSeconds") is not None:
        annotations[GRACE] = str(config["gracePeriodSeconds"])
    spec: Object = {**said, "configuration": settings}
    if config.get("workloadUpdateMethods") is not None:
        spec["workloadUpdateStrategy"] = {"workloadUpdateMethods": config["workloadUpdateMethods"]}
    return {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "spec": spec,
                        "metadata": {"name": "kubevirt", "namespace": "kubevirt", "annotations": annotations}}


@contextlib.asynccontextmanager
async def case_scenario() -> AsyncIterator[CaseScenario]:
    with tempfile.TemporaryDirectory(prefix="outfitter-case-") as folder:
        yield CaseScenario(Path(folder))


class Faults(logging.Handler):
    """Collects what the product logs as a fault of its own while a case runs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.said.append(f"a fault of the product: {record.getMessage()}: {record.exc_info[1]!r}")

    def __enter__(self) -> Faults:
        logging.getLogger("outfitter").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("outfitter").removeHandler(self)


def kind_of(obj: Mapping[str, Any]) -> Kind:
    kind = kinds.of_object(obj)
    if kind is None:
        raise NotDriven(f"the product does not serve {obj['kind']} of {obj['apiVersion']}")
    return kind


def creation_rank(obj: Mapping[str, Any]) -> int:
    return FIRST.index(obj["kind"]) if obj["kind"] in FIRST else len(FIRST)


def _created(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"].get("creationTimestamp") or "")


def contains(text: str, part: Any) -> bool:
    """Whether a message holds a token of a case, or every token of a list, in whichever case of letters."""
    return all(str(each).lower() in text.lower() for each in (part if isinstance(part, list) else [part]))


def object_path(kind: Kind, obj: Mapping[str, Any], *, named: bool = True) -> str:
    """The path of an object, or of the objects of its kind in its namespace."""
    meta, version = obj["metadata"], str(obj["apiVersion"])
    words = ["apis" if "/" in version else "api", *version.split("/")]
    if kind.namespaced:
        words += ["namespaces", meta.get("namespace", "default")]
    words.append(kind.plural)
    if named:
        words.append(meta["name"])
    return "/" + "/".join(quote(word, safe="") for word in words)


def replaced(value: Any, table: Mapping[str, str]) -> Any:
    """A value with texts and keys replaced as the table says."""
    if isinstance(value, dict):
        return {table.get(key, key): replaced(inner, table) for key, inner in value.items()}
    if isinstance(value, list):
        return [replaced(inner, table) for inner in value]
    return table.get(value, value) if isinstance(value, str) else value
