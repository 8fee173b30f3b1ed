"""How many devices of each pool are available, allocated and unavailable: counts without the names of holders, which every user
may see. The fields are those of `status.pools` of Kubernetes' ResourcePoolStatusRequest (1.37). Called by the aggregated API;
pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.ledger.device_list import DeviceList, ListedDevice

KEEPS_AWAY = ("NoSchedule", "NoExecute")  # effects of a taint


def pool_statuses(listed: DeviceList) -> list[Object]:
    """One PoolStatus for each pool that is published completely, in the order of the list."""
    pools = defaultdict[tuple[str, str], list[ListedDevice]](list)
    for device in listed.devices:
        if device.published:
            pools[device.id.driver, device.id.pool].append(device)
    return [_status(driver, pool, devices) for (driver, pool), devices in pools.items()]


def _status(driver: str, pool: str, devices: list[ListedDevice]) -> Object:
    allocated = sum(bool(device.bookings) for device in devices)
    unavailable = sum(_unavailable(device) for device in devices)
    nodes = {device.node for device in devices}
    return {
        "apiVersion": kinds.POOL_STATUS.api_version, "kind": kinds.POOL_STATUS.kind,
        "metadata": {"name": f"{driver}.{pool.replace('/', '.')}"},
        "driver": driver, "poolName": pool, **_node(nodes), "totalDevices": len(devices), "allocatedDevices": allocated,
        "availableDevices": len(devices) - allocated - unavailable, "unavailableDevices": unavailable,
    }


def _node(nodes: Iterable[str]) -> Object:
    """nodeName, if the pool is of one node."""
    [first, *others] = nodes
    return {"nodeName": first} if first and not others else {}


def _unavailable(device: ListedDevice) -> bool:
    """Not held, and not to be allocated either."""
    return not device.bookings and (device.state != "free" or any(taint.get("effect") in KEEPS_AWAY for taint in device.taints))
