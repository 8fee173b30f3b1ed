"""What every controller is built on: shared informers, a queue of keys, and a reconcile that is called until it succeeds."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.errors import Conflict, NotFound, OutfitterError, Terminating, Unavailable, Unreadable
from outfitter.store import revision_patch
from outfitter.store.base import Replace, Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.events.event_recorder import EventRecorder
from outfitter.store.id_generator import IdGenerator
from outfitter.store.informer import Informer, ObjectSelector, key_of
from outfitter.store.readable_store import ReadableStore
from outfitter.store.workqueue import WorkQueue

log = logging.getLogger(__name__)
FAULT = "ReconcileFailed"  # the reason of the event about an object that a controller fails on
IN_A_ROW = 4  # keys that a worker looks at before others get their turn
LONGEST_WAIT = 60.0  # seconds until a key is tried again, for however long a server asks to be left alone
WRITING = 0.001  # seconds between two looks at whether the disk is done


class ControllerContext:
    """What the controllers of one process share."""

    def __init__(
        self, store: Store, *, clock: Clock, names: IdGenerator | None = None, component: str = "outfitter",
        selectors: Mapping[Kind, ObjectSelector] | None = None,
    ) -> None:
        """`selectors`: the part of a kind that this process reads; of other kinds it reads all objects."""
        self.store: Store = ReadableStore(store, known=self._known_readable)  # the informers report what it leaves out
        self.raw_store = store  # for what reads and writes nothing but metadata
        self.clock = clock
        self.names = names or IdGenerator()
        self.events = EventRecorder(store, kinds.EVENT, component, clock=clock, names=self.names)
        self.informers: dict[Kind, Informer[Object]] = {}
        self._selectors = selectors or {}
        self.rejections: Counter[tuple[str]] = Counter()  # code -> how often the scheduler reported it for a pod

    def informer(self, kind: Kind, view: Callable[[Object], Object] | None = None) -> Informer[Object]:
        """The one informer of a kind; asking for it before the start is what makes it run. `view`: what it keeps of each
        object, for a kind that only one controller reads."""
        if kind not in self.informers:
            part = self._selectors.get(kind, ObjectSelector())
            self.informers[kind] = Informer(self.raw_store, kind, clock=self.clock, view=view, labels=part.labels,
                                            fields=part.fields)
        return self.informers[kind]

    def _known_readable(self, kind: Kind, obj: Object) -> bool:
        informer = self.informers.get(kind)
        return informer is not None and informer.has_read(obj)

    def now(self) -> str:
        return rfc3339(self.clock.now())

    async def create(self, kind: Kind, obj: Object) -> Object:
        """The created object; the informer has it at once."""
        return self._known(kind, await self.store.create(kind, obj))

    async def patch_status(self, kind: Kind, obj: Object, status: Mapping[str, Any]) -> Object:
        """Merges into the object's status at the revision that was read; the informer has the answer at once."""
        return self._known(kind, await revision_patch.patch_status(self.store, kind, obj, status))

    async def patch_metadata(self, kind: Kind, obj: Object, metadata: Mapping[str, Any]) -> Object:
        """The same for the object's metadata."""
        return self._known(kind, await revision_patch.patch_at_revision(self.store, kind, obj, {"metadata": metadata}))

    async def patch(self, kind: Kind, obj: Object, change: Mapping[str, Any]) -> Object:
        """The same for the object itself."""
        return self._known(kind, await revision_patch.patch_at_revision(self.store, kind, obj, change))

    async def finish(self, kind: Kind, obj: Object, status: Mapping[str, Any], finalizer: str) -> None:
        """The last fields of its status, by name, and its finalizer removed: in one commit with an atomic store, otherwise the
        status first, and the caller removes the finalizer."""
        meta = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
        meta["finalizers"] = [name for name in meta.get("finalizers") or () if name != finalizer]
        if not self.store.atomic:
            await self.patch_status(kind, obj, status)
            return
        ended = {**obj, "status": {**(obj.get("status") or {}), **status}}
        *_, fresh = await self.store.commit([Replace(kind, ended, "status"), Replace(kind, {**ended, "metadata": meta})])
        if fresh is not None and not meta.get("deletionTimestamp"):
            self._known(kind, fresh)

    def _known(self, kind: Kind, fresh: Object) -> Object:
        if kind in self.informers:
            self.informers[kind].put(fresh)
        return fresh


class Controller(Protocol):
    name: str
    queue: WorkQueue

    async def reconcile(self, key: str) -> float | None:
        """Bring one object from what is wanted to what is; a number asks to be called again after so many seconds."""
        ...


