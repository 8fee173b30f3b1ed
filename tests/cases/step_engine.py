"""Steps of a case (areas hotplug and migration): writes at a second of an injected clock, the controllers run until they are
idle, and what is stored is compared.

    async with stepped(case) as engine:        # the given objects are stored, no controller runs yet
        engine.actors.append(PlayedNodes(...))  # what plays nodes or controllers that are not the product's
        wrong = await engine.run()

The engine speaks to the product through its API server and knows no rule of it. An actor plays a part of the cluster: it is
asked after every settle and at the second that it names. All writes of a step are made before any controller gets a turn."""

from __future__ import annotations

import contextlib
import copy
import http
import json
import math
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.apiserver import auth
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from tests.cases.case import Case
from tests.cases.case_product import (
    ADMIN,
    Answer,
    Api,
    CaseScenario,
    Faults,
    NotDriven,
    contains,
    kind_of,
    named_entry,
    object_path,
    replaced,
)
from tests.cases.given_bookings import book_given
from tests.cases.object_paths import select
from tests.cases.played_quota import KIND, QuotaRules
from tests.cases.step_checks import CHECKS

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AT_ONCE = 0.9  # delays below a second, of retries, count as part of the step
TURNS = 200  # of the controllers and the actors within one second
# Kubernetes' own controllers, which act on nodes; nothing but the product is assumed to run.
OF_KUBERNETES = ("pod_gc", "node_taint_eviction")
_POD_OF = re.compile(r"@pod\((?P<vmi>[^)]+)\)")


class Authorizer(Protocol):
    """Decides what users of a case may do."""

    def allows(self, user: auth.User, verb: str, kind: Kind, obj: Object, subresource: str) -> bool: ...


class Actor(Protocol):
    """Plays a part of the cluster."""

    async def act(self, now: float) -> bool:
        """Do what is due; whether anything was written."""
        ...

    def due(self, now: float) -> float | None:
        """The next second at which something is due; None: when something changes."""
        ...


def is_right(obj: Mapping[str, Any]) -> bool:
    """Whether a given object is one of RBAC."""
    return str(obj.get("apiVersion")).startswith("rbac.authorization.k8s.io/")


def user_named(name: str) -> auth.User:
    """A user of a case, in the groups that Kubernetes' authenticators add."""
    parts = name.split(":")
    service_account = parts[:2] == ["system", "serviceaccount"] and len(parts) == 4
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{parts[2]}") if service_account else ()
    return auth.User(name, (*groups, "system:authenticated"))


class StepClock(ManualClock):
    """Reports when the next sleeper is due."""

    def due(self) -> float | None:
        waiting = [at for at, _, waiter in self._sleepers if not waiter.done()]
        return min(waiting, default=None)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a request to a product whose store is in memory: it never suspends, so no controller runs in between."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("a request to a store in memory was suspended")


