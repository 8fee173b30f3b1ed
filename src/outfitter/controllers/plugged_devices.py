"""Devices of a running VMI that come and go: the lists of `status.deviceStatus` that change with them. Pure but for the
look-ups handed in; called by the device status controller."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from outfitter.api import conditions
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, device_refs, device_status, network_info, pod_claims, vm
from outfitter.api.kubevirt.attachment_pods import Attachment
from outfitter.api.rejection import RejectionCode
from outfitter.controllers.device_status_entries import Find, claim_entries


def plugged_devices(
    instance: Object, pods: Sequence[Object], claims: device_refs.Claims, find: Find,
    closed: Collection[device_refs.List] = (),
) -> tuple[Object, bool]:
    """The lists of the device status of a running instance that change: devices that are to be plugged are added once a pod
    got their claim, and no other entry has them that is still being unplugged. What is assigned stays assigned, until the node
    agent has unplugged it or its attachment pod is gone. Also whether a device is allocated and not published yet. `pods`: the
    launcher pod and its attachment pods."""
    launcher, *attached = pods
    names, nodes = {pod["metadata"]["name"] for pod in pods}, vm.shows_nodes(instance)
    holders = {attachment: pod for pod in attached
               if (attachment := attachment_pods.held(pod)) and not pod["metadata"].get("deletionTimestamp")}
    changed: Object = {}
    unpublished = False
    refs = [ref for ref in device_refs.written_refs(instance) if ref.by_claim]
    leaving = [_device(entry) for entry in attachment_pods.leaving(instance)]
    for list_ in device_refs.LISTS:
        have = [dict(entry) for entry in device_status.statuses(instance, list_)]
        entries = [entry for entry in have if (entry.get(attachment_pods.HOTPLUG) or {}).get("attachPodName") in (None, *names)]
        known = {entry.get("name") for entry in entries}
        for ref in refs if list_ not in closed else ():
            attachment = Attachment("claim", str(ref.claim))
            holder = launcher if attachment_pods.has(launcher, attachment) else holders.get(attachment)
            claim_name = dict(pod_claims.claim_names(holder or {})).get(attachment.name)
            if ref.list != list_ or ref.name in known or holder is None or not claim_name:
                continue
            found, why = claim_entries(ref, claim_name, holder, claims, find, nodes=nodes)
            if any(_device(entry) in leaving for entry in found):
                continue
            unpublished |= bool(why) and all(entry["deviceResourceClaimStatus"].get("name") for entry in found)
            hotplug = {"claimName": attachment.name, "attachPodName": holder["metadata"]["name"]}
            entries += [{**entry, attachment_pods.HOTPLUG: hotplug} for entry in found] if not why else []
        if entries != have:
            changed[device_status.STATUS_LISTS[list_]] = entries or None
    return changed, unpublished


def _device(entry: Mapping[str, Any]) -> tuple[object, ...]:
    given = entry.get("deviceResourceClaimStatus") or {}
    return tuple(given.get(field) for field in ("resourceClaimName", "driver", "pool", "name"))


def running_interfaces(vmi: Object, pods: Sequence[Object], interfaces: list[Object]) -> list[Object]:
    """What is assigned stays assigned, but for VFs of pods that the VM has no more: it migrated, or they were unplugged. Those
    that were plugged are new. `pods`: the launcher pod and its attachment pods."""
    named = {card.get("name") for card in network_info.interfaces(vmi)}
    used = {name for pod in pods for _, name in pod_claims.claim_names(pod)}
    fresh = {entry["name"]: entry for entry in interfaces}
    kept = [dict(entry) for entry in (vmi["status"].get("deviceStatus") or {}).get(network_info.STATUSES) or ()
            if (entry.get("deviceResourceClaimStatus") or {}).get("resourceClaimName") in used
            or (entry.get("name") in named and entry.get("name") not in fresh)]
    known = {entry["name"] for entry in kept}
    return [*kept, *(entry for name, entry in fresh.items() if name not in known)]


def until_migrated(vmi: Object, timestamp: str) -> list[Object] | None:
    """The conditions of a VMI that migrates while devices of it are to be plugged or unplugged; None: as they are."""
    wanted = {(ref.list, ref.name) for ref in device_refs.written_refs(vmi) if ref.by_claim}
    others = {(ref.list, ref.name) for ref in device_refs.device_refs(vmi)} - wanted  # those of a flavor, by resource name
    have = {(list_, entry.get("name")) for list_ in device_refs.LISTS for entry in device_status.statuses(vmi, list_)}
    if not (waits := sorted(str(name) for _, name in wanted ^ (have - others))):
        return None
    message = f"{', '.join(waits)}: the VM migrates, and it is done when that has ended"
    known = vmi["status"].get("conditions")
    fresh = conditions.with_condition(
        known, Condition(conditions.PLUGGED, False, str(RejectionCode.VM_MIGRATES), message), timestamp)
    return fresh if fresh != known else None
