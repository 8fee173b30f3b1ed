"""Mirrors allocations into pages in a cluster, where a claim's status is the truth: an allocation is booked on the host's page
(or on that of a pool which no host owns), and the booking is removed when it is deallocated and the host has released it. The
node agent turns booked into prepared.

A claim whose bookings are on the cached page costs no request, and a change of a page concerns the claims whose bookings it
changed and those that wait for a device, not all that are on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import replace

from outfitter.api import allocation, kinds, rejection_text
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Page, pool_page
from outfitter.api.ledger_page.page_entries import changed_claims, claim_keys
from outfitter.api.rejection import Rejection
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.errors import AlreadyExists, AlreadyHeld, Conflict, NotFound, OutOfService, Unsatisfiable
from outfitter.ledger import book
from outfitter.ledger.allocation_bookings import AllocationBookings, results_by_pool
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue


class LedgerMirror:
    name = "ledger_mirror"
    kind = kinds.RESOURCE_CLAIM  # of its keys

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._store = context, context.store
        self.queue = WorkQueue(context.clock)
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._pods = context.informer(kinds.POD)
        self._pages = context.informer(kinds.LEDGER_PAGE)
        self._slices = context.informer(kinds.RESOURCE_SLICE)
        self._pages.add_index("claim", claim_keys)
        self._claims.add_index("page", _possible_pages)
        self._claims.add_index("driver and pool", lambda claim: {pool for pool, _ in results_by_pool(claim)})
        self._slices.add_index("driver and pool", _pool_of)
        self._parsed_pages: dict[str, Page] = {}
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # page -> so that our own writes do not conflict
        self._bookings = AllocationBookings(lambda pool: self._slices.by("driver and pool", pool), self._booked_on)
        enqueue_on_change(self._slices, self.queue, lambda piece: [
            key_of(claim) for pool in _pool_of(piece) for claim in self._claims.by("driver and pool", pool)])
        enqueue_on_change(self._claims, self.queue, reads=_identity_and_status)
        self._pages.on_change(self._page_changed)

    def _page_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            self._parsed_pages.pop(old["metadata"]["name"], None)
        page: Object = new or old or {}
        waiting = set(map(key_of, self._claims.by("page", page["metadata"]["name"]))).difference(claim_keys(new or {}))
        for key in changed_claims(old, new) | waiting:  # allocated there and not booked: another booking was in the way
            self.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        claim = self._claims.get(key)
        allocated = await self._allocated(claim) if claim else {}
        for page in map(self._parsed, self._pages.by("claim", key)):
            async with self._locks[page.host]:
                await self._drop(page, key, allocated.get(page.host, ()))
        for host, bookings in allocated.items():
            try:
                async with self._locks[host]:
                    await self._book(host, bookings)
            except (AlreadyHeld, OutOfService) as error:
                assert claim is not None
                why: Rejection | None = error.rejection
                own = why is not None and why.holder is not None and why.holder.uid == claim["metadata"]["uid"]
                message = rejection_text.render(replace(why, since="")) if why is not None and own else str(error)
                await self._context.events.warning(claim, "DeviceNotAvailable", f"{message}: the VM cannot start with it")
                raise
        return None

    async def _book(self, host: str, bookings: tuple[Booking, ...]) -> None:
        """On the page as it is cached, or on a new one; if that does not work, as it is stored."""
        limits, cached = self._bookings.limits(bookings), self._pages.get(host)
        known = self._parsed(cached) if cached is not None else Page(Page.blank(host))
        try:
            written = await book.book(self._store, host, bookings, limits=limits, known=known)
        except (AlreadyExists, AlreadyHeld, Conflict, NotFound, OutOfService, Unsatisfiable):  # the cache may be late
            written = await book.book(self._store, host, bookings, limits=limits)
        self._keep(written)

    def _parsed(self, cached: Object) -> Page:
        """A cached page, parsed once for each of its versions."""
        name = cached["metadata"]["name"]
        if (known := self._parsed_pages.get(name)) is None or known.object is not cached:
            self._parsed_pages[name] = known = Page(cached)
        return known

    def _keep(self, written: Object | None) -> None:
        if written is not None:
            self._pages.put(written)

    async def _drop(self, page: Page, key: str, keep: tuple[Booking, ...]) -> None:
        """Bookings of this claim's name that are no longer allocated, unless the host still has them prepared."""
        wanted = {(booking.holder.uid, booking.device) for booking in keep}
        for booking in page.bookings:
            holder = booking.holder
            if f"{holder.namespace}/{holder.name}" == key and booking.state != "prepared" \
                    and (holder.uid, booking.device) not in wanted:
                await book.release(self._store, page.host, holder.uid, device=booking.device, keep_prepared=True)

    async def _allocated(self, claim: Object) -> dict[str, tuple[Booking, ...]]:
        """The bookings of a claim's allocation, by page. They name the pods that use it: pods of VMs are watched, others are
        read when the claim is booked."""
        namespace, users = claim["metadata"]["namespace"], (claim.get("status") or {}).get("reservedFor") or ()
        names = [user["name"] for user in users if user.get("resource") == "pods"]
        pods = {name: pod for name in names if (pod := self._pods.get(f"{namespace}/{name}")) is not None}
        allocated = self._bookings.bookings(claim, list(pods.values()), self._context.now())
        if len(pods) == len(names) or all(self._is_booked(page, bookings) for page, bookings in allocated.items()):
            return allocated
        for name in names:
            if name not in pods:
                with contextlib.suppress(NotFound):
                    pods[name] = await self._store.get(kinds.POD, name, namespace)
        known = [pods[name] for name in names if name in pods]
        return self._bookings.bookings(claim, known, self._context.now())

    def _is_booked(self, page: str, bookings: tuple[Booking, ...]) -> bool:
        cached = self._pages.get(page)
        return cached is not None and {each.key for each in bookings} <= {each.key for each in self._parsed(cached).bookings}

    def _booked_on(self, claim: Object, device: DeviceId) -> str | None:
        return next((page.host for page in map(self._parsed, self._pages.by("claim", key_of(claim)))
                     if any(booking.device == device for booking in page.of(claim["metadata"]["uid"]))), None)


def _identity_and_status(claim: Object) -> tuple[str, object]:
    return claim["metadata"]["uid"], claim.get("status")


def _pool_of(piece: Object) -> list[str]:
    return [f"{piece['spec']['driver']}/{piece['spec']['pool']['name']}"]


def _possible_pages(claim: Object) -> set[str]:
    """The pages on which a claim's allocation can be booked."""
    given = (claim.get("status") or {}).get("allocation") or {}
    return allocation.hosts(given) | {pool_page(result["driver"], result["pool"]) for _, result in results_by_pool(claim)}
