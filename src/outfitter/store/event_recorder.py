"""Records Kubernetes Event objects for people. A repeated event increments the count of the first one instead of creating
another object. Recording never raises: a failure is logged. Called by controllers and the node agent."""

from __future__ import annotations

import logging
from collections import OrderedDict

from outfitter.api.kinds import Kind, Object
from outfitter.errors import NotFound, OutfitterError, Terminating
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.id_generator import IdGenerator

log = logging.getLogger(__name__)
MAX_REMEMBERED = 4096
EventKey = tuple[str, str, str, str]  # uid of the involved object, type, reason, message


class EventRecorder:
    def __init__(self, store: Store, kind: Kind, component: str, *, clock: Clock, names: IdGenerator | None = None) -> None:
        self._store, self._kind, self._component = store, kind, component
        self._clock = clock
        self._names = names or IdGenerator()
        self._known: OrderedDict[EventKey, tuple[str, str, int]] = OrderedDict()  # -> namespace, name, count

    async def normal(self, about: Object, reason: str, message: str) -> None:
        await self._record(about, "Normal", reason, message)

    async def warning(self, about: Object, reason: str, message: str) -> None:
        await self._record(about, "Warning", reason, message)

    async def _record(self, about: Object, type_: str, reason: str, message: str) -> None:
        event = (about["metadata"].get("uid", ""), type_, reason, message)
        try:
            if event not in self._known or not await self._increment(event):
                await self._create(event, about)
        except (NotFound, Terminating) as error:  # the namespace is being deleted
            log.debug("event %s on %s was not recorded: %s", reason, about["metadata"].get("name"), error)
        except OutfitterError as error:
            log.warning("event %s on %s was not recorded: %s", reason, about["metadata"].get("name"), error)

    async def _increment(self, event: EventKey) -> bool:
        """Increment the count of the earlier event; False when it was deleted."""
        namespace, name, count = self._known[event]
        change = {"count": count + 1, "lastTimestamp": rfc3339(self._clock.now())}
        try:
            await self._store.patch(self._kind, name, change, namespace)
        except NotFound:
            return False
        self._known[event] = (namespace, name, count + 1)
        self._known.move_to_end(event)
        return True

    async def _create(self, event: EventKey, about: Object) -> None:
        now, meta = rfc3339(self._clock.now()), about["metadata"]
        _, type_, reason, message = event
        namespace = meta.get("namespace") or "default"
        name = f"{meta['name'][:200]}.{self._names.suffix(16)}"
        reference = {"apiVersion": about.get("apiVersion"), "kind": about.get("kind"), "name": meta["name"],
                     "namespace": meta.get("namespace"), "uid": meta.get("uid"), "resourceVersion": meta.get("resourceVersion")}
        await self._store.create_unsynced(self._kind, {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {key: value for key, value in reference.items() if value},
            "type": type_, "reason": reason, "message": message[:1024], "count": 1,
            "firstTimestamp": now, "lastTimestamp": now,
            "source": {"component": self._component}, "reportingComponent": self._component, "reportingInstance": "",
        })
        self._known[event] = (namespace, name, 1)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
