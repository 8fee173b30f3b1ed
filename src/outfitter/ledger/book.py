"""The steps of a booking, each one replacement of a page at the revision at which it was read.

Where the store can (`atomic`), what must happen together with a step (a claim's status, a pod's node) is committed with it.
Where it cannot, the caller writes the rest after it, and `heal` finds what a crash left between."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.page import Booking, Page, State
from outfitter.errors import AlreadyExists, AlreadyHeld, Conflict, NotFound
from outfitter.store.base import Create, Replace, Store, Write

TRIES = 16  # a page is contended by at most the bookings of one host


async def read(store: Store, host: str) -> Page:
    """The page of a host; a host without one has an empty one."""
    try:
        return Page(await store.get(kinds.LEDGER_PAGE, host))
    except NotFound:
        return Page(Page.blank(host))


async def book(store: Store, host: str, bookings: Sequence[Booking], *, also: Sequence[Write] = ()) -> None:
    """Book everything, or nothing. AlreadyHeld says who stands in the way; Conflict: somebody wrote since, read again.
    `also` is written in the same step, or not at all; only where the store is atomic."""
    page = await read(store, host)
    await _write(store, page, page.holding(bookings), also)


async def mark(store: Store, host: str, uid: str, state: State) -> tuple[Booking, ...]:
    """Everything that a holder has on this host goes into a state; what it has. The fence: a holder whose device somebody
    else holds too gets AlreadyHeld, so that of two that were promised one card only one starts."""

    def change(page: Page) -> Object:
        for booking in page.of(uid) if state == "prepared" else ():
            for rival in page.rivals(booking):
                if rival.state == "prepared":
                    raise AlreadyHeld(booking.device.short, by=str(rival.holder), since=rival.since)
        return page.marked(uid, state)

    page = await _change(store, host, change)
    return page.of(uid)


async def release(store: Store, host: str, uid: str, *, device: DeviceId | None = None, also: Sequence[Write] = ()) -> None:
    """Nothing of the holder is left on this page (or not that device)."""
    await _change(store, host, lambda page: page.without(uid, device), also)


async def _change(store: Store, host: str, change: Callable[[Page], Object], also: Sequence[Write] = ()) -> Page:
    for _ in range(TRIES - 1):
        page = await read(store, host)
        try:
            await _write(store, page, change(page), also)
        except AlreadyHeld:
            raise
        except (Conflict, AlreadyExists):
            if also:  # what goes along was read earlier: its reader must read it again
                raise
            continue
        return page
    page = await read(store, host)
    await _write(store, page, change(page), also)
    return page


async def _write(store: Store, page: Page, new: Object, also: Sequence[Write]) -> None:
    if new == page.object and not also:
        return
    writes: list[Write] = [*also]
    if new != page.object or not page.revision:
        writes.insert(0, Replace(kinds.LEDGER_PAGE, new) if page.revision else Create(kinds.LEDGER_PAGE, new))
    if also:
        await store.commit(writes)
    elif page.revision:
        await store.replace(kinds.LEDGER_PAGE, new)
    else:
        await store.create(kinds.LEDGER_PAGE, new)
