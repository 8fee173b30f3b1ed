"""How many devices of each pool are available, allocated and unavailable: counts without the names of holders, which every user
may see. The fields are those of `status.pools` of Kubernetes' ResourcePoolStatusRequest (1.36). Called by the aggregated API
and by the controller that answers such requests in embedded mode; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outfitter.api.device import DeviceId, newest
from outfitter.api.kinds import Object
from outfitter.ledger.device_list import ListedDevice, device_list

Taints = Callable[[DeviceId], Sequence[Mapping[str, Any]]]
KEEPS_AWAY = ("NoSchedule", "NoExecute")  # effects of a taint
COUNTS = ("totalDevices", "allocatedDevices", "availableDevices", "unavailableDevices")
LONGEST_ERROR = 256  # bytes


def pool_statuses(slices: Sequence[Object], pages: Sequence[Object], ruled: Taints) -> list[Object]:
    """The counts of each pool, sorted by driver and name; of one that is not published completely, why there are none.
    `ruled`: the taints that DeviceTaintRules put on a device."""
    devices = defaultdict[tuple[str, str], list[ListedDevice]](list)
    for device in device_list(slices, pages, ()).devices:
        if device.published:
            devices[device.id.driver, device.id.pool].append(device)
    pools = defaultdict[tuple[str, str], list[Object]](list)
    for part in slices:
        pools[part["spec"]["driver"], part["spec"]["pool"]["name"]].append(part)
    return [_status(driver, pool, newest(pools[driver, pool]), devices[driver, pool], ruled) for driver, pool in sorted(pools)]


def _status(driver: str, pool: str, slices: Sequence[Object], devices: Sequence[ListedDevice], ruled: Taints) -> Object:
    newest_pool = slices[0]["spec"]["pool"]
    generation, expected = newest_pool.get("generation") or 0, newest_pool.get("resourceSliceCount") or 1
    status: Object = {"driver": driver, "poolName": pool, **_node(slices), "generation": generation}
    if len(slices) != expected:
        error = f"pool {driver}/{pool} is incomplete: observed {len(slices)}/{expected} slices at generation {generation}"
        return {**status, "validationError": error.encode()[:LONGEST_ERROR].decode(errors="ignore")}
    allocated = sum(bool(device.bookings) for device in devices)
    unavailable = sum(_unavailable(device, ruled) for device in devices)
    counts = (len(devices), allocated, len(devices) - allocated - unavailable, unavailable)
    return {**status, "resourceSliceCount": len(slices), **dict(zip(COUNTS, counts, strict=True))}


def _node(slices: Sequence[Object]) -> Object:
    """nodeName, if the pool is of one node."""
    [first, *others] = {part["spec"].get("nodeName") or "" for part in slices}
    return {"nodeName": first} if first and not others else {}


def _unavailable(device: ListedDevice, ruled: Taints) -> bool:
    """Not held, and not to be allocated either."""
    return not device.bookings and (device.state != "free" or any(
        taint.get("effect") in KEEPS_AWAY for taint in (*device.taints, *ruled(device.id))))
