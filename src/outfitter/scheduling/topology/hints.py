"""NUMA hints of one resource: the sets of NUMA nodes from which a request for its devices can be met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from outfitter.scheduling.topology.settings import NumaNodes, mask_of


@dataclass(frozen=True, slots=True)
class ResourceDevices:
    """The devices of one resource on a node."""

    numa: Mapping[str, tuple[int, ...]]  # every device, unhealthy ones too, -> its NUMA nodes; (): unknown
    free: frozenset[str]  # healthy and in no container

    @property
    def has_topology(self) -> bool:
        return any(self.numa.values())


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What one container (with scope `pod`: a pod) asks for of one resource."""

    devices: ResourceDevices
    count: int
    assigned: frozenset[str] = frozenset()  # ids that it has already: earlier start, or set by a scheduler; never in `free`
    reusable: frozenset[str] = frozenset()  # devices of the pod's plain init containers; not in `free` either


@dataclass(frozen=True, slots=True)
class NumaHint:
    mask: int | None  # None: any node
    preferred: bool  # no smaller set of nodes would do on an empty host


def compute_hints(request: DeviceRequest, numa: NumaNodes) -> tuple[NumaHint, ...] | None:
    """None: no preference, since no device names a NUMA node. Empty: the request cannot be met. By size, then by number.

    Ids that are assigned already give the hints of just these; with too few of them the rest is found beside them."""
    devices = request.devices
    if not request.count or not devices.has_topology:
        return None
    if len(request.assigned) > request.count:
        return ()
    if len(request.assigned) == request.count:
        must, available = frozenset[str](), request.assigned
    else:
        must, available = request.assigned | request.reusable, devices.free
        if len(available | must) < request.count:
            return ()
    by_mask = Counter(mask_of(nodes) for nodes in devices.numa.values())
    available_by_mask = _count(available, devices)
    must_by_mask = _count(must, devices)
    masks = []
    smallest = None
    for mask in _node_sets(by_mask, numa):
        if smallest is None and _touching(by_mask, mask) >= request.count:
            smallest = mask.bit_count()
        if any(not own & mask for own in must_by_mask):
            continue
        if must_by_mask.total() + _touching(available_by_mask, mask) >= request.count:
            masks.append(mask)
    return tuple(NumaHint(mask, mask.bit_count() == smallest) for mask in masks)


def _count(ids: Iterable[str], devices: ResourceDevices) -> Counter[int]:
    """How many of these devices have which nodes; those without any are left out."""
    return Counter(mask for device in ids if (mask := mask_of(devices.numa.get(device, ()))))


def _touching(by_mask: Mapping[int, int], mask: int) -> int:
    return sum(number for own, number in by_mask.items() if own & mask)


def _node_sets(by_mask: Mapping[int, int], numa: NumaNodes) -> Iterable[int]:
    """All sets of the NUMA nodes that have devices, small ones first. Nodes that the host does not know are dropped."""
    used = 0
    for mask in by_mask:
        used |= mask
    nodes = [node for node in numa.ids if used >> node & 1]
    for size in range(1, len(nodes) + 1):
        for chosen in combinations(nodes, size):
            yield mask_of(chosen)
