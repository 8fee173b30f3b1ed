"""The ledger's page: one object a host, with every booking on it and what was taken out of service. A page is replaced whole,
at the revision it was read. A pool whose devices are not tied to one host has a page of its own, so that there is one place
where each device is booked whoever uses it.

Every change is a method that gives the object to write. What a change does not speak of, known to us or not, stays."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from outfitter.api.device import DeviceId
from outfitter.api.kinds import LEDGER_PAGE, Object
from outfitter.cel import quantity
from outfitter.cel.quantity import Quantity
from outfitter.errors import AlreadyHeld, Cause, Invalid, OutOfService, TooLarge, Unsatisfiable

State = Literal["booked", "prepared", "released"]
Marks = Literal["reserved", "quarantined", "unclean"]
MARKS: tuple[Marks, ...] = ("reserved", "quarantined", "unclean")  # also the order in which a refusal names them
DOMAIN = "Domain"  # the kind of a holder that was found on the host and that nobody booked for
MOST = 2000  # bookings on a page: below 1 MB with names of usual length, and an API server refuses objects above 1.5 MB
NOTHING = quantity.of(0)
POOLS = ".pools.outfitter.dev"  # how names of pools' pages end; no host may be called so
READABLE = 63  # characters of a pool's own name in the name of its page


def pool_page(driver: str, pool: str) -> str:
    """The name of the page of a pool that is not tied to a host. Pools may have names that objects may not."""
    digest = hashlib.sha256(f"{driver}\0{pool}".encode()).hexdigest()[:16]
    words = re.sub(r"[^a-z0-9]+", "-", pool.lower()).strip("-")[:READABLE].strip("-")
    return f"{f'{words}-' if words else ''}{digest}{POOLS}"


def is_pool_page(name: str) -> bool:
    return name.endswith(POOLS)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a device: a claim, a Placement consumer, a migration, or a machine that was found to have it."""

    kind: str  # "ResourceClaim", "Consumer", "Migration", "Domain" (runs on the host, and nobody booked for it)
    namespace: str
    name: str
    uid: str
    purpose: str = ""  # for people: "vmi/blue", the machine or pod for which it is held

    def __str__(self) -> str:
        what = f"{self.purpose} (claim {self.name})" if self.purpose else f"{self.kind} {self.name}"
        return f"{what} in {self.namespace}" if self.namespace else what

    def to_object(self) -> Object:
        whole = {"kind": self.kind, "namespace": self.namespace, "name": self.name, "uid": self.uid, "purpose": self.purpose}
        return {key: value for key, value in whole.items() if value}


class Key(NamedTuple):
    """What tells bookings on a page apart."""

    device: DeviceId
    uid: str
    share: str  # "" for what is no share


@dataclass(frozen=True, slots=True)
class Booking:
    """One device, or a share of one, for one holder. `amount` is one of

    {"whole": true}                                        alone on the device
    {"shareID": "...", "capacity": {"memory": "4Gi"}}      beside others, while the capacity lasts
    {"resources": {"VCPU": 2}}                             a host's own resources: never in the way; "cells": {"0": 2} says how
                                                           many CPUs of which NUMA cell are the holder's alone, and
                                                           "cpus": {"0": [4, 5]} which
    {"adminAccess": true}                                  looks on while others have it: never in the way

    and the first two may say which of the pool's counters they use: "counters": {"<counter set>": {"<counter>": "1"}}."""

    device: DeviceId
    holder: Holder
    request: str  # which of the holder's requests it answers
    state: State
    since: str
    amount: dict[str, Any] = field(default_factory=lambda: {"whole": True})
    prepared: str = ""  # when the host handed it over; "" while it did not
    node: str = ""  # on the page of a pool: the host that uses it; on a host's page it is that host

    @property
    def key(self) -> Key:
        return Key(self.device, self.holder.uid, str(self.amount.get("shareID") or ""))

    @property
    def counted(self) -> bool:
        """It holds a device: a host's own resources do not, nor does whoever only looks on."""
        return bool(self.amount.get("whole")) or not ("resources" in self.amount or self.amount.get("adminAccess"))

    @property
    def shared(self) -> bool:
        return not self.amount.get("whole") and ("capacity" in self.amount or "shareID" in self.amount)

    @property
    def cpus(self) -> list[int]:
        """CPUs of the host that are the holder's alone."""
        return [cpu for cpus in (self.amount.get("cpus") or {}).values() for cpu in cpus]

    def clashes(self, other: Booking) -> bool:
        """Both cannot stand on one page, whatever the amounts."""
        return (self.device == other.device and self.key != other.key and self.counted and other.counted
                and not (self.shared and other.shared))

    def excludes(self, other: Booking) -> bool:
        """One is the card that the other is a part of, and was published without saying so: the parts were switched off, or on,
        while somebody had one. Where both say it their amounts are counted."""
        one, two = self.device, other.device
        if (one.driver, one.pool) != (two.driver, two.pool) or not (self.counted and other.counted):
            return False
        mine, theirs = self.amount.get("counters") or {}, other.amount.get("counters") or {}
        return (two.device in mine and two.device not in theirs) or (one.device in theirs and one.device not in mine)

    def to_object(self) -> Object:
        out = {"device": device_object(self.device), "holder": self.holder.to_object(),
               "request": self.request, "state": self.state, "since": self.since, "amount": self.amount}
        return out | {name: value for name, value in (("prepared", self.prepared), ("node", self.node)) if value}


