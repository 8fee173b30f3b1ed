"""Mirrors allocations into pages in a cluster, where a claim's status is the truth: an allocation is booked on the host's page
(or on that of a pool which no host owns), and the booking is removed when it is deallocated and the host has released it. The
node agent turns booked into prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from outfitter.api import allocation, kinds, rejection_text
from outfitter.api.device import DeviceId, hardware_of, newest
from outfitter.api.kinds import Object
from outfitter.api.page import Booking, Holder, Limits, Page, claim_keys, is_pool_page, pool_page
from outfitter.api.rejection import Rejection
from outfitter.controllers.bind_transaction import holder_purpose
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.errors import AlreadyHeld, OutOfService
from outfitter.ledger import book
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
        self._claims.add_index("driver and pool", lambda claim: {pool for pool, _ in _results(claim)})
        self._slices.add_index("driver and pool", _pool_of)
        enqueue_on_change(self._slices, self.queue, lambda piece: [
            key_of(claim) for pool in _pool_of(piece) for claim in self._claims.by("driver and pool", pool)])
        enqueue_on_change(self._claims, self.queue)
        enqueue_on_change(self._pages, self.queue, claim_keys)
        enqueue_on_change(self._pages, self.queue, self._unbooked_claims)

    def _unbooked_claims(self, page: Object) -> list[str]:
        """Claims with an allocation on a host that are not booked on its page: another booking was in the way."""
        there = set(claim_keys(page))
        return [key for key in map(key_of, self._claims.by("page", page["metadata"]["name"])) if key not in there]

    async def reconcile(self, key: str) -> float | None:
        claim = self._claims.get(key)
        allocated = self._allocated(claim) if claim else {}
        for page in map(Page, self._pages.by("claim", key)):
            await self._drop(page, key, allocated.get(page.host, ()))
        for host, bookings in allocated.items():
            try:
                await book.book(self._store, host, bookings, limits=self._limits(bookings))
            except (AlreadyHeld, OutOfService) as error:
                assert claim is not None
                why: Rejection | None = error.rejection
                own = why is not None and why.holder is not None and why.holder.uid == claim["metadata"]["uid"]
                message = rejection_text.render(replace(why, since="")) if why is not None and own else str(error)
                await self._context.events.warning(claim, "DeviceNotAvailable", f"{message}: the VM cannot start with it")
                raise
        return None

    async def _drop(self, page: Page, key: str, keep: tuple[Booking, ...]) -> None:
        """Bookings of this claim's name that are no longer allocated, unless the host still has them prepared."""
        wanted = {(booking.holder.uid, booking.device) for booking in keep}
        for booking in page.bookings:
            holder = booking.holder
            if f"{holder.namespace}/{holder.name}" == key and booking.state != "prepared" \
                    and (holder.uid, booking.device) not in wanted:
                await book.release(self._store, page.host, holder.uid, device=booking.device)

    def _allocated(self, claim: Object) -> dict[str, tuple[Booking, ...]]:
        """The bookings of a claim's allocation, by page."""
        meta, users = claim["metadata"], (claim.get("status") or {}).get("reservedFor") or ()
        pods = [self._pods.get(f"{meta['namespace']}/{user['name']}") for user in users if user.get("resource") == "pods"]
        there = [pod for pod in pods if pod is not None]
        holder = Holder(
            kinds.RESOURCE_CLAIM.kind, meta["namespace"], meta["name"], meta["uid"], ", ".join(map(holder_purpose, there))
        )
        nodes = {pod["spec"]["nodeName"] for pod in there if pod["spec"].get("nodeName")}
        node, now = next(iter(nodes)) if len(nodes) == 1 else "", self._context.now()
        out: dict[str, tuple[Booking, ...]] = {}
        for _, result in _results(claim):
            device, page = DeviceId(result["driver"], result["pool"], result["device"]), self._page(claim, result)
            # A device that may not be shared is taken whole; admin access does not hold it.
            share = result if result.get("adminAccess") or self._capacity(device) is not None else {}
            amount = allocation.booked_amount(share, self._counters(device))
            booking = Booking(device, holder, str(result["request"]), "booked", now, amount,
                              node=node if is_pool_page(page) else "", hardware=self._hardware(device, node or page))
            out[page] = (*out.get(page, ()), booking)
        return out

    def _page(self, claim: Object, result: Mapping[str, Any]) -> str:
        """The page on which an allocated device is booked: its host's, or its pool's when several hosts reach it. A device
        that is no longer published stays on its page."""
        given, pool = claim["status"]["allocation"], (result["driver"], result["pool"])
        nodes = {piece["spec"].get("nodeName") or "" for piece in self._slices.by("driver and pool", "/".join(pool))}
        if not nodes:
            device = DeviceId(*pool, result["device"])
            booked = [page.host for page in map(Page, self._pages.by("claim", key_of(claim)))
                      if any(booking.device == device for booking in page.of(claim["metadata"]["uid"]))]
            return booked[0] if booked else allocation.host_of(given, result)
        return nodes.pop() if len(nodes) == 1 and "" not in nodes else pool_page(*pool)


    def _capacity(self, device: DeviceId) -> dict[str, str] | None:
        """How much there is of each capacity of a device that may be shared; None: it may not, or it is not published."""
        for piece in self._slices.by("driver and pool", f"{device.driver}/{device.pool}"):
            for each in piece["spec"].get("devices") or ():
                if each["name"] == device.device and each.get("allowMultipleAllocations"):
                    return {name: str(amount["value"]) for name, amount in (each.get("capacity") or {}).items()}
        return None

    def _counters(self, device: DeviceId) -> dict[str, dict[str, str]]:
        """What the device consumes of the shared counters of its pool, by counter set."""
        for piece in self._slices.by("driver and pool", f"{device.driver}/{device.pool}"):
            for each in piece["spec"].get("devices") or ():
                if each["name"] == device.device:
                    return {use["counterSet"]: _values(use.get("counters")) for use in each.get("consumesCounters") or ()}
        return {}

    def _hardware(self, device: DeviceId, host: str) -> tuple[str, ...]:
        """What the device is on a host, as its driver publishes it; empty: not known."""
        found: set[str] = set()
        for piece in newest(self._slices.by("driver and pool", f"{device.driver}/{device.pool}")):
            for each in piece["spec"].get("devices") or ():
                where = each.get("nodeName") or piece["spec"].get("nodeName") or host
                if each["name"] == device.device and where == host:
                    found |= hardware_of(each, device.driver)
        return tuple(sorted(found))

    def _limits(self, bookings: Sequence[Booking]) -> Limits:
        shared = {one.device: self._capacity(one.device) for one in bookings if one.shared}
        pools = {(one.device.driver, one.device.pool) for one in bookings}
        counters = {(driver, pool, each["name"]): _values(each.get("counters")) for driver, pool in pools
                    for piece in self._slices.by("driver and pool", f"{driver}/{pool}")
                    for each in piece["spec"].get("sharedCounters") or ()}
        return Limits({device: capacity for device, capacity in shared.items() if capacity is not None}, counters)


def _results(claim: Object) -> list[tuple[str, Mapping[str, Any]]]:
    """The devices of a claim's allocation, each with its pool."""
    given = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return [(f"{result['driver']}/{result['pool']}", result) for result in given.get("results") or ()]


def _values(counters: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(counter["value"]) for name, counter in (counters or {}).items()}


def _pool_of(piece: Object) -> list[str]:
    return [f"{piece['spec']['driver']}/{piece['spec']['pool']['name']}"]


def _possible_pages(claim: Object) -> set[str]:
    """The pages on which a claim's allocation can be booked."""
    given = (claim.get("status") or {}).get("allocation") or {}
    return allocation.hosts(given) | {pool_page(result["driver"], result["pool"]) for _, result in _results(claim)}
