"""The VM controller: a VMI for each VM that should run and none for the others, and a printable status. Claims that a VM owns
and that outlive its VMIs are in `vm_claims`.

A VM's `spec` is never changed; a VMI gets a copy of the template as it is when the VM starts."""

from __future__ import annotations

import copy

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.kubevirt import vm_claim_templates, vmi_actions
from outfitter.controllers import vm_run_strategy
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.controllers.vm_claims import VmClaims, claim_name, owner_reference, vm_key_of
from outfitter.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

GENERATION = "kubevirt.io/vm-generation"  # annotation of a VMI: the generation of the VM that it was created from
LOOK_AGAIN = 30.0  # seconds after which a start that could not be is tried again
MIRRORED = ("Ready", "Paused", "LiveMigratable", "DevicesReady", "PodScheduled", "Synchronized")  # conditions of the instance
CHANGED = "a non-live-updatable field was changed in the template spec: it counts from the next start on"


class VmController:
    name = "vm"
    kind = kinds.VM  # of its keys

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._store = context, context.store
        self.queue = WorkQueue(context.clock)
        self._vms = context.informer(kinds.VM)
        self._instances = context.informer(kinds.VMI)
        self._own = VmClaims(context, self.queue)
        enqueue_on_change(self._vms, self.queue)
        enqueue_on_change(self._instances, self.queue, self._of_instance)
        context.informer(kinds.KUBEVIRT).on_change(self._rules_changed)

    def _rules_changed(self, old: Object | None, new: Object | None) -> None:
        """VMs that may be admitted now that were refused. All without a VMI: one that is being refused at this moment is
        not known yet."""
        if (old or {}).get("spec") != (new or {}).get("spec"):
            for key in map(key_of, self._vms.items()):
                if self._instances.readable(key) is None:
                    self.queue.add(key)

    def _of_instance(self, instance: Object) -> list[str]:
        """The VM that owns it, or whose name it takes. Without one nothing is read of it: a VM that is created later is a
        watch update itself."""
        return [key for key in (*vm_key_of(instance), key_of(instance)) if self._vms.readable(key) is not None]

    async def reconcile(self, key: str) -> float | None:
        vm = self._vms.get(key)
        await self._own.release(key, vm)
        if vm is None:
            return None
        found = self._instances.get(key)
        instance = found if found is not None and vm_api.belongs(found, vm) else None
        now = self._context.clock.now()
        act = vm_run_strategy.decide(vm, instance, now)
        if act.do != "nothing" or act.requests != tuple(_noted(vm)):
            vm, found = await self._as_stored(vm)
            instance = found if found is not None and vm_api.belongs(found, vm) else None
            act = vm_run_strategy.decide(vm, instance, now)
        if act.do == "nothing" and instance is None and vm["metadata"].get("deletionTimestamp") and _finalized(vm):
            left = [name for name in vm["metadata"]["finalizers"] if name != vm_api.CONTROLLER_FINALIZER]
            await self._context.patch_metadata(kinds.VM, vm, {"finalizers": left or None})
            return None
        # What it lacks keeps it from starting, and from nothing else.
        lacks = "" if vm["metadata"].get("deletionTimestamp") else await self._own.provide(vm, instance, act)
        failed = lacks if act.do == "create" and lacks else await self._do(vm, instance, found, act)
        failure = vm_run_strategy.failure(vm, instance, now)
        status = self._status(vm, instance, act, failed or lacks)
        status["runStrategy"] = vm_run_strategy.strategy_taken_up(vm, instance, act, failed=bool(failed))
        status["startFailure"] = failure
        status["stateChangeRequests"] = list(vm_run_strategy.open_requests(vm, instance) if failed else act.requests) or None
        await self._tell(vm, status)
        if failed or lacks:
            return (
                LOOK_AGAIN  # not everything that can prevent the start sends a watch update when it goes; a feature gate does
            )
        if act.wait is not None:
            return act.wait.total_seconds()
        steady = vm_run_strategy.steady_in(instance, now) if failure and instance is not None else None
        return steady.total_seconds() if steady is not None else None

    # -- the instance

    async def _as_stored(self, vm: Object) -> tuple[Object, Object | None]:
        """A VM that is to start or to stop, or whose requests are done, and the VMI of its name: from the store, because none
        of that can be undone. A controller that was delayed sees a request that was done long ago, an old run strategy, or a
        VMI that is gone. NotFound: the VM is gone."""
        meta = vm["metadata"]
        stored = await self._store.get(kinds.VM, meta["name"], meta["namespace"])
        if stored["metadata"]["uid"] != meta["uid"]:
            raise NotFound(f"virtualmachine {meta['namespace']}/{meta['name']} is another one by now")
        try:
            return stored, await self._store.get(kinds.VMI, meta["name"], meta["namespace"])
        except NotFound:
            return stored, None

    async def _do(self, vm: Object, instance: Object | None, found: Object | None, act: vm_run_strategy.RunDecision) -> str:
        """What was decided; a sentence if it cannot be. `found`: who has the name that its instance needs."""
        meta = vm["metadata"]
        if act.do == "create" and found is not None:
            return _in_the_way(vm)
        if act.do == "create":
            try:
                made = await self._store.create(kinds.VMI, instance_for(vm, paused=act.paused))
            except AlreadyExists:  # a VMI whose watch update is on the way
                return await self._stranger(vm)
            except (Invalid, Forbidden) as error:
                await self._context.events.warning(vm, "FailedCreate", f"Error creating the instance: {error.message}")
                return error.message
            await self._context.events.normal(vm, "SuccessfulCreate", "Started the virtual machine by creating the new virtual "
                                              f"machine instance {made['metadata']['name']}")
        elif act.do == "delete" and instance is not None:
            await self._store.delete(kinds.VMI, meta["name"], meta["namespace"], uid=instance["metadata"]["uid"])
            await self._context.events.normal(vm, "SuccessfulDelete", "Stopped the virtual machine by deleting the virtual "
                                              f"machine instance {meta['name']}: {act.why}")
        return ""

    async def _stranger(self, vm: Object) -> str:
        """The owner of the VMI that has the name. One of its own is no error: its watch update brings the key back."""
        meta = vm["metadata"]
        found = await self._store.get(kinds.VMI, meta["name"], meta["namespace"])
        if vm_api.belongs(found, vm):
            raise Conflict(f"the watch update of VMI {meta['namespace']}/{meta['name']} is on the way")
        return _in_the_way(vm)

    # -- status

    def _status(self, vm: Object, instance: Object | None, act: vm_run_strategy.RunDecision, trouble: str) -> Object:
        have = (vm.get("status") or {}).get("conditions")
        mirrored = {type_: conditions.find(instance, type_) if instance is not None else None for type_ in MIRRORED}
        if instance is None:
            mirrored["Ready"] = {"status": "False", "reason": "VMINotExists", "message": "VMI does not exist"}
        for type_, found in mirrored.items():
            if found is None:
                have = conditions.without_condition(have, type_)
            else:
                state = {"True": True, "False": False}.get(found["status"])
                wanted = Condition(type_, state, found.get("reason", ""), found.get("message", ""))
                have = conditions.with_condition(have, wanted, self._context.now())
        for type_, holds, reason, message in (
                ("Failure", bool(trouble), "FailedCreate", trouble),
                ("RestartRequired", act.do != "delete" and self._outdated(vm, instance), "TemplateChanged", CHANGED)):
            have = conditions.with_condition(have, Condition(type_, True, reason, message), self._context.now()) if holds else (
                conditions.without_condition(have, type_))
        return {"created": instance is not None, "ready": instance is not None and conditions.is_true(instance, "Ready"),
                "printableStatus": vm_run_strategy.printable(vm, instance, act),
                "observedGeneration": vm["metadata"].get("generation"), "conditions": have}

    def _outdated(self, vm: Object, instance: Object | None) -> bool:
        """The template is not what the running VMI was created from; `startStrategy` does not count."""
        if instance is None or (instance.get("status") or {}).get("phase") in vm_api.FINAL:
            return False
        if instance["metadata"].get("deletionTimestamp"):
            return False
        is_, was = ({**spec, "startStrategy": None} for spec in (_spec(vm), instance["spec"]))
        return bool(is_ != was) or self._own.outdated(vm)

    async def _tell(self, vm: Object, status: Object) -> None:
        have = vm.get("status") or {}
        change = {key: value for key, value in status.items() if have.get(key) != value}
        if change:
            await self._context.patch_status(kinds.VM, vm, change)