@dataclass(frozen=True, slots=True)
class Mark:
    """A device that nobody new gets: an entry of `reserved`, `quarantined` or `unclean`."""

    device: DeviceId
    reason: str
    by: str
    since: str
    origin: str = ""  # "placement": made from a provider's reserved count, and taken away by it

    def to_object(self) -> Object:
        out = {"device": device_object(self.device), "reason": self.reason, "by": self.by, "since": self.since}
        return {**out, "origin": self.origin} if self.origin else out


@dataclass(frozen=True, slots=True)
class Limits:
    """What was published: how much of each device, and how much of each counter that devices share."""

    capacity: Mapping[DeviceId, Mapping[str, str]] = field(default_factory=dict)  # a device that may be shared is in here
    counters: Mapping[tuple[str, str, str], Mapping[str, str]] = field(default_factory=dict)  # (driver, pool, counter set)


def device_object(device: DeviceId) -> Object:
    return {"driver": device.driver, "pool": device.pool, "device": device.device}


def device_of(raw: Object) -> DeviceId:
    return DeviceId(raw["driver"], raw["pool"], raw["device"])


def holder_of(raw: Object) -> Holder:
    return Holder(raw["kind"], raw.get("namespace") or "", raw["name"], raw["uid"], raw.get("purpose") or "")


def _booking(raw: Object) -> Booking:
    return Booking(device_of(raw["device"]), holder_of(raw["holder"]), raw.get("request") or "", raw["state"], raw["since"],
                   raw.get("amount") or {"whole": True}, raw.get("prepared") or "", raw.get("node") or "")


def _mark(raw: Object) -> Mark:
    return Mark(device_of(raw["device"]), raw.get("reason") or "", raw.get("by") or "", raw.get("since") or "",
                raw.get("origin") or "")


