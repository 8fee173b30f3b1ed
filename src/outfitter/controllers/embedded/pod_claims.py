"""Creates the claims of pods from their templates, in embedded mode (a cluster has its own controller for this).
`claim_deallocation` deallocates them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outfitter.api import conditions, kinds, rejection_conditions, rejection_text
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims, vm
from outfitter.api.rejection import Rejection
from outfitter.controllers import launcher_pod
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.errors import AlreadyExists, Forbidden, Invalid, Unreadable
from outfitter.scheduling.claim_users import NOT_MADE, of_another
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"


class PodClaims:
    """Claims from templates: one for each entry of a pod that names a template."""

    name = "pod_claims"
    kind = kinds.POD  # of its keys

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._store = context, context.store
        self._pods = context.informer(kinds.POD)
        self.queue = WorkQueue(context.clock, age=self._pods.age)
        self._templates = context.informer(kinds.RESOURCE_CLAIM_TEMPLATE)
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._pods.add_index("claim by template", _made_keys)
        enqueue_on_change(self._pods, self.queue, lambda pod: [key_of(pod)] if self._may_lack(pod) else [])
        enqueue_on_change(self._templates, self.queue, self._waiting_for)
        self._claims.on_change(self._claim_changed)

    def _claim_changed(self, old: Object | None, new: Object | None) -> None:
        """One that went is made again for who still waits for a host."""
        if new is None:
            for pod in self._pods.by("claim by template", key_of(old or {})):
                self.queue.add(key_of(pod))

    def _may_lack(self, pod: Object) -> bool:
        try:
            return any(self._unmade(pod))
        except Unreadable:
            return True

    def _unmade(self, pod: Object) -> Iterator[Object]:
        """The entries of a pod of which a claim is still to be made, or to be made again: what a pod on a host uses stays."""
        if pod["metadata"].get("deletionTimestamp") or (pod.get("status") or {}).get("phase") in vm.FINAL:
            return
        named, namespace = dict(pod_claims.claim_names(pod)), pod["metadata"]["namespace"]
        for entry in _templated(pod):
            name = named.get(entry["name"])
            if not name or (not pod["spec"].get("nodeName") and self._claims.get(f"{namespace}/{name}") is None):
                yield entry

    def _waiting_for(self, template: Object) -> Sequence[str]:
        place = (template["metadata"]["namespace"], template["metadata"]["name"])
        return [key_of(pod) for pod in self._pods.items() if any(
            (pod["metadata"]["namespace"], entry.get("resourceClaimTemplateName")) == place
            for entry in pod["spec"].get("resourceClaims") or ())]

    async def reconcile(self, key: str) -> float | None:
        pod = self._pods.get(key)
        if pod is None:
            return None
        made: list[Object] = []
        taken: list[Rejection] = []
        named = dict(pod_claims.claim_names(pod))
        for entry in list(self._unmade(pod)):
            claim = await self._make(pod, entry)
            if claim is None:
                continue
            if whose := of_another(claim, pod):
                taken.append(whose)
                await self._context.events.warning(pod, NOT_MADE, rejection_text.render(whose))
            elif claim["metadata"]["name"] != named.get(entry["name"]):
                made.append({"name": entry["name"], "resourceClaimName": claim["metadata"]["name"]})
        change: Object = {}
        if made:
            new = {entry["name"] for entry in made}
            have = pod["status"].get("resourceClaimStatuses") or ()
            change["resourceClaimStatuses"] = [*(one for one in have if one["name"] not in new), *made]
        if taken and not pod["spec"].get("nodeName"):  # the scheduler does not look at it before its claims are there
            text, now = rejection_text.render_all(taken), self._context.now()
            have = conditions.with_condition(pod["status"].get("conditions"), Condition(
                "PodScheduled", False, NOT_MADE, text), now)
            change["conditions"] = rejection_conditions.with_codes(have, {taken[0].code: text}, now)
        if any(pod["status"].get(field) != value for field, value in change.items()):
            await self._context.patch_status(kinds.POD, pod, change)
        return None

    async def _make(self, pod: Object, entry: Object) -> Object | None:
        """The claim of that name, which may have another owner; None while there is no template."""
        meta, template_name = pod["metadata"], entry["resourceClaimTemplateName"]
        template = self._templates.get(f"{meta['namespace']}/{template_name}")
        if template is None:
            await self._context.events.warning(pod, NOT_MADE,
                                               f"ResourceClaimTemplate {template_name} does not exist in {meta['namespace']}")
            return None
        claim = planned_claim(pod, entry, template)
        name = claim["metadata"]["name"]
        try:
            there = await self._store.create(kinds.RESOURCE_CLAIM, claim)
        except AlreadyExists:  # created before a crash, or by another writer
            there = await self._store.get(kinds.RESOURCE_CLAIM, name, meta["namespace"])
        except (Invalid, Forbidden) as error:
            await self._context.events.warning(pod, NOT_MADE, error.message)
            raise
        self._claims.put(there)
        return there


def planned_claim(pod: Object, entry: Object, template: Object) -> Object:
    """The claim that a pod's entry of `resourceClaims` gets from its template."""
    meta, extra = pod["metadata"], template["spec"].get("metadata") or {}
    stem, name = _made_name(pod, entry)
    return {
        "metadata": {
            "name": name, "generateName": stem, "namespace": meta["namespace"], "labels": extra.get("labels") or {},
            "annotations": {**(extra.get("annotations") or {}), POD_CLAIM: entry["name"]},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"],
                                 "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": template["spec"]["spec"],
    }


def missing_claims(pod: Object) -> list[Object]:
    """The entries of a pod that name a template and have no claim yet."""
    named = dict(pod_claims.claim_names(pod))
    return [entry for entry in _templated(pod) if not named.get(entry["name"])]


def _templated(pod: Object) -> list[Object]:
    return [entry for entry in pod["spec"].get("resourceClaims") or () if entry.get("resourceClaimTemplateName")]


def _made_name(pod: Object, entry: Object) -> tuple[str, str]:
    """The name of the claim that is made for an entry, and what it begins with. The same for the same pod, so that making it
    twice makes it once."""
    meta = pod["metadata"]
    stem = f"{meta['name']}-{entry['name']}"[:247].rstrip("-.") + "-"
    return stem, stem + launcher_pod.suffix(meta["uid"], entry["name"])


def _made_keys(pod: Object) -> list[str]:
    return [f"{pod['metadata']['namespace']}/{_made_name(pod, entry)[1]}" for entry in _templated(pod)]


def user(pod: Object) -> Object:
    """A pod as a claim's reservedFor names it."""
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
