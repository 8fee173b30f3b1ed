"""Why a pod waits, or which devices it has: the pod's part of `outfit why`. Pure: objects of one snapshot in, an explanation
out."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outfitter.api import conditions, rejection_conditions
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims, vm
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text import Wording, render, render_all
from outfitter.scheduling import pod_group
from outfitter.scheduling.claim_users import NOT_MADE
from outfitter.scheduling.dra import assigned_devices, binding_conditions, extended_resources
from outfitter.scheduling.explain import grouping, suggestions
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.explain.explanation import Explanation
from outfitter.scheduling.explain.object_state import (
    SCHEDULER,
    being_deleted,
    booking_line,
    bookings_of_pod,
    host_return_advice,
    unhealthy_advice,
    unhealthy_devices,
    unreleased,
)
from outfitter.scheduling.explain.summary import skipped, summary
from outfitter.scheduling.filter.node_usage import nominated
from outfitter.scheduling.placement import Placement, Waiting
from outfitter.scheduling.snapshot import Claims


def pod(cluster: ClusterObjects, obj: Mapping[str, Any]) -> Explanation:
    meta, status, spec = obj["metadata"], obj.get("status") or {}, obj["spec"]
    say = functools.partial(Explanation, f"pod/{meta['name']}", meta["namespace"])
    phase = status.get("phase", "Pending")
    if meta.get("deletionTimestamp"):
        return being_deleted(cluster, obj, spec.get("nodeName") or "", say)
    if phase in vm.FINAL:
        more = f": {status['message']}" if status.get("message") else ""
        return say("Ended" if phase == "Succeeded" else "Failed", f"has {'ended' if phase == 'Succeeded' else 'failed'}{more}",
                   lines=unreleased([obj]))
    if spec.get("nodeName"):
        return _bound(cluster, obj, say)
    if gates := [gate["name"] for gate in spec.get("schedulingGates") or ()]:
        return say("Waiting", f"waits until its scheduling gates are removed: {', '.join(gates)}", "gates",
                   todo=("the controller that set them removes them from spec.schedulingGates",))
    return _unbound(cluster, obj, say)


def _bound(cluster: ClusterObjects, obj: Mapping[str, Any], say: Callable[..., Explanation]) -> Explanation:
    status, node = obj.get("status") or {}, obj["spec"]["nodeName"]
    phase, held = status.get("phase", "Pending"), bookings_of_pod(cluster, obj)
    lines = tuple(booking_line(host, booking, cluster.time) for host, booking in held)
    if absent := cluster.absence(node):
        return say("Waiting", f"is on {node}, {absent}", "node", lines=lines, todo=host_return_advice(cluster, node))
    if phase == "Running" and not status.get("message"):
        if unhealthy := unhealthy_devices(obj):
            return say("Running", f"runs on {node} with an unhealthy device", rejections=unhealthy,
                       lines=(*lines, *map(render, unhealthy)), todo=(unhealthy_advice(node),))
        return say("Running", f"runs on {node}: nothing is wrong", lines=lines)
    if status.get("message"):
        in_use = suggestions.claim_in_use(cluster, obj)
        if in_use is None:
            return say("Waiting", f"is on {node} and {phase}: {status['message']}", "node", lines=lines)
        named = suggestions.named_users(cluster, obj["metadata"]["namespace"], in_use)
        return say("Waiting", f"is on {node} and {phase}: {render(named)}", "node", lines=lines,
                   todo=tuple(suggestions.waits_for_users([named])), rejections=(named,))
    booked = [booking.device.device for _, booking in held if booking.state == "booked"]
    doing = f"prepares {grouping.few(booked)}" if booked else "starts it"
    return say("Waiting", f"is on {node} and {phase}: the node agent there {doing}", "node", lines=lines)


def _unbound(cluster: ClusterObjects, obj: Mapping[str, Any], say: Callable[..., Explanation]) -> Explanation:
    if (lacking := missing_claim(cluster, obj, cluster.claim, say)) is not None:
        return lacking
    spoken = (conditions.find(obj, "PodScheduled") or {}).get("message") or ""
    if cluster.unread:
        return say("Waiting", f"waits: {spoken or 'the scheduler has not reported about it yet'}", "scheduler", lines=(
            f"you may not read {', '.join(cluster.unread)}, without which the reason cannot be found; ask a user who may",))
    if (unready := _unready(cluster, obj, say)) is not None:
        return unready
    verdict = cluster.choose(dict(obj))
    scheduler = obj["spec"].get("schedulerName") or SCHEDULER
    foreign = scheduler != SCHEDULER or not rejection_conditions.of(obj)  # ours reports codes, as this explanation
    theirs = (f"{scheduler} says: {spoken}",) if spoken and foreign else ()
    if isinstance(verdict, Placement):
        fits = f"fits on {verdict.host}"
        if scheduler != SCHEDULER:
            return say("Waiting", f"waits for scheduler {scheduler}, which is not ours", "scheduler",
                       lines=(f"by what is published and held it {fits}", *theirs),
                       todo=(f"see whether {scheduler} runs, or take spec.schedulerName out",))
        if spoken and (group := pod_group.of(obj)) is not None:
            return say("Waiting", f"waits: {spoken}", "group", lines=(f"alone it {fits}",),
                       todo=(f"free devices for all of pod group {group.name}, or lower {pod_group.MIN_AVAILABLE}",))
        if theirs:
            return say("Waiting", f"waits for {scheduler}; by what is published and held it {fits}", "scheduler", lines=theirs)
        return say("Fits", f"{fits} and is about to be given it", "scheduler")
    answer = refused(cluster, obj, cluster.claim, verdict, say)
    if scheduler == SCHEDULER:
        return replace(answer, lines=(*answer.lines, *theirs))
    return replace(answer, sentence=f"{answer.sentence} (and it waits for scheduler {scheduler}, which is not ours)",
                   waits_for="scheduler", lines=(*answer.lines, *theirs))


def _unready(cluster: ClusterObjects, obj: Mapping[str, Any], say: Callable[..., Explanation]) -> Explanation | None:
    """Explains a pod with devices that are not ready yet."""
    held = bookings_of_pod(cluster, obj)
    mine = [cluster.claim(obj["metadata"]["namespace"], name) for _, name in pod_claims.claim_names(obj) if name]
    unready = binding_conditions.waits_for(
        [claim for claim in mine if claim is not None and (claim.get("status") or {}).get("allocation")]
    )
    if not unready or not nominated(obj):
        return None
    drivers = sorted({booking.device.driver for _, booking in held})
    return say(
        "Waiting",
        f"waits until its devices on {nominated(obj)} are made ready: {render_all(unready)}",
        "devices",
        lines=tuple(booking_line(host, booking, cluster.time) for host, booking in held),
        todo=(
            f"see whether {' or '.join(drivers)} makes them ready; what is not ready after {binding_conditions.TIMEOUT:.0f} s "
            "is given back",
        ),
        rejections=unready,
    )


def refused(cluster: ClusterObjects, obj: Mapping[str, Any], claims: Claims, verdict: Waiting,
            say: Callable[..., Explanation], *, verb: str = "waits") -> Explanation:
    """Explains a pod without a host that fits."""
    if verdict.hosts:
        found = suggestions.ways(cluster.snapshot_for(dict(obj), claims), obj, verdict)
        todo = (*found, *suggestions.unmapped(cluster, obj), *suggestions.unmade(cluster, obj, claims, verdict),
                *suggestions.withheld_functions(cluster, obj, claims, verdict))
        return say("Waiting", f"{verb}: 0/{len(verdict.hosts)} hosts are available: {grouping.headline(verdict.hosts)}",
                   "devices", lines=(*_assigned(cluster, obj), *skipped(verdict)), todo=todo, waiting=verdict)
    named = tuple(suggestions.named_users(cluster, obj["metadata"]["namespace"], each) for each in verdict.rejections)
    lacking = next((rejection for rejection in named if rejection.code is RejectionCode.CLASS_MISSING), None)
    return say("Waiting", f"{verb}: {summary(replace(verdict, rejections=named))}", "claim" if lacking is None else "class",
               todo=(*([] if lacking is None else [_missing_class(cluster, lacking)]), *suggestions.waits_for_users(named)),
               rejections=named)


def _assigned(cluster: ClusterObjects, obj: Mapping[str, Any]) -> tuple[str, ...]:
    """Why pre-assigned devices cannot be allocated."""
    devices = cluster.snapshot.devices
    class_of = cluster.snapshot.extended_resource
    found = list(assigned_devices.rejections(dict(obj), devices, class_of)) if any(extended_resources.presets(obj)) else []
    wording = Wording(obj["metadata"]["namespace"], claims=False, time=cluster.time)
    return (f"pre-assigned devices: {render_all(found, wording)}",) if found else ()


def _missing_class(cluster: ClusterObjects, rejection: Rejection) -> str:
    name = rejection["class"]
    return f"apply a DeviceClass {name}, or change the request; {_near(name, cluster.classes, 'class')}"


def missing_claim(cluster: ClusterObjects, obj: Mapping[str, Any], claims: Claims, say: Callable[..., Explanation], *,
                  verb: str = "waits") -> Explanation | None:
    """Explains a pod whose claim does not exist."""
    namespace = obj["metadata"]["namespace"]
    lacking = ((name, claim) for name, claim in pod_claims.claim_names(obj) if not claim or claims(namespace, claim) is None)
    name, claim_name = next(lacking, ("", None))
    if not name:
        return None
    if claim_name:
        here = [claim for claim in cluster.claims if claim["metadata"]["namespace"] == namespace]
        missing = Rejection.of(RejectionCode.CLAIM_MISSING, claim=claim_name, entry=name)
        return say("Waiting", f"{verb}: {render(missing)}", "claim", rejections=(missing,),
                   todo=(f"apply a ResourceClaim {claim_name} in namespace {namespace}; {_near(claim_name, here, 'claim')}",))
    entry = next(entry for entry in obj["spec"]["resourceClaims"] if entry["name"] == name)
    template = entry.get("resourceClaimTemplateName") or ""
    scheduled = conditions.find(obj, "PodScheduled") or {}
    if scheduled.get("reason") == NOT_MADE:
        return say("Waiting", f"{verb}: {scheduled.get('message')}", "claim")
    uncreated = (Rejection.of(RejectionCode.CLAIM_NOT_CREATED, entry=name, template=template),)
    if cluster.template(namespace, template) is not None:
        return say("Waiting", f"{verb}: claim {name} is about to be made from template {template}", "claim",
                   rejections=uncreated)
    here = [each for each in cluster.templates if each["metadata"]["namespace"] == namespace]
    return say("Waiting", f"{verb}: claim {name} cannot be created: there is no ResourceClaimTemplate {template} in namespace "
               f"{namespace}", "template", todo=(f"apply it; {_near(template, here, 'template')}",), rejections=uncreated)


def _near(name: str, objects: Sequence[Object], what: str) -> str:
    names = sorted(obj["metadata"]["name"] for obj in objects)
    if not names:
        return f"there is no {what} at all"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"there is {grouping.few(names)}"