class Page:
    """A page as it was read. Changes give the object to write; the page itself stays as it is."""

    def __init__(self, obj: Object) -> None:
        self.object = obj
        self.host: str = obj["metadata"]["name"]
        self.revision: str = obj["metadata"].get("resourceVersion", "")
        self.bookings: tuple[Booking, ...] = tuple(map(_booking, self._raw("bookings")))
        self.reserved, self.quarantined, self.unclean = (tuple(map(_mark, self._raw(which))) for which in MARKS)

    @staticmethod
    def blank(host: str) -> Object:
        return {"apiVersion": LEDGER_PAGE.api_version, "kind": LEDGER_PAGE.kind, "metadata": {"name": host},
                "spec": {**({} if is_pool_page(host) else {"host": host}), "bookings": [], **{which: [] for which in MARKS}}}

    # -- reading

    def of(self, uid: str) -> tuple[Booking, ...]:
        """What one holder holds here."""
        return tuple(booking for booking in self.bookings if booking.holder.uid == uid)

    def on(self, device: DeviceId) -> tuple[Booking, ...]:
        """Who holds a device or shares of it."""
        return tuple(self._there.get(device, ()))

    @functools.cached_property
    def _there(self) -> Mapping[DeviceId, list[Booking]]:
        there: dict[DeviceId, list[Booking]] = defaultdict(list)
        for booking in self.bookings:
            if booking.counted:
                there[booking.device].append(booking)
        return there

    def marks(self, which: Marks) -> tuple[Mark, ...]:
        return {"reserved": self.reserved, "quarantined": self.quarantined, "unclean": self.unclean}[which]

    def rivals(self, wanted: Booking) -> Iterator[Booking]:
        """Others that stand in the way of a booking; the same holder again is no harm."""
        return (booking for booking in self.on(wanted.device)
                if booking.clashes(wanted) and booking.holder.uid != wanted.holder.uid)

    def out_of_service(self, device: DeviceId) -> OutOfService | None:
        """Why nobody new gets a device."""
        for which in MARKS:
            for mark in self.marks(which):
                if mark.device == device:
                    return OutOfService(device.short, which, by=mark.by, since=mark.since, reason=mark.reason)
        return None

    # -- bookings

    def holding(self, wanted: Sequence[Booking], limits: Limits | None = None) -> Object:
        """The page with these bookings besides its own; what the same holder has already is no harm.

        AlreadyHeld names who stands in the way, OutOfService what was done to the device, Unsatisfiable what was never
        published (a share needs `limits` to be counted against)."""
        page, old, fresh = self, {booking.key: booking for booking in self.bookings}, dict[Key, Booking]()
        for booking in wanted:
            had = old.get(booking.key)
            if had is None:
                fresh.setdefault(booking.key, booking)
            elif had.holder.kind == DOMAIN != booking.holder.kind:  # a machine was found to have what is booked for it now
                page = Page(page.turning(booking.key, replace(had, holder=booking.holder, request=booking.request)))
        return page._adding(list(fresh.values()), limits)

    def only(self, uid: str, wanted: Sequence[Booking], limits: Limits | None = None) -> Object:
        """The page on which one holder has exactly these bookings. What it has already stays as it is; where only the amount
        differs it is the same booking with another amount."""
        old, named = {booking.key: booking for booking in self.of(uid)}, {booking.key: booking for booking in wanted}
        same = [one for key, one in named.items() if key in old and old[key].amount == one.amount]
        other = [replace(old[key], amount=one.amount, request=one.request) for key, one in named.items()
                 if key in old and old[key].amount != one.amount]
        fresh = [one for key, one in named.items() if key not in old]
        rest = Page(self.leaving(old.keys() - {one.key for one in same}))
        rest._adding([*other, *fresh], limits, had=old)  # says what does not fit
        page = Page(Page(self.leaving(old.keys() - named.keys())).holding(same))
        for one in other:
            page = Page(page.turning(one.key, one))
        return page._with("bookings", [*page._raw("bookings"), *(one.to_object() for one in fresh)])

    def adding(self, booking: Booking) -> Object:
        """The page with a booking that reality made: it stands whoever else has the device. Only healing may do that."""
        return self._with("bookings", [*self._raw("bookings"), booking.to_object()])

    def turning(self, key: Key, new: Booking) -> Object:
        """The page on which one booking became another."""
        return self._changed(lambda booking, raw: raw if booking.key != key else {
            **{name: value for name, value in raw.items() if name != "prepared"}, **new.to_object(),
            "holder": _merged(raw["holder"], new.holder)})

    def without(self, uid: str, device: DeviceId | None = None) -> Object:
        """The page with nothing left of one holder, or not that device of it."""
        return self.leaving(booking.key for booking in self.of(uid) if device in (None, booking.device))

    def leaving(self, keys: Iterable[Key]) -> Object:
        """The page without these bookings."""
        gone = set(keys)
        return self._changed(lambda booking, raw: None if booking.key in gone else raw)

    def marked(self, uid: str, state: State, now: str = "") -> Object:
        """The page with everything of one holder in a state. `prepared` says when it was first handed over."""

        def change(booking: Booking, raw: Object) -> Object:
            if booking.holder.uid != uid:
                return raw
            first = {"prepared": now} if state == "prepared" and now and not booking.prepared else {}
            return {**raw, "state": state, **first}

        return self._changed(change)

    def moved(self, uid: str, holder: Holder, now: str = "") -> Object:
        """The page on which everything of one holder is another's, from now on: what is prepared stays prepared."""
        theirs = {booking.key: booking for booking in self.of(holder.uid)} if holder.uid != uid else {}
        for booking in self.of(uid):
            if taken := theirs.get(booking.key._replace(uid=holder.uid)):
                raise AlreadyHeld(taken.device.short, by=str(taken.holder), since=taken.since)
        since = {"since": now} if now and holder.uid != uid else {}
        return self._changed(lambda booking, raw: raw if booking.holder.uid != uid else {
            **raw, "holder": _merged(raw["holder"], holder), **since})

    # -- marks

    def with_marks(self, which: Marks, marks: Iterable[Mark]) -> Object:
        """The page with these devices in a list. One that is there already keeps its first time and takes the new words; a
        mark that a person made is never turned into one of a reserved count."""
        entries = self._raw(which)
        places = {_mark(raw).device: index for index, raw in enumerate(entries)}
        for mark in marks:
            index = places.get(mark.device)
            if index is None:
                places[mark.device] = len(entries)
                entries.append(mark.to_object())
                continue
            have = entries[index]
            if mark.origin and not have.get("origin"):
                continue
            new = {**have, "reason": mark.reason, "by": mark.by, "origin": mark.origin}
            entries[index] = new if mark.origin else {key: value for key, value in new.items() if key != "origin"}
        return self._with(which, entries)

    def without_marks(self, which: Marks, devices: Collection[DeviceId]) -> Object:
        """The page without these devices in a list."""
        return self._with(which, [raw for raw in self._raw(which) if _mark(raw).device not in devices])

    # -- how a page is changed

    def _raw(self, which: str) -> list[Object]:
        return list((self.object.get("spec") or {}).get(which) or ())

    def _changed(self, change: Callable[[Booking, Object], Object | None]) -> Object:
        changed = map(change, self.bookings, self._raw("bookings"))
        return self._with("bookings", [raw for raw in changed if raw is not None])

    def _with(self, which: str, entries: list[Object]) -> Object:
        if entries == self._raw(which):
            return self.object
        spec = {**(self.object.get("spec") or {}), which: entries}
        if entries and is_pool_page(self.host):
            spec.setdefault("pool", {key: entries[0]["device"][key] for key in ("driver", "pool")})
        return {**self.object, "metadata": {**self.object["metadata"]}, "spec": spec}

    # -- what fits

    def _adding(self, fresh: Sequence[Booking], limits: Limits | None, had: Collection[Key] = ()) -> Object:
        """With bookings that it does not have. Those that their holder `had` may have been marked meanwhile."""
        if not fresh:
            return self.object
        if len(self.bookings) + len(fresh) > MOST:
            raise TooLarge(f"page {self.host} has {len(self.bookings)} bookings and takes at most {MOST}: "
                           f"{len(fresh)} more do not fit; give some back first")
        self._check(fresh, limits or Limits(), had)
        return self._with("bookings", [*self._raw("bookings"), *(booking.to_object() for booking in fresh)])

    def _check(self, fresh: Sequence[Booking], limits: Limits, had: Collection[Key]) -> None:
        there = {device: list(self.on(device)) for device in {booking.device for booking in fresh}}
        marked = {mark.device for which in MARKS for mark in self.marks(which)}
        for booking in fresh:
            if not booking.counted:
                continue
            if booking.device in marked and booking.key not in had and (error := self.out_of_service(booking.device)):
                raise error
            for taken in there[booking.device]:
                if taken.clashes(booking):
                    raise AlreadyHeld(booking.device.short, by=str(taken.holder), since=taken.since)
            for taken in self.bookings:
                if taken.excludes(booking):
                    raise AlreadyHeld(f"{taken.device.short}, with which {booking.device.device} cannot be together,",
                                      by=str(taken.holder), since=taken.since)
            there[booking.device].append(booking)
        self._check_cpus([booking for booking in fresh if booking.cpus])
        shares = [booking for booking in fresh if booking.shared]
        for device in dict.fromkeys(booking.device for booking in shares):
            if device not in limits.capacity:
                raise Unsatisfiable(f"{device.short} cannot be shared: it publishes no capacity to be counted against")
            _fits(device.short, there[device], [one for one in shares if one.device == device], _capacity,
                  limits.capacity[device])
        pools = dict.fromkeys((one.device.driver, one.device.pool, name) for one in fresh if one.counted for name in _sets(one))
        everything = [*self.bookings, *fresh] if pools else []
        for driver, pool, name in pools:
            def uses(booking: Booking, at: tuple[str, str, str] = (driver, pool, name)) -> Mapping[str, Any]:
                device = booking.device
                return (_sets(booking).get(at[2]) or {}) if (device.driver, device.pool) == at[:2] else {}

            _fits(f"counter set {name} of {pool}", everything, fresh, uses, limits.counters.get((driver, pool, name), {}))

    def _check_cpus(self, fresh: Sequence[Booking]) -> None:
        owners = {cpu: booking for booking in self.bookings for cpu in booking.cpus} if fresh else {}
        for booking in fresh:
            for cpu in booking.cpus:
                if cpu in owners:
                    raise AlreadyHeld(f"CPU {cpu} of {self.host}", by=str(owners[cpu].holder), since=owners[cpu].since)
                owners[cpu] = booking


