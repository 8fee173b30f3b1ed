"""Claims that belong to a virtual machine itself: made from its `resourceClaimTemplates`, allocated when it starts, and kept
for it over restarts. While it is stopped they are kept or deleted, as their entries say. A claim cannot change; one whose entry
did is made anew when the machine is stopped."""

from __future__ import annotations

import copy
import hashlib
import json

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims, vm_claim_templates
from outfitter.api.kubevirt import vm as vm_api
from outfitter.controllers import launcher_pod, vm_run_strategy
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from outfitter.store.informer import key_of, split_key
from outfitter.store.workqueue import WorkQueue

MADE_FROM = "outfitter.dev/made-from"  # annotation of a claim: what its template said


def machine_of(obj: Object) -> list[str]:
    """The key of the machine that an object belongs to."""
    reference = vm_api.owner(obj, kinds.VM.kind)
    return [f"{obj['metadata']['namespace']}/{reference['name']}"] if reference else []


class VmClaims:
    """For the VM controller: `queue` is its queue, to which every change of a VM's claim adds the VM."""

    def __init__(self, context: ControllerContext, queue: WorkQueue) -> None:
        self._context, self._store = context, context.store
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._claims.add_index("kept for", _kept_for)
        self._claims.add_index("owning machine", _owner_uid)
        enqueue_on_change(self._claims, queue, lambda obj: [*machine_of(obj), *_kept_for(obj)])
        self._queue, self._pods = queue, context.informer(kinds.POD)
        self._pods.on_change(self._pod_changed)
        self._machines, self._templates = context.informer(kinds.VM), context.informer(kinds.RESOURCE_CLAIM_TEMPLATE)
        self._machines.add_index("claim template", _template_keys)
        self._templates.on_change(self._template_changed)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A pod that is over uses the claims of a machine no more."""
        if old is not None and (new is None or _is_over(new)):
            for claim in filter(None, map(self._claims.get, pod_claims.claim_keys(old))):
                for key in machine_of(claim):
                    self._queue.add(key)

    def _template_changed(self, old: Object | None, new: Object | None) -> None:
        """A template that machines wait for is there."""
        if old is None and new is not None:
            for vm in self._machines.by("claim template", key_of(new)):
                self._queue.add(key_of(vm))

    async def provide(self, vm: Object, instance: Object | None, act: vm_run_strategy.RunDecision) -> str:
        """Every claim that belongs to the machine is there as its entry says, and stays allocated while the machine is; a
        sentence of those that cannot be. When the machine is stopped those go that are not kept so long, and without an
        instance those that it has no entry for any more."""
        wanted = {claim_name(vm, entry["name"]): entry for entry in vm_claim_templates.entries(vm)}
        stopped = vm_run_strategy.is_stopped(instance, act)
        needed = act.do == "create" or (instance is not None and not stopped and not _going(instance))
        said = [await self._free(vm, instance, name) if stopped and not vm_claim_templates.kept_when_stopped(entry) else
                await self._provide(vm, instance, name, entry, needed or vm_claim_templates.made_when_stopped(entry))
                for name, entry in wanted.items()]
        for claim in self._claims.by("owning machine", vm["metadata"]["uid"]) if instance is None else ():
            if claim["metadata"]["name"] not in wanted and _made_from(claim) and not _going(claim) \
                    and not await self._pods_of(claim):
                said.append(await self._give_up(vm, instance, claim, "its template is gone"))
        return "; ".join(filter(None, said))

    async def _free(self, vm: Object, instance: Object | None, name: str) -> str:
        """Delete a claim that the machine has while it runs alone, once its pod is over."""
        claim = self._claims.get(f"{vm['metadata']['namespace']}/{name}")
        if claim is None or _going(claim) or not vm_api.belongs(claim, vm) or await self._pods_of(claim):
            return ""
        return await self._give_up(vm, instance, claim, "the virtual machine is stopped")

    async def _provide(self, vm: Object, instance: Object | None, name: str, entry: Object, needed: bool) -> str:
        """`needed`: now, so that it is made where it is not there."""
        claim = self._claims.get(f"{vm['metadata']['namespace']}/{name}")
        if claim is None and not needed:
            return ""
        try:
            if claim is None:
                if (template := await self._template(vm, entry)) is None:
                    return (f"claim {name} cannot be made: there is no ResourceClaimTemplate "
                            f"{vm_claim_templates.template_name(entry)} in namespace {vm['metadata']['namespace']}")
                claim = await self._make(vm, name, entry, template)
            return await self._look_after(vm, instance, claim, entry)
        except (Invalid, Forbidden) as error:
            return f"claim {name} cannot be had: {error.message}"

    async def _template(self, vm: Object, entry: Object) -> Object | None:
        """What the claim is made from, as a ResourceClaimTemplate has it in `spec`. None: the named one is not there."""
        named, namespace = vm_claim_templates.template_name(entry), vm["metadata"]["namespace"]
        if named is None:
            return dict(entry["spec"])
        found = self._templates.get(f"{namespace}/{named}")
        if found is None:
            try:
                found = await self._store.get(kinds.RESOURCE_CLAIM_TEMPLATE, named, namespace)
            except NotFound:
                return None
        return dict(found["spec"])

    async def _look_after(self, vm: Object, instance: Object | None, claim: Object, entry: Object) -> str:
        name = claim["metadata"]["name"]
        if not vm_api.belongs(claim, vm):
            return f"claim {name} belongs to somebody else: delete it, and the machine makes its own"
        if _going(claim):
            return f"claim {name} is being deleted, and is made anew when it is gone" if instance is None else ""
        if not _made_from(claim):  # made before that was noted: then as the template is now
            claim = await self._context.patch_metadata(
                kinds.RESOURCE_CLAIM, claim, {"annotations": {MADE_FROM: _digest(entry)}})
        if instance is None and _made_from(claim) != _digest(entry):
            return await self._replace(vm, claim)
        if (claim.get("status") or {}).get("allocation"):
            await self._keep(vm, claim)
        return ""

    def outdated(self, vm: Object) -> bool:
        """Whether a claim is not as its template says now."""
        known = [(self._claims.get(f"{vm['metadata']['namespace']}/{claim_name(vm, entry['name'])}"), entry)
                 for entry in vm_claim_templates.entries(vm)]
        return any(claim is not None and vm_api.belongs(claim, vm) and _made_from(claim) not in ("", _digest(entry))
                   for claim, entry in known)

    async def _replace(self, vm: Object, claim: Object) -> str:
        name, users = claim["metadata"]["name"], await self._pods_of(claim)
        if users:
            return f"claim {name} is not as its template says now, and is made anew when pod/{users[0]['name']} is gone"
        return await self._give_up(vm, None, claim, "its template says something else now") or (
            f"claim {name} is made anew, as its template says now")

    async def _give_up(self, vm: Object, known: Object | None, claim: Object, why: str) -> str:
        """Asks the store first: what is kept for a machine is not given away because of old news. A sentence if it may not.
        `known`: the instance that the machine has, which is over."""
        meta, theirs = vm["metadata"], claim["metadata"]
        stored = await self._store.get(kinds.VM, meta["name"], meta["namespace"])
        try:
            instance = await self._store.get(kinds.VMI, meta["name"], meta["namespace"])
        except NotFound:
            instance = None
        own = instance is not None and vm_api.belongs(instance, vm) and instance["metadata"]["uid"]
        if stored["metadata"]["resourceVersion"] != meta["resourceVersion"] or own != (
                known is not None and known["metadata"]["uid"]):
            raise Conflict(f"news of machine {meta['namespace']}/{meta['name']} are on their way")
        try:
            await self._store.delete(kinds.RESOURCE_CLAIM, theirs["name"], theirs["namespace"], uid=theirs["uid"],
                                     revision=theirs["resourceVersion"])
        except Forbidden as error:
            return f"claim {theirs['name']} cannot be deleted: {error.message}"
        await self._context.events.normal(vm, "SuccessfulDelete",
                                          f"Deleted claim {theirs['name']} of the virtual machine: {why}")
        return ""

    async def _make(self, vm: Object, name: str, entry: Object, template: Object) -> Object:
        claim = planned_claim(vm, entry, template)
        try:
            made = await self._store.create(kinds.RESOURCE_CLAIM, claim)
        except AlreadyExists:
            return await self._store.get(kinds.RESOURCE_CLAIM, name, vm["metadata"]["namespace"])
        except (Invalid, Forbidden) as error:
            await self._context.events.warning(vm, "FailedResourceClaimCreation", error.message)
            raise
        await self._context.events.normal(vm, "SuccessfulCreate", f"Created claim {name} of the virtual machine")
        return made

    async def _keep(self, vm: Object, claim: Object) -> None:
        """The machine is a user of its claim, so that the devices stay its own while it is stopped. Pods that are over are not:
        Kubernetes before 1.36 does nothing about them where a user is no pod."""
        users = claim["status"].get("reservedFor") or []
        pods = await self._pods_of(claim)
        left = [one for one in users if one in pods or not _is_pod(one)]
        wanted = left if user(vm) in left else [*left, user(vm)]
        if wanted != users:
            await self._context.patch_status(kinds.RESOURCE_CLAIM, claim, {"reservedFor": wanted})

    async def _pods_of(self, claim: Object) -> list[Object]:
        """The pods that use a claim."""
        users = (claim.get("status") or {}).get("reservedFor") or ()
        return [one for one in users if _is_pod(one) and await self._is_there(claim["metadata"]["namespace"], one)]

    async def _is_there(self, namespace: str, user: Object) -> bool:
        """Asks the store: a pod that the informer has not seen yet is not a pod that is gone."""
        found = self._pods.get(f"{namespace}/{user['name']}")
        if found is None or found["metadata"]["uid"] != user.get("uid"):
            try:
                found = await self._store.get(kinds.POD, user["name"], namespace)
            except NotFound:
                return False
        return bool(found["metadata"]["uid"] == user.get("uid") and not _is_over(found))

    async def let_go(self, key: str, vm: Object | None) -> None:
        """A machine that goes or is gone uses its claims no more, be it that another one has its name, nor one that uses a
        claim that goes: no other controller removes it, and the claim would stay. The claims may have lost their owner before,
        when the VM was deleted alone."""
        namespace, name = split_key(key)
        for claim in self._claims.by("kept for", key):
            users = claim["status"]["reservedFor"]
            left = [one for one in users if not (_is_machine(one) and one["name"] == name)
                    or not (_going(claim) or await self._machine_is_over(namespace, one, vm))]
            if left != users:
                await self._context.patch_status(kinds.RESOURCE_CLAIM, claim, {"reservedFor": left or None})

    async def _machine_is_over(self, namespace: str, one: Object, vm: Object | None) -> bool:
        """Whether the machine that a claim is kept for goes, or is gone. Asks the store where another one is known by its name,
        or none: a machine that the informer has not seen yet is not one that is gone."""
        if vm is not None and vm["metadata"]["uid"] == one.get("uid"):
            return _going(vm)
        try:
            found = await self._store.get(kinds.VM, one["name"], namespace)
        except NotFound:
            return True
        return bool(found["metadata"]["uid"] != one.get("uid"))


def claim_name(vm: Object, name: str) -> str:
    """The same for the same machine, so that making the claim twice makes it once."""
    meta = vm["metadata"]
    return f"{meta['name']}-{name}"[:247].rstrip("-.") + "-" + launcher_pod.suffix(meta["uid"], name)


def planned_claim(vm: Object, entry: Object, template: Object) -> Object:
    """The claim that a VM's entry of `resourceClaimTemplates` becomes. `template`: its own `spec`, or that of the
    ResourceClaimTemplate that it names."""
    extra = template.get("metadata") or {}
    meta: Object = {"name": claim_name(vm, entry["name"]), "namespace": vm["metadata"]["namespace"],
                    "ownerReferences": [owner_reference(vm)],
                    "annotations": {**(extra.get("annotations") or {}), MADE_FROM: _digest(entry)}}
    if extra.get("labels"):
        meta["labels"] = dict(extra["labels"])
    return {"metadata": meta, "spec": copy.deepcopy(template["spec"])}


def _digest(entry: Object) -> str:
    """What an entry says of the devices; a label is no reason to give them away. Nor is a ResourceClaimTemplate that was
    replaced under its name: VMs that keep a device did not ask for that."""
    named = vm_claim_templates.template_name(entry)
    said = entry["spec"]["spec"] if named is None else {"resourceClaimTemplateName": named}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _template_keys(vm: Object) -> list[str]:
    """The keys of the ResourceClaimTemplates that a VM names."""
    named = filter(None, map(vm_claim_templates.template_name, vm_claim_templates.entries(vm)))
    return [f"{vm['metadata']['namespace']}/{name}" for name in named]


def _made_from(claim: Object) -> str:
    return str((claim["metadata"].get("annotations") or {}).get(MADE_FROM) or "")


def _going(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def user(vm: Object) -> Object:
    """A machine as a claim's reservedFor names it."""
    return {"apiGroup": kinds.VM.group, "resource": kinds.VM.plural, "name": vm["metadata"]["name"],
            "uid": vm["metadata"]["uid"]}


def _is_pod(one: Object) -> bool:
    return bool(one.get("resource") == kinds.POD.plural)


def _is_over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in vm_api.FINAL


def _is_machine(one: Object) -> bool:
    return (one.get("apiGroup"), one.get("resource")) == (kinds.VM.group, kinds.VM.plural)


def _kept_for(claim: Object) -> list[str]:
    """The keys of the machines that use a claim themselves."""
    return [f"{claim['metadata']['namespace']}/{one['name']}" for one in (claim.get("status") or {}).get("reservedFor") or ()
            if _is_machine(one)]


def _owner_uid(claim: Object) -> list[str]:
    reference = vm_api.owner(claim, kinds.VM.kind)
    return [reference["uid"]] if reference else []


def owner_reference(vm: Object) -> Object:
    return {"apiVersion": kinds.VM.api_version, "kind": kinds.VM.kind, "name": vm["metadata"]["name"],
            "uid": vm["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
