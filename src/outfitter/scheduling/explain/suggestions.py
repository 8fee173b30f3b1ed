"""What would help a pod that waits: releases of devices, ends of out-of-service records and cordons are tried out on
snapshots of the nearest hosts and reported only where the pod then fits; and what a user may have forgotten. Called by the
explanations of pods. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.ledger_page.page import OUT_OF_SERVICE_STATES, Booking, Holder, Page, is_pool_page
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text import Wording, holder_name, render
from outfitter.scheduling.dra import extended_resources
from outfitter.scheduling.explain import grouping
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.placement import HostRejection, Placement, Waiting
from outfitter.scheduling.scheduler import place
from outfitter.scheduling.snapshot import Claims, SchedulingSnapshot

HOSTS = 5  # the nearest, that are tried
HOLDERS = 8  # of a host
MOST = 3  # suggestions that are reported
UNDONE = {"reserved": "unreserve", "quarantined": "restore", "unclean": "clear"}  # state -> the verb that ends it
PLAIN = ("cpu", "memory", "pods", "ephemeral-storage")
VIRTUAL = ('"VF"', "'VF'")  # by which a selector asks for virtual functions
PHYSICAL = ('"PF"', "'PF'")  # and for physical ones
Fits = Callable[[SchedulingSnapshot], bool]


def ways(snapshot: SchedulingSnapshot, pod: Mapping[str, Any], waiting: Waiting) -> list[str]:
    """What would make room for a pod: at most a few ways, on the nearest hosts first."""
    def fits(changed: SchedulingSnapshot) -> bool:
        return isinstance(place(changed, dict(pod)), Placement)

    def never(emptied: SchedulingSnapshot) -> Iterator[str]:
        verdict = place(emptied, dict(pod), every_host=True)
        if isinstance(verdict, Waiting):
            tainted = [one for _, refusal in verdict.hosts for one in refusal.obstacles if one.code is RejectionCode.TAINTED]
            reason = render(tainted[0], reader) if tainted else "ask for less"
            yield f"{host} could not take it even if no device there were held: {reason}"

    reader = Wording(pod["metadata"].get("namespace") or "", claims=False)
    out: list[str] = []
    for host, refusal in grouping.by_distance(waiting.hosts)[:HOSTS]:
        if refusal.far[0] != 1:
            continue
        node = snapshot.devices.node(host)
        cordoned = bool((node.get("spec") or {}).get("unschedulable"))
        here = snapshot.restricted_to([host])
        if cordoned:
            here = here.with_node({**node, "spec": {**node["spec"], "unschedulable": False}})
        if refusal.seek is None:
            out += [f"{host} could take it after: kubectl uncordon {host}"] if cordoned and fits(here) else []
            continue
        wanted = {one.device.device for one in refusal.taken if one.device is not None}
        out += list(_releases(host, here, wanted, fits, reader)) or list(_unruled(host, here, refusal, fits)) or never(
            here.emptied())
        if len(out) >= MOST:
            break
    return out[:MOST]


def _unruled(host: str, here: SchedulingSnapshot, refusal: HostRejection, fits: Fits) -> Iterator[str]:
    """The DeviceTaintRules that keep matching devices of a host back, if the pod fits without them."""
    rules = sorted({rule for one in refusal.not_free for rule in one.detail.get("rules") or ()})
    if rules and fits(here.without_rules(rules)):
        yield f"{host} could take it after: kubectl delete devicetaintrule {' '.join(rules)}"


def _releases(host: str, here: SchedulingSnapshot, wanted: set[str], fits: Fits, reader: Wording) -> Iterator[str]:
    """What could be released on a host so that the pod fits. `wanted`: names of devices that match and are not free."""
    page = here.devices.page(host)
    yield from _unmarked(page, wanted, here, fits)
    pages = [page, *(one for one in here.devices.pages if is_pool_page(one.host)
                     and any(booking.device.device in wanted for booking in one.bookings))]
    for one in pages:
        yield from _released(host, (booking.holder for booking in one.bookings if _matters(booking)), here, fits, reader)
    yield from _released(host, (holder for device in sorted(wanted) for holder in here.devices.unpaged(device)), here, fits,
                       reader)


def _matters(booking: Booking) -> bool:
    """It is of a device, or of CPUs of the host."""
    return bool(booking.counted or booking.amount.get("cells"))


def _unmarked(page: Page, wanted: set[str], here: SchedulingSnapshot, fits: Fits) -> Iterator[str]:
    for state in OUT_OF_SERVICE_STATES:
        for record in page.records(state):
            if record.device.device in wanted and fits(here.with_page(Page(page.without_records(state, {record.device})))):
                yield f"{page.host} could take it after: outfit device {UNDONE[state]} {page.host}/{record.device.device}"
                return


def _released(host: str, holders: Iterable[Holder], here: SchedulingSnapshot, fits: Fits, reader: Wording) -> Iterator[str]:
    """Those of the holders whose end alone would do, else some whose end together would."""
    who: dict[str, set[str]] = {}
    kept: dict[str, str] = {}  # stopped VM that keeps its devices -> the command that releases them
    for holder in holders:
        name = holder_name(holder, reader)
        if vm := _stopped(here.claim(holder.namespace, holder.name)):
            name = holder_name(replace(holder, purpose=f"vm/{vm}"), reader)
            kept[name] = f"kubectl delete resourceclaim {holder.name} -n {holder.namespace}"
        who.setdefault(name, set()).add(holder.uid)
    tried = list(who)[:HOLDERS]
    alone = [name for name in tried if fits(here.without(who[name]))]
    for name in [name for name in alone if name in kept][:1]:
        yield f"{host} could take it after: {kept[name]}; or delete {name}, which is stopped and keeps its devices"
    if ending := [name for name in alone if name not in kept]:
        more = [f"one of {len(ending) - grouping.NAMED} more"] if len(ending) > grouping.NAMED else []
        yield f"{host} could take it once {' or '.join([*ending[:grouping.NAMED], *more])} ends"
    for last in range(2, len(tried) + 1) if not alone else ():
        if fits(here.without(_uids(who, tried[:last]))):
            ending = tried[:last]
            for name in tried[:last - 1]:  # such as one whose devices are on another NUMA node than the others'
                rest = [other for other in ending if other != name]
                ending = rest if fits(here.without(_uids(who, rest))) else ending
            those = [f"{name} (stopped: delete it)" if name in kept else name for name in ending]
            yield f"{host} could take it once {' and '.join(those)} end"
            return


def _uids(who: Mapping[str, set[str]], names: Iterable[str]) -> set[str]:
    return {uid for name in names for uid in who[name]}


def _stopped(claim: Object | None) -> str:
    """The stopped VM that keeps the devices of a claim; "" if there is none."""
    reference = vm_api.owner(claim, kinds.VM.kind) if claim is not None else None
    users = ((claim or {}).get("status") or {}).get("reservedFor") or ()
    used = any(user.get("resource", "pods") == "pods" for user in users)
    return str(reference["name"]) if reference is not None and not used else ""


# -- what may have been forgotten


def unmapped(cluster: ClusterObjects, pod: Mapping[str, Any]) -> Iterator[str]:
    """Resources that a pod asks for, no host offers and no class stands for."""
    if not cluster.features.extended_resources:
        return  # a class would not help
    class_of = extended_resources.mapped(cluster.classes)
    offered = {name for node in cluster.nodes for name in (node.get("status") or {}).get("allocatable") or {}}
    for name in sorted(_asked(pod)):
        if name not in offered and class_of(name) is None and "/" in name:
            yield (f"apply a DeviceClass with spec.extendedResourceName: {name}: no host offers {name} itself, and no class "
                   "stands for it")


def unmade(cluster: ClusterObjects, pod: Mapping[str, Any], claims: Claims, waiting: Waiting) -> Iterator[str]:
    """PFs whose VFs are not enabled, for a pod that asks for some and lacks nothing else there."""
    lacking = {host for host, refusal in waiting.hosts if refusal.seek is not None}
    found = [f"{one['address']} of {inventory['metadata']['name']} can have {one['totalVfs']}"
             for inventory in cluster.inventories if inventory["metadata"]["name"] in lacking
             for one in (inventory.get("spec") or {}).get("withheld") or () if one.get("totalVfs") and not one.get("numVfs")]
    if found and any(word in selector for selector in _selectors(cluster, pod, claims) for word in VIRTUAL):
        yield f"switch virtual functions on (sriov in the configuration, or sriov_numvfs): {grouping.few(found)}, and has none"


def withheld_functions(cluster: ClusterObjects, pod: Mapping[str, Any], claims: Claims, waiting: Waiting) -> Iterator[str]:
    """PFs that are not offered and why, for a pod that asks for one and lacks nothing else there."""
    lacking = {host for host, refusal in waiting.hosts if refusal.seek is not None}
    reasons = [f"{inventory['metadata']['name']}: {one.get('address') or one['name']} {one['reason']}"
               for inventory in cluster.inventories if inventory["metadata"]["name"] in lacking
               for one in (inventory.get("spec") or {}).get("withheld") or () if one.get("kind") == "PF"]
    if reasons and any(word in selector for selector in _selectors(cluster, pod, claims) for word in PHYSICAL):
        yield f"offer a physical function: {grouping.few(reasons)}"


def claim_in_use(cluster: ClusterObjects, pod: Mapping[str, Any]) -> Rejection | None:
    """A claim that the node does not prepare for a launcher pod, because another pod uses it."""
    if not vm_api.launches(pod):
        return None
    for claim in _claims(pod, cluster.claim):
        reserved = (claim.get("status") or {}).get("reservedFor") or ()
        users = [user for user in reserved if user.get("resource", "pods") == "pods"]
        if users and users[0].get("uid") != pod["metadata"].get("uid"):
            return Rejection.of(RejectionCode.CLAIM_IN_USE, claim=claim["metadata"]["name"], pods=(users[0]["name"],))
    return None


def named_users(cluster: ClusterObjects, namespace: str, rejection: Rejection) -> Rejection:
    """A rejection with VMs in the place of their launcher pods."""
    if rejection.code is not RejectionCode.CLAIM_IN_USE:
        return rejection
    return rejection.with_detail(users=tuple(dict.fromkeys(cluster.called(namespace, name) for name in rejection["pods"])))


def waits_for_users(rejections: Sequence[Rejection]) -> Iterator[str]:
    """What helps where a claim is in use."""
    for rejection in rejections:
        if rejection.code is RejectionCode.CLAIM_IN_USE:
            users = rejection["users"]
            yield (f"it can start once {' and '.join(users)} end{'s' if len(users) == 1 else ''}; or give it a claim of its "
                   "own (resourceClaimTemplateName)")


def _asked(pod: Mapping[str, Any]) -> set[str]:
    containers = (pod.get("spec") or {}).get("containers") or ()
    return {name for container in containers for name in extended_resources.asked(container)} - set(PLAIN)


def _selectors(cluster: ClusterObjects, pod: Mapping[str, Any], claims: Claims) -> Iterator[str]:
    """The expressions of all classes and requests that a pod asks by."""
    class_of = extended_resources.mapped(cluster.classes)
    classes = [class_of(name) for name in sorted(_asked(pod))]
    for claim in _claims(pod, claims):
        for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
            for each in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                classes.append(cluster.class_((each or {}).get("deviceClassName") or ""))
                yield from _expressions((each or {}).get("selectors"))
    for class_ in classes:
        yield from _expressions(((class_ or {}).get("spec") or {}).get("selectors"))


def _claims(pod: Mapping[str, Any], claims: Claims) -> Iterator[Mapping[str, Any]]:
    for _, name in pod_claims.claim_names(pod):
        found = claims(pod["metadata"]["namespace"], name) if name else None
        if found is not None:
            yield found


def _expressions(selectors: Any) -> Iterator[str]:
    for selector in selectors or ():
        yield str((selector.get("cel") or {}).get("expression") or "")
