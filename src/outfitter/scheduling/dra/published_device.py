"""A device as its pool lists it for a host, whether the pool is complete or not: tells whether a device in use is still there.
What may be allocated is decided elsewhere, from complete pools. Pure; called by device status and `outfit why`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outfitter.api.kinds import Object
from outfitter.errors import Invalid
from outfitter.scheduling.filter import node_affinity


def published_device(name: str, slices: Iterable[Object], host: str, node: Object | None) -> Mapping[str, Any] | None:
    """The device in the newest of its pool's slices that lists it: a driver that replaces its slices one by one publishes it
    all the time. `slices` are all of the pool; `node` is the host's object if there is one."""
    labels = (node["metadata"].get("labels") or {}) if node is not None else None
    listed = [(int(part["spec"]["pool"].get("generation") or 0), device) for part in slices
              for device in part["spec"].get("devices") or () if device.get("name") == name
              and _may_reach(device if part["spec"].get("perDeviceNodeSelection") else part["spec"], host, labels)]
    return max(listed, key=lambda pair: pair[0])[1] if listed else None


def _may_reach(source: Mapping[str, Any], host: str, labels: Mapping[str, str] | None) -> bool:
    try:
        return node_affinity.reaches(source, host, labels)
    except Invalid:  # nothing is concluded from a selector that cannot be read
        return True
