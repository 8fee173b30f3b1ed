"""What of a host the devices of a claim are, whichever driver publishes them: PCI functions with all of their IOMMU group, or a
mediated device. Read-only; `ClaimBookings` records it on the page and checks that no other booking has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outfitter.api.device import DeviceId, hardware_of, newest
from outfitter.api.kinds import Object
from outfitter.node.agent_host import AgentHost
from outfitter.node.pool_slices import slices_of
from outfitter.store.base import Store

Hardware = Mapping[DeviceId, tuple[str, ...]]  # sorted; a device that is not in it is not known


async def hardware(store: Store, host: AgentHost, devices: Iterable[DeviceId]) -> dict[DeviceId, tuple[str, ...]]:
    """What these devices are on a host: its own as it scanned them, those of other drivers as their slices say now."""
    wanted = set(devices)
    own = {device for device in wanted if (device.driver, device.pool) == (host.driver, host.name)}
    found = {device: host.hardware_of(device.device) for device in own}
    if others := wanted - own:
        slices = await slices_of(store, host.name, {(device.driver, device.pool) for device in others})
        found |= published(others, slices, host.name)
    return {device: tuple(sorted(_with_groups(host, keys))) for device, keys in found.items() if keys}


def published(devices: set[DeviceId], slices: Iterable[Object], host: str) -> dict[DeviceId, frozenset[str]]:
    """What drivers publish of devices that are used on a host."""
    pools: dict[tuple[str, str], list[Object]] = {}
    for part in slices:
        pools.setdefault((part["spec"]["driver"], part["spec"]["pool"]["name"]), []).append(part)
    out: dict[DeviceId, frozenset[str]] = {}
    for (driver, pool), parts in pools.items():
        for part in newest(parts):
            for entry in part["spec"].get("devices") or ():
                device, node = DeviceId(driver, pool, entry["name"]), entry.get("nodeName") or part["spec"].get("nodeName")
                if device in devices and node in (None, "", host):
                    out[device] = out.get(device, frozenset()) | hardware_of(entry, driver)
    return out


def _with_groups(host: AgentHost, keys: frozenset[str]) -> frozenset[str]:
    return keys.union(*(host.iommu_groups.get(key, ()) for key in keys))
