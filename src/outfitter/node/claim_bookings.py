"""What a claim holds here, on the pages: recorded as prepared before a device is touched, released when no pod uses it.

The page is the exclusive check at prepare: whatever a claim's status contains, a device that is booked for another claim is not
prepared for this one, and neither is hardware that is held under another name. Called by the agent, which holds the host's
lock: nothing else on this host is prepared meanwhile, so that several pages can be compared."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from outfitter.api import kinds
from outfitter.api.device import DeviceId, hardware_key
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims
from outfitter.api.ledger_page.page import Booking, Holder, Page, hardware_error, held_error, pool_page
from outfitter.api.ledger_page.page_entries import well_formed
from outfitter.ledger import book
from outfitter.node import claim_hardware
from outfitter.node.agent_host import AgentHost
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.pool_pages import PoolPages
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.informer import key_of

NOTHING_FOUND: claim_hardware.Hardware = {}


class ClaimBookings:
    def __init__(self, store: Store, preparation: ClaimPreparation, pools: PoolPages, *, clock: Clock) -> None:
        self._store, self._preparation, self._pools, self._clock = store, preparation, pools, clock
        self._pooled: dict[str, set[str]] = {}  # claim -> pages of pools on which this process recorded it as prepared
        self._hardware: dict[tuple[str, str], frozenset[str]] = {}  # host and claim -> what this process recorded for it

    async def prepare(
        self, host: AgentHost, claim: Object, results: Sequence[Mapping[str, str]],
        found: claim_hardware.Hardware = NOTHING_FOUND,
    ) -> set[str]:
        """Record what is allocated to the claim as prepared, and return those of its devices that are not booked for it yet:
        of this host, and of other drivers that say which hardware they are. None, once all are recorded. AlreadyHeld: another
        claim has one of them, or its hardware under another name. `found`: hardware of devices that their drivers do not
        publish now."""
        uid = claim["metadata"]["uid"]
        held = [(name, await book.read(self._store, name)) for name in await self._pages_of(host, results)]
        hardware = {**await self._known_hardware(host, results, [page for _, page in held]), **found}
        booked = {booking.device for _, page in held for booking in page.of(uid)}
        own = {device for device in map(_device, results) if (device.driver, device.pool) == (host.driver, host.name)}
        missing = {device for device in map(_device, _exclusive(results)) if device in hardware or device in own} | own
        missing -= booked
        self._check(host, claim, missing, hardware, [page for _, page in held])
        now = rfc3339(self._clock.now())
        for name, page in held if not missing else ():
            bookings = page.of(uid)
            if bookings and name != host.name:
                self._pooled.setdefault(key_of(claim), set()).add(name)
            fresh = any(booking.state != "prepared" or hardware.get(booking.device, booking.hardware) != booking.hardware
                        for booking in bookings)
            if fresh:
                used = [host.device(each) for each in sorted({device.device for device in own} & host.single_use)]
                await book.set_state(self._store, name, uid, "prepared", now=now, unclean=used if name == host.name else (),
                                     hardware=hardware, node="" if name == host.name else host.name, known=page)
        recorded = {booking.device: booking.hardware for _, page in held for booking in page.of(uid)} | hardware
        mine = (recorded.get(device, ()) for device in map(_device, results))
        self._hardware[host.name, uid] = frozenset(key for keys in mine for key in keys)
        return {device.device for device in missing}

    async def _pages_of(self, host: AgentHost, results: Sequence[Mapping[str, str]]) -> list[str]:
        """The pages on which hardware of this host may be recorded: its own, and those of pools that no host owns."""
        pools = {pool_page(device.driver, device.pool) for device in map(_device, results)
                 if (device.driver, device.pool) != (host.driver, host.name)}
        pools |= {page["metadata"]["name"] for page in await self._pools.all()
                  if any(bookings[0].node == host.name for bookings in well_formed(page))}
        return [host.name, *sorted(pools)]

    async def _known_hardware(
        self, host: AgentHost, results: Sequence[Mapping[str, str]], pages: Sequence[Page]
    ) -> claim_hardware.Hardware:
        """What the claim's devices are, and those that others hold here and whose bookings do not record it."""
        others = {booking.device for page in pages for booking in page.bookings
                  if booking.counted and not booking.hardware and _is_here(booking, page, host)}
        return await claim_hardware.hardware(self._store, host, {*map(_device, _exclusive(results)), *others})

    def _check(
        self, host: AgentHost, claim: Object, missing: Collection[DeviceId], hardware: claim_hardware.Hardware,
        pages: Sequence[Page],
    ) -> None:
        """Before anything is written: AlreadyHeld where another booking has a device that is not booked for the claim, or the
        hardware of one of its devices under another name, on whichever page."""
        there = [booking for page in pages for booking in page.bookings if _is_here(booking, page, host)]
        for booking in there:
            if booking.device in missing and booking.counted and not booking.shared:
                raise held_error(booking)
        meta, now = claim["metadata"], rfc3339(self._clock.now())
        own = [booking for page in pages for booking in page.of(meta["uid"])]
        holder = Holder(kinds.RESOURCE_CLAIM.kind, meta["namespace"], meta["name"], meta["uid"])
        unbooked = [Booking(device, holder, "", "booked", now) for device in sorted(missing, reverse=True)]
        if rival := book.hardware_rival([*own, *unbooked], [*there, *unbooked], hardware):
            booking, taken = rival
            raise hardware_error(booking, taken if taken.since != now else replace(taken, since=""))

    def unrecorded(self, host: AgentHost, claims: Iterable[Object], sources: Iterable[str]) -> set[str]:
        """What of the hardware that a domain is about to get (addresses and UUIDs) is not recorded for its claims."""
        known = (self._hardware.get((host.name, claim["metadata"]["uid"]), frozenset()) for claim in claims)
        return {hardware_key(source) for source in sources}.difference(*known)

    async def hardware_of(self, host: AgentHost, uid: str) -> set[str]:
        """What is recorded for a holder on the host's page."""
        return {key for booking in (await book.read(self._store, host.name)).of(uid) for key in booking.hardware}

    async def record(self, host: AgentHost, claims: Sequence[Object], hardware: Collection[str]) -> None:
        """Record hardware that a domain is about to get, and that no driver publishes now, for the device of its claims of
        which nothing is known. AlreadyHeld: another claim has it; also where it comes from no claim (a device plugin's)."""
        for claim in claims if hardware else ():
            results = pod_claims.allocation_results(claim)
            pages = [await book.read(self._store, name) for name in await self._pages_of(host, results)]
            for booking in (booking for page in pages for booking in page.of(claim["metadata"]["uid"])):
                if booking.counted and not booking.hardware:
                    await self.prepare(host, claim, results, {booking.device: tuple(sorted(hardware))})
                    return
        own = {claim["metadata"]["uid"] for claim in claims}
        for booking in (await book.read(self._store, host.name)).bookings if hardware else ():
            if (booking.state == "prepared" and booking.counted and booking.holder.uid not in own
                    and not set(hardware).isdisjoint(booking.hardware)):
                raise held_error(booking)

    async def release(self, host: AgentHost, namespace: str, claim: str) -> bool:
        """Unprepare and release what the claim of this name had prepared here; whether that was anything."""
        found = False
        pools = {page["metadata"]["name"] for page in await self._pools.all()}
        for name in [host.name, *sorted(self._pooled.pop(f"{namespace}/{claim}", set()) | pools)]:
            page = await book.read(self._store, name)
            for uid in dict.fromkeys(booking.holder.uid for booking in page.bookings if booking.state == "prepared" and (
                    booking.holder.kind, booking.holder.namespace, booking.holder.name) == (
                    kinds.RESOURCE_CLAIM.kind, namespace, claim) and booking.node in ("", host.name)):
                found = True
                await self._release(host, page, uid)
        return found

    async def release_uid(self, host: AgentHost, namespace: str, name: str, uid: str) -> None:
        """Unprepare and release what one claim has prepared here; another claim of its name is left alone. The claim may be
        gone, and what was done for it may be recorded in the checkpoint alone."""
        pools = {page["metadata"]["name"] for page in await self._pools.all()
                 if any(booking.node == host.name for booking in Page(page).of(uid))}
        for page_name in [host.name, *sorted(self._pooled.pop(f"{namespace}/{name}", set()) | pools)]:
            taken = page_name == host.name and host.env is not None and bool(host.env.checkpoint.of(uid))
            page = await book.read(self._store, page_name)
            if taken or any(booking.state == "prepared" and booking.node in ("", host.name) for booking in page.of(uid)):
                await self._release(host, page, uid)

    async def _release(self, host: AgentHost, page: Page, uid: str) -> None:
        self._hardware.pop((host.name, uid), None)
        if page.host == host.name:
            await self._preparation.unprepare(host, uid, page)
        else:
            await book.set_state(self._store, page.host, uid, "released", known=page)

    async def release_unused(self, host: AgentHost, used: set[tuple[str, str]], page: Page) -> None:
        """Release what is prepared here, by the host's page and those of pools, for claims that are not among `used` (namespace
        and name)."""
        pages = [page, *map(Page, await self._pools.all())]
        for booking in [booking for page in pages for booking in page.bookings if booking.node in ("", host.name)]:
            claim = (booking.holder.namespace, booking.holder.name)
            if booking.holder.kind == kinds.RESOURCE_CLAIM.kind and booking.state == "prepared" and claim not in used:
                await self.release(host, *claim)


def _is_here(booking: Booking, page: Page, host: AgentHost) -> bool:
    """Whether a booking of this page is of something on this host."""
    return booking.node == ("" if page.host == host.name else host.name)


def _device(result: Mapping[str, str]) -> DeviceId:
    return DeviceId(result["driver"], result["pool"], result["device"])


def _exclusive(results: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Admin access holds no hardware."""
    return [result for result in results if not result.get("adminAccess")]


def ours(host: AgentHost, results: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Those of a claim's devices that this host publishes."""
    return [result for result in results if (result["driver"], result["pool"]) == (host.driver, host.name)]