def enqueue_on_change(
    informer: Informer[Object], queue: WorkQueue, keys: Callable[[Object], Sequence[str]] | None = None,
    reads: Callable[[Object], object] | None = None,
) -> None:
    """Every change of an object puts its key, or the keys it maps to, into the queue. `reads`: the part of an object that the
    controller reads; a change of nothing in it is skipped."""
    keys = keys or (lambda obj: [key_of(obj)])

    def changed(old: Object | None, new: Object | None) -> None:
        if reads is not None and old is not None and new is not None and reads(old) == reads(new):
            return
        before, after = keys(old) if old else (), keys(new) if new else ()
        for key in after if not before or before == after else dict.fromkeys([*before, *after]):
            queue.add(key)

    informer.on_change(changed)


class ControllerManager:
    """Runs informers and controllers until cancelled."""

    def __init__(self, context: ControllerContext, controllers: Sequence[Controller], *, workers: int = 4) -> None:
        self.controllers = controllers
        self._context, self._workers = context, workers
        self._tasks: list[asyncio.Task[None]] = []
        self.errors: Counter[tuple[str, str]] = Counter()  # (controller, reason) -> how often it could not do what it tried

    async def start(self, before: Callable[[], Awaitable[None]] | None = None) -> None:
        """Returns when every informer has its first list and the controllers run; `before` runs between the two."""
        for informer in self._context.informers.values():
            self._spawn(informer.run(), f"informer {informer.kind.plural}")
        for informer in self._context.informers.values():
            await informer.synced()
        if before is not None:
            await before()
        for controller in self.controllers:
            for number in range(self._workers):
                self._spawn(self._work(controller), f"{controller.name} {number}")

    def _spawn(self, work: Awaitable[None], name: str) -> None:
        self._tasks.append(asyncio.ensure_future(work))
        self._tasks[-1].set_name(name)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for controller in self.controllers:
            controller.queue.close()
        self._tasks.clear()

    @property
    def idle(self) -> bool:
        return all(controller.queue.idle for controller in self.controllers)

    async def _work(self, controller: Controller) -> None:
        queue = controller.queue
        for turn in itertools.count(1):
            key = await queue.take()
            try:
                again = await controller.reconcile(key)
            except (
                Conflict,
                NotFound,
                Terminating,
            ) as error:  # another writer was first; the watch update of that brings the key back
                log.debug("%s %s: %s", controller.name, key, error)
                self.errors[controller.name, "conflict"] += 1
                queue.retry(key)
            except Unreadable as error:  # reported by `unreadable_objects`; the watch update of its repair brings the key back
                log.debug("%s %s: %s", controller.name, key, error)
                self.errors[controller.name, "unreadable"] += 1
                queue.retry(key)
            except Unavailable as error:
                log.warning("%s %s: %s", controller.name, key, error)
                self.errors[controller.name, "unavailable"] += 1
                queue.add_after(key, max(min(error.retry_after, LONGEST_WAIT), queue.retry(key)))
            except OutfitterError as error:
                log.warning("%s %s: %s", controller.name, key, error)
                self.errors[controller.name, "refused"] += 1
                queue.retry(key)
            except Exception as error:
                log.exception("%s %s: this is a fault of outfitter; trying again", controller.name, key)
                self.errors[controller.name, "fault"] += 1
                await self._report_fault(controller, key, error)
                queue.retry(key)
            else:
                queue.forget(key)
                if again is not None:
                    queue.add_after(key, again)
            finally:
                queue.done(key)
            if turn % IN_A_ROW == 0:  # a store in memory never suspends: the others would get no turn before all is done
                await asyncio.sleep(0)


    async def _report_fault(self, controller: Controller, key: str, error: Exception) -> None:
        """On the object, where the keys of the controller are those of a kind."""
        kind: Kind | None = getattr(controller, "kind", None)
        informer = self._context.informers.get(kind) if kind is not None else None
        obj = informer.readable(key) if informer is not None else None
        if obj is not None and kind is not None:
            about = {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
            await self._context.events.warning(about, FAULT, f"{controller.name} failed and tries again: {error!r}; this is a "
                                               "fault of outfitter, and its log has the details")


async def settle(
    store_revision: Callable[[Kind], int], context: ControllerContext, runners: Sequence[ControllerManager], *,
    busy: Callable[[], bool] = lambda: False, most: int = 100_000,
) -> None:
    """For embedded backends: until there is nothing to do. The backend is not `busy`, every informer
    has seen all there is, and every queue is empty, several times in a row. What waits for the clock does not count. They get
    `most` turns for it, and a disk that is written to as long as it takes."""
    quiet = turns = 0
    while turns < most:
        writing = busy()
        await asyncio.sleep(WRITING if writing else 0)
        turns += not writing
        seen = all(int(informer.revision or 0) >= store_revision(kind) for kind, informer in context.informers.items())
        quiet = quiet + 1 if seen and not busy() and all(runner.idle for runner in runners) else 0
        if quiet >= 5:
            return
    raise TimeoutError("the controllers do not come to rest")
