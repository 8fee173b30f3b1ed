"""PoolStatuses for users who may not read LedgerPages and ResourceSlices: read with the rights of this process, counted by
`ledger.pool_status`, and kept for a few seconds, so that users cannot make it read the whole ledger at will."""

from __future__ import annotations

import asyncio
import functools

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.apiserver.aggregated.access_review import own_rights
from outfitter.errors import NotFound
from outfitter.ledger.pool_status import pool_statuses
from outfitter.scheduling.filter import taints
from outfitter.store.base import Store
from outfitter.store.clock import Clock

KEPT = 5.0  # seconds
COLUMNS = ("poolName", "driver", "nodeName", "totalDevices", "allocatedDevices", "availableDevices", "unavailableDevices")
HEAD = ("Pool", "Driver", "Node", "Devices", "Allocated", "Available", "Unavailable")
READ = (kinds.RESOURCE_SLICE, kinds.LEDGER_PAGE, kinds.DEVICE_TAINT_RULE)


class PoolStatusList:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._reading = asyncio.Lock()
        self._kept: tuple[float, Object] | None = None  # until when

    async def read(self) -> Object:
        """The list of all PoolStatuses, as it was at most a few seconds ago."""
        async with self._reading:
            if self._kept is None or self._kept[0] <= self._clock.monotonic():
                with own_rights():
                    slices, pages, rules = [await self._all(kind) for kind in READ]
                kind = kinds.POOL_STATUS
                ruled = functools.partial(taints.ruled_device, rules)
                counted = await asyncio.to_thread(pool_statuses, slices, pages, ruled)  # admission reviews go on meanwhile
                self._kept = self._clock.monotonic() + KEPT, {
                    "kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": {},
                    "items": [{"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": _name(pool)}, **pool}
                              for pool in counted]}
            return self._kept[1]

    async def _all(self, kind: Kind) -> list[Object]:
        """None of a kind that this cluster does not have: DeviceTaintRules are behind a gate of Kubernetes."""
        try:
            return (await self._store.list(kind)).items
        except NotFound:
            return []


def _name(pool: Object) -> str:
    return f"{pool['driver']}.{pool['poolName'].replace('/', '.')}"


def table(listed: Object, version: str) -> Object:
    """The same as kubectl prints it."""
    columns = [{"name": name, "type": "string", "format": "", "description": "", "priority": 0} for name in HEAD]
    rows = [{"cells": [item.get(field, "") for field in COLUMNS],
             "object": {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": item["metadata"]}}
            for item in listed["items"]]
    return {"kind": "Table", "apiVersion": f"meta.k8s.io/{version}", "metadata": {}, "columnDefinitions": columns, "rows": rows}
