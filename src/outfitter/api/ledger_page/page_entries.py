"""The entries of a page's lists as they are stored, and the bookings and records in them.

An entry is for one device, `{"device": {"driver", "pool", "device"}, ...}`. What a container has of a device plugin is one
entry, whose further devices are names in the same pool, `"furtherDevices": [...]`: a page is as long as its host has pods, not
as these have devices. Readers see one booking per device in either case; `grouped` writes the second form.

One malformed entry of a page is reported with its field, and costs nothing else of the page. A booking whose device can be read
still holds it, for an unknown holder: what is malformed is never given to another VM. While an entry names no device, it may be
about any, and none of the page is given out (`Page.undetermined`).

A page is read by several in each of its versions, of which most of it is the same: entries are read once for each content."""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from outfitter.api.kinds import POD, RESOURCE_CLAIM, Object
from outfitter.api.ledger_page.booking import Booking, Holder, OutOfServiceRecord, booking_of, device_of, record_of

AMOUNTS = ("resources", "cells", "cpus", "counters", "capacity")  # fields of an amount that are objects
LONG = 32  # bookings of a list that is kept as a whole
KEPT = 8  # such lists
FURTHER = "furtherDevices"
UNKNOWN = "Unknown"  # the kind of a holder that cannot be read


@dataclass(frozen=True, slots=True)
class MalformedEntry:
    """An entry of a page that cannot be read as it is."""

    page: str
    field: str  # "spec.bookings[2].device"
    problem: str

    def __str__(self) -> str:
        return f"page {self.page}: {self.field}: {self.problem}"


class BookingEntry(NamedTuple):
    """An entry, and its bookings, which differ in nothing but their devices; none: not even its devices can be read."""

    bookings: tuple[Booking, ...]
    raw: Any

    def alone(self) -> Iterator[tuple[Booking, Any]]:
        """Each booking, with the entry that it would be alone."""
        if len(self.bookings) == 1:
            yield self.bookings[0], self.raw
            return
        for booking in self.bookings:
            yield booking, _alone(self.raw, booking.device.device)


class RecordEntry(NamedTuple):
    record: OutOfServiceRecord | None
    raw: Any


class EntryProblem(NamedTuple):
    """What is wrong with an entry: the field of it, and what it must be."""

    field: str
    what: str


ReadBookings = tuple[Booking, ...] | EntryProblem


# -- lists


def raw_entries(page: Mapping[str, Any] | None, which: str) -> list[Any]:
    """The entries of a list of a page as they are stored; none where there is no list."""
    return list(_stored(page, which))


def _stored(page: Mapping[str, Any] | None, which: str) -> Sequence[Any]:
    spec = (page or {}).get("spec")
    found = spec.get(which) if isinstance(spec, Mapping) else None
    return found if isinstance(found, list | tuple) else ()


def well_formed(page: Mapping[str, Any] | None) -> Iterator[tuple[Booking, ...]]:
    """The bookings of each entry of a stored page, without those that are malformed: for indexes of pages, which are never
    changed, so that what was read of one is kept by its identity."""
    raws = _stored(page, "bookings")
    return (read for read in (_read_stored(raws) if raws else ()) if not isinstance(read, EntryProblem))


