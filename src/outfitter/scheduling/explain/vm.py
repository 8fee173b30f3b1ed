"""Why somebody waits, or what they have: the answer to `outfit why`, from objects as the store has them. Pure."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.device import DRIVER, DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, network_info, vmi_actions
from outfitter.api.page import Booking, is_pool_page
from outfitter.inventory import cpulist
from outfitter.scheduling.dra import assigned_devices, binding_conditions, extended_resources
from outfitter.scheduling.explain import explanation as answers
from outfitter.scheduling.explain import grouping, hints, suggestions
from outfitter.scheduling.explain.explanation import Explanation
from outfitter.scheduling.filter.node_fit import nominated
from outfitter.scheduling.scheduler import NOT_MADE, Claims, Placement, Waiting
from outfitter.scheduling.snapshot import Facts

SCHEDULER = "default-scheduler"  # ours, or kube-scheduler in a cluster
GOES = "is being deleted"
NOT_SERVED = "NotServed"  # why a node is not ready that is not among the hosts that outfitter was started with


# -- a machine


def vm(facts: Facts, obj: Mapping[str, Any]) -> Explanation:
    """A VirtualMachine: its instance says the rest, while there is one."""
    meta, status = obj["metadata"], obj.get("status") or {}
    say = functools.partial(Explanation, f"vm/{meta['name']}", meta["namespace"])
    mine = [one for one in facts.instances if (device_refs.owner(one, kinds.VM.kind) or {}).get("uid") == meta["uid"]]
    if mine:
        told = replace(instance(facts, mine[0]), about=f"vm/{meta['name']}")
        if told.state == "Deleting" and not meta.get("deletionTimestamp"):  # only its instance goes
            told = replace(told, sentence=told.sentence.replace(GOES, "is stopping", 1))
        return _with_template(obj, told)
    if meta.get("deletionTimestamp"):
        return _going(facts, obj, "", say)
    if conditions.find(obj, "Failure"):
        other = any((one["metadata"]["namespace"], one["metadata"]["name"]) == (meta["namespace"], meta["name"])
                    for one in facts.instances)
        return say("Waiting", f"has no instance{_because(obj, 'Failure')}", "instance", todo=(
            f"outfit delete vmi {meta['name']}, which ends that instance; or give the machine another name",) if other else ())
    strategy = device_refs.run_strategy(obj)
    if strategy == "Halted":
        return say("Ended", "is stopped, as its run strategy Halted says: nothing is wrong",
                   todo=(f"outfit vm start {meta['name']}",))
    said = status.get("printableStatus") or "not known yet"
    if said == "Stopped":
        return say("Ended", f"is stopped, and its run strategy {strategy} leaves that to you: nothing is wrong",
                   todo=(f"outfit vm start {meta['name']}",))
    return say("Waiting", f"has no instance (run strategy {strategy}, status {said})", "instance")


def _with_template(obj: Mapping[str, Any], answer: Explanation) -> Explanation:
    """Of a machine whose template is not that of its instance any more."""
    if not conditions.is_true(obj, "RestartRequired"):
        return answer
    return replace(answer, lines=(*answer.lines, "its template was changed: that counts from the next start on"),
                   todo=(*answer.todo, f"outfit vm restart {obj['metadata']['name']}"))


def instance(facts: Facts, obj: Mapping[str, Any]) -> Explanation:
    meta, status = obj["metadata"], obj.get("status") or {}
    say = functools.partial(Explanation, f"vmi/{meta['name']}", meta["namespace"])
    phase, host = status.get("phase") or "Pending", _host(facts, obj)
    if meta.get("deletionTimestamp"):
        return _going(facts, obj, host, say)
    if phase == "Running":
        if absent := facts.absence(host):
            return say("Waiting", f"is on {host}, {absent}", "node", lines=tuple(_devices(obj)), todo=_return(facts, host))
        return _running(facts, obj, say)
    if phase in device_refs.FINAL:
        ended = phase == "Succeeded"
        return say("Ended" if ended else "Failed", f"has {'ended' if ended else 'failed'}{_because(obj, 'Ready')}")
    mine = _pods(facts, obj)
    if not mine:
        return say("Waiting", f"has no pod yet{_because(obj, 'Synchronized')}", "pod")
    newest = max(mine, key=lambda one: str(one["metadata"].get("creationTimestamp") or ""))
    answer = pod(facts, newest)
    if newest["spec"].get("nodeName") and (lacking := device_refs.missing_devices(obj)):
        why = _because(obj, "DevicesReady")
        if answer.state == "Running" and why:  # the pod has all that it needs, the machine has not
            return replace(answer, about=f"vmi/{meta['name']}", state="Waiting", waits_for="deviceStatus",
                           sentence=f"waits on {newest['spec']['nodeName']}{why}", todo=_rename(obj, why))
        told = f"devices not known yet{why or ': ' + ', '.join(lacking)}"
        answer = replace(answer, state="Waiting", waits_for=answer.waits_for or "deviceStatus", lines=(*answer.lines, told))
    if answer.sentence.startswith("waits"):  # its pod is only where it waits
        return replace(answer, about=f"vmi/{meta['name']}")
    return answer.said_of(f"vmi/{meta['name']}", f"is {phase}:")


def _rename(obj: Mapping[str, Any], why: str) -> tuple[str, ...]:
    """What helps a machine that means a request which its claim does not have."""
    if " has no request " not in why:
        return ()
    vm, name = device_refs.owner(obj, kinds.VM.kind), obj["metadata"]["name"]
    if vm is None:
        return (f"outfit delete vmi {name}, and apply it again with a requestName that there is",)
    return (f"correct requestName in the template of vm/{vm['name']}, then: outfit vm restart {vm['name']}",)


def _running(facts: Facts, obj: Mapping[str, Any], say: Callable[..., Explanation]) -> Explanation:
    meta, lacking = obj["metadata"], device_refs.missing_devices(obj)
    more = (f"devices not known yet: {', '.join(lacking)}{_because(obj, 'DevicesReady')}",) if lacking else ()
    left_out = [wire.network for wire in _wires(facts, obj) if wire.type == "none"]
    faults = list(_faults(facts, obj))
    lines = (*_devices(obj), *(f"{wire.network}: {wire.words}" for wire in _wires(facts, obj)), *more,
             *(f"{name} {what}" for name, what, _ in faults))
    on, todo = obj["status"].get("nodeName"), tuple(todo for _, _, todo in faults)
    if conditions.is_true(obj, vmi_actions.PAUSED):
        return say("Paused", f"stands still on {on}{_because(obj, vmi_actions.PAUSED)}", lines=lines,
                   todo=(f"outfit vm unpause {meta['name']}", *todo))
    odd = [f", without network card {', '.join(left_out)}"] if left_out else []
    odd += [f", and {grouping.few([name for name, _, _ in faults])} is not as it should be"] if faults else []
    return say("Running", f"runs on {on}{''.join(odd) or ('' if lacking else ': nothing is wrong')}", lines=lines, todo=todo)


def _faults(facts: Facts, obj: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The devices of a machine that left the bus or are out of service: which, what is wrong with it, and what to do."""
    entries = [entry for list_ in device_refs.LISTS for entry in device_refs.statuses(obj, list_)]
    given = [entry.get("deviceResourceClaimStatus") or {} for entry in entries] + list(network_info.given(obj).values())
    devices = [DeviceId(one["driver"], one["pool"], one["name"]) for one in given if "pool" in one and "driver" in one]
    for device in dict.fromkeys(devices):
        if facts.vanished(device):
            yield (device.device, f"is no longer on the bus of {device.pool}, though the machine has it",
                   f"see what became of it: outfit devices --node {device.pool} --state vanished")
        if mark := facts.quarantine(device):
            yield (device.device, f"is quarantined since {mark.since}{f': {mark.reason}' if mark.reason else ''}",
                   f"outfit device restore {device.pool}/{device.device}, when it can be trusted again")


