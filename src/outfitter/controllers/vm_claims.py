"""Claims that a VM owns: created from its `resourceClaimTemplates`, allocated when it starts, kept over restarts. While the VM
is stopped they are kept or deleted, as their entries demand. A claim's spec cannot change; a claim whose entry was changed is
recreated while the VM is stopped. Called by the VM controller."""

from __future__ import annotations

import copy
import hashlib
import json

from outfitter.api import allocation, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, device_refs, device_status, migration, pod_claims, vm_claim_templates
from outfitter.api.kubevirt import vm as vm_api
from outfitter.controllers import launcher_pod, vm_run_strategy
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from outfitter.store.informer import key_of, split_key
from outfitter.store.workqueue import WorkQueue

MADE_FROM = "outfitter.dev/made-from"  # annotation of a claim: digest of the entry it was created from


def vm_key_of(obj: Object) -> list[str]:
    """The key of the VM that owns an object."""
    reference = vm_api.owner(obj, kinds.VM.kind)
    return [f"{obj['metadata']['namespace']}/{reference['name']}"] if reference else []


class VmClaims:
    """For the VM controller: `queue` is its queue, to which every change of a VM's claim adds the VM."""

    def __init__(self, context: ControllerContext, queue: WorkQueue) -> None:
        self._context, self._store = context, context.store
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._claims.add_index("kept for", _kept_for)
        self._claims.add_index("owning VM", _owner_uid)
        enqueue_on_change(self._claims, queue, lambda obj: [*vm_key_of(obj), *_kept_for(obj)])
        self._queue, self._pods = queue, context.informer(kinds.POD)
        self._pods.on_change(self._pod_changed)
        self._vms, self._templates = context.informer(kinds.VM), context.informer(kinds.RESOURCE_CLAIM_TEMPLATE)
        self._vms.add_index("claim template", _template_keys)
        self._templates.on_change(self._template_changed)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A terminated pod no longer uses the claims of its VM."""
        if old is not None and (new is None or _is_terminated(new)):
            for claim in filter(None, map(self._claims.readable, pod_claims.claim_keys(old))):
                for key in vm_key_of(claim):
                    self._queue.add(key)

    def _template_changed(self, old: Object | None, new: Object | None) -> None:
        """A template that VMs wait for was created."""
        if old is None and new is not None:
            for vm in self._vms.by("claim template", key_of(new)):
                self._queue.add(key_of(vm))

    async def provide(self, vm: Object, instance: Object | None, act: vm_run_strategy.RunDecision) -> str:
        """Every claim of the VM exists as its entry demands and stays allocated as long as the VM exists; returns a
        message about those for which this fails. Claims that are not kept while the VM is stopped are deleted then, and those
        without an entry once no instance has a device of them."""
        wanted = {claim_name(vm, entry["name"]): entry for entry in vm_claim_templates.entries(vm)}
        stopped = vm_run_strategy.is_stopped(instance, act)
        needed = act.do == "create" or (instance is not None and not stopped and not _going(instance))
        problems = [await self._free(vm, instance, name) if stopped and not vm_claim_templates.kept_when_stopped(entry) else
                await self._provide(vm, instance, name, entry, needed or vm_claim_templates.made_when_stopped(entry))
                for name, entry in wanted.items()]
        for claim in self._claims.by("owning VM", vm["metadata"]["uid"]):
            if claim["metadata"]["name"] not in wanted and _made_from(claim) and not _going(claim) \
                    and (instance is None or not _refers_to(instance, claim)) and not await self._pods_of(claim):
                problems.append(await self._delete(vm, instance, claim, "its entry was removed"))
        return "; ".join(filter(None, problems))

    async def _free(self, vm: Object, instance: Object | None, name: str) -> str:
        """Delete a claim that the VM has only while it runs, once its pod has terminated."""
        claim = self._claims.get(f"{vm['metadata']['namespace']}/{name}")
        if claim is None or _going(claim) or not vm_api.belongs(claim, vm) or await self._pods_of(claim):
            return ""
        return await self._delete(vm, instance, claim, "the virtual machine is stopped")

    async def _provide(self, vm: Object, instance: Object | None, name: str, entry: Object, needed: bool) -> str:
        """`needed`: the claim is created if it does not exist."""
        claim = self._claims.get(f"{vm['metadata']['namespace']}/{name}")
        if claim is None and not needed:
            return ""
        try:
            if claim is None:
                if (template := await self._template(vm, entry)) is None:
                    return (f"claim {name} cannot be created: there is no ResourceClaimTemplate "
                            f"{vm_claim_templates.template_name(entry)} in namespace {vm['metadata']['namespace']}")
                claim = await self._make(vm, name, entry, template)
            return await self._check(vm, instance, claim, entry)
        except (Invalid, Forbidden) as error:
            return f"claim {name} cannot be created: {error.message}"

    async def _template(self, vm: Object, entry: Object) -> Object | None:
        """What the claim is created from, as in `spec` of a ResourceClaimTemplate. None: the named one does not exist."""
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

    async def _check(self, vm: Object, instance: Object | None, claim: Object, entry: Object) -> str:
        name = claim["metadata"]["name"]
        if not vm_api.belongs(claim, vm):
            return f"claim {name} belongs to another owner: delete it, and the VM creates its own"
        if _going(claim):
            return f"claim {name} is being deleted; it is recreated afterwards" if instance is None else ""
        if not _made_from(claim):  # without the annotation: taken to be from the current entry
            claim = await self._context.patch_metadata(
                kinds.RESOURCE_CLAIM, claim, {"annotations": {MADE_FROM: _digest(entry)}})
        if instance is None and _made_from(claim) != _digest(entry):
            return await self._replace(vm, claim)
        if host := _left_on(claim, instance, entry["name"]):
            if not await self._pods_of(claim):
                return await self._delete(vm, instance, claim, f"its devices are on {host}, which the virtual machine has left")
        elif (claim.get("status") or {}).get("allocation"):
            await self._keep(vm, claim)
        return ""

    def outdated(self, vm: Object) -> bool:
        """Whether a claim differs from its current template."""
        known = [(self._claims.get(f"{vm['metadata']['namespace']}/{claim_name(vm, entry['name'])}"), entry)
                 for entry in vm_claim_templates.entries(vm)]
        return any(claim is not None and vm_api.belongs(claim, vm) and _made_from(claim) not in ("", _digest(entry))
                   for claim, entry in known)

    async def _replace(self, vm: Object, claim: Object) -> str:
        name, users = claim["metadata"]["name"], await self._pods_of(claim)
        if users:
            return f"claim {name} differs from its template; it is recreated when pod/{users[0]['name']} is gone"
        return await self._delete(vm, None, claim, "its template was changed") or (
            f"claim {name} is recreated from its changed template")

    async def _delete(self, vm: Object, known: Object | None, claim: Object, why: str) -> str:
        """Reads the store first: devices kept for a VM are not released because of a stale cache. A message if the claim may
        not be deleted. `known`: the VM's instance, which has terminated."""
        meta, theirs = vm["metadata"], claim["metadata"]
        stored = await self._store.get(kinds.VM, meta["name"], meta["namespace"])
        try:
            instance = await self._store.get(kinds.VMI, meta["name"], meta["namespace"])
        except NotFound:
            instance = None
        own = instance is not None and vm_api.belongs(instance, vm) and instance["metadata"]["uid"]
        if stored["metadata"]["resourceVersion"] != meta["resourceVersion"] or own != (
                known is not None and known["metadata"]["uid"]):
            raise Conflict(f"the cache of VM {meta['namespace']}/{meta['name']} is stale")
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
        """The VM is in its claim's reservedFor, so that the devices stay allocated while it is stopped. Terminated pods are
        removed: Kubernetes before 1.36 leaves them where a consumer is not a pod."""
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
        """Reads the store: the informer may not have seen the pod yet."""
        found = self._pods.get(f"{namespace}/{user['name']}")
        if found is None or found["metadata"]["uid"] != user.get("uid"):
            try:
                found = await self._store.get(kinds.POD, user["name"], namespace)
            except NotFound:
                return False
        return bool(found["metadata"]["uid"] == user.get("uid") and not _is_terminated(found))

    async def release(self, key: str, vm: Object | None) -> None:
        """Remove a deleted VM from reservedFor of its claims, also when another VM has its name by now; and any VM from a
        claim that is being deleted: no other controller does, and the claim would stay. The claims may have lost their owner
        before, when the VM was deleted with --cascade=orphan."""
        namespace, name = split_key(key)
        for claim in self._claims.by("kept for", key):
            users = claim["status"]["reservedFor"]
            left = [one for one in users if not (_is_vm(one) and one["name"] == name)
                    or not (_going(claim) or await self._vm_is_deleted(namespace, one, vm))]
            if left != users:
                await self._context.patch_status(kinds.RESOURCE_CLAIM, claim, {"reservedFor": left or None})

    async def _vm_is_deleted(self, namespace: str, one: Object, vm: Object | None) -> bool:
        """Whether the VM that a claim is kept for is being deleted, or does not exist. Reads the store unless the informer
        has the VM: it may not have seen it yet."""
        if vm is not None and vm["metadata"]["uid"] == one.get("uid"):
            return _going(vm)
        try:
            found = await self._store.get(kinds.VM, one["name"], namespace)
        except NotFound:
            return True
        return bool(found["metadata"]["uid"] != one.get("uid"))


