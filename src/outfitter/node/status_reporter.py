"""Writes the status and events of a pod and its VMI: why it waits, that it runs, how it ended. Each is written once.

Called by the agent and by `VmiActions`. Decides nothing: the callers say what happened."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.conditions import Condition
from outfitter.api.hypervisor import BY_USER, Ended, Paused
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import (
    device_refs,
    device_status,
    failed_launches,
    live_migratable,
    network_info,
    pod_claims,
    vm_claim_templates,
    vmi_actions,
)
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text import render
from outfitter.errors import Forbidden, NotFound
from outfitter.node.hotplug.device_plan import DeviceKey, PendingDevice, ReportedDevices
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.events.event_recorder import EventRecorder

FAILED_PREPARE = failed_launches.PREPARE_FAILED
FAILED_NETWORKS = "FailedPlugNetworks"
FAILED_RELEASE = "FailedReleaseDevices"  # also: the domain cannot be stopped
AWAY = "HypervisorAway"
SECRET_MISSING = "SecretMissing"  # of its cloud-init volume
SYNC_FAILED = "SyncFailed"
Keeps = Literal["no", "until stopped", "always"]
WORDS: Mapping[device_refs.List, str] = {"gpus": "GPU", "hostDevices": "host device"}
KEPT: Mapping[Keeps, str] = {  # whether a VM keeps a claim whose pod has terminated -> what the event says about its devices
    "no": "are released", "until stopped": "stay with the VM unless it is stopped", "always": "stay with the VM"}
RESOURCES = "allocatedResourcesStatus"
NO_RESOURCES: Mapping[str, Sequence[Object]] = {}
MAX_NAMED = 8  # devices that an event names; the others are counted


def waits_for_devices(pod: Object) -> bool:
    """Whether a pod's status contains that its devices could not be prepared."""
    return bool((pod.get("status") or {}).get("reason") == FAILED_PREPARE)


