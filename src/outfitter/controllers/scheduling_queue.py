"""Pods that wait for a host: in which order they came, which events wake them, and which of them are scheduled together.

Workers of the controller call `run` with a key each; one of them gathers all keys into a batch, and the others get the outcome
of theirs. It knows nothing of devices and hosts. Called by the scheduler controller."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.controllers.scheduler_cache import takes_resources
from outfitter.errors import Conflict, NotFound, OutfitterError
from outfitter.scheduling.dra import extended_resources
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

log = logging.getLogger(__name__)
SCHEDULER = "default-scheduler"
WAKE_ALL = "*"  # a key that stands for all pods that wait
# What may make room for a pod when it changes.
WAKING = (kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS, kinds.RESOURCE_SLICE, kinds.LEDGER_PAGE, kinds.NODE,
          kinds.DEVICE_TAINT_RULE, kinds.PROVIDER_TREE, kinds.HOST_INVENTORY)


@dataclass(slots=True)
class SchedulingBatch:
    """Pods that are scheduled together, by key, and what became of them."""

    held: list[str] = field(default_factory=list)  # keys that workers wait for
    taken: list[str] = field(default_factory=list)  # keys that were taken from the queue besides
    errors: dict[str, Exception] = field(default_factory=dict)  # to be tried again, with back-off
    after: dict[str, float] = field(default_factory=dict)  # to be looked at again in so many seconds

    def look_again(self, pod: Object, seconds: float) -> None:
        """The earliest time counts."""
        self.after[key_of(pod)] = min(self.after.get(key_of(pod), seconds), seconds)


class SchedulingQueue:
    def __init__(self, context: ControllerContext, name: str) -> None:
        self.work, self._name = WorkQueue(context.clock), name
        self._running = asyncio.Lock()  # one batch at a time: two at once would only race each other for the same pages
        self._numbers = itertools.count()
        self._arrivals: dict[str, int] = {}  # uid of a pod that waits -> its number
        self._waiting: dict[str, None] = {}  # keys of pods that wait
        self._preassigned: dict[str, Object] = {}  # those of them that were pre-assigned devices
        self._inbox: list[str] = []  # keys whose workers wait for the batch that runs
        self._batches: dict[str, SchedulingBatch] = {}  # key of a worker -> the batch that it was in
        pods = context.informer(kinds.POD)
        pods.on_change(self._pod_changed)
        enqueue_on_change(pods, self.work, lambda pod: [key_of(pod)] if waits_for_host(pod) else [])
        for kind in WAKING:
            context.informer(kind).on_change(lambda old, new: self.wake_all())

    # -- order and wake-ups

    def ordered(self, pods: Iterable[Object]) -> list[Object]:
        """The first to come first."""
        return sorted(pods, key=lambda pod: (
            pod["metadata"]["creationTimestamp"], self._arrivals.get(pod["metadata"]["uid"], 0)))

    @property
    def preassigned(self) -> list[Object]:
        """Pods that wait for pre-assigned devices, in order."""
        return self.ordered(self._preassigned.values())

    def wake_all(self) -> None:
        """All pods that wait are looked at again, once however many events there were."""
        if self._waiting:
            self.work.add(WAKE_ALL)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        pod = new or old or {}
        uid, key = pod["metadata"]["uid"], key_of(pod)
        if new is not None and waits_for_host(new):
            self._arrivals.setdefault(uid, next(self._numbers))
            self._waiting[key] = None
            if any(extended_resources.presets(new)):
                self._preassigned[key] = new
        else:
            self._arrivals.pop(uid, None)
            self._waiting.pop(key, None)
            if self._preassigned.pop(key, None) is not None:  # what was kept for it is free for all
                self.wake_all()
        if old is not None and takes_resources(old) and (new is None or not takes_resources(new)):
            self.wake_all()  # there is more room on its host

    # -- batches

    async def run(self, key: str, schedule: Callable[[SchedulingBatch], Awaitable[None]]) -> float | None:
        """Schedules a key together with all that wait by now, or waits for the batch that took it. A number: look again in so
        many seconds."""
        self._inbox.append(key)
        async with self._running:
            if key in self._inbox:
                await self._run(schedule)
        if (batch := self._batches.pop(key, None)) is None:
            raise Conflict(f"scheduling batch was cancelled before {key} was processed; retrying")
        if error := batch.errors.get(key):
            raise error
        return batch.after.get(key)

    async def _run(self, schedule: Callable[[SchedulingBatch], Awaitable[None]]) -> None:
        batch = SchedulingBatch()
        try:
            await schedule(batch)
        except Exception as error:
            batch.errors, batch.after = dict.fromkeys((*batch.held, *batch.taken), error), {}
        self._batches |= dict.fromkeys(batch.held, batch)
        for key in batch.taken:
            self._finish(key, batch)
            self.work.done(key)

    def gather(self, batch: SchedulingBatch, ready: Collection[str]) -> list[str]:
        """Adds what came meanwhile to a batch, and gives the new keys. `ready`: pods that are about to be scheduled and need
        not be woken."""
        held, self._inbox = self._inbox, []
        taken = self.work.take_more(len(self.work))
        if WAKE_ALL in held or WAKE_ALL in taken:
            about = {*held, *taken, *ready}
            for key in self._waiting:
                if key not in about:
                    self.work.add(key)
            taken += self.work.take_more(len(self.work))
        batch.held += held
        batch.taken += taken
        return [key for key in (*held, *taken) if key != WAKE_ALL]

    def _finish(self, key: str, batch: SchedulingBatch) -> None:
        if error := batch.errors.get(key):
            level = logging.DEBUG if isinstance(error, (Conflict, NotFound)) else logging.WARNING
            log.log(level, "%s %s: %s", self._name, key, error, exc_info=None if isinstance(error, OutfitterError) else error)
            self.work.retry(key)
            return
        self.work.forget(key)
        if key in batch.after:
            self.work.add_after(key, batch.after[key])


def waits_for_host(pod: Object) -> bool:
    """The pod is ours to schedule, and has no host yet."""
    spec = pod["spec"]
    return bool(not spec.get("nodeName") and spec.get("schedulerName", SCHEDULER) == SCHEDULER
                and not spec.get("schedulingGates") and not pod["metadata"].get("deletionTimestamp")
                and (pod.get("status") or {}).get("phase", "Pending") == "Pending")
