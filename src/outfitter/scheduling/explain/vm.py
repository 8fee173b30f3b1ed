"""Why a VM or VMI waits, or which devices it has: its part of `outfit why`, from objects as the store has them. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.kubevirt import device_refs, device_status, failed_launches, lost_devices, network_info, vmi_actions
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.rejection import Rejection, RejectionCode, out_of_service
from outfitter.api.rejection_text import render
from outfitter.inventory import cpulist
from outfitter.scheduling.explain import grouping, migration, pending_change, vm_remedies
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.explain.explanation import Explanation
from outfitter.scheduling.explain.object_state import (
    GOES,
    being_deleted,
    booking_line,
    claim_bookings,
    condition_suffix,
    host_of,
    host_return_advice,
    pods_of,
    unhealthy_advice,
    unhealthy_devices,
    unreleased,
)
from outfitter.scheduling.explain.pod import pod

# -- a VM


def vm(cluster: ClusterObjects, obj: Mapping[str, Any]) -> Explanation:
    """A VirtualMachine: its instance says the rest, while there is one."""
    meta, status = obj["metadata"], obj.get("status") or {}
    say = functools.partial(Explanation, f"vm/{meta['name']}", meta["namespace"])
    mine = [one for one in cluster.instances if (vm_api.owner(one, kinds.VM.kind) or {}).get("uid") == meta["uid"]]
    if mine:
        goes = GOES if meta.get("deletionTimestamp") else "is stopping"  # else only its instance is deleted
        return _with_template(obj, replace(instance(cluster, mine[0], goes=goes), about=f"vm/{meta['name']}"))
    if meta.get("deletionTimestamp"):
        return being_deleted(cluster, obj, "", say)
    if conditions.find(obj, "Failure"):
        other = any((one["metadata"]["namespace"], one["metadata"]["name"]) == (meta["namespace"], meta["name"])
                    for one in cluster.instances)
        return say("Waiting", f"has no instance{condition_suffix(obj, 'Failure')}", "instance", todo=(
            f"outfit delete vmi {meta['name']}, which ends that instance; or give the VM another name",) if other else ())
    strategy = vm_api.run_strategy(obj)
    if strategy == "Halted":
        return say("Ended", "is stopped, as its run strategy Halted says: nothing is wrong",
                   todo=(f"outfit vm start {meta['name']}",))
    shown = status.get("printableStatus") or "not known yet"
    if shown == "Stopped":
        return say("Ended", f"is stopped, and its run strategy {strategy} leaves that to you: nothing is wrong",
                   todo=(f"outfit vm start {meta['name']}",))
    return vm_remedies.of_own_claims(cluster, meta["uid"], say(
        "Waiting", f"has no instance (run strategy {strategy}, status {shown})", "instance"))


def _with_template(obj: Mapping[str, Any], answer: Explanation) -> Explanation:
    """Of a VM whose template differs from its VMI."""
    if not conditions.is_true(obj, "RestartRequired"):
        return answer
    why = str((conditions.find(obj, "RestartRequired") or {}).get("message") or "its template was changed")
    sentence = f"{answer.sentence.removesuffix(': nothing is wrong')}; a change of its template waits for a restart"
    return replace(answer, sentence=sentence, lines=(*answer.lines, why),
                   todo=(*answer.todo, f"outfit vm restart {obj['metadata']['name']}"))


def instance(cluster: ClusterObjects, obj: Mapping[str, Any], *, goes: str = GOES) -> Explanation:
    """A VMI, with the hosts on which its launch failed. `goes`: what it does while it is being deleted."""
    answer, failed = _instance(cluster, obj, goes=goes), failed_launches.of(obj)
    answer = vm_remedies.of_vmi(cluster, obj, answer)
    return replace(answer, lines=(*answer.lines, *(launch.text(cluster.time) for launch in failed))) if failed else answer


def _instance(cluster: ClusterObjects, obj: Mapping[str, Any], *, goes: str) -> Explanation:
    meta, status = obj["metadata"], obj.get("status") or {}
    say = functools.partial(Explanation, f"vmi/{meta['name']}", meta["namespace"])
    phase, host = status.get("phase") or "Pending", host_of(cluster, obj)
    if meta.get("deletionTimestamp"):
        return being_deleted(cluster, obj, host, say, goes=goes)
    if phase == "Running":
        if absent := cluster.absence(host):
            return say(
                "Waiting", f"is on {host}, {absent}", "node", lines=tuple(_devices(obj)), todo=host_return_advice(cluster, host)
            )
        return pending_change.of_running_vmi(cluster, obj, _running(cluster, obj, say))
    if phase in vm_api.FINAL:
        ended = phase == "Succeeded"
        return say("Ended" if ended else "Failed", f"has {'ended' if ended else 'failed'}{condition_suffix(obj, 'Ready')}",
                   lines=unreleased(pods_of(cluster, obj)))
    mine = pods_of(cluster, obj)
    if not mine:
        return say("Waiting", f"has no pod yet{condition_suffix(obj, 'Synchronized')}", "pod")
    newest = max(mine, key=lambda one: str(one["metadata"].get("creationTimestamp") or ""))
    answer = pod(cluster, newest)
    if newest["spec"].get("nodeName") and (lacking := _missing_devices(cluster, obj)):
        why = condition_suffix(obj, "DevicesReady")
        if answer.state == "Running" and why:  # the pod has all that it needs, the VMI has not
            return replace(answer, about=f"vmi/{meta['name']}", state="Waiting", waits_for="deviceStatus",
                           sentence=f"waits on {newest['spec']['nodeName']}{why}")
        missing = f"devices not known yet{why or ': ' + ', '.join(lacking)}"
        answer = replace(answer, state="Waiting", waits_for=answer.waits_for or "deviceStatus", lines=(*answer.lines, missing))
    if answer.state == "Waiting" and not newest["spec"].get("nodeName"):  # its pod is only where it waits
        return replace(answer, about=f"vmi/{meta['name']}")
    return answer.said_of(f"vmi/{meta['name']}", f"is {phase}:")


def _running(cluster: ClusterObjects, obj: Mapping[str, Any], say: Callable[..., Explanation]) -> Explanation:
    meta, lacking = obj["metadata"], _missing_devices(cluster, obj)
    if conditions.find(obj, conditions.PLUGGED) is not None:
        lacking = []  # it waits for its plug, of which the condition has the reason
    more = (f"devices not known yet: {', '.join(lacking)}{condition_suffix(obj, 'DevicesReady')}",) if lacking else ()
    skipped = [wire.network for wire in _wires(cluster, obj) if wire.type == "none"]
    faults = list(_faults(cluster, obj))
    lines = (*filter(None, [migration.line(obj)]), *migration.waiting_lines(cluster, obj), *_devices(obj),
             *_bookings(cluster, obj),
             *(f"{wire.network}: {wire.words}" for wire in _wires(cluster, obj)), *more, *(what for _, what, _ in faults))
    on, todo = obj["status"].get("nodeName"), tuple(todo for _, _, todo in faults)
    say = functools.partial(say, rejections=tuple(rejection for rejection, _, _ in faults))
    if conditions.is_true(obj, vmi_actions.PAUSED):
        return say("Paused", f"stands still on {on}{condition_suffix(obj, vmi_actions.PAUSED)}", lines=lines,
                   todo=(f"outfit vm unpause {meta['name']}", *todo))
    odd = [f", without network card {', '.join(skipped)}"] if skipped else []
    names = dict.fromkeys(rejection.device.device for rejection, _, _ in faults if rejection.device is not None)
    odd += [f", and {grouping.few(list(names))} {'is not as it' if len(names) == 1 else 'are not as they'} should be"
            ] if names else [", and has an unhealthy device"] if faults else []
    return say("Running", f"runs on {on}{''.join(odd) or ('' if lacking else ': nothing is wrong')}", lines=lines, todo=todo)


def _missing_devices(cluster: ClusterObjects, obj: Mapping[str, Any]) -> list[str]:
    """The devices that neither the status nor a page has. KubeVirt writes no device status since 1.8: in companion mode the
    pages have what its launcher pods hold."""
    missing = list(device_status.missing_devices(obj))
    if not missing or (obj.get("status") or {}).get("deviceStatus"):
        return missing
    prepared = {(claim, booking.request.partition("/")[0]) for pod_ in pods_of(cluster, obj)
                for claim, _, booking in claim_bookings(cluster, pod_) if booking.state == "prepared"}
    there = {ref.name for ref in device_refs.device_refs(obj) if any(
        ref.claim == claim and ref.request in (None, request) for claim, request in prepared)}
    return [name for name in missing if name not in there]


def _bookings(cluster: ClusterObjects, obj: Mapping[str, Any]) -> list[str]:
    """What its pods hold, where its status does not have it."""
    if (obj.get("status") or {}).get("deviceStatus") or not device_status.missing_devices(obj):
        return []
    return [booking_line(host, booking, cluster.time) for pod_ in pods_of(cluster, obj)
            for _, host, booking in claim_bookings(cluster, pod_)]


def _faults(cluster: ClusterObjects, obj: Mapping[str, Any]) -> Iterator[tuple[Rejection, str, str]]:
    """The devices of a VMI that left the bus, are published no longer or are out of service: the reason, the same in words, and
    what to do."""
    host, named = str(obj["status"].get("nodeName") or ""), False
    for lost in lost_devices.lost_devices(obj, functools.partial(cluster.published_on, host)):
        device = lost.rejection.device
        assert device is not None
        named = True
        yield (lost.rejection, render(lost.rejection),
               f"see what became of it: outfit devices --node {host} --state vanished"
               if lost.rejection.code is RejectionCode.DEVICE_VANISHED else
               f"see that driver {device.driver} runs on {host} and publishes pool {device.pool}: outfit get resourceslices")
    for device in lost_devices.devices_of(obj):
        if record := cluster.quarantine(device):
            reason = f": {record.reason}" if record.reason else ""
            yield (out_of_service("quarantined", record),
                   f"{device.device} is quarantined since {cluster.time(record.since)}{reason}",
                   f"outfit device restore {device.pool}/{device.device}, when it can be trusted again")
            named = True
    for rejection in unhealthy_devices(obj) if not named else ():  # of other drivers and of device plugins
        yield rejection, render(rejection), unhealthy_advice(host)


def _devices(obj: Mapping[str, Any]) -> list[str]:
    out = []
    for ref in device_refs.device_refs(obj):
        entries, name = device_status.status_of(obj, ref), f"{ref.device_name}, " if ref.device_name else ""
        for entry in entries:
            given, where = entry.get("deviceResourceClaimStatus") or {}, device_status.address_of(entry)
            out.append(f"{ref.name}: {given.get('name')} at {where[1] if where else 'an unknown place'} "
                       f"({name}claim {given.get('resourceClaimName')})")
        if name and not entries:
            out.append(f"{ref.name}: {ref.device_name} from a device plugin, which alone knows which device it is")
    return out + [
        f"CPUs {cpulist.text(cpus)} of NUMA cell {cell} for itself" for cell, cpus in vm_api.own_cpus(obj).items()
    ]


def _wires(cluster: ClusterObjects, obj: Mapping[str, Any]) -> list[network_info.Wire]:
    """What its network cards are plugged into, as its pod reports; not the pods that it migrates or migrated from or to."""
    host = (obj.get("status") or {}).get("nodeName")
    pods = [pod for pod in pods_of(cluster, obj) if (pod.get("status") or {}).get("phase") not in vm_api.FINAL
            and pod["spec"].get("nodeName") == host]
    return [wire for pod in pods for wire in network_info.wires_of_pod(pod).values()]
