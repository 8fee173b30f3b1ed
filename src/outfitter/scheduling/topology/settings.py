"""The topology manager's settings of a node: policy, scope and options, checked against the node's NUMA nodes as the kubelet
does at its start."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from outfitter.errors import Invalid

PREFER_CLOSEST = "prefer-closest-numa-nodes"
MAX_NUMA_NODES = "max-allowable-numa-nodes"
DEFAULT_MAX_NUMA_NODES = 8
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})  # as Go's strconv.ParseBool
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class TopologyPolicy(enum.StrEnum):
    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class TopologyScope(enum.StrEnum):
    CONTAINER = "container"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class NumaNodes:
    """The NUMA nodes of a host."""

    ids: tuple[int, ...]  # ascending
    distances: tuple[tuple[int, ...], ...] | None = None  # a row and a column for each of `ids`; None: unknown

    @classmethod
    def of(cls, ids: Iterable[int], distances: Sequence[Sequence[int]] | None = None) -> Self:
        rows = None if distances is None else tuple(tuple(row) for row in distances)
        return cls(tuple(sorted(ids)), rows)

    @property
    def mask(self) -> int:
        return mask_of(self.ids)

    def average_distance(self, mask: int) -> float:
        """Between all nodes of a mask, each to itself too; 0 when distances are unknown."""
        if self.distances is None:
            return 0.0
        places = [place for place, node in enumerate(self.ids) if mask >> node & 1]
        return sum(self.distances[a][b] for a in places for b in places) / max(len(places) ** 2, 1)


@dataclass(frozen=True, slots=True)
class TopologySettings:
    policy: TopologyPolicy
    scope: TopologyScope
    numa: NumaNodes
    prefer_closest: bool = False  # of masks of equal size the one with the least average distance

    @classmethod
    def parse(cls, policy: str, scope: str, options: Mapping[str, str], numa: NumaNodes) -> Self:
        """Raises Invalid with what is wrong. With policy `none` nothing else is read."""
        if policy not in tuple(TopologyPolicy):
            raise Invalid(f"topology manager policy {policy!r} is unknown: use {', '.join(TopologyPolicy)}")
        if policy == TopologyPolicy.NONE:
            return cls(TopologyPolicy.NONE, TopologyScope.CONTAINER, numa)
        if scope not in tuple(TopologyScope):
            raise Invalid(f"topology manager scope {scope!r} is unknown: use {' or '.join(TopologyScope)}")
        if unknown := sorted(options.keys() - {PREFER_CLOSEST, MAX_NUMA_NODES}):
            raise Invalid(f"topology manager option {unknown[0]!r} is unknown: use {PREFER_CLOSEST} or {MAX_NUMA_NODES}")
        closest = _bool(PREFER_CLOSEST, options.get(PREFER_CLOSEST, "false"))
        if closest and not _complete(numa):
            raise Invalid(f"{PREFER_CLOSEST} needs the distances between all {len(numa.ids)} NUMA nodes, "
                          "which the host does not report")
        most = _node_limit(options.get(MAX_NUMA_NODES, str(DEFAULT_MAX_NUMA_NODES)))
        if len(numa.ids) > most:
            raise Invalid(f"the host has {len(numa.ids)} NUMA nodes, policy {policy} supports {most}: set {MAX_NUMA_NODES}")
        return cls(TopologyPolicy(policy), TopologyScope(scope), numa, closest)


def mask_of(nodes: Iterable[int]) -> int:
    mask = 0
    for node in nodes:
        if node >= 0:
            mask |= 1 << node
    return mask


def _bool(name: str, text: str) -> bool:
    if text not in _TRUE | _FALSE:
        raise Invalid(f"{name}: {text!r} is neither true nor false")
    return text in _TRUE


def _node_limit(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < DEFAULT_MAX_NUMA_NODES:
        raise Invalid(f"{MAX_NUMA_NODES}: {text!r} is not a number of at least {DEFAULT_MAX_NUMA_NODES}")
    return int(text)


def _complete(numa: NumaNodes) -> bool:
    rows = numa.distances
    return rows is not None and len(rows) >= len(numa.ids) and all(len(row) >= len(numa.ids) for row in rows)
