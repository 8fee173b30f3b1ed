"""Chooses device ids for a container, as the kubelet's device manager does: what it has, what its pod's init containers leave,
then devices on the nodes of its affinity, others, and those without a NUMA node. A plugin that offers GetPreferredAllocation is
asked between `begin_choice` and `finish_choice`. Within a set the kubelet's order is random; here it is that of the ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from heapq import nsmallest

from outfitter.scheduling.topology.hints import DeviceRequest
from outfitter.scheduling.topology.settings import mask_of


@dataclass(frozen=True, slots=True)
class ChosenDevices:
    ids: tuple[str, ...]  # assigned ones first


@dataclass(frozen=True, slots=True)
class DevicesUnavailable:
    """Fewer devices are free than are needed beside the assigned and reused ones."""

    needed: int
    available: int


@dataclass(frozen=True, slots=True)
class PreferenceNeeded:
    """The plugin may choose now: the fields of a GetPreferredAllocation call, and what counts of its answer."""

    available: frozenset[str]
    must_include: tuple[str, ...]
    size: int
    eligible: frozenset[str]  # of the answer only these count
    fallback: tuple[frozenset[str], ...]  # what the rest is taken from, in this order


def begin_choice(request: DeviceRequest, mask: int | None) -> ChosenDevices | PreferenceNeeded | DevicesUnavailable:
    """`mask`: the container's affinity; None without one."""
    numa = request.devices.numa
    taken = sorted(request.assigned)
    reusable = sorted(request.reusable - request.assigned,
                      key=lambda device: (not _touches(numa.get(device, ()), mask), device))
    taken += reusable[:max(request.count - len(taken), 0)]
    needed = request.count - len(taken)
    if needed <= 0:
        return ChosenDevices(tuple(taken))
    free = request.devices.free - frozenset(taken)
    if len(free) < needed:
        return DevicesUnavailable(needed, len(free))
    aligned, unaligned, without = _by_affinity(request, free, mask)
    if needed < len(aligned):
        return PreferenceNeeded(aligned | frozenset(taken), tuple(taken), request.count, aligned, (aligned,))
    taken += nsmallest(needed, aligned)
    if len(taken) == request.count:
        return ChosenDevices(tuple(taken))
    return PreferenceNeeded(free | frozenset(taken), tuple(taken), request.count, free, (unaligned, without))


def finish_choice(choice: PreferenceNeeded, preferred: Collection[str]) -> ChosenDevices:
    """`preferred`: the plugin's answer; empty when it offers none. Ids that are not eligible, or too many, are left out."""
    taken = dict.fromkeys(choice.must_include)
    _take(taken, (device for device in preferred if device in choice.eligible), choice.size)
    for devices in choice.fallback:
        _take(taken, nsmallest(choice.size, devices), choice.size)
    return ChosenDevices(tuple(taken))


def _take(taken: dict[str, None], devices: Iterable[str], most: int) -> None:
    for device in devices:
        if len(taken) >= most:
            return
        taken[device] = None


def _touches(nodes: Iterable[int], mask: int | None) -> bool:
    return mask is not None and bool(mask_of(nodes) & mask)


def _by_affinity(request: DeviceRequest, free: frozenset[str],
                 mask: int | None) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """On a node of the mask, on others only, without a node. Without an affinity all devices count as without a node."""
    if mask is None or not request.devices.has_topology:
        return frozenset(), frozenset(), free
    numa = request.devices.numa
    aligned = frozenset(device for device in free if _touches(numa.get(device, ()), mask))
    without = frozenset(device for device in free - aligned if not numa.get(device))
    return aligned, free - aligned - without, without
