"""Which devices of one node are the same hardware under several names. Pure; `NodeDevices` has the answer for its devices,
`AllocatedDevices` uses it: what is held under one name is not free under another."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from outfitter.api.device import are_partitions
from outfitter.scheduling.dra.slices import PublishedDevice


class NodeHardware(NamedTuple):
    """The hardware of one node, as far as its drivers publish it; devices are bits of a mask."""

    devices: Mapping[str, int]  # PCI address or UUID -> the devices that are it
    twins: Mapping[int, int]  # device -> the others that are, or contain, the same hardware; empty on almost every node


def node_hardware(devices: Sequence[PublishedDevice], usable: int) -> NodeHardware:
    """`usable`: those that the node can reach; an address on another node is other hardware."""
    found, several = _by_key(tuple([device.hardware for device in devices]), usable)
    twins: dict[int, int] = {}
    for key in several:
        names = [index for index in range(len(devices)) if found[key] >> index & 1]
        for index in names:
            for other in names:
                if index != other and not _partitions(devices[index], devices[other]):
                    twins[index] = twins.get(index, 0) | 1 << other
    return NodeHardware(found, twins)


@functools.lru_cache(maxsize=1024)  # nodes are alike
def _by_key(hardware: tuple[frozenset[str], ...], usable: int) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """The devices of each key, and the keys that several devices have."""
    found: dict[str, int] = {}
    for index, keys in enumerate(hardware):
        for key in keys if usable >> index & 1 else ():
            found[key] = found.get(key, 0) | 1 << index
    return found, tuple(key for key, mask in found.items() if mask.bit_count() > 1)


def _partitions(device: PublishedDevice, other: PublishedDevice) -> bool:
    return are_partitions(device.id, [use.set for use in device.uses], other.id, [use.set for use in other.uses])
