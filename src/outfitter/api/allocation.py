"""A claim's allocation: its devices and host, how much of a device a result takes as it is booked on a page, and the allocation
as it is restored from a page. Pure conversions between ResourceClaim.status and LedgerPage, used by controllers, scheduling and
node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.device import DRIVER
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs
from outfitter.api.ledger_page.booking import Booking


def hosts(allocation: Mapping[str, Any]) -> set[str]:
    """The hosts on which all allocated devices can be used: the one in the allocation's nodeSelector, else the pools of the
    devices, which are named after their hosts."""
    if host := named_host(allocation):
        return {host}
    return {result["pool"] for result in (allocation.get("devices") or {}).get("results") or ()}


def host_of(allocation: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The host whose page records a device of the allocation."""
    return named_host(allocation) or str(result["pool"])


def named_host(allocation: Mapping[str, Any]) -> str | None:
    """The host that the allocation's nodeSelector names; None if it names none or several."""
    for term in (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and len(field.get("values") or ()) == 1:
                return str(field["values"][0])
    return None


def booked_amount(result: Mapping[str, Any], counters: Mapping[str, Mapping[str, str]]) -> Object:
    """How much of its device a result takes. `counters`: what the device consumes of the shared counters of its pool, by
    counter set."""
    if result.get("adminAccess"):
        return {"adminAccess": True}  # admin access: others may hold the device
    taken: Object = {"whole": True} if not result.get("shareID") else {
        "shareID": result["shareID"], "capacity": dict(result.get("consumedCapacity") or {})}
    return {**taken, **({"counters": {name: dict(amounts) for name, amounts in counters.items()}} if counters else {})}


def restored(host: str, bookings: Sequence[Booking]) -> Object:
    """The allocation of a claim that holds these bookings; "" for no host of its own."""
    results = [{"request": booking.request, "driver": booking.device.driver, "pool": booking.device.pool,
                "device": booking.device.device, **_share(booking.amount)} for booking in bookings
               if "resources" not in booking.amount]
    devices: Object = {"results": results}
    for amount in (booking.amount for booking in bookings):
        if cells := cells_config(amount.get("guestCells") or (), amount.get("cells") or {}, amount.get("cpus") or {}):
            devices["config"] = cells
    return {"devices": devices, **({"nodeSelector": on_host(host)} if host else {})}


def _share(amount: Mapping[str, Any]) -> Object:
    if amount.get("adminAccess"):
        return {"adminAccess": True}
    if not amount.get("shareID"):
        return {}
    return {"shareID": amount["shareID"], **({"consumedCapacity": amount["capacity"]} if amount.get("capacity") else {})}


def cells_config(cells: Sequence[int], pinned: Mapping[Any, int], cpus: Mapping[Any, Sequence[int]]) -> list[Object]:
    """The configuration in an allocation that maps the guest's NUMA cells to cells of the host, for the launcher."""
    if not cells:
        return []
    parameters = {"apiVersion": kinds.FLAVOR.api_version, "kind": device_refs.CELLS_KIND, "hostCells": list(cells),
                  **({"pinned": {str(cell): count for cell, count in pinned.items()}} if pinned else {}),
                  **({"cpus": {str(cell): list(cell_cpus) for cell, cell_cpus in cpus.items()}} if cpus else {})}
    return [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}]


def on_host(host: str) -> Object:
    """A NodeSelector for one host by name."""
    return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [host]}]}]}
