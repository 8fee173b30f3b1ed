"""Records Kubernetes Event objects for people. A repeated event increments the count of the first one instead of creating
another object, and events about one object are bounded (`event_correlator`). Recording never raises: a failure is logged.
Called by controllers and the node agent."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from outfitter.api.kinds import Kind, Object
from outfitter.errors import NotFound, OutfitterError, Terminating
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.events import event_correlator
from outfitter.store.events.event_correlator import EventCorrelator, EventKey
from outfitter.store.id_generator import IdGenerator

log = logging.getLogger(__name__)
MAX_MESSAGE = 1024  # characters, as Kubernetes


@dataclass(slots=True)
class _WrittenEvent:
    """The Event object that counts events of one key."""

    namespace: str = ""
    name: str = ""  # "" until it is created
    count: int = 0


class EventRecorder:
    def __init__(self, store: Store, kind: Kind, component: str, *, clock: Clock, names: IdGenerator | None = None) -> None:
        self._store, self._kind, self._component = store, kind, component
        self._clock = clock
        self._names = names or IdGenerator()
        self._correlator = EventCorrelator()
        self._known: OrderedDict[EventKey, _WrittenEvent] = OrderedDict()

    async def normal(self, about: Object, reason: str, message: str) -> None:
        await self._record(about, "Normal", reason, message)

    async def warning(self, about: Object, reason: str, message: str) -> None:
        await self._record(about, "Warning", reason, message)

    async def _record(self, about: Object, type_: str, reason: str, message: str) -> None:
        reference, now = _reference(about), self._clock.monotonic()
        event = EventKey(tuple(reference.get(field, "") for field in IDENTITY), type_, reason, message[:MAX_MESSAGE])
        event, message = self._correlator.combine(event, now)
        written = event_correlator.remember(self._known, event, _WrittenEvent())
        written.count += 1
        if not self._correlator.admits(event.about, now):
            return
        try:
            if not written.name or not await self._increment(written, message):
                await self._create(event, written, about, message)
        except (NotFound, Terminating) as error:  # the namespace is being deleted
            log.debug("event %s on %s was not recorded: %s", reason, about["metadata"].get("name"), error)
        except OutfitterError as error:
            log.warning("event %s on %s was not recorded: %s", reason, about["metadata"].get("name"), error)

    async def _increment(self, written: _WrittenEvent, message: str) -> bool:
        """Write the count of the earlier event; False when that was deleted."""
        change = {"count": written.count, "lastTimestamp": rfc3339(self._clock.now()), "message": message[:MAX_MESSAGE]}
        try:
            await self._store.patch(self._kind, written.name, change, written.namespace)
        except NotFound:
            return False
        return True

    async def _create(self, event: EventKey, written: _WrittenEvent, about: Object, message: str) -> None:
        now, meta = rfc3339(self._clock.now()), about["metadata"]
        namespace = meta.get("namespace") or "default"
        name = f"{meta['name'][:200]}.{self._names.suffix(16)}"
        written.count = 1
        await self._store.create_unsynced(self._kind, {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": _reference(about),
            "type": event.type, "reason": event.reason, "message": message[:MAX_MESSAGE], "count": 1,
            "firstTimestamp": now, "lastTimestamp": now,
            "source": {"component": self._component}, "reportingComponent": self._component, "reportingInstance": "",
        })
        written.namespace, written.name = namespace, name


IDENTITY = ("apiVersion", "kind", "namespace", "name", "uid")


def _reference(about: Object) -> Object:
    """The involvedObject of an event."""
    meta = about["metadata"]
    reference = {"apiVersion": about.get("apiVersion"), "kind": about.get("kind"), "name": meta["name"],
                 "namespace": meta.get("namespace"), "uid": meta.get("uid"), "resourceVersion": meta.get("resourceVersion")}
    return {key: value for key, value in reference.items() if value}
