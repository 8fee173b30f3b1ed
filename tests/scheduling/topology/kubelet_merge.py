"""The kubelet's way to merge hints, step by step: every combination, each compared with the best so far. Slow and plain; the
tests compare ours with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from outfitter.scheduling.topology.hints import NumaHint
from outfitter.scheduling.topology.settings import NumaNodes, TopologyPolicy, TopologySettings


def merge(settings: TopologySettings, hints: Sequence[Sequence[NumaHint] | None]) -> tuple[int | None, bool]:
    explicit = [[NumaHint(None, True)] if of_resource is None else list(of_resource) or [NumaHint(None, False)]
                for of_resource in hints]
    if settings.policy is TopologyPolicy.SINGLE_NUMA_NODE:
        explicit = [[hint for hint in of_resource if hint.preferred and (hint.mask is None or hint.mask.bit_count() == 1)]
                    for of_resource in explicit]
    needed = max((min((hint.mask.bit_count() for hint in of_resource if hint.mask is not None), default=0)
                  for of_resource in explicit), default=0)
    best: NumaHint | None = None
    for combination in product(*explicit):
        masks = [hint.mask for hint in combination if hint.mask is not None]
        mask = settings.numa.mask
        for own in masks:
            mask &= own
        preferred = all(hint.preferred for hint in combination) and all(own == masks[0] for own in masks)
        best = compare(settings, needed, best, NumaHint(mask, preferred))
    best = best or NumaHint(settings.numa.mask, False)
    if settings.policy is TopologyPolicy.SINGLE_NUMA_NODE and best.mask == settings.numa.mask:
        best = NumaHint(None, best.preferred)
    return best.mask, best.preferred or settings.policy is TopologyPolicy.BEST_EFFORT


def compare(settings: TopologySettings, needed: int, current: NumaHint | None, candidate: NumaHint) -> NumaHint | None:
    if not candidate.mask:
        return current
    if current is None or (candidate.preferred and not current.preferred):
        return candidate
    if current.preferred and not candidate.preferred:
        return current
    assert current.mask is not None
    if not current.preferred:
        now, then = current.mask.bit_count(), candidate.mask.bit_count()
        if now == needed and then != needed:
            return current
        if now < needed:
            if then > needed or then < now:
                return current
            if then > now:
                return candidate
    return candidate if fitter(settings, candidate.mask, current.mask) else current


def fitter(settings: TopologySettings, mask: int, other: int) -> bool:
    if mask.bit_count() != other.bit_count():
        return mask.bit_count() < other.bit_count()
    if settings.prefer_closest and settings.policy is not TopologyPolicy.SINGLE_NUMA_NODE:
        a, b = average(settings.numa, mask), average(settings.numa, other)
        if a != b:
            return a < b
    return mask < other


def average(numa: NumaNodes, mask: int) -> float:
    assert numa.distances is not None
    nodes = [node for node in numa.ids if mask >> node & 1]
    return sum(numa.distances[numa.ids.index(a)][numa.ids.index(b)] for a in nodes for b in nodes) / len(nodes) ** 2
