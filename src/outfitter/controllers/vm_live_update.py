"""Changes of a VM's template while its VMI runs: copies what can change live to the VMI, removes unplugged NICs from the
template, and names what waits for a restart. The rules are in `api/live_update`; called by the VM controller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, kubevirt_config, reattached_devices
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.live_update import nics, spec_fields
from outfitter.api.live_update.claimed_devices import ClaimedDevices
from outfitter.api.live_update.contribution import LIVE_UPDATE, RunningVm
from outfitter.api.live_update.evaluator import CLAIMS, NOTHING, Evaluation, evaluate
from outfitter.controllers.manager import ControllerContext
from outfitter.controllers.vmi import LauncherPods
from outfitter.errors import Forbidden, Invalid

FIELDS = "outfitter.dev/template-fields"  # annotation of a VMI: the fields of the template that it was created from
COPIED, REFUSED, REMOVED = "LiveUpdate", "HotPlugNetworkInterfaceError", "NetworkInterfaceRemoved"  # reasons of events


def started_with(spec: Object) -> str:
    """The annotation FIELDS of a VMI that is created from a spec."""
    return ",".join(sorted(spec_fields.leaves(spec)))


class VmLiveUpdate:
    def __init__(self, context: ControllerContext, in_place: Callable[[str], bool]) -> None:
        """`in_place`: whether claimed devices are plugged in place on the host of this name."""
        self._context, self._in_place = context, in_place
        self._pods = LauncherPods(context.informer(kinds.POD))
        self._kubevirts = context.informer(kinds.KUBEVIRT)

    def evaluate(self, wanted: Object, instance: Object) -> Evaluation:
        """`wanted`: the spec that a VMI created now would have."""
        if (instance.get("status") or {}).get("phase") in vm_api.FINAL or instance["metadata"].get("deletionTimestamp"):
            return NOTHING
        if wanted == instance["spec"] and not nics.without_absent(wanted):
            return NOTHING
        config = kubevirt_config.read_config(kubevirt_config.active_kubevirt(self._kubevirts.items()))
        return evaluate(RunningVm(
            wanted, instance, self._pods.current(instance), config.rollout, _recorded(instance),
            self._in_place(str((instance.get("status") or {}).get("nodeName") or ""))))

    async def apply(self, vm: Object, instance: Object, evaluation: Evaluation) -> Evaluation:
        """Write what changes live. What the VMI's admission refuses waits for a restart."""
        if not evaluation.live:
            return evaluation
        try:
            await self._context.patch(
                kinds.VMI, instance, {**_with_plugged(instance, evaluation), "spec": evaluation.vmi_patch()})
        except (Invalid, Forbidden) as error:
            await self._context.events.warning(vm, REFUSED, f"not copied to the running VMI: {error.message}")
            return replace(evaluation, live={}, restart=(*evaluation.restart, *evaluation.live))
        await self._context.events.normal(
            vm, COPIED, f"copied to the running VMI: {', '.join(evaluation.migration or evaluation.live)}")
        return evaluation

    def reattached_differ(self, vm: Object, instance: Object) -> bool:
        """Whether the template names other devices that are reattached by a migration than the running VMI does. It is the one
        annotation of a template that changes live: it counts at the next migration."""
        meta, phase = instance["metadata"], (instance.get("status") or {}).get("phase")
        if _reattached(vm) == reattached_devices.declared(meta) or phase in vm_api.FINAL or meta.get("deletionTimestamp"):
            return False
        config = kubevirt_config.read_config(kubevirt_config.active_kubevirt(self._kubevirts.items()))
        return config.rollout == LIVE_UPDATE

    async def copy_reattached(self, vm: Object, instance: Object) -> Object:
        """The VMI with the annotation of the template."""
        return await self._context.patch_metadata(kinds.VMI, instance, {
            "annotations": {reattached_devices.DECLARED: _reattached(vm)}})

    async def remove_from_template(self, vm: Object, patch: Object) -> None:
        """NICs with state absent that the VMI has no more, and the claims that nothing but these NICs used."""
        kept = {each["name"] for each in spec_fields.get(patch, nics.INTERFACES) or ()}
        spec = vm["spec"]["template"]["spec"]
        gone = [each["name"] for each in spec_fields.get(spec, nics.INTERFACES) or () if each["name"] not in kept]
        if claims := _claims_left(spec, patch):
            patch = {**patch, **claims}
        await self._context.patch(kinds.VM, vm, {"spec": {"template": {"spec": patch}}})
        await self._context.events.normal(vm, REMOVED, f"removed from the template, as it is unplugged: {', '.join(gone)}")


def _reattached(vm: Object) -> str | None:
    return reattached_devices.declared(vm["spec"]["template"].get("metadata") or {})


def _recorded(instance: Object) -> frozenset[str] | None:
    """Fields of the template that a VMI was created from, and those of devices that were plugged since; None: not recorded."""
    fields = (instance["metadata"].get("annotations") or {}).get(FIELDS)
    return frozenset(fields.split(",")) if fields else None


def _with_plugged(instance: Object, evaluation: Evaluation) -> Object:
    """The metadata of a VMI that gets what was evaluated: what is plugged counts as its own from then on, so that it is a
    change when it is removed."""
    recorded = _recorded(instance)
    plugged = {f"{path}.name" for path in evaluation.migration if path.startswith(tuple(ClaimedDevices.fields))}
    if recorded is None or plugged <= recorded:
        return {}
    return {"metadata": {"annotations": {FIELDS: ",".join(sorted(recorded | plugged))}}}


def _claims_left(spec: Object, patch: Object) -> Object:
    """resourceClaims without those that only the removed networks used; empty if there are none."""
    used = {ref.claim for ref in device_refs.request_refs({"spec": {**spec, nics.NETWORKS: patch.get(nics.NETWORKS)}})}
    released = {ref.claim for ref in device_refs.request_refs({"spec": spec})} - used
    listed = spec.get(CLAIMS) or ()
    left = [entry for entry in listed if entry.get("name") not in released]
    return {CLAIMS: left or None} if len(left) < len(listed) else {}
