"""The ledger's page: one object a host, with every booking on it. A page is replaced whole, at the revision it was read."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from outfitter.api.device import DeviceId
from outfitter.api.kinds import LEDGER_PAGE, Object
from outfitter.errors import AlreadyHeld

State = Literal["booked", "prepared", "released"]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a device: a claim, a Placement consumer or a migration."""

    kind: str  # "ResourceClaim", "Consumer", "Migration"
    namespace: str
    name: str
    uid: str
    purpose: str = ""  # for people: "vmi/blue", the machine or pod for which it is held

    def __str__(self) -> str:
        what = f"{self.purpose} (claim {self.name})" if self.purpose else f"{self.kind} {self.name}"
        return f"{what} in {self.namespace}" if self.namespace else what


@dataclass(frozen=True, slots=True)
class Booking:
    device: DeviceId
    holder: Holder
    request: str  # which of the holder's requests it answers
    state: State
    since: str
    amount: dict[str, Any] = field(default_factory=lambda: {"whole": True})  # or capacity, counters, shareID

    def to_object(self) -> Object:
        holder = {"kind": self.holder.kind, "namespace": self.holder.namespace, "name": self.holder.name,
                  "uid": self.holder.uid, "purpose": self.holder.purpose}
        return {"device": {"driver": self.device.driver, "pool": self.device.pool, "device": self.device.device},
                "holder": {key: value for key, value in holder.items() if value},
                "request": self.request, "state": self.state, "since": self.since, "amount": self.amount}


def _booking(raw: Object) -> Booking:
    device, holder = raw["device"], raw["holder"]
    return Booking(
        DeviceId(device["driver"], device["pool"], device["device"]),
        Holder(holder["kind"], holder.get("namespace") or "", holder["name"], holder["uid"], holder.get("purpose") or ""),
        raw.get("request") or "", raw["state"], raw["since"], raw.get("amount") or {"whole": True},
    )


def _rivals(bookings: Iterable[Booking], wanted: Booking) -> Iterator[Booking]:
    return (booking for booking in bookings if booking.device == wanted.device and booking.holder.uid != wanted.holder.uid)


class Page:
    """A page as it was read. Changes give the object to write; the page itself stays as it is."""

    def __init__(self, obj: Object) -> None:
        self.object = obj
        self.host: str = obj["metadata"]["name"]
        self.revision: str = obj["metadata"].get("resourceVersion", "")
        self.bookings: tuple[Booking, ...] = tuple(_booking(raw) for raw in (obj.get("spec") or {}).get("bookings") or ())

    @staticmethod
    def blank(host: str) -> Object:
        return {"apiVersion": LEDGER_PAGE.api_version, "kind": LEDGER_PAGE.kind, "metadata": {"name": host},
                "spec": {"host": host, "bookings": [], "reserved": [], "quarantined": [], "unclean": []}}

    def of(self, uid: str) -> tuple[Booking, ...]:
        """What one holder holds here."""
        return tuple(booking for booking in self.bookings if booking.holder.uid == uid)

    def rivals(self, wanted: Booking) -> Iterator[Booking]:
        """The bookings that stand in the way of another; the same holder again is no harm."""
        return _rivals(self.bookings, wanted)

    def holding(self, wanted: Sequence[Booking]) -> Object:
        """The page with these bookings besides its own. AlreadyHeld names who stands in the way."""
        for index, booking in enumerate(wanted):
            if taken := next(_rivals((*self.bookings, *wanted[:index]), booking), None):
                raise AlreadyHeld(booking.device.short, by=str(taken.holder), since=taken.since)
        have = {(booking.device, booking.holder.uid) for booking in self.bookings}
        fresh = [booking for booking in wanted if (booking.device, booking.holder.uid) not in have]
        return self._with([*self._raw(), *(booking.to_object() for booking in fresh)])

    def without(self, uid: str, device: DeviceId | None = None) -> Object:
        """The page with nothing left of one holder, or not that device of it."""
        return self._with(raw for raw in self._raw()
                          if raw["holder"]["uid"] != uid or (device is not None and _booking(raw).device != device))

    def marked(self, uid: str, state: State) -> Object:
        """The page with everything of one holder in a state."""
        return self._with({**raw, "state": state} if raw["holder"]["uid"] == uid else raw for raw in self._raw())

    def _raw(self) -> list[Object]:
        return list((self.object.get("spec") or {}).get("bookings") or ())

    def _with(self, bookings: Iterable[Object]) -> Object:
        out = copy.deepcopy(self.object)
        out["spec"] = {**(out.get("spec") or {}), "bookings": list(bookings)}
        return out
