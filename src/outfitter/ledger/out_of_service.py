"""Devices that nobody new gets: reserved (kept back), quarantined (not to be trusted), unclean (to be cleaned first).

A mark is one replacement of the host's page, tried again when somebody else was faster. Whoever holds a marked device keeps
it: the mark takes effect once it is free. Doing any of it twice is no harm, and writes nothing the second time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.page import OutOfServiceRecord, OutOfServiceRecords, Page
from outfitter.errors import AlreadyHeld
from outfitter.ledger import book, history
from outfitter.store.base import Store

PLACEMENT = "placement"  # the origin of marks that a provider's reserved count made


async def reserve(store: Store, host: str, device: DeviceId, *, by: str, reason: str = "", now: str = "") -> bool:
    """Keep a device back; whether that changed anything."""
    return await _mark(store, host, "reserved", OutOfServiceRecord(device, reason, by, now))


async def unreserve(store: Store, host: str, device: DeviceId) -> bool:
    """Give a reserved device back, whoever reserved it; whether that changed anything."""
    return await _change(store, host, lambda page: page.without_marks("reserved", {device}))


async def quarantine(store: Store, host: str, device: DeviceId, *, by: str, reason: str = "", now: str = "") -> bool:
    """Take a device out of service because something is wrong with it; whether that changed anything."""
    return await _mark(store, host, "quarantined", OutOfServiceRecord(device, reason, by, now))


async def restore(store: Store, host: str, device: DeviceId) -> bool:
    """Give a quarantined device back; whether that changed anything."""
    return await _change(store, host, lambda page: page.without_marks("quarantined", {device}))


async def clear(store: Store, host: str, device: DeviceId) -> bool:
    """Somebody cleaned a device: it may be given away again; whether that changed anything. AlreadyHeld while it is in use,
    because it would not be clean afterwards."""

    def change(page: Page) -> Object:
        for booking in page.on(device):
            raise AlreadyHeld(device.short, by=str(booking.holder), since=booking.since)
        return page.without_marks("unclean", {device})

    return await _change(store, host, change)


async def set_reserved(
    store: Store, host: str, devices: Sequence[DeviceId], count: int, *, now: str, by: str, cleaned: bool = True
) -> None:
    """An operator says how many of these devices are kept out: see `reserving`. Without `cleaned` what is unclean stays so: for
    those who only bring about again what an operator said earlier."""
    moment = now or history.clock_time(store)
    await book.change_page(
        store, host, lambda page: with_reserved_count(page, devices, count, now=moment, by=by, cleaned=cleaned)
    )


def with_reserved_count(
    page: Page, devices: Sequence[DeviceId], count: int, *, now: str, by: str, cleaned: bool = True
) -> Object:
    """The page on which so many of these devices are kept out, as far as that is possible.

    A device counts once, be it reserved by a person, unclean, or marked here. What is missing is marked with the origin
    "placement": free devices in the order given, those that are marked already first, then held ones. What is too much loses
    such a mark; then, with `cleaned`, unclean devices that nobody holds are clean, which is how operators of Nova give a device
    for one use back. What a person reserved stays."""
    ours = dict.fromkeys(devices)
    person = {mark.device for mark in page.reserved if mark.origin != PLACEMENT} & ours.keys()
    marked = {mark.device for mark in page.reserved if mark.origin == PLACEMENT} & ours.keys()
    unclean = {mark.device for mark in page.unclean} & ours.keys()
    held = {booking.device for booking in page.bookings if booking.counted}
    surplus = len(person | unclean) - count
    clean = [device for device in ours if device in unclean - person and device not in held][:max(surplus, 0)]
    open_ = [device for device in ours if device not in person | unclean]
    open_.sort(key=lambda device: (device in held, device not in marked))  # stable: otherwise in the order given
    wanted = set(open_[:max(-surplus, 0)])
    page = Page(page.without_marks("unclean", set(clean) if cleaned else ()))
    page = Page(page.without_marks("reserved", marked - wanted))
    reason = f"{count} of these {len(ours)} devices are reserved"
    return page.with_marks("reserved", [OutOfServiceRecord(device, reason, by, now, PLACEMENT) for device in ours
                                        if device in wanted - marked])


async def _mark(store: Store, host: str, which: OutOfServiceRecords, mark: OutOfServiceRecord) -> bool:
    moment = mark.since or history.clock_time(store)
    stamped = OutOfServiceRecord(mark.device, mark.reason, mark.by, moment, mark.origin)
    return await _change(store, host, lambda page: page.with_marks(which, [stamped]))


async def _change(store: Store, host: str, change: Callable[[Page], Object]) -> bool:
    before = await book.change_page(store, host, change)
    return change(before) != before.object
