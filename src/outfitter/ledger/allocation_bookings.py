"""The bookings that a claim's allocation stands for in a cluster, where kube-scheduler writes it: on which page each device is
booked, how much of it, and within which limits. Pure, on slices that the caller looks up.

Called by the ledger mirror, and by the DRA driver when the kubelet asks before the mirror has booked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from outfitter.api import allocation, kinds
from outfitter.api.device import DeviceId, hardware_of, newest
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, migration, vm
from outfitter.api.ledger_page.page import Booking, Holder, Limits, is_pool_page, pool_page

Slices = Callable[[str], Iterable[Object]]  # "driver/pool" -> its slices
BookedOn = Callable[[Object, DeviceId], str | None]  # a claim and a device -> the page on which it is booked for the claim


class AllocationBookings:
    def __init__(self, slices: Slices, booked_on: BookedOn) -> None:
        """`booked_on`: a device that is no longer published stays on its page."""
        self._slices, self._booked_on = slices, booked_on

    def bookings(self, claim: Object, pods: Sequence[Object], now: str) -> dict[str, tuple[Booking, ...]]:
        """The bookings of a claim's allocation, by page. `pods`: those that it is reserved for, as far as they exist."""
        meta = claim["metadata"]
        purpose = ", ".join(dict.fromkeys(map(holder_purpose, pods)))
        holder = Holder(kinds.RESOURCE_CLAIM.kind, meta["namespace"], meta["name"], meta["uid"], purpose)
        nodes = {pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}
        node = next(iter(nodes)) if len(nodes) == 1 else ""
        out: dict[str, tuple[Booking, ...]] = {}
        for _, result in results_by_pool(claim):
            device, page = DeviceId(result["driver"], result["pool"], result["device"]), self._page(claim, result)
            # A device that may not be shared is taken whole; admin access does not hold it.
            share = result if result.get("adminAccess") or self._capacity(device) is not None else {}
            amount = allocation.booked_amount(share, self._counters(device))
            booking = Booking(device, holder, str(result["request"]), "booked", now, amount,
                              node=node if is_pool_page(page) else "", hardware=self._hardware(device, node or page))
            out[page] = (*out.get(page, ()), booking)
        return out

    def limits(self, bookings: Sequence[Booking]) -> Limits:
        shared = {one.device: self._capacity(one.device) for one in bookings if one.shared}
        pools = {(one.device.driver, one.device.pool) for one in bookings}
        counters = {(driver, pool, each["name"]): _values(each.get("counters")) for driver, pool in pools
                    for piece in self._slices(f"{driver}/{pool}")
                    for each in piece["spec"].get("sharedCounters") or ()}
        return Limits({device: capacity for device, capacity in shared.items() if capacity is not None}, counters)

    def _page(self, claim: Object, result: Mapping[str, Any]) -> str:
        """The page on which an allocated device is booked: its host's, or its pool's when several hosts reach it."""
        given, pool = claim["status"]["allocation"], (result["driver"], result["pool"])
        nodes = {piece["spec"].get("nodeName") or "" for piece in self._slices("/".join(pool))}
        if not nodes:
            return self._booked_on(claim, DeviceId(*pool, result["device"])) or allocation.host_of(given, result)
        return nodes.pop() if len(nodes) == 1 and "" not in nodes else pool_page(*pool)

    def _capacity(self, device: DeviceId) -> dict[str, str] | None:
        """How much there is of each capacity of a device that may be shared; None: it may not, or it is not published."""
        for each in self._entries(device):
            if each.get("allowMultipleAllocations"):
                return {name: str(amount["value"]) for name, amount in (each.get("capacity") or {}).items()}
        return None

    def _counters(self, device: DeviceId) -> dict[str, dict[str, str]]:
        """What the device consumes of the shared counters of its pool, by counter set."""
        for each in self._entries(device):
            return {use["counterSet"]: _values(use.get("counters")) for use in each.get("consumesCounters") or ()}
        return {}

    def _entries(self, device: DeviceId) -> Iterable[Mapping[str, Any]]:
        return (each for piece in self._slices(f"{device.driver}/{device.pool}")
                for each in piece["spec"].get("devices") or () if each["name"] == device.device)

    def _hardware(self, device: DeviceId, host: str) -> tuple[str, ...]:
        """What the device is on a host, as its driver publishes it; empty: not known."""
        found: set[str] = set()
        for piece in newest(self._slices(f"{device.driver}/{device.pool}")):
            for each in piece["spec"].get("devices") or ():
                where = each.get("nodeName") or piece["spec"].get("nodeName") or host
                if each["name"] == device.device and where == host:
                    found |= hardware_of(each, device.driver)
        return tuple(sorted(found))


def results_by_pool(claim: Object) -> list[tuple[str, Mapping[str, Any]]]:
    """The devices of a claim's allocation, each with its pool as "driver/pool"."""
    given = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return [(f"{result['driver']}/{result['pool']}", result) for result in given.get("results") or ()]


def holder_purpose(pod: Object) -> str:
    """The holder of a pod's devices, for messages: "vmi/blue", "migration/move" for a target that is booked, else "pod/web"."""
    reference = vm.owner(pod, kinds.VMI.kind)
    if reference and migration.job_uid(pod) and (job := (pod["metadata"].get("annotations") or {}).get(migration.JOB_NAME)):
        return f"migration/{job}"  # until it has ended: the migration controller writes it into the booking
    name = reference["name"] if reference else attachment_pods.vmi_name(pod)
    return f"vmi/{name}" if name else f"pod/{pod['metadata']['name']}"


def _values(counters: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(counter["value"]) for name, counter in (counters or {}).items()}
