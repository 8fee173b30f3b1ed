"""Merges the NUMA hints of a container's resources into one affinity, and decides by the policy whether it is admitted.

The kubelet walks through all combinations of one hint per resource. Here resources are merged one after the other, and equal
results are kept once: the cost grows with the number of resources, not with the product of their hints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outfitter.scheduling.topology.hints import DeviceRequest, NumaHint, compute_hints
from outfitter.scheduling.topology.settings import TopologyPolicy, TopologySettings


@dataclass(frozen=True, slots=True)
class Affinity:
    """The NUMA nodes for all devices of a container."""

    mask: int | None  # None: no affinity
    admitted: bool  # False: the policy rejects the pod, TopologyAffinityError


def decide_affinity(settings: TopologySettings, requests: Mapping[str, DeviceRequest]) -> Affinity:
    """For the requests of one container by resource, or with scope `pod` of the pod."""
    if settings.policy is TopologyPolicy.NONE:
        return Affinity(None, True)
    return merge_hints(settings, [compute_hints(request, settings.numa) for request in requests.values()])


def merge_hints(settings: TopologySettings, hints: Iterable[Sequence[NumaHint] | None]) -> Affinity:
    """One sequence of hints per resource: None without a preference, empty when the request cannot be met."""
    by_resource = [_explicit(of_resource) for of_resource in hints]
    single = settings.policy is TopologyPolicy.SINGLE_NUMA_NODE
    if single:
        by_resource = [[hint for hint in of_resource if hint.preferred and (hint.mask is None or hint.mask.bit_count() == 1)]
                       for of_resource in by_resource]
    best = min(_combinations(by_resource, settings.numa.mask), key=_Fitness(settings, by_resource), default=None)
    if best is None:
        best = NumaHint(settings.numa.mask, False)
    mask = None if single and best.mask == settings.numa.mask else best.mask
    return Affinity(mask, best.preferred or settings.policy is TopologyPolicy.BEST_EFFORT)


def _explicit(hints: Sequence[NumaHint] | None) -> list[NumaHint]:
    return list(hints) if hints else [NumaHint(None, hints is None)]


def _combinations(by_resource: Iterable[Sequence[NumaHint]], every_node: int) -> set[NumaHint]:
    """The merged hints of all combinations, without those that have no node in common. Preferred is one whose hints are all
    preferred and have the same mask."""
    merged = {NumaHint(None, True)}
    for of_resource in by_resource:
        merged = {_and(left, right) for left in merged for right in of_resource}
        merged.discard(NumaHint(0, False))
    whole = (NumaHint(every_node & (every_node if hint.mask is None else hint.mask), hint.preferred) for hint in merged)
    return {hint for hint in whole if hint.mask}


def _and(left: NumaHint, right: NumaHint) -> NumaHint:
    preferred = left.preferred and right.preferred
    if left.mask is None or right.mask is None:
        return NumaHint(right.mask if left.mask is None else left.mask, preferred)
    return NumaHint(left.mask & right.mask, preferred and left.mask == right.mask)


class _Fitness:
    """Sort key, best first: preferred ones, then fewer nodes, the least distance if the node's options ask for it, and lower
    numbers. Of those that are not preferred the sizes nearest to, and not above, what the most demanding resource needs."""

    def __init__(self, settings: TopologySettings, by_resource: Iterable[Sequence[NumaHint]]) -> None:
        self._closest = settings.prefer_closest and settings.policy is not TopologyPolicy.SINGLE_NUMA_NODE
        self._numa = settings.numa
        sizes = ([hint.mask.bit_count() for hint in of_resource if hint.mask is not None] for of_resource in by_resource)
        self._needed = max((min(of_resource) for of_resource in sizes if of_resource), default=0)

    def __call__(self, hint: NumaHint) -> tuple[bool, bool, int, float, int]:
        mask = hint.mask or 0
        size = mask.bit_count()
        distance = self._numa.average_distance(mask) if self._closest else 0.0
        if hint.preferred:
            return False, False, size, distance, mask
        above = size > self._needed
        return True, above, size if above else self._needed - size, distance, mask