class StatusReporter:
    def __init__(self, store: Store, *, clock: Clock, events: EventRecorder) -> None:
        self._store, self._clock, self._events = store, clock, events

    async def waiting(self, pod: Object, rejection: Rejection, reason: str = FAILED_PREPARE) -> None:
        """Why a pod does not run yet, or does not end. One that has terminated keeps its reason, and gets a condition."""
        why, now = render(rejection), rfc3339(self._clock.now())
        codes = rejection_conditions.with_codes(pod["status"].get("conditions"), {rejection.code: why}, now)
        change: Object = {"reason": reason, "message": why, "conditions": codes}
        if pod["status"].get("phase") in vm_api.FINAL:
            unreleased = Condition(conditions.UNRELEASED, True, reason, why)
            change = {"conditions": conditions.with_condition(codes, unreleased, now)}
        if all(pod["status"].get(field) == value for field, value in change.items() if field != "reason"):
            return
        await self._patch_pod(pod, change)
        await self._events.warning(pod, reason, why)

    async def of_node(self, host: str, why: Rejection) -> None:
        """An event of a host's Node."""
        await self._events.warning(await self._store.get(kinds.NODE, host), str(why.code), render(why))

    async def clear_waiting(self, pod: Object) -> None:
        """Remove the reason for which a pod waited."""
        if conditions.is_true(pod, conditions.UNRELEASED):
            rest = conditions.without_condition(pod["status"].get("conditions"), conditions.UNRELEASED)
            await self._patch_pod(pod, {"conditions": self._without_codes(rest)})
        elif pod["status"].get("reason") in (AWAY, SECRET_MISSING, FAILED_PREPARE):
            rest = pod["status"].get("conditions") or []
            await self._patch_pod(pod, {"reason": None, "message": None, "conditions": self._without_codes(rest)})

    def _without_codes(self, have: Sequence[Object]) -> list[Object]:
        return rejection_conditions.with_codes(have, {}, rfc3339(self._clock.now()))

    async def pod_running(
        self, pod: Object, prepared: str, annotations: Mapping[str, str] | None = None,
        resources: Mapping[str, Sequence[Object]] = NO_RESOURCES,
    ) -> Object:
        """The pod as it is then. `prepared`: the devices that were prepared for it, "" for none. `annotations`: written with
        it. `resources`: the allocatedResourcesStatus of its containers."""
        now = rfc3339(self._clock.now())
        have = self._without_codes(pod["status"].get("conditions") or [])
        for type_ in ("Initialized", "ContainersReady", "Ready"):
            have = conditions.with_condition(have, Condition(type_, True), now)
        if vmi_actions.gated(pod):
            have = conditions.with_condition(have, vmi_actions.unpaused_condition(paused=False), now)
        containers = [_container_status(container, now, resources) for container in pod["spec"]["containers"]]
        first = [_container_status(container, now, resources, ended=container.get("restartPolicy") != "Always")
                 for container in pod["spec"].get("initContainers") or ()]
        status = {"phase": "Running", "startTime": now, "conditions": have, "reason": None, "containerStatuses": containers,
                  "message": None, **({"initContainerStatuses": first} if first else {})}
        fresh = await self._patch_pod(pod, status, annotations)
        if prepared:
            await self._events.normal(pod, "Prepared", prepared)
        return fresh

    async def vmi_running(
        self, instance: Object, host: str, paused: Paused | None, interfaces: Sequence[Object] = ()
    ) -> Object:
        """The VMI as it is then. `interfaces`: its status.interfaces."""
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
                **({"interfaces": interfaces} if interfaces else {}),
            },
        )
        await self._events.normal(instance, "Started", f"VirtualMachineInstance started.{_devices(instance)}")
        return fresh

    async def interfaces(
        self, instance: Object, entries: Sequence[Object], nics: Collection[str], waits: Mapping[str, Rejection]
    ) -> None:
        """The network interfaces of a running VMI. `nics`: those that its domain has; `waits`: why some are not plugged or
        unplugged yet. Events of those that are come from the controller of NIC hotplug."""
        status, now = instance["status"], rfc3339(self._clock.now())
        texts = {name: render(why) for name, why in waits.items()}
        have = status.get("conditions") or []
        if waits:
            first = next(iter(waits.values()))
            wanted = Condition(conditions.INTERFACES, False, str(first.code), "; ".join(texts.values()))
            fresh = conditions.with_condition(have, wanted, now)
        else:
            fresh = conditions.without_condition(have, conditions.INTERFACES)
        known = (conditions.find(instance, conditions.INTERFACES) or {}).get("message")
        change: Object = {"interfaces": list(entries)} if list(entries) != (status.get("interfaces") or []) else {}
        if fresh != have:
            change["conditions"] = fresh
        if not change:
            return
        await self._patch_instance(instance, change)
        for name, text in texts.items() if known != "; ".join(texts.values()) else ():
            await self._events.warning(instance, _failed(instance, name, plugged=name in nics), text)

    async def devices(self, instance: Object, found: ReportedDevices, waits: Mapping[DeviceKey, PendingDevice]) -> None:
        """GPUs and host devices of a running VMI that were plugged and unplugged. `waits`: why some are not yet."""
        have, message = instance["status"].get("conditions") or [], "; ".join(why.message for why in waits.values())
        if waits:
            wanted = Condition(conditions.PLUGGED, False, next(iter(waits.values())).code, message)
            fresh = conditions.with_condition(have, wanted, rfc3339(self._clock.now()))
        else:
            fresh = conditions.without_condition(have, conditions.PLUGGED)
        known = (conditions.find(instance, conditions.PLUGGED) or {}).get("message")
        change: Object = {"deviceStatus": found.lists} if found.lists else {}
        if fresh != have:
            change["conditions"] = fresh
        if not change:
            return
        await self._patch_instance(instance, change)
        host = instance["status"].get("nodeName")
        for key in found.plugged:
            await self._events.normal(instance, "DevicePlugged", f"{WORDS[key.list]} {key.name} is plugged on {host}")
        for key in found.gone:
            await self._events.normal(instance, "DeviceUnplugged", f"{WORDS[key.list]} {key.name} is unplugged on {host}")
        wanted_keys = {(ref.list, ref.name) for ref in device_refs.written_refs(instance)}
        for key, why in waits.items() if known != message else ():
            reason = "FailedPlugDevice" if key in wanted_keys else "FailedUnplugDevice"
            await self._events.warning(instance, reason, why.message)

    async def vmi_paused(self, instance: Object, paused: Paused | None) -> None:
        """Whether a running VMI is paused. Requests to pause or unpause it are done then, and removed."""
        condition, requests = conditions.find(instance, vmi_actions.PAUSED), vmi_actions.action_requests(instance)
        same = (condition or {}).get("reason") == (paused.reason if paused else None)
        if same and not requests:
            return
        change: Object = {vmi_actions.FIELD: [
            request for request in requests if request.get("action") not in vmi_actions.PAUSES] or None}
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

    async def pod_paused(self, pod: Object, paused: Paused | None) -> Object:
        """The pod of a paused VMI is not ready, so that no service sends requests to it. The pod as it is then."""
        wanted = vmi_actions.unpaused_condition(paused=paused is not None)
        if not vmi_actions.gated(pod) or conditions.is_true(pod, wanted.type) is wanted.status:
            return pod
        now, why = rfc3339(self._clock.now()), "" if wanted.status else "ReadinessGatesNotReady"
        have = conditions.with_condition(pod["status"].get("conditions"), wanted, now)
        ready = Condition("Ready", wanted.status, why, "" if wanted.status else wanted.message)
        return await self._patch_pod(pod, {"conditions": conditions.with_condition(have, ready, now)})

    def _conditions(self, instance: Object, paused: Paused | None) -> list[Object]:
        """Of a running VMI. A paused one is not ready."""
        now, have = rfc3339(self._clock.now()), instance["status"].get("conditions")
        movable = live_migratable.live_migratable(instance)
        if not movable.status or not live_migratable.depends_on_claims(instance):
            have = conditions.with_condition(have, movable, now)
        if paused is None:
            return conditions.with_condition(
                conditions.without_condition(have, vmi_actions.PAUSED), Condition("Ready", True), now
            )
        have = conditions.with_condition(have, Condition("Ready", False, paused.reason, paused.message), now)
        return conditions.with_condition(have, Condition(vmi_actions.PAUSED, True, paused.reason, paused.message), now)

    async def action_done(self, instance: Object, reason: str, message: str) -> None:
        await self._events.normal(instance, reason, message)

    async def action_failed(self, instance: Object, action: str, why: str) -> None:
        """An action request for a running VMI could not be carried out."""
        await self._events.warning(instance, f"Failed{action}", why)

    async def pod_rejected(self, pod: Object, rejection: Rejection, reason: str) -> None:
        """A VM that cannot be prepared or started here; its pod and its VMI carry the code."""
        why = render(rejection)
        have = rejection_conditions.with_codes(
            pod["status"].get("conditions"), {rejection.code: why}, rfc3339(self._clock.now()))
        await self._patch_pod(pod, {"phase": "Failed", "reason": reason, "message": why, "conditions": have})
        await self._events.warning(subject(pod), reason, why)

    async def pod_not_admitted(self, pod: Object, rejection: Rejection, reason: str) -> None:
        """A pod that the node does not take, for good; in the kubelet's words."""
        why = render(rejection)
        aligned = rejection.code is not RejectionCode.TOPOLOGY_AFFINITY
        message = f"Pod was rejected: {f'Allocate failed due to {why}, which is unexpected' if aligned else why}"
        have = rejection_conditions.with_codes(
            pod["status"].get("conditions"), {rejection.code: why}, rfc3339(self._clock.now()))
        await self._patch_pod(pod, {"phase": "Failed", "reason": reason, "message": message, "conditions": have})
        await self._events.warning(pod, reason, message)

    async def resources_changed(self, pod: Object, resources: Mapping[str, Sequence[Object]]) -> Object:
        """The allocatedResourcesStatus of a running pod's containers, where it changed. The pod as it is then."""
        change = {}
        for field in ("containerStatuses", "initContainerStatuses"):
            have = pod["status"].get(field) or []
            fresh = [{**entry, RESOURCES: list(resources[entry["name"]])} if entry["name"] in resources else entry
                     for entry in have]
            if fresh != have:
                change[field] = fresh
        return await self._patch_pod(pod, change) if change else pod

    async def domain_ended(self, pod: Object, host: str, how: Ended | None) -> None:
        """`how` is what the hypervisor knows about the end; None: nothing."""
        if how is None:
            await self.pod_failed(pod, "DomainGone", f"the VM no longer runs on {host}")
        elif how.failed:
            await self.pod_failed(pod, "DomainFailed", f"{host}: {how.reason}")
        else:
            await self._patch_pod(pod, {"phase": "Succeeded", "reason": "Stopped", "message": f"{host}: {how.reason}"})
            await self._events.normal(subject(pod), "Stopped", f"{host}: {how.reason}")

    async def pod_failed(self, pod: Object, reason: str, message: str) -> None:
        await self._patch_pod(pod, {"phase": "Failed", "reason": reason, "message": message})
        await self._events.warning(subject(pod), reason, message)

    async def pod_succeeded(self, pod: Object, reason: str, message: str) -> None:
        await self._patch_pod(pod, {"phase": "Succeeded", "reason": reason, "message": message})

    async def shutting_down(self, pod: Object, grace: float) -> None:
        await self._events.normal(subject(pod), "ShuttingDown", f"Signaled Graceful Shutdown: its guest has {grace:g} seconds")

    async def released(self, pod: Object, host: str, claims: Sequence[str]) -> None:
        """The domain is stopped and the devices of these claims are released, but for claims that the VM keeps while it is
        stopped."""
        known = {name: await self._keeps(pod, name) for name in claims}
        words = [f"the devices of {', '.join(named)} {what}" for keeps, what in KEPT.items()
                 if (named := [name for name in claims if known[name] == keeps])]
        if pod["metadata"].get("deletionTimestamp"):
            words = [f"Signaled Deletion: stopped on {host}", *words]
            await self._events.normal(subject(pod), "Deleted", "; ".join(words))
        else:
            await self._events.normal(subject(pod), "Released", f"{host}: {'; '.join(words)}")

    async def _keeps(self, pod: Object, claim: str) -> Keeps:
        """Whether a claim is owned by a VirtualMachine, which keeps its devices until it is deleted, or until it is stopped."""
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

    async def held_by_finalizers(self, pod: Object, host: str) -> None:
        """The domain is stopped, and finalizers keep the object: the pod has failed, so that it no longer counts as using
        anything."""
        if (pod.get("status") or {}).get("phase") not in vm_api.FINAL:
            await self._patch_pod(pod, {
                "phase": "Failed", "reason": "Deleted",
                "message": f"{host}: deleted and stopped; the object stays until its finalizers are removed: "
                           f"{', '.join(pod['metadata']['finalizers'])}"})

    async def _patch_pod(
        self, pod: Object, status: Mapping[str, object], annotations: Mapping[str, str] | None = None
    ) -> Object:
        """At the revision that was read: no later write of others is lost, and another pod of the same name is not changed. A
        write of a pod's status writes its annotations too."""
        meta, more = pod["metadata"], {"annotations": annotations} if annotations else {}
        return await self._store.patch(kinds.POD, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"], **more}, "status": status,
        }, meta["namespace"], subresource="status")

    async def _patch_instance(self, instance: Object, status: Mapping[str, object]) -> Object:
        meta = instance["metadata"]
        return await self._store.patch(kinds.VMI, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"]}, "status": status,
        }, meta["namespace"], subresource="status")


