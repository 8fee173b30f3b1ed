"""A host and devices for every pod that waits, in embedded mode (a cluster has kube-scheduler).

Pods that wait together are taken together, the first to come first: each is chosen for from what the informers know and what
those before it got, and all is written in one commit (pages, claims, pods), so that nobody ever sees half of it. When somebody
else was faster each is tried again by itself. What cannot be placed gets its reason and is woken by events, not by a timer."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims, vm
from outfitter.api.page import Page
from outfitter.controllers.bind_transaction import BindTransaction, give_back
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.errors import AlreadyExists, AlreadyHeld, Conflict, Invalid, NotFound, OutfitterError, OutOfService
from outfitter.ledger import book
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra import assigned_devices, binding_conditions, extended_resources
from outfitter.scheduling.dra.device_index import FEATURES, DeviceIndex
from outfitter.scheduling.filter.node_fit import NodeInfoCache
from outfitter.scheduling.filter.node_usage import NodeUsage, nominated
from outfitter.scheduling.nova.host_state_cache import HostStateCache
from outfitter.scheduling.plugins import SchedulerPlugins
from outfitter.scheduling.scheduler import Placement, Waiting, driven_out, place, results
from outfitter.scheduling.score import Policy
from outfitter.scheduling.snapshot import Claims, SchedulingSnapshot
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

log = logging.getLogger(__name__)
SCHEDULER = "default-scheduler"
EVERYBODY = "*"  # a key that stands for all pods that wait
TOGETHER = 64  # pods in one commit
ROUNDS = 4  # times that those who came meanwhile are waited for before a commit
PATIENCE = 5.0  # seconds between two sentences of one kind about one pod
SHUNNED = 60.0  # seconds for which a host is left out whose devices could not be made ready for a pod


@dataclass(slots=True)
class _BatchOutcome:
    """What became of the pods of a batch, by key."""

    errors: dict[str, Exception] = field(default_factory=dict)  # to be tried again, later and later
    after: dict[str, float] = field(default_factory=dict)  # to be looked at again in so many seconds

    def look_again(self, pod: Object, seconds: float) -> None:
        """The earliest time counts."""
        self.after[key_of(pod)] = min(self.after.get(key_of(pod), seconds), seconds)


class Scheduler:
    name = "scheduler"

    def __init__(
        self, context: ControllerContext, plugins: SchedulerPlugins, *, policy: Policy = "pack", features: Features = FEATURES
    ) -> None:
        self._context, self._store, self._plugins, self._policy = context, context.store, plugins, policy
        self.queue = WorkQueue(context.clock)
        self._one = asyncio.Lock()  # one batch at a time: two at once would only race each other for the same pages
        self._pods, self._claims = pods, claims = context.informer(kinds.POD), context.informer(kinds.RESOURCE_CLAIM)
        self._classes = context.informer(kinds.DEVICE_CLASS)
        self._templates = context.informer(kinds.RESOURCE_CLAIM_TEMPLATE)
        slices, pages, nodes, rules, trees, inventories = (context.informer(kind) for kind in (
            kinds.RESOURCE_SLICE, kinds.LEDGER_PAGE, kinds.NODE, kinds.DEVICE_TAINT_RULE, kinds.PROVIDER_TREE,
            kinds.HOST_INVENTORY))
        self._index, self._roster = DeviceIndex(features), HostStateCache()
        self._used, self._rooms = NodeUsage(), NodeInfoCache()
        self._resources: extended_resources.Resources | None = None  # None: to be put together again
        self._seen: dict[str, int] = {}  # page -> its revision in the index
        self._arrivals: dict[str, int] = {}  # uid of a pod that waits -> its number
        self._waiting: dict[str, None] = {}  # keys of those, as far as there was news of them
        self._told: dict[str, float] = {}  # uid of one of those -> when it was last said what it waits for
        self._numbers = itertools.count()
        self._inbox: list[str] = []  # keys that workers hold in their hands while another is at work
        self._outcomes: dict[str, _BatchOutcome] = {}  # what became of those
        self._preset: dict[str, Object] = {}  # pods that wait for devices which were chosen beforehand
        slices.on_change(self._slice_changed)
        pages.on_change(self._page_changed)
        nodes.on_change(self._node_changed)
        for informer, put in ((rules, self._index.put_rule), (trees, self._roster.put_tree),
                              (inventories, self._roster.put_inventory)):
            informer.on_change(_feed(put))
        self._classes.on_change(self._class_changed)
        pods.on_change(self._note)
        enqueue_on_change(pods, self.queue, lambda pod: [key_of(pod)] if _waits(pod) else [])
        for informer in (claims, self._classes, slices, pages, nodes, rules, trees, inventories):
            enqueue_on_change(informer, self.queue, lambda _: [EVERYBODY])

    # -- what is known

    def _slice_changed(self, old: Object | None, new: Object | None) -> None:
        self._index.put_slice((new or old or {})["metadata"]["name"], new)
        self._roster.put_slice((new or old or {})["metadata"]["name"], new)

    def _page_changed(self, old: Object | None, new: Object | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        self._see(name, Page(new) if new is not None else None)

    def _see(self, name: str, page: Page | None) -> None:
        """A page as an event or the store itself tells it, whichever is newer: what we booked ourselves is known at once."""
        if page is None or int(page.revision or 0) >= self._seen.get(name, 0):
            self._seen[name] = int(page.revision or 0) if page is not None else 0
            self._index.put_page(name, page)

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        self._index.put_node((new or old or {})["metadata"]["name"], new)

    def _class_changed(self, old: Object | None, new: Object | None) -> None:
        self._resources = None

    def _note(self, old: Object | None, new: Object | None) -> None:
        try:
            if new is not None:
                self._used.add(self._pods.get(key_of(new)) or new)  # what we wrote ourselves is newer
                if self._given_up(old, new):
                    self._used.remove(new)
            elif old is not None:
                self._used.remove(old)
        except Invalid as error:
            log.warning("%s takes nothing of its host: %s", key_of(new or old or {}), error)
        if old is not None and _takes(old) and (new is None or not _takes(new)):  # there is more room on its host
            self.queue.add(EVERYBODY)
        pod = new or old or {}
        uid, key = pod["metadata"]["uid"], key_of(pod)
        if new is not None and _waits(new):
            self._arrivals.setdefault(uid, next(self._numbers))
            self._waiting[key] = None
            if any(extended_resources.presets(new)):
                self._preset[key] = new
        else:
            self._arrivals.pop(uid, None)
            self._told.pop(uid, None)
            self._waiting.pop(key, None)
            if self._preset.pop(key, None) is not None:  # what was kept for it is anybody's
                self.queue.add(EVERYBODY)

    def _given_up(self, old: Object | None, new: Object) -> bool:
        """It had a host in view, by all that is known, and has none any more."""
        newest = self._pods.get(key_of(new)) or new
        return bool(old is not None and nominated(old) and not nominated(newest) and not newest["spec"].get("nodeName"))

    def _wake(self, taken: Collection[str]) -> None:
        """All who wait, but those who are about to be chosen for. However much news there was, they are woken once."""
        for key in self._waiting:
            if key not in taken:
                self.queue.add(key)

    def _ordered(self, pods: Sequence[Object]) -> list[Object]:
        return sorted(pods, key=lambda pod: (
            pod["metadata"]["creationTimestamp"], self._arrivals.get(pod["metadata"]["uid"], 0)))

    def _claim(self, namespace: str, name: str) -> Object | None:
        return self._claims.get(f"{namespace}/{name}")

    # -- batches

    async def reconcile(self, key: str) -> float | None:
        self._inbox.append(key)  # whoever is at work takes it along
        async with self._one:
            if key in self._inbox:
                await self._round()
        if (outcome := self._outcomes.pop(key, None)) is None:
            raise Conflict(f"{key}: whoever took it along was stopped in the midst of it")
        if error := outcome.errors.get(key):
            raise error
        return outcome.after.get(key)

    async def _round(self) -> None:
        """All that waits by now, the first to come first. What comes meanwhile is taken along: a device that became free is
        nobody's before the one who waits for it longest was asked, whichever of them there was news of."""
        outcome, hands, others = _BatchOutcome(), list[str](), list[str]()
        ready: dict[str, Object] = {}
        try:
            while True:
                for _ in range(ROUNDS):
                    new = self._news(hands, others, ready)
                    if not new:
                        break
                    ready |= await self._prepared(new, outcome)
                first = self._ordered([pod for pod in map(self._pods.get, ready) if pod is not None and _waits(pod)])[:TOGETHER]
                if not first:
                    break
                await self._batch(first, outcome)
                done = {key_of(pod) for pod in first}
                ready = {key: pod for key, pod in ready.items() if key not in done}
        except Exception as error:
            outcome = _BatchOutcome(dict.fromkeys((*hands, *others), error))
        self._outcomes |= dict.fromkeys(hands, outcome)
        for other in others:
            self._tell(other, outcome)
            self.queue.done(other)

    def _news(self, hands: list[str], others: list[str], ready: Collection[str]) -> list[str]:
        """Pods that were not taken yet: those that workers hold in their hands, and all that the queue has."""
        found, self._inbox = self._inbox, []
        hands += found
        more = self.queue.take_more(len(self.queue))
        if EVERYBODY in found or EVERYBODY in more:
            self._wake({*found, *more, *ready})
            more += self.queue.take_more(len(self.queue))
        others += more
        return [key for key in (*found, *more) if key != EVERYBODY]

    def _tell(self, key: str, outcome: _BatchOutcome) -> None:
        """The queue of what became of a pod that was taken along."""
        if error := outcome.errors.get(key):
            level = logging.DEBUG if isinstance(error, (Conflict, NotFound)) else logging.WARNING
            log.log(level, "%s %s: %s", self.name, key, error, exc_info=None if isinstance(error, OutfitterError) else error)
            self.queue.retry(key)
            return
        self.queue.forget(key)
        if key in outcome.after:
            self.queue.add_after(key, outcome.after[key])

    async def _prepared(self, keys: Sequence[str], outcome: _BatchOutcome) -> dict[str, Object]:
        """Those of them that may be given a host now."""
        ready = {}
        for pod in self._ordered([pod for pod in map(self._pods.get, keys) if pod is not None and _waits(pod)]):
            try:
                if not await self._behind(pod) and await self._made_ready(pod, outcome):
                    ready[key_of(pod)] = pod
            except OutfitterError as error:
                outcome.errors[key_of(pod)] = error
        return ready

    async def _batch(self, pods: Sequence[Object], outcome: _BatchOutcome) -> None:
        lost: dict[str, dict[str, str]] = {}
        for pod in await self._together(pods, outcome, lost):
            try:
                await self._alone(pod, outcome, lost.get(key_of(pod), {}))
            except OutfitterError as error:
                outcome.errors[key_of(pod)] = error

    async def _together(self, pods: Sequence[Object], outcome: _BatchOutcome, lost: dict[str, dict[str, str]]) -> list[Object]:
        """One commit for all; those that have to be tried again, each by itself."""
        draft, refused, placed = self._draft(), list[tuple[Object, Waiting]](), list[tuple[Object, Placement, bool]]()
        again: list[Object] = []
        for pod in pods:
            try:
                verdict = self._choose(pod, draft)
                if isinstance(verdict, Waiting):
                    refused.append((pod, verdict))
                    continue
                try:
                    placed.append((pod, verdict, draft.add(pod, verdict)))
                    self._used.add({**pod, "spec": {**pod["spec"], "nodeName": verdict.host}})
                except (AlreadyHeld, OutOfService) as error:
                    lost[key_of(pod)] = {verdict.host: error.message}
                    again.append(pod)
            except Exception as error:  # a fault that one pod brings to light is not the others'
                outcome.errors[key_of(pod)] = error
        if not await self._commit(draft, placed):
            return [pod for pod in pods if key_of(pod) not in outcome.errors]
        for pod, waiting in refused:
            try:
                await self._refuse(pod, waiting, outcome)
            except OutfitterError as error:
                outcome.errors[key_of(pod)] = error
        return again

    async def _alone(self, pod: Object, outcome: _BatchOutcome, lost: dict[str, str]) -> None:
        """Choose and book for one pod as the store has it, again for as long as a page minds. A host that was chosen in vain
        twice is left out: what its page minds is not in what it publishes."""
        pod = await self._store.get(kinds.POD, pod["metadata"]["name"], pod["metadata"]["namespace"])
        avoid: dict[str, str] = {}
        while _waits(pod):
            draft = self._draft()
            verdict = self._choose(pod, draft, avoid)
            if isinstance(verdict, Waiting):
                await self._refuse(pod, verdict, outcome)
                return
            why = ""
            try:
                ready = draft.add(pod, verdict)
            except (AlreadyHeld, OutOfService) as error:
                why = error.message
            else:
                self._used.add({**pod, "spec": {**pod["spec"], "nodeName": verdict.host}})
                if await self._commit(draft, [(pod, verdict, ready)]):
                    return
                raise Conflict(f"{key_of(pod)}: somebody else was faster; trying again")
            await self._reread([verdict.host, *self._pages_of(verdict)])
            if verdict.host in lost:
                avoid[verdict.host] = why
            lost[verdict.host] = why

    def _draft(self) -> BindTransaction:
        self._index.held.kept = (
            assigned_devices.kept(self._ordered(list(self._preset.values())), self._index) if self._preset else {}
        )
        return BindTransaction(self._index, self._claim, self._context.now(), self._context.names)

    def _choose(self, pod: Object, draft: BindTransaction, avoid: dict[str, str] | None = None) -> Placement | Waiting:
        return place(self._snapshot(draft.claim), pod, avoid=avoid or {})

    def _snapshot(self, claims: Claims) -> SchedulingSnapshot:
        if self._resources is None:
            self._resources = extended_resources.mapped(self._classes.items())
        return SchedulingSnapshot(
            devices=self._index, usage=self._used, claim=claims, device_class=self._classes.get,
            extended_resource=self._resources, node_infos=self._rooms, host_states=self._roster, plugins=self._plugins,
            policy=self._policy, now=self._context.clock.now(), share_id=self._context.names.uid)

    def _pages_of(self, verdict: Placement) -> list[str]:
        devices = dict.fromkeys(device for _, given in verdict.claims for device, _ in results(given))
        return [page for device in devices
                for page in (self._index.home(device, verdict.host), *self._index.other_homes(device, verdict.host))]

    async def _commit(self, draft: BindTransaction, placed: Sequence[tuple[Object, Placement, bool]]) -> bool:
        """Whether it was written; if not, what the index and the totals were told of it is taken back."""
        try:
            written = await draft.commit(self._store)
        except Exception as error:
            for pod, _, _ in placed:
                self._used.remove(pod)
                if (known := self._pods.get(key_of(pod))) is not None:  # another scheduler may have given it a host
                    self._used.add(known)
            await self._reread(draft.pages)
            if not isinstance(error, (Conflict, AlreadyExists, NotFound, Invalid)):
                raise
            log.debug("%d pods: %s", len(placed), error)
            return False
        for kind, obj in written:
            if kind == kinds.LEDGER_PAGE:
                self._see(obj["metadata"]["name"], Page(obj))
            elif kind == kinds.RESOURCE_CLAIM:
                self._claims.put(obj)
            elif kind == kinds.POD:
                self._pods.put(obj)
                if self._pods.get(key_of(obj)) is not None:  # else it is gone by now, and takes nothing
                    self._used.add(obj)
        for pod, verdict, ready in placed:
            if not ready:
                await self._context.events.normal(pod, "WaitingForDevices", f"devices on {verdict.host} are being made ready")
                continue
            name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            await self._context.events.normal(pod, "Scheduled", f"Successfully assigned {name} to {verdict.host}")
        return True

    async def _reread(self, names: Sequence[str]) -> None:
        for name in dict.fromkeys(names):
            page = await book.read(self._store, name)
            self._seen[name] = int(page.revision or 0)
            self._index.put_page(name, page)

    # -- what a pod waits for

    async def _behind(self, pod: Object) -> bool:
        """A claim that is about to be made from its template, or that the store has and the informer does not, wakes us."""
        namespace = pod["metadata"]["namespace"]
        templates = {entry["name"]: entry.get("resourceClaimTemplateName") for entry in pod["spec"].get("resourceClaims") or ()}
        for entry, name in pod_claims.claim_names(pod):
            if not name and self._templates.get(f"{namespace}/{templates[entry]}") is not None:
                return True
            if name and self._claim(namespace, name) is None:
                try:
                    await self._store.get(kinds.RESOURCE_CLAIM, name, namespace)
                except NotFound:
                    continue
                return True
        return False

    async def _made_ready(self, pod: Object, outcome: _BatchOutcome) -> bool:
        """Whether a pod may be given a host now: not while devices that it has are being made ready. When that failed, or it
        would be sent away from one of them by now, they are given back, and others are looked for."""
        mine = [claim for _, name in pod_claims.claim_names(pod)
                if (claim := self._claim(pod["metadata"]["namespace"], name or "")) is not None]
        now = self._context.clock.now()
        found = binding_conditions.readiness(mine, now)
        given = [(claim.get("status") or {}).get("allocation") or {} for claim in mine] if nominated(pod) else []
        if out := next(filter(None, (driven_out(self._snapshot(self._claim), one) for one in given)), ""):
            await self._give_back(pod, mine, f"among them is {out}", 0.0)
            return False  # the claims that are free again wake us
        if found.state == "waiting":
            host = nominated(pod) or "its host"
            await self._say(pod, Condition("PodScheduled", False, "WaitingForDevices",
                                           f"devices on {host} are being made ready: {found.why}"), outcome)
            outcome.look_again(pod, found.left)
        elif found.state == "failed":
            await self._give_back(pod, mine, found.why, SHUNNED)
            outcome.look_again(pod, SHUNNED)
        else:
            self._forgive(pod, outcome)
        return found.state == "ready"

    async def _give_back(self, pod: Object, mine: Sequence[Object], why: str, shunned_for: float) -> None:
        uid = pod["metadata"]["uid"]
        pod = await self._store.get(kinds.POD, pod["metadata"]["name"], pod["metadata"]["namespace"])
        if not _waits(pod):
            return
        given = [claim for claim in mine if (claim.get("status") or {}).get("allocation") and not any(
            user.get("resource", "pods") == "pods" and user.get("uid") != uid
            for user in claim["status"].get("reservedFor") or ())]
        host = nominated(pod)
        names = dict.fromkeys([*([host] if host else ()), *(  # a flavor has CPUs of the host besides devices
            self._index.home(device, host) for claim in given for device, _ in results(claim["status"]["allocation"]))])
        pages = [await book.read(self._store, name) for name in names]
        said = f"devices on {host or 'its host'} were given back: {why}"
        writes = [write for page in pages for write in await book.steps(
            self._store, page, _without(page, {claim["metadata"]["uid"] for claim in given}), now=self._context.now())]
        shunned = binding_conditions.leaving_out(pod, host, said, self._context.clock.now(), shunned_for)
        *_, written = await self._store.commit([*writes, *give_back(pod, given, said, self._context.now(), shunned)])
        if written is not None:
            self._pods.put(written)
        self._used.remove(pod)
        await self._reread(list(names))
        await self._context.events.warning(pod, "DevicesNotReady", said)

    def _forgive(self, pod: Object, outcome: _BatchOutcome) -> None:
        """Hosts that were left out for long enough are tried again."""
        now = self._context.clock.now()
        if shunned := binding_conditions.left_out(pod, now):
            outcome.look_again(pod, max(min((until - now).total_seconds() for until, _ in shunned.values()), 0.001))

    async def _refuse(self, pod: Object, waiting: Waiting, outcome: _BatchOutcome) -> None:
        if await self._say(pod, Condition("PodScheduled", False, "Unschedulable", waiting.summary), outcome):
            await self._context.events.warning(pod, "FailedScheduling", waiting.summary)

    async def _say(self, pod: Object, wanted: Condition, outcome: _BatchOutcome) -> bool:
        """The reason, on the pod, once: the same again writes nothing. Another one of the same kind is told after a while, as
        it is then: who waits would be written of whenever others come and go. Whether it was written."""
        condition, meta = conditions.find(pod, "PodScheduled") or {}, pod["metadata"]
        if condition.get("message") == wanted.message:
            return False
        now = self._context.clock.monotonic()
        left = self._told.get(meta["uid"], now - PATIENCE) + PATIENCE - now
        if left > 0 and condition.get("reason") == wanted.reason:
            outcome.look_again(pod, left)
            return False
        have = conditions.with_condition(pod["status"].get("conditions"), wanted, self._context.now())
        self._pods.put(await self._store.patch(kinds.POD, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"]}, "status": {"conditions": have},
        }, meta["namespace"], subresource="status"))
        self._told[meta["uid"]] = now
        return True


def _feed(put: Callable[[str, Object | None], None]) -> Callable[[Object | None, Object | None], None]:
    return lambda old, new: put((new or old or {})["metadata"]["name"], new)


def _without(page: Page, uids: set[str]) -> Object:
    return page.leaving(booking.key for booking in page.bookings if booking.holder.uid in uids)


def _takes(pod: Object) -> bool:
    """It takes cpu and memory of a host."""
    return bool(
        (pod["spec"].get("nodeName") or nominated(pod)) and (pod.get("status") or {}).get("phase") not in vm.FINAL
    )


def _waits(pod: Object) -> bool:
    spec = pod["spec"]
    return bool(not spec.get("nodeName") and spec.get("schedulerName", SCHEDULER) == SCHEDULER
                and not spec.get("schedulingGates") and not pod["metadata"].get("deletionTimestamp")
                and (pod.get("status") or {}).get("phase", "Pending") == "Pending")