def _capacity(booking: Booking) -> Mapping[str, Any]:
    return (booking.amount.get("capacity") or {}) if booking.shared else {}


def _sets(booking: Booking) -> Mapping[str, Any]:
    return booking.amount.get("counters") or {}


def _fits(what: str, everybody: Sequence[Booking], fresh: Sequence[Booking], uses: Callable[[Booking], Mapping[str, Any]],
          limits: Mapping[str, str]) -> None:
    """What the fresh ones use is there, besides what everybody (the fresh ones included) uses of it."""
    for name in dict.fromkeys(name for booking in fresh for name in uses(booking)):
        if name not in limits:
            raise Unsatisfiable(f"{name} of {what} cannot be counted: none was published")
        limit = amount(limits[name], f"the published {name} of {what}")
        total, wanted = (_sum(bookings, uses, name, what) for bookings in (everybody, fresh))
        if wanted > limit:
            raise Unsatisfiable(f"{name} of {what}: {wanted} wanted and {limit} published")
        if total > limit:
            asking = {booking.key for booking in fresh}
            others = [booking for booking in everybody if booking.key not in asking and name in uses(booking)]
            left = max(limit - (total - wanted), NOTHING)
            raise AlreadyHeld(f"{name} of {what}: {wanted} wanted and {left} of {limit} left; the rest",
                              by=", ".join(dict.fromkeys(str(booking.holder) for booking in others)),
                              since=min(booking.since for booking in others))


def _sum(bookings: Iterable[Booking], uses: Callable[[Booking], Mapping[str, Any]], name: str, what: str) -> Quantity:
    parts = [amount(used[name], f"{name} of {what} for {booking.holder}")
             for booking in bookings if name in (used := uses(booking))]
    return sum(parts, NOTHING)


def amount(text: Any, what: str) -> Quantity:
    """A quantity that is not below nothing. Invalid says whose."""
    try:
        value = quantity.parse(str(text))
    except ValueError as error:
        raise Invalid(f"{what}: {error}", [Cause("amount", f"Invalid value: {error}")]) from error
    if value < NOTHING:
        message = f"Invalid value: {text}: must be at least 0"
        raise Invalid(f"{what}: {message}", [Cause("amount", message)])
    return value


def _merged(raw: Object, holder: Holder) -> Object:
    """A holder as it is written, in the place of another; fields of neither stay."""
    return {**{key: value for key, value in raw.items() if key not in ("kind", "namespace", "name", "uid", "purpose")},
            **holder.to_object()}