def subject(pod: Object) -> Object:
    """The object of an event that its owner should read: the VMI of a pod, or the pod itself."""
    reference = vm_api.owner(pod, kinds.VMI.kind)
    if reference is None:
        return pod
    meta = {"name": reference["name"], "uid": reference["uid"], "namespace": pod["metadata"]["namespace"]}
    return {"apiVersion": reference.get("apiVersion"), "kind": reference["kind"], "metadata": meta}


def _container_status(
    container: Object, now: str, resources: Mapping[str, Sequence[Object]], *, ended: bool = False
) -> Object:
    """Of a container that runs, or of an init container that has ended."""
    state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}} if ended else {
        "running": {"startedAt": now}}
    out = {"name": container["name"], "ready": True, "started": not ended, "restartCount": 0, "imageID": "",
           "image": container.get("image", ""), "state": state}
    return out | ({RESOURCES: list(resources[container["name"]])} if container["name"] in resources else {})


def _devices(instance: Object) -> str:
    """The devices of a VMI, each with its address, as a sentence."""
    devices = [f"{entry['name']} ({where[1]})" for list_ in device_refs.LISTS
               for entry in device_status.statuses(instance, list_) if (where := device_status.address_of(entry))]
    more = f" and {len(devices) - MAX_NAMED} more" if len(devices) > MAX_NAMED else ""
    return f" It has {', '.join(devices[:MAX_NAMED])}{more}." if devices else ""


def _failed(instance: Object, name: str, *, plugged: bool) -> str:
    """The reason of an event about a network interface that is not as its VMI wants it."""
    if not plugged:
        return "FailedPlugInterface"
    wanted = any(card.get("name") == name and card.get("state") != "absent" for card in network_info.interfaces(instance))
    return "FailedChangeInterface" if wanted else "FailedUnplugInterface"
