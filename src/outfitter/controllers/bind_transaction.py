"""Binds pods: what is written when pods get hosts and devices (pages, claims and pods, of several pods in one transaction),
the commit of it, and the release of devices that were not made ready. The scheduler cache follows every write, and is put right
when one fails. Called by the scheduler controller; `outfit plan` books with a transaction that it does not commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from outfitter.api import allocation, conditions, kinds, rejection_conditions, rejection_text
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import device_refs
from outfitter.api.kubevirt import pod_claims as pod_claims_api
from outfitter.api.ledger_page.page import Booking, Holder, Page, hardware_error, held_error
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.controllers.embedded import pod_claims
from outfitter.controllers.manager import ControllerContext
from outfitter.controllers.scheduler_cache import SchedulerCache
from outfitter.controllers.scheduling_queue import waits_for_host
from outfitter.errors import AlreadyExists, Conflict, NotFound
from outfitter.ledger import book
from outfitter.ledger import placement_view as ledger
from outfitter.ledger.allocation_bookings import holder_purpose
from outfitter.scheduling.dra import binding_conditions
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.dra.slices import PublishedDevice
from outfitter.scheduling.filter.node_usage import nominated
from outfitter.scheduling.nova import flavor_claim
from outfitter.scheduling.placement import Placement, results
from outfitter.store.base import Check, Create, Delete, Replace, Store, Write
from outfitter.store.id_generator import IdGenerator
from outfitter.store.informer import key_of

log = logging.getLogger(__name__)
Claim = Callable[[str, str], Object | None]
NOT_READY = "WaitingForDevices"  # the reason on a pod whose devices are being made ready


class BindTransaction:
    """Starts from the index, and the index follows it: the next choice counts what is in here already. A caller
    that does not commit it must revert that (`pages` names what has to be read again). It is committed only if every page is
    still the one that was chosen from: what a provider has left for flavors, or CPUs of a NUMA cell, clash with no booking."""

    def __init__(
        self, index: DeviceIndex, claim: Claim, now: str, names: IdGenerator, purpose: Callable[[Object], str] | None = None,
    ) -> None:
        self._index, self._known, self._now, self._names = index, claim, now, names
        self._purpose = purpose or holder_purpose
        self._claims: dict[str, Object] = {}  # as they will be
        self._old: dict[str, Page] = {}
        self._new: dict[str, Page] = {}
        self._beside: dict[str, str] = {}  # pages on which what is booked may not stand -> the revision at which it does not
        self._writes: list[Write] = []

    @property
    def pages(self) -> list[str]:
        return [*self._old, *self._beside]

    @property
    def claims(self) -> list[Object]:
        """The claims that change, as they will be."""
        return list(self._claims.values())

    @property
    def booked(self) -> list[Page]:
        """The pages that change, as they will be."""
        return list(self._new.values())

    def claim(self, namespace: str, name: str) -> Object | None:
        """A claim as it will be."""
        return self._claims.get(f"{namespace}/{name}") or self._known(namespace, name)

    def add(self, pod: Object, placement: Placement) -> bool:
        """A pod gets its host and devices; whether it goes there at once (else its devices must be made ready first).
        AlreadyHeld, OutOfService: a page rejects it, and the transaction is unchanged."""
        writes: list[Write] = []
        bookings: dict[str, list[Booking]] = {}
        drafted: dict[str, Object] = {}
        user, made = pod_claims.user(pod), ""
        for asked, given in placement.claims:
            claim = asked
            if asked["metadata"]["name"] == device_refs.EXTENDED:
                claim = self._named(pod, asked)
                made = claim["metadata"]["name"]
            self._book(pod, claim, given, placement.host, bookings)
            dated = {**given, "allocationTimestamp": self._now} if binding_conditions.binds(given) else given
            writes += _allocate(claim, dated, user, fresh=made == claim["metadata"]["name"])
            drafted[key_of(claim)] = {**claim, "status": {**(claim.get("status") or {}), "allocation": dated,
                                                          "reservedFor": [user]}}
        for name, claim_name in pod_claims_api.claim_names(pod):
            earlier = self.claim(pod["metadata"]["namespace"], claim_name or "")
            if earlier is None:
                if name == device_refs.EXTENDED:
                    continue  # it went, and another one is made
                raise Conflict(f"claim {claim_name} of {name} is gone")
            status = earlier.get("status") or {}
            if status.get("allocation") and user not in (status.get("reservedFor") or []):
                shared = {**earlier, "status": {**status, "reservedFor": [*(status.get("reservedFor") or []), user]}}
                writes.append(Replace(kinds.RESOURCE_CLAIM, shared, "status"))
                drafted[key_of(earlier)] = shared
        ready = not any(binding_conditions.binds(given) for _, given in placement.claims)
        writes += self._pod(pod, placement, made, ready)
        pages = {name: self._page(name) for name in bookings}
        limits = self._index.limits(placement.host) if bookings else None
        changed = {name: Page(pages[name].holding(those, limits)) for name, those in bookings.items()}
        beside = self._elsewhere([one for those in bookings.values() for one in those if one.counted], placement.host)
        for name, page in changed.items():
            self._old.setdefault(name, pages[name])
            self._new[name] = page
            self._index.put_page(name, page)
        self._beside |= beside
        self._claims |= drafted
        self._writes += writes
        return ready

    def _elsewhere(self, bookings: Sequence[Booking], host: str) -> dict[str, str]:
        """Other pages on which these devices could stand, with their revisions. AlreadyHeld: one does."""
        found: dict[str, str] = {}
        for mine in bookings:
            for name in self._index.other_page_names(mine.device, host):
                page = self._page(name)
                found[name] = page.revision or ""
                if (rival := next((one for one in page.bookings if one.clashes(mine)), None)) is not None:
                    raise held_error(rival)
            for twin in self._index.twins(mine.device, host):  # the same hardware, published under another name
                for name in (self._index.page_name(twin.id, host), *self._index.other_page_names(twin.id, host)):
                    page = self._page(name)
                    found[name] = page.revision or ""
                    if (rival := _same_hardware(mine, twin, page, host)) is not None:
                        raise hardware_error(mine, rival)
        return found

    def _page(self, name: str) -> Page:
        return self._new.get(name) or self._index.page(name)

    def _named(self, pod: Object, claim: Object) -> Object:
        meta = {**claim["metadata"], "uid": self._names.uid(),
                "name": f"{pod['metadata']['name']}-extended-resources-"[:58] + self._names.suffix()}
        return {**claim, "metadata": meta}

    def _book(self, pod: Object, claim: Object, given: Mapping[str, Any], host: str, out: dict[str, list[Booking]]) -> None:
        meta = claim["metadata"]
        holder = Holder(kinds.RESOURCE_CLAIM.kind, meta["namespace"], meta["name"], meta["uid"], self._purpose(pod))
        for device, result in results(given):
            page = self._index.page_name(device, host)
            out.setdefault(page, []).append(Booking(
                device, holder, result["request"], "booked", self._now,
                allocation.booked_amount(result, self._index.uses(device, host)), node=host if page != host else "",
                hardware=self._index.hardware(device, host)))
        if (share := flavor_claim.share(claim, given)) is not None:
            out.setdefault(host, []).append(Booking(ledger.host_resources(host), holder, "", "booked", self._now, share))

    def _pod(self, pod: Object, placement: Placement, made: str, ready: bool) -> list[Write]:
        status = dict(pod["status"])
        if made:
            status["extendedResourceClaimStatus"] = {"resourceClaimName": made,
                                                     "requestMappings": [dict(one) for one in placement.mappings]}
        if ready:
            placed, codes = Condition("PodScheduled", True), dict[RejectionCode, str]()
            status.pop("nominatedNodeName", None)
        else:
            drafts = [{"status": {"allocation": given}} for _, given in placement.claims]
            placed, codes = not_ready(placement.host, binding_conditions.waits_for(drafts))
            status["nominatedNodeName"] = placement.host
        have = conditions.with_condition(status.get("conditions"), placed, self._now)
        status["conditions"] = rejection_conditions.with_codes(have, codes, self._now)
        if not ready:
            return [Replace(kinds.POD, {**pod, "status": status}, "status")]
        bound = {**pod, "spec": {**pod["spec"], "nodeName": placement.host}}
        return [Replace(kinds.POD, bound),
                Replace(kinds.POD, {**bound, "metadata": _no_revision(pod["metadata"]), "status": status}, "status")]

    async def commit(self, store: Store) -> list[tuple[Kind, Object]]:
        """All of it or nothing; everything that was written, as it is by now."""
        writes = [write for name, old in self._old.items() for write in await book.page_writes(
            store, old, self._new[name].object, now=self._now)]
        writes += [Check(kinds.LEDGER_PAGE, name, "", revision) for name, revision in self._beside.items()
                   if name not in self._old]
        writes += self._writes
        if not writes:
            return []
        answers = await store.commit(writes)
        return [(write.kind, answer) for write, answer in zip(writes, answers, strict=True) if answer is not None]


class PlacedPod(NamedTuple):
    pod: Object
    placement: Placement
    ready: bool  # else its devices must be made ready before it is bound


class Binder:
    def __init__(self, context: ControllerContext, cache: SchedulerCache) -> None:
        self._context, self._store, self._cache = context, context.store, cache

    def begin(self) -> BindTransaction:
        return BindTransaction(self._cache.devices, self._cache.claim, self._context.now(), self._context.names)

    def add(self, transaction: BindTransaction, pod: Object, placement: Placement) -> PlacedPod:
        """AlreadyHeld, OutOfService, TooLarge: a page rejects it, and nothing is in the transaction."""
        placed = PlacedPod(pod, placement, transaction.add(pod, placement))
        self._cache.assume(pod, placement.host)
        return placed

    async def commit(self, transaction: BindTransaction, placed: Sequence[PlacedPod]) -> bool:
        """Whether it was written. If not, the cache forgets what it assumed."""
        try:
            written = await transaction.commit(self._store)
        except Exception as error:
            await self.abort(transaction, placed)
            if not isinstance(error, (Conflict, AlreadyExists, NotFound)):
                raise
            log.debug("%d pods: %s", len(placed), error)
            return False
        for kind, obj in written:
            self._cache.stored(kind, obj)
        for pod, placement, ready in placed:
            if not ready:
                await self._context.events.normal(
                    pod, "WaitingForDevices", f"devices on {placement.host} are being made ready")
                continue
            name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            await self._context.events.normal(pod, "Scheduled", f"Successfully assigned {name} to {placement.host}")
        return True

    async def abort(self, transaction: BindTransaction, placed: Sequence[PlacedPod]) -> None:
        """The cache forgets what it assumed for a transaction that is not committed."""
        for each in placed:
            self._cache.forget(each.pod)
        await self._cache.reread(transaction.pages)

    async def reread(self, placement: Placement) -> None:
        """The pages that a placement is booked on, as the store has them."""
        devices, host = self._cache.devices, placement.host
        those = dict.fromkeys(device for _, given in placement.claims for device, _ in results(given))
        await self._cache.reread([host, *(page for device in those for page in (
            devices.page_name(device, host), *devices.other_page_names(device, host)))])

    async def release(
        self, pod: Object, claims: Sequence[Object], causes: tuple[Rejection, ...], exclude_for: float
    ) -> None:
        """Gives back what the pod's claims were allocated, and excludes the host for so many seconds."""
        uid = pod["metadata"]["uid"]
        pod = await self._store.get(kinds.POD, pod["metadata"]["name"], pod["metadata"]["namespace"])
        if not waits_for_host(pod):
            return
        given = [claim for claim in claims if (claim.get("status") or {}).get("allocation") and not any(
            user.get("resource", "pods") == "pods" and user.get("uid") != uid
            for user in claim["status"].get("reservedFor") or ())]
        host = nominated(pod)
        names = dict.fromkeys([*([host] if host else ()), *(  # a flavor has CPUs of the host besides devices
            self._cache.devices.page_name(device, host)
            for claim in given for device, _ in results(claim["status"]["allocation"]))])
        pages = [await book.read(self._store, name) for name in names]
        why = Rejection(RejectionCode.DEVICES_GIVEN_BACK, detail={"host": host}, causes=causes)
        message = rejection_text.render(why)
        writes = [write for page in pages for write in await book.page_writes(
            self._store, page, _without(page, {claim["metadata"]["uid"] for claim in given}), now=self._context.now())]
        excluded = binding_conditions.skipping(pod, host, message, self._context.clock.now(), exclude_for)
        *claims_and_pod, pod_status = give_back(pod, given, why, self._context.now(), excluded)
        *_, written = await self._store.commit([*claims_and_pod, *writes, pod_status])
        if written is not None:
            self._context.informer(kinds.POD).put(written)
        self._cache.released(pod)
        await self._cache.reread(names)
        await self._context.events.warning(pod, "DevicesNotReady", message)


