"""A cache of one kind's objects with indexes and change handlers: list once, then watch. A watch that ends or breaks goes on
where it stopped; only one that expired begins with a list again, which is streamed where the server can.

One informer serves all readers of that kind in the process. Cached objects are read-only; informers of one process may share
them. A controller that wants a change patches the store and may `put` the answer into the informer, so that no reader in this
process acts on the old state before the watch event arrives. A `put` is handled like an event: `get`, lists, indexes and
handlers see the same object.

An object that cannot be read (`api.validate.readable`) is in `unreadable` and in no list or index, and handlers see it go.
`get` raises Unreadable for it: it exists, and a reader must not take it for deleted. Who concludes something from an object
that is missing in a list has to look at `unreadable` too."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from outfitter.api.kinds import Kind, Object
from outfitter.api.validate import readable
from outfitter.api.validate.readable import UnreadableObject
from outfitter.errors import Cause, Expired, OutfitterError, Unavailable
from outfitter.store import unchanged_parts
from outfitter.store.base import INITIAL_EVENTS_END, Event, Store, StreamingStore
from outfitter.store.clock import Clock

T = TypeVar("T")
log = logging.getLogger(__name__)
Index = Callable[[T], Iterable[str]]
Handler = Callable[[T | None, T | None], None]  # the old and the new object; None when it did not or does not exist
PAGE = 500  # objects per list request
REWATCH_DELAY = 1.0  # seconds
FIRST_DELAY, LONGEST_DELAY = 0.2, 30.0  # seconds after a failure, doubled each time
RELIST_AFTER = 10  # failures in a row without an event, after which a watch is not tried again without a list


def key_of(obj: Object) -> str:
    """ "namespace/name", or "name" for an object without a namespace."""
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def split_key(key: str) -> tuple[str, str]:
    """Namespace and name."""
    namespace, _, name = key.rpartition("/")
    return namespace, name


def _number(revision: str) -> int:
    """A resourceVersion as a number, comparable within a kind; 0 for none."""
    return int(revision or 0)


def _delay(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(LONGEST_DELAY, FIRST_DELAY * float(2 ** min(failures - 1, 9))) if failures else 0.0


@dataclass(frozen=True, slots=True)
class ObjectSelector:
    """The part of a kind that a process reads: the server sends nothing else. An object that leaves it is seen to go."""

    labels: str = ""
    fields: str = ""


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
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`jitter`: a number from 0 to 1, by which delays are longer: of many processes whose watches broke together not all
        come back together."""
        self.kind = kind
        self._store, self._clock, self._jitter = store, clock, jitter
        self._namespace, self._labels, self._fields = namespace, labels, fields
        self._view = view or (lambda obj: cast(T, obj))
        self._plain = view is None
        self._items: dict[str, T] = {}
        self._versions: dict[str, str] = {}
        self._uids: dict[str, str] = {}
        self._written: dict[str, int] = {}  # key -> revision of our own write whose event has not arrived
        self._ages: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._indexes = dict(indexes or {})
        self._indexed: dict[str, dict[str, dict[str, T]]] = {name: defaultdict(dict) for name in self._indexes}
        self._index_values: dict[str, dict[str, frozenset[str]]] = {}  # key -> index -> the values that it is indexed under
        self._handlers: list[Handler[T]] = []
        self.unreadable: dict[str, UnreadableObject] = {}
        self._unreadable_handlers: list[Callable[[str], None]] = []
        self._synced = asyncio.Event()
        self._stream_broke = False  # the last list, which was streamed
        self.revision = ""  # every change up to here has been handled

    # -- reading

    def get(self, key: str) -> T | None:
        """None: there is none. Unreadable: there is one that cannot be read."""
        found = self._items.get(key)
        if found is None and key in self.unreadable:
            raise self.unreadable[key].error()
        return found

    def has_read(self, obj: Object) -> bool:
        """Whether this version of an object is here and can be read."""
        meta = obj["metadata"]
        key = key_of(obj)
        return key in self._items and self._uids[key] == meta.get("uid") and self._versions[key] == meta.get("resourceVersion")

    def readable(self, key: str) -> T | None:
        """The same, for who does nothing about an object that cannot be read: None for that one too."""
        return self._items.get(key)

    def put(self, obj: Object) -> None:
        """Apply the answer to a write of this process now; its watch event is then skipped."""
        revision, key = _number(obj["metadata"]["resourceVersion"]), key_of(obj)
        if revision > max(_number(self.revision), self._written.get(key, 0)):
            self._written[key] = revision
            self._put(key, obj)

    def age(self, key: str) -> int:
        """Order of first appearance: a smaller number for an earlier object; 0 for an unknown key."""
        return self._ages.get(key, 0)

    def items(self) -> Iterable[T]:
        return self._items.values()

    def keys(self) -> Iterable[str]:
        return self._items.keys()

    def by(self, index: str, value: str) -> list[T]:
        found = self._indexed[index].get(value)
        return list(found.values()) if found else []

    def add_index(self, name: str, index: Index[T]) -> None:
        """Must be called before the informer runs. A second index of the same name must compute the same values."""
        self._indexes.setdefault(name, index)
        self._indexed.setdefault(name, defaultdict(dict))

    def on_change(self, handler: Handler[T]) -> None:
        """`handler` is called for every change, in order, with the old and the new object. It must not block."""
        self._handlers.append(handler)

    def on_unreadable(self, handler: Callable[[str], None]) -> None:
        """`handler` is called with the key of every object that is or was in `unreadable`, when it changes."""
        self._unreadable_handlers.append(handler)

    async def synced(self) -> None:
        await self._synced.wait()

    # -- watching

    async def run(self) -> None:
        """List and watch until cancelled."""
        since, failures = "", 0  # since: where the watch goes on; "": with a list
        while True:
            before, stream = since, None
            try:
                if not since:
                    stream = await self._list()
                    since = self.revision
                before = since
                await self._follow(stream or self._changes(since))
                failures, wait = 0, 0.0 if self.revision != before else REWATCH_DELAY
                since = self.revision
            except Expired as error:
                log.info("%s: %s; listing again", self.kind.resource, error)
                failures = failures + 1 if self.revision == before else 1
                since, wait = "", _delay(failures - 1)
            except OutfitterError as error:
                failures = failures + 1 if self.revision == before else 1
                since = self.revision if since and isinstance(error, Unavailable) and failures < RELIST_AFTER else ""
                wait = _delay(failures)  # for as long as the server itself asks to, its client waits
                log.warning("%s: %s; trying again in %.1f s", self.kind.resource, error, wait)
            if wait:
                await self._clock.sleep(wait * (1 + self._jitter()))

    async def _list(self) -> AsyncIterator[Event] | None:
        """Read all objects. A stream that goes on with the changes after them, or None: watch from their revision."""
        stream, self._stream_broke = None if self._stream_broke else await self._open_stream(), False
        if stream is None:
            await self._list_pages()
            return None
        fresh: dict[str, Object] = {}
        self._stream_broke = True  # unless it comes to the end: then the next list is one of pages
        async for event in stream:
            if event.type == "BOOKMARK":
                if (event.object["metadata"].get("annotations") or {}).get(INITIAL_EVENTS_END) == "true":
                    self._reset(fresh, event.object["metadata"]["resourceVersion"])
                    self._stream_broke = False
                    return stream
            elif event.type == "DELETED":
                fresh.pop(key_of(event.object), None)
            else:
                fresh[key_of(event.object)] = event.object
        raise Unavailable(f"the stream of {self.kind.plural} ended before all had been sent")

    async def _open_stream(self) -> AsyncIterator[Event] | None:
        if not isinstance(self._store, StreamingStore):
            return None
        return await self._store.stream_list(self.kind, self._namespace, labels=self._labels, fields=self._fields)

    async def _list_pages(self) -> None:
        fresh: dict[str, Object] = {}
        continue_ = ""
        while True:
            part = await self._store.list(self.kind, self._namespace, labels=self._labels, fields=self._fields, limit=PAGE,
                                          continue_=continue_)
            fresh.update((key_of(obj), obj) for obj in part.items)
            continue_ = part.continue_
            if not continue_:
                break
        self._reset(fresh, part.revision)

    def _reset(self, fresh: Mapping[str, Object], revision: str) -> None:
        """All objects there are at a revision; handlers see what changed."""
        self._written = {key: number for key, number in self._written.items() if number > _number(revision)}
        for key in [key for key in self._items if key not in fresh and key not in self._written]:
            self._put(key, None)
        for key, obj in sorted(fresh.items(), key=self._creation_order):
            if self._versions.get(key) != obj["metadata"].get("resourceVersion") and key not in self._written:
                self._put(key, obj)
        self.revision = revision
        self._synced.set()

    def _creation_order(self, entry: tuple[str, Object]) -> tuple[str, int, str]:
        """Of objects of one second in the first list those whose last write is earlier come first: where none was written
        since, that is the order of creation."""
        key, obj = entry
        revision = _number(obj["metadata"].get("resourceVersion") or "") if not self._synced.is_set() else 0
        return str(obj["metadata"].get("creationTimestamp") or ""), revision, key

    def _changes(self, since: str) -> AsyncIterator[Event]:
        return self._store.watch(self.kind, self._namespace, since=since, labels=self._labels, fields=self._fields,
                                 bookmarks=True)

    async def _follow(self, stream: AsyncIterator[Event]) -> None:
        """Handle events until the stream ends."""
        async for event in stream:
            self.revision = revision = event.object["metadata"]["resourceVersion"]
            if event.type != "BOOKMARK":
                self._apply_event(key_of(event.object), _number(revision), None if event.type == "DELETED" else event.object)

    def _apply_event(self, key: str, revision: int, obj: Object | None) -> None:
        """Apply a watch event unless `put` has applied the same or a newer revision. A write that removes the last finalizer is
        answered with the object, while its event is DELETED at the same revision: that one is applied."""
        written = self._written.get(key, 0)
        if revision >= written:
            self._written.pop(key, None)
        if revision > written or (revision == written and obj is None):
            self._put(key, obj)

    def _put(self, key: str, obj: Object | None) -> None:
        if obj is not None and self._uids.get(key, "") not in ("", obj["metadata"].get("uid")):
            self._put(key, None)  # deleted and recreated under the same name, and the DELETED event was missed
        old, was_unreadable = self._items.pop(key, None), self.unreadable.pop(key, None)
        new, index_values = self._parse(key, obj, old)
        if old is None and new is None and obj is None and was_unreadable is not None:
            old = self._last_readable_part(was_unreadable)  # handlers did not see it, or saw it go; now it is gone
        self._drop_from_indexes(key, index_values)
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
            self._items[key], self._index_values[key] = new, index_values
            for name, values in index_values.items():
                for value in values:
                    self._indexed[name][value][key] = new
        for unreadable_handler in self._unreadable_handlers if was_unreadable is not None or key in self.unreadable else ():
            unreadable_handler(key)
        if old is None and new is None:
            return
        for handler in self._handlers:
            try:
                handler(old, new)
            except Exception:
                log.exception("%s %s: a change handler failed", self.kind.resource, key)

    def _drop_from_indexes(self, key: str, wanted: Mapping[str, frozenset[str]]) -> None:
        """Where an object was and will not be."""
        for name, values in self._index_values.pop(key, {}).items():
            table = self._indexed[name]
            for value in values - wanted[name] if name in wanted else values:
                table[value].pop(key, None)
                if not table[value]:
                    del table[value]

    def _parse(self, key: str, obj: Object | None, old: T | None) -> tuple[T | None, dict[str, frozenset[str]]]:
        """The object as `view` shows it, and its values per index. An object that cannot be parsed (a cluster may hold anything
        under our kinds) is skipped, so that it does not affect the others."""
        if obj is None:
            return None, {}
        known = cast("Object | None", old) if self._plain else None
        if known is not None:
            obj = unchanged_parts.shared(obj, known)
        wrong = readable.problem(self.kind, obj, known)
        if wrong is None:
            try:
                new = self._view(obj)
                return new, {name: frozenset(index(new)) for name, index in self._indexes.items()}
            except Exception as error:
                log.debug("%s %s cannot be parsed", self.kind.resource, key, exc_info=True)
                wrong = Cause("", f"Invalid value: {error!r}")
        self.unreadable[key] = UnreadableObject(self.kind, key, obj, wrong)
        return None, {}

    def _last_readable_part(self, gone: UnreadableObject) -> T | None:
        try:
            part = readable.readable_part(self.kind, gone.object)
            return self._view(part) if part is not None else None
        except Exception:
            log.debug("%s %s cannot be parsed", self.kind.resource, gone.key, exc_info=True)
            return None
