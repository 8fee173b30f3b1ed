"""The values on a LedgerPage: bookings (holder, device, amount) and out-of-service records (reserved, quarantined, unclean).
`page.Page` reads and changes whole pages; `booking_limits` checks amounts.

One malformed entry of a page is reported with its field, and costs nothing else of the page. A booking whose device can be read
still holds it, for an unknown holder: what is malformed is never given to another VM. While an entry names no device, it may be
about any, and none of the page is given out (`Page.undetermined`)."""

from __future__ import annotations

import bisect
import functools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from outfitter.api.device import DeviceId, are_partitions
from outfitter.api.kinds import Object

State = Literal["booked", "prepared", "released"]
OutOfServiceState = Literal["reserved", "quarantined", "unclean"]
# in this order: an error names the first state that a device has
OUT_OF_SERVICE_STATES: tuple[OutOfServiceState, ...] = ("reserved", "quarantined", "unclean")
DOMAIN = "Domain"  # holder kind of a running domain that was found on the host without a booking


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a device: a claim, a Placement consumer, a migration, or a domain that was found to use it."""

    kind: str  # "ResourceClaim", "Consumer", "Migration", "Domain" (running on the host without a booking)
    namespace: str
    name: str
    uid: str
    purpose: str = ""  # for messages: "vmi/blue", the VMI or pod that uses the claim

    def __str__(self) -> str:
        what = f"{self.purpose} (claim {self.name})" if self.purpose else f"{self.kind} {self.name}"
        return f"{what} in {self.namespace}" if self.namespace else what

    def to_object(self) -> Object:
        whole = {"kind": self.kind, "namespace": self.namespace, "name": self.name, "uid": self.uid, "purpose": self.purpose}
        return {key: value for key, value in whole.items() if value}


class Key(NamedTuple):
    """Identifies a booking on a page."""

    device: DeviceId
    uid: str
    share: str  # shareID; "" for a whole device


@dataclass(frozen=True, slots=True)
class Booking:
    """One device, or a share of one, for one holder. `amount` is one of

    {"whole": true}                                        the device exclusively
    {"shareID": "...", "capacity": {"memory": "4Gi"}}      a share of its capacity
    {"resources": {"VCPU": 2}}                             a host's own resources: never conflicts; "cells": {"0": 2} is the
                                                           number of dedicated CPUs by NUMA cell, "cpus": {"0": [4, 5]}
                                                           which CPUs
    {"adminAccess": true}                                  admin access while others hold it: never conflicts

    and the first two may list the shared counters of the pool that they consume: "counters": {"<counter set>": {"<counter>":
    "1"}}."""

    device: DeviceId
    holder: Holder
    request: str  # the request of the holder's claim
    state: State
    since: str
    amount: dict[str, Any] = field(default_factory=lambda: {"whole": True})
    prepared: str = ""  # when the host first prepared it; "" before
    node: str = ""  # on a pool's page: the host that uses it; "" on a host's page
    hardware: tuple[str, ...] = ()  # PCI addresses or the UUID that the device is on its host (`device.hardware_of`), sorted;
                                    # empty: not known when it was booked or prepared
    contested: str = ""  # the device of the host that another claim was allocated, and that this one keeps from being prepared

    @property
    def key(self) -> Key:
        return Key(self.device, self.holder.uid, str(self.amount.get("shareID") or ""))

    @property
    def counted(self) -> bool:
        """Whether it holds a device: host resources and admin access do not."""
        return bool(self.amount.get("whole")) or not ("resources" in self.amount or self.amount.get("adminAccess"))

    @property
    def shared(self) -> bool:
        return not self.amount.get("whole") and ("capacity" in self.amount or "shareID" in self.amount)

    @property
    def cpus(self) -> list[int]:
        """Host CPUs that are dedicated to the holder."""
        return [cpu for cpus in (self.amount.get("cpus") or {}).values() for cpu in cpus]

    def clashes(self, other: Booking) -> bool:
        """Whether both cannot be on one page, whatever the amounts."""
        return (self.device == other.device and self.key != other.key and self.counted and other.counted
                and not (self.shared and other.shared))

    def common_hardware(self, other: Booking) -> tuple[str, ...]:
        """What both hold of one host, under two names; partitions of it do not count."""
        if not (self.hardware and other.hardware) or self.device == other.device or not (self.counted and other.counted):
            return ()
        if are_partitions(self.device, self.amount.get("counters") or (), other.device, other.amount.get("counters") or ()):
            return ()
        return tuple(key for key in self.hardware if key in other.hardware)

    def excludes(self, other: Booking) -> bool:
        """Whether one is the PF of the other's VF and only one of them was booked with the PF's counters: SR-IOV was switched
        on or off while the other was held. Where both have the counters, `booking_limits` counts them."""
        own, their = self.device, other.device
        if (own.driver, own.pool) != (their.driver, their.pool) or not (self.counted and other.counted):
            return False
        own_counters, their_counters = self.amount.get("counters") or {}, other.amount.get("counters") or {}
        return (their.device in own_counters and their.device not in their_counters) or (
            own.device in their_counters and own.device not in own_counters)

    def to_object(self) -> Object:
        out = {"device": device_object(self.device), "holder": self.holder.to_object(),
               "request": self.request, "state": self.state, "since": self.since, "amount": self.amount}
        more = (("prepared", self.prepared), ("node", self.node), ("hardware", list(self.hardware)),
                ("contested", self.contested))
        return out | {name: value for name, value in more if value}


@dataclass(frozen=True, slots=True)
class OutOfServiceRecord:
    """A device that is not allocated again: an entry of `reserved`, `quarantined` or `unclean`."""

    device: DeviceId
    reason: str
    by: str
    since: str
    origin: str = ""  # "placement": added and removed by the reserved count of a provider

    def to_object(self) -> Object:
        out = {"device": device_object(self.device), "reason": self.reason, "by": self.by, "since": self.since}
        return {**out, "origin": self.origin} if self.origin else out


@dataclass(frozen=True, slots=True)
class Limits:
    """Published limits: capacity of devices that may be shared, and shared counters of pools."""

    capacity: Mapping[DeviceId, Mapping[str, str]] = field(default_factory=dict)  # only devices that may be shared
    counters: Mapping[tuple[str, str, str], Mapping[str, str]] = field(default_factory=dict)  # (driver, pool, counter set)


def device_object(device: DeviceId) -> Object:
    return {"driver": device.driver, "pool": device.pool, "device": device.device}


def device_of(raw: Object) -> DeviceId:
    return DeviceId(raw["driver"], raw["pool"], raw["device"])


def holder_of(raw: Object) -> Holder:
    return Holder(raw["kind"], raw.get("namespace") or "", raw["name"], raw["uid"], raw.get("purpose") or "")


def booking_of(raw: Object) -> Booking:
    return Booking(device_of(raw["device"]), holder_of(raw["holder"]), raw.get("request") or "", raw["state"], raw["since"],
                   raw.get("amount") or {"whole": True}, raw.get("prepared") or "", raw.get("node") or "",
                   tuple(raw.get("hardware") or ()), raw.get("contested") or "")


def record_of(raw: Object) -> OutOfServiceRecord:
    return OutOfServiceRecord(device_of(raw["device"]), raw.get("reason") or "", raw.get("by") or "", raw.get("since") or "",
                raw.get("origin") or "")


# -- entries of a page, of which some may be malformed: in a cluster a user with the right can write anything into a page

AMOUNTS = ("resources", "cells", "cpus", "counters", "capacity")  # fields of an amount that are objects
LONG = 32  # bookings of a list that is kept as a whole
KEPT = 8  # such lists
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
    """A booking beside the object that it was read from; None: not even its device can be read."""

    booking: Booking | None
    raw: Any


class RecordEntry(NamedTuple):
    record: OutOfServiceRecord | None
    raw: Any


ReadBooking = Booking | tuple[str, str]  # or what is wrong with it: the field, and what it must be


def raw_entries(page: Mapping[str, Any] | None, which: str) -> list[Any]:
    """The entries of a list of a page as they are stored; none where there is no list."""
    spec = (page or {}).get("spec")
    found = spec.get(which) if isinstance(spec, Mapping) else None
    return list(found) if isinstance(found, list | tuple) else []


def well_formed_bookings(page: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The bookings of a page as they are stored, without those that are malformed: for indexes of raw pages, which are never
    changed, so that what was read of one is kept by its identity."""
    spec = (page or {}).get("spec")
    raws = spec.get("bookings") if isinstance(spec, Mapping) else None
    return (raw for raw, read in zip(raws, _read_stored(_StoredList(raws)), strict=True) if isinstance(read, Booking)) if (
        isinstance(raws, list | tuple)) else iter(())