def _going(facts: Facts, obj: Mapping[str, Any], host: str, say: Callable[..., Explanation]) -> Explanation:
    """Of what is being deleted. A host on which nobody does anything is why, whatever finalizers say; "" for no host."""
    meta = obj["metadata"]
    absent = facts.absence(host) if host else ""
    waits = f"{host}, {absent}" if absent else ", ".join(meta.get("finalizers") or ("its host to let go of it",))
    return say("Deleting", f"{GOES} since {meta['deletionTimestamp']}; it waits for {waits}", "end",
               todo=_return(facts, host) if absent else ())


def _host(facts: Facts, obj: Mapping[str, Any]) -> str:
    """Where a machine is, or its pod; "": nowhere, or nowhere any more."""
    status = obj.get("status") or {}
    if status.get("phase") in device_refs.FINAL:
        return ""
    return str(status.get("nodeName") or next((pod["spec"]["nodeName"] for pod in _pods(facts, obj)
                                               if pod["spec"].get("nodeName")), ""))


def _return(facts: Facts, host: str) -> tuple[str, ...]:
    """What helps those who are on a host where nobody does anything."""
    node, page = facts.node(host), any(page["metadata"]["name"] == host for page in facts.pages)
    if node is None:
        return (f"outfit delete page {host}, which gives back what was handed over there",) if page else ()
    if (conditions.find(node, "Ready") or {}).get("reason") != NOT_SERVED:
        return (f"see whether the node agent runs on {host}",)
    pages = f" and then outfit delete page {host}" if page else ""
    return (f"start outfitter with {host} among its hosts; if it is gone for good: outfit delete node {host}{pages}",)


