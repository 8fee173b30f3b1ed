"""What happened to an object, for people: Event objects beside it. The same news again raises a count instead of adding
another object. Recording never fails the work it tells of."""

from __future__ import annotations

import logging
from collections import OrderedDict

from outfitter.api.kinds import Kind, Object
from outfitter.errors import NotFound, OutfitterError, Terminating
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.id_generator import IdGenerator

log = logging.getLogger(__name__)
REMEMBERED = 4096
News = tuple[str, str, str, str]  # uid of what it is about, type, reason, message


class EventRecorder:
    def __init__(self, store: Store, kind: Kind, component: str, *, clock: Clock, names: IdGenerator | None = None) -> None:
        self._store, self._kind, self._component = store, kind, component
        self._clock = clock
        self._names = names or IdGenerator()
        self._known: OrderedDict[News, tuple[str, str, int]] = OrderedDict()  # -> namespace, name, count

    async def normal(self, about: Object, reason: str, message: str) -> None:
        await self._record(about, "Normal", reason, message)

    async def warning(self, about: Object, reason: str, message: str) -> None:
        await self._record(about, "Warning", reason, message)

    async def _record(self, about: Object, type_: str, reason: str, message: str) -> None:
        news = (about["metadata"].get("uid", ""), type_, reason, message)
        try:
            if news not in self._known or not await self._count(news):
                await self._create(news, about)
        except (NotFound, Terminating) as error:  # its namespace goes, and nobody reads it there
            log.debug("event %s on %s was not recorded: %s", reason, about["metadata"].get("name"), error)
        except OutfitterError as error:
            log.warning("event %s on %s was not recorded: %s", reason, about["metadata"].get("name"), error)

    async def _count(self, news: News) -> bool:
        """False when the earlier event is gone."""
        namespace, name, count = self._known[news]
        change = {"count": count + 1, "lastTimestamp": rfc3339(self._clock.now())}
        try:
            await self._store.patch(self._kind, name, change, namespace)
        except NotFound:
            return False
        self._known[news] = (namespace, name, count + 1)
        self._known.move_to_end(news)
        return True

    async def _create(self, news: News, about: Object) -> None:
        now, meta = rfc3339(self._clock.now()), about["metadata"]
        _, type_, reason, message = news
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
        self._known[news] = (namespace, name, 1)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
