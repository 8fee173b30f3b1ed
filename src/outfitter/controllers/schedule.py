"""A host and devices for every pod that waits, in embedded mode (a cluster has kube-scheduler).

Chosen from what the informers know, booked against the page as the store has it: page, claims and pod change in one commit,
so that nobody ever sees half of it. What cannot be placed gets its reason and is woken by events, never by a timer."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from typing import Any

from outfitter.api import conditions, kinds, machine
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.page import Booking, Holder, Page
from outfitter.controllers import claims
from outfitter.controllers.loop import Context, enqueue_on_change
from outfitter.errors import AlreadyHeld, Conflict, Invalid, NotFound, OutOfService
from outfitter.ledger import book
from outfitter.scheduling.fit import Rooms, Used
from outfitter.scheduling.index import Index
from outfitter.scheduling.place import Placement, Waiting, place, results
from outfitter.scheduling.plugins import Plugins
from outfitter.store.base import Check, Replace, Write
from outfitter.store.informer import key_of
from outfitter.store.queue import Queue

log = logging.getLogger(__name__)
SCHEDULER = "default-scheduler"


class Schedule:
    name = "schedule"

    def __init__(self, context: Context, plugins: Plugins) -> None:
        self._context, self._store, self._plugins = context, context.store, plugins
        self.queue = Queue(context.clock)
        self._one = asyncio.Lock()  # one choice at a time: two at once would only race each other for the same page
        self._pods = context.informer(kinds.POD)
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._classes = context.informer(kinds.DEVICE_CLASS)
        self._slices = context.informer(kinds.RESOURCE_SLICE)
        self._pages = context.informer(kinds.LEDGER_PAGE)
        self._nodes = context.informer(kinds.NODE)
        self._templates = context.informer(kinds.RESOURCE_CLAIM_TEMPLATE)
        self._index = Index()
        self._used, self._rooms = Used(), Rooms()
        self._seen: dict[str, int] = {}  # host -> revision of its page in the index
        self._slices.on_change(self._slice_changed)
        self._pages.on_change(self._page_changed)
        self._nodes.on_change(self._node_changed)
        self._arrivals: dict[str, int] = {}  # uid of a pod that waits -> its number
        self._numbers = itertools.count()
        self._pods.on_change(self._note)
        enqueue_on_change(self._pods, self.queue, lambda pod: [key_of(pod)] if _waits(pod) else [])
        for informer in (self._claims, self._classes, self._slices, self._pages, self._nodes):
            enqueue_on_change(informer, self.queue, self._everybody)

    def _slice_changed(self, old: Object | None, new: Object | None) -> None:
        self._index.put_slice((new or old or {})["metadata"]["name"], new)

    def _page_changed(self, old: Object | None, new: Object | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        self._see(name, Page(new) if new is not None else None)

    def _see(self, host: str, page: Page | None) -> None:
        """A page as an event or the store itself tells it, whichever is newer: what we booked ourselves is known at once."""
        if page is None or int(page.revision or 0) >= self._seen.get(host, 0):
            self._seen[host] = int(page.revision or 0) if page is not None else 0
            self._index.put_page(host, page)

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        self._index.put_node((new or old or {})["metadata"]["name"], new)

    def _note(self, old: Object | None, new: Object | None) -> None:
        try:
            if new is not None:
                self._used.add(new)
            elif old is not None:
                self._used.remove(old)
        except Invalid as error:
            log.warning("%s takes nothing of its host: %s", key_of(new or old or {}), error)
        if new is not None and _waits(new):
            self._arrivals.setdefault(new["metadata"]["uid"], next(self._numbers))
        elif pod := new or old:
            self._arrivals.pop(pod["metadata"]["uid"], None)

    def _everybody(self, _: Object) -> list[str]:
        """All who wait, the first to come first."""
        waiting = [pod for pod in self._pods.items() if _waits(pod)]
        waiting.sort(key=lambda pod: (pod["metadata"]["creationTimestamp"], self._arrivals.get(pod["metadata"]["uid"], 0)))
        return [key_of(pod) for pod in waiting]

    async def reconcile(self, key: str) -> float | None:
        async with self._one:
            known = self._pods.get(key)
            if known is None or not _waits(known):
                return None
            pod = await self._store.get(kinds.POD, known["metadata"]["name"], known["metadata"]["namespace"])
            if not _waits(pod):
                return None
            if await self._behind(pod):
                return None
            verdict = await self._settle(pod)
            if isinstance(verdict, Waiting):
                await self._refuse(pod, verdict)
                return None
            name = pod["metadata"]["name"]
            await self._context.events.normal(
                pod, "Scheduled", f"Successfully assigned {pod['metadata']['namespace']}/{name} to {verdict.host}")
            return None

    async def _settle(self, pod: Object) -> Placement | Waiting:
        """Choose and book, again for as long as somebody else was faster. A host that was chosen in vain twice is left out:
        what its page minds is not in what it publishes."""
        lost_on: dict[str, str] = {}
        avoid: dict[str, str] = {}
        while True:
            verdict = place(pod, self._claim, self._classes.get, self._index, self._used, rooms=self._rooms,
                            plugins=self._plugins, avoid=avoid)
            if isinstance(verdict, Waiting):
                return verdict
            lost = ""
            try:
                await self._bind(pod, verdict)
            except (AlreadyHeld, OutOfService) as error:
                lost = error.message
            self._see(verdict.host, await book.read(self._store, verdict.host))
            if not lost:
                if self._pods.get(key_of(pod)) is not None:  # else it went meanwhile, and nobody would take it off again
                    self._used.add({**pod, "spec": {**pod["spec"], "nodeName": verdict.host}})
                return verdict
            if verdict.host in lost_on:
                avoid[verdict.host] = lost
            lost_on[verdict.host] = lost

    async def _behind(self, pod: Object) -> bool:
        """A claim that is about to be made from its template, or that the store has and the informer does not, wakes us."""
        namespace = pod["metadata"]["namespace"]
        templates = {entry["name"]: entry.get("resourceClaimTemplateName") for entry in pod["spec"].get("resourceClaims") or ()}
        for entry, name in machine.claim_names(pod):
            if not name and self._templates.get(f"{namespace}/{templates[entry]}") is not None:
                return True
            if name and self._claim(namespace, name) is None:
                try:
                    await self._store.get(kinds.RESOURCE_CLAIM, name, namespace)
                except NotFound:
                    continue
                return True
        return False

    def _claim(self, namespace: str, name: str) -> Object | None:
        return self._claims.get(f"{namespace}/{name}")

    async def _bind(self, pod: Object, placement: Placement) -> None:
        bookings: list[Booking] = []
        writes: list[Write] = []
        now, user = self._context.now(), claims.user(pod)
        for claim, given in placement.claims:
            meta = claim["metadata"]
            holder = Holder(kinds.RESOURCE_CLAIM.kind, meta["namespace"], meta["name"], meta["uid"], purpose(pod))
            bookings += [Booking(device, holder, result["request"], "booked", now,
                                 claims.amount(result, self._index.uses(device, placement.host)))
                         for device, result in results(given)]
            writes += _allocate(claim, given, user)
        for name, claim_name in machine.claim_names(pod):
            earlier = self._claim(pod["metadata"]["namespace"], claim_name or "")
            if earlier is None:
                raise Conflict(f"claim {claim_name} of {name} is gone")
            status = earlier.get("status") or {}
            if status.get("allocation") and user not in (status.get("reservedFor") or []):
                reserved = [*(status.get("reservedFor") or []), user]
                shared = {**earlier, "status": {**status, "reservedFor": reserved}}
                writes.append(Replace(kinds.RESOURCE_CLAIM, shared, "status"))
        placed = conditions.with_condition(pod["status"].get("conditions"), Condition("PodScheduled", True), now)
        bound = {**pod, "spec": {**pod["spec"], "nodeName": placement.host}}
        told = {**bound, "metadata": _no_revision(pod["metadata"]), "status": {**pod["status"], "conditions": placed}}
        writes += [Replace(kinds.POD, bound), Replace(kinds.POD, told, "status")]
        if bookings:
            await book.book(self._store, placement.host, bookings, limits=self._index.limits(placement.host), also=writes)
        else:
            await self._store.commit(writes)

    async def _refuse(self, pod: Object, waiting: Waiting) -> None:
        """The reason, on the pod, once: the same again writes nothing."""
        condition = conditions.find(pod, "PodScheduled")
        if condition is not None and condition.get("message") == waiting.summary:
            return
        wanted = Condition("PodScheduled", False, "Unschedulable", waiting.summary)
        have = conditions.with_condition(pod["status"].get("conditions"), wanted, self._context.now())
        meta = pod["metadata"]
        await self._store.patch(kinds.POD, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"]}, "status": {"conditions": have},
        }, meta["namespace"], subresource="status")
        await self._context.events.warning(pod, "FailedScheduling", waiting.summary)


def _allocate(claim: Object, given: Mapping[str, Any], user: Object) -> list[Write]:
    """The finalizer that protects an allocated claim, and its status; both at the revision the choice was made on."""
    writes: list[Write] = []
    meta = claim["metadata"]
    status = {**(claim.get("status") or {}), "allocation": given, "reservedFor": [user]}
    if claims.FINALIZER in (meta.get("finalizers") or ()):
        writes.append(Check(kinds.RESOURCE_CLAIM, meta["name"], meta["namespace"], meta["resourceVersion"]))
    else:
        protected = {**meta, "finalizers": [*(meta.get("finalizers") or ()), claims.FINALIZER]}
        writes.append(Replace(kinds.RESOURCE_CLAIM, {**claim, "metadata": protected}))
        meta = protected
    return [*writes, Replace(kinds.RESOURCE_CLAIM, {**claim, "metadata": _no_revision(meta), "status": status}, "status")]


def _no_revision(meta: Object) -> Object:
    """For a second write of the same object in one commit, whose first write was checked."""
    return {key: value for key, value in meta.items() if key != "resourceVersion"}


def purpose(pod: Object) -> str:
    """For whom a pod holds devices, as people say it: "vmi/blue", else "pod/web"."""
    reference = machine.owner(pod, kinds.INSTANCE.kind)
    return f"vmi/{reference['name']}" if reference else f"pod/{pod['metadata']['name']}"


def _waits(pod: Object) -> bool:
    spec = pod["spec"]
    return bool(not spec.get("nodeName") and spec.get("schedulerName", SCHEDULER) == SCHEDULER
                and not spec.get("schedulingGates") and not pod["metadata"].get("deletionTimestamp")
                and (pod.get("status") or {}).get("phase", "Pending") == "Pending")