def _devices(obj: Mapping[str, Any]) -> list[str]:
    out = []
    for ref in device_refs.device_refs(obj):
        entries, name = device_refs.status_of(obj, ref), f"{ref.device_name}, " if ref.device_name else ""
        for entry in entries:
            given, where = entry.get("deviceResourceClaimStatus") or {}, device_refs.address_of(entry)
            out.append(f"{ref.name}: {given.get('name')} at {where[1] if where else 'an unknown place'} "
                       f"({name}claim {given.get('resourceClaimName')})")
        if name and not entries:
            out.append(f"{ref.name}: {ref.device_name} from a device plugin, which alone knows which device it is")
    return out + [
        f"CPUs {cpulist.text(cpus)} of NUMA cell {cell} for itself" for cell, cpus in device_refs.own_cpus(obj).items()
    ]


def _wires(facts: Facts, obj: Mapping[str, Any]) -> list[network_info.Wire]:
    """What its network cards are plugged into, as its pod says."""
    return [wire for pod in _pods(facts, obj) for wire in network_info.of_pod(pod).values()]


def _pods(facts: Facts, obj: Mapping[str, Any]) -> list[Object]:
    """Those in which an instance is."""
    uid = obj["metadata"]["uid"]
    return [pod for pod in facts.pods if (device_refs.owner(pod, kinds.VMI.kind) or {}).get("uid") == uid]


# -- a pod


def pod(facts: Facts, obj: Mapping[str, Any]) -> Explanation:
    meta, status, spec = obj["metadata"], obj.get("status") or {}, obj["spec"]
    say = functools.partial(Explanation, f"pod/{meta['name']}", meta["namespace"])
    phase = status.get("phase", "Pending")
    if meta.get("deletionTimestamp"):
        return _going(facts, obj, spec.get("nodeName") or "", say)
    if phase in device_refs.FINAL:
        more = f": {status['message']}" if status.get("message") else ""
        return say("Ended" if phase == "Succeeded" else "Failed", f"has {'ended' if phase == 'Succeeded' else 'failed'}{more}")
    if spec.get("nodeName"):
        return _bound(facts, obj, say)
    if gates := [gate["name"] for gate in spec.get("schedulingGates") or ()]:
        return say("Waiting", f"waits until its scheduling gates are taken away: {', '.join(gates)}", "gates",
                   todo=("whoever set them takes them out of spec.schedulingGates",))
    return _unbound(facts, obj, say)


def _bound(facts: Facts, obj: Mapping[str, Any], say: Callable[..., Explanation]) -> Explanation:
    status, node = obj.get("status") or {}, obj["spec"]["nodeName"]
    phase, held = status.get("phase", "Pending"), _held(facts, obj)
    lines = tuple(_booking(host, booking) for host, booking in held)
    if absent := facts.absence(node):
        return say("Waiting", f"is on {node}, {absent}", "node", lines=lines, todo=_return(facts, node))
    if phase == "Running" and not status.get("message"):
        return say("Running", f"runs on {node}: nothing is wrong", lines=lines)
    if status.get("message"):
        why, todo = hints.in_use(facts, obj["metadata"]["namespace"], status["message"])
        return say("Waiting", f"is on {node} and {phase}: {why}", "node", lines=lines, todo=todo)
    booked = [booking.device.device for _, booking in held if booking.state == "booked"]
    doing = f"prepares {grouping.few(booked)}" if booked else "starts it"
    return say("Waiting", f"is on {node} and {phase}: the node agent there {doing}", "node", lines=lines)


