"""Reports stored objects that cannot be read: a warning event on each, with the field, what would be right and how to repair
it; once for every problem that an object has. Informers leave these objects out. Run by the controllers' manager, and created
when all informers are known."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.store.clock import Clock
from outfitter.store.events.event_recorder import EventRecorder
from outfitter.store.informer import Informer
from outfitter.store.workqueue import WorkQueue

log = logging.getLogger(__name__)
REASON = "ObjectUnreadable"


class UnreadableObjects:
    """Keys are "plural.group|key"."""

    name = "unreadable_objects"

    def __init__(self, informers: Mapping[Kind, Informer[Object]], events: EventRecorder, *, clock: Clock) -> None:
        self._informers, self._events = informers, events
        self.queue = WorkQueue(clock)
        self._reported: dict[str, str] = {}  # key -> the problem that was reported
        self._kinds = {kind.resource: kind for kind in informers}
        for kind, informer in informers.items():
            informer.on_unreadable(functools.partial(self._changed, kind))

    def _changed(self, kind: Kind, key: str) -> None:
        self.queue.add(f"{kind.resource}|{key}")

    async def reconcile(self, key: str) -> float | None:
        resource, _, name = key.partition("|")
        kind = self._kinds[resource]
        found = self._informers[kind].unreadable.get(name)
        if found is None:
            self._reported.pop(key, None)
            return None
        if self._reported.get(key) != str(found):
            self._reported[key] = str(found)
            log.warning("%s; it is skipped until it is repaired: %s", found, found.repair)
            if kind != kinds.EVENT:
                await self._events.warning(
                    found.reference(), REASON, f"{found}; it is skipped until it is repaired: {found.repair}")
        return None