def claim_name(vm: Object, name: str) -> str:
    """The same for the same VM, so that the claim cannot be created twice; another one after a migration."""
    meta = vm["metadata"]
    if migrated := vm_claim_templates.migrated_claim(vm, name):
        return migrated
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
    """Of the devices that an entry asks for: a changed label does not recreate a claim. Nor does a ResourceClaimTemplate that
    was replaced by another of its name, so that VMs keep their devices."""
    named = vm_claim_templates.template_name(entry)
    asked = entry["spec"]["spec"] if named is None else {"resourceClaimTemplateName": named}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def _template_keys(vm: Object) -> list[str]:
    """The keys of the ResourceClaimTemplates that a VM names."""
    named = filter(None, map(vm_claim_templates.template_name, vm_claim_templates.entries(vm)))
    return [f"{vm['metadata']['namespace']}/{name}" for name in named]


def _refers_to(instance: Object, claim: Object) -> bool:
    """Whether a device of an instance is of a claim, or is still being unplugged."""
    name, listed = claim["metadata"]["name"], instance["spec"].get("resourceClaims") or ()
    entries = {entry["name"] for entry in listed if entry.get("resourceClaimName") == name}
    plugged = set(attachment_pods.hotplugged(instance).values())
    return bool(entries & ({ref.claim for ref in device_refs.request_refs(instance)} | plugged))


