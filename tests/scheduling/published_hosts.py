"""Hosts as they are published, for tests of what flavors get on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outfitter.api.kinds import Object
from outfitter.api.providers import Provider
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra.node_devices import PoolSet
from outfitter.scheduling.nova.host_state import PublishedHost
from outfitter.scheduling.nova.numa_topology import NumaCell


def published(
    name: str, slices: Iterable[Object], tree: Sequence[Provider] = (), cells: Sequence[NumaCell] = ()
) -> PublishedHost:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    return PublishedHost.of(PoolSet(slices).at(node, Features.of({})), tree, cells)