def not_ready(host: str, rejections: Sequence[Rejection]) -> tuple[Condition, dict[RejectionCode, str]]:
    """The condition of a pod whose devices a driver makes ready, and its codes."""
    text = rejection_text.render_all(rejections)
    condition = Condition("PodScheduled", False, NOT_READY, f"devices on {host} are being made ready: {text}")
    return condition, {rejection.code: text for rejection in rejections[:1]}


def give_back(
    pod: Object, those: Sequence[Object], why: Rejection, now: str, annotations: Mapping[str, str]
) -> list[Write]:
    """What is written when devices were not made ready: all that the pod's claims got is free again, and the claim that the
    scheduler made goes. The pages follow in the same commit. The pod comes last."""
    writes: list[Write] = []
    for claim in those:
        meta = claim["metadata"]
        status = {key: value for key, value in claim["status"].items() if key not in ("allocation", "reservedFor", "devices")}
        writes.append(Replace(kinds.RESOURCE_CLAIM, {**claim, "status": status}, "status"))
        bare = {
            **_no_revision(meta),
            "finalizers": [one for one in meta.get("finalizers") or () if one != pod_claims.FINALIZER],
        }
        writes.append(Replace(kinds.RESOURCE_CLAIM, {**claim, "metadata": bare, "status": status}))
        if meta["name"] == _made(pod) and not meta.get("deletionTimestamp"):  # else it went with its finalizer
            writes.append(Delete(kinds.RESOURCE_CLAIM, meta["name"], meta["namespace"], uid=meta["uid"]))
    kept = {key: value for key, value in pod["status"].items()
            if key not in ("nominatedNodeName", "extendedResourceClaimStatus")}
    text = rejection_text.render(why)
    waits = Condition("PodScheduled", False, "Unschedulable", text)
    have = conditions.with_condition(kept.get("conditions"), waits, now)
    kept["conditions"] = rejection_conditions.with_codes(have, {why.code: text}, now)
    meta = {**pod["metadata"], "annotations": {**(pod["metadata"].get("annotations") or {}), **annotations}}
    return [*writes, Replace(kinds.POD, {**pod, "metadata": meta}),
            Replace(kinds.POD, {**pod, "metadata": _no_revision(meta), "status": kept}, "status")]