def _left_on(claim: Object, instance: Object | None, name: str) -> str:
    """The host of a claim whose device was unplugged before its VM migrated, and is plugged again: there it is of no use, and
    the claim is recreated where the VM runs."""
    host = allocation.named_host((claim.get("status") or {}).get("allocation") or {})
    status = (instance or {}).get("status") or {}
    if not host or instance is None or status.get("phase") != "Running" or status.get("nodeName") in (None, host) or (
            migration.under_way(instance)):
        return ""
    refs = [ref for ref in device_refs.written_refs(instance) if ref.by_claim and ref.claim == name]
    has = {(list_, entry.get("name")) for list_ in device_refs.LISTS for entry in device_status.statuses(instance, list_)}
    return host if refs and not any((ref.list, ref.name) in has for ref in refs) else ""


def _made_from(claim: Object) -> str:
    return str((claim["metadata"].get("annotations") or {}).get(MADE_FROM) or "")


def _going(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def user(vm: Object) -> Object:
    """The VM as an entry of a claim's reservedFor."""
    return {"apiGroup": kinds.VM.group, "resource": kinds.VM.plural, "name": vm["metadata"]["name"],
            "uid": vm["metadata"]["uid"]}


def _is_pod(one: Object) -> bool:
    return bool(one.get("resource") == kinds.POD.plural)


def _is_terminated(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in vm_api.FINAL


def _is_vm(one: Object) -> bool:
    return (one.get("apiGroup"), one.get("resource")) == (kinds.VM.group, kinds.VM.plural)


def _kept_for(claim: Object) -> list[str]:
    """The keys of the VMs in reservedFor of a claim."""
    return [f"{claim['metadata']['namespace']}/{one['name']}" for one in (claim.get("status") or {}).get("reservedFor") or ()
            if _is_vm(one)]


def _owner_uid(claim: Object) -> list[str]:
    reference = vm_api.owner(claim, kinds.VM.kind)
    return [reference["uid"]] if reference else []


def owner_reference(vm: Object) -> Object:
    return {"apiVersion": kinds.VM.api_version, "kind": kinds.VM.kind, "name": vm["metadata"]["name"],
            "uid": vm["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