def _finalized(vm: Object) -> bool:
    """It waits for a VM controller, which is this one."""
    return vm_api.CONTROLLER_FINALIZER in (vm["metadata"].get("finalizers") or ())


def _in_the_way(vm: Object) -> str:
    return f"a VMI {vm['metadata']['name']} exists that this VM does not own"


def _noted(vm: Object) -> list[Object]:
    return (vm.get("status") or {}).get("stateChangeRequests") or []


def instance_for(vm: Object, *, paused: bool = False) -> Object:
    """The VMI that a VM starts as; `paused` if that was requested for this start."""
    meta, template = vm["metadata"], vm["spec"]["template"]
    extra = template.get("metadata") or {}
    labels = {**(extra.get("labels") or {}), "kubevirt.io/vm": meta["name"][:63].rstrip("-.")}
    spec = {**_spec(vm), "startStrategy": vmi_actions.START_PAUSED} if paused else _spec(vm)
    return {"apiVersion": kinds.VMI.api_version, "kind": kinds.VMI.kind, "metadata": {
        "name": meta["name"], "namespace": meta["namespace"], "labels": labels,
        "annotations": {**(extra.get("annotations") or {}), GENERATION: str(meta.get("generation", 1))},
        "ownerReferences": [owner_reference(vm)]}, "spec": spec}


def _spec(vm: Object) -> Object:
    """The template, with the VM's own claims among those that devices can refer to, in the place of entries of their names."""
    spec: Object = copy.deepcopy(vm["spec"]["template"]["spec"])
    own = {one["name"]: {"name": one["name"], "resourceClaimName": claim_name(vm, one["name"])}
           for one in vm_claim_templates.entries(vm)}
    listed = {one["name"]: one for one in spec.get("resourceClaims") or ()}
    return {**spec, "resourceClaims": list((listed | own).values())} if own else spec
