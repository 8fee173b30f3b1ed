"""What the agent writes of a pod and its machine: why it waits, that it runs, how it ended. Each is said once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.hypervisor import BY_USER, Ended, Paused
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import (
    device_refs,
    device_status,
    failed_launches,
    pod_claims,
    vm_claim_templates,
    vmi_actions,
)
from outfitter.api.kubevirt import vm as vm_api
from outfitter.errors import Forbidden, NotFound
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.event_recorder import EventRecorder

UNPREPARED = failed_launches.PREPARE_FAILED
UNPLUGGED = "FailedPlugNetworks"
UNRELEASED = "FailedReleaseDevices"  # also: what has them cannot be stopped
AWAY = "HypervisorAway"
UNTOLD = "SecretMissing"  # what its cloud-init is to be told is not there yet
UNBUILT = "SyncFailed"
STILL = "; it still holds what it had: "  # between how a pod ended and why it does not let go
Keeps = Literal["no", "until stopped", "always"]
KEPT: Mapping[Keeps, str] = {  # whether a virtual machine keeps a claim whose pod is over -> what is said of its devices
    "no": "are given back", "until stopped": "stay its machine's own unless that is stopped",
    "always": "stay its machine's own"}
NAMED = 8  # devices that an event names; of the others it says how many


def waits_for_devices(pod: Object) -> bool:
    """Whether a pod's status contains that its devices could not be prepared."""
    return bool((pod.get("status") or {}).get("reason") == UNPREPARED)


