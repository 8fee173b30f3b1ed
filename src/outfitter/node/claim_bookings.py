"""What a claim holds here, on the pages: marked as prepared before a device is touched, released when nobody needs it. The page
is the fence: whatever a claim's status says, a device that is booked for another is not this one's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.page import Page, is_pool_page, pool_page
from outfitter.errors import AlreadyHeld
from outfitter.ledger import book
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.host import Host
from outfitter.node.host_audit import Keeper
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.informer import Informer, key_of


class ClaimBookings:
    def __init__(
        self, store: Store, keeper: Keeper, handover: ClaimPreparation, pages: Informer[Object], *, clock: Clock
    ) -> None:
        self._store, self._keeper, self._handover, self._pages, self._clock = store, keeper, handover, pages, clock
        self._pooled: dict[str, set[str]] = {}  # claim -> the pages of pools on which we prepared something for it
        pages.add_index("pools", lambda page: [""] if is_pool_page(page["metadata"]["name"]) else [])

    async def prepare(self, host: Host, claim: Object, results: Sequence[Mapping[str, str]]) -> set[str]:
        """Mark what the claim was given and return what of this host's is still to be booked for it: nothing, once all is
        marked. AlreadyHeld: another has one of them."""
        wanted = {result["device"] for result in ours(host, results)}
        held = await self._mark(host, claim["metadata"]["uid"], wanted)
        await self._mark_pools(host, claim, results)
        return wanted - held

    async def _mark(self, host: Host, uid: str, wanted: set[str]) -> set[str]:
        """The devices that a claim has prepared on this host, once all that are wanted are booked for it; until then those that
        are booked."""
        page = await book.read(self._store, host.name)
        bookings = page.of(uid)
        names = {booking.device.device for booking in bookings}
        for booking in page.bookings:
            device = booking.device
            if (device.driver, device.pool) == (host.driver, host.name) and device.device in wanted - names:
                raise AlreadyHeld(device.short, by=str(booking.holder), since=booking.since)
        if wanted <= names and any(booking.state != "prepared" for booking in bookings):
            used = [host.device(name) for name in sorted(wanted & self._keeper.once[host.name])]
            held = await book.mark(self._store, host.name, uid, "prepared", now=rfc3339(self._clock.now()), unclean=used)
            names = {booking.device.device for booking in held}
        return names

    async def _mark_pools(self, host: Host, claim: Object, results: Sequence[Mapping[str, str]]) -> None:
        """What a claim has of pools that no host owns is prepared too, so that nobody gets it while it is used here. Where it
        is not booked there is nothing to fence: that is for whoever drives it."""
        for name in sorted({pool_page(one["driver"], one["pool"]) for one in results
                            if (one["driver"], one["pool"]) != (host.driver, host.name)}):
            mine = (await book.read(self._store, name)).of(claim["metadata"]["uid"])
            if mine:
                self._pooled.setdefault(key_of(claim), set()).add(name)
            if any(booking.state != "prepared" for booking in mine):
                await book.mark(self._store, name, claim["metadata"]["uid"], "prepared", now=rfc3339(self._clock.now()))

    async def release(self, host: Host, namespace: str, claim: str) -> bool:
        """Give back what the claim of this name had prepared here; whether that was anything."""
        found = False
        pools = {page["metadata"]["name"] for page in self._pages.by("pools", "")}
        for name in [host.name, *sorted(self._pooled.pop(f"{namespace}/{claim}", set()) | pools)]:
            page = await book.read(self._store, name)
            for uid in dict.fromkeys(booking.holder.uid for booking in page.bookings if booking.state == "prepared" and (
                    booking.holder.kind, booking.holder.namespace, booking.holder.name) == (
                    kinds.RESOURCE_CLAIM.kind, namespace, claim) and booking.node in ("", host.name)):
                found = True
                if name == host.name:
                    await self._handover.release(host, uid)
                else:
                    await book.mark(self._store, name, uid, "released")
        return found

    async def release_all_but(self, host: Host, used: set[tuple[str, str]]) -> None:
        """Give back what is prepared here for claims (namespace and name) that nobody uses any more."""
        pages = [await book.read(self._store, host.name), *map(Page, self._pages.by("pools", ""))]
        for booking in [booking for page in pages for booking in page.bookings if booking.node in ("", host.name)]:
            place = (booking.holder.namespace, booking.holder.name)
            if booking.holder.kind == kinds.RESOURCE_CLAIM.kind and booking.state == "prepared" and place not in used:
                await self.release(host, *place)


def ours(host: Host, results: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """What of a claim's devices is this host's own."""
    return [result for result in results if (result["driver"], result["pool"]) == (host.driver, host.name)]