class _StoredList:
    """A list of bookings, by its identity."""

    __slots__ = ("raws",)

    def __init__(self, raws: Sequence[Any]) -> None:
        self.raws = raws

    def __hash__(self) -> int:
        return id(self.raws)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StoredList) and self.raws is other.raws


@functools.lru_cache(maxsize=4)
def _read_stored(stored: _StoredList) -> Sequence[ReadBooking]:
    return _read_all(stored.raws)


def unchanged(old: Sequence[Any], new: Sequence[Any]) -> int:
    """How many of the first bookings of a long list are in a later version of it, to the letter; 0 when it is not known."""
    if min(len(old), len(new)) < LONG:
        return 0
    before, after = _read_list(old), _read_list(new)
    return before.common(after.text) if before is not None and after is not None else 0


def _read_all(raws: Sequence[Any]) -> Sequence[ReadBooking]:
    """Each of a page's bookings, as `_read`."""
    found = _read_list(raws) if len(raws) >= LONG else None
    return found.entries if found is not None else list(map(_read, raws))


@dataclass(frozen=True, slots=True)
class _ReadList:
    """A version of a long list of bookings. The next version begins mostly as this one does: that part is not read again."""

    text: bytes  # JSON
    ends: Sequence[int]  # where each booking ends in it
    entries: Sequence[ReadBooking]

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
    known = max(lists, key=lambda each: each.common(text), default=_ReadList(b"", (), ()))
    count = known.common(text)
    ends, end = list(known.ends[:count]), known.ends[count - 1] if count else 0
    for raw in raws[count:]:
        end += 1 + len(msgspec.json.encode(raw))
        ends.append(end)
    found = _ReadList(text, ends, (*known.entries[:count], *map(_read, raws[count:])))
    _read_lists.appendleft(found)
    return found


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


