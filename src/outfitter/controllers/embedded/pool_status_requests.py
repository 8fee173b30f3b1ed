"""Answers ResourcePoolStatusRequests from the ledger, in embedded mode, and deletes them when they have expired. In a cluster
whose API server has them, kube-controller-manager does both.

A request is answered once. While a pool is not published completely, the answer waits a few seconds for the rest of it; then it
has the reason in place of the counts."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from datetime import datetime, timedelta

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.validate.dra.pool_status_requests import DEFAULT_LIMIT
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.errors import NotFound
from outfitter.ledger.pool_status import pool_statuses
from outfitter.scheduling.filter import taints
from outfitter.store.workqueue import WorkQueue

COMPLETE, REASON = "Complete", "CalculationComplete"  # type and reason of the condition, as in Kubernetes
FAILED = "Failed"
KEPT_ANSWERED = timedelta(hours=1)  # as in Kubernetes, as is the next
KEPT_PENDING = timedelta(hours=24)
WAIT_FOR_SLICES = timedelta(seconds=5)
LOOK_AGAIN = 1.0  # seconds, while slices are missing
READ = (kinds.RESOURCE_SLICE, kinds.LEDGER_PAGE, kinds.DEVICE_TAINT_RULE)


class PoolStatusRequests:
    name = "pool_status_requests"
    kind = kinds.POOL_STATUS_REQUEST  # of its keys

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = WorkQueue(context.clock)
        self._requests = context.informer(kinds.POOL_STATUS_REQUEST)
        self._read = [context.informer(kind) for kind in READ]
        self._counted: tuple[list[str], list[Object]] | None = None  # at which revisions of what is read
        self._counting = asyncio.Lock()
        enqueue_on_change(self._requests, self.queue)

    async def reconcile(self, key: str) -> float | None:
        request = self._requests.get(key)
        if request is None:
            return None
        if request.get("status"):
            return await self._expire(request)
        now = self._context.clock.now()
        if (left := expires(request) - now) <= timedelta():
            return await self._expire(request)
        status = answer(request, await self._pools(), self._context.now())
        waited = now - datetime.fromisoformat(request["metadata"]["creationTimestamp"])
        if _incomplete(status) and waited < WAIT_FOR_SLICES:
            return min(LOOK_AGAIN, left.total_seconds())
        answered = await self._context.patch_status(kinds.POOL_STATUS_REQUEST, request, status)
        return (expires(answered) - now).total_seconds()

    async def _expire(self, request: Object) -> float | None:
        left = (expires(request) - self._context.clock.now()).total_seconds()
        if left > 0:
            return left
        meta = request["metadata"]
        try:
            await self._context.store.delete(kinds.POOL_STATUS_REQUEST, meta["name"], uid=meta["uid"])
        except NotFound:
            pass
        return None

    async def _pools(self) -> list[Object]:
        """Counted in a thread, once for all that ask meanwhile: 40,000 devices take more than a second."""
        async with self._counting:
            revisions = [informer.revision for informer in self._read]
            if self._counted is None or self._counted[0] != revisions:
                slices, pages, rules = (list(informer.items()) for informer in self._read)
                ruled = functools.partial(taints.ruled_device, rules)
                self._counted = revisions, await asyncio.to_thread(pool_statuses, slices, pages, ruled)
            return self._counted[1]


def answer(request: Object, pools: Sequence[Object], now: str) -> Object:
    """The status of a request."""
    spec = request["spec"]
    matching = [pool for pool in pools if pool["driver"] == spec["driver"]
                and spec.get("poolName") in (None, pool["poolName"])]
    shown = matching[:spec.get("limit", DEFAULT_LIMIT)]
    status: Object = {"poolCount": len(matching), "pools": shown}
    incomplete = f" ({_incomplete(status)} incomplete)" if _incomplete(status) else ""
    done = Condition(COMPLETE, True, REASON, f"Calculated status for {len(shown)} pools{incomplete}")
    return {**status, "conditions": conditions.with_condition((), done, now)}


def expires(request: Object) -> datetime:
    """When a request is deleted: an hour after it was answered, a day after it was created."""
    created = datetime.fromisoformat(request["metadata"]["creationTimestamp"])
    if not request.get("status"):
        return created + KEPT_PENDING
    ends = [end for type_ in (COMPLETE, FAILED) if (end := conditions.find(request, type_)) is not None]
    answered = datetime.fromisoformat(ends[0]["lastTransitionTime"]) if ends else created
    return answered + KEPT_ANSWERED


def _incomplete(status: Object) -> int:
    return sum("validationError" in pool for pool in status["pools"])