def _unbound(facts: Facts, obj: Mapping[str, Any], say: Callable[..., Explanation]) -> Explanation:
    if (lacking := missing_claim(facts, obj, facts.claim, say)) is not None:
        return lacking
    spoken = (conditions.find(obj, "PodScheduled") or {}).get("message") or ""
    if facts.unread:
        return say("Waiting", f"waits: {spoken or 'the scheduler has said nothing about it yet'}", "scheduler", lines=(
            f"you may not read {', '.join(facts.unread)}, without which nobody can tell more; ask somebody who may",))
    if (unready := _unready(facts, obj, say)) is not None:
        return unready
    verdict = facts.choose(dict(obj))
    scheduler = obj["spec"].get("schedulerName") or SCHEDULER
    foreign = scheduler != SCHEDULER or "nodes are available" in spoken  # ours says it of hosts, and not better than here
    theirs = (f"{scheduler} says: {spoken}",) if spoken and foreign else ()
    if isinstance(verdict, Placement):
        fits = f"fits on {verdict.host}"
        if scheduler != SCHEDULER:
            return say("Waiting", f"waits for scheduler {scheduler}, which is not ours", "scheduler",
                       lines=(f"by what is published and held it {fits}", *theirs),
                       todo=(f"see whether {scheduler} runs, or take spec.schedulerName out",))
        if theirs:
            return say("Waiting", f"waits for {scheduler}; by what is published and held it {fits}", "scheduler", lines=theirs)
        return say("Fits", f"{fits} and is about to be given it", "scheduler")
    answer = refused(facts, obj, facts.claim, verdict, say)
    if scheduler == SCHEDULER:
        return replace(answer, lines=(*answer.lines, *theirs))
    return replace(answer, sentence=f"{answer.sentence} (and it waits for scheduler {scheduler}, which is not ours)",
                   waits_for="scheduler", lines=(*answer.lines, *theirs))


def _unready(facts: Facts, obj: Mapping[str, Any], say: Callable[..., Explanation]) -> Explanation | None:
    """What is to be said of a pod that has its devices, some of which are being made ready."""
    held = _held(facts, obj)
    mine = [facts.claim(obj["metadata"]["namespace"], name) for _, name in device_refs.claim_names(obj) if name]
    why = binding_conditions.waits_for(
        [claim for claim in mine if claim is not None and (claim.get("status") or {}).get("allocation")]
    )
    if not why or not nominated(obj):
        return None
    drivers = sorted({booking.device.driver for _, booking in held})
    return say(
        "Waiting",
        f"waits until its devices on {nominated(obj)} are made ready: {why}",
        "devices",
        lines=tuple(_booking(host, booking) for host, booking in held),
        todo=(
            f"see whether {' or '.join(drivers)} makes them ready; what is not ready after {binding_conditions.TIMEOUT:.0f} s "
            "is given back",
        ),
    )


def refused(facts: Facts, obj: Mapping[str, Any], claims: Claims, verdict: Waiting, say: Callable[..., Explanation], *,
            verb: str = "waits") -> Explanation:
    """What is to be said of a pod for which there is no host."""
    if verdict.hosts:
        found = suggestions.ways(obj, claims, facts.class_, verdict, slices=facts.slices, pages=facts.pages, index=facts.index,
                            used=facts.used, roster=facts.roster, resources=extended_resources.mapped(facts.classes))
        todo = (*found, *hints.unmapped(facts, obj), *hints.unmade(facts, obj, claims, verdict))
        return say("Waiting", f"{verb}: 0/{len(verdict.hosts)} hosts are available: {grouping.headline(verdict.hosts)}",
                   "devices", lines=_assigned(facts, obj), todo=todo, waiting=verdict)
    why, ends = hints.in_use(facts, obj["metadata"]["namespace"], verdict.summary)
    todo, kind = _missing_class(facts, why)
    return say("Waiting", f"{verb}: {why}", kind, todo=(*todo, *ends))


def _assigned(facts: Facts, obj: Mapping[str, Any]) -> tuple[str, ...]:
    """What stands in the way of devices that were chosen beforehand."""
    found = list(assigned_devices.reasons(dict(obj), facts.index)) if any(extended_resources.presets(obj)) else []
    return (f"devices that were assigned beforehand: {'; '.join(found)}",) if found else ()


def _missing_class(facts: Facts, summary: str) -> tuple[tuple[str, ...], str]:
    _, found, name = summary.partition("there is no DeviceClass ")
    if not found:
        return (), "claim"
    return (f"apply a DeviceClass {name}, or change the request; {_near(name, facts.classes, 'class')}",), "class"