class StepEngine(CaseScenario):
    """One case: its store, its clock, and the product, which may be restarted."""

    def __init__(self, case: Case, *, without: Sequence[str] = OF_KUBERNETES) -> None:
        """`without`: controllers of the product that do not run, because the case plays them."""
        super().__init__(Path())
        self.case, self.without = case, tuple(without)
        # The given objects are created at second 0, but for those that others are younger than.
        self._before = sum(bool(obj["metadata"].get("creationTimestamp")) for obj in case.data.get("given") or ())
        self.clock = self.step_clock = StepClock(EPOCH - timedelta(seconds=self._before))
        self._names = IdGenerator(random.Random(1))
        self._quotas = QuotaRules([obj for obj in case.data.get("given") or () if obj["kind"] == KIND])
        self.store = self._store = Memory(clock=self.clock, names=self._names, rules=self._quotas)
        self.actors: list[Actor] = []
        self.authorizer: Authorizer | None = None  # None: no user of the case has rights of its own
        self.kubelets = False  # whether an actor ends deleted pods
        self.words: dict[str, Callable[[Any], Awaitable[list[str]]]] = {}  # further words of `then`
        self.actions: dict[str, Callable[[Any, auth.User], list[Answer]]] = {  # words of `do`
            "create": self._create, "apply": self._apply, "applyStatus": self._apply_status, "delete": self._delete}
        self.store_product = self._product()
        self.api = Api(self.store_product)
        self._running = False

    # -- the product

    def _product(self) -> app.Embedded:
        product = app.Embedded(self._store, (), clock=self.clock)
        product.runner.controllers = [each for each in product.runner.controllers if each.name not in self.without]
        return product

    async def load_given(self) -> None:
        """Without rights and quotas, which the product does not serve. Namespaces that steps use exist."""
        given = [obj for obj in self.case.data.get("given") or () if not is_right(obj) and obj["kind"] != KIND]
        created = [obj for step in self.case.expect.get("steps") or () for obj in (step.get("do") or {}).get("create") or ()]
        await self.load(self.store_product, self.api, self.case.config, given)
        used = {obj["metadata"]["namespace"] for obj in created if obj["metadata"].get("namespace")}
        for namespace in sorted(used - {obj["metadata"]["name"] for obj in created if obj["kind"] == kinds.NAMESPACE.kind}):
            await self._put(self.store_product, self.api, {"apiVersion": "v1", "kind": "Namespace",
                                                           "metadata": {"name": namespace}})
        self.clock.advance(self._before - self.clock.monotonic())

    async def start(self) -> None:
        """Start the product on the stored objects. Nodes are alive, although no agent of the product serves them."""
        self.store_product = self._product()
        self.api = Api(self.store_product)
        nodes = [{**node, "apiVersion": kinds.NODE.api_version, "kind": kinds.NODE.kind} for node in self.all(kinds.NODE)]
        await self.store_product.start()
        self._running = True
        for node in nodes:
            status = node.get("status") or {}
            ready = [{"type": "Ready", "status": "True"}]
            node["status"] = {"conditions": status.get("conditions") or ready}
            at_once(self.api.set_status(node))

    async def stop(self) -> None:
        if self._running:
            self._running = False
            await self.store_product.stop()

    @property
    def now(self) -> float:
        """Seconds of the case."""
        return self.clock.monotonic() - self._before

    async def settle(self) -> None:
        """Until the product is idle, nothing is due within the second, and no actor has anything to do."""
        end = math.floor(self.now + 1e-6) + AT_ONCE
        for _ in range(TURNS):
            await self.store_product.settle()
            acted = [await actor.act(self.now) for actor in self.actors] + [self._end_deleted_pods()]
            if any(acted):
                continue
            due = self.step_clock.due()
            if due is None or due - self._before > end:
                return
            self.clock.advance(max(0.0, due - self.clock.monotonic()))
        raise AssertionError(f"the case does not come to rest at {self.now}")

    async def advance(self, second: float) -> None:
        """Go to a second. Seconds at which nothing is due are skipped: no controller would do anything."""
        while self.now < second:
            sleeper = self.step_clock.due()
            dues = [None if sleeper is None else sleeper - self._before, *(actor.due(self.now) for actor in self.actors)]
            known = [math.ceil(due - 1e-6) for due in dues if due is not None]
            following = math.floor(self.now + 1e-6) + 1
            target = min(second, max(following, min(known, default=second)))
            self.clock.advance(target - self.now)
            await self.settle()

    # -- running

    async def run(self) -> list[str]:
        wrong: list[str] = []
        faults = Faults()
        with faults:
            await self.start()
            try:
                await self.start_vms(self.api, self.case.config, self.case.data.get("given") or ())
                await self.settle()
                for index, step in enumerate(self.case.expect.get("steps") or ()):
                    found = await self._step(step)
                    wrong += [f"step {index}, at {step['at']}: {line}" for line in found]
            finally:
                await self.stop()
        return [*wrong, *faults.said]

    async def _step(self, step: Mapping[str, Any]) -> list[str]:
        await self.advance(float(step["at"]))
        do = step.get("do") or {}
        if do.get("restart"):
            await self.stop()
            await self.start()
        user = user_named(str(do["user"])) if "user" in do else ADMIN
        revision = self._store.revision
        answers: list[Answer] = []
        for word, entries in do.items():
            if word in self.actions:
                answers += self.actions[word](self.mapped(entries or ()), user)
            elif word not in ("restart", "user"):
                raise NotDriven(f"do.{word} is not known to this runner")
        then = self.mapped(step.get("then") or {})  # with the uids of what was created just now
        refused = (then["refused"] or {}) if "refused" in then else None
        wrong = self._refusals(refused, answers, changed=self._store.revision != revision)
        unchanged = [(entry, self._value(entry)) for entry in then.get("unchanged") or ()]
        await self.settle()
        wrong += [f"unchanged {entry['kind']} {entry['name']} {entry['path']}: was {json.dumps(was)}, is {json.dumps(is_)}"
                  for entry, was in unchanged if (is_ := self._value(entry)) != was]
        for word, entries in then.items():
            if word in CHECKS:
                wrong += [line for entry in entries or () for line in CHECKS[word](self, entry)]
            elif word in self.words:
                wrong += await self.words[word](entries or ())
            elif word not in ("refused", "unchanged"):
                wrong.append(f"then.{word} is not compared by this runner")
        return wrong

    def mapped(self, value: Any) -> Any:
        """With the uids that the server gave."""
        return replaced(copy.deepcopy(value), self._uids)

    # -- writes

    def _create(self, objects: Sequence[Object], user: auth.User) -> list[Answer]:
        answers = []
        for obj in objects:
            if obj["kind"] == KIND:
                self._quotas.quotas.append(obj)
                continue
            owned = self.own(obj)
            answer = self._write("POST", owned, owned, user)
            answers.append(answer)
            if not answer.ok:
                continue
            if uid := obj["metadata"].get("uid"):
                self._uids[uid] = answer.body["metadata"]["uid"]
            if obj.get("status"):
                answers.append(at_once(self.api.set_status(self.own(obj))))
        return answers

    def _apply(self, entries: Sequence[Mapping[str, Any]], user: auth.User) -> list[Answer]:
        """A quota, which the product does not serve, is that of the played rules."""
        for entry in entries:
            if entry["kind"] == KIND:
                self._quotas.apply(entry)
        return [self._write("PATCH", self.shape(entry), entry["patch"], user) for entry in entries if entry["kind"] != KIND]

    def _apply_status(self, entries: Sequence[Mapping[str, Any]], user: auth.User) -> list[Answer]:
        return [self._write("PATCH", self.shape(entry), entry["patch"], user, "status") for entry in entries]

    def _delete(self, entries: Sequence[Mapping[str, Any]], user: auth.User) -> list[Answer]:
        """A pod is gone at once where no kubelet is played: nothing would end it."""
        answers = []
        for entry in map(named_entry, entries):
            if entry["kind"] == KIND:
                self._quotas.delete(entry)
                continue
            at_once_ = self.kind(entry["kind"]) == kinds.POD and not self.kubelets
            answers.append(self._write("DELETE", self.shape(entry), {"gracePeriodSeconds": 0} if at_once_ else None, user))
        return answers

    def _end_deleted_pods(self) -> bool:
        """Those that the product deleted before they ran, where no kubelet is played: nothing would end them."""
        ending = [pod for pod in self.all(kinds.POD) if pod["metadata"].get("deletionTimestamp")
                  and (pod.get("status") or {}).get("phase") in (None, "Pending")] if not self.kubelets else []
        for pod in ending:
            shape = {**pod, "apiVersion": kinds.POD.api_version, "kind": kinds.POD.kind}
            self._write("DELETE", shape, {"gracePeriodSeconds": 0}, ADMIN)
        return bool(ending)

    def _write(self, method: str, obj: Object, body: Object | None, user: auth.User, subresource: str = "") -> Answer:
        """As an administrator, or as a user of the case whose rights the authorizer knows."""
        kind = kind_of(obj)
        path = object_path(kind, obj, named=method != "POST") + (f"/{subresource}" if subresource else "")
        if user is not ADMIN:
            verb = {"POST": "create"}.get(method, method.lower())
            if self.authorizer is None or not self.authorizer.allows(user, verb, kind, obj, subresource):
                return Answer(http.HTTPStatus.FORBIDDEN, {"message": f"{user.name} may not {verb} {kind.plural}"})
            user = auth.User(user.name, (auth.MASTERS, *user.groups))  # the product's own server knows no other rights
        return at_once(self.api.send(method, path, body, user=user))

    def _refusals(self, wanted: Mapping[str, Any] | None, answers: Sequence[Answer], *, changed: bool) -> list[str]:
        if wanted is None:
            return [f"a write was refused with {answer.status}: {answer.body.get('message')}" for answer in answers
                    if not answer.ok]
        wrong = [] if wanted.get("optional") else ["a write was accepted" for answer in answers if answer.ok]
        changed = changed and not any(answer.ok for answer in answers)
        wrong += ["something was written although every write was refused"] if changed and not wrong else []
        for answer in answers:
            if answer.ok:
                continue
            if wanted.get("status", answer.status) != answer.status:
                wrong.append(f"refused with {answer.status}, not {wanted['status']}: {answer.body.get('message')}")
            causes = answer.causes or [("", str(answer.body.get("message")))]
            if not any(wanted.get("field", field) == field
                       and contains(message or str(answer.body.get("message")), wanted.get("messageContains", ""))
                       for field, message in causes):
                wrong.append(f"refused otherwise: {causes}")
        return wrong

    # -- reads

    def kind(self, name: str) -> Kind:
        found = next((kind for kind in kinds.ALL if kind.kind == name), None)
        if found is None:
            raise NotDriven(f"the product does not serve {name}")
        return found

    def all(self, kind: Kind, namespace: str | None = None) -> list[Object]:
        words = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
        answer = at_once(self.api.send("GET", "/" + "/".join([*words, kind.plural])))
        return [obj for obj in answer.body["items"] if namespace in (None, obj["metadata"].get("namespace"))]

    def find(self, entry: Mapping[str, Any]) -> Object | None:
        """The object of an entry: kind, name, and a namespace where it is not clear."""
        name = self.named(str(entry["name"]), entry.get("namespace"))
        return next((obj for obj in self.all(self.kind(entry["kind"]), entry.get("namespace"))
                     if obj["metadata"]["name"] == name), None)

    def named(self, name: str, namespace: str | None = None) -> str:
        """The name of an object; `@pod(vm1)` is that of the launcher pod on the host where VMI vm1 runs."""
        found = _POD_OF.fullmatch(name)
        if found is None:
            return name
        vmi = self.find({"kind": kinds.VMI.kind, "name": found["vmi"], "namespace": namespace})
        if vmi is None:
            return name
        pods = [pod for pod in self.launchers(vmi) if pod["spec"].get("nodeName") == (vmi.get("status") or {}).get("nodeName")]
        newest = max(pods, key=lambda pod: (pod.get("status", {}).get("phase") == "Running",
                                            pod["metadata"]["creationTimestamp"]), default=None)
        return str(newest["metadata"]["name"]) if newest else name

    def launchers(self, vmi: Object) -> list[Object]:
        """The pods in which a VMI runs, ran or will run; not those that hold a plugged device for it."""
        labelled = [(pod, pod["metadata"].get("labels") or {}) for pod in self.all(kinds.POD, vmi["metadata"]["namespace"])]
        return [pod for pod, labels in labelled if labels.get("kubevirt.io/created-by") == vmi["metadata"]["uid"]
                and labels.get("kubevirt.io") in (None, "virt-launcher")]

    def shape(self, entry: Mapping[str, Any]) -> Object:
        """What names an object that is to be written; one that is not there is looked for where the case has its objects."""
        obj = self.find(entry)
        kind = self.kind(entry["kind"])
        places = [each["metadata"].get("namespace") for each in self.case.data.get("given") or () if each.get("metadata")]
        usual = next((place for place in places if place), "default")
        meta = {"name": self.named(str(entry["name"]), entry.get("namespace")), "namespace": entry.get("namespace") or (
            obj["metadata"].get("namespace", "") if obj else usual)}
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}

    def _value(self, entry: Mapping[str, Any]) -> Any:
        return select(self.find(entry), entry["path"])


@contextlib.asynccontextmanager
async def stepped(case: Case, *, without: Sequence[str] = OF_KUBERNETES) -> AsyncIterator[StepEngine]:
    engine = StepEngine(case, without=without)
    await engine.load_given()
    await book_given(engine)
    try:
        yield engine
    finally:
        await engine.stop()
