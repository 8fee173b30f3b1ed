"""What explanations of VMs, pods and claims share: an object that is being deleted, a host that does not respond, and the
bookings that a pod holds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.ledger_page.page import Booking, is_pool_page
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.inventory import cpulist
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.explain.explanation import Explanation

SCHEDULER = "default-scheduler"  # ours, or kube-scheduler in a cluster
GOES = "is being deleted"
NOT_SERVED = "NotServed"  # why a node is not ready that is not among the hosts that outfitter was started with


def being_deleted(
    cluster: ClusterObjects, obj: Mapping[str, Any], host: str, say: Callable[..., Explanation], *, goes: str = GOES
) -> Explanation:
    """Of what is being deleted. A host without an agent is the reason, whatever finalizers there are; "" for no host."""
    meta = obj["metadata"]
    absent = cluster.absence(host) if host else ""
    waits = f"{host}, {absent}" if absent else ", ".join(meta.get("finalizers") or ("its host to release it",))
    return say("Deleting", f"{goes} since {cluster.time(meta['deletionTimestamp'])}; it waits for {waits}", "end",
               todo=host_return_advice(cluster, host) if absent else ())


def host_of(cluster: ClusterObjects, obj: Mapping[str, Any]) -> str:
    """The host of a VMI or pod; "": none, or none any more."""
    status = obj.get("status") or {}
    if status.get("phase") in vm_api.FINAL:
        return ""
    return str(status.get("nodeName") or next((pod["spec"]["nodeName"] for pod in pods_of(cluster, obj)
                                               if pod["spec"].get("nodeName")), ""))


def host_return_advice(cluster: ClusterObjects, host: str) -> tuple[str, ...]:
    """What helps an object on a host without an agent."""
    node, page = cluster.node(host), any(page["metadata"]["name"] == host for page in cluster.pages)
    if node is None:
        return (f"outfit delete page {host}, which releases the devices that are prepared there",) if page else ()
    if (conditions.find(node, "Ready") or {}).get("reason") != NOT_SERVED:
        return (f"see whether the node agent runs on {host}",)
    pages = f" and then outfit delete page {host}" if page else ""
    return (f"start outfitter with {host} among its hosts; if it is gone for good: outfit delete node {host}{pages}",)


def bookings_of_pod(cluster: ClusterObjects, obj: Mapping[str, Any]) -> list[tuple[str, Booking]]:
    return [(host, booking) for _, host, booking in claim_bookings(cluster, obj)]


def claim_bookings(cluster: ClusterObjects, obj: Mapping[str, Any]) -> list[tuple[str, str, Booking]]:
    """Of a pod: the name that it has for a claim, the page, and what is booked there."""
    out = []
    for own, name in pod_claims.claim_names(obj):
        found = cluster.claim(obj["metadata"]["namespace"], name) if name else None
        out += [(own, host, booking) for host, booking in (cluster.bookings(found["metadata"]["uid"]) if found else [])]
    return out


def booking_line(host: str, booking: Booking, time: Callable[[str], str]) -> str:
    """`time`: how a stored time is shown."""
    if cells := booking.amount.get("guestCells"):
        named = {cell: f" ({cpulist.text(cpus)})" for cell, cpus in (booking.amount.get("cpus") or {}).items()}
        own = ", ".join(f"{count} CPUs of cell {cell}{named.get(cell, '')}"
                        for cell, count in (booking.amount.get("cells") or {}).items())
        where = f"NUMA cells {', '.join(map(str, cells))} of {host}"
        return f"{where}{f', with {own} for itself' if own else ''}, since {time(booking.since)}"
    where = f"of pool {booking.device.pool}" + (f", on {booking.node}," if booking.node else "") if is_pool_page(
        host) else f"on {host}"
    return (f"{booking.device.device} {where} for request {booking.request}: {booking.state} since {time(booking.since)}"
            + (f", by {booking.holder.purpose}" if booking.holder.purpose else ""))


def condition_suffix(obj: Mapping[str, Any], type_: str) -> str:
    found = conditions.find(obj, type_)
    message = (found or {}).get("message") or (found or {}).get("reason")
    return f": {message}" if message else ""


def unhealthy_devices(obj: Mapping[str, Any]) -> tuple[Rejection, ...]:
    """That a pod or VMI which runs has an unhealthy device, as its node reports it."""
    found = conditions.find(obj, conditions.DEVICES_HEALTHY)
    return (Rejection.of(RejectionCode.DEVICE_UNHEALTHY, message=found.get("message") or "its node does not say which"),
            ) if found is not None and found.get("status") == "False" else ()


def unhealthy_advice(node: str) -> str:
    return f"see since when, and what else has one: outfit devices --node {node}"


def unreleased(pods: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Why pods that have ended still hold devices."""
    return tuple(f"it still holds its devices{condition_suffix(pod, conditions.UNRELEASED)}" for pod in pods
                 if conditions.is_true(pod, conditions.UNRELEASED))


def pods_of(cluster: ClusterObjects, obj: Mapping[str, Any]) -> list[Object]:
    """Those in which an instance is."""
    uid = obj["metadata"]["uid"]
    return [pod for pod in cluster.pods if (vm_api.owner(pod, kinds.VMI.kind) or {}).get("uid") == uid]