def missing_claim(facts: Facts, obj: Mapping[str, Any], claims: Claims, say: Callable[..., Explanation], *,
                  verb: str = "waits") -> Explanation | None:
    """What is to be said of a pod of which a claim is not there."""
    namespace = obj["metadata"]["namespace"]
    lacking = ((name, claim) for name, claim in device_refs.claim_names(obj) if not claim or claims(namespace, claim) is None)
    name, claim_name = next(lacking, ("", None))
    if not name:
        return None
    if claim_name:
        here = [claim for claim in facts.claims if claim["metadata"]["namespace"] == namespace]
        return say("Waiting", f"{verb}: claim {claim_name} (resourceClaims entry {name}) does not exist", "claim",
                   todo=(f"apply a ResourceClaim {claim_name} in namespace {namespace}; {_near(claim_name, here, 'claim')}",))
    entry = next(entry for entry in obj["spec"]["resourceClaims"] if entry["name"] == name)
    template = entry.get("resourceClaimTemplateName") or ""
    said = conditions.find(obj, "PodScheduled") or {}
    if said.get("reason") == NOT_MADE:
        return say("Waiting", f"{verb}: {said.get('message')}", "claim")
    if facts.template(namespace, template) is not None:
        return say("Waiting", f"{verb}: claim {name} is about to be made from template {template}", "claim")
    here = [each for each in facts.templates if each["metadata"]["namespace"] == namespace]
    return say("Waiting", f"{verb}: claim {name} cannot be made, for there is no ResourceClaimTemplate {template} in namespace "
               f"{namespace}", "template", todo=(f"apply it; {_near(template, here, 'template')}",))


def _near(name: str, objects: Sequence[Object], what: str) -> str:
    names = sorted(obj["metadata"]["name"] for obj in objects)
    if not names:
        return f"there is no {what} at all"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"there is {grouping.few(names)}"


# -- a claim


def claim(facts: Facts, obj: Mapping[str, Any]) -> Explanation:
    meta, status = obj["metadata"], obj.get("status") or {}
    say = functools.partial(Explanation, f"claim/{meta['name']}", meta["namespace"])
    held = tuple(_booking(host, booking) for host, booking in facts.bookings(meta["uid"]))
    if meta.get("deletionTimestamp"):
        users = [f"{one.get('resource', 'pods')[:-1]}/{one['name']}" for one in status.get("reservedFor") or ()]
        waits = f"{', '.join(users)} to end" if users else ", ".join(meta.get("finalizers") or ("the host to let go of it",))
        left = {host for host, _ in facts.bookings(meta["uid"]) if not is_pool_page(host) and facts.absence(host)}
        return say("Deleting", f"{GOES} since {meta['deletionTimestamp']}; it waits for {waits}", "end", lines=held,
                   todo=tuple(todo for host in sorted(left) for todo in _return(facts, host)))
    if held:
        return say("Holding", f"holds {_count(held)}: nothing is wrong", lines=held)
    if status.get("allocation"):
        results = (status["allocation"].get("devices") or {}).get("results") or ()
        lines = tuple(f"{one['device']} of pool {one['pool']} ({one['driver']}) for request {one['request']}"
                      for one in results)
        if any(one["driver"] == DRIVER for one in results):
            return say("Holding", "was promised its devices; the page of the host does not say so yet", lines=lines)
        who = answers.plain(facts.user(dict(obj)))
        return say("Holding", f"holds {_count(lines)} for {who}: nothing is wrong", lines=lines)
    pods = [each for each in facts.pods if each["metadata"]["namespace"] == meta["namespace"]
             and meta["name"] in [name for _, name in device_refs.claim_names(each)]]
    if not pods:
        return say("Unused", "has no devices: no pod uses it, and devices are given when one does")
    return pod(facts, pods[0]).said_of(f"claim/{meta['name']}", "has no devices:")


def _count(lines: Sequence[str]) -> str:
    return f"{len(lines)} device{'' if len(lines) == 1 else 's'}"


def _held(facts: Facts, obj: Mapping[str, Any]) -> list[tuple[str, Booking]]:
    out = []
    for _, name in device_refs.claim_names(obj):
        found = facts.claim(obj["metadata"]["namespace"], name) if name else None
        out += facts.bookings(found["metadata"]["uid"]) if found else []
    return out


def _booking(host: str, booking: Booking) -> str:
    if cells := booking.amount.get("guestCells"):
        named = {cell: f" ({cpulist.text(cpus)})" for cell, cpus in (booking.amount.get("cpus") or {}).items()}
        own = ", ".join(f"{count} CPUs of cell {cell}{named.get(cell, '')}"
                        for cell, count in (booking.amount.get("cells") or {}).items())
        where = f"NUMA cells {', '.join(map(str, cells))} of {host}"
        return f"{where}{f', with {own} for itself' if own else ''}, since {booking.since}"
    where = f"of pool {booking.device.pool}" + (f", on {booking.node}," if booking.node else "") if is_pool_page(
        host) else f"on {host}"
    return (f"{booking.device.device} {where} for request {booking.request}: {booking.state} since {booking.since}"
            + (f", by {booking.holder.purpose}" if booking.holder.purpose else ""))


def _because(obj: Mapping[str, Any], type_: str) -> str:
    found = conditions.find(obj, type_)
    message = (found or {}).get("message") or (found or {}).get("reason")
    return f": {message}" if message else ""