def _read(raw: Any) -> ReadBooking:
    """A booking, or what is wrong with it; kept by content. Every version of a page is read by several, and differs little from
    the last."""
    try:
        return _read_text(msgspec.json.encode(raw))
    except (TypeError, ValueError):  # not from JSON
        return _problem(raw) or booking_of(raw)


@functools.lru_cache(maxsize=1 << 14)
def _read_text(text: bytes) -> ReadBooking:
    raw = msgspec.json.decode(text)
    return _problem(raw) or booking_of(raw)


def read_bookings(page: Object) -> tuple[list[BookingEntry], list[MalformedEntry]]:
    entries, malformed = [], list(_not_a_list(page, "bookings"))
    raws = raw_entries(page, "bookings")
    for index, (raw, read) in enumerate(zip(raws, _read_all(raws), strict=True)):
        if isinstance(read, Booking):
            entries.append(BookingEntry(read, raw))
            continue
        field, what = read
        place = f"spec.bookings[{index}]"
        malformed.append(MalformedEntry(page["metadata"]["name"], f"{place}{field}", what))
        entries.append(BookingEntry(_held_by_unknown(raw, place), raw))
    return entries, malformed


def read_records(page: Object, state: str) -> tuple[list[RecordEntry], list[MalformedEntry]]:
    entries, malformed = [], list(_not_a_list(page, state))
    for index, raw in enumerate(raw_entries(page, state)):
        problem = _device_problem(raw)
        if problem is None:
            entries.append(RecordEntry(record_of(raw), raw))
            continue
        malformed.append(MalformedEntry(page["metadata"]["name"], f"spec.{state}[{index}]{problem[0]}", problem[1]))
        entries.append(RecordEntry(None, raw))
    return entries, malformed


def _held_by_unknown(raw: Any, place: str) -> Booking | None:
    if _device_problem(raw) is not None:
        return None
    return Booking(device_of(raw["device"]), Holder(UNKNOWN, "", place, place), "", "prepared", "")


def _not_a_list(page: Object, which: str) -> Iterator[MalformedEntry]:
    spec = page.get("spec") or {}
    name = page["metadata"]["name"]
    if not isinstance(spec, Mapping):
        if which == "bookings":
            yield MalformedEntry(name, "spec", "must be an object")
    elif not isinstance(spec.get(which) or [], list | tuple):
        yield MalformedEntry(name, f"spec.{which}", "must be a list")


def _problem(raw: Any) -> tuple[str, str] | None:
    """What is wrong with a booking: the field of it, and what it must be; None: nothing."""
    if (problem := _device_problem(raw)) is not None:
        return problem
    holder = raw.get("holder")
    if not (isinstance(holder, dict) and isinstance(holder.get("kind"), str) and isinstance(holder.get("name"), str)
            and isinstance(holder.get("uid"), str)):
        return ".holder", "must be an object with the texts kind, name and uid"
    if not (isinstance(holder.get("namespace"), str | None) and isinstance(holder.get("purpose"), str | None)):
        return ".holder", "must be an object with texts alone"
    if not isinstance(raw.get("state"), str):
        return ".state", "must be a text"
    if not (isinstance(raw.get("request"), str | None) and isinstance(raw.get("prepared"), str | None)
            and isinstance(raw.get("node"), str | None) and isinstance(raw.get("contested"), str | None)):
        return "", "must have texts as request, prepared, node and contested"
    if not isinstance(raw.get("since"), str):
        return ".since", "must be a text"
    amount = raw.get("amount") or {}
    if not isinstance(amount, dict):
        return ".amount", "must be an object"
    if len(amount) > 1 or "whole" not in amount:
        for key in AMOUNTS:
            if not isinstance(amount.get(key) or {}, dict):
                return f".amount.{key}", "must be an object"
    if hardware := raw.get("hardware"):
        if not isinstance(hardware, list):
            return ".hardware", "must be a list of texts"
        for key in hardware:
            if not isinstance(key, str):
                return ".hardware", "must be a list of texts"
    return None


def readable_device(raw: Any) -> bool:
    """Whether an entry of a page names a device."""
    return _device_problem(raw) is None


def _device_problem(raw: Any) -> tuple[str, str] | None:
    if not isinstance(raw, dict):
        return "", "must be an object"
    device = raw.get("device")
    if not (isinstance(device, dict) and isinstance(device.get("driver"), str) and isinstance(device.get("pool"), str)
            and isinstance(device.get("device"), str)):
        return ".device", "must be an object with the texts driver, pool and device"
    return None
