"""A kind's objects kept at hand: list once, then follow; list again when the place was lost.

One informer serves everybody in the process who reads that kind. What it holds is for reading: whoever wants a change
patches the store, and may tell the informer of the answer (`put`), so that nobody in this process acts on what was there before
while the news of it is on its way. The answer is the news: whoever reads one object, a list or an index sees the same."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar, cast

from outfitter.api.kinds import Kind, Object
from outfitter.errors import Expired, OutfitterError
from outfitter.store.base import Store
from outfitter.store.clock import Clock

T = TypeVar("T")
log = logging.getLogger(__name__)
Index = Callable[[T], Iterable[str]]
Handler = Callable[[T | None, T | None], None]  # what was, what is
PAGE = 500
PAUSE = 1.0  # seconds


def key_of(obj: Object) -> str:
    """ "namespace/name", or "name" for what has no namespace."""
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def split_key(key: str) -> tuple[str, str]:
    """Namespace and name."""
    namespace, _, name = key.rpartition("/")
    return namespace, name


def _number(revision: str) -> int:
    """Those of one kind can be compared; 0 before the first."""
    return int(revision or 0)


def _born(entry: tuple[str, Object]) -> tuple[str, str]:
    key, obj = entry
    return str(obj["metadata"].get("creationTimestamp") or ""), key


class Informer(Generic[T]):
    def __init__(
        self,
        store: Store,
        kind: Kind,
        *,
        clock: Clock,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        view: Callable[[Object], T] | None = None,
        indexes: Mapping[str, Index[T]] | None = None,
    ) -> None:
        self.kind = kind
        self._store, self._clock = store, clock
        self._namespace, self._labels, self._fields = namespace, labels, fields
        self._view = view or (lambda obj: cast(T, obj))
        self._items: dict[str, T] = {}
        self._versions: dict[str, str] = {}
        self._uids: dict[str, str] = {}
        self._written: dict[str, int] = {}  # the revisions of what we wrote ourselves and have not heard of yet
        self._ages: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._indexes = dict(indexes or {})
        self._indexed: dict[str, dict[str, dict[str, T]]] = {name: defaultdict(dict) for name in self._indexes}
        self._places: dict[str, dict[str, frozenset[str]]] = {}  # key -> index -> the values it stands under
        self._handlers: list[Handler[T]] = []
        self._synced = asyncio.Event()
        self.revision = ""  # everything up to here has been seen and handled

    # -- reading

    def get(self, key: str) -> T | None:
        return self._items.get(key)

    def put(self, obj: Object) -> None:
        """The answer to a write of ours, which is handled as its event will not be any more."""
        revision, key = _number(obj["metadata"]["resourceVersion"]), key_of(obj)
        if revision > max(_number(self.revision), self._written.get(key, 0)):
            self._written[key] = revision
            self._put(key, obj)

    def age(self, key: str) -> int:
        """A number that is smaller for what was there earlier; 0 for what is not there."""
        return self._ages.get(key, 0)

    def items(self) -> Iterable[T]:
        return self._items.values()

    def keys(self) -> Iterable[str]:
        return self._items.keys()

    def by(self, index: str, value: str) -> list[T]:
        return list(self._indexed[index].get(value, {}).values())

    def add_index(self, name: str, index: Index[T]) -> None:
        """Before the informer runs; a second index of the same name must be the same."""
        self._indexes.setdefault(name, index)
        self._indexed.setdefault(name, defaultdict(dict))

    def on_change(self, handler: Handler[T]) -> None:
        """Called for every change, in order, with what was and what is; must not wait."""
        self._handlers.append(handler)

    async def synced(self) -> None:
        await self._synced.wait()

    # -- following

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            try:
                since = await self._relist()
                failures = 0
                while True:
                    last, since = since, await self._follow(since)
                    if since == last:  # it ended without a word; do not ask in a tight circle
                        await self._clock.sleep(PAUSE)
            except Expired as error:
                log.info("%s: %s; listing again", self.kind.resource, error)
            except OutfitterError as error:
                failures += 1
                wait = min(30.0, 0.1 * 2 ** min(failures, 9))
                log.warning("%s: %s; trying again in %.1f s", self.kind.resource, error, wait)
                await self._clock.sleep(wait)

    async def _relist(self) -> str:
        fresh: dict[str, Object] = {}
        continue_ = ""
        while True:
            part = await self._store.list(self.kind, self._namespace, labels=self._labels, fields=self._fields, limit=PAGE,
                                          continue_=continue_)
            fresh.update((key_of(obj), obj) for obj in part.items)
            continue_ = part.continue_
            if not continue_:
                break
        self._written = {key: number for key, number in self._written.items() if number > _number(part.revision)}
        for key in [key for key in self._items if key not in fresh and key not in self._written]:
            self._put(key, None)
        for key, obj in sorted(fresh.items(), key=_born):
            if self._versions.get(key) != obj["metadata"].get("resourceVersion") and key not in self._written:
                self._put(key, obj)
        self.revision = part.revision
        self._synced.set()
        return part.revision

    async def _follow(self, since: str) -> str:
        """Until the stream ends; the last revision seen."""
        stream = self._store.watch(self.kind, self._namespace, since=since, labels=self._labels, fields=self._fields,
                                   bookmarks=True)
        async for event in stream:
            since = self.revision = event.object["metadata"]["resourceVersion"]
            if event.type != "BOOKMARK":
                self._hear(key_of(event.object), _number(since), None if event.type == "DELETED" else event.object)
        return since

    def _hear(self, key: str, revision: int, obj: Object | None) -> None:
        """What happened to one of them, unless that is what we put, or older. A write that ends an object (it had waited for
        that) has an answer like any other, and the news says that it is gone."""
        written = self._written.get(key, 0)
        if revision >= written:
            self._written.pop(key, None)
        if revision > written or (revision == written and obj is None):
            self._put(key, obj)

    def _put(self, key: str, obj: Object | None) -> None:
        if obj is not None and self._uids.get(key, "") not in ("", obj["metadata"].get("uid")):
            self._put(key, None)  # one went and another of the same name came, and nobody told us of the first
        old = self._items.pop(key, None)
        new, places = self._read(key, obj)
        for name, values in self._places.pop(key, {}).items():
            table = self._indexed[name]
            for value in values:
                table[value].pop(key, None)
                if not table[value]:
                    del table[value]
        self._versions.pop(key, None)
        self._uids.pop(key, None)
        if obj is not None:
            self._versions[key] = obj["metadata"].get("resourceVersion", "")
            self._uids[key] = obj["metadata"].get("uid", "")
            if key not in self._ages:
                self._ages[key] = next(self._numbers)
        else:
            self._ages.pop(key, None)
        if new is not None:
            self._items[key], self._places[key] = new, places
            for name, values in places.items():
                for value in values:
                    self._indexed[name][value][key] = new
        if old is None and new is None:
            return
        for handler in self._handlers:
            try:
                handler(old, new)
            except Exception:
                log.exception("%s %s: a reader stumbled over it", self.kind.resource, key)

    def _read(self, key: str, obj: Object | None) -> tuple[T | None, dict[str, frozenset[str]]]:
        """The object as its readers see it, and where the indexes have it. One that cannot be read (a cluster may hold anything
        under our kinds) is as good as not there; it must not take the others with it."""
        if obj is None:
            return None, {}
        try:
            new = self._view(obj)
            return new, {name: frozenset(index(new)) for name, index in self._indexes.items()}
        except Exception:
            log.exception("%s %s cannot be read and is left out", self.kind.resource, key)
            return None, {}
