"""Watch: changes as a stream of lines, from a position in the store's log.

A watcher holds its place and the piece that is being sent, so a slow one costs little memory: when the log has moved on
without it, it gets 410 and ends; one that does not read at all is disconnected (`http_connection`). Changes that happened
together travel in one piece, and under load a watcher waits a moment before it takes the next ones, so that they gather."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import msgspec

from outfitter.api.kinds import Object
from outfitter.apiserver import status, verbs
from outfitter.apiserver.render import Renderer
from outfitter.apiserver.request import Request
from outfitter.errors import Expired, OutfitterError
from outfitter.store.base import INITIAL_EVENTS_END, EventType
from outfitter.store.memory import Memory, revision_number
from outfitter.store.watch_cache import ObjectChange, Record, Watcher

encode = msgspec.json.encode
Send = Callable[[bytes], Awaitable[None]]

GATHER = 0.005  # seconds between two pieces under load
PIECE = 64 << 10  # bytes of events in one piece, about; a client that does not read holds so much of the log
BOOKMARK_EVERY = 60.0  # seconds
BEFORE_END = 2.0  # seconds before the end at which the last bookmark is sent
LONGEST = 3600.0  # seconds that a watch lives when the client does not say


class Watch:
    """One client's watch, from its request to its end."""

    def __init__(self, store: Memory, request: Request) -> None:
        self._store = store
        self._clock = store.clock
        self._renderer = Renderer(request, store.clock, streaming=True)
        self._target = request.target
        self._bookmarks = request.flag("allowWatchBookmarks")
        seconds = request.number("timeoutSeconds")
        self._deadline = self._clock.monotonic() + (seconds if seconds and seconds > 0 else LONGEST)
        self._next_bookmark = self._bookmark_time()
        self._selection = verbs.select(request)
        self._headed = False  # the Table's heads have been sent
        self._watcher: Watcher | None = None
        self._stopped = False
        self._initial, self._since, self._mark_initial = self._start(request)

    def _start(self, request: Request) -> tuple[bool, int | None, bool]:
        """Whether all objects come first, from which revision changes follow (None: the newest), and whether the end of the
        first objects is marked."""
        text, match = request.text("resourceVersion"), request.choice("ListOptions", "resourceVersionMatch", verbs.MATCHES)
        since = revision_number(text) if text else 0
        asked = request.text("sendInitialEvents")
        if asked and match != "NotOlderThan":
            raise status.BadOptions("ListOptions", "resourceVersionMatch", "Forbidden: sendInitialEvents requires setting "
                                    "resourceVersionMatch to NotOlderThan", "FieldValueForbidden")
        if match and not asked:
            raise status.BadOptions("ListOptions", "resourceVersionMatch", "Forbidden: resourceVersionMatch is forbidden for "
                                    "watch unless sendInitialEvents is provided", "FieldValueForbidden")
        if request.flag("sendInitialEvents"):
            verbs.check_reached(self._store, request)
            return True, None, self._bookmarks
        if asked:
            return False, since or None, False
        return not since, since or None, False

    def stop(self) -> None:
        """End it from outside: the server stops, or the client went away."""
        self._stopped = True
        if self._watcher is not None:
            self._watcher.end()

    async def run(self, send: Send) -> None:
        """Send until the client's time is up, the store closes, the client goes, or it cannot keep up."""
        bell = asyncio.create_task(self._ring())
        try:
            for piece in self._first():
                await send(piece)
            assert self._watcher is not None
            await self._follow(self._watcher, send)
        except OutfitterError as error:
            await send(_line("ERROR", status.failure(error)))
        finally:
            bell.cancel()
            if self._watcher is not None:
                self._watcher.close()

    def _first(self) -> Iterator[bytes]:
        """Take the place in the log, and give what comes before anything new."""
        records: Sequence[Record] = ()
        since = self._since
        if self._initial:
            records, since, _, _ = self._store.list_records(self._target.kind, self._selection)
        since = self._store.revision if since is None else since
        self._watcher = self._store.open_watch(self._target.kind, self._selection, since)
        if self._stopped:
            self._watcher.end()
        yield from _pieces(self._added(record) for record in records)
        if self._mark_initial:
            yield self._bookmark(since, {INITIAL_EVENTS_END: "true"})

    def _added(self, record: Record) -> bytes:
        if self._renderer.plain:
            return b'{"type":"ADDED","object":' + record.data + b"}\n"
        return self._shown("ADDED", record.object())

    async def _follow(self, watcher: Watcher, send: Send) -> None:
        loop = asyncio.get_running_loop()
        sent = loop.time() - GATHER
        while True:
            if not watcher.cut and (early := GATHER - (loop.time() - sent)) > 0:
                await asyncio.sleep(early)
            if watcher.ended or self._clock.monotonic() >= self._deadline:
                return
            if self._behind(watcher) or not self._due():
                lines = [self._event(type_, step) for type_, step in await watcher.next(PIECE)]
                if watcher.lost:
                    raise Expired("too old resource version: the watcher fell behind and its place is gone; list again")
                piece = b"".join(lines)
                del lines
                if piece:
                    await send(piece)
                    sent = loop.time()
            if self._due() and not self._behind(watcher) and not watcher.ended:
                self._next_bookmark = self._bookmark_time()
                await send(self._bookmark(self._store.revision))

    def _behind(self, watcher: Watcher) -> bool:
        """Something happened that has not been taken from the log."""
        return watcher.lost or watcher.revision < watcher.cache.revision

    def _due(self) -> bool:
        return self._bookmarks and self._clock.monotonic() >= self._next_bookmark

    def _bookmark_time(self) -> float:
        now, last = self._clock.monotonic(), self._deadline - BEFORE_END
        return min(now + BOOKMARK_EVERY, last) if now < last else math.inf

    def _event(self, type_: EventType, step: ObjectChange) -> bytes:
        line = step.line(type_)
        if self._renderer.plain:
            return line
        return self._shown(type_, msgspec.json.decode(line)["object"])

    def _shown(self, type_: str, stored: Object) -> bytes:
        shown = self._renderer.shown(stored, columns=not self._headed)
        self._headed = True
        return _line(type_, shown)

    def _bookmark(self, revision: int, annotations: Object | None = None) -> bytes:
        kind = self._target.kind
        meta: Object = {"resourceVersion": str(revision)}
        if annotations:
            meta["annotations"] = annotations
        obj: Object = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}
        return _line("BOOKMARK", obj) if self._renderer.plain else self._shown("BOOKMARK", obj)

    async def _ring(self) -> None:
        """Wake the watch when a bookmark or its end is due."""
        while True:
            now = self._clock.monotonic()
            due = min(self._deadline, self._next_bookmark) if self._bookmarks else self._deadline
            await self._clock.sleep(due - now if due > now else 1.0)
            if self._watcher is not None:
                self._watcher.wake()


def _line(type_: str, obj: Object) -> bytes:
    return b'{"type":"' + type_.encode() + b'","object":' + encode(obj) + b"}\n"


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines gathered into pieces of about a good size; a large line is a piece of its own, as it is shared by all watchers."""
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        if waiting and size + len(line) > PIECE:
            yield b"".join(waiting)
            waiting, size = [], 0
        waiting.append(line)
        size += len(line)
    if waiting:
        yield b"".join(waiting)