def changed_bookings(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> tuple[list[Booking], list[Booking]]:
    """The well-formed bookings that only the earlier of two versions of a page has, and those that only the later one has, by
    the identity of their entries (`store.unchanged_parts`): equal ones may be in both."""
    before, after = _stored(old, "bookings"), _stored(new, "bookings")
    had, has = set(map(id, before)), set(map(id, after))
    return _bookings(raw for raw in before if id(raw) not in has), _bookings(raw for raw in after if id(raw) not in had)


def _bookings(raws: Iterable[Any]) -> list[Booking]:
    return [booking for read in map(_read, raws) if not isinstance(read, EntryProblem) for booking in read]


def claim_keys(page: Mapping[str, Any]) -> Sequence[str]:
    """The keys ("namespace/name") of the claims with bookings on a page."""
    return list(dict.fromkeys(key for bookings in well_formed(page) if (key := _claim_key(bookings[0]))))


def changed_claims(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> set[str]:
    """The keys of the claims whose bookings differ in two versions of a page."""
    before, after = map(_by_claim, changed_bookings(old, new))
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def _by_claim(bookings: Iterable[Booking]) -> dict[str, list[Booking]]:
    out: dict[str, list[Booking]] = {}
    for booking in bookings:
        if key := _claim_key(booking):
            out.setdefault(key, []).append(booking)
    return out


def _claim_key(booking: Booking) -> str:
    """ "" where no claim has it."""
    holder = booking.holder
    return f"{holder.namespace}/{holder.name}" if holder.kind == RESOURCE_CLAIM.kind else ""


_stored_lists: deque[tuple[Sequence[Any], Sequence[ReadBookings]]] = deque(maxlen=KEPT)  # the newest first


def _read_stored(raws: Sequence[Any]) -> Sequence[ReadBookings]:
    """As `_read_all`, of a list that nothing changes: what it has in common with one that was read is not looked at."""
    most = 0
    begin: Sequence[ReadBookings] = ()
    for known, entries in tuple(_stored_lists):
        if known is raws:
            return entries
        if (same := _identical(known, raws)) > most:
            most, begin = same, entries
    found = [*begin[:most], *map(_read, raws[most:])] if most else _read_all(raws)
    _stored_lists.appendleft((raws, found))
    return found


def unchanged(old: Sequence[Any], new: Sequence[Any]) -> int:
    """How many of the first bookings of a long list are in a later version of it, to the letter; 0 when it is not known."""
    if min(len(old), len(new)) < LONG:
        return 0
    if (same := _identical(old, new)) == min(len(old), len(new)):
        return same
    before, after = _read_list(old), _read_list(new)
    return before.common(after.text) if before is not None and after is not None else 0


def _identical(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many of the first entries are one object in both."""
    return next(itertools.compress(itertools.count(), map(operator.is_not, one, other)), min(len(one), len(other)))


def _read_all(raws: Sequence[Any]) -> Sequence[ReadBookings]:
    """Each entry of a page's bookings, as `_read`."""
    found = _read_list(raws) if len(raws) >= LONG else None
    return found.entries if found is not None else list(map(_read, raws))


@dataclass(frozen=True, slots=True)
class _ReadList:
    """A version of a long list of bookings. The next version begins mostly as this one does: that part is not read again."""

    text: bytes  # JSON
    ends: Sequence[int]  # where each booking ends in it
    entries: Sequence[ReadBookings]

    def common(self, text: bytes) -> int:
        """How many of the first bookings are also the first ones of another list."""
        same = _common_prefix(self.text, text)
        count = bisect.bisect_right(self.ends, same)
        return count - 1 if count and text[self.ends[count - 1]] not in b",]" else count


_read_lists: deque[_ReadList] = deque(maxlen=KEPT)  # the newest first


def _read_list(raws: Sequence[Any]) -> _ReadList | None:
    """None: it is not from JSON."""
    try:
        text = msgspec.json.encode(raws)
    except (TypeError, ValueError):
        return None
    lists = tuple(_read_lists)
    for known in lists:
        if known.text == text:
            return known
    known, count = _most_in_common(lists, text)
    ends, end = list(known.ends[:count]), known.ends[count - 1] if count else 0
    for raw in raws[count:]:
        end += 1 + len(msgspec.json.encode(raw))
        ends.append(end)
    found = _ReadList(text, ends, (*known.entries[:count], *map(_read, raws[count:])))
    _read_lists.appendleft(found)
    return found


def _most_in_common(lists: Iterable[_ReadList], text: bytes) -> tuple[_ReadList, int]:
    """The one that begins as another list does, and for how many bookings. Mostly it is the newest, to which one was added."""
    best, most = _ReadList(b"", (), ()), 0
    for known in lists:
        count = known.common(text)
        if count >= len(known.ends) - 1:
            return known, count
        if count > most:
            best, most = known, count
    return best, most


def _common_prefix(one: bytes, other: bytes) -> int:
    """How many bytes are the same at the start. Compared in whole slices, of which half of the rest is looked at each time."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# -- entries


def grouped(raws: Iterable[Object]) -> list[Object]:
    """The entries, with those of one pod that follow each other and differ in nothing but their devices as one."""
    out: list[Object] = []
    rest: Object | None = None  # of the last one, without its device
    for raw in raws:
        device = raw["device"]
        own = {**raw, "device": (device["driver"], device["pool"])} if _groups(raw) else None
        if own is not None and own == rest:
            out[-1] = {**out[-1], FURTHER: [*out[-1].get(FURTHER, ()), device["device"]]}
        else:
            out.append(raw)
        rest = own
    return out


def _groups(raw: Object) -> bool:
    holder = raw.get("holder")
    return isinstance(holder, Mapping) and holder.get("kind") == POD.kind and FURTHER not in raw


def _alone(raw: Object, name: str) -> Object:
    return {**{key: value for key, value in raw.items() if key != FURTHER}, "device": {**raw["device"], "device": name}}


def _names(raw: Object) -> list[str]:
    return [raw["device"]["device"], *(raw.get(FURTHER) or ())]


def _read(raw: Any) -> ReadBookings:
    """The bookings of an entry, or what is wrong with it; kept by content."""
    try:
        return _read_text(msgspec.json.encode(raw))
    except (TypeError, ValueError):  # not from JSON
        return _read_entry(raw)


@functools.lru_cache(maxsize=1 << 14)
def _read_text(text: bytes) -> ReadBookings:
    return _read_entry(msgspec.json.decode(text))


def _read_entry(raw: Any) -> ReadBookings:
    if (problem := _problem(raw)) is not None:
        return problem
    return tuple(booking_of(_alone(raw, name)) for name in _names(raw))


def read_bookings(page: Object, *, stored: bool = False) -> tuple[list[BookingEntry], list[MalformedEntry]]:
    """`stored`: the page is as readers share it, and is never changed."""
    entries, malformed = [], list(_not_a_list(page, "bookings"))
    raws = _stored(page, "bookings")
    for index, (raw, read) in enumerate(zip(raws, (_read_stored if stored else _read_all)(raws), strict=True)):
        if isinstance(read, EntryProblem):
            place = f"spec.bookings[{index}]"
            malformed.append(MalformedEntry(page["metadata"]["name"], f"{place}{read.field}", read.what))
            entries.append(BookingEntry(_held_by_unknown(raw, place), raw))
        else:
            entries.append(BookingEntry(read, raw))
    return entries, malformed


def read_records(page: Object, state: str) -> tuple[list[RecordEntry], list[MalformedEntry]]:
    entries, malformed = [], list(_not_a_list(page, state))
    for index, raw in enumerate(raw_entries(page, state)):
        problem = _device_problem(raw)
        if problem is None:
            entries.append(RecordEntry(record_of(raw), raw))
            continue
        malformed.append(MalformedEntry(page["metadata"]["name"], f"spec.{state}[{index}]{problem.field}", problem.what))
        entries.append(RecordEntry(None, raw))
    return entries, malformed


def _held_by_unknown(raw: Any, place: str) -> tuple[Booking, ...]:
    if _devices_problem(raw) is not None:
        return ()
    device, holder = device_of(raw["device"]), Holder(UNKNOWN, "", place, place)
    return tuple(Booking(device._replace(device=name), holder, "", "prepared", "") for name in _names(raw))


def _not_a_list(page: Object, which: str) -> Iterator[MalformedEntry]:
    spec = page.get("spec") or {}
    name = page["metadata"]["name"]
    if not isinstance(spec, Mapping):
        if which == "bookings":
            yield MalformedEntry(name, "spec", "must be an object")
    elif not isinstance(spec.get(which) or [], list | tuple):
        yield MalformedEntry(name, f"spec.{which}", "must be a list")


def _problem(raw: Any) -> EntryProblem | None:
    """What is wrong with an entry of bookings; None: nothing."""
    if (problem := _devices_problem(raw)) is not None:
        return problem
    holder = raw.get("holder")
    if not (isinstance(holder, dict) and isinstance(holder.get("kind"), str) and isinstance(holder.get("name"), str)
            and isinstance(holder.get("uid"), str)):
        return EntryProblem(".holder", "must be an object with the texts kind, name and uid")
    if not (isinstance(holder.get("namespace"), str | None) and isinstance(holder.get("purpose"), str | None)):
        return EntryProblem(".holder", "must be an object with texts alone")
    if not isinstance(raw.get("state"), str):
        return EntryProblem(".state", "must be a text")
    if not (isinstance(raw.get("request"), str | None) and isinstance(raw.get("prepared"), str | None)
            and isinstance(raw.get("node"), str | None) and isinstance(raw.get("contested"), str | None)):
        return EntryProblem("", "must have texts as request, prepared, node and contested")
    if not isinstance(raw.get("since"), str):
        return EntryProblem(".since", "must be a text")
    amount = raw.get("amount") or {}
    if not isinstance(amount, dict):
        return EntryProblem(".amount", "must be an object")
    if len(amount) > 1 or "whole" not in amount:
        for key in AMOUNTS:
            if not isinstance(amount.get(key) or {}, dict):
                return EntryProblem(f".amount.{key}", "must be an object")
    if hardware := raw.get("hardware"):
        if not isinstance(hardware, list):
            return EntryProblem(".hardware", "must be a list of texts")
        for key in hardware:
            if not isinstance(key, str):
                return EntryProblem(".hardware", "must be a list of texts")
    return None


def pools(raws: Iterable[Any]) -> Iterator[Object]:
    """Driver and pool of the devices that entries name."""
    return ({key: raw["device"][key] for key in ("driver", "pool")} for raw in raws if _devices_problem(raw) is None)


def readable_device(raw: Any) -> bool:
    """Whether a record names a device."""
    return _device_problem(raw) is None


def _device_problem(raw: Any) -> EntryProblem | None:
    if not isinstance(raw, dict):
        return EntryProblem("", "must be an object")
    device = raw.get("device")
    if not (isinstance(device, dict) and isinstance(device.get("driver"), str) and isinstance(device.get("pool"), str)
            and isinstance(device.get("device"), str)):
        return EntryProblem(".device", "must be an object with the texts driver, pool and device")
    return None


def _devices_problem(raw: Any) -> EntryProblem | None:
    """The same of a booking, which may name further devices."""
    if (problem := _device_problem(raw)) is not None:
        return problem
    names = raw.get(FURTHER) or []
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        return EntryProblem(f".{FURTHER}", "must be a list of texts")
    return None
