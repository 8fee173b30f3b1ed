"""Claims that belong to a virtual machine itself: made from its `resourceClaimTemplates`, allocated when it first starts, and
kept for it while it is stopped."""

from __future__ import annotations

import copy

from outfitter.api import kinds, machine
from outfitter.api.kinds import Object
from outfitter.controllers import render
from outfitter.controllers.loop import Context, enqueue_on_change
from outfitter.errors import AlreadyExists, Forbidden, Invalid, NotFound
from outfitter.store.informer import split_key
from outfitter.store.queue import Queue


def machine_of(obj: Object) -> list[str]:
    """The key of the machine that an object belongs to."""
    reference = machine.owner(obj, kinds.MACHINE.kind)
    return [f"{obj['metadata']['namespace']}/{reference['name']}"] if reference else []


class OwnClaims:
    """For the loop of machines: `queue` is its queue, which is told of every claim that is a machine's."""

    def __init__(self, context: Context, queue: Queue) -> None:
        self._context, self._store = context, context.store
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._claims.add_index("kept for", _kept_for)
        enqueue_on_change(self._claims, queue, lambda obj: [*machine_of(obj), *_kept_for(obj)])

    async def provide(self, vm: Object) -> str:
        """Every claim that belongs to the machine is there, and stays allocated while the machine is; a sentence of those that
        cannot be."""
        said = [await self._provide(vm, template) for template in vm["spec"].get("resourceClaimTemplates") or ()]
        return "; ".join(filter(None, said))

    async def _provide(self, vm: Object, template: Object) -> str:
        name = claim_name(vm, template["name"])
        claim = self._claims.get(f"{vm['metadata']['namespace']}/{name}")
        if claim is None:
            try:
                claim = await self._make(vm, name, template)
            except (Invalid, Forbidden) as error:
                await self._context.events.warning(vm, "FailedResourceClaimCreation", error.message)
                return f"claim {name} cannot be made: {error.message}"
        if not machine.belongs(claim, vm):
            return f"claim {name} belongs to somebody else: delete it, and the machine makes its own"
        if claim["metadata"].get("deletionTimestamp"):
            return ""  # somebody wants it to let go
        if (claim.get("status") or {}).get("allocation") and user(vm) not in (claim["status"].get("reservedFor") or ()):
            await self._keep(vm, claim)
        return ""

    async def _make(self, vm: Object, name: str, template: Object) -> Object:
        said = template["spec"].get("metadata") or {}
        meta = {key: copy.deepcopy(said[key]) for key in ("labels", "annotations") if said.get(key)}
        claim = {"metadata": {**meta, "name": name, "namespace": vm["metadata"]["namespace"],
                              "ownerReferences": [owner_reference(vm)]}, "spec": copy.deepcopy(template["spec"]["spec"])}
        try:
            made = await self._store.create(kinds.RESOURCE_CLAIM, claim)
        except AlreadyExists:
            return await self._store.get(kinds.RESOURCE_CLAIM, name, vm["metadata"]["namespace"])
        await self._context.events.normal(vm, "SuccessfulCreate", f"Created claim {name} of the virtual machine")
        return made

    async def _keep(self, vm: Object, claim: Object) -> None:
        """The machine is a user of its claim, so that the devices stay its own while it is stopped."""
        meta = claim["metadata"]
        users = [*(claim["status"].get("reservedFor") or ()), user(vm)]
        await self._store.patch(kinds.RESOURCE_CLAIM, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"]}, "status": {"reservedFor": users},
        }, meta["namespace"], subresource="status")

    async def let_go(self, key: str, vm: Object | None) -> None:
        """A machine that is gone uses its claims no more, be it that another one has its name. The claims may have lost their
        owner before, when it was told to go alone."""
        namespace, name = split_key(key)
        for claim in self._claims.by("kept for", key):
            users = claim["status"]["reservedFor"]
            gone = [one for one in users if _is_machine(one) and one["name"] == name
                    and (vm is None or one.get("uid") != vm["metadata"]["uid"])]
            if gone and await self._are_gone(namespace, name, gone):
                await self._store.patch(kinds.RESOURCE_CLAIM, claim["metadata"]["name"], {
                    "metadata": {"resourceVersion": claim["metadata"]["resourceVersion"]},
                    "status": {"reservedFor": [one for one in users if one not in gone] or None},
                }, namespace, subresource="status")

    async def _are_gone(self, namespace: str, name: str, users: list[Object]) -> bool:
        """Asks the store: a machine that the informer has not seen yet is not one that is gone."""
        try:
            found = await self._store.get(kinds.MACHINE, name, namespace)
        except NotFound:
            return True
        return all(one.get("uid") != found["metadata"]["uid"] for one in users)


def claim_name(vm: Object, name: str) -> str:
    """The same for the same machine, so that making the claim twice makes it once."""
    meta = vm["metadata"]
    return f"{meta['name']}-{name}"[:247].rstrip("-.") + "-" + render.suffix(meta["uid"], name)


def user(vm: Object) -> Object:
    """A machine as a claim's reservedFor names it."""
    return {"apiGroup": kinds.MACHINE.group, "resource": kinds.MACHINE.plural, "name": vm["metadata"]["name"],
            "uid": vm["metadata"]["uid"]}


def _is_machine(one: Object) -> bool:
    return (one.get("apiGroup"), one.get("resource")) == (kinds.MACHINE.group, kinds.MACHINE.plural)


def _kept_for(claim: Object) -> list[str]:
    """The keys of the machines that use a claim themselves."""
    return [f"{claim['metadata']['namespace']}/{one['name']}" for one in (claim.get("status") or {}).get("reservedFor") or ()
            if _is_machine(one)]


def owner_reference(vm: Object) -> Object:
    return {"apiVersion": kinds.MACHINE.api_version, "kind": kinds.MACHINE.kind, "name": vm["metadata"]["name"],
            "uid": vm["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
