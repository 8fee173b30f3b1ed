"""The LedgerPage: one object per host with all bookings and out-of-service records. A page is replaced whole, at the revision
that was read. A pool whose devices are not tied to one host has a page of its own, so that each device is booked in one place.

Every change is a method that returns the object to write; fields that a change does not concern are kept. The values of a page
are in `booking`; `booking_limits` checks their amounts. Called by `ledger`, which reads and writes pages; does no I/O
itself."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from outfitter.api import rejection
from outfitter.api.device import DeviceId
from outfitter.api.kinds import LEDGER_PAGE, Object
from outfitter.api.ledger_page import booking_limits
from outfitter.api.ledger_page.booking import (
    DOMAIN,
    OUT_OF_SERVICE_STATES,
    Booking,
    Holder,
    Key,
    Limits,
    OutOfServiceRecord,
    OutOfServiceState,
    State,
    device_object,
    device_of,
    holder_of,
)
from outfitter.api.ledger_page.page_entries import MalformedEntry, grouped, pools, raw_entries, read_bookings, read_records
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.validate.bounds import PAGE_BOOKINGS
from outfitter.errors import AlreadyHeld, OutOfService, TooLarge

__all__ = [
    "DOMAIN",
    "MOST",
    "OUT_OF_SERVICE_STATES",
    "POOLS",
    "Booking",
    "Holder",
    "Key",
    "Limits",
    "OutOfServiceRecord",
    "OutOfServiceState",
    "Page",
    "State",
    "device_object",
    "device_of",
    "hardware_error",
    "held_error",
    "holder_of",
    "is_pool_page",
    "pool_page",
]

MOST = PAGE_BOOKINGS  # bookings on a page
POOLS = ".pools.outfitter.dev"  # suffix of the names of pools' pages; admission rejects nodes with it
READABLE = 63  # characters of a pool's own name in the name of its page


def pool_page(driver: str, pool: str) -> str:
    """The page name of a pool that is not tied to a host. Pool names may contain characters that object names may not."""
    digest = hashlib.sha256(f"{driver}\0{pool}".encode()).hexdigest()[:16]
    words = re.sub(r"[^a-z0-9]+", "-", pool.lower()).strip("-")[:READABLE].strip("-")
    return f"{f'{words}-' if words else ''}{digest}{POOLS}"


def is_pool_page(name: str) -> bool:
    return name.endswith(POOLS)


class Page:
    """A page as it was read. Immutable: changes return the object to write."""

    def __init__(self, obj: Object, *, stored: bool = False) -> None:
        """`stored`: the object is one that readers share, and is never changed."""
        self.object = obj
        self.host: str = obj["metadata"]["name"]
        self.revision: str = obj["metadata"].get("resourceVersion", "")
        self.entries, malformed = read_bookings(obj, stored=stored)
        self.bookings: tuple[Booking, ...] = tuple(booking for entry in self.entries for booking in entry.bookings)
        records: list[tuple[OutOfServiceRecord, ...]] = []
        unknown = False
        for state in OUT_OF_SERVICE_STATES:
            found, wrong = read_records(obj, state)
            unknown |= any(entry.record is None for entry in found)
            records.append(tuple(entry.record for entry in found if entry.record is not None))
            malformed += wrong
        self.reserved, self.quarantined, self.unclean = records
        self.malformed: tuple[MalformedEntry, ...] = tuple(malformed)  # kept as they are by every change
        self.undetermined = any(not entry.bookings for entry in self.entries) or unknown  # which devices are held

    @staticmethod
    def blank(host: str) -> Object:
        return {"apiVersion": LEDGER_PAGE.api_version, "kind": LEDGER_PAGE.kind, "metadata": {"name": host},
                "spec": {**({} if is_pool_page(host) else {"host": host}), "bookings": [],
                         **{state: [] for state in OUT_OF_SERVICE_STATES}}}

    # -- reading

    def of(self, uid: str) -> tuple[Booking, ...]:
        """The bookings of one holder."""
        return tuple(booking for entry in self.entries if entry.bookings and entry.bookings[0].holder.uid == uid
                     for booking in entry.bookings)

    def on(self, device: DeviceId) -> tuple[Booking, ...]:
        """The bookings that hold a device or shares of it."""
        return tuple(self._there.get(device, ()))

    @functools.cached_property
    def _there(self) -> Mapping[DeviceId, list[Booking]]:
        there: dict[DeviceId, list[Booking]] = defaultdict(list)
        for booking in self.bookings:
            if booking.counted:
                there[booking.device].append(booking)
        return there

    @functools.cached_property
    def _with_counters(self) -> list[Booking]:
        return [booking for entry in self.entries if entry.bookings and entry.bookings[0].amount.get("counters")
                for booking in entry.bookings]

    def differing(self, later: Page) -> tuple[list[Booking], list[Booking]]:
        """The bookings that only this version has, and those that only a later one has. Entries with the same content are read
        to one value; where they are not, equal bookings may be in both."""
        had, has = ({id(entry.bookings) for entry in page.entries} for page in (self, later))
        return ([booking for entry in self.entries if id(entry.bookings) not in has for booking in entry.bookings],
                [booking for entry in later.entries if id(entry.bookings) not in had for booking in entry.bookings])

    def records(self, state: OutOfServiceState) -> tuple[OutOfServiceRecord, ...]:
        """The out-of-service records of one state."""
        return {"reserved": self.reserved, "quarantined": self.quarantined, "unclean": self.unclean}[state]

    def rivals(self, wanted: Booking) -> Iterator[Booking]:
        """Bookings of other holders that conflict with a booking."""
        return (booking for booking in self.on(wanted.device)
                if booking.clashes(wanted) and booking.holder.uid != wanted.holder.uid)

    def hardware_rivals(self, wanted: Booking, also: Iterable[Booking] = ()) -> Iterator[Booking]:
        """Bookings of this page, and of `also`, that hold the hardware of a booking under another name on the same host."""
        if wanted.hardware and (wanted.node or not is_pool_page(self.host)):
            yield from (booking for booking in (*self.bookings, *also)
                        if booking.node == wanted.node and booking.common_hardware(wanted))

    def out_of_service(self, device: DeviceId) -> OutOfService | None:
        """The first record that keeps a device out of service; None: it is in service."""
        for state in OUT_OF_SERVICE_STATES:
            for record in self.records(state):
                if record.device == device:
                    error = OutOfService(device.short, state, by=record.by, since=record.since, reason=record.reason)
                    error.rejection = rejection.out_of_service(state, record)
                    return error
        return None

    # -- bookings

    def holding(self, wanted: Sequence[Booking], limits: Limits | None = None) -> Object:
        """The page with these bookings added; those that their holder already has are kept.

        AlreadyHeld names the holder in conflict, OutOfService the record of the device, Unsatisfiable what is not published
        (a share is checked against `limits`)."""
        devices = {booking.device for booking in wanted}
        old = {booking.key: booking for booking in self.bookings if booking.device in devices}
        page, fresh = self, dict[Key, Booking]()
        for booking in wanted:
            had = old.get(booking.key)
            if had is None:
                fresh.setdefault(booking.key, booking)
            elif (
                had.holder.kind == DOMAIN != booking.holder.kind
            ):  # a domain was found with the device that is booked for its claim now
                page = Page(page.turning(booking.key, replace(had, holder=booking.holder, request=booking.request)))
        return page._adding(list(fresh.values()), limits)

    def only(self, uid: str, wanted: Sequence[Booking], limits: Limits | None = None) -> Object:
        """The page on which one holder has exactly these bookings. Existing ones are kept, with the new amount where that
        differs."""
        old, named = {booking.key: booking for booking in self.of(uid)}, {booking.key: booking for booking in wanted}
        same = [booking for key, booking in named.items() if key in old and old[key].amount == booking.amount]
        changed = [replace(old[key], amount=booking.amount, request=booking.request) for key, booking in named.items()
                   if key in old and old[key].amount != booking.amount]
        fresh = [booking for key, booking in named.items() if key not in old]
        rest = Page(self.leaving(old.keys() - {booking.key for booking in same}))
        rest._adding([*changed, *fresh], limits, had=old)  # raises if they do not fit
        page = Page(Page(self.leaving(old.keys() - named.keys())).holding(same))
        for booking in changed:
            page = Page(page.turning(booking.key, booking))
        return page._with("bookings", [*page._raw("bookings"), *grouped(booking.to_object() for booking in fresh)])

    def adding(self, booking: Booking) -> Object:
        """The page with a booking of a device that is found in use, without a conflict check. Only `ledger.heal` may do
        this."""
        return self._with("bookings", [*self._raw("bookings"), booking.to_object()])

    def turning(self, key: Key, new: Booking) -> Object:
        """The page with one booking replaced."""
        return self._changed(lambda booking, raw: raw if booking.key != key else {
            **{name: value for name, value in raw.items() if name != "prepared"}, **new.to_object(),
            "holder": _merged(raw.get("holder"), new.holder)})

    def without(self, uid: str, device: DeviceId | None = None) -> Object:
        """The page without the bookings of one holder, or without its booking of one device."""
        return self.leaving(booking.key for booking in self.of(uid) if device in (None, booking.device))

    def leaving(self, keys: Iterable[Key]) -> Object:
        """The page without these bookings."""
        removed = set(keys)
        return self._changed(lambda booking, raw: None if booking.key in removed else raw)

    def with_state(self, uid: str, state: State, now: str = "") -> Object:
        """The page with all bookings of one holder in a state. `prepared` is the time of the first prepare."""

        def change(booking: Booking, raw: Object) -> Object:
            if booking.holder.uid != uid:
                return raw
            if state == "prepared":
                return {**raw, "state": state, **({"prepared": now} if now and not booking.prepared else {})}
            return {**{name: value for name, value in raw.items() if name != "contested"}, "state": state}

        return self._changed(change)

    def with_contested(self, uid: str, wanted: Mapping[DeviceId, DeviceId]) -> Object:
        """The page on which what others have prepared is recorded as in the way of one claim. `wanted`: device of a booking ->
        the device that the claim was allocated: the same, or the same hardware under another name."""

        def change(booking: Booking, raw: Object) -> Object:
            held = booking.state == "prepared" and booking.counted and booking.holder.uid != uid
            return {**raw, "contested": wanted[booking.device].device} if held and booking.device in wanted else raw

        return self._changed(change)

    def with_hardware(self, uid: str, hardware: Mapping[DeviceId, tuple[str, ...]]) -> Object:
        """The page on which the bookings of one holder record what their devices are."""
        return self._changed(lambda booking, raw: {**raw, "hardware": list(hardware[booking.device])}
                             if booking.holder.uid == uid and hardware.get(booking.device) else raw)

    def moved(self, uid: str, holder: Holder, now: str = "") -> Object:
        """The page with all bookings of one holder transferred to another; their state is kept."""
        theirs = {booking.key: booking for booking in self.of(holder.uid)} if holder.uid != uid else {}
        for booking in self.of(uid):
            if taken := theirs.get(booking.key._replace(uid=holder.uid)):
                raise held_error(taken)
        since = {"since": now} if now and holder.uid != uid else {}
        return self._changed(lambda booking, raw: raw if booking.holder.uid != uid else {
            **raw, "holder": _merged(raw.get("holder"), holder), **since})

    # -- out-of-service records

    def with_records(self, state: OutOfServiceState, records: Iterable[OutOfServiceRecord]) -> Object:
        """The page with these records. An existing record keeps its time and gets the new reason; a record that a user made is
        never replaced by one of a provider's reserved count."""
        entries = self._raw(state)
        places = {entry.record.device: index for index, entry in enumerate(read_records(self.object, state)[0])
                  if entry.record is not None}
        for record in records:
            index = places.get(record.device)
            if index is None:
                places[record.device] = len(entries)
                entries.append(record.to_object())
                continue
            have = entries[index]
            if record.origin and not have.get("origin"):
                continue
            new = {**have, "reason": record.reason, "by": record.by, "origin": record.origin}
            entries[index] = new if record.origin else {key: value for key, value in new.items() if key != "origin"}
        return self._with(state, entries)

    def without_records(self, state: OutOfServiceState, devices: Collection[DeviceId]) -> Object:
        """The page without the records of these devices."""
        return self._with(state, [entry.raw for entry in read_records(self.object, state)[0]
                                  if entry.record is None or entry.record.device not in devices])

    # -- changes of the object

    def _raw(self, which: str) -> list[Object]:
        return raw_entries(self.object, which)

    def _changed(self, change: Callable[[Booking, Object], Object | None]) -> Object:
        entries: list[Object] = []
        for entry in self.entries:
            before = list(entry.alone())
            after = [(raw, change(booking, raw)) for booking, raw in before]
            if all(new is raw for raw, new in after):  # none: malformed
                entries.append(entry.raw)
            else:
                entries += grouped(new for _, new in after if new is not None)
        return self._with("bookings", entries)

    def _with(self, which: str, entries: list[Object]) -> Object:
        if entries == self._raw(which):
            return self.object
        have = self.object.get("spec")
        spec = {**(have if isinstance(have, Mapping) else {}), which: entries}
        if is_pool_page(self.host) and (pool := next(pools(entries), None)) is not None:
            spec.setdefault("pool", pool)
        return {**self.object, "metadata": {**self.object["metadata"]}, "spec": spec}

    # -- checks of new bookings

    def _adding(self, fresh: Sequence[Booking], limits: Limits | None, had: Collection[Key] = ()) -> Object:
        """The page with new bookings, checked. Devices that their holder `had` may be out of service by now."""
        if not fresh:
            return self.object
        if len(self.bookings) + len(fresh) > MOST:
            raise TooLarge(f"page {self.host} has {len(self.bookings)} bookings and takes at most {MOST}: "
                           f"{len(fresh)} more do not fit; release some first")
        self._check(fresh, limits or Limits(), had)
        return self._with("bookings", [*self._raw("bookings"), *grouped(booking.to_object() for booking in fresh)])

    def _check(self, fresh: Sequence[Booking], limits: Limits, had: Collection[Key]) -> None:
        there: dict[DeviceId, list[Booking]] = {booking.device: [] for booking in fresh}
        for booking in self.bookings:
            if booking.device in there and booking.counted:
                there[booking.device].append(booking)
        seen: list[Booking] = []  # of `fresh`
        out_of_service = {record.device for state in OUT_OF_SERVICE_STATES for record in self.records(state)}
        for booking in fresh:
            if not booking.counted:
                continue
            if booking.device in out_of_service and booking.key not in had and (error := self.out_of_service(booking.device)):
                raise error
            for taken in there[booking.device]:
                if taken.clashes(booking):
                    raise held_error(taken)
            for taken in self.bookings if booking.amount.get("counters") else self._with_counters:
                if taken.excludes(booking):
                    raise held_error(
                        taken, f"{taken.device.short}, which excludes {booking.device.device},",
                        Rejection(RejectionCode.EXCLUDED, booking.device, taken.holder, taken.since,
                                  {"other": taken.device.device}))
            for taken in self.hardware_rivals(booking, seen):
                raise hardware_error(booking, taken)
            there[booking.device].append(booking)
            seen.append(booking)
        self._check_cpus([booking for booking in fresh if booking.cpus])
        booking_limits.check_shares(fresh, there, limits)
        booking_limits.check_counters(fresh, self.bookings, limits)

    def _check_cpus(self, fresh: Sequence[Booking]) -> None:
        owners = {cpu: booking for booking in self.bookings for cpu in booking.cpus} if fresh else {}
        for booking in fresh:
            for cpu in booking.cpus:
                if cpu in owners:
                    taken = owners[cpu]
                    raise held_error(taken, f"CPU {cpu} of {self.host}", Rejection(
                        RejectionCode.CPU_HELD, None, taken.holder, taken.since, {"cpu": cpu, "host": self.host}))
                owners[cpu] = booking


def held_error(taken: Booking, what: str = "", why: Rejection | None = None) -> AlreadyHeld:
    """That a booking is in the way: of its device, or of `what`, rejected for `why`."""
    error = AlreadyHeld(what or taken.device.short, by=str(taken.holder), since=taken.since)
    error.rejection = why or rejection.held(taken)
    return error


def hardware_error(booking: Booking, taken: Booking) -> AlreadyHeld:
    """That another booking holds hardware of this one under another name."""
    common = booking.common_hardware(taken)
    return held_error(taken, f"{booking.device.short}, which is the same hardware ({', '.join(common)}) as {taken.device},",
                      rejection.hardware_held(booking.device, common, taken))


def _merged(raw: object, holder: Holder) -> Object:
    """The stored holder with the fields of a new one; unknown fields are kept."""
    kept = raw if isinstance(raw, Mapping) else {}
    return {**{key: value for key, value in kept.items() if key not in ("kind", "namespace", "name", "uid", "purpose")},
            **holder.to_object()}
