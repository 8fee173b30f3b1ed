"""AdmissionReviews as an API server posts them, and the webhook that answers, without sockets."""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outfitter.api import admission, kinds, patch
from outfitter.api.kinds import Kind, Object
from outfitter.apiserver.app import App
from outfitter.roles.webhook_app import WebhookApp
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from outfitter.webhook.admission_webhook import AdmissionWebhook
from tests.apiserver.asgi import Client, Reply
from tests.cases import case

NAMESPACE = "outfitter-system"
CONTROLLER = f"system:serviceaccount:{NAMESPACE}:outfitter-controller"
GATES = ("HostDevices", "GPUsWithDRA", "HostDevicesWithDRA", "NetworkDevicesWithDRA", "PersistentDRAClaims")
OWN_CASES = Path(__file__).parents[1] / "cases" / "own" / "kubevirt"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Verdict:
    """The answer to one review."""

    allowed: bool
    status: Object
    warnings: list[str]
    patch: list[Object]

    @property
    def causes(self) -> list[tuple[str, str, str]]:
        causes = self.status.get("details", {}).get("causes", ())
        return [(cause["field"], cause["reason"], cause["message"]) for cause in causes]

    @property
    def text(self) -> str:
        return f"{self.status.get('code', 200)} {self.status.get('message', '')}"


@dataclass
class Webhook:
    """One webhook on a store that takes everything, as an API server whose own checks are not the point."""

    store: Memory
    webhook: AdmissionWebhook
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = Client(WebhookApp(self.webhook, App(Memory())), token="")

    async def post(self, body: Any, path: str = "/validate") -> Reply:
        return await self.client.post(path, body)

    async def ask(self, operation: str, kind: Kind, obj: Object | None = None, old: Object | None = None, *,
                  path: str = "/validate", **more: Any) -> Verdict:
        sent = review(operation, kind, obj, old, **more)
        answer = await self.post(sent, path)
        assert answer.status == 200, answer.json
        response = answer.json["response"]
        assert (answer.json["apiVersion"], answer.json["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert response["uid"] == sent["request"]["uid"]
        patched = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
        assert response.get("patchType") == ("JSONPatch" if patched else None)
        return Verdict(response["allowed"], response.get("status") or {}, response.get("warnings") or [], patched)

    async def mutated(self, kind: Kind, obj: Object) -> Object:
        """The object as the API server has it after `/mutate`."""
        verdict = await self.ask("CREATE", kind, obj, path="/mutate")
        assert verdict.allowed
        return patch.json(obj, verdict.patch)


def review(
    operation: str, kind: Kind, obj: Object | None = None, old: Object | None = None, *, user: str = "admin",
    subresource: str = "", dry_run: bool = False,
) -> Object:
    def whole(given: Object | None) -> Object | None:
        return None if given is None else {"apiVersion": kind.api_version, "kind": kind.kind, **given}

    meta = (obj or old or {}).get("metadata") or {}
    names = {"group": kind.group, "version": kind.version}
    request = {
        "uid": f"review-{next(_numbers)}", "operation": operation, "kind": {**names, "kind": kind.kind},
        "resource": {**names, "resource": kind.plural}, "name": meta.get("name", ""), "namespace": meta.get("namespace", ""),
        "userInfo": {"username": user, "groups": ["system:authenticated"]}, "object": whole(obj), "oldObject": whole(old),
        "dryRun": dry_run, "options": None, **({"subResource": subresource} if subresource else {}),
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@contextlib.asynccontextmanager
async def running(clock: ManualClock, *given: tuple[Kind, Object]) -> AsyncIterator[Webhook]:
    store = Memory(clock=clock)
    for kind, obj in given:
        await store.create(kind, obj)
    webhook = AdmissionWebhook(store, admission=admission.AdmissionRules(), clock=clock, namespace=NAMESPACE)
    async with webhook.running():
        await webhook.synced()
        yield Webhook(store, webhook)
    await store.close()


def kubevirt(gates: bool = True) -> Object:
    """With all feature gates on, or off."""
    on, off = (GATES, ()) if gates else ((), GATES)
    return {"metadata": {"name": "kubevirt", "namespace": "kubevirt"}, "spec": {"configuration": {
        "developerConfiguration": {"featureGates": list(on), "disabledFeatureGates": list(off)}}}}


@functools.cache
def case_objects() -> Mapping[str, tuple[Kind, Object]]:
    """Every VM, VMI and migration that the cases of this repository create, by the name of the case."""
    out: dict[str, tuple[Kind, Object]] = {}
    for one in itertools.chain.from_iterable(map(case.read, sorted(OWN_CASES.glob("admission_*.yaml")))):
        for obj in one.data["given"] if one.config.get("operation", "CREATE") == "CREATE" else ():
            kind = kinds.of_object(obj)
            if kind in (kinds.VM, kinds.VMI, kinds.MIGRATION):
                out[one.name] = kind, {key: value for key, value in obj.items() if key != "status"}
    return out
