"""The VM controller: a VMI for each VM that should run and none for the others, and a printable status. Claims that a VM owns
and that outlive its VMIs are in `vm_claims`.

A VMI gets a copy of the template as it is when the VM starts; what changes later is in `vm_live_update`. A VM's `spec` is never
changed, but for NICs that the user marked as absent: they are removed once they are unplugged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import kubevirt_config, vm_claim_templates, vmi_actions
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.live_update import nics
from outfitter.api.live_update.evaluator import NOTHING, Evaluation
from outfitter.api.rejection_text import render
from outfitter.controllers import vm_live_update, vm_run_strategy
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.controllers.vm_claims import VmClaims, claim_name, owner_reference, vm_key_of
from outfitter.controllers.vm_live_update import VmLiveUpdate
from outfitter.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

GENERATION = "kubevirt.io/vm-generation"  # annotation of a VMI: the generation of the VM that it was created from
LOOK_AGAIN = 30.0  # seconds after which a start that could not be is tried again
MIRRORED = ("Ready", "Paused", "LiveMigratable", "DevicesReady", "PodScheduled", "Synchronized")  # conditions of the instance
CHANGED = "a non-live-updatable field was changed in the template spec: it counts from the next start on"
STAGED = "the template spec was changed, and vmRolloutStrategy is Stage: it counts from the next start on"
TEMPLATE = "spec.template.spec"
NAMED = 20  # fields that a condition names; the others are counted


class VmController:
    name = "vm"
    kind = kinds.VM  # of its keys

    def __init__(self, context: ControllerContext, in_place: Callable[[str], bool] = lambda host: False) -> None:
        """`in_place`: whether claimed devices are plugged into running VMs on the host of this name."""
        self._context, self._store = context, context.store
        self.queue = WorkQueue(context.clock)
        self._vms = context.informer(kinds.VM)
        self._instances = context.informer(kinds.VMI)
        self._own = VmClaims(context, self.queue)
        self._live_update = VmLiveUpdate(context, in_place)
        enqueue_on_change(self._vms, self.queue)
        enqueue_on_change(self._instances, self.queue, self._of_instance)
        context.informer(kinds.KUBEVIRT).on_change(self._rules_changed)

    def _rules_changed(self, old: Object | None, new: Object | None) -> None:
        """VMs that may be admitted now that were refused: all without a VMI, as one that is being refused at this moment is
        not known yet. With another rollout strategy those that wait for a restart, and those that do not, as well."""
        if (old or {}).get("spec") != (new or {}).get("spec"):
            rollout = _rollout(old) != _rollout(new)
            for key in map(key_of, self._vms.items()):
                if rollout or self._instances.readable(key) is None:
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
            vm = (await self._starting(vm, act) if found is None else None) or await self._as_stored(vm)
            act = vm_run_strategy.decide(vm, None, now)
            if found is not None or act.do != "create":  # else: of a VMI that is not here yet, its creation learns
                found = await self._stored_instance(vm)
                instance = found if found is not None and vm_api.belongs(found, vm) else None
                act = vm_run_strategy.decide(vm, instance, now)
        if act.do == "nothing" and instance is None and vm["metadata"].get("deletionTimestamp") and _finalized(vm):
            left = [name for name in vm["metadata"]["finalizers"] if name != vm_api.CONTROLLER_FINALIZER]
            await self._context.patch_metadata(kinds.VM, vm, {"finalizers": left or None})
            return None
        # What it lacks keeps it from starting, and from nothing else.
        lacks = "" if vm["metadata"].get("deletionTimestamp") else await self._own.provide(vm, instance, act)
        failed = lacks if act.do == "create" and lacks else await self._do(vm, instance, found, act)
        evaluation = NOTHING
        if act.do == "nothing" and not vm["metadata"].get("deletionTimestamp"):
            vm, instance, evaluation = await self._update(vm, instance)
            if evaluation.template:
                return None  # the watch update of the template brings the key back
        failure = vm_run_strategy.failure(vm, instance, now)
        status = self._status(vm, instance, act, failed or lacks, evaluation)
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

    async def _update(self, vm: Object, instance: Object | None) -> tuple[Object, Object | None, Evaluation]:
        """Changes of the template that reach the running VMI, and NICs that are to leave the template: decided on what the
        store has, as a cache that is behind would undo what was asked since."""
        evaluation = self._evaluate(vm, instance)
        differ = instance is not None and self._live_update.reattached_differ(vm, instance)
        if evaluation.live or evaluation.template or differ:
            vm = await self._as_stored(vm)
            found = await self._stored_instance(vm)
            instance = found if found is not None and vm_api.belongs(found, vm) else None
            evaluation = self._evaluate(vm, instance)
        if instance is not None and self._live_update.reattached_differ(vm, instance):
            instance = await self._live_update.copy_reattached(vm, instance)
        if instance is not None:
            evaluation = await self._live_update.apply(vm, instance, evaluation)
        if evaluation.template:
            await self._live_update.remove_from_template(vm, evaluation.template_patch())
        return vm, instance, evaluation

    def _evaluate(self, vm: Object, instance: Object | None) -> Evaluation:
        if instance is None:
            return Evaluation(template=nics.without_absent(vm["spec"]["template"]["spec"]))
        evaluation = self._live_update.evaluate(_spec(vm), instance)
        ended = instance["metadata"].get("deletionTimestamp") or (instance.get("status") or {}).get("phase") in vm_api.FINAL
        if ended or not self._own.outdated(vm):
            return evaluation
        return replace(evaluation, restart=(*evaluation.restart, "spec.resourceClaimTemplates"))

    # -- the instance

    async def _as_stored(self, vm: Object) -> Object:
        """A VM that is to start or to stop, or whose requests are done, from the store, because none of that can be undone. A
        controller that was delayed sees a request that was done long ago, or an old run strategy. NotFound: the VM is gone."""
        meta = vm["metadata"]
        stored = await self._store.get(kinds.VM, meta["name"], meta["namespace"])
        if stored["metadata"]["uid"] != meta["uid"]:
            raise NotFound(f"virtualmachine {meta['namespace']}/{meta['name']} is another one by now")
        return stored

    async def _starting(self, vm: Object, act: vm_run_strategy.RunDecision) -> Object | None:
        """The VM with the status of one that starts, written before its VMI is created: that it can be written at the revision
        that is cached shows, with the same request, that nothing is newer in the store. Conflict: something is. None: where
        the status may be written only after the creation, or has it already, or the creation failed before."""
        if act.do != "create" or act.requests or _noted(vm) or not vm_run_strategy.always_runs(vm) \
                or vm_claim_templates.entries(vm) or conditions.find(vm, "Failure") is not None:
            return None
        status = self._status(vm, None, act, "", NOTHING)
        status["runStrategy"] = vm_run_strategy.strategy_taken_up(vm, None, act, failed=False)
        change = {key: value for key, value in status.items() if (vm.get("status") or {}).get(key) != value}
        return await self._context.patch_status(kinds.VM, vm, change) if change else None

    async def _stored_instance(self, vm: Object) -> Object | None:
        """The VMI of its name, for the same reason: it may be gone, or new."""
        try:
            return await self._store.get(kinds.VMI, vm["metadata"]["name"], vm["metadata"]["namespace"])
        except NotFound:
            return None

    async def _do(self, vm: Object, instance: Object | None, found: Object | None, act: vm_run_strategy.RunDecision) -> str:
        """What was decided; a sentence if it cannot be. `found`: who has the name that its instance needs."""
        meta = vm["metadata"]
        if act.do == "create" and found is not None:
            return _in_the_way(vm)
        if act.do == "create":
            try:
                made = await self._context.create(kinds.VMI, instance_for(vm, paused=act.paused))
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

    def _status(
        self, vm: Object, instance: Object | None, act: vm_run_strategy.RunDecision, trouble: str, evaluation: Evaluation
    ) -> Object:
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
                ("RestartRequired", bool(evaluation.restart), "TemplateChanged", _waiting(evaluation))):
            have = conditions.with_condition(have, Condition(type_, True, reason, message), self._context.now()) if holds else (
                conditions.without_condition(have, type_))
        return {"created": instance is not None, "ready": instance is not None and conditions.is_true(instance, "Ready"),
                "printableStatus": vm_run_strategy.printable(vm, instance, act),
                "observedGeneration": vm["metadata"].get("generation"), "conditions": have}

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
    fields = vm_live_update.started_with(_spec(vm))
    paused_start = {"startStrategy": vmi_actions.START_PAUSED} if paused else {}
    spec = _without_absent({**copy.deepcopy(_spec(vm)), **paused_start})
    return {"apiVersion": kinds.VMI.api_version, "kind": kinds.VMI.kind, "metadata": {
        "name": meta["name"], "namespace": meta["namespace"], "labels": labels,
        "annotations": {**(extra.get("annotations") or {}), GENERATION: str(meta.get("generation", 1)),
                        vm_live_update.FIELDS: fields},
        "finalizers": [vm_api.FINALIZER],  # else the VMI controller would add it with a write of its own
        "ownerReferences": [owner_reference(vm)]}, "spec": spec}


def _without_absent(spec: Object) -> Object:
    """A VMI starts without NICs that are absent."""
    left = nics.without_absent(spec)
    if not left:
        return spec
    domain = {**spec["domain"], "devices": {**spec["domain"]["devices"], "interfaces": left[nics.INTERFACES]}}
    return {**spec, "domain": domain, nics.NETWORKS: left[nics.NETWORKS]}


def _rollout(kubevirt: Object | None) -> str:
    return kubevirt_config.read_config(kubevirt).rollout


def _waiting(evaluation: Evaluation) -> str:
    """The fields that wait for a restart, and why, where that is known; those of the VM itself have their whole path."""
    why = {path: f" ({rejection.code}: {render(rejection)})" for path, rejection in evaluation.refused.items()}
    named = [f"{path if path.startswith('spec.') else f'{TEMPLATE}.{path}'}{why.get(path, '')}" for path in evaluation.restart]
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return f"{STAGED if evaluation.staged else CHANGED}: {', '.join(named[:NAMED])}{more}"


def _spec(vm: Object) -> Object:
    """The template, with the VM's own claims among those that devices can refer to, in the place of entries of their names.
    Its parts are those of the VM, and read-only."""
    spec: Object = vm["spec"]["template"]["spec"]
    own = {one["name"]: {"name": one["name"], "resourceClaimName": claim_name(vm, one["name"])}
           for one in vm_claim_templates.entries(vm)}
    listed = {one["name"]: one for one in spec.get("resourceClaims") or ()}
    return {**spec, "resourceClaims": list((listed | own).values())} if own else spec
