"""Deletes events in embedded mode: those that were last written longer ago than `keep`, and the oldest when there are too many.
Kubernetes does the first with etcd leases (--event-ttl). Times that its writer states in an event do not count.

Only what is needed of each event is held in memory, in the order in which they were written."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime, timedelta

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.controllers.manager import ControllerContext
from outfitter.errors import Conflict, NotFound
from outfitter.store.informer import key_of, split_key
from outfitter.store.workqueue import WorkQueue

EXPIRE = "expire"  # the only key
AT_LEAST_EVERY = 60.0  # seconds
AT_ONCE = 100  # events that are deleted together
TRIMMED_TO = 0.9  # of the bound, so that not every new event deletes one


class EventExpiry:
    """`keep`: how long after its last write an event is deleted; `most`: events in the store."""

    name = "event_expiry"

    def __init__(self, context: ControllerContext, *, keep: timedelta, most: int) -> None:
        self._context, self._keep, self._most = context, keep.total_seconds(), most
        self.queue = WorkQueue(context.clock)
        self._written: OrderedDict[str, tuple[float, str]] = OrderedDict()  # key -> when, and its revision; the oldest first
        self._started = False  # the first list is known: what comes now is being written now
        context.informer(kinds.EVENT, view=_brief).on_change(self._changed)
        self.queue.add(EXPIRE)

    def _changed(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            assert old is not None
            self._written.pop(key_of(old), None)
            return
        key, now = key_of(new), self._context.clock.monotonic()
        written = now if self._started else now - self._earlier(new)
        self._written[key] = (written, new["metadata"]["resourceVersion"])
        self._written.move_to_end(key)
        if len(self._written) > self._most:
            self.queue.add(EXPIRE)

    def _earlier(self, event: Object) -> float:
        """How many seconds ago an event of an earlier run was written. Its last write is not recorded: it is between the
        creation and now, and as an updated event says."""
        now = self._context.clock.now()
        created = datetime.fromisoformat(event["metadata"]["creationTimestamp"])
        try:
            last = max(created, datetime.fromisoformat(event["lastTimestamp"]))
        except (TypeError, ValueError):  # none, or one that is not a time
            last = created
        return max(0.0, (now - last).total_seconds())

    async def reconcile(self, key: str) -> float | None:
        if not self._started:
            self._started = True
            self._written = OrderedDict(sorted(self._written.items(), key=lambda entry: entry[1]))
        while expired := self._expired():
            await self._delete(expired)
        oldest = next(iter(self._written.values()), None)
        if oldest is None:
            return AT_LEAST_EVERY
        return min(AT_LEAST_EVERY, max(1.0, oldest[0] + self._keep - self._context.clock.monotonic()))

    def _expired(self) -> Sequence[tuple[str, str]]:
        """Key and revision of the next events to delete."""
        before = self._context.clock.monotonic() - self._keep
        surplus = len(self._written) - int(self._most * TRIMMED_TO) if len(self._written) > self._most else 0
        expired = []
        for number, (key, (written, revision)) in enumerate(self._written.items()):
            if number >= AT_ONCE or (number >= surplus and written > before):
                break
            expired.append((key, revision))
        return expired

    async def _delete(self, expired: Sequence[tuple[str, str]]) -> None:
        async def delete(key: str, revision: str) -> None:
            namespace, name = split_key(key)
            with contextlib.suppress(NotFound, Conflict):  # it is gone, or was written again
                await self._context.store.delete(kinds.EVENT, name, namespace, revision=revision)

        for key, revision in expired:
            if self._written.get(key, ("", ""))[1] == revision:
                del self._written[key]
        await asyncio.gather(*(delete(*event) for event in expired))


def _brief(event: Object) -> Object:
    meta = event["metadata"]
    kept = ("namespace", "name", "creationTimestamp", "resourceVersion")
    return {"metadata": {field: meta.get(field) for field in kept}, "lastTimestamp": event.get("lastTimestamp")}
