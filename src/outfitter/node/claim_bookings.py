"""What a claim holds here, on the pages: recorded as prepared before a device is touched, released when no pod uses it.

The page is the exclusive check at prepare: whatever a claim's status contains, a device that is booked for another claim is not
prepared for this one. Called by the agent, which holds the host's lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.page import Page, is_pool_page, pool_page
from outfitter.errors import AlreadyHeld
from outfitter.ledger import book
from outfitter.node.agent_host import AgentHost
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.informer import Informer, key_of


class ClaimBookings:
    def __init__(self, store: Store, preparation: ClaimPreparation, pages: Informer[Object], *, clock: Clock) -> None:
        self._store, self._preparation, self._pages, self._clock = store, preparation, pages, clock
        self._pooled: dict[str, set[str]] = {}  # claim -> pages of pools on which this process recorded it as prepared
        pages.add_index("pools", lambda page: [""] if is_pool_page(page["metadata"]["name"]) else [])

    async def prepare(self, host: AgentHost, claim: Object, results: Sequence[Mapping[str, str]]) -> set[str]:
        """Record what is allocated to the claim as prepared, and return those devices of this host that are not booked for it
        yet: none, once all are recorded. AlreadyHeld: another claim has one of them."""
        wanted = {result["device"] for result in ours(host, results)}
        held = await self._record(host, claim["metadata"]["uid"], wanted)
        await self._record_pools(host, claim, results)
        return wanted - held

    async def _record(self, host: AgentHost, uid: str, wanted: set[str]) -> set[str]:
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
            used = [host.device(name) for name in sorted(wanted & host.single_use)]
            held = await book.set_state(self._store, host.name, uid, "prepared", now=rfc3339(self._clock.now()), unclean=used)
            names = {booking.device.device for booking in held}
        return names

    async def _record_pools(self, host: AgentHost, claim: Object, results: Sequence[Mapping[str, str]]) -> None:
        """What a claim has of pools that no host owns is recorded as prepared too, so that it is not allocated again while it
        is used here. A device that is not booked on a pool's page is left to the driver that publishes it."""
        for name in sorted({pool_page(result["driver"], result["pool"]) for result in results
                            if (result["driver"], result["pool"]) != (host.driver, host.name)}):
            bookings = (await book.read(self._store, name)).of(claim["metadata"]["uid"])
            if bookings:
                self._pooled.setdefault(key_of(claim), set()).add(name)
            if any(booking.state != "prepared" for booking in bookings):
                await book.set_state(self._store, name, claim["metadata"]["uid"], "prepared", now=rfc3339(self._clock.now()))

    async def release(self, host: AgentHost, namespace: str, claim: str) -> bool:
        """Unprepare and release what the claim of this name had prepared here; whether that was anything."""
        found = False
        pools = {page["metadata"]["name"] for page in self._pages.by("pools", "")}
        for name in [host.name, *sorted(self._pooled.pop(f"{namespace}/{claim}", set()) | pools)]:
            page = await book.read(self._store, name)
            for uid in dict.fromkeys(booking.holder.uid for booking in page.bookings if booking.state == "prepared" and (
                    booking.holder.kind, booking.holder.namespace, booking.holder.name) == (
                    kinds.RESOURCE_CLAIM.kind, namespace, claim) and booking.node in ("", host.name)):
                found = True
                if name == host.name:
                    await self._preparation.unprepare(host, uid)
                else:
                    await book.set_state(self._store, name, uid, "released")
        return found

    async def release_unused(self, host: AgentHost, used: set[tuple[str, str]]) -> None:
        """Release what is prepared here for claims that are not among `used` (namespace and name)."""
        pages = [await book.read(self._store, host.name), *map(Page, self._pages.by("pools", ""))]
        for booking in [booking for page in pages for booking in page.bookings if booking.node in ("", host.name)]:
            claim = (booking.holder.namespace, booking.holder.name)
            if booking.holder.kind == kinds.RESOURCE_CLAIM.kind and booking.state == "prepared" and claim not in used:
                await self.release(host, *claim)


def ours(host: AgentHost, results: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Those of a claim's devices that this host publishes."""
    return [result for result in results if (result["driver"], result["pool"]) == (host.driver, host.name)]
