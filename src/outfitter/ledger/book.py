"""Book, prepare, move and release devices: each function replaces one LedgerPage at the revision at which it was read.

With an `atomic` store, writes that belong to a change (a claim's status, a pod's node) are committed with it (`also`), and
before the page, whose rules (`api.validate.pages`) look at its holders. With a Kubernetes API server the caller writes them
afterwards, and `heal` finds what a crash left between. Every booking that leaves a page is recorded in the history here.
Chooses no device and touches no host.

`now` is the timestamp of the change; without it the store's clock is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder, Limits, OutOfServiceRecord, Page, State, hardware_error, held_error
from outfitter.errors import AlreadyExists, Conflict, NotFound
from outfitter.ledger import history
from outfitter.store.base import Create, Replace, Store, Write

UNKNOWN: Mapping[DeviceId, tuple[str, ...]] = {}
TRIES = 16  # attempts; the writers of one page are those of one host
USED_ONCE = "used once"  # reason of the unclean record of a one-time-use device


async def read(store: Store, host: str) -> Page:
    """The page of a host; an empty page for a host that has none."""
    try:
        return Page(await store.get(kinds.LEDGER_PAGE, host))
    except NotFound:
        return Page(Page.blank(host))


async def book(
    store: Store, host: str, bookings: Sequence[Booking], *, limits: Limits | None = None, also: Sequence[Write] = (),
    known: Page | None = None,
) -> Object | None:
    """Book all or nothing. AlreadyHeld names the current holder, OutOfService the reason; Conflict: the page was changed
    meanwhile, read again. Shares and counters are checked against `limits`. `also` is committed together with the page; atomic
    stores only. `known`: the page as the caller has it, which may be out of date. The page as it was written; None: it was not,
    or together with others."""
    return (await book_pages(store, {host: bookings}, limits=limits, also=also, known=known)).get(host)


async def book_pages(
    store: Store, wanted: Mapping[str, Sequence[Booking]], *, limits: Limits | None = None, also: Sequence[Write] = (),
    known: Page | None = None,
) -> dict[str, Object]:
    """As `book`, over several pages (a host's, and those of pools without a host): in one commit with an atomic store,
    otherwise page by page. After a crash between two pages, a second call completes it. The pages that were written one by
    one."""
    pages = [known if known is not None and known.host == name else await read(store, name) for name in wanted]
    changes = [(page, page.holding(wanted[page.host], limits)) for page in pages]  # raises before anything is written
    if len(changes) == 1 or not (store.atomic or also):
        written = {page.host: await _write(store, page, new, also) for page, new in changes}
        return {name: page for name, page in written.items() if page is not None}
    if writes := [*also, *[write for page, new in changes for write in await page_writes(store, page, new)]]:
        await store.commit(writes)
    return {}


async def set_state(
    store: Store, host: str, uid: str, state: State, *, now: str = "", unclean: Collection[DeviceId] = (),
    hardware: Mapping[DeviceId, tuple[str, ...]] = UNKNOWN, node: str = "", known: Page | None = None,
) -> tuple[Booking, ...]:
    """Set the state of all bookings of a holder on this host; returns these bookings. The exclusive check at prepare:
    AlreadyHeld when another holder has one of the devices prepared, so that of two holders of one device only one starts.
    The same for their `hardware`, which is recorded with the bookings: AlreadyHeld when it is held under another name
    (`hardware_rival`). `node`: the host that prepares, on a pool's page. `unclean` are one-time-use devices: those that become
    prepared are recorded as unclean in the same write. `known`: the page as the caller has just read it."""
    moment = now or history.clock_time(store)

    def change(page: Page) -> Object:
        if state != "prepared":
            return page.with_state(uid, state)
        if twin := hardware_rival(page.of(uid), [each for each in page.bookings if each.node == node], hardware):
            raise hardware_error(*twin)
        bookings = page.of(uid)
        if any(hardware.get(booking.device, booking.hardware) != booking.hardware for booking in bookings):
            page = Page(page.with_hardware(uid, hardware))
        for booking in bookings:
            for rival in page.rivals(booking):
                if rival.state == "prepared":
                    raise held_error(rival)
        used = [booking for booking in bookings if booking.device in unclean]
        changed = page.with_state(uid, state, moment)
        return record_used_once(Page(changed), used, moment) if used else changed

    page = await change_page(store, host, change, known=known)
    return page.of(uid)


async def set_purpose(store: Store, host: str, uids: Collection[str], purpose: str, *, known: Page | None = None) -> None:
    """Record what the devices of these holders are for now; nothing is booked or released."""

    def change(page: Page) -> Object:
        for booking in page.bookings:
            if booking.holder.uid in uids and booking.holder.purpose != purpose:
                page = Page(page.turning(booking.key, replace(booking, holder=replace(booking.holder, purpose=purpose))))
        return page.object

    await change_page(store, host, change, known=known)


async def contest(store: Store, host: str, uid: str, wanted: Mapping[DeviceId, DeviceId]) -> None:
    """Record that what other holders have prepared on this host is in the way of a claim (`Page.with_contested`): the host
    taints these devices until their holders are unprepared."""
    await change_page(store, host, lambda page: page.with_contested(uid, wanted))


def hardware_rival(
    own: Sequence[Booking], others: Sequence[Booking], hardware: Mapping[DeviceId, tuple[str, ...]] = UNKNOWN
) -> tuple[Booking, Booking] | None:
    """Of the bookings that one holder is about to prepare on a host, the first whose hardware another booking there has under
    another name, and that one; `hardware` is what is known of devices now. The other one is in the way if it is of the same
    holder, if it was prepared with that hardware, or if neither was and it is older: they were booked before their drivers
    published what they are."""
    for booking in (replace(each, hardware=hardware.get(each.device, each.hardware)) for each in own):
        before = {each.key: each.hardware for each in own}[booking.key]
        for other in others:
            known = other if other.hardware else replace(other, hardware=hardware.get(other.device, ()))
            if not (common := booking.common_hardware(known)):
                continue
            if other.holder.uid == booking.holder.uid or _prepared_with(other, other.hardware, common) or (
                    not _prepared_with(booking, before, common) and _age(other) <= _age(booking)):
                return booking, known
    return None


def _prepared_with(booking: Booking, recorded: Sequence[str], hardware: Sequence[str]) -> bool:
    return booking.state == "prepared" and set(hardware) <= set(recorded)


def _age(booking: Booking) -> tuple[str, str]:
    return booking.since, booking.holder.uid


def record_used_once(page: Page, bookings: Sequence[Booking], now: str) -> Object:
    """The page with an unclean record for each of these bookings of one-time-use devices that has none."""
    known = {record.device for record in page.unclean}
    used = [
        OutOfServiceRecord(booking.device, USED_ONCE, str(booking.holder), now or booking.since)
        for booking in bookings
        if booking.device not in known
    ]
    return page.with_records("unclean", used) if used else page.object


async def release(
    store: Store, host: str, uid: str, *, device: DeviceId | None = None, now: str = "", also: Sequence[Write] = (),
    keep_prepared: bool = False,
) -> None:
    """Remove all bookings of the holder from this page, or that of one device. `keep_prepared`: not those that the host has
    prepared by the time of the write, for a caller that decided on an older page."""

    def change(page: Page) -> Object:
        return page.leaving(booking.key for booking in page.of(uid) if device in (None, booking.device)
                            and not (keep_prepared and booking.state == "prepared"))

    await change_page(store, host, change, now=now, also=also)


async def release_pages(
    store: Store, names: Sequence[str], uid: str, *, now: str = "", also: Sequence[Write] = ()
) -> None:
    """Remove all bookings of the holder from these pages: in one commit with an atomic store, otherwise page by page, and the
    caller repeats it after a crash."""
    if len(names) <= 1 or not (store.atomic or also):
        for name in names:
            await release(store, name, uid, now=now, also=also)
        return
    pages = [await read(store, name) for name in names]
    writes = [write for page in pages for write in await page_writes(store, page, page.without(uid), now=now)]
    await store.commit([*also, *writes])


async def move(store: Store, host: str, uid: str, holder: Holder, *, now: str = "", also: Sequence[Write] = ()) -> None:
    """Transfer all bookings of one holder on this host to another holder."""
    moment = now or history.clock_time(store)
    await change_page(store, host, lambda page: page.moved(uid, holder, moment), now=moment, also=also,
                      how=lambda _: f"moved to {holder}")


async def transfer(
    store: Store, source: str, target: str, uid: str, bookings: Sequence[Booking], *, limits: Limits | None = None,
    now: str = "", also: Sequence[Write] = (),
) -> None:
    """Replace the bookings of a holder on one host by these bookings on another (or the same) host: in one commit with an
    atomic store, otherwise the new ones are booked before the old ones are released. A crash between leaves both, never
    neither; a second call completes it."""

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
        writes = [*also, *await page_writes(store, new, new.holding(bookings, limits), now=now),
                  *await page_writes(store, old, old.without(uid), now=now, how=how)]
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
    how: history.How = lambda _: history.RELEASED, known: Page | None = None,
) -> Page:
    """Change a page; on a conflict read it again and retry. Returns the page before the change. Every change of a page goes
    through here or `page_writes`."""
    for _ in range(TRIES - 1):
        page, known = known or await read(store, host), None
        new = change(page)  # its errors are final, not a reason to retry
        try:
            await _write(store, page, new, also, now=now, how=how)
        except (Conflict, AlreadyExists):
            if also:  # these objects were read earlier: the caller must read them again
                raise
            continue
        return page
    page = await read(store, host)
    await _write(store, page, change(page), also, now=now, how=how)
    return page


async def page_writes(
    store: Store, page: Page, new: Object, *, now: str = "", how: history.How = lambda _: history.RELEASED
) -> list[Write]:
    """The writes that change a page: the page itself, and the history of the bookings that leave it. For callers that change
    several pages in one commit."""
    if new is page.object or new == page.object:
        return []
    ended = history.ended_records(page, new, now=now or history.clock_time(store), how=how)
    return [_page_write(page, new), *[await history.record_write(store, record) for record in ended]]


async def _write(
    store: Store, page: Page, new: Object, also: Sequence[Write], *, now: str = "",
    how: history.How = lambda _: history.RELEASED,
) -> Object | None:
    if store.atomic or also:
        writes = [*also, *await page_writes(store, page, new, now=now, how=how)]
        if len(writes) == 1 and not also:
            return await _write_page(store, page, new)
        if writes:
            await store.commit(writes)
    elif new is not page.object and new != page.object:
        for ended in history.ended_records(page, new, now=now or history.clock_time(store), how=how):
            await history.write_record(store, ended)
        return await _write_page(store, page, new)
    return None


async def _write_page(store: Store, page: Page, new: Object) -> Object:
    if page.revision:
        return await store.replace(kinds.LEDGER_PAGE, new)
    return await store.create(kinds.LEDGER_PAGE, new)


def _page_write(page: Page, new: Object) -> Write:
    return Replace(kinds.LEDGER_PAGE, new) if page.revision else Create(kinds.LEDGER_PAGE, new)