def _made(pod: Object) -> str | None:
    return dict(pod_claims_api.claim_names(pod)).get(device_refs.EXTENDED)


def _allocate(claim: Object, given: Mapping[str, Any], user: Object, *, fresh: bool) -> list[Write]:
    """The finalizer that protects an allocated claim, and its status; both at the revision the choice was made on."""
    writes: list[Write] = []
    meta = claim["metadata"]
    status = {**(claim.get("status") or {}), "allocation": given, "reservedFor": [user]}
    protected = {**meta, "finalizers": [*(meta.get("finalizers") or ()), pod_claims.FINALIZER]}
    if fresh:
        writes.append(Create(kinds.RESOURCE_CLAIM, {**claim, "metadata": protected}, meta["uid"]))
        meta = protected
    elif pod_claims.FINALIZER in (meta.get("finalizers") or ()):
        writes.append(Check(kinds.RESOURCE_CLAIM, meta["name"], meta["namespace"], meta["resourceVersion"]))
    else:
        writes.append(Replace(kinds.RESOURCE_CLAIM, {**claim, "metadata": protected}))
        meta = protected
    return [*writes, Replace(kinds.RESOURCE_CLAIM, {**claim, "metadata": _no_revision(meta), "status": status}, "status")]


def _no_revision(meta: Object) -> Object:
    """For a second write of the same object in one commit, whose first write was checked."""
    return {key: value for key, value in meta.items() if key != "resourceVersion"}


def _same_hardware(mine: Booking, twin: PublishedDevice, page: Page, host: str) -> Booking | None:
    """A booking of the hardware by its other name on this host, where one is on a page."""
    booked = (replace(one, hardware=one.hardware or tuple(sorted(twin.hardware))) for one in page.on(twin.id)
              if (one.node or page.host) == host)
    return next((one for one in booked if one.common_hardware(mine)), None)


def _without(page: Page, uids: set[str]) -> Object:
    return page.leaving(booking.key for booking in page.bookings if booking.holder.uid in uids)
