"""Takes devices out of service: reserved (by an operator), quarantined (suspected faulty), unclean (one-time-use, to be
cleaned).

Each record is one replacement of the host's page, retried on conflict. The current holder of such a device keeps it: the record
prevents new bookings only. All functions are idempotent and write nothing the second time. Called by the CLI, the
Placement view and the host audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import OutOfServiceRecord, OutOfServiceState, Page
from outfitter.errors import AlreadyHeld
from outfitter.ledger import book, history
from outfitter.store.base import Store

PLACEMENT = "placement"  # origin of the records that follow from a provider's reserved count
HEALTH = "health"  # origin of quarantine records that follow from the health of a device: removed when it is healthy again


async def reserve(store: Store, host: str, device: DeviceId, *, by: str, reason: str = "", now: str = "") -> bool:
    """Reserve a device; returns whether the page changed."""
    return await _add_record(store, host, "reserved", OutOfServiceRecord(device, reason, by, now))


async def unreserve(store: Store, host: str, device: DeviceId) -> bool:
    """Remove a reservation, whatever its origin; returns whether the page changed."""
    return await _change(store, host, lambda page: page.without_records("reserved", {device}))


async def quarantine(store: Store, host: str, device: DeviceId, *, by: str, reason: str = "", now: str = "") -> bool:
    """Quarantine a device; returns whether the page changed."""
    return await _add_record(store, host, "quarantined", OutOfServiceRecord(device, reason, by, now))


async def restore(store: Store, host: str, device: DeviceId) -> bool:
    """Remove a quarantine; returns whether the page changed. One that follows from the device's health stays until that
    changes."""

    def change(page: Page) -> Object:
        ended = {record.device for record in page.quarantined if record.device == device and record.origin != HEALTH}
        return page.without_records("quarantined", ended) if ended else page.object

    return await _change(store, host, change)


async def clear(store: Store, host: str, device: DeviceId) -> bool:
    """Remove the unclean record of a device that was cleaned; returns whether the page changed. AlreadyHeld while it is in use,
    because it would not be clean afterwards."""

    def change(page: Page) -> Object:
        for booking in page.on(device):
            raise AlreadyHeld(device.short, by=str(booking.holder), since=booking.since)
        return page.without_records("unclean", {device})

    return await _change(store, host, change)


async def set_reserved(
    store: Store, host: str, devices: Sequence[DeviceId], count: int, *, now: str, by: str, cleaned: bool = True
) -> None:
    """Apply a provider's reserved count: see `with_reserved_count`. Without `cleaned`, unclean records are kept: for callers
    that apply a count again that an operator set earlier."""
    moment = now or history.clock_time(store)
    await book.change_page(
        store, host, lambda page: with_reserved_count(page, devices, count, now=moment, by=by, cleaned=cleaned)
    )


def with_reserved_count(
    page: Page, devices: Sequence[DeviceId], count: int, *, now: str, by: str, cleaned: bool = True
) -> Object:
    """The page on which `count` of these devices are out of service, as far as possible.

    A device counts once, whether reserved by a person, unclean, or reserved here. Missing ones are reserved with the origin
    "placement": free devices in the given order, those that have such a record first, then held ones. Of a surplus, records
    with that origin are removed; then, with `cleaned`, the unclean records of devices without a holder, which is how operators
    of Nova return a one-time-use device to service. Reservations by a person are kept."""
    members = dict.fromkeys(devices)
    by_person = {record.device for record in page.reserved if record.origin != PLACEMENT} & members.keys()
    by_count = {record.device for record in page.reserved if record.origin == PLACEMENT} & members.keys()
    unclean = {record.device for record in page.unclean} & members.keys()
    held = {booking.device for booking in page.bookings if booking.counted}
    surplus = len(by_person | unclean) - count
    clean = [device for device in members if device in unclean - by_person and device not in held][:max(surplus, 0)]
    remaining = [device for device in members if device not in by_person | unclean]
    remaining.sort(key=lambda device: (device in held, device not in by_count))  # stable: otherwise in the order given
    wanted = set(remaining[:max(-surplus, 0)])
    page = Page(page.without_records("unclean", set(clean) if cleaned else ()))
    page = Page(page.without_records("reserved", by_count - wanted))
    reason = f"{count} of these {len(members)} devices are reserved"
    return page.with_records("reserved", [OutOfServiceRecord(device, reason, by, now, PLACEMENT) for device in members
                                        if device in wanted - by_count])


async def _add_record(store: Store, host: str, which: OutOfServiceState, record: OutOfServiceRecord) -> bool:
    moment = record.since or history.clock_time(store)
    stamped = OutOfServiceRecord(record.device, record.reason, record.by, moment, record.origin)
    return await _change(store, host, lambda page: page.with_records(which, [stamped]))


async def _change(store: Store, host: str, change: Callable[[Page], Object]) -> bool:
    before = await book.change_page(store, host, change)
    return change(before) != before.object
