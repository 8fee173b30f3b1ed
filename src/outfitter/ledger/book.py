"""The steps of a booking, each one replacement of a page at the revision at which it was read.

Where the store can (`atomic`), what must happen together with a step (a claim's status, a pod's node) is committed with it.
Where it cannot, the caller writes the rest after it, and `heal` finds what a crash left between. Whatever leaves a page goes
into the history here, so that no caller can forget it.

`now` is the time for what is written; without one the store's clock says it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.page import Booking, Holder, Limits, OutOfServiceRecord, Page, State
from outfitter.errors import AlreadyExists, AlreadyHeld, Conflict, NotFound
from outfitter.ledger import history
from outfitter.store.base import Create, Replace, Store, Write

TRIES = 16  # a page is contended by at most the bookings of one host
USED_ONCE = "used once"  # why a device that is for one use must be cleaned


async def read(store: Store, host: str) -> Page:
    """The page of a host; a host without one has an empty one."""
    try:
        return Page(await store.get(kinds.LEDGER_PAGE, host))
    except NotFound:
        return Page(Page.blank(host))


async def book(
    store: Store, host: str, bookings: Sequence[Booking], *, limits: Limits | None = None, also: Sequence[Write] = ()
) -> None:
    """Book everything, or nothing. AlreadyHeld says who stands in the way, OutOfService why the device is not given away;
    Conflict: somebody wrote since, read again. Shares and counters are counted against `limits`.
    `also` is written in the same step, or not at all; only where the store is atomic."""
    await book_pages(store, {host: bookings}, limits=limits, also=also)


async def book_pages(
    store: Store, wanted: Mapping[str, Sequence[Booking]], *, limits: Limits | None = None, also: Sequence[Write] = ()
) -> None:
    """As `book`, over several pages (a host's, and those of pools that no host owns): in one commit where the store is atomic,
    else page after page, and doing it again finishes what a crash left."""
    pages = [await read(store, name) for name in wanted]
    changes = [(page, page.holding(wanted[page.host], limits)) for page in pages]  # all fit, or nothing is written
    if len(changes) == 1 or not (store.atomic or also):
        for page, new in changes:
            await _write(store, page, new, also)
    elif writes := [*[write for page, new in changes for write in await page_writes(store, page, new)], *also]:
        await store.commit(writes)


async def set_state(
    store: Store, host: str, uid: str, state: State, *, now: str = "", unclean: Collection[DeviceId] = ()
) -> tuple[Booking, ...]:
    """Everything that a holder has on this host goes into a state; what it has. The fence: a holder whose device somebody
    else holds too gets AlreadyHeld, so that of two that were promised one card only one starts.
    `unclean` are devices for one use: those that become prepared must be cleaned before anybody else gets them, and the same
    write says so."""
    moment = now or history.clock_time(store)

    def change(page: Page) -> Object:
        if state != "prepared":
            return page.marked(uid, state)
        mine = page.of(uid)
        for booking in mine:
            for rival in page.rivals(booking):
                if rival.state == "prepared":
                    raise AlreadyHeld(booking.device.short, by=str(rival.holder), since=rival.since)
        return record_used_once(Page(page.marked(uid, state, moment)), [one for one in mine if one.device in unclean], moment)

    page = await change_page(store, host, change)
    return page.of(uid)


def record_used_once(page: Page, bookings: Sequence[Booking], now: str) -> Object:
    """The page on which devices for one use that somebody has must be cleaned before anybody else gets them."""
    known = {mark.device for mark in page.unclean}
    used = [
        OutOfServiceRecord(one.device, USED_ONCE, str(one.holder), now or one.since)
        for one in bookings
        if one.device not in known
    ]
    return page.with_marks("unclean", used) if used else page.object


async def release(
    store: Store, host: str, uid: str, *, device: DeviceId | None = None, now: str = "", also: Sequence[Write] = ()
) -> None:
    """Nothing of the holder is left on this page (or not that device)."""
    await change_page(store, host, lambda page: page.without(uid, device), now=now, also=also)


async def release_pages(
    store: Store, names: Sequence[str], uid: str, *, now: str = "", also: Sequence[Write] = ()
) -> None:
    """Nothing of the holder is left on any of these pages; where the store is atomic in one commit, else the caller does it
    again after a crash."""
    if len(names) <= 1 or not (store.atomic or also):
        for name in names:
            await release(store, name, uid, now=now, also=also)
        return
    pages = [await read(store, name) for name in names]
    writes = [write for page in pages for write in await page_writes(store, page, page.without(uid), now=now)]
    await store.commit([*writes, *also])


async def move(store: Store, host: str, uid: str, holder: Holder, *, now: str = "", also: Sequence[Write] = ()) -> None:
    """Everything of one holder on this host is another's from now on."""
    moment = now or history.clock_time(store)
    await change_page(store, host, lambda page: page.moved(uid, holder, moment), now=moment, also=also,
                      how=lambda _: f"moved to {holder}")


async def transfer(
    store: Store, source: str, target: str, uid: str, bookings: Sequence[Booking], *, limits: Limits | None = None,
    now: str = "", also: Sequence[Write] = (),
) -> None:
    """What a holder has on one host becomes these bookings on another (or on the same): the new ones first, then the old ones
    go, and in one commit where the store is atomic. Where it is not, a crash between leaves both, never neither; doing it
    again finishes it."""

    def how(_: Booking) -> str:
        return f"moved to {target}"

    if source == target:
        exact = all(booking.holder.uid == uid for booking in bookings)
        await change_page(store, source, lambda page: page.only(uid, bookings, limits) if exact else Page(
            page.holding(bookings, limits)).without(uid), now=now, also=also, how=how)
        return
    if not store.atomic and not also:
        await change_page(store, target, lambda page: page.holding(bookings, limits), now=now)
        await change_page(store, source, lambda page: page.without(uid), now=now, how=how)
        return
    for tries_left in reversed(range(TRIES)):
        new, old = await read(store, target), await read(store, source)
        writes = [*await page_writes(store, new, new.holding(bookings, limits), now=now),
                  *await page_writes(store, old, old.without(uid), now=now, how=how), *also]
        try:
            if writes:
                await store.commit(writes)
        except (Conflict, AlreadyExists):
            if also or not tries_left:
                raise
            continue
        return


async def change_page(
    store: Store, host: str, change: Callable[[Page], Object], *, now: str = "", also: Sequence[Write] = (),
    how: history.How = lambda _: history.RELEASED,
) -> Page:
    """Change a page, reading it again whenever somebody else was faster; the page as it was before. Everything that changes
    pages goes through here or `steps`."""
    for _ in range(TRIES - 1):
        page = await read(store, host)
        new = change(page)  # what it raises is its answer, not a reason to try again
        try:
            await _write(store, page, new, also, now=now, how=how)
        except (Conflict, AlreadyExists):
            if also:  # what goes along was read earlier: its reader must read it again
                raise
            continue
        return page
    page = await read(store, host)
    await _write(store, page, change(page), also, now=now, how=how)
    return page


async def page_writes(
    store: Store, page: Page, new: Object, *, now: str = "", how: history.How = lambda _: history.RELEASED
) -> list[Write]:
    """What to commit for a page to become another: the page, and the history of what leaves it. For those who change several
    pages in one commit."""
    if new is page.object or new == page.object:
        return []
    ended = history.ended_records(page, Page(new), now=now or history.clock_time(store), how=how)
    return [_page(page, new), *[await history.record_write(store, one) for one in ended]]


async def _write(
    store: Store, page: Page, new: Object, also: Sequence[Write], *, now: str = "",
    how: history.How = lambda _: history.RELEASED,
) -> None:
    if store.atomic or also:
        writes = [*await page_writes(store, page, new, now=now, how=how), *also]
        if len(writes) == 1 and not also:
            await _write_page(store, page, new)
        elif writes:
            await store.commit(writes)
    elif new is not page.object and new != page.object:
        for ended in history.ended_records(page, Page(new), now=now or history.clock_time(store), how=how):
            await history.write_record(store, ended)
        await _write_page(store, page, new)


async def _write_page(store: Store, page: Page, new: Object) -> None:
    if page.revision:
        await store.replace(kinds.LEDGER_PAGE, new)
    else:
        await store.create(kinds.LEDGER_PAGE, new)


def _page(page: Page, new: Object) -> Write:
    return Replace(kinds.LEDGER_PAGE, new) if page.revision else Create(kinds.LEDGER_PAGE, new)
