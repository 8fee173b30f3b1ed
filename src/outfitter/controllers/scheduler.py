"""A host and devices for every pod that waits, in embedded mode (a cluster has kube-scheduler).

Pods that wait together are scheduled together, the first to come first: each is placed on a snapshot of what the cache knows
and what those before it got, and all is written in one commit (pages, claims, pods). When the commit conflicts each is tried
again by itself. What cannot be placed gets its reason and is woken by events, not by a timer.

    scheduler_cache.py   informer events -> snapshot        scheduling_queue.py   order, wake-ups, batches
    bind_transaction.py  what is written for a placement, commit and release"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import migration, pod_claims
from outfitter.api.rejection import Rejection, RejectionCode, of_error
from outfitter.controllers.bind_transaction import Binder, BindTransaction, PlacedPod, not_ready
from outfitter.controllers.manager import ControllerContext
from outfitter.controllers.scheduler_cache import SchedulerCache, takes_resources
from outfitter.controllers.scheduling_queue import SchedulingBatch, SchedulingQueue, waits_for_host
from outfitter.errors import AlreadyHeld, Conflict, NotFound, OutfitterError, OutOfService, TooLarge, Unavailable, Unreadable
from outfitter.scheduling import pod_group
from outfitter.scheduling.dra import binding_conditions
from outfitter.scheduling.explain import summary
from outfitter.scheduling.filter.node_usage import nominated
from outfitter.scheduling.placement import Placement, Waiting
from outfitter.scheduling.pod_group import PodGroup
from outfitter.scheduling.scheduler import driven_out, place
from outfitter.store.informer import key_of

log = logging.getLogger(__name__)
BATCH = 64  # pods in one commit
TURN = 0.1  # seconds of placing pods before others may use the event loop
GATHERS = 4  # times that a batch takes in what came meanwhile before it is committed
REPORT_INTERVAL = 5.0  # seconds between two messages of one reason on one pod
SEARCH_INTERVAL = 1.0  # seconds until a search that took too long goes on with the next hosts
CLAIMS_FOLLOW = timedelta(seconds=2)  # after its creation, in which the claims of a migration's target pod are created
EXCLUDED = 60.0  # seconds for which a host is excluded whose devices could not be made ready for a pod


class Scheduler:
    name = "scheduler"
    kind = kinds.POD  # of its keys

    def __init__(self, context: ControllerContext, cache: SchedulerCache) -> None:
        self._context, self._store, self.cache = context, context.store, cache
        self._pods = context.informer(kinds.POD)
        self._pods.add_index("group", pod_group.keys)
        self._templates = context.informer(kinds.RESOURCE_CLAIM_TEMPLATE)
        self._binder = Binder(context, cache)
        self.scheduling_queue = SchedulingQueue(context, self.name)
        self.queue = self.scheduling_queue.work
        self._reported: dict[str, float] = {}  # uid of a pod that waits -> when its reason was last written
        self._pods.on_change(self._forget)

    async def reconcile(self, key: str) -> float | None:
        return await self.scheduling_queue.run(key, self._schedule)

    def _forget(self, old: Object | None, new: Object | None) -> None:
        if new is None or not waits_for_host(new):
            uid = (new or old or {})["metadata"]["uid"]
            self._reported.pop(uid, None)
            self.cache.resume.pop(uid, None)

    # -- one batch

    async def _schedule(self, batch: SchedulingBatch) -> None:
        """All that waits by now, the first to come first. What comes meanwhile joins: a device that became free goes to the pod
        that has waited for it longest, whichever of them there was an event of."""
        ready: dict[str, None] = {}
        while True:
            for _ in range(GATHERS):
                keys = self.scheduling_queue.gather(batch, ready)
                if not keys:
                    break
                ready |= await self._ready(keys, batch)
            first = self.scheduling_queue.ordered(self._waiting(ready))[:BATCH]
            if not first:
                return
            groups: set[str] = set()
            for group, some in itertools.groupby(first, pod_group.of):
                if group is None:
                    await self._place_pods(list(some), batch)
                elif group.key not in groups:
                    groups.add(group.key)
                    try:
                        await self._place_group(group, batch)
                    except Exception as error:  # the other pods of the batch go on
                        batch.errors |= dict.fromkeys(map(key_of, self._pods.by("group", group.key)), error)
            for pod in first:
                ready.pop(key_of(pod), None)

    def _waiting(self, keys: Collection[str]) -> list[Object]:
        return [pod for pod in map(self.cache.pod, keys) if pod is not None and waits_for_host(pod)]

    async def _ready(self, keys: Sequence[str], batch: SchedulingBatch) -> dict[str, None]:
        """Those of them that may be given a host now."""
        ready: dict[str, None] = {}
        for pod in self.scheduling_queue.ordered(self._waiting(keys)):
            try:
                if not await self._claims_arrive(pod) and not self._claims_follow(pod, batch) and (
                        await self._devices_ready(pod, batch)):
                    ready[key_of(pod)] = None
            except Unreadable as error:
                await self._reject(pod, Waiting((of_error(error, RejectionCode.OBJECT_UNREADABLE),)), batch)
            except Exception as error:
                batch.errors[key_of(pod)] = error
        return ready

    async def _place_pods(self, pods: Sequence[Object], batch: SchedulingBatch) -> None:
        while pods:
            again, pods = await self._together(pods, batch)
            for pod, lost in again:
                try:
                    await self._alone(pod, batch, lost)
                except Exception as error:
                    batch.errors[key_of(pod)] = error
            if pods:
                await asyncio.sleep(0)  # a commit without writes does not wait

    async def _place_group(self, group: PodGroup, batch: SchedulingBatch) -> None:
        """Every member that waits, in one commit; none of them if too few would have a host then."""
        members = [pod for pod in self._pods.by("group", group.key) if not pod["metadata"].get("deletionTimestamp")]
        bound = sum(map(takes_resources, members))
        ready = self.scheduling_queue.ordered(self._waiting(await self._ready([key_of(pod) for pod in members], batch)))
        transaction, placed, waiting = await self._choose_group(ready)
        if bound + len(placed) < group.min_available:
            await self._binder.abort(transaction, placed)
            rejected = [verdict for _, verdict in waiting]
            verdict = pod_group.too_few_hosts(group, bound + len(placed), rejected, bound + len(ready))
            waiting = [(pod, verdict) for pod in ready]
        elif not await self._binder.commit(transaction, placed):
            batch.errors |= {key_of(pod): Conflict(f"{key_of(pod)}: another writer was faster; retrying") for pod in ready}
            return
        for pod, verdict in waiting:
            try:
                await self._reject(pod, verdict, batch)
            except OutfitterError as error:
                batch.errors[key_of(pod)] = error

    async def _choose_group(
        self, pods: Sequence[Object]
    ) -> tuple[BindTransaction, list[PlacedPod], list[tuple[Object, Waiting]]]:
        """What is placed for these pods in one transaction, and who is not; again while a page rejects it, as in `_alone`."""
        avoid: dict[str, Rejection] = {}
        lost: set[str] = set()
        while True:
            transaction, placed, waiting = self._begin(), list[PlacedPod](), list[tuple[Object, Waiting]]()
            for pod in pods:
                verdict = self._place(pod, transaction, avoid)
                if isinstance(verdict, Waiting):
                    waiting.append((pod, verdict))
                    continue
                try:
                    placed.append(self._binder.add(transaction, pod, verdict))
                except (AlreadyHeld, OutOfService, TooLarge) as error:
                    await self._binder.abort(transaction, placed)
                    await self._binder.reread(verdict)
                    if verdict.host in lost:
                        avoid[verdict.host] = _of_page(error)
                    lost.add(verdict.host)
                    break
            else:
                return transaction, placed, waiting

    async def _together(
        self, pods: Sequence[Object], batch: SchedulingBatch
    ) -> tuple[list[tuple[Object, dict[str, Rejection]]], Sequence[Object]]:
        """One commit for all that are placed in time; those that have to be tried again, each by itself, with the hosts that
        rejected them; and those that are left."""
        transaction, begun = self._begin(), self._context.clock.monotonic()
        waiting: list[tuple[Object, Waiting]] = []
        placed: list[PlacedPod] = []
        again: list[tuple[Object, dict[str, Rejection]]] = []
        tried = 0
        for pod in pods:
            if tried and self._context.clock.monotonic() - begun > TURN:
                break
            tried += 1
            try:
                verdict = self._place(pod, transaction)
                if isinstance(verdict, Waiting):
                    waiting.append((pod, verdict))
                    continue
                try:
                    placed.append(self._binder.add(transaction, pod, verdict))
                except (AlreadyHeld, OutOfService, TooLarge) as error:
                    again.append((pod, {verdict.host: _of_page(error)}))
            except Exception as error:  # a fault that one pod brings to light does not stop the others
                batch.errors[key_of(pod)] = error
        try:
            committed = await self._binder.commit(transaction, placed)
        except Unavailable:
            raise
        except Exception as error:  # a fault that one of them brings to light: each is tried by itself
            log.warning("%d pods: %s", len(placed), error)
            committed = False
        if not committed:
            lost = {key_of(pod): hosts for pod, hosts in again}
            tried_again = [(pod, lost.get(key_of(pod), {})) for pod in pods[:tried] if key_of(pod) not in batch.errors]
            return tried_again, pods[tried:]
        for pod, verdict in waiting:
            try:
                await self._reject(pod, verdict, batch)
            except OutfitterError as error:
                batch.errors[key_of(pod)] = error
        return again, pods[tried:]

    async def _alone(self, pod: Object, batch: SchedulingBatch, lost: dict[str, Rejection]) -> None:
        """Place and book one pod as the store has it, again for as long as a page rejects it. A host that was chosen twice in
        vain is avoided: what its page rejects is not in what it publishes."""
        pod = await self._store.get(kinds.POD, pod["metadata"]["name"], pod["metadata"]["namespace"])
        if await self._claims_arrive(pod):  # another scheduler made one for it
            return
        avoid: dict[str, Rejection] = {}
        while waits_for_host(pod):
            transaction = self._begin()
            verdict = self._place(pod, transaction, avoid)
            if isinstance(verdict, Waiting):
                await self._reject(pod, verdict, batch)
                return
            try:
                placed = self._binder.add(transaction, pod, verdict)
            except (AlreadyHeld, OutOfService, TooLarge) as error:
                await self._binder.reread(verdict)
                if verdict.host in lost:
                    avoid[verdict.host] = _of_page(error)
                lost[verdict.host] = _of_page(error)
                continue
            try:
                if await self._binder.commit(transaction, [placed]):
                    return
            except Unavailable:
                raise
            except Exception as error:  # what is stored of this host cannot be written; another host may do
                log.warning("%s cannot be bound to %s: %s", key_of(pod), verdict.host, error,
                            exc_info=None if isinstance(error, OutfitterError) else error)
                avoid[verdict.host] = Rejection.of(RejectionCode.PAGE_CONFLICT, message=str(error))
                continue
            raise Conflict(f"{key_of(pod)}: another writer was faster; retrying")

    def _begin(self) -> BindTransaction:
        self.cache.keep(self.scheduling_queue.preassigned)
        return self._binder.begin()

    def _place(
        self, pod: Object, transaction: BindTransaction, avoid: dict[str, Rejection] | None = None
    ) -> Placement | Waiting:
        return place(self.cache.snapshot(transaction.claim), pod, avoid=avoid or {})

    # -- what a pod waits for

    async def _claims_arrive(self, pod: Object) -> bool:
        """A claim is about to be made from its template, or the store has it and the informer does not: its event wakes us."""
        namespace = pod["metadata"]["namespace"]
        templates = {entry["name"]: entry.get("resourceClaimTemplateName") for entry in pod["spec"].get("resourceClaims") or ()}
        for entry, name in pod_claims.claim_names(pod):
            if not name and self._templates.get(f"{namespace}/{templates[entry]}") is not None:
                return True
            if name and self.cache.claim(namespace, name) is None:
                try:
                    await self._store.get(kinds.RESOURCE_CLAIM, name, namespace)
                except NotFound:
                    continue
                return True
        return False

    def _claims_follow(self, pod: Object, batch: SchedulingBatch) -> bool:
        """The claims of a migration's target pod belong to it, so they are created after it, in the next moment."""
        namespace = pod["metadata"]["namespace"]
        if not migration.job_uid(pod) or all(
                name is None or self.cache.claim(namespace, name) for _, name in pod_claims.claim_names(pod)):
            return False
        left = datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) + CLAIMS_FOLLOW - self._context.clock.now()
        if left <= timedelta():
            return False
        batch.look_again(pod, left.total_seconds())
        return True

    async def _devices_ready(self, pod: Object, batch: SchedulingBatch) -> bool:
        """Whether a pod may be given a host now: not while devices that it was allocated are being made ready. When that
        failed, or a taint would evict it from one of them by now, they are released, and others are looked for."""
        claims = [claim for _, name in pod_claims.claim_names(pod)
                  if (claim := self.cache.claim(pod["metadata"]["namespace"], name or "")) is not None]
        found = binding_conditions.readiness(claims, self._context.clock.now())
        given = [(claim.get("status") or {}).get("allocation") or {} for claim in claims] if nominated(pod) else []
        if given and (evicted := next(filter(None, (driven_out(self.cache.snapshot(), one) for one in given)), None)):
            await self._binder.release(pod, claims, (evicted,), 0.0)
            return False  # the claims that are free again wake us
        if found.state == "waiting":
            await self._report(pod, *not_ready(nominated(pod) or "its host", found.rejections), batch)
            batch.look_again(pod, found.left)
        elif found.state == "failed":
            await self._binder.release(pod, claims, found.rejections, EXCLUDED)
            batch.look_again(pod, EXCLUDED)
        else:
            self._retry_excluded(pod, batch)
        return found.state == "ready"

    def _retry_excluded(self, pod: Object, batch: SchedulingBatch) -> None:
        """Hosts that were excluded for a time are tried again afterwards."""
        now = self._context.clock.now()
        if excluded := binding_conditions.skipped_hosts(pod, now):
            batch.look_again(pod, max(min((until - now).total_seconds() for until, _ in excluded.values()), 0.001))

    # -- status

    async def _reject(self, pod: Object, waiting: Waiting, batch: SchedulingBatch) -> None:
        if pod["metadata"]["uid"] in self.cache.resume:
            batch.look_again(pod, SEARCH_INTERVAL)
        text = summary.summary(waiting)
        if await self._report(pod, Condition("PodScheduled", False, "Unschedulable", text), summary.by_code(waiting), batch):
            self._context.rejections.update((str(code),) for code in waiting.codes)
            await self._context.events.warning(pod, "FailedScheduling", text)

    async def _report(
        self, pod: Object, wanted: Condition, codes: Mapping[RejectionCode, str], batch: SchedulingBatch
    ) -> bool:
        """Writes the reason on the pod; the same again writes nothing, and another message of the same reason is written after
        a while, as it is then: it would change whenever other pods come and go. Whether it was written."""
        condition, meta = conditions.find(pod, "PodScheduled") or {}, pod["metadata"]
        if condition.get("message") == wanted.message:
            return False
        now = self._context.clock.monotonic()
        left = self._reported.get(meta["uid"], now - REPORT_INTERVAL) + REPORT_INTERVAL - now
        if left > 0 and condition.get("reason") == wanted.reason:
            batch.look_again(pod, left)
            return False
        have = conditions.with_condition(pod["status"].get("conditions"), wanted, self._context.now())
        have = rejection_conditions.with_codes(have, codes, self._context.now())
        await self._context.patch_status(kinds.POD, pod, {"conditions": have})
        self._reported[meta["uid"]] = now
        return True


def _of_page(error: AlreadyHeld | OutOfService | TooLarge) -> Rejection:
    """What a page rejects a booking for."""
    rejection: Rejection | None = None if isinstance(error, TooLarge) else error.rejection
    return rejection or Rejection.of(RejectionCode.PAGE_CONFLICT, message=error.message)