class StatusReporter:
    def __init__(self, store: Store, *, clock: Clock, events: EventRecorder) -> None:
        self._store, self._clock, self._events = store, clock, events

    async def waiting(self, pod: Object, why: str, reason: str = UNPREPARED) -> None:
        """Why it does not run yet, or does not end. One that has ended goes on to say how."""
        change = {"reason": reason, "message": why}
        if pod["status"].get("phase") in vm_api.FINAL:
            change = {"message": pod["status"].get("message", "").partition(STILL)[0] + STILL + why}
        if pod["status"].get("message") == change["message"]:
            return
        await self._patch_pod(pod, change)
        await self._events.warning(pod, reason, why)

    async def no_longer_waits(self, pod: Object) -> None:
        """Whatever was in the way is over."""
        how, still, _ = pod["status"].get("message", "").partition(STILL)
        if still:
            await self._patch_pod(pod, {"message": how or None})
        elif pod["status"].get("reason") in (AWAY, UNTOLD, UNPREPARED):
            await self._patch_pod(pod, {"reason": None, "message": None})

    async def running(self, pod: Object, prepared: str) -> Object:
        """The pod as it is then; `prepared` says what it was given, "" for nothing."""
        now = rfc3339(self._clock.now())
        have = pod["status"].get("conditions") or []
        for type_ in ("Initialized", "ContainersReady", "Ready"):
            have = conditions.with_condition(have, Condition(type_, True), now)
        if _gated(pod):
            have = conditions.with_condition(have, _unpaused(None), now)
        containers = [{"name": container["name"], "ready": True, "started": True, "restartCount": 0, "imageID": "",
                       "image": container.get("image", ""), "state": {"running": {"startedAt": now}}}
                      for container in pod["spec"]["containers"]]
        fresh = await self._patch_pod(pod, {"phase": "Running", "startTime": now, "conditions": have, "reason": None,
                                            "containerStatuses": containers, "message": None})
        if prepared:
            await self._events.normal(pod, "Prepared", prepared)
        return fresh

    async def started(self, instance: Object, host: str, paused: Paused | None, cards: Sequence[Object] = ()) -> Object:
        """The instance as it is then. `cards`: what is known of its network cards."""
        now = rfc3339(self._clock.now())
        fresh = await self._patch_instance(
            instance,
            {
                "phase": "Running",
                "nodeName": host,
                "conditions": self._conditions(instance, paused),
                "phaseTransitionTimestamps": vm_api.entered(
                    instance["status"].get("phaseTransitionTimestamps"), "Running", now
                ),
                **({"interfaces": cards} if cards else {}),
            },
        )
        await self._events.normal(instance, "Started", f"VirtualMachineInstance started.{_given(instance)}")
        return fresh

    async def stands(self, instance: Object, paused: Paused | None) -> None:
        """Whether the processors of a machine that runs stand still; whatever was asked about that is done."""
        was, open_ = conditions.find(instance, vmi_actions.PAUSED), vmi_actions.of(instance)
        same = (was or {}).get("reason") == (paused.reason if paused else None)
        if same and not open_:
            return
        change: Object = {vmi_actions.FIELD: [note for note in open_ if note.get("action") not in vmi_actions.PAUSES] or None}
        if not same:
            change["conditions"] = self._conditions(instance, paused)
        await self._patch_instance(instance, change)
        if same:
            return
        if paused is None:
            await self._events.normal(instance, "Unpaused", "VirtualMachineInstance unpaused")
        elif paused == BY_USER:
            await self._events.normal(instance, "Paused", "VirtualMachineInstance paused")
        else:
            await self._events.warning(instance, paused.reason, paused.message)

    async def pod_stands(self, pod: Object, paused: Paused | None) -> Object:
        """Nobody sends anything to a pod whose machine stands still: it is not ready. The pod as it is then."""
        wanted = _unpaused(paused)
        if not _gated(pod) or conditions.is_true(pod, wanted.type) is wanted.status:
            return pod
        now, why = rfc3339(self._clock.now()), "" if wanted.status else "ReadinessGatesNotReady"
        have = conditions.with_condition(pod["status"].get("conditions"), wanted, now)
        ready = Condition("Ready", wanted.status, why, "" if wanted.status else wanted.message)
        return await self._patch_pod(pod, {"conditions": conditions.with_condition(have, ready, now)})

    def _conditions(self, instance: Object, paused: Paused | None) -> list[Object]:
        """Of a machine that runs. One that stands still is not ready for anybody."""
        now, have = rfc3339(self._clock.now()), instance["status"].get("conditions")
        if paused is None:
            return conditions.with_condition(
                conditions.without_condition(have, vmi_actions.PAUSED), Condition("Ready", True), now
            )
        have = conditions.with_condition(have, Condition("Ready", False, paused.reason, paused.message), now)
        return conditions.with_condition(have, Condition(vmi_actions.PAUSED, True, paused.reason, paused.message), now)

    async def done(self, instance: Object, reason: str, message: str) -> None:
        await self._events.normal(instance, reason, message)

    async def not_done(self, instance: Object, action: str, why: str) -> None:
        """What was asked of a running machine, and could not be."""
        await self._events.warning(instance, f"Failed{action}", why)

    async def not_started(self, pod: Object, why: str) -> None:
        await self.failed(pod, UNBUILT, why)

    async def ended(self, pod: Object, host: str, how: Ended | None) -> None:
        """`how` is what the hypervisor knows of it: None is nothing at all."""
        if how is None:
            await self.failed(pod, "DomainGone", f"the machine no longer runs on {host}")
        elif how.failed:
            await self.failed(pod, "DomainFailed", f"{host}: {how.reason}")
        else:
            await self._patch_pod(pod, {"phase": "Succeeded", "reason": "Stopped", "message": f"{host}: {how.reason}"})
            await self._events.normal(_machine(pod), "Stopped", f"{host}: {how.reason}")

    async def failed(self, pod: Object, reason: str, message: str) -> None:
        await self._patch_pod(pod, {"phase": "Failed", "reason": reason, "message": message})
        await self._events.warning(_machine(pod), reason, message)

    async def stopping(self, pod: Object, grace: float) -> None:
        await self._events.normal(_machine(pod), "ShuttingDown", f"Signaled Graceful Shutdown: its guest has {grace:g} seconds")

    async def released(self, pod: Object, host: str, claims: Sequence[str]) -> None:
        """It is off, and what it had is given back, but for what its machine keeps while it is stopped."""
        known = {name: await self._keeps(pod, name) for name in claims}
        words = [f"the devices of {', '.join(named)} {what}" for keeps, what in KEPT.items()
                 if (named := [name for name in claims if known[name] == keeps])]
        if pod["metadata"].get("deletionTimestamp"):
            words = [f"Signaled Deletion: it is off on {host}", *words]
            await self._events.normal(_machine(pod), "Deleted", "; ".join(words))
        else:
            await self._events.normal(_machine(pod), "Released", f"{host}: {'; '.join(words)}")

    async def _keeps(self, pod: Object, claim: str) -> Keeps:
        """Whether a claim belongs to a virtual machine, which has its devices until it goes, or until it is stopped."""
        namespace = pod["metadata"]["namespace"]
        try:
            found = await self._store.get(kinds.RESOURCE_CLAIM, claim, namespace)
            owner = vm_api.owner(found, kinds.VM.kind)
            if owner is None or found["metadata"].get("deletionTimestamp"):
                return "no"
            vm = await self._store.get(kinds.VM, owner["name"], namespace)
        except (NotFound, Forbidden):
            return "no"
        if vm["metadata"]["uid"] != owner["uid"] or vm["metadata"].get("deletionTimestamp"):
            return "no"
        named = {name for name, claim_name in pod_claims.claim_names(pod) if claim_name == claim}
        entry = next((one for one in vm_claim_templates.entries(vm) if one["name"] in named), None)
        return "always" if entry is None or vm_claim_templates.kept_when_stopped(entry) else "until stopped"

    async def kept(self, pod: Object, host: str) -> None:
        """It is off, and its object stays for as long as somebody wants it: as one that uses nothing any more."""
        if (pod.get("status") or {}).get("phase") not in vm_api.FINAL:
            await self._patch_pod(pod, {
                "phase": "Failed", "reason": "Deleted",
                "message": f"{host}: it was deleted and is off; the object stays until its finalizers are taken off: "
                           f"{', '.join(pod['metadata']['finalizers'])}"})

    async def _patch_pod(self, pod: Object, status: Mapping[str, object]) -> Object:
        """At the revision that was read: whoever wrote since does not lose it, and another pod of the same name does not get
        what was meant for one that is gone."""
        meta = pod["metadata"]
        return await self._store.patch(kinds.POD, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"]}, "status": status,
        }, meta["namespace"], subresource="status")

    async def _patch_instance(self, instance: Object, status: Mapping[str, object]) -> Object:
        meta = instance["metadata"]
        return await self._store.patch(kinds.VMI, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"]}, "status": status,
        }, meta["namespace"], subresource="status")


def _gated(pod: Object) -> bool:
    """Whether a pod is ready only while its machine is not paused."""
    return any(gate.get("conditionType") == vmi_actions.UNPAUSED for gate in pod["spec"].get("readinessGates") or ())


def _unpaused(paused: Paused | None) -> Condition:
    if paused is None:
        return Condition(vmi_actions.UNPAUSED, True, "NotPaused", "the virtual machine is not paused")
    return Condition(vmi_actions.UNPAUSED, False, "Paused", "the virtual machine is paused")


def _machine(pod: Object) -> Object:
    """What an event is about that its owner should read: the machine in a pod, or the pod itself."""
    reference = vm_api.owner(pod, kinds.VMI.kind)
    if reference is None:
        return pod
    meta = {"name": reference["name"], "uid": reference["uid"], "namespace": pod["metadata"]["namespace"]}
    return {"apiVersion": reference.get("apiVersion"), "kind": reference["kind"], "metadata": meta}


def _given(instance: Object) -> str:
    """The devices that a machine got, each with its address."""
    given = [f"{entry['name']} ({where[1]})" for list_ in device_refs.LISTS for entry in device_status.statuses(instance, list_)
             if (where := device_status.address_of(entry))]
    more = f" and {len(given) - NAMED} more" if len(given) > NAMED else ""
    return f" It has {', '.join(given[:NAMED])}{more}." if given else ""
